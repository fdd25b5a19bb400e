package entries

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Interleaved chunked messages, with fewer permits than chunks: each message arrives whole and is acked as a whole.
func TestChunks(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		c := r.subscribe(func(s *Subscription) { s.Permits = 2 })
		want := map[string][]wire.ID{}
		for i := range 4 {
			for _, uuid := range []string{"x", "y"} {
				want[uuid] = append(want[uuid], r.cluster.Publish(topicName, fakebroker.Chunk(uuid, i, 4, 8, uuid+"."), 1))
			}
		}
		for _, d := range r.receive(2) {
			payload := string(d.Entry.Payload)
			uuid := payload[:1]
			if payload != strings.Repeat(uuid+".", 4) || !slices.Equal(d.Chunks, want[uuid]) || d.ID != want[uuid][3] || d.Broken != nil {
				t.Errorf("received %q of %v (%v), want %v", payload, d.Chunks, d.Broken, want[uuid])
			}
			r.ack(c, d)
		}
		r.nothing()
		if left, p := r.cluster.Backlog(topicName), r.cluster.Permits(topicName); len(left) != 0 || !slices.Equal(p, []int{2}) {
			t.Errorf("broker has %v, and permits %v", left, p)
		}
		if n := testutil.ToFloat64(r.metrics.chunkBytes); n != 0 {
			t.Errorf("metric shows %v bytes of chunks", n)
		}
	})
}

// A message whose chunks arrive partly before and partly after a reconnect is one message.
func TestChunksAndAReconnect(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		c := r.subscribe()
		ids := []wire.ID{r.cluster.Publish(topicName, fakebroker.Chunk("x", 0, 2, 2, "1"), 1)}
		time.Sleep(time.Second)
		if n := testutil.ToFloat64(r.metrics.chunkBytes); n <= 0 {
			t.Errorf("metric shows %v bytes of chunks", n)
		}
		a.Cut()
		time.Sleep(time.Second)
		ids = append(ids, r.cluster.Publish(topicName, fakebroker.Chunk("x", 1, 2, 2, "2"), 1))
		d := r.receive(1)[0]
		if string(d.Entry.Payload) != "12" || !slices.Equal(d.Chunks, ids) {
			t.Errorf("received %q of %v, want 12 of %v", d.Entry.Payload, d.Chunks, ids)
		}
		r.ack(c, d)
		r.nothing()
	})
}

// Chunks without room go back to the broker and are redelivered when there is room. No chunk is acked before its message. Chunks of a
// message that never has room are handed on one by one.
func TestChunksWithoutRoom(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.cfg.ChunkBytesMax = 4096
		part := strings.Repeat("p", 1000)
		c := r.subscribe()
		for i := range 2 {
			for _, uuid := range []string{"x", "y", "z"} {
				r.cluster.Publish(topicName, fakebroker.Chunk(uuid, i, 2, 2000, part), 1)
			}
		}
		for _, d := range r.receive(3) {
			if d.Broken != nil || len(d.Entry.Payload) != 2000 || len(d.Chunks) != 2 {
				t.Errorf("received %d bytes in %v (%v)", len(d.Entry.Payload), d.Chunks, d.Broken)
			}
			r.ack(c, d)
		}
		if n := testutil.ToFloat64(r.metrics.chunksGivenUp); n == 0 {
			t.Error("no chunk was given up, want some")
		}
		r.nothing()
		if left := r.cluster.Backlog(topicName); len(left) != 0 {
			t.Errorf("broker has %v", left)
		}
		for i := range 2 {
			r.cluster.Publish(topicName, fakebroker.Chunk("long", i, 2, 10_000, part), 1)
		}
		for _, d := range r.receive(2) {
			if d.Broken == nil || d.Broken.Reason != wire.ReasonSize || len(d.Raw) == 0 || d.Chunks != nil {
				t.Errorf("chunk of a message without room arrives as %+v", d.Broken)
			}
		}
	})
}
