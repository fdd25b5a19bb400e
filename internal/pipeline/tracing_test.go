package pipeline

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
)

// Missing answers are always logged; the application's results only when every step is logged.
// Neither line shows the key.
func TestFinishedTellsWhatIsLate(t *testing.T) {
	ev := &event.Event{ID: event.MessageID{Ledger: 7, Entry: 8, Batch: -1, TopicPartition: -1}, Key: "user-1"}
	for name, test := range map[string]struct {
		result      event.Result
		info, debug string // the message at each level of the log
	}{
		"done":          {event.Result{Kind: event.ResultDone}, "", "finished"},
		"failed":        {event.Result{Kind: event.ResultRetry, Reason: "no order of user-1"}, "", "finished"},
		"moved":         {event.Result{Kind: event.ResultCancelled}, "", "finished"},
		"timed out":     {event.Result{Kind: event.ResultRetry, TimedOut: true}, "no answer from the handler in time", "no answer from the handler in time"},
		"lost":          {event.Result{Kind: event.ResultLost}, "no answer from the handler in time", "no answer from the handler in time"},
		"worker killed": {event.Result{Kind: event.ResultCrashed}, "no answer from the handler in time", "no answer from the handler in time"},
	} {
		for level, want := range map[slog.Level]string{slog.LevelInfo: test.info, slog.LevelDebug: test.debug} {
			var out bytes.Buffer
			d := eventLog{log: slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: level}))}
			d.finished([]event.Result{test.result}, func(event.DeliveryID) *event.Event { return ev })
			got := out.String()
			if want == "" && got != "" || want != "" && (!strings.Contains(got, `"msg":"`+want+`"`) || !strings.Contains(got, `"message_id":"7:8:-1:-1"`)) {
				t.Errorf("%s at level %v: %q, want %q", name, level, got, want)
			}
			if strings.Contains(got, "user-1") {
				t.Errorf("%s shows the key: %s", name, got)
			}
		}
	}
}

// Results of deliveries that are over are not logged.
func TestFinishedOfWhatIsOver(t *testing.T) {
	var out bytes.Buffer
	d := eventLog{log: slog.New(slog.NewJSONHandler(&out, nil))}
	d.finished([]event.Result{{Kind: event.ResultLost}}, func(event.DeliveryID) *event.Event { return nil })
	if out.Len() > 0 {
		t.Errorf("line %q", out.String())
	}
	(&eventLog{}).finished([]event.Result{{Kind: event.ResultLost}}, nil) // there is no log
}

// A node whose sampler declines passes on the trace that an event is in.
func TestAnotherSamplerBreaksNoTrace(t *testing.T) {
	const traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	no := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test")
	traces := newTraces(&Tracing{Tracer: no, Roots: true})
	ev := &event.Event{Handle: event.NewHandle(1, 1), Topic: "orders", Properties: []event.Property{{Name: "traceparent", Value: traceparent}}}
	deliveries := []event.Delivery{{ID: 1, Ref: event.RefTo(ev)}}
	traces.receive(ev, false)
	traces.relay(event.NewEntry(event.Message{Event: ev}))
	traces.accept(event.RefsTo(ev))
	traces.deliver(deliveries)
	if got := deliveries[0].Object.Trace(); got != traceparent || deliveries[0].Object != ev {
		t.Errorf("the application gets the context %q, want that of before", got)
	}
	if n := traces.open.Load(); n != 0 {
		t.Errorf("%d spans are kept", n)
	}
}

