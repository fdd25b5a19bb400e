package node

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/admission"
	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/internal/membroker"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// keysOf returns n keys whose partitions a member owns by its own table.
func (m *member) keysOf(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("victim-", i)
		if m.Table().Owner(ring.PartitionOf(key)).Inc == *m.self.Load() {
			keys = append(keys, key)
		}
	}
	return keys
}

// handedOver returns how many ids that others handed over to a member came to a result.
func (m *member) handedOver(result admission.Result) int {
	return int(testutil.ToFloat64(m.metrics.admitted.WithLabelValues(result.String())))
}

// TestForgedWindows: nobody can make a member ack events that nobody has handled yet, by
// telling it that they are done: neither a stranger, nor a member that never owned their
// keys, nor their earlier owner.
func TestForgedWindows(t *testing.T) {
	t.Parallel()
	const events = 20
	g := newGroup(t)
	a := g.start("a", nil)
	g.startApp(a)
	g.ready(a) // it has owned everything
	b := g.start("b", nil)
	g.startApp(b)
	g.ready(b)
	c := g.start("c", nil)
	g.startApp(c)
	g.ready(a, b, c)
	g.eventually("all have one table", func() error {
		if a.Table().Cur != b.Table().Cur || c.Table().Cur != b.Table().Cur || len(b.Table().Members) != 3 {
			return errors.New("not yet")
		}
		return nil
	})
	g.publish(100, 100)
	g.settled()

	stranger := func(done []event.Finished) {
		conn, err := grpc.NewClient("passthrough:///"+b.cfg.PeerAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		st, err := peerv1.NewPeerServiceClient(conn).Forward(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inc := *a.self.Load() // in the name of the earlier owner
		hello := &peerv1.Hello{Group: "orders", HashId: ring.HashID, Member: "a", Incarnation: inc[:], VersionMin: 1, VersionMax: 1}
		window := &peerv1.Window{}
		for _, d := range done {
			window.Partitions = append(window.Partitions, uint32(d.Partition))
			window.AgesMs = append(window.AgesMs, 0)
			window.LedgerIds = append(window.LedgerIds, d.ID.Ledger)
			window.EntryIds = append(window.EntryIds, d.ID.Entry)
			window.BatchIndexes = append(window.BatchIndexes, d.ID.Batch)
			window.TopicPartitions = append(window.TopicPartitions, d.ID.TopicPartition)
		}
		for _, f := range []*peerv1.ForwardRequest{
			{Frame: &peerv1.ForwardRequest_Hello{Hello: hello}},
			{Frame: &peerv1.ForwardRequest_Proof{Proof: &peerv1.Proof{Signature: make([]byte, 64)}}},
			{Frame: &peerv1.ForwardRequest_Window{Window: window}},
		} {
			if err := st.Send(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	member := func(m *member) func([]event.Finished) {
		return func(done []event.Finished) { m.pool.HandOver(forward.Peer(*b.self.Load()), done) }
	}
	publish := func(key string) membroker.EntryID {
		name := fmt.Sprintf("event-%d", len(g.published))
		g.published = append(g.published, name)
		id, err := g.broker.Publish(t.Context(), "persistent://public/default/orders", []membroker.Message{{Key: key, Payload: []byte(name)}})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	keys := b.keysOf(events)
	for _, attack := range []struct {
		by      string
		forge   func([]event.Finished)
		refused admission.Result
	}{
		{"a stranger", stranger, admission.Unproven},
		{"a member that never owned the keys", member(c), admission.NotOwner},
		{"their earlier owner", member(a), admission.Ahead},
	} {
		last := publish(keys[0])
		g.settled()
		var forged []event.Finished
		for i, key := range keys {
			forged = append(forged, event.Finished{
				Partition: ring.PartitionOf(key),
				ID:        event.MessageID{Ledger: last.Ledger, Entry: last.Entry + int64(i) + 1, Batch: -1, TopicPartition: -1},
			})
		}
		judged := func() (n int) {
			for r := range admission.Results {
				n += b.handedOver(r)
			}
			return n
		}
		before, refused := judged(), b.handedOver(attack.refused)
		attack.forge(slices.Clone(forged))
		g.eventually("b has judged the ids of "+attack.by, func() error {
			if n := judged() - before; n < events {
				return fmt.Errorf("%d of %d", n, events)
			}
			return nil
		})
		for _, key := range keys {
			publish(key)
		}
		g.settled()
		if n := b.handedOver(attack.refused) - refused; n != events {
			t.Errorf("b refused %d of %d ids of %s as %v", n, events, attack.by, attack.refused)
		}
	}
	g.check() // what was acked without a handler is lost
}
