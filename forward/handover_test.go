package forward

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/ring"
)

// windowOf returns a window of n ids.
func windowOf(p ring.Partition, n int) Window {
	w := Window{Partition: p, IDs: make([]event.MessageID, n)}
	for i := range w.IDs {
		w.IDs[i] = event.MessageID{Ledger: 1 << 40, Entry: int64(i), Batch: int32(i%5) - 1, TopicPartition: int32(p)}
	}
	return w
}

// What was done goes to the next owner in its order, in frames of bounded size, behind
// a stream that is not open yet; events that wait do not wait for it.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, now := &pipes{}, bubbleClock()
		config := DefaultConfig()
		config.FrameEventsMax, config.HandoverMax = 100, 1000
		a, b := newNode(t, network, 1, config, now), newNode(t, network, 2, config, now)
		a.start()
		defer a.stop()
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, b)
		given := []Window{windowOf(1, 250), windowOf(2, 1), windowOf(3, 100)}
		a.pool.HandOver(b.identity.Incarnation, given)
		a.pool.HandOver(b.identity.Incarnation, []Window{windowOf(4, 650)}) // one too many
		select {
		case <-a.pool.HandedOver():
			t.Fatal("handed over to nobody")
		default:
		}
		a.pool.Hold(a.events(1, 500))
		b.start()
		defer b.stop()
		a.await(500)
		<-a.pool.HandedOver()
		time.Sleep(time.Second) // of the bubble
		synctest.Wait()

		b.mu.Lock()
		defer b.mu.Unlock()
		got := map[ring.Partition][]event.MessageID{}
		for _, w := range b.windows {
			if len(w.IDs) > config.FrameEventsMax {
				t.Errorf("a frame of %d ids, want %d at most", len(w.IDs), config.FrameEventsMax)
			}
			got[w.Partition] = append(got[w.Partition], w.IDs...)
		}
		for _, w := range given {
			if !slices.Equal(got[w.Partition], w.IDs) {
				t.Errorf("partition %d: %d ids arrived in another shape than %d were given", w.Partition, len(got[w.Partition]), len(w.IDs))
			}
		}
		sent, dropped := testutil.ToFloat64(a.metrics.windowSent), testutil.ToFloat64(a.metrics.windowDropped)
		if received := testutil.ToFloat64(b.metrics.windowReceived); sent != 351 || received != 351 || dropped != 650 {
			t.Errorf("%v ids sent, %v received, %v dropped, want 351, 351 and 650", sent, received, dropped)
		}
	})
}

// What waits for a peer that leaves before it could be reached is dropped, and nobody
// waits for it any more.
func TestHandOverToNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, now := &pipes{}, bubbleClock()
		a, b := newNode(t, network, 1, DefaultConfig(), now), newNode(t, network, 2, DefaultConfig(), now)
		a.start()
		defer a.stop()
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, b)
		a.pool.HandOver(b.identity.Incarnation, []Window{windowOf(1, 10)})
		waiting := a.pool.HandedOver()
		a.pool.SetPeers(nil)
		<-waiting
		if dropped := testutil.ToFloat64(a.metrics.windowDropped); dropped != 10 {
			t.Errorf("%v ids dropped, want 10", dropped)
		}
	})
}
