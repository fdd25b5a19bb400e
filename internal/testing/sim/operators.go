package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline/schedule"
	"github.com/ringfence/router/ring"
)

// This file contains the operators who hold, release, skip, park and unpark, the acts topic, and the parking topic. It knows what an act forbids
// by what each member has read.

// acts are the acts topic and the parking topic of a run.
type acts struct {
	w       *world
	records [][]byte
	fold    act.Fold // of all records
	on      bool     // operators act
	letters []*letter
	reader  *reading                   // of the parking topic, the only one
	marks   map[string]event.MessageID // of each key and mark, what was parked with it
}

// letter is a message of the parking topic.
type letter struct {
	event *event.Event
	mark  event.Mark
}

// reading is a member's exclusive subscription of the parking topic.
type reading struct {
	by     *keeper
	closed bool
}

// withActs lets operators act in a run.
func withActs(w *world) {
	w.acts = &acts{w: w, marks: map[string]event.MessageID{}}
	w.after(10*time.Second, w.acts.operateOn)
}

// now is the time of day.
func (a *acts) now() time.Time {
	return time.UnixMilli(1_800_000_000_000).Add(a.w.now).Truncate(time.Millisecond)
}

func (a *acts) key() event.Key {
	if all := a.keys(); len(all) > len(a.w.keys) && a.w.chance(0.3) { // of a schedule
		return all[len(a.w.keys)+a.w.rng.IntN(len(all)-len(a.w.keys))]
	}
	if a.w.chance(0.3) {
		return a.w.keys[0]
	}
	return a.w.keys[a.w.rng.IntN(len(a.w.keys))]
}

// keys are all keys, those of schedules last.
func (a *acts) keys() []event.Key {
	all := slices.Clone(a.w.keys)
	if a.w.agenda != nil {
		for _, d := range a.w.agenda.definitions {
			all = append(all, event.Key(schedule.KeyOf(d.Name)))
		}
	}
	return all
}

// operateOn lets operators act as long as the run wants it.
func (a *acts) operateOn() {
	w := a.w
	if a.on {
		key, lasts := a.key(), w.between(time.Second, 40*time.Second)
		switch w.rng.IntN(10) {
		case 0, 1:
			a.order(act.Record{Kind: act.Hold, Key: key}, lasts)
		case 2, 3:
			a.order(act.Record{Kind: act.Release, Key: key}, 0)
		case 4, 5, 6:
			if n := len(w.broker.events); n > 0 {
				p := w.broker.events[w.rng.IntN(n)]
				a.order(act.Record{Kind: act.Skip, Key: p.key, Event: p.id}, lasts)
			}
		case 7, 8:
			a.order(act.Record{Kind: act.Park, Key: key}, 2*lasts)
			w.after(w.between(time.Second, 10*time.Second), func() { a.order(act.Record{Kind: act.Unpark, Key: key}, 2*time.Minute) })
		default:
			a.order(act.Record{Kind: act.Unpark, Key: key}, 2*time.Minute)
		}
	}
	w.after(w.between(0, 4*time.Second), a.operateOn)
}

// order appends a record.
func (a *acts) order(r act.Record, lasts time.Duration) {
	for i := range r.ID {
		r.ID[i] = byte(a.w.rng.Uint32())
	}
	r.At = a.now()
	r.Until = r.At.Add(lasts.Truncate(time.Millisecond))
	r.By, r.Via, r.Reason = "operator", "sim", "why not"
	data, err := act.Encode(r)
	if err != nil {
		a.w.fail("an act is not written: %v", err)
		return
	}
	a.records = append(a.records, data)
	_, result := a.fold.Apply(event.Position{Ledger: 1, Entry: int64(len(a.records))}, data)
	a.w.count("act_" + r.Kind.String() + "_" + string(result))
	a.w.tracef("ACT %v of %s, event %v, %v: %v", r.Kind, string(r.Key), r.Event, lasts, result)
	for _, m := range a.w.live {
		m.keeper.read()
	}
}

