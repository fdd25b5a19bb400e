package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/planted"
	"github.com/ringfence/router/ring"
)

// This file contains the holders of reservations, as package client makes theirs, and the judge of what they are told; the home's end is
// in seats.go. While a holder believes that it holds a key, it counts as a handler of the key.

// reserver is a process that reserves keys, on a host of its own.
type reserver struct {
	w        *world
	id       int
	host     *host
	process  *process
	slewable bool // it reads a clock that NTP steers
}

func (r *reserver) String() string { return fmt.Sprintf("holder%d", r.id) }

// clock is the clock that package client reads.
func (r *reserver) clock() clock.Instant {
	if r.slewable {
		return r.host.steered()
	}
	return r.host.lease()
}

// reserving is one reservation, as its holder sees it.
type reserving struct {
	by      *reserver
	key     event.Key
	id      string
	message event.MessageID
	made    time.Duration
	wait    time.Duration // for the key
	takes   time.Duration // how long it is held
	ttl     time.Duration // 0: it is not to be covered
	behind  bool          // something of the key ran when it was asked for

	at      *seat         // the newest stream
	until   clock.Instant // 0: no permission yet
	every   time.Duration // the interval of renewals
	pings   map[uint64]clock.Instant
	pinging int // counts the calls of renewOn, of which the newest goes on
	k       uint64
	fence   event.Fence // not zero: it was granted
	turn    *handling   // since it has had permission
	covered bool        // by the newest answer
	over    bool        // its holder is through with it
	answers int         // of its streams, that it was granted or is over

	owner    *member // the one that gave it out last
	delivery event.DeliveryID
	token    int64 // of that tenure
}

func (v *reserving) String() string {
	return fmt.Sprintf("reservation %q of %s by %v (made at %v, wait %v)", v.id, string(v.key), v.by, v.made, v.wait)
}

// newReserver starts a process that reserves keys.
func (w *world) newReserver() *reserver {
	w.holders++
	r := &reserver{w: w, id: w.holders, host: w.newHost()}
	r.slewable = r.id%3 == 0
	r.process = &process{loop: &w.loop}
	return r
}

// reserveOn makes reservations as long as the run wants them.
func (w *world) reserveOn() {
	if w.publishing && len(w.live) > 0 {
		r := w.reservers[w.rng.IntN(len(w.reservers))]
		r.process.act(r.reserve)
	}
	w.after(w.between(0, 4*w.p.publishEvery), w.reserveOn)
}

// reserve asks for a key.
func (r *reserver) reserve() {
	w := r.w
	if len(w.live) == 0 {
		return
	}
	w.count("reservation")
	v := &reserving{by: r, key: w.keys[w.rng.IntN(len(w.keys))], id: fmt.Sprintf("%016d", w.stats["reservation"]), made: w.now, every: renewEvery, pings: map[uint64]clock.Instant{}}
	if w.chance(0.3) {
		v.key = w.keys[0]
	}
	v.message = event.CallMessageID(v.key, "reservation\x00"+v.id, 0)
	if !w.chance(0.2) {
		v.wait = w.drawTimeout()
	}
	switch x := w.rng.Float64(); {
	case x < 0.2:
		v.takes = w.between(2*time.Second, 10*time.Second)
	case x < 0.5:
		v.takes = w.between(300*time.Millisecond, 2*time.Second)
	default:
		v.takes = w.between(5*time.Millisecond, 300*time.Millisecond)
	}
	if r.id%2 == 0 && w.chance(0.6) {
		v.ttl = w.between(event.TTLLeast, 8*time.Second).Truncate(time.Millisecond)
		v.takes = w.between(100*time.Millisecond, 15*time.Second)
	}
	if w.p.covering {
		v.key, v.ttl, v.takes = w.keys[w.rng.IntN(3)], w.between(event.TTLLeast, 25*time.Second).Truncate(time.Millisecond), w.between(time.Second, 40*time.Second)
		v.message = event.CallMessageID(v.key, "reservation\x00"+v.id, 0)
	}
	v.behind = slices.ContainsFunc(w.running[v.key], (*handling).runs)
	w.reservings[v.message] = v
	w.open = append(slices.DeleteFunc(w.open, func(o *reserving) bool { return o.over }), v)
	w.tracef("%v: makes %v", r, v)
	v.ask(false)
	v.renewOn()
}

