package sim

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// This file contains the home's end of a reservation, as internal/app/lane has it, and the way to the holder.

// seat is a stream of a holder to a router, its home.
type seat struct {
	of            *reserving
	home          *member
	handle        event.Handle // 0: the ask has not arrived
	asked         clock.Instant
	resume        bool
	up, homeUp    bool
	out, in       time.Duration // when the newest frames to and from the home arrive
	granted, over bool          // as the home knows
	releases      bool          // it is released as soon as its owner has answered
	released      bool          // the home has heard the release
	releasedAt    *member       // the owner then
}

// delay is how long a frame takes between a holder and a router.
func (w *world) delay() time.Duration {
	if w.chance(0.02) {
		return w.between(2*time.Millisecond, 60*time.Millisecond)
	}
	return w.between(100*time.Microsecond, 2*time.Millisecond)
}

func (s *seat) toHome(do func()) {
	w := s.home.w
	s.out = max(s.out, w.now+w.delay())
	s.home.process.later(s.out-w.now, func() {
		if s.homeUp {
			do()
		}
	})
}

func (s *seat) toHolder(do func()) {
	w := s.home.w
	s.in = max(s.in, w.now+w.delay())
	s.of.by.process.later(s.in-w.now, func() {
		if s.up && !s.of.over {
			do()
		}
	})
}

// breakBoth breaks the stream; each end notices by itself.
func (s *seat) breakBoth() {
	s.home.process.later(s.home.w.hop(), s.homeEnd)
	s.of.by.process.later(s.home.w.hop(), s.holderEnd)
}

// reserve asks the owner of a key.
func (m *member) reserve(s *seat) {
	if m.old {
		m.tellOver(s, event.CodeUnreachable)
		return
	}
	v := s.of
	if t := m.pipeline.Table(); v.ttl > 0 && !s.resume && (t == nil || !t.Covers()) {
		m.tellOver(s, event.CodeNotCovered)
		return
	}
	m.lastCall++
	s.handle = event.NewCallHandle(m.lastCall)
	m.reserved[s.handle] = s
	begun, wait := m.clock(), max(v.wait, 100*time.Millisecond)
	if v.ttl > 0 && s.resume {
		wait = v.ttl // for the next owner
	} else {
		s.mustHear()
	}
	m.pipeline.Call(&event.Event{
		Handle: s.handle, ID: v.message, Key: v.key, Partition: ring.PartitionOf(string(v.key)),
		Call: &event.Call{ID: v.id, Deadline: begun.Add(wait), Reservation: true, Resume: s.resume, TTL: v.ttl},
	})
	m.giveUpSeatAt(s, begun.Add(wait+lane.OwnerGrace))
}

// giveUpSeatAt ends a wait that has no answer.
func (m *member) giveUpSeatAt(s *seat, at clock.Instant) {
	m.process.later(m.host.until(m.clock(), at), func() {
		switch {
		case s.granted || s.over || !s.homeUp:
			return
		case m.clock().Before(at):
			m.giveUpSeatAt(s, at)
			return
		}
		m.w.count("reservation_timed_out_at_home")
		if s.resume { // only its holder's release, or time, ends it
			delete(m.reserved, s.handle)
			m.pipeline.ForgetReservation(s.handle)
			m.tellOver(s, event.CodeTimeout)
			return
		}
		m.pipeline.GiveUp(s.handle)
		if !s.over {
			m.w.fail("%s gives %v up, and gets no answer", m, s.of)
		}
	})
}

// heard takes a verdict on a reservation.
func (m *member) heard(s *seat, v *event.Verdict) {
	if d := v.DetailOrZero(); v.Kind == event.Granted && d.Grant != nil {
		s.granted = true
		if s.releases {
			m.w.count("reservation_released_with_its_answer")
			m.pipeline.GiveUp(s.handle)
			return
		}
		g := *d.Grant
		s.toHolder(func() { s.of.granted(s, g) })
		return
	}
	a := lane.AnswerOf(v)
	code := a.Code
	if a.Outcome != event.CallNotRun {
		code = a.Outcome.String()
	}
	switch {
	case !s.released:
	case a.Outcome == event.CallUnknown && a.Code == event.CodeUnreachable:
		m.w.count("reservation_release_unconfirmed")
	case s.of.owner != s.releasedAt:
		m.w.count("reservation_released_at_the_next_owner")
	}
	delete(m.reserved, s.handle)
	m.tellOver(s, code)
}

func (m *member) tellOver(s *seat, code string) {
	m.seats = slices.DeleteFunc(m.seats, func(o *seat) bool { return o == s })
	s.over = true
	s.toHolder(func() { s.of.isOver(code) })
}

// renewed takes the owners' answers to renewals.
func (m *member) renewed(answers []event.Renewal) {
	for _, a := range answers {
		if s := m.reserved[a.Handle]; s != nil {
			s.toHolder(func() { s.of.renewed(a) })
		}
	}
}

// homeEnd notes that the stream has ended without a release.
func (s *seat) homeEnd() {
	if !s.homeUp {
		return
	}
	m := s.home
	s.homeUp = false
	m.seats = slices.DeleteFunc(m.seats, func(o *seat) bool { return o == s })
	switch {
	case s.over || s.handle == 0:
	case s.released:
		m.pipeline.GiveUp(s.handle)
		if !s.over {
			m.w.count("reservation_released_without_its_holder")
			m.pipeline.ForgetReservation(s.handle) // m.reserved has it until its verdict, which nobody is told
		}
	case s.granted || s.resume:
		delete(m.reserved, s.handle)
		m.pipeline.ForgetReservation(s.handle)
	default:
		m.pipeline.GiveUp(s.handle)
	}
}

// loseSeats ends the streams of holders to a router that has died.
func (m *member) loseSeats() {
	for _, s := range m.seats {
		s.homeUp = false
		s.of.by.process.later(m.w.hop(), s.holderEnd)
	}
	m.seats, m.reserved = nil, nil
}

// takeReservations is what app.Server.Run does for its keeper.
func (m *member) takeReservations() {
	if m.takesSoon || !m.app.ReservationsAwake() {
		return
	}
	m.takesSoon = true
	m.process.later(m.w.hop(), func() {
		m.takesSoon = false
		m.app.TakeReservations()
		m.look()
	})
}
