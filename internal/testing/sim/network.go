package sim

import (
	"slices"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/ring"
)

// cuts are the one-way cuts of the network between processes.
type cuts map[[2]int]time.Duration // from, to → until when

func (w *world) cutUntil(from, to *member) time.Duration { return w.cuts[[2]int{from.id, to.id}] }

func (w *world) isCut(from, to *member) bool { return w.now < w.cutUntil(from, to) }

// peerConn is a member's state for each peer of its table: one stream after the other, as in
// forward.Pool.
type peerConn struct {
	from   *member
	inc    ownership.Incarnation
	to     *member // at the peer's address
	listed bool
	link   *link // the present stream
	pauses backoff.Backoff
	ended  bool

	finished []event.Finished // to be handed over, at times of the sender's clock
}

// link is one stream of frames, from the member that has events to the one that owns
// their keys, and verdicts back.
type link struct {
	conn     *peerConn
	id       forward.StreamID // at the other end
	from, to *member
	outUp    bool // the calling end
	inUp     bool // the called end

	unreceipted bool // a frame of events has no receipt
	owed        bool // a frame of verdicts has none
	verdicts    []event.Verdict
	there, back time.Duration // when the newest frames arrive: streams keep order
	pumping     bool
	answering   bool
}

// The calls that production's Pool answers.

type holder struct{ *member }

var _ pipeline.Holder = holder{}

// Hold implements pipeline.Holder.
func (h holder) Hold(entries ...*event.Entry) {
	h.forward(func(now clock.Instant, out *forward.Moves) {
		for _, e := range entries {
			h.table.Hold(now, e, out)
		}
	})
}

// Settle implements pipeline.Holder.
func (h holder) Settle(from forward.Peer, done []event.Set, verdicts []event.Verdict) {
	h.forward(func(now clock.Instant, out *forward.Moves) {
		for _, set := range done {
			h.table.Done(from, set, out)
		}
		h.table.Settle(now, from, verdicts, out)
	})
}

// Newest implements pipeline.Holder.
func (h holder) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	for _, handle := range handles {
		dst = append(dst, h.table.Newest(handle))
	}
	return dst
}

// Drop implements pipeline.Holder.
func (h holder) Drop(handles []event.Handle) { h.table.Drop(handles) }

// Credit implements pipeline.Holder.
func (h holder) Credit(from forward.Peer, keys []event.Key, events int) {
	h.forward(func(now clock.Instant, out *forward.Moves) { h.table.Credit(now, from, keys, events, out) })
}

// GiveUp implements pipeline.Holder.
func (h holder) GiveUp(call event.Handle) {
	h.forward(func(now clock.Instant, out *forward.Moves) { h.table.GiveUp(now, call, out) })
}

// Renew implements pipeline.Holder.
func (h holder) Renew(r event.Renewal) {
	h.forward(func(_ clock.Instant, out *forward.Moves) { h.table.Renew(r, out) })
}

// Forget implements pipeline.Holder.
func (h holder) Forget(reservation event.Handle) { h.table.Forget(reservation) }

// SetRoute implements pipeline.Holder.
func (h holder) SetRoute(self forward.Peer, route forward.Route) {
	h.epoch = route.Epoch()
	h.forward(func(now clock.Instant, out *forward.Moves) {
		h.table.SetRoute(now, self, small{route, h.w.p.partitions}, out)
	})
}

// TakenOver implements pipeline.Holder.
func (h holder) TakenOver(peer forward.Peer, over func(ring.Partition) bool) {
	h.forward(func(_ clock.Instant, out *forward.Moves) {
		if n := h.table.TakenOver(peer, over, out); n > 0 {
			h.w.count("taken_over_unanswered")
		}
	})
}

// HandOver implements pipeline.Holder.
func (h holder) HandOver(to forward.Peer, done []event.Finished) {
	if c := h.conn(ownership.Incarnation(to)); c != nil {
		c.finished = append(c.finished, done...)
		c.handOver()
	}
}

// handOver sends the waiting ids, if there is a stream.
func (c *peerConn) handOver() {
	l := c.link
	if l == nil || len(c.finished) == 0 {
		return
	}
	done, sent, sender := c.finished, l.from.clock(), l.from.inc
	c.finished = nil
	l.arrive(&l.there, l.from, l.to, func() {
		if !l.inUp {
			return
		}
		l.from.w.count("handed_over")
		ahead := l.to.clock().Sub(sent) // ages travel, not times: clocks differ
		for i := range done {
			done[i].At = done[i].At.Add(ahead)
		}
		l.to.pipeline.LearnDone(forward.Peer(sender), true, done)
	})
}