// ask opens a stream to any router, and asks: for the key, or to come back.
func (v *reserving) ask(resume bool) {
	w := v.by.w
	if len(w.live) == 0 {
		v.askLater()
		return
	}
	m := w.live[w.rng.IntN(len(w.live))]
	s := &seat{of: v, home: m, asked: v.by.clock(), resume: resume, up: true, homeUp: true}
	v.at = s
	m.seats = append(m.seats, s)
	s.toHome(func() { m.reserve(s) })
}

func (v *reserving) askLater() {
	v.by.process.later(v.by.w.between(20*time.Millisecond, 500*time.Millisecond), func() {
		if !v.over {
			v.ask(true)
		}
	})
}

// ---- the holder's end, as package client has it ----

// renewEvery is the longest interval of renewals, as package client has it.
const renewEvery = 500 * time.Millisecond

// onHoldersClock is how far a holder's clock may advance.
func (r *reserver) onHoldersClock(d time.Duration) time.Duration {
	if r.slewable {
		return time.Duration(float64(d) * (1 - clock.SlewMax))
	}
	return d
}

func (v *reserving) granted(s *seat, g event.Grant) {
	w := v.by.w
	w.checkGranted(v, s, g)
	if v.fence.Before(g.Fence) {
		v.fence = g.Fence
	}
	asked := s.asked
	if planted.On(planted.ValidFromAnswer) {
		asked = v.by.clock()
	}
	v.covered = false
	v.extend(asked, g.Remaining)
	v.every = min(v.every, renewEvery)
	v.renew()
	if v.turn != nil {
		v.renewOn() // as the SDKs do, whatever was left of a covered interval
	}
}

func (v *reserving) renewed(a event.Renewal) {
	asked, known := v.pings[a.Number]
	for k := range v.pings {
		if k <= a.Number {
			delete(v.pings, k)
		}
	}
	if planted.On(planted.ValidFromAnswer) {
		asked = v.by.clock()
	}
	if known {
		v.extend(asked, a.Remaining)
	}
	if a.Covered && v.turn != nil {
		if !v.covered {
			v.by.w.count("reservation_covered")
		}
		v.covered = true
		v.every = v.ttl / 6
	} else {
		v.covered = false
		v.every = min(v.every, renewEvery)
	}
}

// extend takes new permission, which counts from the asking.
func (v *reserving) extend(asked clock.Instant, remaining time.Duration) {
	if remaining <= 0 {
		return
	}
	now, until := v.by.clock(), asked.Add(v.by.onHoldersClock(remaining))
	if v.until != 0 && !now.Before(v.until) || until <= v.until || !now.Before(until) {
		return // a passed deadline is never extended
	}
	if v.turn == nil && until.Sub(now) <= remaining/2 {
		v.by.w.count("reservation_renewed_first")
		return
	}
	v.until = until
	v.every = min(renewEvery, until.Sub(now)/3)
	if v.turn == nil {
		v.begin()
	}
}

// renew asks for new permission.
func (v *reserving) renew() {
	if v.over || v.fence == (event.Fence{}) || !v.at.up {
		return
	}
	v.k++
	k, s := v.k, v.at
	if len(v.pings) < 64 {
		v.pings[k] = v.by.clock()
	}
	s.toHome(func() {
		if s.handle != 0 && !s.over {
			s.home.pipeline.RenewReservation(event.Renewal{Handle: s.handle, Number: k})
		}
	})
}

// renewOn renews from now on, in place of what it was to do before.
func (v *reserving) renewOn() {
	v.pinging++
	pinging := v.pinging
	v.by.process.later(v.every, func() {
		if !v.over && v.pinging == pinging {
			v.renew()
			v.renewOn()
		}
	})
}

// begin is the return of Reserve.
func (v *reserving) begin() {
	w := v.by.w
	w.count("reservation_held")
	if v.behind && w.now-v.made > 50*time.Millisecond {
		w.count("reservation_waited")
	}
	v.turn = &handling{
		reserved: v, id: v.message, key: v.key, partition: ring.PartitionOf(string(v.key)), token: v.fence.Token, turn: v.fence.Turn, begun: w.now,
	}
	w.checkStart(v.turn)
	v.by.process.later(v.takes, v.release)
	v.renewOn() // more often than while it waited
	v.watch()
}

// watch looks whether the permission has passed.
func (v *reserving) watch() {
	r, w := v.by, v.by.w
	due := r.host.until(r.clock(), v.until)
	if r.slewable {
		due = time.Duration(float64(due) * (1 - 2*clock.SlewMax))
	}
	r.process.look(due, func() {
		switch {
		case v.over:
		case r.clock().Before(v.until):
			v.watch()
		default:
			w.count("reservation_overdue")
			v.lose()
		}
	})
}

