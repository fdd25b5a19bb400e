package sim

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// This file checks the run. Its verdict on exclusivity depends only on the handlers: when, in
// real time, each of them ran.

// ---- exclusivity, tokens, loss ----

// checkStart: at most one handler of a key runs, and tokens never fall.
func (w *world) checkStart(h *handling) {
	w.count("started")
	h.order = w.stats["started"]
	if h.call != nil {
		w.checkCallStart(h)
	}
	if w.tracing {
		w.tracef("%s: starts %v", h.where(), h)
	}
	still := w.running[h.key][:0]
	for _, o := range w.running[h.key] {
		if o.runs() {
			still = append(still, o)
			w.overlapping(o, h)
		}
	}
	w.running[h.key] = append(still, h)
	last := w.newest[h.key]
	w.newest[h.key] = h
	if !last.fence().Before(h.fence()) {
		w.unless(w.wild, "wild_fence", "%v starts after a handler of its key with the fence %v", h, last.fence())
	}
	w.checkKept(h, last)
	p := h.partition
	// A holder may begin while the partition is at its next owner already, which withholds the key.
	if h.token < w.tokens[p] && !w.p.defiant && !w.wild && h.reserved == nil {
		w.fail("%v starts with a token below %d, with which another handler of its partition has started", h, w.tokens[p])
	}
	w.tokens[p] = max(w.tokens[p], h.token)
}

// checkKept: a worker may use the state that a handler has left (package client, State) for a later one of the same key, stream, token and generation.
// Then no other handler of the key has started in between.
func (w *world) checkKept(h, last *handling) {
	if h.conn == nil {
		return // the holder of a reservation
	}
	before := h.conn.newest[h.key]
	h.conn.newest[h.key] = h
	if before == nil || before.token != h.token || before.state != h.state {
		return
	}
	w.count("state_kept")
	if before != last {
		w.unless(w.wild, "wild_state", "%v may use the state that %v has left, and %v has started since", h, before, last)
	}
}

func (w *world) overlapping(o, h *handling) {
	if w.p.defiant && o.cancelled && o.fence().Before(h.fence()) {
		w.overlap++ // allowed for a handler that ignores its deadline; the sink refuses its writes
		return
	}
	w.unless(w.wild, "wild_overlap", "two handlers of one key: %v, since %v, and %v", o, o.begun, h)
}

// checkEnd: the handler writes to the sink as it ends, if the sink takes its fence. Only
// one that thawed after its deadline may have a stale one. The sink refuses every handler
// that began before one whose write it took, also one of the same owner.
func (w *world) checkEnd(h *handling, r event.Result, inTime bool) {
	if w.tracing {
		w.tracef("%s: %s %v", h.where(), r.Kind, h)
	}
	w.running[h.key] = slices.DeleteFunc(w.running[h.key], func(o *handling) bool { return o == h })
	if r.Kind == event.ResultDone && h.sent != nil {
		w.agenda.over[h.id]++
	}
	if r.Kind == event.ResultDone {
		if p := w.broker.byID[h.id]; p != nil {
			p.done++
			if p.done > 1 {
				w.count("done_again")
			}
		}
	}
	if h.call != nil {
		w.checkCallEnd(h, &r)
	}
	if r.Kind == event.ResultCancelled {
		return
	}
	newest := w.sink[h.key]
	if h.fence().Before(newest.fence) {
		w.count("stale_write_refused")
		if h.token == newest.fence.Token {
			w.count("stale_write_refused_same_token")
		}
		if inTime && !w.p.defiant && !w.wild {
			w.fail("%v writes after a handler with the fence %v", h, newest.fence)
		}
		return
	}
	if h.order < newest.order && !w.wild {
		w.fail("the sink takes the stale write of %v, which began before a handler that has written with the fence %v", h, newest.fence)
	}
	w.sink[h.key] = written{h.fence(), h.order}
}

// written is the newest write of a key that the sink took.
type written struct {
	fence event.Fence
	order int // of its handler
}

// checkDied forgets a handler that died with its process.
func (w *world) checkDied(h *handling) {
	h.ended = true
	w.count("handler_died")
	if h.call != nil {
		w.count("call_handler_died")
	}
	w.running[h.key] = slices.DeleteFunc(w.running[h.key], func(o *handling) bool { return o == h })
}

// handlersOn yields the handlers that run on a partition.
func (w *world) handlersOn(p ring.Partition, yield func(*handling)) {
	for _, k := range w.keys { // a map's order would not do
		for _, h := range w.running[k] {
			if h.partition == p && h.runs() {
				yield(h)
			}
		}
	}
}

