package e2e

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/broker/pulsartest"
)

// TestPlannedMovesRepeatNothing: members join and leave under load, and hardly any event is
// handled twice, because the ids of finished events move with their partitions.
func TestPlannedMovesRepeatNothing(t *testing.T) {
	const events, keys = 100_000, 10_000
	topic := pulsartest.Topic(t, 4)
	c := newCluster(t, "json:user", 50*time.Millisecond, topic)
	a, b := c.start("a"), c.start("b")
	c.ready(a)
	c.ready(b)
	produced := make(chan error, 1)
	go func() { produced <- produce(t, topic, events, keys) }()
	c.progress(20_000)
	d := c.start("d")
	c.ready(d)
	t.Log("d has joined")
	c.progress(50_000)
	if code := c.leave(a); code != 0 {
		t.Errorf("a left with exit code %d, want 0", code)
	}
	t.Log("a has left")
	if err := <-produced; err != nil {
		t.Fatal(err)
	}
	c.settled()
	report := c.check(ids(t, events, topic))
	t.Logf("%d times a key went from one living member to another", report.Handoff.Count)
	if report.Handoff.Count == 0 {
		t.Error("no key moved between living members: this run proved nothing")
	}
	if report.Duplicates > report.Published/1000 { // a stream that breaks on a busy machine costs a few
		t.Errorf("%d of %d events were worked on more than once", report.Duplicates, report.Published)
	}
}
