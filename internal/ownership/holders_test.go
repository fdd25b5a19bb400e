package ownership

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

// Holders of reservations in the toy world. A holder is a process of its own, with a clock of its own; it asks whoever has the gate of
// its key open, and is never told anything by a process that it does not ask.

// holder holds one key after the other, or the same one again.
type holder struct {
	w            *world
	rate, offset float64 // of its clock
	keyAt
	id      ReservationID
	ttl     time.Duration
	until   clock.Instant // its clock: what it was promised
	granted bool          // it may come back, and will not begin anew
	ends    time.Duration // when it will release
	covered bool          // the newest promise was a covered one
	owner   *proc         // whoever answered last
}

// heldTurn is an owner's knowledge of a turn of a reservation.
type heldTurn struct {
	*holder
	id      ReservationID
	ttl     time.Duration
	number  uint64
	run     *run          // while it is live
	answers clock.Instant // covered: until when it may be promised the ttl
	until   clock.Instant // covered: when it is over, if nothing is heard
}

func (h *holder) clock() clock.Instant {
	return clock.Instant(h.offset + float64(h.w.now)*h.rate)
}

func (h *holder) holds() bool { return h.clock().Before(h.until) }

func (w *world) startHolders(seed uint64, n int) {
	w.chances = rand.New(rand.NewPCG(seed, 2))
	for range n {
		h := &holder{w: w, rate: 1 + (w.chances.Float64()*2-1)*0.0099, offset: w.chances.Float64() * float64(time.Hour)}
		w.holders = append(w.holders, h)
		h.begin()
		w.after(w.soon(10*time.Second), h.ask)
	}
}

func (w *world) soon(within time.Duration) time.Duration {
	return time.Duration(w.chances.Int64N(int64(within)))
}

// begin wants another key, or the same one under another id.
func (h *holder) begin() {
	w := h.w
	*h = holder{w: w, rate: h.rate, offset: h.offset, keyAt: keyAt{ring.Partition(w.chances.IntN(simPartitions)), ring.KeyHash(w.chances.IntN(simKeys))}}
	for i := range h.id {
		h.id[i] = byte(w.chances.Uint32())
	}
	h.ttl = TTLLeast + w.soon(3*time.Second).Truncate(time.Millisecond)
	h.ends = w.now + w.soon(25*time.Second)
}

// ask asks the owner, and again. A holder whose promise has ended asks on for a while: it is answered that it is over, or goes on.
func (h *holder) ask() {
	w := h.w
	pause := 50*time.Millisecond + w.soon(400*time.Millisecond)
	if w.chances.IntN(40) == 0 {
		pause = w.soon(12 * time.Second) // it is paused itself
	}
	defer w.after(pause, h.ask)
	if w.now > h.ends {
		id, turn := h.id, h.keyAt
		h.until = 0 // it stops first
		if p := h.owner; p != nil && w.chances.IntN(4) > 0 {
			w.after(w.soon(20*time.Millisecond), func() { p.act(func() { p.release(turn, id) }) })
		}
		h.begin()
		return
	}
	at, id, asked := h.keyAt, h.id, h.clock()
	for _, p := range w.procs {
		if p.alive && p.gates[at.part].Gate == Open {
			w.after(w.soon(20*time.Millisecond), func() { p.act(func() { p.asked(h, at, id, asked) }) })
		}
	}
}

// asked is an owner's answer to a question.
func (p *proc) asked(h *holder, at keyAt, id ReservationID, asked clock.Instant) {
	w, now := p.w, p.local(p.w.now)
	if h.id != id || p.ended != "" {
		return
	}
	t := p.held[at]
	if t == nil || t.id != id {
		t = p.grant(h, at)
		if t == nil {
			return
		}
	}
	gate := p.gates[at.part].Gate
	remaining, covered := time.Duration(0), false
	live := t.run
	switch {
	case gate != Open || !now.Before(p.lease.Until):
	case t.run == nil && now.Before(t.answers):
		remaining, covered = t.ttl, true
		t.until = now.Add(WaitFor(t.ttl))
		w.stats["renewed covered"]++
		p.endCovered(t)
	case t.run != nil:
		remaining = time.Duration(float64(p.lease.Until.Sub(now)) * 0.98)
		t.run.until = p.lease.Until
		p.overWhenPassed(t.run)
	}
	w.after(w.soon(20*time.Millisecond), func() {
		if h.id != id || remaining == 0 {
			return
		}
		h.granted, h.owner = true, p
		until := asked.Add(remaining)
		if !covered && live.holder != nil {
			live.deadline = max(live.deadline, until)
		}
		if until <= h.until || !h.clock().Before(until) {
			return
		}
		if covered && !h.covered {
			w.stats["covered"]++
		}
		h.until, h.covered = until, covered
		w.checkHolders(at, h)
	})
}

// grant begins a turn of a holder, nil if it may not now.
func (p *proc) grant(h *holder, at keyAt) *heldTurn {
	w := p.w
	awaited := p.awaited(at)
	switch {
	case p.busy[at.part][at.key] || !p.lease.MayDispatch(p.gates[at.part].Gate, p.local(w.now)) || slices.Contains(p.gates[at.part].Withheld, at.key):
		return nil
	case awaited != nil && awaited.ID != h.id:
		return nil
	case awaited == nil && h.granted:
		h.begin() // its reservation is over
		return nil
	case awaited != nil:
		w.stats["resumed"]++
	default:
		w.stats["granted"]++
	}
	p.busy[at.part][at.key] = true
	r := &run{p: p, keyAt: at, inc: p.inc, token: p.gates[at.part].Token, stream: p.stream, until: p.lease.Until, started: true, holder: h}
	w.runs = append(w.runs, r)
	w.seq++
	t := &heldTurn{holder: h, id: h.id, ttl: h.ttl, number: uint64(w.seq), run: r}
	p.held[at] = t
	p.overWhenPassed(r)
	p.step(Cover{Take: Take{KeyAt{at.part, at.key}, t.id, t.ttl}, Turn: t.number})
	return p.held[at]
}

