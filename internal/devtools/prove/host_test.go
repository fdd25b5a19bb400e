package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/testing/eventually"
)

// TestMain makes the test binary a child that ends with its standard input, and does nothing, if it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "child" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// silent publishes to nowhere.
type silent struct{}

func (silent) Publish(_ context.Context, _ string, _ []byte, sent func(error)) { sent(nil) }
func (silent) Close()                                                          {}

func newTestHost(t *testing.T, adjust func(*config.Config)) *Host {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Node.Group, c.Node.Name = "orders", "a"
	c.Pulsar.Topics, c.Pulsar.Subscription = []string{"persistent://acme/shop/orders"}, "orders"
	c.Prove.Enabled = true
	if adjust != nil {
		adjust(&c)
	}
	h := NewHost(Environment{
		Executable: self, Member: []string{"child"}, Handler: []string{"child"}, Stderr: io.Discard, Config: c, Token: func() string { return "" },
		Publisher: func(string) (Publisher, error) { return silent{}, nil },
		Clean:     func(_ context.Context, topics Topics) []string { return topics.All() },
		Registry:  prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(h.Close)
	return h
}

func (h *Host) asked(t *testing.T, ask any) Answer {
	t.Helper()
	text, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	text, err = h.Prove(t.Context(), text)
	var a Answer
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func aPlan() *Plan { return &Plan{Seconds: 60, Rate: 100, Keys: 10} }

// TestHostRefuses: what is wrong with a step, comes from a stranger to the proof or is not allowed is refused by name, and starts nothing.
func TestHostRefuses(t *testing.T) {
	plan := func(adjust func(*Plan)) Ask {
		p := aPlan()
		adjust(p)
		return Ask{Do: DoStart, Run: "abcdef", Plan: p}
	}
	for want, one := range map[string]struct {
		ask    any
		adjust func(*config.Config)
	}{
		"prove.enabled is false at a":     {Ask{Do: DoStart, Run: "abcdef", Plan: aPlan()}, func(c *config.Config) { c.Prove.Enabled = false }},
		"ownership.mode is gossip":        {Ask{Do: DoStart, Run: "abcdef", Plan: aPlan()}, func(c *config.Config) { c.Ownership.Mode = config.ModeGossip }},
		"longer than prove.for_max":       {plan(func(p *Plan) { p.Seconds = 3601 }), nil},
		"more than prove.rate_max, 1000":  {plan(func(p *Plan) { p.Rate = 1001 }), nil},
		"more than prove.keys_max, 10000": {plan(func(p *Plan) { p.Keys = 10001 }), nil},
		"want more than 0":                {plan(func(p *Plan) { p.Seconds = -1 }), nil},
		"plan.member":                     {plan(func(p *Plan) { p.Member = -1 }), nil},
		"plan.by":                         {plan(func(p *Plan) { p.By = strings.Repeat("x", 201) }), nil},
		"plan is missing":                 {Ask{Do: DoStart, Run: "abcdef"}, nil},
		"six hexadecimal digits":          {Ask{Do: DoStart, Run: "../etc", Plan: aPlan()}, nil},
		"no such step":                    {Ask{Do: "rm", Run: "abcdef"}, nil},
		"no proof abcdef runs at a":       {Ask{Do: DoPoll, Run: "abcdef"}, nil},
		"cannot unmarshal":                {"text", nil},
		"fault is missing":                {Ask{Do: DoFault, Run: "abcdef"}, nil},
		"fault.seconds = 61":              {Ask{Do: DoFault, Run: "abcdef", Fault: &Fault{Kind: Kill, Seconds: 61}}, nil},
	} {
		t.Run(want, func(t *testing.T) {
			h := newTestHost(t, one.adjust)
			if a := h.asked(t, one.ask); !strings.Contains(a.Error, want) || a.Run != "" || h.proof != nil {
				t.Errorf("it answers %+v", a)
			}
		})
	}
}

// TestHostEnds: a proof runs for one command at a time; it ends by a step, with its router, and by itself when the command is silent; and
// nothing of it is left running.
func TestHostEnds(t *testing.T) {
	h := newTestHost(t, nil)
	start := Ask{Do: DoStart, Run: "abcdef", Plan: aPlan()}
	if a := h.asked(t, start); a.Error != "" || a.Run != "abcdef" {
		t.Fatalf("it does not start: %+v", a)
	}
	first := h.proof
	if a := h.asked(t, Ask{Do: DoStart, Run: "000000", Plan: aPlan()}); !strings.Contains(a.Error, "proof abcdef runs at a") {
		t.Errorf("a second proof: %+v", a)
	}
	if a := h.asked(t, Ask{Do: DoPoll, Run: "000000"}); !strings.Contains(a.Error, "no proof 000000") {
		t.Errorf("a step of another proof: %+v", a)
	}
	if a := h.asked(t, Ask{Do: DoClean, Run: "abcdef"}); !strings.Contains(a.Error, "a proof runs") {
		t.Errorf("its topics are removed while it runs: %+v", a)
	}
	eventually.NoError(t, eventually.Most, "the processes run", func() error {
		first.mu.Lock()
		defer first.mu.Unlock()
		if first.router == nil || first.handlers == nil {
			return errors.New("not yet")
		}
		return nil
	})
	router := first.router
	if a := h.asked(t, Ask{Do: DoFault, Run: "abcdef", Fault: &Fault{Kind: "meteor"}}); !strings.Contains(a.Error, "no such fault") {
		t.Errorf("a fault that there is not: %+v", a)
	}
	if a := h.asked(t, Ask{Do: DoStop, Run: "abcdef"}); a.Error != "" || h.proof != nil {
		t.Errorf("it does not stop: %+v", a)
	}
	select {
	case <-router.Ended():
	default:
		t.Error("its router still runs")
	}
	if a := h.asked(t, Ask{Do: DoClean, Run: "abcdef"}); fmt.Sprint(a.Remain) != "[persistent://acme/shop/__prove-orders-abcdef persistent://acme/shop/__prove-orders-abcdef-prove-RETRY persistent://acme/shop/__prove-orders-abcdef-prove-DLQ persistent://public/default/__ring-orders-prove-abcdef]" {
		t.Errorf("its topics are %v", a.Remain)
	}

	h.asked(t, start)
	second := h.proof
	second.mu.Lock()
	second.lastWord -= 1000 * 1000 * 1000 * 1000
	second.mu.Unlock()
	select {
	case <-second.over:
	case <-time.After(eventually.Most):
		t.Error("it goes on although the command is silent")
	}

	h.asked(t, start)
	third := h.proof
	h.Close()
	select {
	case <-third.over:
	default:
		t.Error("it outlives its router")
	}
	if a := h.asked(t, start); !strings.Contains(a.Error, "a ends") {
		t.Errorf("it starts beside a router that has ended: %+v", a)
	}
}

// TestHostFaults: each fault ends the processes that it names, or stops them, and starts them again; and its records say when.
func TestHostFaults(t *testing.T) {
	h := newTestHost(t, nil)
	h.asked(t, Ask{Do: DoStart, Run: "abcdef", Plan: aPlan()})
	p := h.proof
	processes := func() (router, handlers *procgroup.Process, busy bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.router, p.handlers, p.busy
	}
	eventually.True(t, "the processes run", func() bool { router, handlers, _ := processes(); return router != nil && handlers != nil })
	next := 0
	for kind, want := range map[string]struct {
		router, handlers bool   // are new ones afterwards
		records          string // but for the beginning and the end of the fault
	}{
		Kill: {true, true, "k a"}, KillRouter: {true, false, ""}, KillHandler: {false, true, "k a"}, Pause: {false, false, "z"}, PauseRouter: {false, false, ""},
		Drain: {false, false, "x"}, // the child has no admin endpoint
	} {
		if runtime.GOOS == "windows" && strings.HasPrefix(kind, Pause) {
			continue
		}
		router, handlers, _ := processes()
		if a := h.asked(t, Ask{Do: DoPoll, Run: "abcdef", From: next}); a.Error == "" {
			next = a.Next
		}
		if a := h.asked(t, Ask{Do: DoFault, Run: "abcdef", Fault: &Fault{Number: 1, Kind: kind, Seconds: 0.2}}); a.Error != "" {
			t.Fatalf("%s: %s", kind, a.Error)
		}
		if kind != Drain { // which may be over by now
			if a := h.asked(t, Ask{Do: DoFault, Run: "abcdef", Fault: &Fault{Number: 2, Kind: kind}}); !strings.Contains(a.Error, "another fault") {
				t.Errorf("%s: a second fault at the same time: %+v", kind, a)
			}
		}
		eventually.True(t, kind+" is over", func() bool { _, _, busy := processes(); return !busy })
		a := h.asked(t, Ask{Do: DoPoll, Run: "abcdef", From: next})
		var kinds []string
		for _, r := range a.Records {
			kinds = append(kinds, r.Kind)
			if r.Kind == WasStopped && r.Until-r.At < int64(200*time.Millisecond) {
				t.Errorf("%s: stopped for %v", kind, time.Duration(r.Until-r.At))
			}
		}
		if got := strings.Join(kinds, " "); got != strings.TrimSpace("f "+want.records)+" r" {
			t.Errorf("%s: the records are %q", kind, got)
		}
		newRouter, newHandlers, _ := processes()
		if (newRouter != router) != want.router || (newHandlers != handlers) != want.handlers {
			t.Errorf("%s: a new router: %v, new handlers: %v", kind, newRouter != router, newHandlers != handlers)
		}
		for was, now := range map[*procgroup.Process]*procgroup.Process{router: newRouter, handlers: newHandlers} {
			if ended(was) != (was != now) || ended(now) {
				t.Errorf("%s: %s has ended: %v; the one after it: %v", kind, was.Name, ended(was), ended(now))
			}
		}
	}
}

func ended(p *procgroup.Process) bool {
	select {
	case <-p.Ended():
		return true
	default:
		return false
	}
}

// TestHostRecords: records wait until they are fetched, within prove.records_max; when half of them wait nothing more is published, and none gets lost unseen.
func TestHostRecords(t *testing.T) {
	h := newTestHost(t, func(c *config.Config) { c.Prove.RecordsMax = 1000 })
	h.asked(t, Ask{Do: DoStart, Run: "abcdef", Plan: &Plan{Seconds: 60, Rate: 1000, Keys: 10}})
	h.asked(t, Ask{Do: DoPoll, Run: "abcdef", Load: true})
	p := h.proof
	waiting := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.records)
	}
	eventually.NoError(t, eventually.Most, "half of the records wait", func() error {
		if n := waiting(); n < 500 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	a := h.asked(t, Ask{Do: DoPoll, Run: "abcdef"})
	if len(a.Records) < 500 || len(a.Records) > 600 || a.Next != len(a.Records) || a.Lost != 0 {
		t.Errorf("%d records, the next is %d, %d lost", len(a.Records), a.Next, a.Lost)
	}
	again := h.asked(t, Ask{Do: DoPoll, Run: "abcdef"}) // as after an answer that did not arrive
	if len(again.Records) < len(a.Records) || again.Records[0] != a.Records[0] {
		t.Errorf("asked again it has %d records", len(again.Records))
	}
	for range 2000 {
		p.noteNow(Record{Kind: HasStarted})
	}
	if a := h.asked(t, Ask{Do: DoPoll, Run: "abcdef", From: again.Next}); a.Lost == 0 {
		t.Error("records are lost, and nothing says so")
	} else if next := h.asked(t, Ask{Do: DoPoll, Run: "abcdef", From: a.Next}); len(next.Records) > 10 || next.Pending != 0 {
		t.Errorf("%d records come again", len(next.Records))
	}
}

// TestSettingsOf: the router of a proof is the user's but for what must differ, and has all settings by its environment.
func TestSettingsOf(t *testing.T) {
	environ := []string{
		"RINGFENCE__NODE__GROUP=orders", "RINGFENCE__NODE__NAME=a", "RINGFENCE__NODE__ADVERTISE_IP=10.0.0.1", "RINGFENCE__PULSAR__TOPICS=acme/shop/x,acme/shop/y",
		"RINGFENCE__PULSAR__SUBSCRIPTION=s", "RINGFENCE__PULSAR__TOKEN=secret,with:=,", "RINGFENCE__PULSAR__RETRY_TOPIC=r", "RINGFENCE__KEY__FROM=property:user",
		"RINGFENCE__OWNERSHIP__PROFILE=fast", "RINGFENCE__OWNERSHIP__LEASE=1999ms", "RINGFENCE__MAILBOX__DEPTH_MAX=7", "RINGFENCE__PEER__LISTEN=0.0.0.0:7",
		"RINGFENCE__PEER__INSECURE=true", "RINGFENCE__GOSSIP__INSECURE=true", "RINGFENCE__GOSSIP__LISTEN=0.0.0.0:8", "RINGFENCE__GOSSIP__SEEDS=dns+b:1",
		"RINGFENCE__PROVE__ENABLED=true", "RINGFENCE__HANDLER__TIMEOUT=1s", "RINGFENCE__DEBUG__LISTEN=127.0.0.1:9", "RINGFENCE__ADMIN__TOKEN=0123456789abcdef0",
	}
	loaded, err := config.Load(config.Sources{Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	want, topics := settingsOf(loaded.Config, "abcdef", ports{1, 2, 3, 4})
	got, err := config.Load(config.Sources{Environ: want.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	if topics.Events != "persistent://acme/shop/__prove-orders-abcdef" || got.Pulsar.Topics[0] != topics.Events || len(got.Pulsar.Topics) != 1 {
		t.Errorf("it reads %v", got.Pulsar.Topics)
	}
	for _, topic := range got.Pulsar.Topics {
		if !slices.Contains(topics.All(), topic) {
			t.Errorf("it reads %s, which nothing removes", topic)
		}
	}
	if timers := got.Pulsar.TimerTopic(); got.Pulsar.Timers && !slices.Contains(topics.All(), timers) {
		t.Errorf("it reads %s, which nothing removes", timers)
	}
	for what, pair := range map[string][2]any{
		"group": {got.Node.Group, "orders-prove-abcdef"}, "name": {got.Node.Name, "a-prove"}, "token": {string(got.Pulsar.Token), "secret,with:=,"},
		"lease": {got.Ownership.Timing, loaded.Ownership.Timing}, "mailbox": {got.Mailbox, loaded.Mailbox}, "forward": {got.Peer.Config, loaded.Peer.Config},
		"peer": {got.Peer.Listen, "0.0.0.0:3"}, "gossip": {got.Gossip.Listen, "0.0.0.0:4"}, "advertise": {got.Gossip.Advertise, "10.0.0.1:4"},
		"seeds": {len(got.Gossip.Seeds), 0}, "key": {got.Key.From, "message_key"}, "timeout": {got.Handler.Timeout, time.Duration(0)},
		"app": {got.App.Listen, "127.0.0.1:1"}, "admin": {got.Admin.Listen, "127.0.0.1:2"}, "admin token": {string(got.Admin.Token), "0123456789abcdef0"},
		"debug": {got.Debug.Listen, "off"}, "proofs": {got.Prove.Enabled, false}, "acts": {got.Acts.Enabled, false}, "control": {got.ControlTopic(), topics.Control},
		"consumer": {got.Pulsar.ConsumerName, "a-prove"}, "retry": {got.Pulsar.Resolved().RetryTopic, topics.Retry},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
}
