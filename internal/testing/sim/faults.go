package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/ring"
)

// kind is a kind of fault.
type kind int

// The kinds of fault.
const (
	killRouter kind = iota
	killApp
	killBoth
	leaveGroup
	joinGroup
	pauseRouter
	pauseApp
	pauseBoth
	suspendHost
	stallDriver
	stallTail
	stallAfterBeat // attack 34
	cutLog
	slowLog
	outageLog
	longOutage
	rollLog
	truncateLog
	skipRecord
	deleteLog
	rebuildLog
	cutOneWay
	cutPair
	isolate
	breakPeer
	breakApp
	injectGenesis
	sameName
	dropConsumer
	stallBroker
	otherSettings
	coldStart
	lateForeign
	forkLog
	lyingBeat
	killHolder
	pauseHolder
	breakHolder
	kinds
)

var kindNames = [kinds]string{
	"kill_router", "kill_app", "kill_both", "leave", "join", "pause_router", "pause_app", "pause_both", "suspend",
	"stall_driver", "stall_tail", "stall_after_beat", "cut_log", "slow_log", "outage", "long_outage", "rollover",
	"truncate", "hole", "delete_log", "rebuild_log", "cut_one_way", "cut_pair", "isolate", "break_peer", "break_app",
	"inject_genesis", "same_name", "drop_consumer", "stall_broker", "other_settings", "cold_start", "late_foreign_genesis",
	"fork_log", "lying_beat", "kill_holder", "pause_holder", "break_holder",
}

// String returns the name under which the kind is counted.
func (k kind) String() string { return kindNames[k] }

// usual holds the relative frequencies of the kinds.
var usual = [kinds]int{
	killRouter: 8, killApp: 5, killBoth: 5, leaveGroup: 6, joinGroup: 6, pauseRouter: 8, pauseApp: 8, pauseBoth: 5,
	suspendHost: 5, stallDriver: 4, stallTail: 8, stallAfterBeat: 5, cutLog: 6, slowLog: 4, outageLog: 4, longOutage: 1,
	rollLog: 6, truncateLog: 1, skipRecord: 1, deleteLog: 1, rebuildLog: 1, cutOneWay: 4, cutPair: 4, isolate: 3,
	breakPeer: 5, breakApp: 5, injectGenesis: 2, sameName: 1, dropConsumer: 4, stallBroker: 2,
	otherSettings: 3, coldStart: 1, lateForeign: 2, forkLog: 1, lyingBeat: 3, killHolder: 4, pauseHolder: 5, breakHolder: 5,
}

// fault lets one thing go wrong.
func (w *world) fault() {
	k := w.drawKind()
	p := w.pods[w.rng.IntN(len(w.pods))]
	if p.gone || p.member == nil || p.member.process.dead {
		p = w.pods[w.rng.IntN(len(w.pods))]
	}
	short, long := w.between(time.Millisecond, time.Second), w.between(500*time.Millisecond, 8*time.Second)
	if w.chance(0.3) {
		long = short
	}
	w.count("fault_" + k.String())
	w.faultsEver++
	w.tracef("FAULT %v at %s for %v", k, p.name, long)
	if w.hitGroup(k, p, long) {
		return
	}
	m, frozen := p.member, w.hitWorkers(p, k, long)
	if m == nil || m.process.dead {
		p.up()
		return
	}
	m.touch(0)
	w.hitMember(k, p, long, frozen)
}

// hitGroup lets something go wrong that does not concern a running router alone, and reports whether the fault is of such a kind.
func (w *world) hitGroup(k kind, p *pod, long time.Duration) bool {
	switch k {
	case joinGroup:
		w.join()
	case outageLog:
		w.log.outage = max(w.log.outage, w.now+long)
	case longOutage:
		w.log.outage = max(w.log.outage, w.now+w.between(20*time.Second, 60*time.Second))
	case rollLog:
		w.log.rollover()
	case truncateLog:
		w.log.truncate()
	case deleteLog:
		w.spurious = true
		w.log.delete(ownership.Position{Ledger: w.log.next.Ledger + 1 + w.rng.Int64N(5)})
	case rebuildLog:
		w.rebuild()
	case stallBroker:
		w.broker.outage = max(w.broker.outage, w.now+long)
		w.after(w.broker.outage-w.now, w.broker.dispatch)
	case stallAfterBeat:
		w.stallWhileDraining(p)
	case sameName:
		w.double(p)
	case otherSettings:
		w.joinDiffering(p)
	case coldStart:
		w.startCold()
	case killHolder, pauseHolder, breakHolder:
		w.hitReserver(k, long)
	default:
		return false
	}
	return true
}