// holderFirst leaves a key to a holder who wants it, now and then.
func (w *world) holderFirst(at keyAt) bool {
	for _, h := range w.holders {
		if h.keyAt == at && !h.granted && w.chances.IntN(4) > 0 {
			return true
		}
	}
	return false
}

// awaited returns the reservation that a key waits for.
func (p *proc) awaited(at keyAt) *ReservedKey {
	for _, r := range p.gates[at.part].Reserved {
		if r.Key == at.key {
			return &r
		}
	}
	return nil
}

// covered takes the news that a turn is covered: it is no delivery any more.
func (p *proc) covered(e Covered) {
	t := p.held[keyAt{e.Partition, e.Key}]
	if t == nil || t.number != e.Turn {
		return
	}
	if e.Refused != "" {
		p.w.stats["refused: "+e.Refused]++
		return
	}
	if t.run != nil && e.Until != 0 {
		if t.owner != nil && t.owner != p {
			p.w.stats["covered again"]++
		}
		t.run.over, t.run.dead, t.run.covered = true, true, true
		t.until = t.run.until // of what it was promised as a live one
		t.run = nil
		p.endCovered(t)
	}
	t.answers = e.Until
}

// endCovered ends a covered turn of which nothing is heard.
func (p *proc) endCovered(t *heldTurn) {
	until := t.until
	at := t.keyAt
	p.after(p.real(until)-p.w.now, func() {
		if p.held[at] == t && t.until == until && !p.local(p.w.now).Before(until) {
			p.w.stats["expired covered"]++
			p.endHeld(at, t, false)
		}
	})
}

func (p *proc) endHeld(at keyAt, t *heldTurn, released bool) {
	delete(p.held, at)
	p.busy[at.part][at.key] = false
	p.step(Drop{KeyAt: KeyAt{at.part, at.key}, ID: t.id, Turn: t.number, Released: released})
	p.after(p.w.soon(20*time.Millisecond), func() { p.dispatch(at) })
}

// release is a holder's release.
func (p *proc) release(at keyAt, id ReservationID) {
	t := p.held[at]
	if t == nil || t.id != id {
		return
	}
	p.w.stats["released"]++
	if r := t.run; r != nil {
		r.dead, r.deadline = true, 0
		t.run = nil
		p.over(r)
	}
	if p.held[at] == t {
		p.endHeld(at, t, true)
	}
}

// handOver ends the turns of revoked partitions here: covered ones are not waited for, live ones drain.
func (p *proc) handOver(partitions Set) {
	for at, t := range p.held { // each is judged alone
		if !partitions.Has(at.part) {
			continue
		}
		if t.run == nil {
			p.w.stats["handed over"]++
		}
		delete(p.held, at)
	}
}

// checkHolders fails if anybody but one works on a key.
func (w *world) checkHolders(at keyAt, who *holder) {
	for _, h := range w.holders {
		if h != who && h.keyAt == at && h.holds() {
			w.fail("key %v has a holder %x, and %v begins", at, h.id[:3], who.name())
		}
	}
	if who == nil {
		return
	}
	for _, r := range w.runs {
		if r.keyAt == at && r.holder == nil && w.running(r) {
			w.fail("key %v is handled at %s#%d, and %v begins", at, r.p.name, r.p.id, who.name())
		}
	}
}

func (h *holder) name() string {
	if h == nil {
		return "a handler"
	}
	return "a holder " + string([]byte{'0' + h.id[0]%10})
}

// checkPromises fails if a gate opens for anybody but the holder of a covered promise.
func (w *world) checkPromises(p *proc, c GateChange) {
	if !p.local(w.now).Before(p.lease.Until) {
		return // nothing begins there
	}
	for _, h := range w.holders {
		if h.part != c.Partition || !h.covered || !h.holds() || p.held[h.keyAt] != nil && p.held[h.keyAt].id == h.id {
			continue
		}
		i := slices.IndexFunc(c.Reserved, func(r ReservedKey) bool { return r.Key == h.key })
		if i < 0 {
			w.fail("%s#%d opens %v, which is promised to a holder %x", p.name, p.id, h.keyAt, h.id[:3])
		} else if id := c.Reserved[i].ID; id != h.id && id != (ReservationID{}) {
			w.fail("%s#%d opens %v for %x, and it is promised to %x", p.name, p.id, h.keyAt, id[:3], h.id[:3])
		}
	}
}

// forgetPromises ends what the log has lost with its topic.
func (w *world) forgetPromises() {
	for _, h := range w.holders {
		h.begin()
	}
}

// firstRead adds to an answer what the log says of reservations.
func (w *world) firstRead(answer FirstRead, e ReadFirst) FirstRead {
	stretch := Stretch{Partitions: e.Partitions}
	for _, x := range w.log {
		if x.at.Before(e.Before) {
			stretch.Read(x.at, x.rec)
		}
	}
	var all bool
	answer.Reserved, all = stretch.List()
	answer.Crowded = !all
	return answer
}
