package app

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Desk is the book of one worker: what it was given, until when it may work on it,
// and what is over. It is a pure machine, not safe for concurrent use.
//
// A delivery goes through these states; each arrow says who moves it:
//
//	      Give            Frame            Answer
//	taken ────▶ unsent ──────────▶ sent ──────────▶ gone
//	  │           │ Revoke, Drain,   │ Expire ▶ over ▶ gone (Answer)
//	  └───────────┴─ Break ▶ gone    └────────────────────────
//
// Results that are appended to a dst belong into the mailboxes at once.
type Desk struct {
	limit int

	slots   map[event.DeliveryID]slot
	unsent  []event.Delivery            // given, in no frame yet; a prefix of it is spent
	spent   int                         // of unsent
	revoked []event.DeliveryID          // sent and taken back; may name some that are gone
	until   clock.Instant               // the lease behind the newest Pong: bounds every delivery that is not revoked
	taking  bool                        // between StartTake and Give
	missed  map[ring.Partition]struct{} // revoked meanwhile
	all     bool                        // everything was revoked meanwhile

	draining, suspended, broken bool
	stats                       DeskStats
}

// DeskStats counts what a Desk was told and could not use.
type DeskStats struct {
	Unknown int // results for deliveries that are not on the desk: never given, or answered before
	Late    int // results for deliveries that were over
	Revoked int // deliveries that were taken back
}

// slot is one delivery that has no answer yet.
type slot struct {
	partition ring.Partition
	sent      bool
	revoked   bool          // its deadline moves only by Pong.draining
	forced    bool          // revoked, and its deadline moves no more
	over      bool          // the mailbox knows it as lost; kept until the worker answers, since it fills a place there
	until     clock.Instant // revoked: the lease behind the last Pong that could move it
}

// NewDesk returns the desk of a worker that holds at most limit unanswered deliveries.
func NewDesk(limit int) *Desk {
	return &Desk{limit: limit, slots: make(map[event.DeliveryID]slot), missed: make(map[ring.Partition]struct{})}
}

// Len returns how many deliveries have no answer.
func (d *Desk) Len() int { return len(d.slots) }

// Stats returns the counters and sets them to zero.
func (d *Desk) Stats() DeskStats {
	s := d.stats
	d.stats = DeskStats{}
	return s
}

// StartTake returns how many deliveries the worker may be given now, and unless
// that is 0, keeps note of what is revoked until they are given with Give: taking
// them from the mailboxes happens without the session's lock.
func (d *Desk) StartTake() int {
	if d.broken || d.draining || d.suspended || len(d.slots) >= d.limit {
		return 0
	}
	d.taking = true
	return d.limit - len(d.slots)
}

// Give puts what was taken since StartTake on the desk. What was revoked meanwhile
// goes back to its mailbox.
func (d *Desk) Give(taken []event.Delivery, dst []event.Result) []event.Result {
	for _, t := range taken {
		if _, missed := d.missed[t.Partition]; missed || d.all || d.broken || d.draining {
			dst = append(dst, notStarted(t.ID))
			continue
		}
		d.slots[t.ID] = slot{partition: t.Partition}
		d.unsent = append(d.unsent, t)
	}
	d.taking, d.all = false, false
	clear(d.missed)
	return dst
}

// Unsent reports whether deliveries wait for a frame.
func (d *Desk) Unsent() bool { return d.spent < len(d.unsent) }

// Frame appends the deliveries of the next frame to dst: at most events of them,
// and at most bytes, unless a single event is larger. An event larger than
// eventMax never goes out: it is rejected. From here on the worker may start them.
func (d *Desk) Frame(events, bytes, eventMax int, dst []event.Delivery, rejected []event.Result) ([]event.Delivery, []event.Result) {
	sum := 0
	for d.Unsent() && len(dst) < events {
		next := d.unsent[d.spent]
		size := next.Event.Bytes()
		if size > eventMax {
			rejected = append(rejected, tooLarge(next.ID, size, eventMax))
			delete(d.slots, next.ID)
			d.spend()
			continue
		}
		if len(dst) > 0 && sum+size > bytes {
			break
		}
		sum += size
		dst = append(dst, next)
		d.slots[next.ID] = slot{partition: next.Partition, sent: true}
		d.spend()
	}
	return dst, rejected
}

// spend drops the first unsent delivery.
func (d *Desk) spend() {
	d.unsent[d.spent] = event.Delivery{}
	d.spent++
	if !d.Unsent() {
		d.unsent, d.spent = d.unsent[:0], 0
	}
}

// Answer takes results of the worker and appends those that end a delivery. An
// answer counts on a broken stream too, if it had been sent before.
func (d *Desk) Answer(results []event.Result, dst []event.Result) []event.Result {
	for _, r := range results {
		s, ok := d.slots[r.Delivery]
		if !ok || !s.sent {
			d.stats.Unknown++
			continue
		}
		delete(d.slots, r.Delivery)
		if s.over {
			d.stats.Late++
			continue
		}
		dst = append(dst, r)
	}
	return dst
}