// ---- gates, leases, Beats ----

// checkGates: a gate opens once for a tenure, with a greater token than any before
// (I8), when nothing of an earlier tenure runs but on keys that it withholds (I10), and
// at one node only (I2). It may let withheld keys go later.
func (w *world) checkGates(m *member, changes []ownership.GateChange) {
	for _, c := range changes {
		p := c.Partition
		if c.Gate != ownership.Open {
			continue
		}
		if u := m.lease.Until; u != 0 && m.steps.At().Before(u) && !m.clock().Before(u) {
			w.count("opened_past_lease") // the process stood still in mid-step: the gate lets nothing through
			continue
		}
		w.handlersOn(p, func(h *handling) {
			own := h.owner() == m && h.token == int64(c.Token)
			held := slices.Contains(c.Withheld, ring.HashOf(string(h.key)))
			if v := h.reserved; v != nil && v.ttl > 0 && !held {
				held = slices.ContainsFunc(c.Reserved, func(r ownership.ReservedKey) bool {
					return r.Key == ring.HashOf(string(h.key)) && (r.ID == ownership.ReservationOf(v.message) || r.ID == ownership.ReservationID{})
				})
				own = own || h.owner() == m
			}
			if !own && !held && !w.wild && (!w.p.defiant || !h.cancelled) {
				w.fail("%s opens partition %d while %v runs", m, p, h)
			}
		})
		if was := m.gates[p]; was.Gate == ownership.Open && was.Token == c.Token {
			w.count("withheld_released")
			continue // it is open, and lets more keys through
		}
		w.moves++
		if c.Token <= w.opened[p] {
			if w.untold(m) {
				w.count("tokens_fell_untold")
				w.failure = undecidable
				return
			}
			w.fail("%s opens partition %d with token %v, after one with %v", m, p, c.Token, w.opened[p])
		}
		w.opened[p] = c.Token
		if len(c.Withheld) > 0 {
			w.count("opened_withholding")
		}
		for _, o := range w.live {
			if o != m && o.gates != nil && o.gates[p].Gate == ownership.Open && o.clock().Before(o.lease.Until) && o.lease.Until != 0 {
				w.unless(w.wild, "wild_gate", "%s opens partition %d while %s may dispatch for it for another %v", m, p, o, o.lease.Until.Sub(o.clock()))
			}
		}
		w.checkWait(m, p)
	}
}

// undecidable ends a run without a failure.
const undecidable = "nobody could know that tokens fall"

// untold reports whether no process could know that the tokens of m's group fall: the log's
// metadata was lost, and every process that had seen greater tokens was gone before it could
// send a Hello in the new log (ADR 0030). The rest of such a run proves nothing.
func (w *world) untold(m *member) bool {
	if !w.rebuilt {
		return false
	}
	at := m.machine.State().Genesis
	x, ok := w.log.at(at)
	if !ok {
		return false
	}
	g := x.record.Body.(*ownership.Genesis)
	return w.log.told(ownership.Position{}, g.After) < ownership.TokenOf(g.Gen, at)
}

// checkLease: a lease counts from the building of a Beat of one's own (I4).
func (w *world) checkLease(m *member, l ownership.Lease) {
	if l.Until == 0 || l.Until == m.lease.Until {
		return
	}
	for p := range m.gates { // I2, from the other side
		if m.gates[p].Gate != ownership.Open {
			continue
		}
		for _, o := range w.live {
			if o != m && o.gates != nil && o.gates[p].Gate == ownership.Open && o.clock().Before(o.lease.Until) && m.clock().Before(l.Until) {
				w.unless(w.wild, "wild_lease", "%s gets a lease for partition %d, while %s may dispatch for it", m, p, o)
			}
		}
	}
}

// checkAppend: a Beat does not hide that something runs (I7), and a Genesis is not
// made while there is a group.
func (w *world) checkAppend(m *member, r ownership.Record) {
	switch b := r.Body.(type) {
	case *ownership.Beat:
		w.checkBeat(m, b)
	case *ownership.Genesis:
		w.count("genesis")
		w.checkGenesis(m)
	default: // the other kinds need no check
	}
}

// hidesKey reports whether a Beat names the busy keys of a handling's partition, and
// not this one.
func hidesKey(b *ownership.Beat, h *handling) bool {
	return slices.ContainsFunc(b.Busy, func(busy ownership.Busy) bool {
		return busy.Partition == h.partition && !slices.Contains(busy.Keys, ring.HashOf(string(h.key)))
	})
}

