//go:build planted

package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/ownership"
)

// The scenes in which planted bugs are looked for that the random faults seldom reaches.

// only lets nothing go wrong but these kinds.
func only(kinds ...kind) scene {
	return func(w *world) {
		clear(w.p.weights[:])
		for _, k := range kinds {
			w.p.weights[k] = max(1, usual[k])
		}
		w.p.pace = 2 * time.Second
	}
}

// and makes one scene of several.
func and(scenes ...scene) scene {
	return func(w *world) {
		for _, s := range scenes {
			s(w)
		}
	}
}

// busy is work that takes long, on a prompt and faithful log.
func busy(w *world) {
	w.p.slow, w.p.long, w.p.publishEvery = 0.6, 0.6, 400*time.Millisecond
}

// brisk is work that comes often and mostly does not take long.
func brisk(w *world) { w.p.publishEvery, w.p.slow, w.p.long = 300*time.Millisecond, 0.5, 0.2 }

// calm is long leases.
func calm(w *world) {
	w.p.mixed = false
	if w.now == 0 {
		w.p.timing = ownership.CalmTiming()
		w.p.timing.DrainTimeout, w.p.timing.RemovedMax = 5*time.Second, 8*time.Second
	}
}

func promptLog(w *world) {
	w.strict = true
	w.p.appendMax, w.p.readMax = 10*time.Millisecond, 8*time.Millisecond
	w.p.late, w.p.duplicate, w.p.lostAck, w.p.checkFails, w.p.preempt = 0, 0, 0, 0, 0
}

// plays runs a script instead of random faults.
func plays(script func(w *world)) scene { return func(w *world) { w.script = script } }

// anyone returns a running pod with an application.
func (w *world) anyone() *pod {
	for range 20 {
		p := w.pods[w.rng.IntN(len(w.pods))]
		if !p.gone && p.member != nil && !p.member.process.dead && len(p.living()) > 0 {
			return p
		}
	}
	return nil
}

// revive freezes an application and cuts its router from the log, while it drains.
func revive(w *world) {
	w.join()
	w.runUntil(w.now + w.between(time.Second, 5*time.Second))
	p := w.anyone()
	if p == nil {
		return
	}
	d := w.between(2200*time.Millisecond, 4500*time.Millisecond)
	p.member.feed.cut = w.now + d
	p.member.touch(d)
	for _, a := range p.living() {
		a.process.stop(d + w.between(-300*time.Millisecond, 300*time.Millisecond))
	}
}

// shortAndLong is a group with one short lease and long ones. The member with the short lease
// makes a Genesis while members with long ones do not read.
func shortAndLong(w *world) {
	for i, p := range w.pods {
		p.lease = ownership.LeaseMax
		if i == 0 {
			p.lease = time.Second
		}
	}
}

func genesisUnread(w *world) {
	first := w.pods[0].member
	if first == nil || first.process.dead || first.machine == nil {
		return
	}
	for _, m := range w.live {
		if m != first {
			m.feed.stalled = w.now + 5*time.Second
			m.touched = max(m.touched, m.feed.stalled)
		}
	}
	w.injectGenesis(first)
	w.runUntil(w.now + 12*time.Second)
}

// slowReader stalls a tail while ledgers roll.
func slowReader(w *world) {
	if p := w.anyone(); p != nil {
		p.member.feed.stalled = w.now + 4*time.Second
		p.member.touch(4 * time.Second)
	}
	for range 4 {
		w.log.rollover()
		w.runUntil(w.now + 900*time.Millisecond)
	}
}

// rebuildUnder loses the metadata of the log under running members.
func rebuildUnder(w *world) {
	w.spurious = true
	w.log.delete(ownership.Position{Ledger: max(1, w.log.next.Ledger-1)}) // an id that no other log has had
	w.runUntil(w.now + 4*time.Second)
	for _, m := range w.live {
		if m.machine != nil && m.machine.State() != nil && w.log.next.Before(m.machine.Status(m.clock()).Applied) {
			w.fail("%s goes on by a log that is gone", m)
		}
	}
	w.runUntil(w.now + 16*time.Second)
}

// lateLedger puts the log where positions stop to fit tokens.
func lateLedger(w *world) {
	if w.now == 0 {
		w.log.next = ownership.Position{Ledger: 1000, Entry: 1<<22 - 300}
	}
}

