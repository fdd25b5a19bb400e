package pipeline

import (
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/ring"
)

// Tracing configures spans and log lines for single events. The zero value is off.
type Tracing struct {
	Tracer       trace.Tracer // nil: no traces
	Roots        bool         // also trace events that their producer has not sampled: the Tracer's sampler decides
	Subscription string       // named in spans
	Log          *slog.Logger // nil: no lines
	Keys         bool         // keys are shown in both; they may be personal data
	Watch        Watch        // nil: none
}

// Watch receives the outcome of each event, for a process that shows it to its user. Several
// goroutines call its methods at once, on the path of events. It keeps no slice.
type Watch interface {
	// Failed gets a result other than done, at the owner of the key. e is the event before this
	// result counts: its Attempts are the earlier failures.
	Failed(e *event.Event, r event.Result)
	// Settled gets final verdicts, each with its event, at the node that received the events from
	// the broker. Verdicts on events that a peer relayed are not final here: skip those whose
	// handle is a relayed one.
	Settled(verdicts []event.Verdict, events []*event.Event)
}

// observer sees each step of an event and changes nothing but its trace context. The zero value
// is off.
type observer struct {
	traces *traces // nil: none are made
	log    eventLog
	watch  Watch // nil: none
}

func newObserver(s *Tracing) (o observer) {
	o.watch = s.Watch
	if s.Tracer != nil {
		o.traces = newTraces(s)
	}
	if s.Log != nil {
		o.log = eventLog{log: s.Log.With("component", "pipeline"), keys: s.Keys}
	}
	return o
}

// received records that the source has handed on an entry, before this node's table has it.
func (o *observer) received(e *event.Entry, owns func(ring.Partition) bool) {
	if o.log.open() {
		o.log.received(e)
	}
	if o.traces != nil {
		e.MakeObjects() // their trace contexts change
		for i := range e.Fresh.All() {
			ev := e.Event(i)
			o.traces.receive(ev, owns(ev.Partition))
		}
	}
}

// keyless records that an event is rejected because it has no key.
func (o *observer) keyless(v event.Verdict, e *event.Event, err error) {
	o.log.keyless(e, err)
	if o.watch != nil {
		o.watch.Settled([]event.Verdict{v}, []*event.Event{e})
	}
}

// relayed records events that a peer has sent to be passed on.
func (o *observer) relayed(e *event.Entry) {
	if o.traces != nil {
		o.traces.relay(e)
	}
	if o.log.open() {
		o.log.relayed(e)
	}
}

// accepted records the end of a hop: events of a peer, before their mailboxes have them.
func (o *observer) accepted(events []event.Ref) {
	if o.traces != nil {
		o.traces.accept(events)
	}
}

// arrived records events that have come to their mailbox, and the answers that they got there at once.
func (o *observer) arrived(from mailbox.Sender, events []event.Ref, answers *mailbox.Output) {
	if o.log.open() {
		o.log.arrived(from, events, answers)
	}
}

// delivered may replace the event of a delivery by a copy with another trace context.
func (o *observer) delivered(w event.WorkerID, deliveries []event.Delivery) {
	if o.traces != nil {
		o.traces.deliver(deliveries)
	}
	if o.log.open() {
		o.log.delivered(w, deliveries)
	}
}

// finished records results before the mailboxes have them. find returns the event of a delivery, nil when it is over.
func (o *observer) finished(results []event.Result, find func(event.DeliveryID) *event.Event) {
	if o.traces != nil {
		o.traces.finish(results)
	}
	o.log.finished(results, find)
	if o.watch == nil {
		return
	}
	for i := range results {
		if results[i].Kind == event.ResultDone {
			continue
		}
		if e := find(results[i].Delivery); e != nil {
			o.watch.Failed(e, results[i])
		}
	}
}

// settling returns the spans of settlements that begin now. End them when the settlements are made.
func (o *observer) settling(done []event.Set, verdicts []event.Verdict, refs []event.Ref) (begun spans) {
	if o.watch == nil && !o.log.open() && !o.traces.areOpen() {
		return nil
	}
	verdicts = slices.Clip(verdicts)
	var events []*event.Event
	for i := range refs {
		events = append(events, refs[i].Event())
	}
	for _, set := range done {
		for i := range set.Events.All() {
			verdicts = append(verdicts, event.Verdict{Handle: set.First | event.Handle(i), Kind: event.Done})
			events = append(events, set.Entry.Event(i))
		}
	}
	if o.log.open() {
		o.log.settled(verdicts, events)
	}
	if o.watch != nil {
		o.watch.Settled(verdicts, events)
	}
	if o.traces.areOpen() {
		begun = o.traces.settling(verdicts, events)
	}
	return begun
}

func (o *observer) dropped(handles []event.Handle) {
	if o.traces != nil {
		o.traces.dropped(handles)
	}
}

type spans []trace.Span

func (s spans) end() {
	for _, span := range s {
		span.End()
	}
}
