package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline/schedule"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// agenda are the schedules that the applications of a run declare, and what became of their firings. The time of day is the same everywhere.
type agenda struct {
	w           *world
	definitions []schedule.Definition
	wire        []*appv1.Schedule
	fails       float64 // how likely a handler rejects a firing, and as likely it wants it again later; 0: as any event

	first   map[string]time.Time    // by name: the first time that was published
	copies  map[event.MessageID]int // of a firing, at the broker, that are not acked
	over    map[event.MessageID]int // how often a handler has done it, or it became a dead letter
	dropped map[event.MessageID]int // how often its policy has dropped it
	until   time.Time               // what is due later waits at the broker while the cluster comes to rest; zero: nothing
}

// schedules makes the applications declare schedules, one of each policy. The scene must be part of the run from its beginning.
func schedules(w *world) {
	if w.agenda != nil {
		return
	}
	g := &agenda{w: w, first: map[string]time.Time{}, copies: map[event.MessageID]int{}, over: map[event.MessageID]int{}, dropped: map[event.MessageID]int{}}
	policies := map[schedule.Policy]appv1.MissedPolicy{
		schedule.Latest: appv1.MissedPolicy_MISSED_POLICY_LATEST, schedule.All: appv1.MissedPolicy_MISSED_POLICY_ALL, schedule.Skip: appv1.MissedPolicy_MISSED_POLICY_SKIP,
	}
	for i := 0; len(g.definitions) < len(policies); i++ {
		d := schedule.Definition{Name: fmt.Sprint("s", i), Every: 10 * time.Second, Jitter: 3 * time.Second, Missed: schedule.Policy(len(g.definitions))}
		if int(ring.PartitionOf(schedule.KeyOf(d.Name))) >= w.p.partitions {
			continue
		}
		d, err := d.Parse()
		if err != nil {
			w.fail("%v", err)
			return
		}
		g.definitions = append(g.definitions, d)
		g.wire = append(g.wire, &appv1.Schedule{
			Name: d.Name, EveryMs: uint64(d.Every.Milliseconds()), JitterMs: uint64(d.Jitter.Milliseconds()), Missed: policies[d.Missed],
		})
	}
	w.agenda = g
}

// now is the time of day.
func (g *agenda) now() time.Time { return time.Unix(1_800_000_000, 0).UTC().Add(g.w.now) }

// firingID is the message id of a firing.
func firingID(d schedule.Definition, at time.Time) event.MessageID {
	return schedule.MessageID(d.Name, schedule.FiringID(d, at))
}

// publish takes a copy of a firing, which comes when it is due.
func (g *agenda) publish(a schedule.Arm) {
	sent := a.Sent()
	ev := &event.Event{ID: schedule.MessageID(a.Definition.Name, a.ID), Key: sent.Key, Topic: "t", Round: 1, Payload: []byte{}, Properties: sent.Properties(nil)}
	if first, known := g.first[a.Definition.Name]; !known || a.Time.Before(first) {
		g.first[a.Definition.Name] = a.Time
	}
	g.copies[ev.ID]++
	g.w.count("firing_armed")
	g.w.tracef("broker: a copy of %s of %v", a.Definition.Name, a.Time.UTC().Format(time.TimeOnly))
	early := time.Duration(0)
	if g.w.chance(0.3) { // brokers deliver by ticks, and mostly one too early
		early = g.w.between(0, time.Second)
	}
	g.w.after(a.Due.Sub(g.now())-early, func() { g.deliver(ev, a.Due) })
}

// deliver makes a copy of a firing an entry of the broker.
func (g *agenda) deliver(ev *event.Event, due time.Time) {
	w, b := g.w, g.w.broker
	if !g.until.IsZero() && due.After(g.until) {
		w.after(time.Second, func() { g.deliver(ev, due) })
		return
	}
	p := b.byID[ev.ID]
	if p == nil {
		p = &published{id: ev.ID, key: ev.Key, at: w.now, done: g.over[ev.ID] + g.dropped[ev.ID]} // copies of one that is over are acked without a handler
		b.add(p)
	}
	p.copies++
	e := b.newEntry()
	e.events = []*event.Event{ev}
	b.ready = append(b.ready, e)
	b.dispatch()
}

