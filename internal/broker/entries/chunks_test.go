package entries

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
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
		a.Kill()
		time.Sleep(time.Second)
		if n := testutil.ToFloat64(r.metrics.chunkBytes); n != 0 { // another member may get them
			t.Errorf("metric shows %v bytes of chunks without a connection", n)
		}
		a.Revive()
		time.Sleep(time.Minute)
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

// A chunk without room does not go back alone: the broker cannot assign it, and sends nothing else until it can.
func TestChunksWithoutRoomDoNotStopTheTopic(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.cfg.ChunkBytesMax = 7000
		c := r.subscribe()
		large, part := strings.Repeat("p", 3000), strings.Repeat("p", 1500)
		r.cluster.Publish(topicName, fakebroker.Chunk("x", 0, 2, 4000, large), 1)
		for i := range 3 {
			r.cluster.Publish(topicName, fakebroker.Chunk("y", i, 3, 4500, part), 1)
		}
		time.Sleep(time.Minute) // y goes back and forth
		begun := time.Now()
		alone := r.publish(1)
		if d := r.receive(1)[0]; d.ID != alone[0] || time.Since(begun) > time.Minute {
			t.Errorf("received %v after %v, want %v", d.ID, time.Since(begun), alone)
		} else {
			r.ack(c, d)
		}
		r.cluster.Publish(topicName, fakebroker.Chunk("x", 1, 2, 4000, large[:1000]), 1)
		for _, d := range r.receive(2) {
			if d.Broken != nil || len(d.Chunks) < 2 {
				t.Errorf("received %d bytes in %v (%v)", len(d.Entry.Payload), d.Chunks, d.Broken)
			}
			r.ack(c, d)
		}
		r.nothing()
		if left := r.cluster.Backlog(topicName); len(left) != 0 {
			t.Errorf("broker has %v", left)
		}
	})
}

// Chunks of a message that arrive after the first ones were given up go back, too: another member may get them all.
func TestChunksAfterTheirMessageWasGivenUp(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.cfg.ChunkBytesMax = 7000
		c := r.subscribe()
		large, part := strings.Repeat("p", 3000), strings.Repeat("p", 1500)
		r.cluster.Publish(topicName, fakebroker.Chunk("x", 0, 3, 4500, part), 1)
		r.cluster.Publish(topicName, fakebroker.Chunk("y", 0, 2, 4000, large), 1)
		r.cluster.Publish(topicName, fakebroker.Chunk("x", 1, 3, 4500, part), 1) // y makes room
		r.cluster.Publish(topicName, fakebroker.Chunk("y", 1, 2, 4000, large[:1000]), 1)
		time.Sleep(time.Second)
		r.subscribe() // a member with room
		for n := range 4 {
			if n == 3 {
				r.Fatal("y did not arrive")
			}
			time.Sleep(time.Minute)
			got, err := r.queue.poll(nil, 10)
			if Take(got...); err != nil || len(got) > 0 {
				if len(got) != 1 || len(got[0].Chunks) != 2 {
					r.Fatalf("received %d entries, %v, want y", len(got), err)
				}
				r.ack(c, got...)
				break
			}
		}
	})
}

// Chunks that were given up before a reconnect are not asked for after it: the broker redelivers them anyway, and a chunk of a message that has become
// whole would go back alone.
func TestChunksGivenUpBeforeAReconnect(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		r.cfg.ChunkBytesMax = 7000
		var asked atomic.Int64
		a.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			asked.Add(int64(len(c.GetRedeliverUnacknowledgedMessages().GetMessageIds())))
			return false
		}
		c := r.subscribe()
		large, part := strings.Repeat("p", 3000), strings.Repeat("p", 1500)
		r.cluster.Publish(topicName, fakebroker.Chunk("x", 0, 2, 4000, large), 1)
		for i := range 3 {
			r.cluster.Publish(topicName, fakebroker.Chunk("y", i, 3, 4500, part), 1)
		}
		time.Sleep(time.Second)
		if n := testutil.ToFloat64(r.metrics.chunksGivenUp); n == 0 {
			r.Fatal("no chunk was given up")
		}
		r.cluster.Publish(topicName, fakebroker.Chunk("x", 1, 2, 4000, large[:1000]), 1)
		r.ack(c, r.receive(1)...) // which makes room
		time.Sleep(time.Second)
		a.Cut()
		if d := r.receive(1)[0]; len(d.Chunks) != 3 {
			t.Errorf("received %v, want y", d.Chunks)
		}
		time.Sleep(5 * time.Minute) // its handler runs
		if n := asked.Load(); n > 0 {
			t.Errorf("%d entries of an earlier session were given back", n)
		}
	})
}

