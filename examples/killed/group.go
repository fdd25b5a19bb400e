// Package killed runs a group for the examples that kill processes: routers and applications on this machine, an in-memory broker, and a
// database that compares fences. Routers and applications are processes, and die by SIGKILL. Database and broker run in processes that are
// never killed.
package killed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/ringfence/router/internal/devtools/procgroup"
)

// Config says what a group consists of.
type Config struct {
	Options
	Application func(endpoint string) []string // arguments with which this program is the application beside a router
	Members     int
}

// Group is a group of routers, router-1 and so on, and the applications beside them, app-1 and so on. Its methods are safe for concurrent use.
type Group struct {
	cfg           Config
	dir           string
	routers, apps *procgroup.Group
	members       []member
	failed        chan error // cap 1: a process has ended unasked

	mu      sync.Mutex
	running map[string]*procgroup.Process
	stopped bool
}

type member struct {
	endpoint, admin string
	router, app     []string // arguments
}

const (
	startMost = time.Minute // until a group takes part
	stopMost  = 10 * time.Second
)

// Start starts a group, and returns when all its members take part.
func Start(ctx context.Context, cfg Config) (*Group, error) {
	dir, err := os.MkdirTemp("", procgroup.FolderPrefix)
	if err != nil {
		return nil, err
	}
	g := &Group{cfg: cfg, dir: dir, failed: make(chan error, 1), running: make(map[string]*procgroup.Process)}
	if err := g.start(ctx); err != nil {
		g.Stop()
		return nil, err
	}
	return g, nil
}

func (g *Group) start(ctx context.Context) error {
	router := g.cfg.Router
	if router == "" {
		router = filepath.Join(g.dir, "router")
		if runtime.GOOS == "windows" {
			router += ".exe"
		}
		build := exec.CommandContext(ctx, "go", "build", "-o", router, "github.com/ringfence/router/cmd/router") //nolint:gosec // a path that we have made
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("the router is not built: %w\n%s", err, out)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	said := func(string) io.Writer {
		if g.cfg.Verbose {
			return os.Stderr
		}
		return io.Discard
	}
	ended := func(p *procgroup.Process, err error) {
		select {
		case g.failed <- fmt.Errorf("%s ended, and nobody has killed it: %w", p.Name, err):
		default:
		}
	}
	g.routers = procgroup.New(procgroup.Config{Executable: router, Dir: g.dir, Ended: ended, Stderr: said, DieWithParent: true, Patience: stopMost})
	g.apps = procgroup.New(procgroup.Config{Executable: self, Dir: g.dir, Ended: ended, Stderr: said, DieWithParent: true, Patience: stopMost})
	address := make(chan string, 1)
	if _, err := g.routers.Start("broker", func(line string) { address <- line }, "demo", "broker"); err != nil {
		return err
	}
	select {
	case broker := <-address:
		err = g.plan(broker)
	case err = <-g.failed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	for _, name := range g.Names() {
		if err := g.Begin(name); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startMost)
	defer cancel()
	for i := range g.members {
		if err := g.ready(ctx, g.members[i].admin); err != nil {
			return err
		}
	}
	return nil
}

// plan gives each member its ports and its settings.
func (g *Group) plan(broker string) error {
	ports, err := procgroup.FreePorts(3 * g.cfg.Members)
	if err != nil {
		return err
	}
	var seeds []string
	for i := range g.cfg.Members {
		name := fmt.Sprintf("router-%d", i+1)
		listen, endpoint := procgroup.AppAddress(filepath.Join(g.dir, name+".sock"), ports[3*i])
		gossip := procgroup.Loopback(ports[3*i+1])
		s := procgroup.Settings{
			Group: "example", Name: name, Topics: []string{"persistent://public/default/example"}, Subscription: "example", Namespace: "public/default",
			App: listen, Gossip: gossip, Admin: procgroup.Loopback(ports[3*i+2]), Seeds: seeds, LogLevel: "warn",
		}
		seeds = append(seeds, gossip)
		file := filepath.Join(g.dir, name+".yaml")
		if err := os.WriteFile(file, s.YAML(), 0o600); err != nil {
			return err
		}
		g.members = append(g.members, member{
			endpoint: endpoint, admin: s.Admin, router: []string{"demo", "member", "--config", file, "--broker", broker}, app: g.cfg.Application(endpoint),
		})
	}
	return nil
}

// ready waits until a router takes part.
func (g *Group) ready(ctx context.Context, admin string) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case err := <-g.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("the group is not ready: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Names returns the names of all processes that may be killed.
func (g *Group) Names() (names []string) {
	for i := range g.members {
		names = append(names, fmt.Sprintf("router-%d", i+1))
	}
	for i := range g.members {
		names = append(names, fmt.Sprintf("app-%d", i+1))
	}
	return names
}

// Endpoints returns where the routers listen for applications and callers.
func (g *Group) Endpoints() (all []string) {
	for i := range g.members {
		all = append(all, g.members[i].endpoint)
	}
	return all
}

// Failed returns a channel that says which process has ended unasked.
func (g *Group) Failed() <-chan error { return g.failed }

var errStopped = errors.New("the group is stopped")

// Begin starts a process, for the first time or after it was killed.
func (g *Group) Begin(name string) error {
	var i int
	var p *procgroup.Process
	var err error
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return errStopped
	}
	if n, _ := fmt.Sscanf(name, "router-%d", &i); n == 1 {
		p, err = g.routers.Start(name, func(string) {}, g.members[i-1].router...)
	} else if n, _ = fmt.Sscanf(name, "app-%d", &i); n == 1 {
		p, err = g.apps.Start(name, func(string) {}, g.members[i-1].app...)
	} else {
		err = fmt.Errorf("no process %q", name)
	}
	if err == nil {
		g.running[name] = p
	}
	return err
}

// Kill kills a process by SIGKILL, and returns when it is gone. It reports whether there was one.
func (g *Group) Kill(name string) bool {
	g.mu.Lock()
	p := g.running[name]
	delete(g.running, name)
	g.mu.Unlock()
	if p == nil {
		return false
	}
	_, err := p.Kill()
	return err == nil
}

// Stop ends all processes.
func (g *Group) Stop() {
	g.mu.Lock()
	g.stopped = true
	g.mu.Unlock()
	for _, one := range []*procgroup.Group{g.apps, g.routers} {
		if one != nil {
			one.StopAll()
		}
	}
	_ = os.RemoveAll(g.dir)
}

// Follow returns a context that ends when the parent of an application ends, or wants it to.
func Follow(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	procgroup.FollowParent(os.Stdin, func(int) { stop() })
	return ctx, stop
}

// Pause waits for t, or until ctx ends.
func Pause(ctx context.Context, t time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(t):
	}
}