// Pong answers a Ping: how long the worker may go on with every delivery that is
// not revoked, and, appended to dst, which revoked ones may go on too. margin is δ.
// Zero or less moves no deadline.
//
// The Pong must go out after every Revoke that was marked before this call, and
// lease must have been read together with it: a lease that is newer than a
// deposition may only move deliveries that survived it.
func (d *Desk) Pong(now clock.Instant, lease ownership.Lease, margin time.Duration, dst []uint64) (remaining time.Duration, draining []uint64) {
	remaining = lease.Until.Sub(now) - margin
	if remaining <= 0 {
		return 0, dst
	}
	// A worker may start under this Pong what waited for it, so until counts for all,
	// also if the one before has passed.
	d.until = max(d.until, lease.Until)
	kept := d.revoked[:0]
	for _, id := range d.revoked {
		s, ok := d.slots[id]
		if !ok || s.over || s.forced {
			continue // Expire finds the forced by their slots
		}
		kept = append(kept, id)
		if !lease.Draining.Has(s.partition) || !now.Before(s.until) {
			continue // a deadline that has passed is never extended
		}
		s.until = max(s.until, lease.Until)
		d.slots[id] = s
		dst = append(dst, uint64(id))
	}
	d.revoked = kept
	return remaining, dst
}

// Revoke takes the partitions back, and reports whether the worker must be told.
// What has not gone out goes back to its mailbox; the deadlines of the rest stay
// where they are, but for those that later Pongs list. With final none ever is.
func (d *Desk) Revoke(partitions ownership.Set, final bool, dst []event.Result) (tell bool, _ []event.Result) {
	if d.taking {
		for p := range partitions.All() {
			d.missed[p] = struct{}{}
		}
	}
	return d.takeBack(partitions.Has, final, dst)
}

// RevokeAll takes everything back for good: a Genesis, or LOST.
func (d *Desk) RevokeAll(dst []event.Result) (tell bool, _ []event.Result) {
	d.all = d.taking
	return d.takeBack(func(ring.Partition) bool { return true }, true, dst)
}

func (d *Desk) takeBack(hit func(ring.Partition) bool, final bool, dst []event.Result) (tell bool, _ []event.Result) {
	for _, id := range d.ids() {
		s := d.slots[id]
		if !s.sent || s.over || !hit(s.partition) {
			continue
		}
		if !s.revoked {
			s.revoked, s.until = true, d.until
			d.revoked = append(d.revoked, id)
			d.stats.Revoked++
			tell = true
		}
		s.forced = s.forced || final
		d.slots[id] = s
	}
	return tell, d.withdraw(hit, dst)
}

// withdraw gives back what has not gone out.
func (d *Desk) withdraw(hit func(ring.Partition) bool, dst []event.Result) []event.Result {
	kept := d.unsent[:0]
	for _, u := range d.unsent[d.spent:] {
		if !hit(u.Partition) {
			kept = append(kept, u)
			continue
		}
		delete(d.slots, u.ID)
		dst = append(dst, notStarted(u.ID))
	}
	clear(d.unsent[len(kept):])
	d.unsent, d.spent = kept, 0
	return dst
}

// Force ends the patience with revoked deliveries of these partitions: their
// deadlines move no more, and when they have passed the deliveries are over.
func (d *Desk) Force(partitions ownership.Set) {
	for id, s := range d.slots {
		if s.revoked && !s.over && partitions.Has(s.partition) {
			s.forced = true
			d.slots[id] = s
		}
	}
}

// Suspend stops giving until Resume.
func (d *Desk) Suspend() { d.suspended = true }

// Resume ends a Suspend.
func (d *Desk) Resume() { d.suspended = false }

// Drain stops giving for good, as the worker asked. What has not gone out goes back.
func (d *Desk) Drain(dst []event.Result) []event.Result {
	d.draining = true
	return d.withdraw(everything, dst)
}

// Break says that the stream has ended. What the worker was given may still run:
// it is over when its last deadline has passed, or was answered before the end.
func (d *Desk) Break(dst []event.Result) []event.Result {
	d.broken = true
	return d.withdraw(everything, dst)
}

// ids returns the deliveries on the desk in the order of their ids: what comes out
// of a machine never depends on the order of a map.
func (d *Desk) ids() []event.DeliveryID { return slices.Sorted(maps.Keys(d.slots)) }

func everything(ring.Partition) bool { return true }

// Expire appends a result for each delivery that is over without an answer. On a
// whole stream these are the forced ones only: others may be answered, however late.
func (d *Desk) Expire(now clock.Instant, dst []event.Result) []event.Result {
	if !d.broken && d.Next().After(now) {
		return dst
	}
	for _, id := range d.ids() {
		s := d.slots[id]
		if d.broken && s.over {
			delete(d.slots, id) // nobody will answer it
			continue
		}
		if !d.expires(s) || d.end(s).After(now) {
			continue
		}
		dst = append(dst, event.Result{Delivery: id, Kind: event.ResultLost})
		if s.over = true; d.broken {
			delete(d.slots, id)
			continue
		}
		d.slots[id] = s
	}
	return dst
}

// expires reports whether s is over when its deadline has passed.
func (d *Desk) expires(s slot) bool { return s.sent && !s.over && (d.broken || s.forced) }

// end returns the instant at which no handler of s runs any more.
func (d *Desk) end(s slot) clock.Instant {
	if s.revoked {
		return s.until
	}
	return d.until
}

// Next returns when Expire should be called next, [clock.Forever] when it need not be.
func (d *Desk) Next() clock.Instant {
	next := clock.Forever
	for _, s := range d.slots {
		if d.expires(s) {
			next = min(next, d.end(s))
		}
	}
	return next
}

func notStarted(id event.DeliveryID) event.Result {
	return event.Result{Delivery: id, Kind: event.ResultNotStarted}
}

func tooLarge(id event.DeliveryID, size, limit int) event.Result {
	return event.Result{Delivery: id, Kind: event.ResultReject, Reason: fmt.Sprintf("event of %d bytes, the application's stream takes %d", size, limit)}
}