func (w *world) checkBeat(m *member, b *ownership.Beat) {
	s := m.machine.State()
	for _, k := range w.keys {
		for _, h := range w.running[k] {
			if h.owner() != m || !h.runs() || w.p.defiant && h.cancelled {
				continue
			}
			if b.Draining.Has(h.partition) && !hidesKey(b, h) || h.reserved != nil && h.reserved.handedOver() {
				continue
			}
			token := h.token
			if h.reserved != nil {
				token = h.reserved.token
			}
			if s.Owner(h.partition) != m.inc || int64(s.Token(h.partition)) != token {
				w.unless(w.wild, "wild_hidden", "%s hides in a Beat that %v runs", m, h)
			}
		}
	}
}

// personal is the time after a fault of its own during which a process does not count as sound.
const personal = 12 * time.Second

// sound reports whether m has had no fault of its own lately.
func (w *world) sound(m *member) bool {
	return !m.process.dead && !m.process.isStopped() && !m.driver.isStopped() && m.workers > 0 && m.touched+personal < w.now && !m.draining
}

func (w *world) checkGenesis(m *member) {
	if w.spurious {
		return
	}
	for _, o := range w.live {
		if o != m && w.sound(o) && o.machine != nil && o.machine.State() != nil && o.ended == nil && w.now-o.joinedAt > personal {
			w.fail("%s makes a Genesis, though %s has the state and nothing is wrong with it", m, o)
		}
	}
}

// noted checks a machine's report.
func (w *world) noted(m *member, n ownership.Note) {
	w.count("note_" + string(n.Kind))
	if w.tracing {
		w.tracef("%s: %s at %v, %d, %v %s %s", m, n.Kind, n.At, n.Count, n.Took, n.Name, n.Reason)
	}
	switch n.Kind {
	case ownership.NoteAdopted:
		m.joinedAt = w.now
		m.cur, m.members = ownership.Position{}, nil
	case ownership.NoteGenesis:
		m.cur = n.At
	case ownership.NoteEpoch:
		w.checkEpoch(m, n)
	case ownership.NoteRemoved:
		decided := w.log.sentAt(n.At) // which may be long ago, and the epoch long on its way
		if w.sound(m) && decided-m.touched > personal && decided-m.joinedAt > personal && !w.spurious && !w.lateAfterOutage(decided) {
			w.fail("%s was removed, and nothing was wrong with it", m)
		}
	case ownership.NoteLostTrust:
		if !w.lostAllowed {
			w.fail("%s is LOST, and the log is whole: %s", m, n.Reason)
		}
	}
}

// lateAfterOutage reports whether a member may have looked silent at that time, because it
// returned from an outage of the log later than others, by more than the interval of their
// Beats. An outage of more than three Beats would have restarted their counts.
func (w *world) lateAfterOutage(then time.Duration) bool {
	every := w.p.timing.BeatEvery
	return every < reconnectMax && w.log.outage > 0 && then-w.log.outage < reconnectMax+5*every
}

// checkEpoch: the log is a compare-and-set register. Where the log is prompt and faithful, a
// joining member has an application, and takes no name of a member that sends Beats.
func (w *world) checkEpoch(m *member, n ownership.Note) {
	x, ok := w.log.at(n.At)
	if !ok {
		return
	}
	e := x.record.Body.(*ownership.Epoch)
	if !m.cur.IsZero() && e.Prev != m.cur {
		w.fail("%s accepts an epoch after %v, and its own is %v", m, e.Prev, m.cur)
	}
	before := m.members
	m.cur, m.members = n.At, e.Members
	for _, inc := range e.Members {
		joined := w.names[inc]
		if !w.strict || before == nil || joined == nil || slices.Contains(before, inc) {
			continue
		}
		if joined.inc == inc && !joined.hadWorker && !joined.process.dead {
			w.fail("%s joins, and never had an application", joined)
		}
		for _, old := range before {
			o := w.names[old]
			if o == nil || slices.Contains(e.Members, old) || o.cfg.Name != joined.cfg.Name || o.inc != old || o.process.dead {
				continue
			}
			if age := x.landed - o.beatAt; age >= 0 && age < o.cfg.Timing.BeatEvery/3 {
				w.fail("%s takes the name of %s, whose last Beat is %v old", joined, o, age)
			}
		}
	}
}

