package node

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/devtools/testapp"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/source"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// keysOf returns n keys whose partitions a member owns by its own table.
func (m *member) keysOf(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("victim-", i)
		if m.Table().Owner(ring.PartitionOf(key)).Inc == m.self.Load().inc {
			keys = append(keys, key)
		}
	}
	return keys
}

// handedOver returns how many ids that others handed over to a member came to a result.
func (m *member) handedOver(result admission.Result) int {
	return int(testutil.ToFloat64(m.metrics.admitted.WithLabelValues(result.String())))
}

// publishEntry sends an event that is an entry of its own.
func (g *group) publishEntry(key string) membroker.EntryID {
	g.t.Helper()
	name := fmt.Sprintf("event-%d", len(g.published))
	g.published = append(g.published, name)
	id, err := g.broker.Publish(g.t.Context(), "persistent://public/default/orders", []membroker.Message{{Key: key, Payload: []byte(name)}})
	if err != nil {
		g.t.Fatal(err)
	}
	return id
}

// TestForgedWindows: a member cannot be made to ack unhandled events by a handover that calls them
// done: neither by a stranger, nor by a member that never owned their keys, nor by their earlier
// owner.
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
		inc := a.self.Load().inc // in the name of the earlier owner
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
		return func(done []event.Finished) { m.pool.HandOver(forward.Peer(b.self.Load().inc), done) }
	}
	publish := g.publishEntry
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
	g.check() // an event that was acked without a handler is lost
}

// TestForgedCopies: a producer of the retry topic cannot make events vanish by sending copies
// of them before they are published: neither under another key, nor under the same key with
// other content; nor if such a copy still runs when the event arrives. With keys for copies
// they do not even count as copies.
func TestForgedCopies(t *testing.T) {
	t.Parallel()
	keysFile := filepath.Join(t.TempDir(), "copy-keys")
	if err := os.WriteFile(keysFile, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		key    func(victim string) string
		signed bool
		runs   bool // the copy still runs when the event comes
	}{
		"another key":               {key: func(string) string { return "mallory" }},
		"the same key":              {key: func(victim string) string { return victim }},
		"another key, and it runs":  {key: func(string) string { return "mallory" }, runs: true},
		"the same key, and it runs": {key: func(victim string) string { return victim }, runs: true},
		"copies are signed":         {key: func(victim string) string { return victim }, signed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, func(t testing.TB, g *group) { forgedCopies(t, g, test.key, test.signed, test.runs, keysFile) })
		})
	}
}

func forgedCopies(t testing.TB, g *group, key func(victim string) string, signed, runs bool, keysFile string) {
	const events = 10
	if runs {
		g.work = testapp.Config{WorkMin: 300 * time.Millisecond, WorkMax: 300 * time.Millisecond}
	}
	if signed {
		g.source.CopyKeysFile = keysFile
	}
	a := g.start("a", func(c *Config) { c.CopiesSigned = g.source.CopiesSigned() })
	g.startApp(a)
	g.ready(a)
	last := g.publishEntry("first")
	g.settled()
	var victims []string
	for i := range events {
		victims = append(victims, fmt.Sprint("victim-", i))
		id := event.MessageID{Ledger: last.Ledger, Entry: last.Entry + int64(i) + 1, Batch: -1, TopicPartition: -1}
		forged := membroker.Message{Key: key(victims[i]), Payload: []byte(fmt.Sprint("forged-", i)), Properties: map[string]string{
			source.PropertyMessageID: id.String(), source.PropertyTopic: "persistent://public/default/orders", source.PropertyRound: "1",
		}}
		if _, err := g.broker.Publish(t.Context(), source.RetryTopicName([]string{"orders"}, "orders"), []membroker.Message{forged}); err != nil {
			t.Fatal(err)
		}
	}
	g.eventually("the copies are handled", func() error {
		stats := a.boxes.Stats()
		if handled := int(stats.Done); handled < 1+events && !(runs && int(stats.Accepted) >= 1+events) {
			return fmt.Errorf("%+v", stats)
		}
		return nil
	})
	for _, victim := range victims {
		g.publishEntry(victim)
	}
	g.eventually("everything is settled", func() error {
		if s := g.broker.SubscriptionStats("orders"); s.Backlog != 0 || s.Unacked != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	report, err := journal.Check(g.files, slices.Values(g.published))
	if err != nil {
		t.Fatal(err)
	}
	if report.Lost != 0 || report.Overlaps != 0 || report.Duplicates != 0 || report.Unknown != events {
		t.Errorf("%d of %d events vanished, %d overlaps, %d duplicates, %d of %d forged ones ran", report.Lost, events, report.Overlaps, report.Duplicates, report.Unknown, events)
	}
}
