package app

import (
	"github.com/ringfence/router/internal/appwire"
	"github.com/ringfence/router/internal/clock"
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
	_, err := m.session.handle(f, nil)
	return err
}

// Give returns the next frame to the worker, a *appv1.WorkResponse or a
// *appwire.ToWorker that is valid until the next call, or nil when there is nothing
// to say for now. With end there never will be.
func (m *Manual) Give() (frame any, end bool) { return m.session.round() }

// Awake reports whether something has happened since the last call for which Give
// has to be called.
func (m *Manual) Awake() bool {
	select {
	case <-m.session.awake:
		return true
	default:
		return false
	}
}

// Close says that the stream has ended.
func (m *Manual) Close() { m.session.stop() }

// Expire finishes deliveries that are over without an answer, and returns when to
// look again. Run does it by itself, and nobody may do it beside.
func (s *Server) Expire() clock.Instant {
	now, next := s.Now(), clock.Forever
	look := false
	if timeout := s.cfg.HandlerTimeout; timeout > 0 {
		every := timeout / looksMax
		if look = now.Sub(s.lookedAt) >= every; look {
			s.lookedAt = now
		}
		next = s.lookedAt.Add(every)
	}
	for _, w := range s.snapshot() {
		next = min(next, w.expire(now, look))
	}
	return next
}

// looksMax is how often a delivery is looked at within the timeout of handlers; it
// comes up to that much later than it should.
const looksMax = 8
