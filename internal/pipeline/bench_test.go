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
	"github.com/ringfence/router/ring"
)

// alone holds the surroundings of the pipeline of a node that owns everything: a table with one entry at a time, and a
// source that counts settled events.
type alone struct {
	*Pipeline
	entry   *event.Entry
	refs    []event.Ref
	settled int
}

func (a *alone) Hold(entries ...*event.Entry) {
	for _, e := range entries {
		a.refs = a.refs[:0]
		for i := range e.Fresh.All() {
			a.refs = append(a.refs, event.Ref{Entry: e, Index: int32(i)})
		}
		a.entry = e
		a.Deliver(a.refs)
	}
}

func (a *alone) settle(verdicts []event.Verdict) {
	set := event.Set{First: a.entry.First, Events: event.NewBits(a.entry.Len()), Entry: a.entry}
	for _, v := range verdicts {
		set.Events.Add(v.Handle.Index())
	}
	a.Pipeline.Settle([]event.Set{set}, nil, nil)
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

func (h holder) Settle(_ forward.Peer, _ []event.Set, v []event.Verdict)    { h.settle(v) }
func (h holder) Credit(forward.Peer, []event.Key, int)                      {}
func (h holder) SetRoute(forward.Peer, forward.Route)                       {}
func (h holder) TakenOver(forward.Peer, func(ring.Partition) bool)          {}
func (h holder) Newest(_ []event.Handle, dst []*event.Event) []*event.Event { return dst }
func (h holder) Drop([]event.Handle)                                        {}
func (h holder) HandOver(forward.Peer, []event.Finished)                    {}

type settler struct{ *alone }

func (s settler) Settle(done []event.Set, _ []event.Verdict) {
	for _, set := range done {
		s.settled += set.Events.Len()
	}
}

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
	a := new(alone)
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
		e := event.NewBatch(batch, 0)
		e.Ledger, e.Entry, e.TopicPartition, e.Batched, e.Topic = 7, int64(at), -1, true, "persistent://public/default/orders"
		for i := range batch {
			e.AddPart(event.Part{Key: keys[i]}, payload, "", properties)
		}
		e.Fresh = event.AllBits(batch)
		e.SetFirst(event.NewHandle(uint64(at+1), 0))
		p.Received(b.Context(), []*event.Entry{e})
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

func (h holder) GiveUp(event.Handle)                       {}
func (h holder) Renew(event.Renewal)                       {}
func (h holder) Forget(event.Handle)                       {}
func (nobody) Renew([]event.DeliveryID) []event.Permission { return nil }
func (nobody) Covered(ownership.Covered)                   {}
