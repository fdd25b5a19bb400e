package demo

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/clock"
)

// member is one router and its application. The router may be killed and started
// again; the application lives on.
type member struct {
	*application

	node     string
	listen   string // where the router listens for the application, each time that it starts
	endpoint string // the same for the application
	gossip   string // address of the newest router

	mu     sync.Mutex // guards what follows
	router *process
	admin  string // address
	killed bool
	seen   figures
}

// stateKilled is what the table shows of a member without its router.
const stateKilled = "KILLED"

// figures are what a member says of itself.
type figures struct {
	member     bool
	partitions int // it may dispatch for
	unsettled  int
}

// startRouter starts the router of a member, for the first time or again.
func (g *group) startRouter(m *member) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	gossip, admin := loopback(ports[0]), loopback(ports[1])
	if m.endpoint == "" {
		m.listen, m.endpoint = appAddress(filepath.Join(g.dir, m.node+".sock"), ports[2])
	}
	m.gossip = gossip
	file := filepath.Join(g.dir, m.node+".yaml")
	if err := os.WriteFile(file, []byte(g.settings(m, admin)), 0o600); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	router, err := g.crew.start(m.node, func(string) {}, append([]string{RoleMember, "--config", file}, g.backend.arguments()...)...)
	m.mu.Lock()
	m.router, m.admin, m.killed = router, admin, false
	m.mu.Unlock()
	return err
}

// socketPathMax is the longest path of a socket that every system takes.
const socketPathMax = 100

// appAddress is a socket, which nobody else can take while the router is away, or a
// port where a socket cannot be.
func appAddress(socket string, port int) (listen, endpoint string) {
	if runtime.GOOS == "windows" || len(socket) > socketPathMax {
		return loopback(port), loopback(port)
	}
	return "unix:" + socket, "unix://" + socket
}

// settings is the file of one member: what `router run --config` takes.
func (g *group) settings(m *member, admin string) string {
	url := g.options.Pulsar
	if url == "" {
		url = "pulsar://127.0.0.1:6650" // not used
	}
	var seeds []string
	for _, other := range g.members {
		if other != m && other.gossip != "" {
			seeds = append(seeds, strconv.Quote(other.gossip))
		}
	}
	return fmt.Sprintf(`# One member of a demo.
node:       {group: %q, name: %q}
pulsar:     {url: %q, topics: [%q], subscription: %q}
control_log: {namespace: %q}
app:        {listen: %q}
peer:       {listen: "127.0.0.1:0"}
gossip:     {listen: %q, seeds: [%s]}
admin:      {listen: %q}
debug:      {listen: "127.0.0.1:0"}
ownership:  {profile: fast}
`, g.names.group, m.node, url, g.names.fenced.topic, g.names.fenced.name, controlNamespace, m.listen, m.gossip, strings.Join(seeds, ", "), admin)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// The ports to choose from lie below those that systems give to outgoing
// connections, of which this machine is about to make many.
const (
	portMin  = 20_000
	portsMax = 10_000
)

// freePorts returns ports that were free a moment ago, for TCP and for UDP.
func freePorts(n int) (ports []int, err error) {
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails
	first := int(binary.BigEndian.Uint16(random[:]))
	for i := 0; i < portsMax && len(ports) < n; i++ {
		port := portMin + (first+i)%portsMax
		if err = tryPort(loopback(port)); err == nil {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("demo: no free ports: %w", err)
	}
	return ports, nil
}

func tryPort(address string) error {
	stream, err := net.Listen("tcp", address) //nolint:noctx // it does not wait for anybody
	if err != nil {
		return err
	}
	defer stream.Close()
	packets, err := net.ListenPacket("udp", address) //nolint:noctx // nor does this
	if err != nil {
		return err
	}
	return packets.Close()
}

// kill kills the router.
func (m *member) kill() (clock.Instant, error) {
	m.mu.Lock()
	router := m.router
	m.killed, m.seen = true, figures{}
	m.mu.Unlock()
	return router.kill()
}

// askPatience is how long a member may take to tell its figures.
const askPatience = time.Second

// look asks the router for its figures, if it lives, and reports whether it takes
// part in the group.
func (m *member) look(ctx context.Context) bool {
	m.mu.Lock()
	admin, killed := m.admin, m.killed
	m.mu.Unlock()
	if killed {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	f, err := ask(ctx, admin)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && !m.killed {
		m.seen = f
	}
	return err == nil && f.member
}

func (m *member) figures() figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// row is the member's line of the table.
func (m *member) row() row {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := row{name: m.node, state: "up", partitions: m.seen.partitions, unsettled: m.seen.unsettled}
	switch {
	case m.killed:
		r.state, r.partitions, r.unsettled = stateKilled, unknown, unknown
	case m.seen.partitions == 0:
		r.state = "joining"
	}
	return r
}

// ask reads the metrics of a member.
func ask(ctx context.Context, admin string) (f figures, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", http.NoBody)
	if err != nil {
		return f, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return f, err
	}
	defer response.Body.Close()
	return figuresIn(response.Body)
}

// figuresIn reads figures from the text format of Prometheus.
func figuresIn(text io.Reader) (f figures, err error) {
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a comment, or a metric with labels that hold spaces
		}
		switch name {
		case "ringfence_ownership_is_member":
			f.member = n == 1
		case "ringfence_ownership_open_partitions":
			f.partitions = int(n)
		case "ringfence_source_unsettled":
			f.unsettled = int(n)
		}
	}
	return f, lines.Err()
}
