//go:build planted

package sim

import (
	"fmt"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// forgedWindows hands over ids of events that are not published yet, as a stranger, as a member
// that never owned their key, and as its earlier owner. It returns an error text if any were admitted.
func forgedWindows() string {
	earlier, never := admission.Member{Inc: admission.Incarnation{1}, Name: "a", Key: "k"}, admission.Member{Inc: admission.Incarnation{2}, Name: "b", Key: "k"}
	a := admission.New()
	a.SetTable(admission.Table{Members: []admission.Member{earlier, never}, Owners: make([]uint16, ring.Partitions)})
	var out admission.Output
	a.Learn(a.Ask(), []admission.End{{Topic: "t", Partition: -1, Last: event.Position{Ledger: 1, Entry: 9}}}, true, &out)
	future := []event.Finished{{ID: event.MessageID{Ledger: 1, Entry: 10, Batch: -1, TopicPartition: -1}}}
	past := []event.Finished{{ID: event.MessageID{Ledger: 1, Entry: 9, Batch: -1, TopicPartition: -1}}}
	a.Offer(0, admission.Incarnation{3}, false, past, &out)
	a.Offer(0, never.Inc, true, past, &out)
	a.Offer(0, earlier.Inc, true, future, &out)
	if len(out.Admitted) > 0 {
		return fmt.Sprintf("%d of 3 forged ids were taken in", len(out.Admitted))
	}
	return ""
}

// forgedCopies delivers a copy of a future event, once under another key and once with other
// content, and then the event. It returns an error text if events were acked without a handler.
func forgedCopies() string {
	vanished := 0
	for _, forged := range []event.Event{{Key: "mallory", Payload: []byte("p")}, {Key: "victim", Payload: []byte("other")}} {
		boxes := mailbox.New(mailbox.DefaultConfig(), outcome.DefaultConfig(), "m")
		var out mailbox.Output
		boxes.WorkerUp(0, 1, &out)
		victim := event.Event{Key: "victim", Payload: []byte("p")}
		forged.Round = 1
		for i, e := range []*event.Event{&forged, &victim} {
			e.Handle, e.ID, e.Partition = event.Handle(i+1), event.MessageID{Ledger: 1, Entry: 1, Batch: -1}, ring.PartitionOf(string(e.Key))
			boxes.SetGates(0, []ownership.GateChange{{Partition: e.Partition, Gate: ownership.Open, Token: 1}}, event.Position{}, &out)
			out.Reset()
			boxes.Accept(0, mailbox.Local, event.Position{}, event.RefsTo(e), &out)
			vanished += len(out.Answers)
			for _, d := range boxes.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 1, nil) {
				boxes.Finish(0, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
			}
		}
	}
	if vanished > 0 {
		return fmt.Sprintf("%d of 2 events were acked unhandled", vanished)
	}
	return ""
}
