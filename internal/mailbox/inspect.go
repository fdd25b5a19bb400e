package mailbox

import (
	"reflect"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Wait is the reason why the first event of a key waits.
//
//exhaustive:enforce
type Wait uint8

// The kinds of wait.
const (
	WaitNothing Wait = iota // the key has no event here
	WaitHandler             // its event runs; the result is due
	WaitRetry               // its event failed; the next attempt is not due yet
	WaitGate                // the gate is not open, since an earlier tenure may still run
	WaitWorker              // no worker is up
	WaitSlot                // its worker has no room, or the lease has expired
	WaitHold                // an operator holds the key
	WaitPark                // an operator has parked the key, or its letters come back from the parking topic first
)

// String returns the name of the wait, as the admin page shows it.
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
	case WaitHold:
		return "hold"
	case WaitPark:
		return "park"
	}
	return "unknown"
}

// KeyState is the state of a key.
type KeyState struct {
	Wait      Wait
	Since     clock.Instant // when that wait began
	Partition ring.Partition
	Gate      ownership.Gate

	// Event is the message id of the running event, or else of the one that runs next.
	// Attempts counts its failures, Accepted is the time at which it came.
	Event    event.MessageID
	Attempts uint32
	Crashes  uint32 // how often a worker crashed while it had the event
	Accepted clock.Instant

	LastError string // the application's newest failure of Event, without its content; "": there was none. Inspect alone tells it

	Call      bool             // Event is a call, or a reservation
	Method    string           // of that call; "": it is a reservation
	Deadline  clock.Instant    // until which the caller of that call waits
	Via       Sender           // the node where that call or reservation was asked for
	Calls     int              // waiting calls and reservations, besides a running one; not part of Depth
	Waiting   []WaitingVisit   // the oldest of these; Inspect alone lists them
	Fence     event.Fence      // of the reservation that holds the key
	Depth     int              // waiting events, besides a running one
	HeldUntil clock.Instant    // WaitRetry, and WaitGate, WaitHold and WaitPark if not zero: when the next attempt is due
	Delivery  event.DeliveryID // WaitHandler
	Worker    event.WorkerID   // WaitHandler, WaitSlot: the worker that the key sticks to
}

// WaitingVisit is a call or a reservation that waits for its turn.
type WaitingVisit struct {
	Method   string        // "": it is a reservation
	Accepted clock.Instant // when it came
	Deadline clock.Instant // until which it waits
	Via      Sender        // the node where it was asked for
	Callers  int           // callers that wait for the answer
}

// WaitingShownMax bounds the waiting calls and reservations of a key that Inspect lists.
const WaitingShownMax = 10

// Behind returns the number of events behind the event or the call that runs, or runs next.
func (k *KeyState) Behind() int {
	if k.Wait == WaitHandler || k.Call { // a call is not one of those that wait
		return k.Depth
	}
	return k.Depth - 1
}

// Inspect returns the state of a key. A key without events here has WaitNothing.
func (b *Boxes) Inspect(key event.Key) KeyState {
	a := b.actor(key, b.hashOfKey(key))
	if a == nil {
		p := b.part(ring.PartitionOf(string(key)))
		return KeyState{Partition: p.number, Gate: p.gate}
	}
	s := b.state(a)
	if s.Attempts > 0 {
		e := b.first(a).ref.Event()
		s.LastError = strings.Clone(e.HideIn(e.LastError))
	}
	if !a.visited {
		return s
	}
	for it := b.visits.of[a].head; it != nil && len(s.Waiting) < WaitingShownMax; it = it.next {
		call := it.ref.Event().Call
		s.Waiting = append(s.Waiting, WaitingVisit{strings.Clone(call.Method), it.cohort.at, call.Deadline, it.first.sender, 1 + len(it.joined())})
	}
	return s
}

// state returns the state of a key with events or calls here.
func (b *Boxes) state(a *actor) KeyState {
	it := b.first(a)
	s := KeyState{
		Partition: a.part.number, Gate: a.part.gate,
		Wait: a.wait, Since: a.since, Depth: int(a.depth), HeldUntil: a.heldUntil,
		Event: it.id, Attempts: it.attempts, Crashes: it.crashes, Accepted: it.cohort.at, Delivery: it.delivery,
	}
	if s.Call = it.visit; it.visit {
		call := it.ref.Event().Call
		s.Method, s.Deadline, s.Via, s.Fence = strings.Clone(call.Method), call.Deadline, it.first.sender, b.visits.state[it].fence
	}
	if a.visited {
		s.Calls = int(b.visits.of[a].depth)
	}
	if a.wait == WaitHandler || a.wait == WaitSlot {
		s.Worker = a.worker.id
	}
	return s
}

