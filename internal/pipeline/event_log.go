package pipeline

import (
	"context"
	"log/slog"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
)

// eventLog writes log lines for single events: every step at level debug, and a warning when the
// application exceeds its deadline. Each names the event by its message id.
type eventLog struct {
	log  *slog.Logger // nil: off
	keys bool
}

// open reports whether every step is logged. It is called once for each batch.
func (d *eventLog) open() bool {
	return d.log != nil && d.log.Enabled(context.Background(), slog.LevelDebug)
}

func (d *eventLog) received(entry *event.Entry) {
	for i := range entry.Fresh.All() {
		e := entry.Event(i)
		attrs := []any{"message_id", e.ID.String(), "topic", e.Topic, "partition", int(e.Partition), "redelivery", e.Redelivery, "round", e.Round}
		if d.keys {
			attrs = append(attrs, "key", string(e.Key))
		}
		d.log.Debug("received", attrs...)
	}
}

func (d *eventLog) keyless(e *event.Event, err error) {
	if d.log != nil {
		d.log.Warn("no key found; the event is rejected", "message_id", e.ID.String(), "topic", e.Topic, "error", err)
	}
}

func (d *eventLog) relayed(e *event.Entry) {
	for i := range e.Len() {
		d.log.Debug("relayed for a peer", "message_id", e.ID(i).String(), "partition", int(e.Partition(i)))
	}
}

func (d *eventLog) arrived(from mailbox.Sender, events []event.Ref, answers *mailbox.Output) {
	answered := make(map[event.Handle]event.VerdictKind, len(events))
	for _, a := range answers.Answers {
		if a.To != from {
			continue
		}
		for _, v := range a.Verdicts {
			answered[v.Handle] = v.Kind
		}
	}
	for i := range events {
		e := &events[i]
		attrs := []any{"message_id", e.MessageID().String(), "partition", int(e.Partition()), "stream", uint64(from)} // 0: from this very node
		if kind, ok := answered[e.Handle()]; ok {
			d.log.Debug("answered by the mailbox", append(attrs, "verdict", kind.String())...)
			continue
		}
		d.log.Debug("in the mailbox", attrs...)
	}
}

func (d *eventLog) delivered(w event.WorkerID, deliveries []event.Delivery) {
	for i := range deliveries {
		v := &deliveries[i]
		d.log.Debug("delivered", "message_id", v.MessageID().String(), "partition", int(v.Partition),
			"worker", uint64(w), "attempt", v.Attempt, "fencing_token", v.Token, "turn", v.Turn)
	}
}

func (d *eventLog) finished(results []event.Result, find func(event.DeliveryID) *event.Event) {
	if d.log == nil {
		return
	}
	all := d.open()
	for i := range results {
		r := &results[i]
		late := r.TimedOut || r.Kind == event.ResultLost || r.Kind == event.ResultCrashed
		if !late && !all {
			continue
		}
		e := find(r.Delivery)
		if e == nil {
			continue
		}
		attrs := []any{"message_id", e.ID.String(), "partition", int(e.Partition), "result", r.Kind.String(), "attempts", e.Attempts}
		if r.Reason != "" {
			attrs = append(attrs, "error", e.HideIn(r.Reason))
		}
		if late {
			d.log.Warn("no answer from the handler in time", attrs...)
		} else {
			d.log.Debug("finished", attrs...)
		}
	}
}

func (d *eventLog) settled(verdicts []event.Verdict, events []*event.Event) {
	for i := range verdicts {
		v := &verdicts[i]
		d.log.Debug("settled", "message_id", events[i].ID.String(), "verdict", v.Kind.String(), "attempts", v.DetailOrZero().Attempts)
	}
}
