package entries

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// The first chunk is acked once the last one has arrived and all others are done, or after the timeout.
func TestAloneFirstChunkIsLast(t *testing.T) {
	a := newAlone(time.Hour)
	part := func(number int32) *wire.Metadata {
		return &wire.Metadata{Producer: []byte("p"), UUID: []byte("u"), Chunk: number, Chunks: 3}
	}
	id := func(entry int64) wire.ID { return wire.ID{Entry: entry} }
	done := func(entry int64, want ...wire.ID) {
		t.Helper()
		if got := a.done(0, id(entry), entry == 0 || entry == 3); !slices.Equal(got, want) {
			t.Errorf("done with %d acks %v, want %v", entry, got, want)
		}
	}
	for i := range int32(2) {
		a.arrived(0, id(int64(i)), part(i), nil, firstsMax)
	}
	done(0)
	done(1, id(1))
	if got := a.expire(clock.Instant(time.Hour) - 1); len(got) > 0 {
		t.Errorf("%v expires too early", got)
	}
	a.arrived(0, id(2), part(2), nil, firstsMax)
	if a.broken(part(1)) == nil {
		t.Error("a chunk of the message may be held")
	}
	done(2, id(2), id(0))
	if a.broken(part(1)) != nil || len(a.messages)+len(a.of) > 0 {
		t.Errorf("something is left: %+v", a)
	}

	a.arrived(0, id(3), part(0), nil, firstsMax) // its producer dies
	done(3)
	if got := a.expire(clock.Instant(time.Hour)); !slices.Equal(got, []wire.ID{id(3)}) || len(a.messages)+len(a.of) > 0 {
		t.Errorf("%v expires, want the first chunk: %+v", got, a)
	}
	a.arrived(0, id(4), part(1), nil, firstsMax) // the first one was acked before
	if a.broken(part(2)) != nil {
		t.Error("a chunk without its first may not be held")
	}
	done(4, id(4))
	if len(a.messages)+len(a.of) > 0 {
		t.Errorf("something is left: %+v", a)
	}
	done(0) // of an earlier session
	done(1, id(1))
}

// When a router dies after the first chunks of a message were acked one by one, the broker can assign the others, and what follows.
func TestChunksAckedOneByOne(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		r.cfg.ChunkBytesMax = 2000
		r.subscribe()
		var published []wire.ID
		for i := range 4 {
			published = append(published, r.cluster.Publish(topicName, fakebroker.Chunk("long", i, 4, 10_000, "part"), 1))
		}
		got := r.receive(4)
		ack := func(list ...*Delivered) {
			for _, d := range list {
				if err := d.Ack(); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(time.Second)
		}
		if ack(got[:2]...); !slices.Equal(r.cluster.Backlog(topicName), []wire.ID{published[0], published[2], published[3]}) {
			t.Errorf("with two chunks open, the broker has %v", r.cluster.Backlog(topicName))
		}
		a.Cut()
		again := r.receive(3)
		ack(got[0], got[2]) // copies that became safe meanwhile
		last := r.publish(1)
		if d := r.receive(1)[0]; d.ID != last[0] {
			t.Errorf("received %v, want %v", d.ID, last)
		}
		ack(again...)
		if left := r.cluster.Backlog(topicName); !slices.Equal(left, last) {
			t.Errorf("broker has %v, want %v", left, last)
		}
	})
}

// A chunk whose first chunk is broken is broken, too. Held for the rest of its message, it would go back alone.
func TestChunksOfABrokenFirstChunk(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.subscribe()
		first := fakebroker.Chunk("x", 0, 3, 6, "ab")
		first[len(first)-1]++ // the checksum is wrong
		r.cluster.Publish(topicName, first, 1)
		for i := 1; i < 3; i++ {
			r.cluster.Publish(topicName, fakebroker.Chunk("x", i, 3, 6, "ab"), 1)
		}
		for i, d := range r.receive(3) {
			if want := []wire.Reason{wire.ReasonChecksum, wire.ReasonChunk, wire.ReasonChunk}[i]; d.Broken == nil || d.Broken.Reason != want {
				t.Errorf("chunk %d arrives as %+v", i, d.Broken)
			}
			if err := d.Ack(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Second)
		if left := r.cluster.Backlog(topicName); len(left) != 0 {
			t.Errorf("broker has %v", left)
		}
	})
}

// In the acks of a whole message the first chunk comes last, also if they need several commands.
func TestFirstChunkIsInTheLastCommand(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		r.cfg.AckGroupMax = 2
		var mu sync.Mutex // the link calls the script
		var acked []string
		a.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			mu.Lock()
			defer mu.Unlock()
			for _, id := range c.GetAck().GetMessageId() {
				acked = append(acked, fmt.Sprint(id.GetEntryId()))
			}
			return false
		}
		r.subscribe()
		for i := range 5 {
			r.cluster.Publish(topicName, fakebroker.Chunk("x", i, 5, 5, "1"), 1)
		}
		if err := r.receive(1)[0].Ack(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		if got := strings.Join(acked, " "); got != "1 2 3 4 0" {
			t.Errorf("acked in the order %s", got)
		}
	})
}