// laggard raises the generation of all but one, and deletes the log, twice.
func laggard(w *world) {
	w.spurious = true
	w.pods[0].gen = max(1, w.pods[0].gen)
	for _, p := range w.pods[1:] {
		p.gen = w.pods[0].gen + 1
	}
	for range 2 {
		for _, m := range slices.Clone(w.live) {
			if m.pod.gen != m.cfg.Gen {
				m.kill(true)
				w.restart(m.pod, time.Second)
			}
		}
		w.log.delete(ownership.Position{Ledger: w.log.next.Ledger + 1})
		w.runUntil(w.now + 15*time.Second)
		for _, p := range w.pods[1:] { // all but the laggard go, and come late
			if m := p.member; m != nil {
				m.kill(true)
				w.restart(p, 12*time.Second)
			}
		}
		w.log.delete(ownership.Position{Ledger: w.log.next.Ledger + 1})
		w.runUntil(w.now + 15*time.Second)
	}
}

// outageWhileJoining stops the broker right after the first Hello of a new incarnation.
func outageWhileJoining(w *world) {
	p := w.anyone()
	if p == nil {
		return
	}
	m, incarnation := p.member, p.member.incarnation
	m.feed.skip = 1 // it is LOST, and joins again
	for end := w.now + 5*time.Second; m.incarnation == incarnation && w.now < end; {
		w.runUntil(w.now + time.Millisecond)
	}
	m.touch(time.Second)
	w.runUntil(w.now + w.between(20*time.Millisecond, 60*time.Millisecond))
	w.log.outage = max(w.log.outage, w.now+w.between(5*time.Second, 8*time.Second))
	w.runUntil(w.now + 14*time.Second)
}

// stuckReader leaves one member with a producer that works and a tail that does not.
func stuckReader(w *world) {
	w.watchServed = true
	if p := w.anyone(); p != nil && len(w.live) > 1 {
		p.member.feed.stuck = true
		p.member.touch(40 * time.Second)
		w.runUntil(w.now + 35*time.Second)
		p.member.feed.stuck, p.member.feed.wedged = false, false
		w.log.read(p.member)
	}
	w.watchServed = false
}

// wedge leaves tails that only another reader brings back.
func wedge(w *world) {
	if p := w.anyone(); p != nil {
		p.member.feed.wedged = true
		p.member.touch(10 * time.Second)
	}
}

// genesisWhileJoining lets a Genesis land while a member joins.
func genesisWhileJoining(w *world) {
	p, q := w.anyone(), w.anyone()
	if p == nil || q == nil || p == q {
		return
	}
	p.member.kill(true)
	w.after(time.Second, p.up)
	w.after(time.Second+w.between(50*time.Millisecond, 500*time.Millisecond), func() {
		if !q.member.process.dead && q.member.machine != nil {
			w.injectGenesis(q.member)
		}
	})
	w.runUntil(w.now + 10*time.Second)
}

// rebuiltBehind loses the log's metadata while the only remaining router is behind the other members in reading: the new log
// begins on the ledger that was the newest, and the group has given out positions there that this router does not know.
func rebuiltBehind(w *world) {
	p := w.anyone()
	if p == nil || len(w.live) < 2 {
		w.join()
		w.runUntil(w.now + 4*time.Second)
		return
	}
	m := p.member
	w.log.rollover()
	w.runUntil(w.now + time.Second)
	m.feed.skip = 1 // it is LOST
	w.allowLost()
	w.spurious = true
	for end := w.now + 4*time.Second; m.machine.State() != nil && w.now < end; {
		w.runUntil(w.now + time.Millisecond)
	}
	m.feed.stuck = true
	m.touch(40 * time.Second)
	w.runUntil(w.now + 10*time.Second) // it is voted out
	if m.process.dead || m.machine.State() != nil {
		m.feed.stuck = false
		return
	}
	for _, o := range slices.Clone(w.live) {
		if o != m {
			o.kill(true)
			w.restart(o.pod, w.between(0, 2*time.Second))
		}
	}
	w.log.delete(ownership.Position{Ledger: m.machine.Memory().Seen.Ledger})
	m.feed.stuck = false
	w.log.read(m)
	w.runUntil(w.now + 30*time.Second)
}

