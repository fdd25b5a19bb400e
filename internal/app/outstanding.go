package app

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Outstanding tracks the deliveries of one worker: which it was given, until when it may work on
// them, and which are over. It is a pure machine, not safe for concurrent use.
//
// A delivery goes through these states; each arrow names the method that moves it:
//
//	      Give            Frame            Answer
//	taken ────▶ unsent ──────────▶ sent ──────────▶ gone
//	  │           │ Revoke, Drain,   │ Expire ▶ over ▶ gone (Answer)
//	  └───────────┴─ Break ▶ gone    └────────────────────────
//
// The methods append results to dst and return it. The caller hands these results to the mailboxes at once.
//
// A delivery has two names: the mailboxes' id, and the number of its slot, which frames, answers and Pongs carry. The worker
// never sees the former, the mailboxes never see the latter.
type Outstanding struct {
	limit int

	unsent  []event.Delivery   // given, in no frame yet, from index spent on
	spent   int                // those before it went into frames
	sent    slots              // in a frame
	revoked []event.DeliveryID // names of sent and revoked deliveries; some may be over
	until   clock.Instant      // the lease behind the newest Pong: bounds every delivery that is not revoked

	// Between StartTake and Give, what was taken back since StartTake: Give returns such deliveries to their mailboxes.
	taking bool
	missed map[ring.Partition]struct{} // revoked partitions
	all    bool                        // everything was revoked
	back   []event.DeliveryID          // single deliveries, by the mailboxes' names

	asks    bool             // workers are asked when their handlers ran
	sending time.Duration    // CLOCK_BOOTTIME before the frame that is being made, if asks
	handled []event.Handling // what the newest Answer reports, if asks

	draining bool // the worker takes no more, see Drain
	broken   bool // its stream has ended
	crashed  bool // broken, and the worker had not asked for the end
	stats    OutstandingStats
}

// OutstandingStats counts the unusable inputs of an Outstanding.
type OutstandingStats struct {
	Unknown  int // results for unknown deliveries: never given, or answered before
	Late     int // results for deliveries that were over
	Revoked  int // deliveries that were taken back: their partition moved, or an operator skips their event
	TimedOut int // deliveries that were taken back because they took too long
}

// NewOutstanding tracks a worker that holds at most limit unanswered deliveries.
func NewOutstanding(limit int) *Outstanding {
	return &Outstanding{limit: limit, missed: make(map[ring.Partition]struct{})}
}

// Len returns how many deliveries have no answer.
func (d *Outstanding) Len() int { return d.sent.len() + len(d.unsent) - d.spent }

// Stats returns the counters and sets them to zero.
func (d *Outstanding) Stats() OutstandingStats {
	s := d.stats
	d.stats = OutstandingStats{}
	return s
}

// StartTake returns the number of deliveries that the worker may get now, and unless that is 0,
// records revocations until they are given with Give: taking them from the mailboxes happens
// without the session's lock.
func (d *Outstanding) StartTake() int {
	room := d.limit - d.Len()
	if d.broken || d.draining || room <= 0 {
		return 0
	}
	d.taking = true
	return room
}

// Give adds the deliveries taken since StartTake. Those revoked meanwhile return to their
// mailbox.
func (d *Outstanding) Give(taken []event.Delivery, dst []event.Result) []event.Result {
	if len(d.missed)+len(d.back) == 0 && !d.all && !d.broken && !d.draining { // nearly always
		d.unsent = append(d.unsent, taken...)
		d.taking = false
		return dst
	}
	for i := range taken {
		t := &taken[i]
		if _, missed := d.missed[t.Partition]; missed || d.all || d.broken || d.draining || slices.Contains(d.back, t.ID) {
			dst = append(dst, notStarted(t.ID))
			continue
		}
		d.unsent = append(d.unsent, *t)
	}
	d.taking, d.all = false, false
	clear(d.missed)
	d.back = d.back[:0]
	return dst
}

