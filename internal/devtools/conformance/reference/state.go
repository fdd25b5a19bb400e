package reference

import (
	"cmp"
	"fmt"
	"slices"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// kept is the state of a key, guarded by the worker's lock.
type kept struct {
	session    *session
	partition  uint32
	generation uint64
	newest     fence     // of the newest turn that had it
	user       *delivery // whose handler has it, or may ask for it; nil: none
	asked      bool      // the user has
	ids        []uint64  // the deliveries whose handlers had it
}

func (f fence) compare(other fence) int {
	return cmp.Or(cmp.Compare(f.token, other.token), cmp.Compare(f.turn, other.turn))
}

func (w *worker) stateKey(d *delivery) string {
	if w.is("one-for-all") {
		return ""
	}
	return string(d.GetKey())
}

// noTurn reports whether a planted fault takes a delivery for none that ends the state of its key.
func (s *session) noTurn(d *delivery) bool { return d.GetCall() != nil && s.is("calls-are-no-turns") }

// isOf reports whether the turn of d is the next one after the turn that left k.
func (k *kept) isOf(d *delivery) bool {
	w := d.session
	return (k.user == nil || w.is("gets-lost")) &&
		(k.session == d.session || w.is("any-stream")) &&
		(k.newest.token == d.fence.token || w.is("any-token")) &&
		(k.generation == d.GetGeneration() || w.is("any-generation"))
}

// begun lets a turn take the state of its key, or end it: a handler may write without asking for it.
func (s *session) begun(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.is("passed-over") && !s.noTurn(d) {
		s.takeState(d)
	}
}

// takeState returns the state that the turn before has left for this one, nil if there is none. The lock is held.
func (s *session) takeState(d *delivery) *kept {
	key := s.stateKey(d)
	k := s.states[key]
	switch {
	case k == nil, k.user == d:
		return k
	case d.fence.compare(k.newest) < 0: // it has lost its key to a later turn, and continues
		return nil
	case !k.isOf(d):
		delete(s.states, key)
		return nil
	}
	k.user, k.newest, k.asked = d, d.fence, false
	return k
}

// state is what the instruction state says, but for what comes then.
func (s *session) state(d *delivery) {
	s.mu.Lock()
	k := s.takeState(d)
	loads := k == nil
	if loads {
		k = &kept{session: s, partition: d.GetPartition(), generation: d.GetGeneration(), user: d, newest: d.fence}
		later := s.states[s.stateKey(d)] != nil // a turn that has begun after this one
		if !later && !s.besideLost(d) && !s.is("keeps-nothing") && (d.GetGeneration() != 0 || s.is("keeps-zero")) {
			s.states[s.stateKey(d)] = k
		}
	}
	k.asked = true
	first := append(slices.Clone(k.ids), d.instruction.ID)[0]
	k.ids = append(k.ids, d.instruction.ID)
	s.mu.Unlock()
	if loads {
		fmt.Fprintf(s.Out, "loaded %d\n", d.instruction.ID)
	}
	fmt.Fprintf(s.Out, "state %d %d\n", d.instruction.ID, first)
}

// besideLost reports whether another handler of the key of d runs that has lost it: it may write after d has loaded. The lock is held.
func (s *session) besideLost(d *delivery) bool {
	if s.is("lost-once") || s.is("lost-leaves") {
		return false
	}
	lost := func(other *delivery) bool { return other != d && other.cancelled && s.stateKey(other) == s.stateKey(d) }
	for _, other := range s.held {
		if lost(other) {
			return true
		}
	}
	return slices.ContainsFunc(s.left, lost)
}

// leave keeps or drops the state of a key at the end of a turn. The lock is held.
func (s *session) leave(d *delivery, result *appv1.Result) {
	key := s.stateKey(d)
	k := s.states[key]
	if k == nil || s.noTurn(d) {
		return
	}
	lost := (d.cancelled || s.now() >= d.deadline) && !s.is("keeps-lost")
	done := false
	switch result.GetKind() {
	case appv1.ResultKind_RESULT_KIND_DONE:
		done = !lost
	case appv1.ResultKind_RESULT_KIND_CANCELLED:
		done = s.is("keeps-cancelled")
	default:
		done = s.is("keeps-failed")
	}
	done = done && !s.besideLost(d)
	switch {
	case k.user == d && done && (k.asked || s.is("keeps-unasked")):
		k.user = nil
	case k.user == d, k.user == nil, !s.is("lost-leaves"): // d had lost the key to the user, and may have written after that had loaded
		delete(s.states, key)
	}
}

// forget drops the states of partitions that are taken back. The lock is held.
func (s *session) forget(f *appv1.Revoke) {
	for key, k := range s.states {
		hit := f.GetAll() && !s.is("keeps-at-all") || slices.Contains(f.GetPartitions(), k.partition) && !s.is("keeps-revoked")
		if k.session == s && hit && (k.user == nil || !s.is("keeps-running")) {
			delete(s.states, key)
		}
	}
}
