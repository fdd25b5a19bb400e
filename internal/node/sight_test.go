package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/internal/membroker"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/source"
)

// observed is a group of two whose spans and log lines are kept, of each process apart.
type observed struct {
	*group
	spans map[string]*tracetest.InMemoryExporter // by member; and "app of" a member
	lines map[string]*lines                      // by member
	tp    map[string]*sdktrace.TracerProvider
	keys  bool // shown
}

// lines is a log in memory.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// with returns the lines that contain a text.
func (l *lines) with(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func newObserved(t *testing.T) *observed {
	o := &observed{
		group: newGroup(t), spans: make(map[string]*tracetest.InMemoryExporter), lines: make(map[string]*lines),
		tp: make(map[string]*sdktrace.TracerProvider),
	}
	return o
}

// start starts a member that is observed.
func (o *observed) start(name string, adjust func(*Config)) *member {
	return o.startWith(name, adjust, func(p *Parts) {
		o.lines[name] = &lines{}
		p.Log = slog.New(slog.NewJSONHandler(o.lines[name], &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
		p.Sight = pipeline.Sight{Tracer: o.provider(name).Tracer("router"), Subscription: o.source.Subscription, Keys: o.keys}
		metrics := source.NewMetrics(prometheus.NewRegistry())
		p.Source = func() *source.Source { return source.NewMem(o.source, o.feed, metrics, p.Log) }
	})
}

// provider returns what a process exports its spans by, sampling as a router does.
func (o *observed) provider(process string) *sdktrace.TracerProvider {
	if o.tp[process] == nil {
		o.spans[process] = tracetest.NewInMemoryExporter()
		o.tp[process] = sdktrace.NewTracerProvider(sdktrace.WithSyncer(o.spans[process]), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	}
	return o.tp[process]
}

// handle connects an application to a member.
func (o *observed) handle(m *member, handler client.Handler) {
	tracer := o.provider("app of " + m.cfg.Name)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := client.Run(ctx, m.endpoint, handler, client.Logger(slog.New(slog.DiscardHandler)), client.Traces(tracer, propagation.TraceContext{})); err != nil {
			o.t.Errorf("application: %v", err)
		}
	})
	m.stopApp = sync.OnceFunc(func() { cancel(); running.Wait() })
}

// send publishes one event and returns its message id.
func (o *observed) send(key, payload, traceparent string) string {
	o.t.Helper()
	m := membroker.Message{Key: key, Payload: []byte(payload)}
	if traceparent != "" {
		m.Properties = map[string]string{"traceparent": traceparent}
	}
	id, err := o.broker.Publish(o.t.Context(), "persistent://public/default/orders", []membroker.Message{m})
	if err != nil {
		o.t.Fatal(err)
	}
	return event.MessageID{Ledger: id.Ledger, Entry: id.Entry, Batch: -1, TopicPartition: -1}.String()
}

// acked waits until n events are: copies in other topics count as published, and are not.
func (o *observed) acked(n int) {
	o.t.Helper()
	o.eventually("all events are acked", func() error {
		if s := o.broker.SubscriptionStats("orders"); s.Acked < n || s.Unacked > 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// tree returns the spans of a trace as paths from the root, "process/span", sorted.
func (o *observed) tree(id trace.TraceID) (paths []string, wrong error) {
	type node struct {
		name   string
		parent trace.SpanID
	}
	nodes := make(map[trace.SpanID]node)
	for process, spans := range o.spans {
		for _, s := range spans.GetSpans() {
			if s.SpanContext.TraceID() != id {
				continue
			}
			name, _, _ := strings.Cut(s.Name, " ")
			nodes[s.SpanContext.SpanID()] = node{process + "/" + name, s.Parent.SpanID()}
			for _, a := range s.Attributes {
				if strings.Contains(a.Value.Emit(), "user-") {
					wrong = errors.Join(wrong, fmt.Errorf("%s shows the key: %s = %s", s.Name, a.Key, a.Value.Emit()))
				}
			}
		}
	}
	for id, n := range nodes {
		path := n.name
		for at, ok := nodes[n.parent]; ok; at, ok = nodes[at.parent] {
			path = at.name + " " + path
		}
		if n.parent == id {
			wrong = errors.Join(wrong, fmt.Errorf("%s is its own parent", n.name))
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths, wrong
}

// The trace of an event goes on from its producer through consumer node, owner and
// application, each a process of its own, and back to the ack; and only if its producer
// has sampled it.
func TestOneTraceAcrossProcesses(t *testing.T) {
	t.Parallel() // each waits for a Genesis, which takes seconds and no work
	o := newObserved(t)
	a, b := o.start("a", nil), o.start("b", nil)
	var unsampled sync.Map // payload → trace id that its handler found
	handler := func(ctx context.Context, e *client.Event) error {
		sc := trace.SpanContextFromContext(ctx)
		if strings.HasPrefix(string(e.Payload), "unsampled") {
			unsampled.Store(string(e.Payload), sc.TraceID().String())
		} else if !sc.IsSampled() {
			t.Error("the handler of a sampled event has no trace")
		}
		return nil
	}
	o.handle(a, handler)
	o.handle(b, handler)
	o.ready(a, b)

	const n = 40
	traceID := func(i int) string { return fmt.Sprintf("%032x", i+1) }
	for i := range n {
		o.send(fmt.Sprintf("user-%d", i), fmt.Sprintf("sampled %d", i), "00-"+traceID(i)+"-00000000000000aa-01")
		o.send(fmt.Sprintf("user-%d", n+i), fmt.Sprintf("unsampled %d", i), "00-"+traceID(n+i)+"-00000000000000aa-00")
	}
	o.acked(2 * n)

	crossed := make(map[string]int)
	for i := range n {
		id, err := trace.TraceIDFromHex(traceID(i))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		o.eventually("the trace is complete", func() error {
			got, err = o.tree(id)
			if err == nil && len(got) < 5 {
				return fmt.Errorf("spans %q", got)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		from, to := got[0][:1], ""
		if from == "a" {
			to = "b"
		} else {
			to = "a"
		}
		path := func(steps ...string) string { return strings.Join(steps, " ") }
		receive, forward := from+"/receive", from+"/forward"
		local := []string{
			receive, path(receive, from+"/ack"), path(receive, forward), path(receive, forward, from+"/deliver"),
			path(receive, forward, from+"/deliver", "app of "+from+"/process"),
		}
		remote := []string{
			receive, path(receive, from+"/ack"), path(receive, forward), path(receive, forward, to+"/accept"),
			path(receive, forward, to+"/accept", to+"/deliver"),
			path(receive, forward, to+"/accept", to+"/deliver", "app of "+to+"/process"),
		}
		switch {
		case slices.Equal(got, local):
			crossed["local"]++
		case slices.Equal(got, remote):
			crossed[from+to]++
		default:
			t.Errorf("spans %q\nwant  %q\nor    %q", got, local, remote)
		}
		if other, _ := trace.TraceIDFromHex(traceID(n + i)); true {
			if spans, _ := o.tree(other); len(spans) > 0 {
				t.Errorf("an event that its producer has not sampled has spans %q", spans)
			}
		}
		if got, _ := unsampled.Load(fmt.Sprintf("unsampled %d", i)); got != traceID(n+i) {
			t.Errorf("the handler of an unsampled event is in trace %v, want its producer's", got)
		}
	}
	if crossed["ab"]+crossed["ba"] == 0 || crossed["local"] == 0 {
		t.Errorf("ways of the events: %v; this run proved nothing", crossed)
	}
}

// Retries and dead letters stay in the trace of their event, also through the topics
// that copies go to.
func TestATraceGoesOnThroughTheRetryTopic(t *testing.T) {
	t.Parallel() // each waits for a Genesis, which takes seconds and no work
	o := newObserved(t)
	soon := func(c *Config) {
		c.Retry = outcome.DefaultConfig()
		c.Retry.RetryHoldMax = 0 // every retry goes by way of the retry topic
	}
	a := o.start("a", soon)
	o.handle(a, func(_ context.Context, e *client.Event) error {
		if e.Attempt == 1 {
			return client.RetryAfter(errors.New("not yet"), time.Millisecond)
		}
		return client.Reject("never")
	})
	o.ready(a)
	const id = "0000000000000000000000000000abcd"
	o.send("user-1", "doomed", "00-"+id+"-00000000000000aa-01")
	want := []string{
		"a/receive",
		"a/receive a/forward",
		"a/receive a/forward a/deliver",
		"a/receive a/forward a/deliver app of a/process",
		"a/receive a/forward a/send",
		"a/receive a/forward a/send a/receive",
		"a/receive a/forward a/send a/receive a/dead_letter",
		"a/receive a/forward a/send a/receive a/forward",
		"a/receive a/forward a/send a/receive a/forward a/deliver",
		"a/receive a/forward a/send a/receive a/forward a/deliver app of a/process",
		"a/receive a/forward a/send a/receive a/forward a/send",
		"a/receive a/retry",
	}
	traceID, _ := trace.TraceIDFromHex(id)
	var got []string
	o.eventually("the trace is complete", func() error {
		if got, _ = o.tree(traceID); len(got) < len(want) {
			return fmt.Errorf("spans %q", got)
		}
		return nil
	})
	if !slices.Equal(got, want) {
		t.Errorf("spans %q\nwant  %q", got, want)
	}
}

// The message id of an event finds its lines at every node that it crossed, and no
// line shows its key.
func TestTheMessageIDFindsAllLines(t *testing.T) {
	t.Parallel() // each waits for a Genesis, which takes seconds and no work
	o := newObserved(t)
	a, b := o.start("a", nil), o.start("b", nil)
	handler := func(_ context.Context, e *client.Event) error {
		if strings.HasPrefix(string(e.Payload), "reject") {
			return client.Reject("no order of " + e.Key)
		}
		return nil
	}
	o.handle(a, handler)
	o.handle(b, handler)
	o.ready(a, b)
	const n = 40
	ids := make(map[string]bool) // rejected
	for i := range n {
		what := "work"
		if i%2 == 0 {
			what = "reject"
		}
		ids[o.send(fmt.Sprintf("user-%d", i), fmt.Sprintf("%s %d", what, i), "")] = i%2 == 0
	}
	o.acked(n)

	crossed := 0
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		var at []string
		messages := make(map[string]int)
		for _, name := range []string{"a", "b"} {
			found := o.lines[name].with(`"message_id":"` + id + `"`)
			if len(found) > 0 {
				at = append(at, name)
			}
			for _, line := range found {
				_, rest, _ := strings.Cut(line, `"msg":"`)
				message, _, _ := strings.Cut(rest, `"`)
				messages[message]++
			}
		}
		steps := []string{"received", "in the mailbox", "delivered", "finished", "settled"}
		if ids[id] {
			steps = append(steps, "dead letter")
		}
		if len(at) == 2 {
			crossed++
			steps = append(steps, "sent")
		}
		for _, step := range steps {
			if messages[step] == 0 {
				t.Errorf("event %s has no line %q, only %v", id, step, messages)
			}
		}
	}
	if crossed == 0 {
		t.Error("no event crossed from one node to another: this run proved nothing")
	}
	for name, l := range o.lines {
		if found := l.with("user-"); len(found) > 0 {
			t.Errorf("the log of %s shows a key: %s", name, found[0])
		}
		if len(l.with("(key hidden)")) == 0 {
			t.Errorf("no line of %s would have shown a key: this run proved nothing", name)
		}
	}
}

// Whoever says so sees the keys.
func TestKeysAreShownOnDemand(t *testing.T) {
	t.Parallel() // each waits for a Genesis, which takes seconds and no work
	o := newObserved(t)
	o.keys = true
	a := o.start("a", nil)
	o.handle(a, func(context.Context, *client.Event) error { return client.Reject("never") })
	o.ready(a)
	o.send("user-1", "doomed", "00-0000000000000000000000000000abcd-00000000000000aa-01")
	o.acked(1)
	for _, message := range []string{"received", "dead letter"} {
		if found := o.lines["a"].with(`"msg":"` + message + `"`); len(found) != 1 || !strings.Contains(found[0], `"key":"user-1"`) {
			t.Errorf("%s: %q, want one with the key", message, found)
		}
	}
	shown := false
	for _, s := range o.spans["a"].GetSpans() {
		for _, attr := range s.Attributes {
			shown = shown || attr.Key == "ringfence.key" && attr.Value.AsString() == "user-1"
		}
	}
	if !shown {
		t.Error("no span has the key")
	}
}
