package node

import (
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
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// observed is a group of two whose spans and log lines are kept, of each process apart.
type observed struct {
	*group
	spans map[string]*tracetest.InMemoryExporter // by member; and "app of" a member
	lines map[string]*written.Text               // by member
	tp    map[string]*sdktrace.TracerProvider
	keys  bool // shown
}

func newObserved(t *testing.T) *observed {
	o := &observed{
		group: newGroup(t), spans: make(map[string]*tracetest.InMemoryExporter), lines: make(map[string]*written.Text),
		tp: make(map[string]*sdktrace.TracerProvider),
	}
	return o
}

// start starts a member that is observed.
func (o *observed) start(name string, adjust func(*Config)) *member {
	return o.startWith(name, adjust, func(p *Parts) {
		o.lines[name] = &written.Text{}
		p.Log = slog.New(slog.NewJSONHandler(o.lines[name], &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
		p.Tracing = pipeline.Tracing{Tracer: o.provider(name).Tracer("router"), Subscription: o.source.Subscription, Keys: o.keys}
		metrics := source.NewMetrics(prometheus.NewRegistry())
		p.Source = func([]string) *source.Source { return source.NewMem(o.source, o.feed, metrics, p.Log) }
	})
}

// provider returns the tracer provider of a process, with a router's sampling.
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
		if err := client.Run(ctx, m.endpoint, handler, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithTraces(tracer, propagation.TraceContext{})); err != nil {
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
				if !o.keys && strings.Contains(a.Value.String(), "user-") {
					wrong = errors.Join(wrong, fmt.Errorf("%s shows the key: %s = %s", s.Name, a.Key, a.Value.String()))
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

func TestEventsCanBeFollowed(t *testing.T) {
	t.Parallel() // it waits for a Genesis, which takes seconds and no work
	o := newObserved(t)
	a, b := o.start("a", nil), o.start("b", nil)
	var unsampled sync.Map // payload → trace id that its handler found
	handler := func(ctx context.Context, e *client.Event) error {
		if strings.HasPrefix(string(e.Payload), "reject") {
			return client.Reject(errors.New("no order of " + e.Key))
		}
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
	t.Run("one trace", func(t *testing.T) { followByTrace(t, o, &unsampled) })
	t.Run("one message id", func(t *testing.T) { followByMessageID(t, o) })
}

// The trace of an event leads from its producer through consumer node, owner and application, each
// with its own exporter, and back to the ack; and only if its producer has sampled it.
func followByTrace(t *testing.T, o *observed, unsampled *sync.Map) {
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
		way := ""
		o.eventually("the trace is complete", func() error { // its spans end one after the other, in several processes
			got, err := o.tree(id)
			if err != nil {
				return errors.Join(eventually.ErrInVain, err)
			}
			way = wayOf(got)
			if way == "" {
				return fmt.Errorf("spans %q", got)
			}
			return nil
		})
		crossed[way]++
		other, err := trace.TraceIDFromHex(traceID(n + i))
		if err != nil {
			t.Fatal(err)
		}
		if spans, _ := o.tree(other); len(spans) > 0 {
			t.Errorf("an event that its producer has not sampled has spans %q", spans)
		}
		if got, _ := unsampled.Load(fmt.Sprintf("unsampled %d", i)); got != traceID(n+i) {
			t.Errorf("the handler of an unsampled event is in trace %v, want its producer's", got)
		}
	}
	if crossed["ab"]+crossed["ba"] == 0 || crossed["local"] == 0 {
		t.Errorf("ways of the events: %v; this run proved nothing", crossed)
	}
}

// wayOf returns the way that an event took by the spans of its trace: "local", or "ab" from a to b; "": there are other spans, or not all of them yet.
func wayOf(spans []string) string {
	path := func(steps ...string) string { return strings.Join(steps, " ") }
	for from, to := range map[string]string{"a": "b", "b": "a"} {
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
		case slices.Equal(spans, local):
			return "local"
		case slices.Equal(spans, remote):
			return from + to
		}
	}
	return ""
}

// Retries and dead letters stay in the trace of their event, also through the topics
// that copies go to. Here keys are to be shown, and are.
func TestATraceGoesOnThroughTheRetryTopic(t *testing.T) {
	t.Parallel() // it waits for a Genesis, which takes seconds and no work
	o := newObserved(t)
	o.keys = true
	soon := func(c *Config) {
		c.Retry = outcome.DefaultConfig()
		c.Retry.RetryHoldMax = 0 // every retry goes by way of the retry topic
	}
	a := o.start("a", soon)
	o.handle(a, func(_ context.Context, e *client.Event) error {
		if e.Attempt == 1 {
			return client.RetryAfter(errors.New("not yet"), time.Millisecond)
		}
		return client.Reject(errors.New("never"))
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
	for message, n := range map[string]int{"received": 2, "dead letter": 1} {
		o.eventually("the log says it", func() error {
			if found := o.lines["a"].With(`"msg":"` + message + `"`); len(found) != n || !strings.Contains(found[0], `"key":"user-1"`) {
				return fmt.Errorf("%s: %q, want %d, with the key", message, found, n)
			}
			return nil
		})
	}
	shown := func(s tracetest.SpanStub) bool {
		return slices.ContainsFunc(s.Attributes, func(a attribute.KeyValue) bool { return a.Key == "ringfence.key" && a.Value.AsString() == "user-1" })
	}
	if !slices.ContainsFunc(o.spans["a"].GetSpans(), shown) {
		t.Error("no span has the key")
	}
}

// The message id of an event finds its lines at every node that it crossed, and no
// line shows its key.
func followByMessageID(t *testing.T, o *observed) {
	before := o.broker.SubscriptionStats("orders").Acked
	const n = 40
	ids := make(map[string]bool) // rejected
	for i := range n {
		what := "unsampled"
		if i%2 == 0 {
			what = "reject"
		}
		ids[o.send(fmt.Sprintf("user-%d", i), fmt.Sprintf("%s %d", what, i), "")] = i%2 == 0
	}
	o.acked(before + n)

	crossed := 0
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		o.eventually("all lines are there", func() error { // an event may be acked before the line of a step is written
			var at []string
			messages := make(map[string]int)
			for _, name := range []string{"a", "b"} {
				found := o.lines[name].With(`"message_id":"` + id + `"`)
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
				steps = append(steps, "sent")
			}
			for _, step := range steps {
				if messages[step] == 0 {
					return fmt.Errorf("event %s has no line %q, only %v", id, step, messages)
				}
			}
			if len(at) == 2 {
				crossed++
			}
			return nil
		})
	}
	if crossed == 0 {
		t.Error("no event crossed from one node to another: this run proved nothing")
	}
	for name, l := range o.lines {
		if found := l.With("user-"); len(found) > 0 {
			t.Errorf("the log of %s shows a key: %s", name, found[0])
		}
		if len(l.With("(key hidden)")) == 0 {
			t.Errorf("no line of %s would have shown a key: this run proved nothing", name)
		}
	}
}