// The newest traced event of each size is an exemplar of the histograms; one that is relayed settles at its consumer node.
func TestExemplars(t *testing.T) {
	yes := sdktrace.NewTracerProvider().Tracer("test")
	p := &Pipeline{observer: observer{traces: newTraces(&Tracing{Tracer: yes, Roots: true})}, journeys: history.DefaultConfig().NewJourneys()}
	traces := p.observer.traces
	ev := &event.Event{Handle: event.NewHandle(1, 1), Topic: "orders"}
	relayed := &event.Event{Handle: event.NewRelayedHandle(1, 0), Topic: "orders", Properties: []event.Property{{Name: "traceparent", Value: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"}}}
	traces.receive(ev, false)
	traces.relay(event.NewEntry(event.Message{Event: relayed}))
	deliveries := []event.Delivery{{ID: 1, Ref: event.RefTo(ev)}}
	traces.deliver(deliveries)
	traces.finish([]event.Result{{Delivery: 1, Kind: event.ResultDone}})
	traces.settling([]event.Verdict{{Handle: relayed.Handle, Kind: event.Done}}, []*event.Event{relayed}).end()
	if all := traces.settled.All(); len(all) != 0 {
		t.Errorf("a relayed event is an exemplar: %+v", all)
	}
	traces.settling([]event.Verdict{{Handle: ev.Handle, Kind: event.Done}}, []*event.Event{ev}).end()

	id := strings.Split(ev.Trace(), "-")[1]
	bounds := map[float64]uint64{0.1: 1, 10: 1}
	histogram := prometheus.MustNewConstHistogram(prometheus.NewDesc("x_seconds", "x", nil, nil), 1, 0.1, bounds)
	metrics := make(chan prometheus.Metric, 1)
	(&Metrics{p, prometheus.NewDesc("y_seconds", "y", nil, nil)}).Collect(metrics)
	for name, m := range map[string]prometheus.Metric{"handlers": p.TracedHandlers(histogram), "settlement": <-metrics} {
		var out dto.Metric
		if err := m.Write(&out); err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, b := range out.GetHistogram().GetBucket() {
			if e := b.GetExemplar(); e != nil {
				found++
				if e.GetLabel()[0].GetValue() != id || e.GetValue() > b.GetUpperBound() || e.GetTimestamp() == nil {
					t.Errorf("%s: exemplar %v in the bucket up to %v, want trace %s", name, e, b.GetUpperBound(), id)
				}
			}
		}
		if found != 1 {
			t.Errorf("%s: %d exemplars", name, found)
		}
	}
	if (&Pipeline{}).TracedHandlers(histogram) != histogram {
		t.Error("without traces the histogram is another one")
	}
}

// The count of open spans is that of the events that are held or run: at 0 nothing is looked for, and one that is too high would be for good.
func TestOpenSpansAreCounted(t *testing.T) {
	yes := sdktrace.NewTracerProvider().Tracer("test")
	traces := newTraces(&Tracing{Tracer: yes, Roots: true})
	want := func(what string, n int64) {
		t.Helper()
		if got := traces.open.Load(); got != n || int(n) != len(traces.held)+len(traces.running) || traces.areOpen() != (n > 0) {
			t.Errorf("%s: %d spans are open, %d events are held, %d run, want %d in all", what, got, len(traces.held), len(traces.running), n)
		}
	}
	first := &event.Event{Handle: event.NewHandle(1, 1), Topic: "orders"}
	second := &event.Event{Handle: event.NewHandle(1, 2), Topic: "orders"}
	traces.receive(first, false)
	traces.receive(second, true)
	want("received", 2)
	deliveries := []event.Delivery{{ID: 1, Ref: event.RefTo(first)}, {ID: 2, Ref: event.RefTo(second)}}
	traces.deliver(deliveries)
	want("delivered", 4)
	for range 2 { // the second time they are over
		traces.finish([]event.Result{{Delivery: 1, Kind: event.ResultDone}, {Delivery: 2, Kind: event.ResultRetry}, {Delivery: 3, Kind: event.ResultDone}})
		want("finished", 2)
	}
	for range 2 {
		traces.settling([]event.Verdict{{Handle: first.Handle, Kind: event.Done}}, []*event.Event{first}).end()
		want("settled", 1)
	}
	for range 2 {
		traces.dropped([]event.Handle{second.Handle, event.NewHandle(1, 3)})
		want("dropped", 0)
	}
}

// Spans show keys only if the settings say so, since they may be personal data; and the span of an event's receipt is linked with its producer's, if
// there is one.
func TestSpansOfAReceipt(t *testing.T) {
	const traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	for name, test := range map[string]struct {
		keys     bool
		producer string
	}{
		"no keys, no producer": {},
		"keys":                 {keys: true},
		"a producer":           {producer: traceparent},
		"both":                 {keys: true, producer: traceparent},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := tracetest.NewSpanRecorder()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
			traces := newTraces(&Tracing{Tracer: provider.Tracer("test"), Roots: true, Keys: test.keys, Subscription: "s"})
			ev := &event.Event{Handle: event.NewHandle(1, 1), Topic: "orders", Key: "user-1"}
			if test.producer != "" {
				ev.Properties = []event.Property{{Name: "traceparent", Value: test.producer}}
			}
			traces.receive(ev, false)
			deliveries := []event.Delivery{{ID: 1, Ref: event.RefTo(ev)}}
			traces.accept([]event.Ref{deliveries[0].Ref})
			traces.deliver(deliveries)
			traces.finish([]event.Result{{Delivery: 1, Kind: event.ResultDone}})
			traces.settling([]event.Verdict{{Handle: ev.Handle, Kind: event.Done}}, []*event.Event{ev}).end()
			spans := recorder.Ended()
			if len(spans) != 5 {
				t.Fatalf("%d spans", len(spans))
			}
			for _, span := range spans {
				key := ""
				for _, a := range span.Attributes() {
					if a.Key == "ringfence.key" {
						key = a.Value.AsString()
					} else if strings.Contains(a.Value.String(), "user-1") {
						t.Errorf("%s: the key is in %v", span.Name(), a)
					}
				}
				if want := map[bool]string{true: "user-1"}[test.keys]; key != want {
					t.Errorf("%s: the key is shown as %q, want %q", span.Name(), key, want)
				}
				links := 0
				if span.Name() == "receive orders" && test.producer != "" {
					links = 1
				}
				if got := span.Links(); len(got) != links || links > 0 && got[0].SpanContext.SpanID().String() != "0123456789abcdef" {
					t.Errorf("%s: links %+v, want %d, with the producer's span", span.Name(), got, links)
				}
			}
		})
	}
}
