package forward

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// finished returns n events of a partition.
func finished(p ring.Partition, n int) []event.Finished {
	done := make([]event.Finished, n)
	for i := range done {
		done[i] = event.Finished{
			Partition: p,
			ID:        event.MessageID{Ledger: 1 << 40, Entry: int64(i), Batch: int32(i%5) - 1, TopicPartition: int32(p)},
			At:        clock.Instant(time.Duration(-i) * time.Millisecond),
		}
		if p == 3 && i%2 == 0 { // frames of other partitions have none
			done[i].Content = event.Content{1, byte(i)}
		}
	}
	return done
}

// Finished ids go to the next owner in their order, in frames of bounded size, even while its
// stream is not open yet; waiting events do not wait for them.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, now := &pipes{}, bubbleClock()
		config := DefaultConfig()
		config.FrameEventsMax, config.HandoverMax = 100, 1000
		const ahead = 99 * time.Hour // b's clock of a's
		a := newNode(t, network, 1, config, now)
		b := newNode(t, network, 2, config, func() clock.Instant { return now().Add(ahead) })
		a.start()
		defer a.stop()
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, b)
		given := slices.Concat(finished(1, 250), finished(2, 1), finished(3, 100))
		a.pool.HandOver(b.identity.Incarnation, slices.Clone(given))
		given = slices.Concat(given, finished(4, 649))
		a.pool.HandOver(b.identity.Incarnation, slices.Concat(finished(4, 649), finished(5, 2))) // two too many
		select {
		case <-a.pool.HandedOver():
			t.Fatal("handed over without a stream")
		default:
		}
		a.hold(a.events(1, 500))
		b.start()
		defer b.stop()
		a.await(500)
		<-a.pool.HandedOver()

		b.mu.Lock()
		defer b.mu.Unlock()
		for _, w := range b.windows {
			if len(w) > config.FrameEventsMax {
				t.Errorf("a frame of %d ids, want %d at most", len(w), config.FrameEventsMax)
			}
		}
		got := slices.Concat(b.windows...)
		for i := range got { // the bubble's time stands still while they are under way
			got[i].At = got[i].At.Add(-ahead)
		}
		if !slices.Equal(got, given) {
			t.Errorf("%d ids arrived in another shape than %d were given", len(got), len(given))
		}
		sent, dropped := testutil.ToFloat64(a.metrics.windowSent), testutil.ToFloat64(a.metrics.windowDropped)
		if received := testutil.ToFloat64(b.metrics.windowReceived); sent != 1000 || received != 1000 || dropped != 2 {
			t.Errorf("%v ids sent, %v received, %v dropped, want 1000, 1000 and 2", sent, received, dropped)
		}
	})
}

// Windows of a member from before they named the partition of each id are read.
func TestWindowOfOnePartition(t *testing.T) {
	got, err := decodeWindow(9, &peerv1.Window{
		Partition: 7, LedgerIds: []int64{1, 2}, EntryIds: []int64{3, 4}, BatchIndexes: []int32{-1, 0}, TopicPartitions: []int32{5, 6},
	})
	want := []event.Finished{
		{Partition: 7, ID: event.MessageID{Ledger: 1, Entry: 3, Batch: -1, TopicPartition: 5}, At: 9},
		{Partition: 7, ID: event.MessageID{Ledger: 2, Entry: 4, Batch: 0, TopicPartition: 6}, At: 9},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read %v, %v, want %v", got, err, want)
	}
}

// A window with too few contents, or too many, is no window.
func TestWindowOfWrongContents(t *testing.T) {
	wire := encodeWindow(0, finished(3, 2))
	if len(wire.GetContents()) != 32 {
		t.Fatalf("%d bytes of contents", len(wire.GetContents()))
	}
	for _, n := range []int{1, 16, 31, 33, 48} {
		wire.Contents = make([]byte, n)
		if got, err := decodeWindow(0, wire); err == nil {
			t.Errorf("%d bytes of contents of 2 ids were read: %v", n, got)
		}
	}
}