// rebuiltUnderPaused loses the log's metadata while one router is paused and voted out on newer ledgers. The new log begins on
// the ledger after those that the paused router has read, where the group has given out positions that it does not know.
func rebuiltUnderPaused(w *world) {
	p := w.anyone()
	if p == nil || len(w.live) < 3 {
		w.join()
		w.runUntil(w.now + 4*time.Second)
		return
	}
	m := p.member
	w.spurious = true
	m.stop(11 * time.Second)
	seen := w.log.next.Ledger
	for range 4 {
		w.runUntil(w.now + 500*time.Millisecond)
		w.log.rollover()
	}
	w.runUntil(w.now + 5*time.Second)
	w.rebuilt = true
	w.log.delete(ownership.Position{Ledger: max(1, seen-2)})
	for w.log.next.Ledger <= seen && w.failure == "" {
		w.runUntil(w.now + time.Second)
		w.log.rollover()
	}
	w.runUntil(w.now + 30*time.Second)
}

// differingColdStarts starts all routers at once, half of them with other settings, and one more when the first Genesis is
// about to land: it says Hello after the author of that Genesis begins, and before the author of the second one does.
func differingColdStarts(w *world) {
	w.spurious = true
	w.p.appendMax = 300 * time.Millisecond
	settings := w.groupSettings()
	other := (settings + 1) % kindsOfSettings
	late := w.rng.IntN(len(w.pods))
	for i, p := range w.pods {
		if p.gone {
			continue
		}
		if p.settings = settings; i%2 == 1 && i != late {
			p.settings = other
		}
		if m := p.member; m != nil && !m.process.dead {
			m.kill(true)
		}
		begin := w.between(0, 50*time.Millisecond)
		if i == late {
			begin = w.between(2*time.Second, 3500*time.Millisecond)
		}
		w.after(begin, p.up)
	}
	w.runUntil(w.now + 8*time.Second)
}

// bareRouter starts routers whose application comes much later.
func bareRouter(w *world) {
	p := w.newPod(fmt.Sprintf("b%d", len(w.pods)))
	p.extra, p.gen = true, w.pods[0].gen
	p.member = w.newMember(p)
	w.runUntil(w.now + 6*time.Second)
	p.up()
	w.retire(p)
	w.runUntil(w.now + 6*time.Second)
}

// frozenAtPing freezes an application with a Ping in flight, and cuts its router off from the log:
// the Pong and the deliveries behind it wait in the socket until another member owns the keys.
func frozenAtPing(w *world) {
	p := w.anyone()
	if p == nil || len(w.live) < 2 {
		return
	}
	d := w.between(w.p.timing.Lease*5/4, 2*w.p.timing.Lease)
	a := p.living()[0]
	a.pinged = func() {
		a.process.stop(d)
		p.member.feed.cut = w.now + d + time.Second
		p.member.touch(d + time.Second)
	}
	w.runUntil(w.now + d + 2*time.Second)
}

// lateClient is an outage of the broker after which the client of one member reconnects later than
// all others. Silence from before the outage must not count.
func lateClient(w *world) {
	p := w.anyone()
	if p == nil || len(w.live) < 2 {
		return
	}
	w.log.outage = w.now + w.between(5*time.Second, 7*time.Second)
	p.member.feed.cut = w.log.outage + w.between(2300*time.Millisecond, 2700*time.Millisecond) // and it is no fault of its own
	w.runUntil(w.log.outage + 15*time.Second)
}

// starvedWriter lets a Genesis land while all of a process but its driver waits, so that the
// frames to its application are sent late and together.
func starvedWriter(w *world) {
	p, q := w.anyone(), w.anyone()
	if p == nil || q == nil || p == q || q.member.machine == nil {
		return
	}
	d := w.between(time.Second, 3*time.Second)
	p.member.process.stop(d)
	p.member.touch(d)
	w.runUntil(w.now + w.between(0, 100*time.Millisecond))
	if !q.member.process.dead {
		w.injectGenesis(q.member)
	}
	w.runUntil(w.now + 8*time.Second)
}

// landsLate is a log in which many records land late.
func landsLate(w *world) {
	w.p.late, w.p.pace = 0.2, time.Second
	w.p.duplicate, w.p.lostAck, w.p.checkFails, w.p.preempt = 0, 0, 0, 0
}

// holeAtRollover drops an epoch at one reader as the log rolls over to a new ledger.
func holeAtRollover(w *world) {
	p := w.anyone()
	if p == nil {
		return
	}
	f := &p.member.feed
	f.skip, f.skips = 1, func(x logged) bool {
		_, ok := x.record.Body.(*ownership.Epoch)
		return ok
	}
	w.join()
	for end := w.now + 8*time.Second; f.skip > 0 && w.now < end; {
		w.runUntil(w.now + time.Millisecond)
	}
	f.skip, f.skips = 0, nil
	w.log.rollover()
	w.runUntil(w.now + 3*time.Second)
}