// Unsent reports whether deliveries wait for a frame.
func (d *Outstanding) Unsent() bool { return d.spent < len(d.unsent) }

// Frame appends the deliveries of the next frame to dst, under the names by which the worker will know them. It stops
// at eventsMax deliveries, and at bytesMax bytes unless a single event is larger. An event larger than eventMax is never sent:
// it is rejected. From now on the worker may start the deliveries in dst.
func (d *Outstanding) Frame(eventsMax, bytesMax, eventMax int, dst []event.Delivery, rejected []event.Result) ([]event.Delivery, []event.Result) {
	sum := 0
	for d.Unsent() && len(dst) < eventsMax {
		next := d.unsent[d.spent:]
		next = next[:min(len(next), eventsMax-len(dst))]
		for i := range next {
			size := int(next[i].Size)
			if size > eventMax && size-errorBytes(&next[i]) > eventMax {
				rejected = append(rejected, tooLarge(&next[i], eventMax))
				continue
			}
			if len(dst) > 0 && sum+size > bytesMax {
				d.spend(i)
				return dst, rejected
			}
			sum += size
			s := d.sent.take(next[i].ID, next[i].Partition)
			if d.asks {
				s.key, s.fence, s.sent = next[i].Key, next[i].Fence(), d.sending
			}
			dst = append(dst, next[i])
			dst[len(dst)-1].ID = s.name
		}
		d.spend(len(next))
	}
	return dst, rejected
}

// Handled returns the handlings that the newest Answer was about, those of late results too. They are the caller's until the next
// Answer.
func (d *Outstanding) Handled() []event.Handling { return d.handled }

// spend drops the first n unsent deliveries.
func (d *Outstanding) spend(n int) {
	clear(d.unsent[d.spent : d.spent+n])
	d.spent += n
	if !d.Unsent() {
		d.unsent, d.spent = d.unsent[:0], 0
	}
}

// Answer takes results of the worker and appends those that end a delivery, under
// the id that the mailboxes know. An answer counts on a broken stream too, if it had been sent before.
// dst may be the beginning of results, which are then overwritten.
func (d *Outstanding) Answer(results []event.Result, dst []event.Result) []event.Result {
	d.handled = d.handled[:0]
	for i := range results {
		s := d.sent.of(results[i].Delivery)
		if s == nil {
			d.stats.Unknown++
			continue
		}
		d.sent.release(s)
		if ran := &results[i].Ran; d.asks && *ran != (event.Interval{}) {
			d.handled = append(d.handled, event.Handling{
				Key: s.key, Partition: s.partition, Fence: s.fence, Start: ran.Start, End: ran.Start + ran.Length, Sent: s.sent,
			})
		}
		if s.over {
			d.stats.Late++
			continue
		}
		dst = append(dst, results[i])
		r := &dst[len(dst)-1] // written in place: copying a just written value would stall
		r.Delivery = s.id
		if r.Kind == event.ResultCancelled && s.timedOut {
			*r = tooSlow(s.id)
		}
	}
	return dst
}

// Progress restarts the time limit of running deliveries.
func (d *Outstanding) Progress(names []uint64) {
	for _, name := range names {
		if s := d.sent.of(event.DeliveryID(name)); s != nil {
			s.looks = 0
		}
	}
}

// TimeOut checks all deliveries of the worker, and takes back for good those that it has
// checked more than most times without an answer or Progress. It appends their names to dst:
// the worker must be told, before any later Pong. Their deadlines no longer move; one that is
// not answered by its deadline, or whose stream breaks, counts as failed. Revoked deliveries
// already have another bound.
//
// It counts checks, not time, so that no worker is blamed for a pause of this process.
func (d *Outstanding) TimeOut(most uint8, dst []uint64) []uint64 {
	if d.broken {
		return dst
	}
	for s := range d.sent.all() {
		if s.revoked || s.over {
			continue
		}
		if s.looks++; s.looks > most {
			s.revoked, s.forced, s.timedOut, s.until = true, true, true, d.until
			d.stats.TimedOut++
			dst = append(dst, uint64(s.name))
		}
	}
	return dst
}

