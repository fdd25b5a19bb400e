package app

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
)

// ReservationsMax bounds the reservations of keys that one member owns. Those beyond it wait.
const ReservationsMax = 512

// reservationMax is how long a reservation may last at one owner. Then it is renewed no more.
const reservationMax = time.Hour

// reservations are the deliveries to holders: to no worker of the application, but to callers anywhere. Each is an [Outstanding] of one
// delivery, whose stream is as good as broken from the beginning: it is over when the lease behind its last renewal has passed, or when its
// holder releases it.
type reservations struct {
	awake chan struct{} // of capacity one: there may be reservations to take

	mu   sync.Mutex
	held map[event.DeliveryID]*reservation
	next *reservation // that is being taken, nil while none is
}

type reservation struct {
	*Outstanding
	name    event.DeliveryID // of the delivery in it
	granted clock.Instant
}

func newReservations() reservations {
	return reservations{awake: make(chan struct{}, 1), held: make(map[event.DeliveryID]*reservation)}
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
		next.StartTake() // from here on it sees what is revoked
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
		sent, _ := next.Frame(1, 1<<30, 1<<30, nil, nil)
		id, next.name, next.granted = taken[0].ID, sent[0].ID, s.Now()
		back = next.Break(back) // nothing: it is sent
		grant = event.Grant{Fence: taken[0].Fence(), Remaining: next.renew(s)}
		r.held[id] = next
		s.Metrics.reservations.Set(float64(len(r.held)))
	}
	r.mu.Unlock()
	s.finish(back)
	if id != 0 {
		s.Boxes.Grant(id, grant)
		s.notify() // it has an end
	}
	return len(taken) > 0
}

// renew returns how long the holder may go on from now, by its own clock, if that can be promised. The lock of the reservations is held,
// under which Revoke marks: a lease that is newer than a deposition moves only deadlines that survived it.
func (r *reservation) renew(s *Server) time.Duration {
	now := s.Now()
	if now.Sub(r.granted) > reservationMax {
		return 0
	}
	remaining, draining := r.Pong(now, s.Lease(), s.cfg.DeadlineMargin, nil)
	if slot := r.sent.of(r.name); slot == nil || slot.over || slot.revoked && !slices.Contains(draining, uint64(r.name)) {
		return 0
	}
	return onWorkersClock(remaining, true)
}

// Renew returns how long the holders of reservations may go on, from now: zero for those that are over or cannot be extended. Ids are those of
// deliveries; answers are in their order.
func (s *Server) Renew(ids []event.DeliveryID) []time.Duration {
	remaining := make([]time.Duration, len(ids))
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, id := range ids {
		if held := r.held[id]; held != nil {
			remaining[i] = held.renew(s)
		}
	}
	return remaining
}

// release ends reservations at their holders' wish, and returns the ids of all other deliveries.
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
		results = append(results, held.Answer([]event.Result{{Delivery: held.name, Kind: event.ResultDone}}, nil)...)
		delete(r.held, id)
	}
	if r.next != nil {
		_, results = r.next.TakeBack(others, nil, results) // the one that is being taken may be among them
	}
	s.Metrics.reservations.Set(float64(len(r.held)))
	r.mu.Unlock()
	s.finish(results)
	if len(results) > 0 {
		signal.Set(r.awake) // there is room
	}
	return others
}

// revokeReservations runs take, which takes deliveries back, for each reservation.
func (s *Server) revokeReservations(take func(*Outstanding) []event.Result) {
	r := &s.reservations
	var back []event.Result
	r.mu.Lock()
	for _, held := range r.all() {
		back = append(back, take(held.Outstanding)...)
	}
	r.mu.Unlock()
	s.finish(back)
}

// expireReservations finishes those whose permission has passed, and returns the time of the next check.
func (s *Server) expireReservations(now clock.Instant) clock.Instant {
	r := &s.reservations
	var lost []event.Result
	next := clock.Forever
	r.mu.Lock()
	for id, held := range r.held {
		before := len(lost)
		if lost = held.Expire(now, lost); len(lost) > before {
			delete(r.held, id)
			continue
		}
		next = min(next, held.Next())
	}
	s.Metrics.reservations.Set(float64(len(r.held)))
	r.mu.Unlock()
	slices.SortFunc(lost, func(a, b event.Result) int { return int(a.Delivery) - int(b.Delivery) })
	s.finish(lost)
	if len(lost) > 0 {
		signal.Set(r.awake)
	}
	return next
}