// small is a route of a table with few partitions.
type small struct {
	forward.Route
	partitions int
}

func (s small) Locate(p ring.Partition) (forward.Peer, bool) {
	if int(p) >= s.partitions {
		return forward.Peer{}, false
	}
	return s.Route.Locate(p)
}

// forward makes a call to the table and performs its output.
func (m *member) forward(call func(now clock.Instant, out *forward.Moves)) {
	var out forward.Moves
	call(m.clock(), &out)
	for _, peer := range out.Wake {
		if c := m.conn(ownership.Incarnation(peer)); c != nil && c.link != nil {
			c.link.pump()
		}
	}
	if len(out.Local) > 0 {
		m.pipeline.Deliver(out.Local)
	}
	if len(out.Granted) > 0 {
		m.pipeline.Granted(out.Granted)
	}
	if len(out.Attempted) > 0 {
		m.pipeline.Attempted(out.Attempted)
	}
	if len(out.Done)+len(out.Settled) > 0 {
		m.pipeline.Settle(out.Done, out.Verdicts, out.Settled)
	}
	for _, c := range out.Cancel {
		m.cancel(c)
	}
	for _, r := range out.Renew {
		m.renew(r)
	}
	m.armForward()
}

// cancel tells the owner of a call that nobody waits for it any more.
func (m *member) cancel(c forward.Cancel) {
	if c.Peer == forward.Local {
		if ended := m.pipeline.Cancel([]event.Handle{c.Handle}); c.Confirm && len(ended) == 0 {
			m.forward(func(_ clock.Instant, out *forward.Moves) {
				m.table.Confirmed(forward.Local, []event.Renewal{c.Renewal()}, out)
			})
		}
		return
	}
	if conn := m.conn(ownership.Incarnation(c.Peer)); conn != nil && conn.link != nil {
		l := conn.link
		l.arrive(&l.there, l.from, l.to, func() {
			if l.inUp {
				l.to.pipeline.CancelFor(l.id, []event.Handle{c.Handle})
				if c.Confirm {
					l.to.pipeline.RenewFor(l.id, []event.Renewal{c.Renewal()})
				}
			}
		})
	}
}

// renew asks the owner of a reservation for new permission.
func (m *member) renew(r forward.Renew) {
	asked := []event.Renewal{r.Renewal}
	if r.Peer == forward.Local {
		m.pipeline.Renew(asked)
		return
	}
	if conn := m.conn(ownership.Incarnation(r.Peer)); conn != nil && conn.link != nil {
		l := conn.link
		l.arrive(&l.there, l.from, l.to, func() {
			if l.inUp {
				l.to.pipeline.RenewFor(l.id, asked)
			}
		})
	}
}

func (m *member) armForward() {
	next := m.table.Next()
	if next == clock.Forever || m.forwardAt != 0 && m.forwardAt <= next {
		return
	}
	m.forwardAt = next
	m.process.later(max(time.Millisecond, m.host.until(m.clock(), next)), func() {
		if m.forwardAt == next {
			m.forwardAt = 0
			m.forward(m.table.Tick)
		}
	})
}

func (m *member) conn(inc ownership.Incarnation) *peerConn {
	for _, c := range m.conns {
		if c.inc == inc {
			return c
		}
	}
	return nil
}

// setPeers keeps a stream to everybody in the table.
func (m *member) setPeers(t *ownership.Table) {
	for _, c := range m.conns {
		if !slices.ContainsFunc(t.Members, func(n ownership.Node) bool { return n.Inc == c.inc && c.inc != m.inc }) {
			c.unlist()
		}
	}
	for _, n := range t.Members {
		if n.Inc == m.inc {
			continue
		}
		if c := m.conn(n.Inc); c != nil {
			c.listed = true
			continue
		}
		c := &peerConn{from: m, inc: n.Inc, to: m.w.memberAt(n.GRPCAddr), listed: true, pauses: backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}}
		m.conns = append(m.conns, c)
		c.dial(0)
	}
	for _, c := range slices.Clone(m.conns) {
		if c.link != nil {
			c.link.pump()
		}
		if !c.listed && c.link == nil {
			c.end()
		}
	}
}

