package app

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/wire/appwire"
)

// Manual is a worker's stream without goroutines and without a wire: its caller
// brings the worker's frames and fetches the router's, one at a time. It is the same
// session that [Server.Work] serves. The simulator drives whole clusters with it.
// It is not safe for concurrent use; the Server's own methods may be called meanwhile.
type Manual struct{ session *session }

// Manual opens a stream to be moved by hand.
func (s *Server) Manual() *Manual { return &Manual{newSession(s)} }

// Take takes one frame of the worker in. After an error the stream is over.
func (m *Manual) Take(f *appwire.FromWorker) error {
	return m.session.handle(f)
}

// Give returns the next frame for the worker: a *appv1.WorkResponse, or a *appwire.ToWorker that is valid until the
// next call; nil when there is nothing to send for now. With end, no frame will follow.
func (m *Manual) Give() (frame any, end bool) { return m.session.round() }

// Awake reports whether something has happened since the last call for which Give
// has to be called.
func (m *Manual) Awake() bool { return taken(m.session.awake) }

// ReservationsAwake reports whether something has happened since the last call for which TakeReservations has to be called. Run does this by
// itself; do not call it beside Run.
func (s *Server) ReservationsAwake() bool { return taken(s.reservations.awake) }

// taken takes a signal, and reports false if there is none.
func taken(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Close says that the stream has ended.
func (m *Manual) Close() { m.session.stop() }

// Expire finishes deliveries that are over without an answer, and returns the time of the next
// check. Run does this by itself; do not call it beside Run.
func (s *Server) Expire() clock.Instant {
	now := s.Now()
	next := s.expireReservations(now)
	sessions := s.snapshot()
	if len(sessions) == 0 {
		return next
	}
	late, next := due(now, s.cfg.HandlerTimeout, &s.lookedAt, next)
	quiet, next := due(now, s.cfg.SilenceMax, &s.listenedAt, next)
	for _, w := range sessions {
		if quiet {
			w.listen()
		}
		next = min(next, w.expire(now, late))
	}
	return next
}

// due reports whether it is time for one of the looks within a timeout, which is then
// noted, and returns the earlier of next and the time for the one after. Timeout 0: never.
func due(now clock.Instant, timeout time.Duration, last *clock.Instant, next clock.Instant) (bool, clock.Instant) {
	if timeout == 0 {
		return false, next
	}
	every := timeout / looksMax
	is := now.Sub(*last) >= every
	if is {
		*last = now
	}
	return is, min(next, last.Add(every))
}

// looksMax is the number of checks of a delivery within the timeout of handlers, and of a
// stream within the longest silence; both are detected up to two checks late.
const looksMax = 8
