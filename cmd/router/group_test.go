package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
)

// testGroup is some members in this process, each as `router run` would have it but for
// its broker, which is in memory.
type testGroup struct {
	broker  *membroker.Broker
	log     *controllog.Mem
	claims  *controllog.Mem
	acts    *controllog.Mem // nil: members take no acts
	members map[string]*testMember
	seed    string   // address of the first member
	environ []string // further settings of all members
}

// testMember is a member and its application.
type testMember struct{ admin string } // address

// settingsOf returns the settings of one member, with ports of their own.
func (g *testGroup) settingsOf(t *testing.T, name string) config.Config {
	t.Helper()
	environ := []string{
		"RINGFENCE__NODE__GROUP=orders", "RINGFENCE__NODE__NAME=" + name, "RINGFENCE__NODE__ADVERTISE_IP=127.0.0.1",
		"RINGFENCE__PULSAR__TOPICS=orders", "RINGFENCE__PULSAR__SUBSCRIPTION=orders",
		"RINGFENCE__OWNERSHIP__PROFILE=calm",
		"RINGFENCE__APP__LISTEN=" + freeAddress(t), "RINGFENCE__PEER__LISTEN=127.0.0.1:0",
		"RINGFENCE__ADMIN__LISTEN=" + freeAddress(t), "RINGFENCE__DEBUG__LISTEN=127.0.0.1:0",
		"RINGFENCE__GOSSIP__LISTEN=" + freeAddress(t), "RINGFENCE__LOG__LEVEL=" + cmp.Or(os.Getenv("ROUTER_TEST_LOG"), "error"),
		"RINGFENCE__PEER__PING_AFTER=5s", "RINGFENCE__PEER__DEAD_AFTER=20s", // these tests are not about a busy machine
	}
	environ = append(environ, g.environ...)
	if g.seed != "" {
		environ = append(environ, "RINGFENCE__GOSSIP__SEEDS="+g.seed)
	}
	loaded, err := config.Load(config.Sources{Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	if g.seed == "" {
		g.seed = loaded.Gossip.Listen
	}
	return loaded.Config
}

// taken holds the ports of the tests of this process: tests run in parallel, and a port is free until
// a process listens on it.
var taken sync.Map

// freePorts returns ports that no other test has, free for both UDP and TCP.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for len(ports) < n {
		more, err := procgroup.FreePorts(n - len(ports))
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range more {
			if _, has := taken.LoadOrStore(port, true); !has {
				ports = append(ports, port)
			}
		}
	}
	return ports
}

// freeAddress returns a loopback address with such a port.
func freeAddress(t *testing.T) string {
	t.Helper()
	return procgroup.Loopback(freePorts(t, 1)[0])
}

func newTestGroup() *testGroup {
	return &testGroup{broker: membroker.New(membroker.DefaultConfig()), log: controllog.NewMem(), claims: controllog.NewMem(), acts: controllog.NewMem(), members: map[string]*testMember{}}
}

// memory is the broker of the members that are started from now on.
func (g *testGroup) memory() broker {
	b := broker{
		source: func(from source.Config, metrics *source.Metrics, log *slog.Logger) *source.Source {
			return source.NewMem(from, g.broker, metrics, log)
		},
		parking: func(from source.Config, metrics *source.Metrics, log *slog.Logger) *source.Parking {
			return source.NewMemParking(from, g.broker, metrics, log)
		},
		controlLog: func(*slog.Logger) (controllog.Transport, error) { return g.log, nil },
		claims:     func(string, *slog.Logger) (controllog.Transport, error) { return g.claims, nil },
	}
	if acts := g.acts; acts != nil {
		b.acts = func(string, *slog.Logger) (controllog.Transport, error) { return acts, nil }
	}
	return b
}

// startGroup starts members with applications that run handle, and waits until all of
// them own something and agree.
func startGroup(t *testing.T, handle client.Handler, names ...string) *testGroup {
	t.Helper()
	g := newTestGroup()
	g.startAll(t, handle, names...)
	return g
}

// startAll is startGroup for a group that is empty.
func (g *testGroup) startAll(t *testing.T, handle client.Handler, names ...string) {
	t.Helper()
	for _, name := range names {
		g.start(t, name, handle)
	}
	g.await(t, names[0], "all members own something and agree", agree(len(names)))
}

// agree reports whether so many members own something and agree.
func agree(members int) func(report.Members) bool {
	return func(m report.Members) bool {
		for _, one := range m.Members {
			if one.Status == nil || one.Partitions == 0 || one.Status.Gates.Open != one.Partitions {
				return false
			}
		}
		return len(m.Members) == members && len(m.Disagreements) == 0
	}
}

func (g *testGroup) start(t *testing.T, name string, handle client.Handler) {
	t.Helper()
	cfg := g.settingsOf(t, name)
	g.members[name] = &testMember{admin: cfg.Admin.Listen}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	appCtx, stopApp := context.WithCancel(context.WithoutCancel(t.Context()))
	var router, app sync.WaitGroup
	memory := g.memory()
	router.Go(func() {
		if err := run(ctx, cfg, memory); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	app.Go(func() {
		if err := client.Run(appCtx, cfg.App.Listen, handle, client.WithLogger(slog.New(slog.DiscardHandler))); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("application of %s: %v", name, err)
		}
	})
	t.Cleanup(func() {
		stop()
		router.Wait()
		stopApp()
		app.Wait()
	})
}

// get asks a member's admin endpoint.
func (g *testGroup) get(t *testing.T, member, path string, into any) {
	t.Helper()
	var status string
	var body []byte
	eventually.NoError(t, eventually.Most, member+" listens, and all members answer in time", func() error { // on a busy machine some take longer
		response, err := http.Get("http://" + g.members[member].admin + path)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		status = response.Status
		if body, err = io.ReadAll(response.Body); err == nil && bytes.Contains(body, []byte("no answer in time")) {
			err = errors.New(string(body))
		}
		return err
	})
	if !strings.HasPrefix(status, "200 ") {
		t.Fatalf("%s: %s %s", path, status, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v in %s", path, err, body)
	}
}

// publish sends an event of a key.
func (g *testGroup) publish(t *testing.T, key string) {
	t.Helper()
	if _, err := g.broker.Publish(t.Context(), "persistent://public/default/orders", []membroker.Message{{Key: key, Payload: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
}

// await asks a member about the group until the answer fits.
func (g *testGroup) await(t *testing.T, member, what string, fits func(report.Members) bool) report.Members {
	t.Helper()
	var m report.Members
	eventually.NoError(t, eventually.Most, what, func() error {
		m = report.Members{}
		g.get(t, member, "/v1/members", &m)
		if !fits(m) {
			return fmt.Errorf("the group is %+v", m)
		}
		return nil
	})
	return m
}
