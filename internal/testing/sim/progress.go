package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// This file checks that the cluster makes progress, and whether it has come to rest.

// waiting is the state of a gate that waits.
type waiting struct {
	since  time.Duration // in real time, without a break of the lease; 0: it does not wait
	proven time.Duration // since when all deadlines that it waits for have passed
}

// graceOpen bounds the time from the due time of an own Beat until it is read back, while the log
// has no fault.
func (w *world) graceOpen() time.Duration {
	return 2*(w.p.appendMax+w.p.readMax) + 90*time.Millisecond
}

// checkProgress: a gate without a reason to wait is open, and no gate waits for longer than the
// protocol allows while its owner is FRESH.
func (w *world) checkProgress(m *member) {
	now := m.steps.At()
	mayOpen := now.Before(m.machine.Status(now).Lease) && !m.machine.Stopped()
	for p := range ring.Partition(w.p.partitions) {
		wait := &m.waits[p]
		if m.machine.Gate(p) != ownership.Waiting || !mayOpen || m.ended != nil {
			*wait = waiting{}
			continue
		}
		if wait.since == 0 {
			wait.since = w.now
		}
		blockers, running := m.machine.Why(p)
		if len(blockers) == 0 && !running {
			w.fail("%s keeps partition %d closed, and nothing holds it back", m, p)
		}
		w.checkConfirming(m, p, blockers, running)
	}
}

// checkConfirming: when the last deadline has passed, an own Beat confirms it at once.
func (w *world) checkConfirming(m *member, p ring.Partition, blockers []ownership.Blocker, running bool) {
	wait := &m.waits[p]
	for _, b := range blockers {
		if m.clock() <= b.Deadline {
			wait.proven = 0
			return
		}
	}
	if running || len(blockers) == 0 {
		wait.proven = 0
		return
	}
	if wait.proven == 0 {
		wait.proven = w.now
	}
	if w.now-wait.proven > w.graceOpen() && w.logIsWell(m) {
		w.fail("%s does not confirm that partition %d is free, for %v", m, p, w.now-wait.proven)
	}
}

// logIsWell reports whether appends and reads of m take the time that they should.
func (w *world) logIsWell(m *member) bool {
	const rest = 3 * time.Second
	return w.now > w.log.outage+rest && w.now > w.log.rolled+rest && w.now > m.feed.cut+rest && w.now > m.feed.stalled+rest && w.sound(m) &&
		w.p.late == 0 && m.feed.lag == 0 && w.p.preempt == 0
}

// openBound is within which time a partition of a FRESH owner opens.
func (w *world) openBound(m *member) time.Duration {
	t := w.p.timing
	longest := max(t.Lease, m.cfg.Timing.Lease)
	if w.p.mixed || w.spurious || w.lostAllowed {
		longest = ownership.LeaseMax
	}
	w2 := 2 * (longest*101/99 + 50*time.Millisecond)
	late := time.Duration(0)
	if w.p.late > 0 {
		late = 6 * time.Second
	}
	return t.DrainTimeout + longest + w2 + late + 3*time.Second
}

func (w *world) checkWait(m *member, p ring.Partition) {
	wait := &m.waits[p]
	if wait.since != 0 && w.now-wait.since > w.openBound(m)+30*time.Second {
		w.fail("%s opened partition %d only after %v", m, p, w.now-wait.since)
	}
}

// unrest lists the open conditions for the cluster to rest: every partition is served, every
// event settled, and nothing is left anywhere.
func (w *world) unrest() string {
	var why []string
	say := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if w.forks && w.now-w.differedAt < 3*time.Second {
		say("members have read different logs")
	}
	if w.promised > 0 {
		say("%d faults have an end to come", w.promised)
	}
	if w.now <= w.log.epochs {
		say("an epoch is on its way")
	}
	owned := 0
	for _, m := range w.live {
		owned += m.unrest(say)
	}
	if owned != w.p.partitions {
		say("%d of %d partitions are served", owned, w.p.partitions)
	}
	if n, oldest := w.broker.open(); n > 0 {
		say("%d events are open, the oldest: %v", n, oldest)
	}
	if w.acts != nil {
		if n := len(w.acts.letters); n > 0 {
			say("%d letters are parked", n)
		}
		if n := len(w.acts.fold.Parks(w.acts.now())) + len(w.acts.fold.Keys(w.acts.now())); n > 0 {
			say("%d keys are held or parked", n)
		}
	}
	if w.broker.unacked > 0 {
		say("%d entries are unacked", w.broker.unacked)
	}
	if what := w.agenda.missing(); what != "" {
		say("%s", what)
	}
	return strings.Join(why, "; ")
}

// unrest lists those of one member, and returns how many partitions it serves.
func (m *member) unrest(say func(string, ...any)) (owned int) {
	if m.machine == nil {
		say("%s has not begun", m)
		return 0
	}
	if m.feed.wedged {
		say("%s has a reader that brings nothing", m)
	}
	switch status := m.machine.Status(m.clock()); {
	case m.ended != nil:
		say("%s has ended", m)
	case status.Phase != ownership.Current:
		say("%s is %v", m, status.Phase)
	case !status.Member:
		say("%s is no member", m)
	case status.Waiting > 0:
		say("%s waits for %d partitions", m, status.Waiting)
	default:
		owned = status.Open
	}
	if s := m.machine.State(); s != nil {
		if len(s.Members) != len(m.w.live) {
			say("%s knows %d members", m, len(s.Members))
		}
		if n := m.machine.Status(m.clock()).Pending; n > 0 {
			say("%s knows %d partitions with pending tenures", m, n)
		}
		if n := m.machine.Status(m.clock()).Withheld; n > 0 {
			say("%s withholds %d keys", m, n)
		}
	}
	if n := m.ledger.Stats().Unsettled; n > 0 {
		say("%s has %d events unsettled", m, n)
	}
	if n := len(m.calls); n > 0 {
		say("%s waits for the outcomes of %d calls", m, n)
	}
	if n := len(m.reserved); n > 0 {
		say("%s has %d reservations", m, n)
	}
	if n := m.table.Stats().Events; n > 0 {
		say("%s holds %d events", m, n)
	}
	if n := m.boxes.Stats().Keys; n > 0 {
		say("%s has %d mailboxes", m, n)
	}
	return owned
}