// A window whose lists differ in length is no window, whichever is the shorter one.
func TestWindowOfUnequalLists(t *testing.T) {
	for name, cut := range map[string]func(w *peerv1.Window){
		"ledgers":          func(w *peerv1.Window) { w.LedgerIds = w.LedgerIds[:1] },
		"partitions":       func(w *peerv1.Window) { w.Partitions = w.Partitions[:1] },
		"ages":             func(w *peerv1.Window) { w.AgesMs = w.AgesMs[:1] },
		"entries":          func(w *peerv1.Window) { w.EntryIds = w.EntryIds[:1] },
		"batch indexes":    func(w *peerv1.Window) { w.BatchIndexes = w.BatchIndexes[:1] },
		"topic partitions": func(w *peerv1.Window) { w.TopicPartitions = w.TopicPartitions[:1] },
	} {
		wire := encodeWindow(0, finished(3, 2))
		if _, err := decodeWindow(0, wire); err != nil {
			t.Fatal(err)
		}
		cut(wire)
		if got, err := decodeWindow(0, wire); err == nil {
			t.Errorf("%s: read %v", name, got)
		}
	}
}

// HandedOver waits until the next owner has received everything, not only until it was sent: a
// leaving member then ends its streams, which would lose ids in flight.
func TestHandedOverIsTakenIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, now := &pipes{}, bubbleClock()
		config := DefaultConfig()
		config.FrameEventsMax = 2
		a, b := newNode(t, network, 1, config, now), newNode(t, network, 2, config, now)
		b.takeOver = make(chan struct{})
		a.start()
		defer a.stop()
		b.start()
		defer b.stop()
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, b)
		for range 2 { // the second time, a Ping has been answered before
			a.pool.HandOver(b.identity.Incarnation, finished(1, 5))
			for range 3 {
				synctest.Wait()
				select {
				case <-a.pool.HandedOver():
					t.Fatal("handed over, and b has not taken it in")
				case b.takeOver <- struct{}{}:
				}
			}
			<-a.pool.HandedOver()
		}

		a.pool.HandOver(b.identity.Incarnation, finished(1, 5))
		synctest.Wait()
		b.takeOver <- struct{}{}
		synctest.Wait()
		close(b.takeOver)
		a.stop() // all ids end with the stream, and nothing waits for them
		<-a.pool.HandedOver()
	})
}

// Ids for a peer that leaves before it could be reached are dropped, and HandedOver does not wait for
// them.
func TestHandOverToNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, now := &pipes{}, bubbleClock()
		a, b := newNode(t, network, 1, DefaultConfig(), now), newNode(t, network, 2, DefaultConfig(), now)
		a.start()
		defer a.stop()
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, b)
		a.pool.HandOver(b.identity.Incarnation, finished(1, 10))
		waiting := a.pool.HandedOver()
		a.pool.SetPeers(nil)
		<-waiting
		if dropped := testutil.ToFloat64(a.metrics.windowDropped); dropped != 10 {
			t.Errorf("%v ids dropped, want 10", dropped)
		}
	})
}

// Ids taken out of a queue count as handed over when they are sent, and not before.
func TestHandedOverMeansSent(t *testing.T) {
	h := handover{idsMax: 100, queues: make(map[Peer][]event.Finished)}
	peer := Peer{1}
	h.put(peer, finished(1, 10))
	waiting := h.done()
	over := func() bool {
		select {
		case <-waiting:
			return true
		default:
			return false
		}
	}
	for _, want := range []int{7, 3} {
		taken, _ := h.take(peer, 7, nil)
		if len(taken) != want {
			t.Fatalf("took %d, want %d", len(taken), want)
		}
		if over() {
			t.Fatal("handed over before it was sent")
		}
		h.taken(len(taken))
	}
	if !over() {
		t.Error("all is sent, and not handed over")
	}
}

// Ids for peers that leave are dropped once, and nobody waits for them.
func TestDroppedIDsAreDroppedOnce(t *testing.T) {
	h := handover{idsMax: 10, queues: make(map[Peer][]event.Finished)}
	h.put(peerNumber(1), finished(3, 4))
	h.put(peerNumber(2), finished(3, 2))
	empty := h.done()
	for i, want := range []int{4, 0} {
		if got := h.keepOnly(map[Peer]string{peerNumber(2): ""}); got != want {
			t.Errorf("call %d drops %d ids, want %d", i, got, want)
		}
	}
	select {
	case <-empty:
		t.Error("nobody waits for the ids of a peer that stays")
	default:
	}
	if got, more := h.take(peerNumber(1), 10, nil); len(got) > 0 || more {
		t.Errorf("%d dropped ids are sent", len(got))
	}
	got, _ := h.take(peerNumber(2), 10, nil)
	h.taken(len(got))
	select {
	case <-empty:
	default:
		t.Error("all is sent or dropped, and somebody waits still")
	}
	if len(h.queues) != 0 {
		t.Errorf("%d queues are kept", len(h.queues))
	}
}