// rest ends all acts, and brings all letters back.
func (a *acts) rest() {
	if a == nil {
		return
	}
	a.on = false
	for _, key := range a.keys() {
		if _, held := a.fold.Held(key, a.now()); held {
			a.order(act.Record{Kind: act.Release, Key: key}, 0)
		}
		r, parked := a.fold.ParkOf(key, a.now())
		has := slices.ContainsFunc(a.letters, func(l *letter) bool { return l.event.Key == key })
		if parked && r.Kind == act.Park || !parked && has {
			a.order(act.Record{Kind: act.Unpark, Key: key}, 2*time.Minute)
		}
	}
}

// land puts a copy into the parking topic.
func (a *acts) land(ev *event.Event, d event.Detail) {
	text, _ := event.CutMark(d.Reason)
	mark, err := event.ParseMark(text)
	if err != nil {
		a.w.fail("%v is parked with the reason %q: %v", ev.ID, d.Reason, err)
		return
	}
	a.checkLands(ev, mark)
	a.w.broker.copied(ev, 1)
	c := *ev
	c.Handle, c.Attempts, c.Crashes, c.Round = 0, max(ev.Attempts, d.Attempts), max(ev.Crashes, d.Crashes), ev.Round+1
	c.Partition = ring.PartitionOf(string(c.Key))
	a.letters = append(a.letters, &letter{&c, mark})
	a.w.count("parked")
	a.w.tracef("parking topic: %v of %s, %v", c.ID, string(c.Key), mark)
}

// remove acks a letter.
func (a *acts) remove(l *letter) {
	i := slices.Index(a.letters, l)
	if i < 0 {
		return
	}
	a.letters = slices.Delete(a.letters, i, i+1)
	a.w.broker.gone(l.event)
}

// skipName names a skip.
type skipName struct {
	key   event.Key
	event event.MessageID
}

// keeper is a member's half of the acts: act.Keeper, and what brings letters back.
type keeper struct {
	m       *member
	a       *acts
	fold    act.Fold
	next    int
	reading bool
	ahead   time.Duration // of its wall clock
	due     time.Duration // when it looks again whether acts expire; 0: not

	effects act.Effects
	held    map[event.Key]bool // what the mailboxes were told
	skips   map[skipName]bool
	parks   map[event.Key]event.Park

	back     map[event.Key]*comeback
	waiting  map[event.Handle]func(event.Verdict)
	brings   map[event.MessageID]int // letters that are under way, also those of an earlier unpark
	newest   event.Handle
	copying  map[event.Key]int // events on their way to the parking topic
	looks    bool
	unparked map[event.Key]int // of parked keys with events, how often checkParked saw them in a row
}

// comeback is an unpark at a member.
type comeback struct {
	park   event.Park
	calm   clock.Instant
	busy   bool
	ended  bool
	unsaid map[*letter]bool
}

func newKeeper(m *member) *keeper {
	if m.w.acts == nil {
		return nil
	}
	k := &keeper{
		m: m, a: m.w.acts, ahead: m.w.between(-2*time.Second, 2*time.Second), held: map[event.Key]bool{}, skips: map[skipName]bool{}, parks: map[event.Key]event.Park{},
		back: map[event.Key]*comeback{}, waiting: map[event.Handle]func(event.Verdict){}, copying: map[event.Key]int{}, brings: map[event.MessageID]int{}, unparked: map[event.Key]int{},
	}
	k.read()
	return k
}

func (k *keeper) now() time.Time { return k.a.now().Add(k.ahead) }

// read brings the records that have arrived, mostly soon.
func (k *keeper) read() {
	if k == nil || k.reading || k.next == len(k.a.records) {
		return
	}
	k.reading = true
	w := k.m.w
	d := w.between(time.Millisecond, 30*time.Millisecond)
	if w.chance(0.1) {
		d = w.between(0, 5*time.Second)
	}
	k.m.process.later(d, func() {
		k.reading = false
		for ; k.next < len(k.a.records); k.next++ {
			k.fold.Apply(event.Position{Ledger: 1, Entry: int64(k.next + 1)}, k.a.records[k.next])
		}
		k.settle()
	})
}

// settle makes the mailboxes go by the acts in effect, and looks again when the first of them expires, as act.Keeper does.
func (k *keeper) settle() {
	now := k.now()
	k.effects.Become(k.fold.Active(now), k)
	if next, ok := k.fold.Next(now); ok {
		at := k.m.w.now + next.Sub(now) + time.Millisecond
		if k.due == 0 || at < k.due {
			k.due = at
			k.m.process.later(at-k.m.w.now, func() {
				if k.due == at {
					k.due = 0
					k.settle()
				}
			})
		}
	}
}

