//go:build planted

package sim

import (
	"fmt"

	"github.com/ringfence/router/internal/admission"
	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/ring"
)

// forgedWindows hands over ids of events that nobody has published yet, as a stranger, as a
// member that never owned their key, and as its earlier owner. It says which were taken in.
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