// missing returns a firing that must have run by now, and has not; "": none.
func (g *agenda) missing() string {
	if g == nil || g.until.IsZero() {
		return ""
	}
	for _, d := range g.definitions {
		first, known := g.first[d.Name]
		if !known {
			return "no firing of " + d.Name + " was ever published"
		}
		newest := time.Time{}
		for at := first; !at.Add(d.Offset()).After(g.until); at = at.Add(d.Every) {
			if newest = at; d.Missed == schedule.All && g.over[firingID(d, at)] == 0 {
				return fmt.Sprintf("%s of %v has not run", d.Name, at)
			}
		}
		if d.Missed == schedule.Latest && !newest.IsZero() && g.over[firingID(d, newest)] == 0 && !g.superseded(d, newest) {
			return fmt.Sprintf("%s of %v, the newest, has not run", d.Name, newest)
		}
	}
	return ""
}

// superseded reports whether a later firing is due that waits at the broker while the cluster comes to rest.
func (g *agenda) superseded(d schedule.Definition, at time.Time) bool {
	for at = at.Add(d.Every); !at.Add(d.Offset()).After(g.now()); at = at.Add(d.Every) {
		if g.copies[firingID(d, at)] > 0 {
			return true
		}
	}
	return false
}

// started checks a firing that a handler begins with.
func (g *agenda) started(h *handling) {
	if h.sent.Firing == nil {
		return
	}
	g.w.count("firing_started")
	if due := time.UnixMilli(h.sent.Due); g.now().Before(due) {
		g.w.fail("%v starts %v before its time", h, due.Sub(g.now()))
	}
	if g.over[h.id] > 0 {
		g.w.count("firing_started_again")
	}
}

// drops notes that the policy of a firing drops it. One that is dropped as a duplicate must be over.
func (g *agenda) drops(f schedule.Firing, why schedule.Reason) {
	g.w.count("firing_dropped")
	if why == schedule.Duplicate {
		return
	}
	id := firingID(g.definition(f.Name), f.Time)
	g.dropped[id]++
	if p := g.w.broker.byID[id]; p != nil {
		p.done++
	}
}

// definition returns the schedule of a name.
func (g *agenda) definition(name string) schedule.Definition {
	return g.definitions[slices.IndexFunc(g.definitions, func(d schedule.Definition) bool { return d.Name == name })]
}

// drawResult draws the result of a firing's handler.
func (g *agenda) drawResult() event.Result {
	switch x := g.w.rng.Float64(); {
	case x < g.fails:
		g.w.count("firing_rejected")
		return event.Result{Kind: event.ResultReject, Reason: "never"}
	case x < 2*g.fails:
		g.w.count("firing_wanted_later")
		return event.Result{Kind: event.ResultRetry, Reason: "later", After: g.w.between(time.Second, 3*time.Second)}
	case x < 2.2*g.fails:
		return event.Result{Kind: event.ResultRetry, Reason: "not now"}
	}
	return event.Result{Kind: event.ResultDone}
}

// firings performs what the Book of a member asks for, as internal/node's schedules do.
type firings struct {
	m       *member
	g       *agenda
	book    *schedule.Book
	running map[event.DeliveryID]schedule.Firing
	tenures map[ring.Partition]ownership.Token
	soon    bool
}

func newFirings(m *member) *firings {
	s := &firings{m: m, g: m.w.agenda, book: schedule.NewBook(), running: map[event.DeliveryID]schedule.Firing{}, tenures: map[ring.Partition]ownership.Token{}}
	s.look(0)
	return s
}

// look lets the goroutine that publishes firings look after a while, and again whenever the Book wants.
func (s *firings) look(after time.Duration) {
	if s.soon {
		return
	}
	s.soon = true
	s.m.process.later(after+s.m.w.hop(), func() {
		s.soon = false
		now := s.g.now()
		for _, a := range s.book.Tick(now) {
			s.arm(a)
		}
		next := 200 * time.Millisecond // production is told of changes
		if at := s.book.Next(now); !at.IsZero() {
			next = min(next, max(20*time.Millisecond, at.Sub(now)))
		}
		s.look(next)
	})
}

// arm publishes a firing. The broker may take it, and its answer get lost.
func (s *firings) arm(a schedule.Arm) {
	w := s.m.w
	w.after(max(0, w.broker.outage-w.now)+w.between(time.Millisecond, 20*time.Millisecond), func() {
		var failed error
		if w.chance(0.05) {
			failed = errUnsent
			w.count("firing_arm_failed")
		}
		if failed == nil || w.chance(0.5) {
			s.g.publish(a)
		}
		s.m.process.later(w.hop(), func() { s.book.Armed(s.g.now(), a.ID, failed) })
	})
}

var errUnsent = errors.New("the broker does not answer")

