// Command page serves the status page of an invented group: 50 members, each with a listener of its own for its peers, and
// 10,000 keys that wait. page.test.mjs looks at it with a browser; make page runs both.
//
// It prints one line of JSON, with its address and its admin token, and then obeys lines on its
// standard input:
//
//	silence NAME   the member does not answer any more
//	heal           no key is stuck, failing or hot any more
//
// It ends with its standard input.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/adminhttp"
	"github.com/ringfence/router/internal/adminhttp/statuspage"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/deadletter"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// token is the admin token.
const token = "a-token-of-the-page-test"

func main() {
	members := flag.Int("members", 50, "how many members the group has")
	keys := flag.Int("keys", 10_000, "how many keys wait")
	flag.Parse()
	if err := run(*members, *keys); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(members, keys int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	g := newGroup(members, keys)
	var running errgroup.Group
	for _, m := range g.members {
		if err := m.listen(ctx); err != nil {
			return err
		}
		running.Go(func() error { return m.server.Serve(m.listener) })
		defer m.server.Stop()
	}
	acts := controllog.NewMem()
	keeper := act.New(act.DefaultConfig(), g.members[0].name, func() (controllog.Transport, error) { return acts, nil }, time.Now, log, act.NewMetrics(registry))
	running.Go(func() error { return keeper.Run(ctx, g) })

	group := report.NewGroup(g.members[0], nil, insecure.NewCredentials())
	pages := report.Handlers(group, listen.ShowsToken)
	maps.Copy(pages, statuspage.New(group, statuspage.Callers{MayNameKeys: listen.ShowsToken, MayAct: listen.MayAct, Ending: listen.Ending}).Handlers())
	maps.Copy(pages, act.Handlers(keeper, "", first, parkable))
	maps.Copy(pages, deadletter.Endpoint{
		Ask: newLetters(g.begun.UTC()).ask, Node: g.members[0].name, Named: listen.ShowsToken, Reads: listen.ShowsToken, Metrics: deadletter.NewMetrics(registry), Log: log,
	}.Handlers())
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	guard := listen.Guard{
		Name: "admin", Token: func() string { return token }, Open: []string{"/", "/v1/page", "/v1/page/events", "/v1/rollouts"}, Metrics: listen.NewMetrics(registry),
	}
	admin := listen.HTTP{Name: "admin", Listener: listener, ConnectionsMax: 64, Metrics: guard.Metrics, LogMetrics: loglimit.NewMetrics(registry), Log: log}
	handler := guard.Protect(adminhttp.NewHandler(adminhttp.Options{Metrics: registry, Pages: pages}))
	running.Go(func() error { return admin.Serve(ctx, handler) })
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"url": "http://" + listener.Addr().String() + "/", "token": token}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		g.obey(lines.Text())
	}
	cancel()
	for _, m := range g.members {
		m.server.Stop()
	}
	return running.Wait()
}

// parkable lets all keys be parked.
func parkable(context.Context) error { return nil }

// first implements act.First: no event of this group can be skipped.
func first(context.Context, event.Key) (event.MessageID, error) {
	return event.MessageID{}, act.ErrNothing
}

// listen opens the port on which the peers of a member ask it.
func (m *member) listen(ctx context.Context) (err error) {
	if m.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	m.server = grpc.NewServer()
	report.NewServer(m, nil).Register(m.server)
	return nil
}

// obey performs one line of the standard input.
func (g *group) obey(line string) {
	what, name, _ := strings.Cut(line, " ")
	switch what {
	case "silence":
		for _, m := range g.members {
			if m.name == name {
				m.server.Stop()
			}
		}
	case "heal":
		g.mu.Lock()
		g.healed = true
		g.mu.Unlock()
	default:
		fmt.Fprintf(os.Stderr, "unknown: %q\n", line)
	}
}
