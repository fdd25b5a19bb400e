package pipeline

import (
	"fmt"
	"log/slog"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/ring"
)

// alone holds the surroundings of the pipeline of a node that owns everything: an empty table, and a
// source that forgets settled events.
type alone struct {
	*Pipeline
	events  map[event.Handle]*event.Event
	settled int
}

func (a *alone) Hold(events []*event.Event) {
	for _, e := range events {
		a.events[e.Handle] = e
	}
	a.Deliver(events)
}

func (a *alone) settle(verdicts []event.Verdict) {
	var events []*event.Event
	for _, v := range verdicts {
		events = append(events, a.events[v.Handle])
	}
	a.Pipeline.Settle(verdicts, events)
}

// newPipeline returns a pipeline of the given stages.
func newPipeline(tb testing.TB, parts Parts, stages Stages) *Pipeline {
	tb.Helper()
	parts.Ended = func([]ring.Partition) {}
	p, err := New(parts, func(*Pipeline) (Stages, error) { return stages, nil })
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

type holder struct{ *alone }

func (h holder) HoldRelayed([]*event.Event)                                 {}
func (h holder) Settle(_ forward.Peer, v []event.Verdict)                   { h.settle(v) }
func (h holder) Credit(forward.Peer, []event.Key, int)                      {}
func (h holder) SetRoute(forward.Peer, forward.Route)                       {}
func (h holder) Newest(_ []event.Handle, dst []*event.Event) []*event.Event { return dst }
func (h holder) Drop([]event.Handle)                                        {}
func (h holder) HandOver(forward.Peer, []event.Finished)                    {}

type settler struct{ *alone }

func (s settler) Settle(v []event.Verdict) { s.settled += len(v) }

type nobody struct{}

func (nobody) Wake(...event.WorkerID)      {}
func (nobody) WakeAll()                    {}
func (nobody) Revoke(ownership.Set, bool)  {}
func (nobody) RevokeAll()                  {}
func (nobody) Force(ownership.Set)         {}
func (nobody) TakeBack([]event.DeliveryID) {}

// One operation is one event through all stages of its own node, in batches of 256, without their
// I/O. The cost of logging and tracing events is the difference to "off".
func BenchmarkJourney(b *testing.B) {
	sampled := []event.Property{{Name: "traceparent", Value: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}}
	unsampled := []event.Property{{Name: "traceparent", Value: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00"}}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))).Tracer("bench")
	for name, test := range map[string]struct {
		tracing    Tracing
		properties []event.Property
	}{
		"off":                   {Tracing{}, sampled},
		"info log":              {Tracing{Log: slog.New(slog.NewJSONHandler(b.Output(), nil))}, sampled},
		"traces, none to see":   {Tracing{Tracer: tracer}, nil},
		"traces, unsampled":     {Tracing{Tracer: tracer}, unsampled},
		"traces, every sampled": {Tracing{Tracer: tracer}, sampled},
	} {
		b.Run(name, func(b *testing.B) { benchmarkJourney(b, test.tracing, test.properties) })
	}
}

func benchmarkJourney(b *testing.B, tracing Tracing, properties []event.Property) {
	const batch = 256
	a := &alone{events: make(map[event.Handle]*event.Event)}
	extractor, err := key.Parse("message_key", key.Reject)
	if err != nil {
		b.Fatal(err)
	}
	boxes := mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "a", clock.Now)
	boxes.Remember(history.DefaultConfig())
	p := newPipeline(b, Parts{Now: clock.Now, Tracing: tracing, History: history.DefaultConfig()}, Stages{Key: extractor, Holder: holder{a}, Boxes: boxes, App: nobody{}})
	a.Pipeline = p
	p.SetSource(settler{a})
	gates := make([]ownership.GateChange, ring.Partitions)
	for q := range gates {
		gates[q] = ownership.GateChange{Partition: ring.Partition(q), Gate: ownership.Open, Token: 1}
	}
	boxes.SetGates(gates, event.Position{}, new(mailbox.Output))
	p.SetLease(ownership.Lease{Until: clock.Forever - 1})
	p.WorkerUp(1)

	messages := make([]source.Message, batch)
	events := make([]event.Event, batch)
	keys := make([]string, batch)
	for i := range keys {
		keys[i] = fmt.Sprintf("user-%d", i)
	}
	payload := make([]byte, 100)
	var deliveries []event.Delivery
	var results []event.Result
	b.ReportAllocs()
	b.ResetTimer()
	for at := 0; at < b.N; at += batch {
		for i := range messages {
			events[i] = event.Event{
				Handle: event.NewHandle(1, int32(i)), ID: event.MessageID{Ledger: 7, Entry: int64(at + i), Batch: -1, TopicPartition: -1},
				Topic: "persistent://public/default/orders", Payload: payload, Properties: properties,
			}
			messages[i] = source.Message{Event: &events[i], Key: keys[i]}
		}
		p.Received(b.Context(), messages)
		for done := 0; done < batch; {
			deliveries = p.Take(1, 64, deliveries[:0])
			done += len(deliveries)
			results = results[:0]
			for _, d := range deliveries {
				results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
			}
			p.Finish(results)
		}
	}
	b.StopTimer()
	if want := (b.N + batch - 1) / batch * batch; a.settled != want {
		b.Fatalf("%d events are settled, want %d", a.settled, want)
	}
}