// A keeper is the act.Keys of its member: it passes the calls on, and knows for the checks what its mailboxes were told.

func (k *keeper) HoldKeys(keys []event.Key) {
	for _, key := range keys {
		k.held[key] = true
	}
	k.m.pipeline.HoldKeys(keys)
	k.m.firings.stop(keys, schedule.OnHold, true)
}

func (k *keeper) ReleaseKeys(keys []event.Key) {
	for _, key := range keys {
		delete(k.held, key)
	}
	k.m.pipeline.ReleaseKeys(keys)
	k.m.firings.stop(keys, schedule.OnHold, false)
}

func (k *keeper) SkipEvents(skips []event.Skip) {
	for _, s := range skips {
		k.skips[skipName{s.Key, s.Event}] = true
	}
	k.m.pipeline.SkipEvents(skips)
}

func (k *keeper) UnskipEvents(skips []event.Skip) {
	for _, s := range skips {
		delete(k.skips, skipName{s.Key, s.Event})
	}
	k.m.pipeline.UnskipEvents(skips)
}

func (k *keeper) ParkKeys(parks []event.Park) {
	k.m.pipeline.ParkKeys(parks)
	for _, p := range parks {
		k.parks[p.Key] = p
		k.m.firings.stop([]event.Key{p.Key}, schedule.Parked, p.State != event.NotParked)
		k.m.firings.stop([]event.Key{p.Key}, schedule.Unparking, p.State == event.ParkEnds)
		delete(k.back, p.Key)
		switch p.State {
		case event.ParkEnds:
			k.back[p.Key] = &comeback{park: p, unsaid: map[*letter]bool{}}
		case event.NotParked:
			delete(k.parks, p.Key)
		case event.ParkOn:
		}
	}
	k.lookLater()
}

// ---- the letters, as internal/node's unparks bring them back ----

func (k *keeper) lookLater() {
	if k.looks {
		return
	}
	k.looks = true
	k.m.process.later(200*time.Millisecond, func() {
		k.looks = false
		for _, key := range slices.Sorted(maps.Keys(k.back)) {
			k.look(k.back[key])
		}
		if len(k.back) > 0 {
			k.lookLater()
		}
	})
}

func (k *keeper) look(c *comeback) {
	now := k.m.clock()
	switch {
	case c.busy || c.ended:
	case k.m.boxes.Inspect(c.park.Key).Gate != ownership.Open || k.restless(c.park):
		c.calm = 0
	case c.calm == 0:
		c.calm = now
	case now.Sub(c.calm) >= time.Second:
		k.bring(c)
	}
}

// restless reports whether events of a key may still be on their way to the parking topic.
func (k *keeper) restless(p event.Park) bool {
	w, t := k.m.w, k.m.pipeline.Table()
	for _, n := range t.Members {
		o := w.names[n.Inc]
		if o == nil || o.inc != n.Inc || o.process.dead || o.process.isStopped() || w.isCut(k.m, o) || w.isCut(o, k.m) || o.keeper.parks[p.Key] != p {
			return true
		}
	}
	return slices.ContainsFunc(w.live, func(o *member) bool { return !o.process.isStopped() && o.keeper.copying[p.Key] > 0 })
}

// bring reads the letters of a key once, and handles them.
func (k *keeper) bring(c *comeback) {
	a, w := k.a, k.m.w
	if r := a.reader; r != nil && !r.closed {
		if m := r.by.m; !m.process.dead && !m.process.isStopped() {
			return
		}
		r.closed = true // the broker has noticed
	}
	r := &reading{by: k}
	a.reader, c.busy = r, true
	k.m.process.later(w.between(5*time.Millisecond, 50*time.Millisecond), func() {
		var letters, handled []*letter
		for _, l := range a.letters {
			switch {
			case l.event.Key != c.park.Key:
			case c.unsaid[l]:
				handled = append(handled, l)
			default:
				letters = append(letters, l)
			}
		}
		slices.SortStableFunc(letters, func(x, y *letter) int { return x.mark.Fence.Compare(y.mark.Fence) })
		for _, l := range handled {
			k.ack(c, l, r)
		}
		if len(letters) == 0 {
			if len(handled) == 0 && k.back[c.park.Key] == c && !r.closed {
				c.ended = true
				w.count("unparked")
				a.order(act.Record{Kind: act.Unparked, Key: c.park.Key, Of: c.park.Act, End: act.EndEmpty}, 0)
			}
			c.busy, r.closed = false, true
			return
		}
		k.m.process.later(20*time.Second, func() { r.closed = true })
		k.handle(c, letters, map[event.MessageID]bool{}, r, w.now+20*time.Second)
	})
}

