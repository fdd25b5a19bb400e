package forward

import (
	"testing"
	"testing/synctest"

	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// A peer that sends events and pings, but never receipts a verdict, must not make verdicts collect without bound.
func TestVerdictsOfAPeerThatReceiptsNoneAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &pipes{}
		b := newNode(t, network, 2, DefaultConfig(), bubbleClock())
		b.start()
		defer b.stop()
		h := Identity{Group: "g", HashID: ring.HashID, Member: "x", Incarnation: peerNumber(9)}.hello(peerNumber(2))
		h.Capabilities = nil
		st, closeAll := caller(t, network, b, &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: h}})
		defer closeAll()
		events := make([]*peerv1.Event, 4096)
		for i := range events {
			events[i] = &peerv1.Event{Handle: 1<<40 | uint64(i), LedgerId: 1}
		}
		queued, verdicts, sent := 0, 0, 0
		for number := uint64(1); number <= 300; number++ {
			if st.Send(&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Events{Events: &peerv1.Events{Number: number, Topics: []string{"t"}, Events: events}}}) != nil {
				break
			}
			sent++
			for {
				f, err := st.Recv()
				b.server.mu.RLock()
				for _, in := range b.server.streams {
					in.mu.Lock()
					n := 0
					for i := range in.queued {
						n += in.queued[i].n
					}
					queued, verdicts = max(queued, len(in.queued)), max(verdicts, n)
					in.mu.Unlock()
				}
				b.server.mu.RUnlock()
				if err != nil {
					number = 1 << 20
					break
				}
				if f.GetReceipt() >= number {
					break
				}
			}
		}
		t.Logf("%d frames sent, %d frames of %d verdicts queued", sent, queued, verdicts)
		if queued > queuedMax+8 {
			t.Errorf("%d frames of verdicts wait for a peer that has receipted none, want at most %d", queued, queuedMax+8)
		}
	})
}