// unlist drops the stream to the peer, and all knowledge about the peer.
func (c *peerConn) unlist() {
	c.listed = false
	c.from.evidence(c.inc, ownership.ReachUnknown)
}

func (c *peerConn) end() {
	c.ended = true
	c.from.conns = slices.DeleteFunc(c.from.conns, func(o *peerConn) bool { return o == c })
}

// dial tries to open a stream.
func (c *peerConn) dial(after time.Duration) {
	m, w := c.from, c.from.w
	m.process.later(after+w.between(500*time.Microsecond, 4*time.Millisecond), func() {
		if c.ended || c.link != nil {
			return
		}
		if !c.listed {
			c.end()
			return
		}
		to := c.to
		switch {
		case to.process.dead || to.inc != c.inc || to.leftAt != 0:
			c.failed(0)
		case w.isCut(m, to) || w.isCut(to, m) || to.process.isStopped():
			c.failed(time.Second) // no Hello in time
		default:
			c.open()
		}
	})
}

func (c *peerConn) failed(took time.Duration) {
	c.from.process.later(took, func() {
		if c.ended {
			return
		}
		if c.listed {
			c.from.evidence(c.inc, ownership.ReachDead)
		}
		c.dial(c.pauses.Next())
	})
}

func (c *peerConn) open() {
	m, to, w := c.from, c.to, c.from.w
	to.lastStream++
	l := &link{conn: c, id: to.lastStream, from: m, to: to, outUp: true, inUp: true}
	to.inbound = append(to.inbound, l)
	c.link = l
	c.pauses.Reset()
	m.forward(func(now clock.Instant, out *forward.Moves) { m.table.PeerUp(now, forward.Peer(c.inc), !to.old, out) })
	if c.listed {
		m.evidence(c.inc, ownership.ReachAlive)
	}
	l.pump()
	c.handOver()
	if w.now < max(m.process.stopped, to.process.stopped) {
		l.breakIn(time.Second)
	}
}

// arrive lets do happen at one end of the stream when a frame gets there.
func (l *link) arrive(at *time.Duration, from, to *member, do func()) {
	w := l.from.w
	delay := w.between(100*time.Microsecond, 2*time.Millisecond)
	if w.chance(0.02) {
		delay = w.between(2*time.Millisecond, 60*time.Millisecond)
	}
	*at = max(*at, w.now+delay, w.cutUntil(from, to)+delay)
	to.process.later(*at-w.now, do)
}

// pump sends the next frame of events, if there is no other on its way.
func (l *link) pump() {
	if l.pumping || l.unreceipted || !l.outUp {
		return
	}
	l.pumping = true
	m := l.from
	m.process.later(m.w.hop(), func() {
		l.pumping = false
		if !l.outUp || l.unreceipted {
			return
		}
		batch, relay := m.table.Take(forward.Peer(l.conn.inc), 8, 1<<20, nil)
		if len(batch) == 0 {
			if !l.conn.listed && m.table.Unanswered(forward.Peer(l.conn.inc)) == 0 {
				l.breakOut()
				l.breakIn(0)
			}
			return
		}
		if relay {
			m.w.count("relayed")
		}
		a := forward.Arrival{From: l.id, Peer: forward.Peer(m.inc), Epoch: m.epoch, Relay: relay}
		var calls []*event.Event // with the time that is left in the place of the deadline
		for _, ref := range batch {
			wire := *ref.Event()
			if wire.Call != nil {
				m.w.checkSent(l, &wire, relay)
				calls = append(calls, m.timeLeft(&wire))
			}
			a.Events = append(a.Events, event.RefTo(&wire))
		}
		l.unreceipted = true
		l.arrive(&l.there, l.from, l.to, func() {
			if !l.inUp {
				return
			}
			for _, e := range calls {
				e.Call.Deadline = l.to.clock().Add(time.Duration(e.Call.Deadline))
			}
			l.to.pipeline.Accept(a)
			l.arrive(&l.back, l.to, l.from, func() {
				l.unreceipted = false
				l.pump()
			})
		})
	})
}

// answer sends the verdicts that wait, if no others are on their way.
func (l *link) answer() {
	if l.answering || l.owed || len(l.verdicts) == 0 {
		return
	}
	l.answering = true
	l.to.process.later(l.to.w.hop(), func() {
		l.answering = false
		if !l.inUp || l.owed {
			return
		}
		verdicts := l.verdicts
		l.verdicts, l.owed = nil, true
		l.arrive(&l.back, l.to, l.from, func() {
			if !l.outUp {
				return
			}
			done, others := inSets(verdicts)
			holder{l.from}.Settle(forward.Peer(l.conn.inc), done, others)
			l.pump() // perhaps no verdicts are owed any more
			l.arrive(&l.there, l.from, l.to, func() {
				l.owed = false
				l.answer()
			})
		})
	})
}