// hitMember lets something go wrong with a router or its connections; its workers were frozen for a time.
func (w *world) hitMember(k kind, p *pod, long, frozen time.Duration) {
	m := p.member
	switch k {
	case killRouter, killBoth:
		m.kill(w.chance(0.7))
		w.restart(p, long)
	case killApp, breakApp:
		m.touch(long)
	case pauseApp:
		m.touch(max(long, frozen))
	case leaveGroup:
		m.process.act(m.leave)
		w.restart(p, long+3*time.Second)
	case pauseRouter, pauseBoth:
		m.stop(long)
	case suspendHost:
		w.suspend(p, w.between(500*time.Millisecond, 15*time.Second))
	case stallDriver:
		m.driver.stop(long)
		m.touch(long)
	case stallTail:
		m.feed.stalled = w.now + long
		if w.chance(0.15) {
			m.feed.wedged = true
		}
		m.touched = max(m.touched, m.feed.stalled)
	case cutLog:
		m.feed.cut = w.now + long
		m.touch(long)
	case slowLog:
		m.feed.lag = w.between(20*time.Millisecond, 700*time.Millisecond)
		m.touch(long)
		w.after(long, func() { m.feed.lag = 0 })
	case skipRecord:
		m.feed.skip = 1
	case cutOneWay, cutPair:
		if q := w.other(m); q != nil {
			w.cut(m, q, long, k == cutPair)
		}
	case isolate:
		for _, q := range w.live {
			if q != m {
				w.cut(m, q, long, w.chance(0.7))
			}
		}
	case breakPeer:
		if links := m.links(); len(links) > 0 {
			links[w.rng.IntN(len(links))].cutLater(0, 50*time.Millisecond)
		}
	case injectGenesis:
		w.injectGenesis(m)
	case lateForeign:
		w.foreignGenesis(m)
	case forkLog:
		w.forkLog(m)
	case lyingBeat:
		m.feed.lies = true
	case dropConsumer:
		w.dropConsumer(m)
	}
}

// dropConsumer closes the consumer of a member, or in an unload those of all.
func (w *world) dropConsumer(m *member) {
	if m.consumer == nil {
		return
	}
	w.broker.drop(m.consumer)
	if w.counting != source.CountEvents {
		return
	}
	for _, q := range w.live {
		if q.consumer != nil {
			w.broker.drop(q.consumer)
		}
	}
}

func (w *world) drawKind() kind {
	sum := 0
	for _, n := range w.p.weights {
		sum += n
	}
	x := w.rng.IntN(sum)
	for k, n := range w.p.weights {
		if x -= n; x < 0 {
			return kind(k)
		}
	}
	return killRouter
}

func (w *world) other(m *member) *member {
	q := w.live[w.rng.IntN(len(w.live))]
	if q == m {
		return nil
	}
	return q
}

// restart brings a pod up again in d.
func (w *world) restart(p *pod, d time.Duration) {
	if w.chance(0.3) {
		d = w.between(0, 300*time.Millisecond)
	}
	w.after(d, p.up)
}

// cut cuts the network from m to q, and back if both is set.
func (w *world) cut(m, q *member, d time.Duration, both bool) {
	w.cuts[[2]int{m.id, q.id}] = w.now + d
	if both {
		w.cuts[[2]int{q.id, m.id}] = w.now + d
	}
	m.touch(d)
	q.touch(d)
	for _, l := range m.links() {
		if l.from != q && l.to != q {
			continue
		}
		w.after(w.between(time.Second, 1200*time.Millisecond), func() {
			if w.isCut(m, q) || w.isCut(q, m) {
				l.cutLater(0, 100*time.Millisecond)
			}
		})
	}
}

// suspend puts a whole machine to sleep: only the boot-time clock runs.
func (w *world) suspend(p *pod, d time.Duration) {
	p.member.stop(d)
	p.host.sleep(d)
	for _, a := range p.living() {
		switch {
		case a.host == p.host:
		case w.chance(0.3):
			a.host.sleep(d)
		default:
			continue
		}
		a.process.stop(d)
	}
}