// lose ends the holder's work; it returns soon.
func (v *reserving) lose() {
	w := v.by.w
	w.count("reservation_lost")
	w.tracef("%v: has lost %v", v.by, v)
	v.leave()
	v.turn.cancelled = true
	v.by.process.later(w.between(0, returnWithin), func() { v.endTurn(event.ResultCancelled) })
}

// leave ends the stream without a release.
func (v *reserving) leave() {
	v.over = true
	if v.at.up {
		v.at.up = false
		v.at.toHome(v.at.homeEnd)
	}
	v.mustEnd(v.expires(), "its holder has left it", "reservation_expired")
}

// expires is how long a reservation lasts at most that nothing is heard of.
func (v *reserving) expires() time.Duration {
	within := v.by.w.leaseMax() + 2*time.Second
	if v.ttl > 0 {
		within += ownership.WaitFor(v.ttl)
	}
	return within
}

func (v *reserving) endTurn(kind event.ResultKind) {
	if h := v.turn; !h.ended {
		inTime := h.runs()
		h.ended = true
		v.by.w.checkEnd(h, event.Result{Kind: kind}, inTime)
	}
}

// release ends the reservation at its holder's wish. Some holders just walk away.
func (v *reserving) release() {
	w := v.by.w
	if v.over {
		return
	}
	if !v.turn.runs() {
		w.count("reservation_late_release")
	}
	v.endTurn(event.ResultDone)
	if w.chance(0.05) || !v.at.up {
		w.count("reservation_not_released")
		v.leave()
		return
	}
	w.count("reservation_released")
	v.over = true
	s := v.at
	s.toHome(func() {
		switch {
		case s.handle == 0 || s.over:
		case s.resume && !s.granted:
			s.released, s.releases, s.releasedAt = true, true, v.owner
		default:
			s.released, s.releasedAt = true, v.owner
			s.home.pipeline.GiveUp(s.handle)
			v.mustEnd(time.Second, "its home has heard the release", "reservation_freed")
		}
	})
	// A home whose end of the stream has broken hears nothing, nor does the owner of one that is resumed before its answer. A holder of package client would ask again.
	v.mustEnd(v.expires(), "its holder has released it", "reservation_over_after_release")
	r := v.by
	r.process.later(r.host.until(r.clock(), v.until), func() { // it waits no longer than its permission lasts
		if s.up {
			s.up = false
			s.toHome(s.homeEnd)
		}
	})
}

// isOver takes the last frame.
func (v *reserving) isOver(code string) {
	w := v.by.w
	v.answers++
	v.at.up = false
	if v.turn != nil {
		w.count("reservation_over_" + code)
		v.lose()
		return
	}
	w.count("reservation_refused_" + code)
	v.over = true
}

// holderEnd notes that the stream has ended. The reservation goes on until its deadline.
func (s *seat) holderEnd() {
	v := s.of
	if !s.up {
		return
	}
	s.up = false
	switch {
	case v.over:
	case v.turn == nil:
		v.by.w.count("reservation_refused_stream")
		v.over = true
	default:
		v.by.w.count("reservation_stream_broken")
		v.askLater()
	}
}

// handedOver reports whether a covered reservation no longer depends on its owner: the owner is dead or no longer has
// its delivery, or the control log keeps the reservation.
func (v *reserving) handedOver() bool {
	return v.ttl > 0 && (v.owner == nil || v.owner.process.dead || v.owner.boxes.Delivered(v.delivery) == nil || v.covered)
}

// forgetPromises ends the holders' work on keys that were promised by a log that is gone.
func (w *world) forgetPromises() {
	for _, v := range w.open {
		if v.over || v.ttl == 0 {
			continue
		}
		w.count("reservation_promise_lost_with_its_log")
		if v.turn != nil {
			w.checkDied(v.turn)
		}
		v.leave()
	}
}

// acts reports whether the holder acts now: one that was frozen beyond its deadline does nothing until it has noticed (A4).
func (v *reserving) acts() bool {
	r := v.by
	if r.process.dead {
		return false
	}
	return r.clock().Before(v.until) || r.w.now-r.process.stopped > checkEvery+returnWithin
}

