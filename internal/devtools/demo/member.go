package demo

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/procgroup"
)

// member is one router and its application. The router may be killed and started
// again; the application lives on.
type member struct {
	*application

	node     string
	listen   string // where the router listens for the application, each time that it starts
	endpoint string // the same for the application
	gossip   string // address of the newest router

	mu     sync.Mutex // guards the fields below
	router *procgroup.Process
	admin  string // address
	killed bool
	seen   figures
}

// stateKilled is the table's state for a member without its router.
const stateKilled = "KILLED"

// figures are the figures in a member's report.
type figures struct {
	member     bool
	partitions int // it may dispatch for
	unsettled  int
}

// startRouter starts the router of a member, for the first time or again.
func (g *group) startRouter(m *member) error {
	ports, err := procgroup.FreePorts(3)
	if err != nil {
		return err
	}
	gossip, admin := procgroup.Loopback(ports[0]), procgroup.Loopback(ports[1])
	if m.endpoint == "" {
		m.listen, m.endpoint = procgroup.AppAddress(filepath.Join(g.dir, m.node+".sock"), ports[2])
	}
	m.gossip = gossip
	var seeds []string
	for _, other := range g.members {
		if other != m && other.gossip != "" {
			seeds = append(seeds, other.gossip)
		}
	}
	file := filepath.Join(g.dir, m.node+".yaml")
	settings := procgroup.Settings{
		Group: g.names.group, Name: m.node,
		Pulsar: g.options.Pulsar, Topics: []string{g.names.fenced.topic}, Subscription: g.names.fenced.name, Namespace: controlNamespace,
		App: m.listen, Gossip: gossip, Admin: admin, Seeds: seeds,
	}
	if err := os.WriteFile(file, settings.YAML(), 0o600); err != nil {
		return err
	}
	router, err := g.child(m.node, func(line string) { g.told(m, line) }, RoleMember, append([]string{"--config", file}, g.backend.arguments()...)...)
	m.mu.Lock()
	m.router, m.admin, m.killed = router, admin, false
	m.mu.Unlock()
	return err
}

// kill kills the router.
func (m *member) kill() (clock.Instant, error) {
	m.mu.Lock()
	router := m.router
	m.killed, m.seen = true, figures{}
	m.mu.Unlock()
	return router.Kill()
}

// askPatience bounds the time for a member's report.
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