// hitWorkers lets something go wrong with the application of a pod: with one of its workers
// alone, or with all. It returns for how long they are frozen.
func (w *world) hitWorkers(p *pod, k kind, d time.Duration) (frozen time.Duration) {
	victims := p.living()
	switch k {
	case killApp, pauseApp, breakApp:
		if len(victims) > 1 && w.chance(0.6) {
			i := w.rng.IntN(len(victims))
			victims = victims[i : i+1]
			w.count(k.String() + "_alone")
		}
	case killBoth, pauseBoth:
	default:
		return 0
	}
	if k == pauseApp && w.chance(0.1) || k == pauseBoth && w.chance(0.1) {
		d = w.between(10*time.Second, 40*time.Second)
	}
	for _, a := range victims {
		switch k {
		case killApp, killBoth:
			a.kill()
		case pauseApp, pauseBoth:
			a.process.stop(d)
			frozen = d
		case breakApp:
			if a.conn != nil {
				a.conn.breakBoth()
			}
		}
	}
	if k == killApp || k == killBoth {
		w.restart(p, d)
	}
	return frozen
}

// stallWhileDraining is attack 34: a tail stalls right after its own Beat, while another member
// drains for long and records land late.
func (w *world) stallWhileDraining(p *pod) {
	m := p.member
	if m == nil || m.process.dead {
		return
	}
	m.feed.stalled = w.now + w.between(time.Second, 3*time.Second)
	m.touched = max(m.touched, m.feed.stalled)
	w.join()
}

// join starts a member, or stops one that was started later.
func (w *world) join() {
	running := 0
	var extra *pod
	for _, p := range w.pods {
		if !p.gone {
			running++
			if p.extra {
				extra = p
			}
		}
	}
	if extra != nil && (running >= 9 || w.chance(0.4)) {
		w.retire(extra)
		return
	}
	if running < 9 {
		p := w.newPod(fmt.Sprintf("m%d", len(w.pods)))
		p.extra, p.gen, p.settings = true, w.pods[0].gen, w.groupSettings()
		p.up()
	}
}

// retire takes a pod away for good, in order or not.
func (w *world) retire(p *pod) {
	p.gone = true
	if m := p.member; m != nil {
		m.process.act(m.leave)
	}
	for _, a := range p.living() {
		w.promised++
		w.after(w.p.drainMax, func() {
			w.promised--
			a.kill()
		})
	}
}

// double starts a second pod under a name that is taken: one of them must give way.
func (w *world) double(p *pod) {
	w.exitAllowed = true
	d := w.newPod(p.name)
	d.gen, d.settings, d.extra = p.gen, p.settings, true
	d.up()
	for _, m := range w.live {
		m.touch(30 * time.Second)
	}
	w.promised++
	w.after(w.between(2*time.Second, 40*time.Second), func() {
		w.promised--
		d.gone = true
		if d.member != nil {
			d.member.kill(true)
		}
		for _, a := range d.living() {
			a.kill()
		}
	})
}

// injectGenesis lets a Genesis land that a member sent long ago, or just now.
func (w *world) injectGenesis(m *member) {
	if m.machine == nil || m.settings != w.groupSettings() {
		return
	}
	w.spurious = true
	gen, after := m.cfg.Gen, w.log.newest()
	if s := m.machine.State(); s != nil {
		gen = s.Gen
		if w.chance(0.5) {
			after = s.Genesis
		}
	}
	if floor := m.machine.Memory().Floor; floor == 0 && w.hadGroup || ownership.TokenOf(gen, w.log.next) <= floor {
		return // it would not have been made
	}
	w.landGenesis(m.inc, m.cfg.Name, m.cfg, m.cfg.Identity, after, gen)
}