// killReserver ends a process that reserves keys, and starts another one.
func (w *world) killReserver(i int) {
	r := w.reservers[i]
	w.tracef("%v: dead", r)
	for _, v := range w.open {
		if v.by != r || v.over {
			continue
		}
		if v.turn != nil {
			w.count("reservation_holder_died")
			w.checkDied(v.turn)
		}
		v.leave()
	}
	r.process.kill()
	w.reservers[i] = w.newReserver()
}

// hitReserver lets something go wrong with a process that reserves keys, or with a stream of it.
func (w *world) hitReserver(k kind, d time.Duration) {
	i := w.rng.IntN(len(w.reservers))
	r := w.reservers[i]
	switch k {
	case killHolder:
		w.killReserver(i)
	case pauseHolder:
		if w.chance(0.3) {
			r.host.sleep(d)
		}
		r.process.stop(d)
	default:
		for _, v := range w.open {
			if v.by == r && !v.over && v.at.up && w.chance(0.7) {
				v.at.breakBoth()
			}
		}
	}
}

// ---- the judge ----

// leaseMax bounds the lease of any member.
func (w *world) leaseMax() time.Duration {
	lease := w.p.timing.Lease
	for _, m := range w.live {
		lease = max(lease, m.cfg.Timing.Lease)
	}
	return lease * 101 / 99
}

// checkGiven: no owner begins a reservation that is to be resumed.
func (m *member) checkGiven(d *event.Delivery) {
	v := m.w.reservings[d.MessageID()]
	if v == nil || v.key != d.Ref.Key() {
		m.w.fail("%s gives out reservation %v, which nobody has made", m, d.MessageID())
		return
	}
	m.w.count("reservation_given")
	if v.owner != nil {
		m.w.count("reservation_given_again")
	}
	switch resumes := d.Call().Resume || v.turn != nil; {
	case resumes && v.ttl > 0:
		m.w.count("reservation_goes_on")
	case resumes:
		m.w.fail("%s begins %v, which was granted before and is to be resumed", m, v)
	}
	v.owner, v.delivery, v.token = m, d.ID, d.Token
}

// checkGranted: a reservation has one fence, wherever its holder comes back.
func (w *world) checkGranted(v *reserving, s *seat, g event.Grant) {
	v.answers++
	w.count("reservation_granted")
	if w.tracing {
		w.tracef("%v: granted with %v for %v, %v", v.by, g.Fence, g.Remaining, v)
	}
	switch {
	case g.Fence == (event.Fence{}):
		w.fail("%v is granted without a fence", v)
	case v.turn != nil && v.ttl > 0 && v.fence.Before(g.Fence):
		w.count("reservation_granted_by_the_next_owner")
	case v.turn != nil && v.ttl > 0 && g.Fence.Before(v.fence) && g.Remaining == 0:
		w.count("reservation_answered_by_a_former_owner") // which does not know yet that it is one
	case v.turn != nil && v.fence != g.Fence:
		w.fail("%v has the fence %v, and is resumed with %v", v, v.fence, g.Fence)
	case v.turn != nil:
		w.count("reservation_resumed")
	case s.resume && v.ttl == 0:
		w.fail("%v is resumed, and was not granted before", v)
	}
	if g.Remaining == 0 {
		w.count("reservation_granted_to_be_renewed")
	}
}

// mustHear: whoever waits is answered within the wait, while its home lives.
func (s *seat) mustHear() {
	v, w := s.of, s.home.w
	bound := max(v.wait, 100*time.Millisecond)*101/99 + lane.OwnerGrace + time.Second
	before := v.answers
	w.after(bound, func() {
		if v.answers == before && !v.over && s.up && w.sound(s.home) && v.by.process.stopped+bound < w.now {
			w.fail("%v has no answer from %s after %v", v, s.home, bound)
		}
	})
}

// mustEnd: a reservation that is over for its holder is over at its owner within a time.
func (v *reserving) mustEnd(within time.Duration, why, counts string) {
	w, home := v.by.w, v.at.home
	owner, delivery := v.owner, v.delivery
	if owner == nil || v.turn == nil {
		return
	}
	w.after(within, func() {
		switch {
		case owner.process.dead:
		case owner.boxes.Delivered(delivery) == nil:
			w.count(counts)
		case w.sound(owner) && w.sound(home):
			w.fail("%v is not over at %s %v after %s", v, owner, within, why)
		}
	})
}

// checkMoved counts the reservations of keys that move.
func (m *member) checkMoved(moves func(ring.Partition) bool) {
	for _, v := range m.w.open {
		if v.owner == m && v.turn != nil && !v.over && moves(v.turn.partition) {
			m.w.count("reservation_moved")
		}
	}
}