// handle handles letters of a key, one after the other.
func (k *keeper) handle(c *comeback, letters []*letter, done map[event.MessageID]bool, r *reading, until time.Duration) {
	stop := func() { c.busy, r.closed = false, true }
	if len(letters) == 0 {
		stop()
		return
	}
	l := letters[0]
	if done[l.event.ID] {
		k.ack(c, l, r)
		k.handle(c, letters[1:], done, r, until)
		return
	}
	if k.back[c.park.Key] != c || k.m.w.now > until {
		stop()
		return
	}
	k.one(c, l, func(ended bool) {
		if !ended {
			stop()
			return
		}
		done[l.event.ID] = true
		k.ack(c, l, r)
		k.handle(c, letters[1:], done, r, until)
	})
}

// ack removes a letter, unless its reading is over. Now and then the broker does not answer.
func (k *keeper) ack(c *comeback, l *letter, r *reading) {
	failed := r.closed || k.m.w.chance(0.05)
	if !failed || !r.closed && k.m.w.chance(0.5) {
		k.a.remove(l)
	}
	if failed {
		k.m.w.count("letter_ack_failed")
		c.unsaid[l] = true
	} else {
		delete(c.unsaid, l)
	}
}

// one handles a letter.
func (k *keeper) one(c *comeback, l *letter, then func(ended bool)) {
	w := k.m.w
	k.newest++
	handle, e := k.newest, *l.event
	e.Handle = handle
	send := func() {
		sent := e
		k.m.pipeline.BringBack(&sent)
	}
	end := func(ended bool) {
		delete(k.waiting, handle)
		k.brings[e.ID]--
		then(ended)
	}
	k.waiting[handle] = func(v event.Verdict) {
		d := v.DetailOrZero()
		w.count("letter_" + v.Kind.String())
		switch v.Kind {
		case event.Done:
			end(true)
		case event.Failed, event.Rejected:
			delete(k.waiting, handle)
			k.brings[e.ID]--
			k.copy(c, &e, v, then)
		case event.Attempted:
			e.Attempts, e.Crashes, e.LastError = d.Attempts, d.Crashes, d.Reason
		case event.NotYet, event.Overloaded:
			k.m.process.later(max(d.Delay, time.Millisecond), send)
		case event.NotOwner, event.Parked:
			end(false)
		default:
			w.fail("%s: the letter %v gets the verdict %v", k.m, e.ID, v.Kind)
		}
	}
	k.brings[e.ID]++
	w.tracef("%s: brings %v of %s back", k.m, e.ID, string(e.Key))
	send()
}

// copy brings a letter whose event has failed to the retry topic or the dead letter topic.
func (k *keeper) copy(c *comeback, e *event.Event, v event.Verdict, then func(bool)) {
	w := k.m.w
	if k.back[c.park.Key] != c || k.m.boxes.Inspect(c.park.Key).Gate != ownership.Open {
		then(false)
		return
	}
	w.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
		if v.Kind == event.Rejected {
			w.broker.deadLetter(e)
		} else {
			w.broker.copyLater(e, v.DetailOrZero())
		}
		k.m.process.act(func() { then(true) })
	})
}

// lettersSettled takes verdicts on letters.
func (m *member) lettersSettled(verdicts []event.Verdict) {
	for _, v := range verdicts {
		m.process.later(m.w.hop(), func() {
			if to := m.keeper.waiting[v.Handle]; to != nil {
				to(v)
			}
		})
	}
}