// inSets takes the verdicts that are plainly Done out, as sets of one entry each.
func inSets(verdicts []event.Verdict) (done []event.Set, others []event.Verdict) {
	for _, v := range verdicts {
		if v.Kind != event.Done || v.Detail != nil {
			others = append(others, v)
			continue
		}
		i := slices.IndexFunc(done, func(s event.Set) bool { return s.First == v.Handle.First() })
		if i < 0 {
			i, done = len(done), append(done, event.Set{First: v.Handle.First(), Events: event.NewBits(64)})
		}
		done[i].Events.Add(v.Handle.Index())
	}
	return done, others
}

// breakOut ends the calling end.
func (l *link) breakOut() {
	if !l.outUp {
		return
	}
	l.outUp = false
	c, m := l.conn, l.from
	c.link = nil
	m.w.count("stream_broken")
	m.forward(func(now clock.Instant, out *forward.Moves) { m.table.PeerDown(now, forward.Peer(c.inc), out) })
	if c.listed {
		m.evidence(c.inc, ownership.ReachDead)
		c.dial(c.pauses.Next())
	} else {
		c.end()
	}
}

// breakIn ends the called end, in d.
func (l *link) breakIn(d time.Duration) {
	l.to.process.later(d, func() {
		if !l.inUp {
			return
		}
		l.inUp = false
		l.to.inbound = slices.DeleteFunc(l.to.inbound, func(o *link) bool { return o == l })
		l.to.pipeline.Gone(l.id)
	})
}

// cutLater breaks both ends, each when it notices.
func (l *link) cutLater(lo, hi time.Duration) {
	w := l.from.w
	l.from.process.later(w.between(lo, hi), l.breakOut)
	l.breakIn(w.between(lo, hi))
}

// answerer is the called ends of streams, as forward.Server is.
type answerer struct{ *member }

var _ pipeline.Answerer = answerer{}

// Answer implements pipeline.Answerer.
func (a answerer) Answer(to forward.StreamID, verdicts []event.Verdict) {
	for _, l := range a.inbound {
		if l.id == to && l.inUp {
			l.verdicts = append(l.verdicts, verdicts...)
			l.answer()
		}
	}
}

// Credit implements pipeline.Answerer. One in eight is lost: no code may rely on them.
func (a answerer) Credit(to forward.StreamID, key *event.Key, events int) {
	var keys []event.Key
	if key != nil {
		keys = []event.Key{*key}
	}
	for _, l := range a.inbound {
		if l.id != to || !l.inUp || a.w.chance(0.125) {
			continue
		}
		a.w.count("credit")
		l.arrive(&l.back, l.to, l.from, func() {
			if l.outUp {
				holder{l.from}.Credit(forward.Peer(l.conn.inc), keys, events)
			}
		})
	}
}

// SetEpoch implements pipeline.Answerer.
func (answerer) SetEpoch(event.Position) {}

// links are all streams that begin or end at m.
func (m *member) links() []*link {
	all := slices.Clone(m.inbound)
	for _, c := range m.conns {
		if c.link != nil {
			all = append(all, c.link)
		}
	}
	return all
}

// silence breaks the streams of a member that has sent nothing by then.
func (m *member) silence(until time.Duration) {
	w := m.w
	for _, l := range m.links() {
		w.after(w.between(time.Second, 1200*time.Millisecond), func() {
			if (w.now < until || m.process.dead) && l.outUp {
				l.cutLater(0, 10*time.Millisecond)
			}
		})
	}
}

// Renewed implements pipeline.Answerer.
func (a answerer) Renewed(to forward.StreamID, answers []event.Renewal) {
	for _, l := range a.inbound {
		if l.id == to && l.inUp {
			l.arrive(&l.back, l.to, l.from, func() {
				if l.outUp {
					l.from.forward(func(_ clock.Instant, out *forward.Moves) {
						answers = l.from.table.Confirmed(forward.Peer(l.conn.inc), answers, out)
					})
					l.from.pipeline.Renewed(answers)
				}
			})
		}
	}
}
