package deadletter

import (
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// empty is a message that Pulsar's client acks when it gets it, and does not show: it has no properties, and is neither null nor in a batch.
func empty() pulsar.ProducerMessage { return pulsar.ProducerMessage{Payload: []byte{}} }

// TestAnEmptyLetterIsListed, and is still there: a list consumes nothing. Only a purge removes it.
func TestAnEmptyLetterIsListed(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0)
	g.publish(g.cfg.LettersTopic, empty())
	var id string
	list := func() (read int) {
		t.Helper()
		began := time.Now()
		c, err := g.List(t.Context(), Selection{}, func(l *Letter) error {
			if len(l.Payload) == 0 {
				id = l.ID.String()
			}
			return nil
		})
		if err != nil || c.Reach != "" || time.Since(began) > g.cfg.QuietMax {
			t.Errorf("a list ends with %+v, %v", c, err)
		}
		return c.Read
	}
	for range 2 {
		if n := list(); n != 2 || id == "" {
			t.Fatalf("%d letters are listed, want 2; the empty one has the id %q", n, id)
		}
	}
	if c := g.mustReplay(Selection{}, nil); c.Sent != 1 || c.Obstacles[ObstacleTopic] != 1 {
		t.Errorf("a replay: %+v", c)
	}
	g.letters(1)
	if n := list(); n != 2 {
		t.Errorf("%d letters are listed behind a replay, want 2", n)
	}
	if c, err := g.Purge(t.Context(), Selection{IDs: []string{id}}, Options{Who: "me@here", Why: "a test", Max: 10}); err != nil || c.Purged != 1 {
		t.Errorf("a purge: %+v, %v", c, err)
	}
	if n := list(); n != 1 {
		t.Errorf("%d letters are listed behind a purge, want 1", n)
	}
}

// TestAnEmptyLastEvent does not stop a replay of events, and is one of them.
func TestAnEmptyLastEvent(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("0")}, empty())
	sel := Selection{Since: time.Now().Add(-time.Minute), Until: time.Now().Add(time.Minute), Run: "r"}
	for i, want := range []int{2, 0} {
		if c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 100}); err != nil || c.Sent != want {
			t.Errorf("replay %d: %+v, %v, want %d sent", i, c, err, want)
		}
	}
	if got := g.held(g.topic); got[""] != 2 || got["0"] != 2 {
		t.Errorf("the topic holds %v, want each twice", got)
	}
}

// TestAnEmptyMessageBehindTheRecords is no record, and hides none.
func TestAnEmptyMessageBehindTheRecords(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0)
	g.mustReplay(Selection{}, nil)
	g.publish(g.cfg.ReplaysTopic(), empty())
	if trail, err := g.Trail(t.Context(), 10); err != nil || len(trail.Acts) != 1 || trail.Acts[0].Ended.IsZero() || trail.Foreign != 1 {
		t.Errorf("the acts are %+v, %v", trail, err)
	}
	g.letters(1)
	for _, change := range []func(*Options){dry, nil} {
		if c := g.mustReplay(Selection{}, change); c.Sent != 1 || c.Foreign != 1 || len(c.Unsure) > 1 { // without pulsar.admin_url
			t.Errorf("%+v", c)
		}
	}
}

// TestABombIsRefused by the name of its limit: as a letter, as an event, and as a record. The others are read.
func TestABombIsRefused(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.over(connect(t, g.pulsar, 1<<20))
	g.keep(g.topic, "orders")
	bomb := func(topic string) {
		t.Helper()
		g.publishAs(pulsar.ProducerOptions{Topic: topic, CompressionType: pulsar.ZSTD}, pulsar.ProducerMessage{Payload: make([]byte, 4<<20)}) // some hundred bytes
	}
	g.letters(0)
	bomb(g.cfg.LettersTopic)
	g.letters(1)
	var broken []*Letter
	for range 2 {
		broken = nil
		c, err := g.List(t.Context(), Selection{}, func(l *Letter) error {
			if l.Broken != "" {
				broken = append(broken, l)
			}
			return nil
		})
		if err != nil || c.Read != 3 || len(broken) != 1 || broken[0].Broken != "size: decompressed payload beyond the limit pulsar.payload_bytes_max" ||
			!strings.Contains(broken[0].Reason, broken[0].Broken) || len(broken[0].Payload) == 0 || len(broken[0].Payload) > 1<<20 {
			t.Fatalf("%+v, %v; these are broken: %+v", c, err, broken)
		}
	}
	if c := g.mustReplay(Selection{}, nil); c.Sent != 2 || c.Obstacles[ObstacleBroken] != 1 {
		t.Errorf("a replay: %+v", c)
	}
	bomb(g.topic)
	bomb(g.cfg.ReplaysTopic())
	sel := Selection{Since: time.Now().Add(-time.Minute), Until: time.Now().Add(time.Minute), Run: "r"}
	if c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 100}); err != nil || c.Sent != 2 || c.Obstacles[ObstacleBroken] != 1 {
		t.Errorf("a replay of events: %+v, %v", c, err)
	}
	if trail, err := g.Trail(t.Context(), 10); err != nil || len(trail.Acts) != 2 || trail.Foreign != 1 {
		t.Errorf("the acts are %+v, %v", trail, err)
	}
	if c, err := g.Purge(t.Context(), Selection{IDs: []string{broken[0].ID.String()}}, Options{Who: "me@here", Why: "a test", Max: 10}); err != nil || c.Purged != 1 {
		t.Errorf("a purge: %+v, %v", c, err)
	}
}

// TestPurgeOfThePartlyAckedEntry: of an entry of which letters are acked, a purge removes the rest. Brokers remember the ack with acknowledgmentAtBatchIndexLevelEnabled alone.
func TestPurgeOfThePartlyAckedEntry(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.lettersInOneEntry(0, 1, 3)
	consumer, err := g.pulsar.Subscribe(pulsar.ConsumerOptions{Topic: g.cfg.LettersTopic, SubscriptionName: "kept", EnableBatchIndexAcknowledgment: true})
	if err != nil {
		t.Fatal(err)
	}
	m, err := consumer.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := consumer.Ack(m); err != nil {
		t.Fatal(err)
	}
	consumer.Close()
	c, err := g.Purge(t.Context(), Selection{}, Options{Who: "me@here", Why: "a test", Max: 100})
	if got := g.waiting(); got != "" {
		t.Errorf("these wait after the purge %+v, %v: %s", c, err, got)
	}
}