// checkServed: while there is a sound member, no partition is without an owner for longer than
// a takeover can take, whatever happens to others.
func (w *world) checkServed() {
	if w.servedAt == nil {
		w.servedAt = slices.Repeat([]time.Duration{w.now}, w.p.partitions)
	}
	sound := slices.ContainsFunc(w.live, func(m *member) bool { return w.sound(m) && m.ended == nil && w.now-m.joinedAt > personal })
	for p := range ring.Partition(w.p.partitions) {
		served := slices.ContainsFunc(w.live, func(m *member) bool {
			return m.gates != nil && m.lease.MayDispatch(m.gates[p].Gate, m.clock())
		})
		if served || !sound {
			w.servedAt[p] = w.now
		}
		if w.now-w.servedAt[p] > 20*time.Second {
			w.fail("nobody has served partition %d for %v", p, w.now-w.servedAt[p])
		}
	}
}

func (w *world) checkExit(m *member, reason string) {
	w.count("exit")
	w.tracef("%s: exit, %s", m, reason)
	if !w.exitAllowed {
		w.fail("%s exits: %s", m, reason)
	}
}

// checkLanded judges epochs where they stand in the log.
func (w *world) checkLanded(r ownership.Record) {
	switch b := r.Body.(type) {
	case *ownership.Epoch:
		if len(b.Members) == 0 {
			w.fail("an epoch without members")
		}
	case *ownership.Beat:
		if m := w.names[r.Inc]; m != nil && m.inc == r.Inc {
			m.beatAt = w.now
		}
	default: // the other kinds need no judge
	}
}

// allowLost notes a fault after which an incarnation may be LOST.
func (w *world) allowLost() { w.lostAllowed = true }

// ---- state ----

// checkStep: the state at a position is equal everywhere (I9), gates agree with the machine,
// and partitions without an obstacle are open.
func (w *world) checkStep(m *member, in ownership.Input) {
	s := m.machine.State()
	if s == nil {
		return
	}
	if read, ok := in.(ownership.RecordRead); ok && (w.forks || w.worthDigesting(read)) {
		w.checkState(m, s)
	}
	w.checkProgress(m)
	w.checkTokens(m, s)
	if w.ambush {
		w.ambushTail(m, in)
	}
}

// checkTokens: an open gate has the token of the present tenure.
func (w *world) checkTokens(m *member, s *ownership.State) {
	pending, _ := m.steps.Pending()
	for _, e := range pending {
		if _, ok := e.(ownership.SetGates); ok {
			return // not performed yet
		}
	}
	for p := range m.gates {
		if c := m.gates[p]; c.Gate == ownership.Open && m.ended == nil && len(pending) == 0 && c.Token != s.Token(c.Partition) {
			w.fail("%s dispatches for partition %d with the token %v, and its tenure has %v", m, p, c.Token, s.Token(c.Partition))
		}
	}
}

func (w *world) worthDigesting(r ownership.RecordRead) bool {
	if _, isBeat := r.Record.Body.(*ownership.Beat); isBeat {
		return r.At.Entry%16 == 0
	}
	return true
}

func (w *world) checkState(m *member, s *ownership.State) {
	at := m.machine.Status(m.steps.At()).Applied
	pending, _ := m.steps.Pending()
	if m.feed.topic != w.log.topic || at.IsZero() || slices.ContainsFunc(pending, isEnd) {
		return // a node that learns from a Snap that it was replaced applies no later records
	}
	if !at.Before(w.log.next) {
		return // it is in a lost log with the same ledger
	}
	w.checkPrefix(m, s, at)
	digest := digestOf(s)
	was, ok := w.log.states[at]
	if !ok {
		was, ok = w.log.states2[at]
	}
	if ok && was != digest {
		w.fail("%s has another state at %v than others had", m, at)
	}
	w.log.states[at] = digest
}

// isEnd reports whether an incarnation ends with e before it has applied its last records.
func isEnd(e ownership.Effect) bool {
	_, lost := e.(ownership.Lost)
	_, exit := e.(ownership.Exit)
	return lost || exit
}

func digestOf(s *ownership.State) uint64 {
	h := hashOf(uint64(s.Gen), s.ViewHash, s.HashID)
	position := func(p ownership.Position) { h = hashOf(h, uint64(p.Ledger)<<32^uint64(p.Entry), "") }
	position(s.Genesis)
	position(s.Cur)
	for _, inc := range s.Members {
		h = hashOf(h, 1, string(inc[:]))
	}
	for _, n := range s.Nodes {
		h = hashOf(h, uint64(n.Lease), n.Name)
		position(n.Since)
	}
	for p := range s.Table {
		h = hashOf(h, uint64(s.Table[p]), "")
		position(s.Start[p])
		for _, t := range s.Pending[p] {
			h = hashOf(h, uint64(t.Lease), string(t.Inc[:]))
			position(t.Start)
			position(t.Dep)
		}
	}
	return h
}