// PartState is the state of one partition.
type PartState struct {
	Gate    ownership.Gate
	Running int // running deliveries of any tenure
}

// Parts writes the states of the partitions of this shard into states.
func (b *Boxes) Parts(states *[ring.Partitions]PartState) {
	for i := range b.parts {
		p := &b.parts[i]
		states[p.number] = PartState{p.gate, p.running}
	}
}

// Counters count since the start.
type Counters struct {
	Accepted   uint64 // events taken in
	Joined     uint64 // senders that joined an event that was here
	Duplicates uint64 // events that had recently finished
	Unrun      uint64 // those of Duplicates that the broker delivered for the first time
	Mistaken   uint64 // events that came under the id of a different event
	Overloaded uint64 // events, or joins, without room
	NotOwner   uint64 // events refused because the partition is not ours
	NotYet     uint64 // events refused because this node's epoch is older than the sender's
	Misplaced  uint64 // events whose partition is not that of their key
	Moved      uint64 // accepted events that were sent back because the partition has moved
	Done       uint64 // deliveries that succeeded
	Failed     uint64 // deliveries that failed, with a long delay: the event left by way of the retry topic
	Retried    uint64 // deliveries that failed, with a short delay
	Crashed    uint64 // deliveries whose worker crashed, and that are tried again
	Rejected   uint64 // deliveries that failed for good
	Skipped    uint64 // events that an operator has skipped and that went to the dead letter topic, delivered or not
	Parked     uint64 // events that left for the parking topic, delivered or not
	Unpinned   uint64 // events that were copied out of their frame after a long wait
	Returned   uint64 // deliveries that ended without a failure of the application
	Ignored    uint64 // results of deliveries that were unknown or had ended
	Outlived   uint64 // deliveries that ended with an answer after their partition had moved away
	Cut        uint64 // deliveries that ended without a result: the next owner delivers their events again

	Calls    uint64 // accepted calls
	Answered uint64 // calls that were answered by their handlers
	Expired  uint64 // calls whose time was up before they could run
	Crowded  uint64 // calls and reservations that were refused because a bound was reached
	Recalled uint64 // calls that ran and were taken back, because their time was up or their caller gone

	SkippedDone uint64 // deliveries that an operator has skipped, and that succeeded
	Displaced   uint64 // ids of finished copies that were forgotten early, because a newer one needed room
}

// Stats is a snapshot of the current state, and the counters since the start.
type Stats struct {
	Counters
	Events    int           // waiting or running
	Visits    int           // calls and reservations, waiting or running
	VisitsRun int           // of these, the running ones
	Reserves  int           // reservations, waiting or held
	Reserved  int           // of these, the held ones
	Running   int           // running deliveries
	Keys      int           // with events here
	Ready     int           // keys that wait for room at their worker, or for the lease
	Held      int           // keys that wait for their next attempt
	OnHold    int           // keys with events here that wait until an operator releases them
	OnPark    int           // keys with events here that wait because of a park: mostly for their letters
	Bytes     int           // of all events
	WindowIDs int           // ids of recently finished events
	Oldest    clock.Instant // when the oldest event came in, clock.Forever when there is none
}

// addTo adds the stats of this shard to those of others, in constant time.
func (b *Boxes) addTo(s *Stats) {
	s.Counters = s.Counters.add(b.counters)
	s.Events += b.items.len()
	s.Visits += len(b.visits.state)
	s.VisitsRun += b.visits.running
	s.Reserves += b.visits.reserve
	s.Reserved += b.visits.granted
	s.Running += b.running
	s.Keys += b.actors.len()
	s.Ready += b.ready
	s.Held += len(b.retrying)
	s.OnHold += b.onHoldHere
	s.OnPark += b.onParkHere
	s.Bytes += b.bytes
	s.WindowIDs += b.window.n
	if b.ages.oldest != nil {
		s.Oldest = min(s.Oldest, b.ages.oldest.at)
	}
}

// add returns the sums of all fields.
func (c Counters) add(d Counters) Counters {
	sums, more := reflect.ValueOf(&c).Elem(), reflect.ValueOf(d)
	for i := range sums.NumField() {
		sums.Field(i).SetUint(sums.Field(i).Uint() + more.Field(i).Uint())
	}
	return c
}