// helloAgain lets a joining member's first reader bring nothing, so that another one must
// bring another Hello, while keys move.
func helloAgain(w *world) {
	p := w.anyone()
	if p == nil || len(w.live) < 3 {
		w.join()
		w.runUntil(w.now + 4*time.Second)
		return
	}
	p.member.kill(true)
	w.runUntil(w.now + 3*time.Second)
	p.up()
	p.member.feed.stalled = w.now + 1200*time.Millisecond
	p.member.touch(10 * time.Second)
	w.after(w.between(0, time.Second), w.join)
	w.runUntil(w.now + 10*time.Second)
}

// covering is holders whose promises outlive owners.
func covering(w *world) { w.p.covering, w.p.publishEvery = true, time.Second }

// allDie kills all routers, and starts them again while promises run: the group begins anew.
func allDie(w *world) {
	w.spurious = true
	for _, m := range slices.Clone(w.live) {
		m.kill(true)
		w.restart(m.pod, w.between(0, 500*time.Millisecond))
	}
	w.runUntil(w.now + 25*time.Second)
}

// lateReservation lets a take or a drop land whose sender had not read the entry of its key: it has no effect, as a Snap says that knows the rule.
func lateReservation(late *ownership.Reservations) string {
	inc := ownership.Incarnation{1}
	at := func(entry int64) ownership.Position { return ownership.Position{Ledger: 1, Entry: entry} }
	node := ownership.Node{Name: "a", Inc: inc, Lease: time.Second, LogVersion: ownership.LogVersionMax}
	key := ownership.KeyAt{Partition: 1, Key: 5}
	held := ownership.ReservationID{2}
	entry := int64(0)
	replay := ownership.NewReplay("g")
	read := func(b ownership.Body) string {
		entry++
		if v := replay.Read(at(entry), ownership.Record{LogVersion: ownership.LogVersionMax, Group: "g", Inc: inc, Body: b}, uint64(entry)); v != nil {
			return v.Error()
		}
		return ""
	}
	late.Applied = at(1)
	for i := range late.Take {
		late.Take[i].KeyAt = key
	}
	for i := range late.Drop {
		late.Drop[i] = key
	}
	position := func(entry int64) []ownership.Position { return []ownership.Position{at(entry), at(entry)} }
	state := &ownership.State{
		HashID: "h", Genesis: at(1), Cur: at(1), LogVersion: ownership.LogVersionMax, Members: []ownership.Incarnation{inc}, Nodes: []ownership.Node{node}, Table: make([]uint16, 2),
		Start: position(1), LastTake: at(2),
		Reserved: []ownership.Reserved{{KeyAt: key, IDs: []ownership.ReservationID{held}, TTL: ownership.TTLLeast, At: at(2)}},
	}
	if len(late.Take) > 0 {
		state.LastTake = at(3)
	}
	for range state.Table {
		state.Pending = append(state.Pending, []ownership.Tenure{{Lease: ownership.LeaseMax, Dep: at(1)}})
	}
	for _, b := range []ownership.Body{
		&ownership.Genesis{HashID: "h", Partitions: 2, Members: []ownership.Node{node}, Table: make([]uint16, 2)},
		&ownership.Reservations{Seq: 1, Applied: at(1), Take: []ownership.Take{{KeyAt: key, ID: held, TTL: ownership.TTLLeast}}},
		late,
		&ownership.Hello{Node: ownership.Node{Name: "b", Inc: ownership.Incarnation{2}, Lease: time.Second}, HashID: "h", Partitions: 2, NeedState: true},
	} {
		if what := read(b); what != "" {
			return what
		}
	}
	state.ViewHash = replay.ViewHash()
	return read(&ownership.Snap{ForHello: at(4), State: state})
}

func lateTake() string {
	return lateReservation(&ownership.Reservations{Seq: 2, Take: []ownership.Take{{ID: ownership.ReservationID{3}, TTL: ownership.TTLLeast}}})
}

func lateDrop() string {
	return lateReservation(&ownership.Reservations{Seq: 2, Drop: make([]ownership.KeyAt, 1)})
}