// maySkip does what internal/node's schedules do.
func (s *firings) maySkip(e *event.Event) bool {
	sent, err := event.ParseSent(e.Properties)
	return err != nil || sent.Firing == nil || s.book.MaySkip(s.g.now(), schedule.FiringOf(&sent))
}

// known does what internal/node's schedules do.
func (m *member) known(events []event.Known) {
	for _, e := range events {
		if m.firings != nil {
			m.firings.book.Over(e.Key, e.Event)
		}
	}
}

// stop does what internal/node's schedules do; nil: no schedules.
func (s *firings) stop(keys []event.Key, why schedule.Stop, stops bool) {
	if s == nil {
		return
	}
	for _, key := range keys {
		s.book.Stop(s.g.now(), key, why, stops)
	}
}

// opens and closes do what internal/node's schedules do.
func (s *firings) opens(changes []ownership.GateChange) {
	for _, c := range changes {
		if c.Gate == ownership.Open && s.tenures[c.Partition] != c.Token {
			s.tenures[c.Partition] = c.Token
			s.book.Opened(s.g.now(), c.Partition)
		}
	}
}

func (s *firings) closes(changes []ownership.GateChange) {
	for _, c := range changes {
		if c.Gate != ownership.Open {
			delete(s.tenures, c.Partition)
			s.book.Closed(c.Partition)
		}
	}
}

// Declare implements app.Schedules.
func (s *firings) Declare(w event.WorkerID, _ []*appv1.Schedule) error {
	return s.book.Declare(s.g.now(), uint64(w), s.g.definitions)
}

// Forget implements app.Schedules.
func (s *firings) Forget(w event.WorkerID) { s.book.Forget(s.g.now(), uint64(w)) }

// Arrive implements app.Schedules.
func (s *firings) Arrive(w event.WorkerID, id event.DeliveryID, sent *event.Sent) app.Firing {
	f, now := schedule.FiringOf(sent), s.g.now()
	if other := s.book.Elsewhere(uint64(w), f.Name); other != 0 {
		return app.Firing{To: event.WorkerID(other)}
	}
	d := s.book.Arrive(now, f)
	if d.Verdict == schedule.Enter {
		s.running[id] = f
	}
	s.m.w.tracef("%s: %s of %v arrives: %v %v", s.m, f.Name, f.Time.UTC().Format(time.TimeOnly), d.Verdict, d.Reason)
	switch d.Verdict {
	case schedule.Enter:
		s.checkEntered(f)
		return app.Firing{Run: true, Missed: uint32(d.Missed)}
	case schedule.Drop:
		s.g.drops(f, d.Reason)
		return app.Firing{}
	case schedule.NotYet:
		s.m.w.count("firing_put_off")
	}
	return app.Firing{After: max(d.Until.Sub(now), 20*time.Millisecond)}
}

// checkEntered: a firing runs only when the next one of its schedule cannot be lost any more.
func (s *firings) checkEntered(f schedule.Firing) {
	d := s.g.definition(f.Name)
	next, ok := d.Next(f.Time)
	if id := firingID(d, next); ok && s.g.copies[id] == 0 && s.g.over[id] == 0 {
		s.m.w.fail("%s: %s of %v runs before %v is safe", s.m, f.Name, f.Time, next)
	}
}

// checkSkipped: a firing becomes a dead letter only when the next one, which is to run, too, cannot be lost any more.
func (s *firings) checkSkipped(key event.Key, id event.MessageID) {
	for _, d := range s.g.definitions {
		if d.Missed != schedule.All || string(key) != schedule.KeyOf(d.Name) {
			continue
		}
		oldest, now := s.g.first[d.Name], s.g.now()
		for at, n := now.Truncate(d.Every), 0; n < schedule.MissedMax && !at.Before(oldest); at, n = at.Add(-d.Every), n+1 {
			if next := firingID(d, at.Add(d.Every)); firingID(d, at) == id {
				s.m.w.count("firing_skipped")
				if s.g.copies[next] == 0 && s.g.over[next] == 0 {
					s.m.w.fail("%s: %s of %v is skipped before the next one is safe", s.m, d.Name, at)
				}
			}
		}
	}
}

// Ended implements app.Schedules.
func (s *firings) Ended(r event.Result) bool {
	f, known := s.running[r.Delivery]
	if known {
		delete(s.running, r.Delivery)
		s.book.Done(s.g.now(), f, schedule.EndOf(r.Kind, s.m.pipeline.Outlook(r)))
	}
	return known
}