// Pong answers a Ping: how long the worker may continue with every delivery that is not revoked,
// and, appended to dst, the revoked ones with which it may continue too. margin is δ. Zero or
// less moves no deadline.
//
// The Pong must go out after every Revoke that was marked before this call, and
// lease must have been read together with it: a lease that is newer than a
// deposition may only move deliveries that survived it.
func (d *Outstanding) Pong(now clock.Instant, lease ownership.Lease, margin time.Duration, dst []uint64) (remaining time.Duration, draining []uint64) {
	remaining = lease.Until.Sub(now) - margin
	if remaining <= 0 {
		return 0, dst
	}
	// Under this Pong a worker may start waiting deliveries, so until counts for all, even if
	// the previous one has passed.
	d.until = max(d.until, lease.Until)
	kept := d.revoked[:0]
	for _, name := range d.revoked {
		s := d.sent.of(name)
		if s == nil || s.over || s.forced {
			continue // Expire finds the forced by their slots
		}
		kept = append(kept, name)
		if !lease.Draining.Has(s.partition) || !now.Before(s.until) {
			continue // a deadline that has passed is never extended
		}
		s.until = max(s.until, lease.Until)
		dst = append(dst, uint64(name))
	}
	d.revoked = kept
	return remaining, dst
}

// Revoke takes the partitions back, and reports whether the worker must be told. Unsent
// deliveries return to their mailbox; the deadlines of the rest no longer move, except for
// those that later Pongs list. With final none is ever listed.
func (d *Outstanding) Revoke(partitions ownership.Set, final bool, dst []event.Result) (tell bool, _ []event.Result) {
	if d.taking {
		for p := range partitions.All() {
			d.missed[p] = struct{}{}
		}
	}
	return d.takeBack(partitions.Has, final, dst)
}

// RevokeAll takes everything back for good: a Genesis, or LOST.
func (d *Outstanding) RevokeAll(dst []event.Result) (tell bool, _ []event.Result) {
	d.all = d.taking
	return d.takeBack(everywhere, true, dst)
}

// takeBack revokes the sent deliveries on partitions in hit, and returns the unsent ones. tell says that the worker must be
// told.
func (d *Outstanding) takeBack(hit func(ring.Partition) bool, final bool, dst []event.Result) (tell bool, _ []event.Result) {
	for s := range d.sent.all() {
		if s.over || !hit(s.partition) {
			continue
		}
		if !s.revoked {
			s.revoked, s.until = true, d.until
			d.revoked = append(d.revoked, s.name)
			d.stats.Revoked++
			tell = true
		}
		s.forced = s.forced || final
	}
	return tell, d.withdraw(func(u *event.Delivery) bool { return hit(u.Partition) }, dst)
}

// TakeBack takes single deliveries back for good, by the mailboxes' names; unknown ones are ignored. Unsent ones return to their mailbox.
// The names of the others are appended to told: the worker must be told, before any later Pong. Their deadlines no longer move,
// and one that is not answered by its deadline is over, lost.
func (d *Outstanding) TakeBack(ids []event.DeliveryID, told []uint64, dst []event.Result) ([]uint64, []event.Result) {
	if d.taking {
		d.back = append(d.back, ids...)
	}
	for s := range d.sent.all() {
		if s.over || s.timedOut || !slices.Contains(ids, s.id) {
			continue
		}
		if !s.revoked {
			s.revoked, s.until = true, d.until
			d.stats.Revoked++
		}
		s.forced = true
		told = append(told, uint64(s.name))
	}
	return told, d.withdraw(func(u *event.Delivery) bool { return slices.Contains(ids, u.ID) }, dst)
}

