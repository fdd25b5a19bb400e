package app

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// ReservationsMax bounds the reservations of keys that one member owns, including those of returned holders. Further ones wait.
const ReservationsMax = 1024

// reservationMax is the time that a reservation may last at one owner. After it the owner no longer renews it.
const reservationMax = time.Hour

// reservations holds the deliveries to holders, which are callers, not workers of the application. Each is an [Outstanding] of one
// delivery in the state of a broken stream: it is over when the lease behind its last renewal has passed, or when its holder releases it.
//
// A reservation with a ttl is covered as soon as the control log has recorded it
// ([Server.Covered]). From then on its end does not depend on a lease: each renewal promises
// the ttl, and the reservation is over when its holder has been silent for as long as the
// last promise may last. Before the first renewal, that is as long as without a ttl. A
// revocation ends the reservation here at once, while its holder continues.
type reservations struct {
	awake chan struct{} // of capacity one: there may be reservations to take

	mu   sync.Mutex
	held map[event.DeliveryID]*reservation
	next *reservation // the one that is just being taken out of the mailboxes; nil: none

	tell    []ownership.Input // Covers and Drops for the ownership machine, in the order in which turns begin and end
	telling bool              // a goroutine is sending tell
}

type reservation struct {
	*Outstanding
	name    event.DeliveryID // of its delivery, in the Outstanding
	id      event.DeliveryID // of its delivery, in the mailboxes
	granted clock.Instant
	taken   ownership.Take // TTL is zero for a reservation without a ttl
	resumed bool           // TTL is not zero, and a former owner may have promised it

	covered bool
	renewed bool          // covered: the ttl was promised
	answers clock.Instant // covered: the instant until which the ttl may be promised
	over    clock.Instant // covered: the instant of its end if the holder is silent
	refused string        // the reason why it will not be covered, in which case it is not renewed
}

// all returns the reservations, in the order of their deliveries. The lock is held.
func (r *reservations) all() []*reservation {
	all := make([]*reservation, 0, len(r.held)+1)
	for _, id := range slices.Sorted(maps.Keys(r.held)) {
		all = append(all, r.held[id])
	}
	if r.next != nil {
		all = append(all, r.next)
	}
	return all
}

// TakeReservations takes reservations out of the mailboxes, as long as there are some and room for them. Run does this by itself; do not
// call it beside Run.
func (s *Server) TakeReservations() {
	for s.takeReservation() {
	}
}

func (s *Server) takeReservation() (more bool) {
	r := &s.reservations
	next := &reservation{Outstanding: NewOutstanding(1)}
	r.mu.Lock()
	room := len(r.held) < ReservationsMax
	if room {
		next.StartTake() // from here on revocations reach it
		r.next = next
	}
	r.mu.Unlock()
	if !room {
		return false
	}
	taken := s.Boxes.Take(event.Keeper, 1, nil)

	r.mu.Lock()
	r.next = nil
	back := next.Give(taken, nil)
	var grant event.Grant
	var id event.DeliveryID
	if next.Unsent() {
		const anySize = 1 << 30 // its holder gets no payload
		sent, _ := next.Frame(1, anySize, anySize, nil, nil)
		id, next.name, next.granted = taken[0].ID, sent[0].ID, s.Now()
		next.id, next.taken = id, takenBy(&taken[0])
		next.resumed = next.taken.TTL > 0 && taken[0].Call().Resume
		back = next.Break(back) // returns nothing, since it was sent
		grant = event.Grant{Fence: taken[0].Fence(), Remaining: next.renew(s).Remaining}
		r.held[id] = next
		if next.taken.TTL > 0 && s.Cover != nil { // before it can end and its Drop is sent
			r.tell = append(r.tell, ownership.Cover{Take: next.taken, Turn: uint64(id)})
		}
		s.noteReservations()
	}
	r.mu.Unlock()
	s.finish(back)
	if id != 0 {
		s.Boxes.Grant(id, grant)
		s.tellOwnership()
		s.notify() // it ends at some instant
	}
	return len(taken) > 0
}

// takenBy returns the entry of a reservation for the control log.
func takenBy(d *event.Delivery) (t ownership.Take) {
	if call := d.Call(); call != nil && call.TTL > 0 {
		t = ownership.Take{KeyAt: ownership.KeyAt{Partition: d.Partition, Key: d.Key}, TTL: call.TTL, ID: ownership.ReservationOf(d.MessageID())}
	}
	return t
}

