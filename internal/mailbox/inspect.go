package mailbox

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Wait names what the first event of a key waits for.
//
//exhaustive:enforce
type Wait uint8

// What a key can wait for.
const (
	WaitNothing Wait = iota // the key has no event here
	WaitHandler             // its event runs: for the result
	WaitRetry               // its event failed: for the moment of the next attempt
	WaitGate                // ours, but an earlier tenure may still run: for the gate to open
	WaitWorker              // for the application: no worker is up
	WaitSlot                // for its worker to have room, or for the lease to come back
)

// String returns the name of the wait, as the admin page has it.
func (w Wait) String() string {
	switch w {
	case WaitNothing:
		return "nothing"
	case WaitHandler:
		return "handler"
	case WaitRetry:
		return "retry"
	case WaitGate:
		return "gate"
	case WaitWorker:
		return "worker"
	case WaitSlot:
		return "slot"
	}
	return "unknown"
}

// KeyState is what a key is doing here, and since when.
type KeyState struct {
	Wait      Wait
	Since     clock.Instant // when that wait began
	Partition ring.Partition
	Gate      ownership.Gate

	// Event is the message id of the event that runs, or else would run next.
	// Attempts is how often the application has failed it, Accepted when it came.
	Event    event.MessageID
	Attempts uint32
	Accepted clock.Instant

	Depth     int              // events that wait, besides the one that runs
	HeldUntil clock.Instant    // WaitRetry, and WaitGate if not zero: when the next attempt is due
	Delivery  event.DeliveryID // WaitHandler
	Worker    event.WorkerID   // WaitHandler, WaitSlot: to whom the key sticks
}

// Inspect says what the key waits for. Without events here it waits for nothing.
func (b *Boxes) Inspect(key event.Key) KeyState {
	p := b.part(ring.PartitionOf(string(key)))
	s := KeyState{Partition: p.number, Gate: p.gate}
	a := b.actor(key, b.hashOfKey(key))
	if a == nil {
		return s
	}
	it := a.head
	if a.running != nil {
		it = a.running
	}
	s.Wait, s.Since, s.Depth, s.HeldUntil = a.wait, a.since, int(a.depth), a.heldUntil
	s.Event, s.Attempts, s.Accepted = it.id, it.attempts, it.arrival.at
	s.Delivery = it.delivery
	if a.wait == WaitHandler || a.wait == WaitSlot {
		s.Worker = a.worker.id
	}
	return s
}

// PartState is what is known here about one partition.
type PartState struct {
	Gate    ownership.Gate
	Token   ownership.Token
	Running int // deliveries of any tenure that are not over
}

// Parts puts what is known about the partitions of this shard into states, by partition.
func (b *Boxes) Parts(states *[ring.Partitions]PartState) {
	for i := range b.parts {
		p := &b.parts[i]
		states[p.number] = PartState{p.gate, p.token, p.running}
	}
}

// Counters count what happened since the start.
type Counters struct {
	Accepted   uint64 // events taken in
	Joined     uint64 // senders that joined an event that was here
	Duplicates uint64 // events that had been done lately
	Unrun      uint64 // of these, what the broker had delivered for the first time
	Mistaken   uint64 // events with the id of another one that was here or done lately
	Overloaded uint64 // events, or joins, without room
	NotOwner   uint64 // events refused because the partition is not ours
	NotYet     uint64 // events refused because we lag behind the sender
	Misplaced  uint64 // events whose partition is not that of their key
	Moved      uint64 // events taken in, and sent back because the partition is not ours any more
	Done       uint64 // deliveries that did the work
	Failed     uint64 // deliveries that failed, with a long delay: the event left by way of the retry topic
	Retried    uint64 // deliveries that failed, with a short delay
	Crashed    uint64 // deliveries whose worker crashed, and that are tried again
	Rejected   uint64 // deliveries that failed for good
	Unpinned   uint64 // events that waited for so long that they were copied out of their frame
	Returned   uint64 // deliveries that ended without being the application's failure
	Ignored    uint64 // results of deliveries that were unknown or over
}

// Stats is what is here now, and what happened since the start.
type Stats struct {
	Counters
	Events    int           // waiting or running
	Running   int           // deliveries that are not over
	Keys      int           // with events here
	Ready     int           // keys that wait for room at their worker, or for the lease
	Held      int           // keys that wait for their next attempt
	Bytes     int           // of all events
	WindowIDs int           // events that were done lately
	Oldest    clock.Instant // when the oldest event came in, clock.Forever when there is none
}

// Stats costs the same however much is here.
func (b *Boxes) Stats() Stats {
	s := Stats{
		Counters:  b.counters,
		Events:    b.items.len(),
		Running:   b.running,
		Keys:      b.actors.len(),
		Ready:     b.ready,
		Held:      len(b.held),
		Bytes:     b.bytes,
		WindowIDs: b.window.n,
		Oldest:    clock.Forever,
	}
	if b.ages.oldest != nil {
		s.Oldest = b.ages.oldest.at
	}
	return s
}

// add returns the stats of two shards as one.
func (s Stats) add(t Stats) Stats {
	s.Counters = s.Counters.add(t.Counters)
	s.Events += t.Events
	s.Running += t.Running
	s.Keys += t.Keys
	s.Ready += t.Ready
	s.Held += t.Held
	s.Bytes += t.Bytes
	s.WindowIDs += t.WindowIDs
	s.Oldest = min(s.Oldest, t.Oldest)
	return s
}

func (c Counters) add(d Counters) Counters {
	c.Accepted += d.Accepted
	c.Joined += d.Joined
	c.Unrun += d.Unrun
	c.Mistaken += d.Mistaken
	c.Duplicates += d.Duplicates
	c.Overloaded += d.Overloaded
	c.NotOwner += d.NotOwner
	c.NotYet += d.NotYet
	c.Misplaced += d.Misplaced
	c.Moved += d.Moved
	c.Done += d.Done
	c.Failed += d.Failed
	c.Retried += d.Retried
	c.Crashed += d.Crashed
	c.Rejected += d.Rejected
	c.Unpinned += d.Unpinned
	c.Returned += d.Returned
	c.Ignored += d.Ignored
	return c
}