// withdraw returns those of the unsent deliveries that are in hit to their mailboxes.
func (d *Outstanding) withdraw(hit func(*event.Delivery) bool, dst []event.Result) []event.Result {
	kept := d.unsent[:0]
	for i := d.spent; i < len(d.unsent); i++ {
		if u := &d.unsent[i]; !hit(u) {
			kept = append(kept, *u)
		} else {
			dst = append(dst, notStarted(u.ID))
		}
	}
	clear(d.unsent[len(kept):])
	d.unsent, d.spent = kept, 0
	return dst
}

// Force makes the deadlines of revoked deliveries of these partitions final: when they have passed, the deliveries
// are over.
func (d *Outstanding) Force(partitions ownership.Set) {
	for s := range d.sent.all() {
		if s.revoked && !s.over && partitions.Has(s.partition) {
			s.forced = true
		}
	}
}

// Drain stops giving for good, at the worker's request. Unsent deliveries return.
func (d *Outstanding) Drain(dst []event.Result) []event.Result {
	d.draining = true
	return d.withdraw(everything, dst)
}

// Break records the end of the stream. The worker's deliveries may still run: each is over when
// its last deadline has passed, or if it was answered before the end.
func (d *Outstanding) Break(dst []event.Result) []event.Result {
	d.broken = true
	return d.withdraw(everything, dst)
}

// Crash is Break for a stream that ended unintentionally. Deliveries that end without an answer
// may have killed the worker.
func (d *Outstanding) Crash(dst []event.Result) []event.Result {
	d.crashed = true
	return d.Break(dst)
}

func everything(*event.Delivery) bool { return true }

// Expire appends a result for each delivery that is over without an answer. On a
// whole stream these are the forced ones only: others may be answered, however late.
func (d *Outstanding) Expire(now clock.Instant, dst []event.Result) []event.Result {
	if !d.broken && d.Next().After(now) {
		return dst
	}
	for s := range d.sent.all() {
		if d.expires(s) && !d.end(s).After(now) {
			s.over = true
			dst = append(dst, d.unanswered(s))
		}
		if s.over && d.broken {
			d.sent.release(s) // no answer can come
		}
	}
	return dst
}

// unanswered is the result of a delivery that is over without an answer.
func (d *Outstanding) unanswered(s *slot) event.Result {
	switch {
	case s.timedOut:
		return tooSlow(s.id)
	case d.crashed:
		return event.Result{Delivery: s.id, Kind: event.ResultCrashed}
	}
	return event.Result{Delivery: s.id, Kind: event.ResultLost}
}

// expires reports whether s is over when its deadline has passed.
func (d *Outstanding) expires(s *slot) bool { return !s.over && (d.broken || s.forced) }

// end returns the instant after which no handler of s runs.
func (d *Outstanding) end(s *slot) clock.Instant {
	if s.revoked {
		return s.until
	}
	return d.until
}

// Next returns when Expire should be called next, [clock.Forever] when it need not be.
func (d *Outstanding) Next() clock.Instant {
	next := clock.Forever
	for s := range d.sent.all() {
		if d.expires(s) {
			next = min(next, d.end(s))
		}
	}
	return next
}

func notStarted(id event.DeliveryID) event.Result {
	return event.Result{Delivery: id, Kind: event.ResultNotStarted}
}

func tooSlow(id event.DeliveryID) event.Result {
	return event.Result{Delivery: id, Kind: event.ResultRetry, TimedOut: true, Reason: "the handler took longer than its timeout"}
}

// errorBytes is the part of a delivery's size that no frame carries: the texts of earlier failures. If they counted,
// an event that just fits would be rejected at its second attempt.
func errorBytes(d *event.Delivery) int {
	ev := d.Event()
	return len(ev.FirstError) + len(ev.LastError)
}

func tooLarge(d *event.Delivery, limit int) event.Result {
	r := event.Result{
		Delivery: d.ID, Kind: event.ResultReject,
		Reason: fmt.Sprintf("event of %d bytes, the application's stream takes %d", int(d.Size)-errorBytes(d), limit),
	}
	if d.Call() != nil {
		r.Kind, r.Reply = event.ResultNotStarted, &event.CallReply{Code: event.CodeTooLarge}
	}
	return r
}