// tellOwnership tells the ownership machine which turns to cover and which have ended. The lock of the reservations is not held.
func (s *Server) tellOwnership() {
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.telling {
		return
	}
	for r.telling = true; len(r.tell) > 0; {
		all := r.tell
		r.tell = nil
		r.mu.Unlock()
		for _, in := range all {
			s.Cover(in)
		}
		r.mu.Lock()
	}
	r.telling = false
}

// drop notes for the ownership machine that a turn is over. The lock of the reservations is held, and the key is not
// free yet: the Cover of its next turn comes later. It does not matter whether the machine or the mailboxes learn of the
// end first, since the holder has stopped.
func (s *Server) drop(ended *reservation, released bool) {
	if ended.taken.TTL > 0 && s.Cover != nil {
		r := &s.reservations
		r.tell = append(r.tell, ownership.Drop{KeyAt: ended.taken.KeyAt, ID: ended.taken.ID, Turn: uint64(ended.id), Released: released})
	}
}

// Covered takes the ownership machine's answer: the instant until which the holder of a turn may be promised its ttl,
// or the reason why it will not be. An ended turn is ignored. After a Revoke it must not be called with an answer from
// before that deposition.
func (s *Server) Covered(c ownership.Covered) {
	r := &s.reservations
	r.mu.Lock()
	held := r.held[event.DeliveryID(c.Turn)]
	switch {
	case held == nil || held.taken.KeyAt != c.KeyAt:
	case c.Refused != "":
		held.refused = c.Refused
		s.Metrics.covers.WithLabelValues("refused").Inc()
	case c.Until == 0:
		held.answers = 0
	case !held.covered && !s.Now().Before(held.Next()):
		// Its permission has passed, and it is about to end.
	default:
		if !held.covered {
			// So far this turn has only the promise of a lease, so a holder that died while it waited blocks its key
			// no longer than that. The promises of former owners are kept by the ownership machine.
			held.covered, held.over = true, held.Next()
			s.Metrics.covers.WithLabelValues("covered").Inc()
		}
		held.answers = c.Until
	}
	s.noteReservations()
	r.mu.Unlock()
	s.notify()
}

// noteReservations updates the gauges. The lock is held.
func (s *Server) noteReservations() {
	covered := 0
	for _, held := range s.reservations.held {
		if held.covered {
			covered++
		}
	}
	s.Metrics.reservations.Set(float64(len(s.reservations.held)))
	s.Metrics.covered.Set(float64(covered))
}

// finish appends the result of a reservation that ends now.
func (r *reservation) finish(kind event.ResultKind, dst []event.Result) []event.Result {
	return append(dst, r.Answer([]event.Result{{Delivery: r.name, Kind: kind}}, nil)...)
}

// renew returns the time that the holder may continue from now, by its own clock, if that can be promised. A zero
// permission may be temporary; one with nothing but Covered set is final. The lock of the reservations is held, under
// which Revoke marks: a lease that is newer than a deposition moves only deadlines that survived it.
func (r *reservation) renew(s *Server) event.Permission {
	now := s.Now()
	switch {
	case r.refused != "":
		return event.Permission{}
	case now.Sub(r.granted) > reservationMax:
		return event.Permission{Covered: r.covered}
	case r.covered:
		return r.promise(now, s.Lease(), s.cfg.DeadlineMargin)
	}
	remaining, draining := r.Pong(now, s.Lease(), s.cfg.DeadlineMargin, nil)
	if slot := r.sent.of(r.name); slot == nil || slot.over || slot.revoked && !slices.Contains(draining, uint64(r.name)) {
		return event.Permission{}
	}
	return event.Permission{Remaining: onWorkersClock(remaining, true)}
}

// promise is renew for a covered reservation: the gate of its key is open, since a revocation would have ended it here. The margin is for the
// holder to notice that its time is up, as that of a lease is: owners wait for no longer than the ttl, by any clock.
func (r *reservation) promise(now clock.Instant, lease ownership.Lease, margin time.Duration) event.Permission {
	if !now.Before(lease.Until) || !now.Before(r.answers) {
		return event.Permission{}
	}
	r.over, r.renewed = max(r.over, now.Add(ownership.WaitFor(r.taken.TTL))), true
	return event.Permission{Remaining: r.taken.TTL - margin, Covered: true}
}