// rebuild loses the log's metadata, so that ledger ids restart. The routers are not notified.
// No ledger of the old log that a router is about to read is reused: the router would continue
// in the new log as if it was the old one, until the prefix hashes of others reveal it (ADR
// 0030).
func (w *world) rebuild() {
	w.spurious = true
	if w.pods[0].gen+3 > ownership.GenMax {
		return
	}
	lowest := w.log.next.Ledger
	for _, m := range w.live {
		if m.machine == nil {
			continue
		}
		switch seen := m.machine.Memory().Seen.Ledger; {
		case m.machine.State() != nil:
			lowest = min(lowest, seen-1)
		case seen > 0:
			lowest = min(lowest, seen)
		}
	}
	if lowest < 1 {
		return
	}
	some := w.chance(0.5)
	for _, m := range slices.Clone(w.live) {
		if some && w.chance(0.5) {
			m.kill(true)
			w.restart(m.pod, w.between(0, 2*time.Second))
		}
	}
	w.rebuilt = true
	w.log.delete(ownership.Position{Ledger: 1 + w.rng.Int64N(lowest)})
}

// heal ends all faults: from now on the cluster must come to rest.
func (w *world) heal() {
	w.tracef("HEAL")
	w.p.late, w.p.duplicate, w.p.lostAck, w.p.checkFails, w.p.preempt = 0, 0, 0, 0, 0
	w.p.slow = min(w.p.slow, 0.05) // a backlog is no fault
	w.ambush = false
	end := w.log.outage // records that wait for it in a producer are sent then, and not before
	for _, m := range w.live {
		end = max(end, m.feed.cut)
	}
	w.runUntil(max(w.now, end))
	w.broker.outage = w.now
	w.cuts = cuts{}
	for _, h := range w.hosts {
		for h.sleeps > 0 {
			h.wake()
		}
	}
	for _, m := range append([]*member(nil), w.live...) {
		m.process.stopped, m.driver.stopped = w.now, w.now
		m.process.resume()
		if m.process.dead {
			continue
		}
		m.driver.resume()
		m.feed.stalled, m.feed.lag, m.feed.skip, m.feed.stuck, m.feed.fork, m.feed.lies = w.now, 0, 0, false, false, false
		w.log.read(m)
		m.touch(0)
	}
	for _, r := range w.reservers {
		r.process.stopped = min(r.process.stopped, w.now)
		r.process.resume()
	}
	if w.log.next.Entry > 1<<22 {
		w.log.rollover() // no token names a position of the old one
	}
	w.repair()
	gen := uint32(0)
	for _, p := range w.pods {
		gen = max(gen, p.gen)
	}
	for _, p := range w.pods {
		p.gen = gen // as the operator requested
		for _, a := range p.living() {
			a.process.stopped = min(a.process.stopped, w.now)
			a.process.resume()
			a.endHung()
		}
		p.up()
	}
	w.broker.dispatch()
}

// ambushTail is the heart of attack 34: the tail of a member that waits for another
// one's handlers stalls right after an own Beat.
func (w *world) ambushTail(m *member, in ownership.Input) {
	read, ok := in.(ownership.RecordRead)
	if !ok || read.Record.Inc != m.inc || w.now < m.feed.stalled {
		return
	}
	for p := range ring.Partition(w.p.partitions) {
		if blockers, _ := m.machine.Why(p); m.machine.Gate(p) == ownership.Waiting && len(blockers) > 0 && w.chance(0.3) {
			m.feed.stalled = w.now + w.between(2*time.Second, 4*time.Second)
			m.touched = max(m.touched, m.feed.stalled)
			w.count("ambush")
			return
		}
	}
}

// truncate lets an operator trim the log by force: everything but the newest ledger with a
// record is deleted, regardless of the anchor. A member that has not read that far is LOST, and
// so is one that reopens its reader at its old position. The takes that are deleted are lost to the author of a Genesis, and the
// promises on them with them, as when the topic is deleted (ADR 0052).
func (l *controlLog) truncate() {
	l.rollover()
	if len(l.records) == 0 {
		return
	}
	last := l.records[len(l.records)-1].at.Ledger
	if slices.ContainsFunc(l.records, func(x logged) bool { return x.at.Ledger < last && takes(x) }) {
		l.w.forgetPromises()
	}
	l.drop(func(x logged) bool { return x.at.Ledger < last })
	l.w.allowLost()
	for _, m := range l.w.live {
		if m.feed.next < l.base {
			m.touch(10 * time.Second)
		}
	}
}

func takes(x logged) bool {
	b, ok := x.record.Body.(*ownership.Reservations)
	return ok && len(b.Take) > 0
}