// A message whose last chunks never come goes back to the broker once, perhaps to another member, and is handed on as broken if they have not come then
// either. Without that it would stay in the backlog, and its topic would keep all later entries.
func TestIncompleteMessage(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.cfg.ChunkTimeout = 10 * time.Minute
		c := r.subscribe()
		want := []wire.ID{
			r.cluster.Publish(topicName, fakebroker.Chunk("x", 0, 4, 8, "a."), 1),
			r.cluster.Publish(topicName, fakebroker.Chunk("x", 2, 4, 8, "c."), 1),
		}
		r.cluster.Publish(topicName, fakebroker.Chunk("y", 0, 2, 4, "y."), 1)
		time.Sleep(r.cfg.ChunkTimeout + time.Minute)
		r.nothing()
		if n := testutil.ToFloat64(r.metrics.chunksGivenUp); n != 3 {
			t.Errorf("%v chunks were given up, want 3", n)
		}
		r.cluster.Publish(topicName, fakebroker.Chunk("y", 1, 2, 4, "z."), 1)
		if d := r.receive(1)[0]; d.Broken != nil || string(d.Entry.Payload) != "y.z." {
			t.Errorf("a message that is complete after it came again: %q, %v", d.Entry.Payload, d.Broken)
		} else {
			r.ack(c, d)
		}
		time.Sleep(r.cfg.ChunkTimeout)
		d := r.receive(1)[0]
		if d.Broken == nil || d.Broken.Reason != wire.ReasonChunk || string(d.Raw) != "a.c." || !slices.Equal(d.Chunks, want) || d.Missing != 2 || string(d.Entry.Metadata.UUID) != "x" {
			t.Errorf("the rest of an incomplete message: %q of %v, %d missing (%v)", d.Raw, d.Chunks, d.Missing, d.Broken)
		}
		if n := testutil.ToFloat64(r.metrics.broken.WithLabelValues("chunk")); n != 1 {
			t.Errorf("metric shows %v broken entries", n)
		}
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if left, p, unacked := r.cluster.Backlog(topicName), r.cluster.Permits(topicName), testutil.ToFloat64(r.metrics.unacked); len(left) != 0 || !slices.Equal(p, []int{100}) || unacked != 0 {
			t.Errorf("broker has %v, permits %v, and %v events count as unacked", left, p, unacked)
		}
		r.cluster.Publish(topicName, fakebroker.Chunk("x", 1, 4, 8, "b."), 1) // of a producer that lives after all
		if d := r.receive(1)[0]; d.Broken == nil || string(d.Raw) != "b." || d.Missing != 3 {
			t.Errorf("a chunk that comes later: %q, %d missing (%v)", d.Raw, d.Missing, d.Broken)
		} else if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	})
}

// Incomplete messages that take all unacked events of a consumer hold up the others for a limited time.
func TestIncompleteMessagesDoNotStopTheTopic(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		const unackedMax = 64
		r.cfg.ChunkTimeout = 10 * time.Minute
		r.subscribe(func(s *Subscription) { s.UnackedMax = unackedMax })
		for i := range unackedMax {
			r.cluster.Publish(topicName, fakebroker.Chunk(strings.Repeat("x", i+1), 0, 2, 8, "a."), 1)
		}
		last := r.publish(1)[0]
		begun := time.Now()
		for n := 0; ; {
			d := r.receive(1)[0]
			if d.Broken == nil {
				if n == 0 || d.ID != last {
					t.Errorf("%d incomplete messages arrived before %v, want the last entry", n, d.ID)
				}
				break
			}
			n++
			if err := d.Ack(); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took > 2*r.cfg.ChunkTimeout+time.Minute {
			t.Errorf("the last entry arrived after %v", took)
		}
	})
}

// First chunks of messages that are handed on chunk by chunk, since they are too large, wait for the others to be acked. They leave room for the other
// events of their topic partition.
func TestFirstChunksDoNotStopTheTopic(t *testing.T) {
	for _, unackedMax := range []int{64, 2 * firstsMax} {
		bubble(t, func(r *rig) {
			r.cluster.Broker("a:6650")
			r.subscribe(func(s *Subscription) { s.UnackedMax = unackedMax })
			for i := range unackedMax {
				r.cluster.Publish(topicName, fakebroker.Chunk(fmt.Sprint("u", i), 0, 2, 1<<30, "x"), 1)
			}
			last, published := r.publish(1)[0], time.Now()
			for {
				d := r.receive(1)[0]
				if d.ID == last {
					break
				}
				if err := d.Ack(); err != nil { // its dead letter is safe
					t.Fatal(err)
				}
			}
			if took := time.Since(published); took > time.Minute {
				t.Errorf("of %d events that may be unacked, an ordinary one came after %v", unackedMax, took)
			}
		})
	}
}