// skipped tells the ends of skips.
func (m *member) skipped(ended []event.Skipped) {
	for _, s := range ended {
		m.checkSkipped(&s)
		if m.firings != nil && !s.Done {
			m.firings.checkSkipped(s.Key, s.Event)
			m.firings.book.Skip(s.Key, s.Event)
		}
		end := act.EndDeadLetter
		if s.Done {
			end = act.EndDone
		}
		m.process.later(m.w.hop(), func() {
			if !m.w.chance(0.1) { // it dies first
				m.w.acts.order(act.Record{Kind: act.Skipped, Key: s.Key, Of: s.Act, End: end}, 0)
			}
		})
	}
}

// ---- the judge ----

// checkSkipped: an event becomes a dead letter by a skip at the member alone that may run it. One that its handler has done may run again elsewhere when that is reported.
func (m *member) checkSkipped(s *event.Skipped) {
	if s.Done {
		return
	}
	for _, h := range m.w.running[s.Key] {
		if h.id == s.Event && h.runs() && h.owner() != m {
			m.w.unless(m.w.p.defiant || m.w.wild, "skipped_beside_handler", "%s skips %v, which runs: %v", m, s.Event, h)
		}
	}
}

// checkLands: what left the queue of a key before a letter has ended before it, and no other event has its mark.
func (a *acts) checkLands(ev *event.Event, mark event.Mark) {
	name := string(ev.Key) + " " + mark.String()
	if other, known := a.marks[name]; known && other != ev.ID {
		a.w.fail("%v and %v are parked with the mark %v", other, ev.ID, mark)
	}
	a.marks[name] = ev.ID
	for _, h := range a.w.running[ev.Key] {
		if h.reserved == nil && h.fence().Before(mark.Fence) && h.runs() {
			excused := a.w.p.defiant || a.w.wild && h.token < mark.Fence.Token // clocks let two owners act
			a.w.unless(excused, "parked_beside_handler", "%v is parked with the mark %v, while an earlier delivery runs: %v", ev.ID, mark, h)
		}
	}
}

// checkParked: the events of a parked key leave its owner while it has a lease.
func (k *keeper) checkParked() {
	m := k.m
	for _, key := range slices.Sorted(maps.Keys(k.parks)) {
		p := ring.PartitionOf(string(key))
		at := m.boxes.Inspect(key)
		if k.parks[key].State == event.ParkOn && m.lease.MayDispatch(m.gates[p].Gate, m.clock()) && len(m.gates[p].Withheld) == 0 && len(m.gates[p].Reserved) == 0 && at.Depth > 0 && at.Wait != mailbox.WaitHandler {
			if k.unparked[key]++; k.unparked[key] == 3 {
				m.w.fail("%s does not park the %d events of %s", m, at.Depth, string(key))
			}
			continue
		}
		delete(k.unparked, key)
	}
}

// promised reports whether a former owner has promised a reservation, of which its holder may not have heard.
func (m *member) promised(d *event.Delivery) bool {
	return slices.Contains(m.gates[d.Partition].Reserved, ownership.ReservedKey{Key: ring.HashOf(string(d.Ref.Key())), ID: ownership.ReservationOf(d.MessageID())})
}

// checkBegun: nothing begins that an act forbids which this member has read.
func (k *keeper) checkBegun(d *event.Delivery) {
	w, key := k.m.w, d.Ref.Key()
	if call := d.Call(); call != nil && call.Reservation && (call.Resume || w.reservings[d.MessageID()].turn != nil || k.m.promised(d)) {
		return // its turn goes on
	}
	if k.held[key] {
		w.fail("%s begins %v of %s, which is held", k.m, d.MessageID(), string(key))
	}
	if k.skips[skipName{key, d.MessageID()}] {
		w.fail("%s begins %v of %s, which is skipped", k.m, d.MessageID(), string(key))
	}
	switch k.parks[key].State {
	case event.ParkOn:
		w.fail("%s begins %v of %s, which is parked", k.m, d.MessageID(), string(key))
	case event.ParkEnds:
		if k.brings[d.MessageID()] == 0 {
			w.fail("%s begins %v of %s, whose letters come first", k.m, d.MessageID(), string(key))
		}
	case event.NotParked:
	}
}
