package entries

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// A batch that declares no events, or fewer, costs as many permits as the broker deducts for it.
func TestPermitsOfBatchesWithoutEvents(t *testing.T) {
	for _, declared := range []int{0, -1, -50} {
		bubble(t, func(r *rig) {
			r.cluster.Broker("a:6650")
			c := r.subscribe(func(s *Subscription) { s.UnackedMax = 200 })
			m := fakebroker.Metadata()
			m.NumMessagesInBatch = new(int32(declared))
			entry, err := wiretest.Entry(m, []byte("payload"))
			if err != nil {
				r.Fatal(err)
			}
			for range 50 {
				r.cluster.Publish(topicName, entry, declared)
			}
			got := r.receive(50)
			for _, d := range got {
				if d.Broken == nil {
					t.Errorf("an entry of %d events is not broken", declared)
				}
			}
			r.ack(c, got...)
			time.Sleep(time.Second)
			if p, want := r.cluster.Permits(topicName), []int{100 - 50*declared}; !slices.Equal(p, want) {
				t.Errorf("with %d events declared, the broker has the permits %v, want %v", declared, p, want)
			}
			n := 100 - 50*declared + 200 // until the broker has used up what it gained
			for range n {
				r.publish(1)
				r.ack(c, r.receive(1)...)
			}
			time.Sleep(time.Second)
			if p := r.cluster.Permits(topicName); len(p) != 1 || p[0] > 100 || p[0] < 50 {
				t.Errorf("with %d events declared, the broker has the permits %v in the end, want 50 to 100", declared, p)
			}
		})
	}
}