// Reserved returns the time that the holder of a reservation may still continue without a renewal. ok is false if the
// delivery is not a held reservation.
func (s *Server) Reserved(id event.DeliveryID) (left time.Duration, ok bool) {
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.held[id]
	if held == nil {
		return 0, false
	}
	return max(0, held.end().Sub(s.Now())), true
}

// end returns the instant at which a reservation is over if its holder is silent.
func (r *reservation) end() clock.Instant {
	if r.covered {
		return r.over
	}
	return r.Next()
}

// Renew returns the times that the holders of reservations may continue, from now: zero for reservations that are over or
// cannot be extended. Ids are those of
// deliveries; answers are in their order.
func (s *Server) Renew(ids []event.DeliveryID) []event.Permission {
	permissions := make([]event.Permission, len(ids))
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, id := range ids {
		if held := r.held[id]; held != nil {
			permissions[i] = held.renew(s)
		}
	}
	return permissions
}

// release ends reservations that their holders have released, and returns the ids of all other deliveries.
func (s *Server) release(ids []event.DeliveryID) (others []event.DeliveryID) {
	r := &s.reservations
	var results []event.Result
	r.mu.Lock()
	for _, id := range ids {
		held := r.held[id]
		if held == nil {
			others = append(others, id)
			continue
		}
		results = held.finish(event.ResultDone, results)
		delete(r.held, id)
		s.drop(held, true)
	}
	if r.next != nil {
		_, results = r.next.TakeBack(others, nil, results) // the reservation that is being taken may be among them
	}
	s.noteReservations()
	r.mu.Unlock()
	s.finish(results)
	s.tellOwnership()
	if len(results) > 0 {
		signal.Set(r.awake) // there is room
	}
	return others
}

// revokeReservations runs take, which takes deliveries back, for each reservation that is not covered. Covered ones on partitions in hit end
// here, and nothing waits for them.
func (s *Server) revokeReservations(hit func(ring.Partition) bool, take func(*Outstanding) []event.Result) {
	r := &s.reservations
	var back []event.Result
	r.mu.Lock()
	for _, held := range r.all() {
		switch {
		case !held.covered:
			back = append(back, take(held.Outstanding)...)
		case hit(held.taken.Partition):
			back = held.finish(event.ResultHandedOver, back)
			delete(r.held, held.id)
			s.Metrics.covers.WithLabelValues("handed_over").Inc()
		}
	}
	s.noteReservations()
	r.mu.Unlock()
	s.finish(back)
}

// expire appends a result if the reservation is over, without a release.
func (r *reservation) expire(now clock.Instant, dst []event.Result) []event.Result {
	before := len(dst)
	if r.covered && !r.over.After(now) {
		dst = r.finish(event.ResultLost, dst)
	} else if !r.covered {
		dst = r.Expire(now, dst)
	}
	switch {
	case len(dst) == before:
	case r.mayComeBack():
		dst[before].Kind = event.ResultHandedOver
	case r.refused != "":
		dst[before].Reason, dst[before].Reply = r.refused, &event.CallReply{Code: event.CodeNotCovered}
	}
	return dst
}

// mayComeBack reports whether the holder may rely on the promise of a former owner, which lasts longer than the promise
// made here: its key waits for it, and it must not get the answer that the key is lost.
func (r *reservation) mayComeBack() bool {
	return r.resumed && !r.renewed && (r.refused == "" || r.refused == ownership.RefusedMoving)
}

// expireReservations finishes the reservations with a passed permission, and returns the time of the next check.
func (s *Server) expireReservations(now clock.Instant) clock.Instant {
	r := &s.reservations
	var lost []event.Result
	next := clock.Forever
	r.mu.Lock()
	for _, held := range r.all() {
		before := len(lost)
		lost = held.expire(now, lost)
		if len(lost) > before {
			delete(r.held, held.id)
			s.drop(held, false)
			continue
		}
		next = min(next, held.end())
	}
	s.noteReservations()
	r.mu.Unlock()
	s.finish(lost)
	s.tellOwnership()
	if len(lost) > 0 {
		signal.Set(r.awake)
	}
	return next
}
