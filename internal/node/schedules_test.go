package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/pipeline/schedule"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

// fired notes the runs of a schedule in one process, over all its members.
type fired struct {
	mu       sync.Mutex
	busy     map[string]int // runs in progress, by schedule: two schedules are two keys, which may run at the same time
	overlaps int
	early    int
	runs     map[string]int // by schedule and time
	by       map[string]int
	fail     int // so many runs fail first
}

func (f *fired) handler(member string) client.FiringHandler {
	return func(_ context.Context, one *client.Firing) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.busy == nil {
			f.busy = map[string]int{}
		}
		if f.busy[one.Schedule]++; f.busy[one.Schedule] > 1 {
			f.overlaps++
		}
		f.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
		f.mu.Lock()
		f.busy[one.Schedule]--
		if time.Now().Before(one.Time) {
			f.early++
		}
		if f.fail > 0 {
			f.fail--
			return errors.New("not this time")
		}
		f.runs[one.Schedule+one.Time.Format(time.RFC3339)]++
		f.by[member]++
		return nil
	}
}

func (f *fired) count() (runs, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.runs {
		runs += n
	}
	return runs, len(f.runs)
}

// TestTimeOfDayIsThatOfTheWall: schedules follow the wall clock when it is set. Of two times with a monotonic reading
// only that is compared, so after a clock that was a year ahead a schedule would fire next in a year.
func TestTimeOfDayIsThatOfTheWall(t *testing.T) {
	t.Parallel()
	if now := timeOfDay(); strings.Contains(now.String(), " m=") {
		t.Errorf("%v has a monotonic reading", now)
	}
}

// owning connects a worker without schedules to each member, and returns when they own all partitions. A schedule that is declared after its time, or
// has no owner by then, does not run, and a busy machine takes long to make a group.
func (g *group) owning(members ...*member) {
	g.t.Helper()
	for _, m := range members {
		g.serve(m, done)
	}
	g.ready(members...)
	g.eventually("all gates are open", func() error {
		open := 0
		for _, m := range members {
			open += m.Status().Open
		}
		if open != ring.Partitions {
			return fmt.Errorf("%d are", open)
		}
		return nil
	})
}

// TestSchedulesOfOneOfTwoWorkers: of an application with two workers, one declares the schedules, and each of these
// runs, though the keys of half of them belong to the other one.
func TestSchedulesOfOneOfTwoWorkers(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	f := &fired{runs: map[string]int{}, by: map[string]int{}}
	m := g.start("a", nil)
	g.owning(m)
	soon := client.At(time.Now().Add(12 * time.Second))
	names := []string{"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"}
	var options []client.Option
	for _, name := range names {
		options = append(options, client.WithSchedule(name, soon, f.handler(name)))
	}
	g.serve(m, done, options...)
	eventually.True(t, "each schedule runs", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.by) == len(names)
	})
}

// TestSchedules: a schedule runs once in the group at each of its times, on the owner of its key, also after that has gone; a run that fails is tried
// again; a wrong schedule is refused by name.
func TestSchedules(t *testing.T) {
	t.Parallel()
	calmly(t, runSchedules)
}

func runSchedules(t testing.TB, g *group) {
	f := &fired{runs: map[string]int{}, by: map[string]int{}, fail: 1}
	a, b := g.start("a", nil), g.start("b", nil)
	g.owning(a, b)
	soon := time.Now().Add(18 * time.Second).Truncate(10 * time.Second)
	for _, m := range []*member{a, b} {
		g.serve(m, done, client.WithDrainGrace(5*time.Second),
			client.WithSchedule("tick", client.Every(10*time.Second), f.handler(m.cfg.Name)),
			client.WithSchedule("once", client.At(soon), f.handler("once")))
	}
	eventually.True(t, "both schedules run", func() bool {
		_, times := f.count()
		f.mu.Lock()
		defer f.mu.Unlock()
		return times >= 2 && f.by["once"] == 1
	})
	owner, other := a, b
	if a.scheduleOwner("tick") == "b" {
		owner, other = b, a
	}
	owner.stop()
	before := func() int { f.mu.Lock(); defer f.mu.Unlock(); return f.by[other.cfg.Name] }()
	eventually.True(t, "the other member runs it", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.by[other.cfg.Name] > before
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, n := range f.runs {
		if n != 1 {
			t.Errorf("%s has %d runs", at, n)
		}
	}
	if f.overlaps != 0 || f.early != 0 || f.by["once"] != 1 {
		t.Errorf("%d overlaps, %d too early, runs by member %v", f.overlaps, f.early, f.by)
	}
}

func TestWrongSchedulesAreRefused(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	m := g.start("a", nil)
	for name, wrong := range map[string]client.Times{
		"a bad expression": client.Cron("61 * * * *", ""),
		"a bad zone":       client.Cron("0 6 * * *", "Europe/Nowhere"),
		"never":            client.Cron("0 0 30 2 *", ""),
		"too often":        client.Every(time.Second),
	} {
		err := client.Run(t.Context(), m.endpoint, done, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithDrainGrace(0),
			client.WithSchedule("report "+name, wrong, (&fired{}).handler("")))
		if !errors.Is(err, client.ErrRefused) || !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Log(err)
	}
}

// TestUnpublishedFiringsAreTold: a router that may not publish timers says that its schedules do not run, in its status, its log and its metrics.
func TestUnpublishedFiringsAreTold(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	g.source.Timers = false
	var lines atomic.Int32
	m := g.startWith("a", nil, func(p *Parts) {
		p.Log = slog.New(handlerFunc(func(r slog.Record) {
			if strings.HasPrefix(r.Message, "schedule firings cannot be published") && r.Level == slog.LevelWarn {
				lines.Add(1)
			}
		}))
	})
	f := &fired{runs: map[string]int{}, by: map[string]int{}}
	g.serve(m, done, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithDrainGrace(0), client.WithSchedule("tick", client.Every(time.Hour), f.handler("a")))
	eventually.True(t, "the status says it", func() bool {
		shown, _ := m.schedules.report()
		return len(shown) == 1 && strings.Contains(shown[0].Error, source.ErrNoTimers.Error()) && !shown[0].Armed
	})
	eventually.True(t, "the log says it", func() bool { return lines.Load() == 1 })
	if got := testutil.ToFloat64(m.schedules.metrics.failures); got < 2 {
		t.Errorf("%v failures are counted", got)
	}
}

// TestFiringsOfSchedulesThatAreGone: a firing that no worker declares waits for an hour, and is then dropped, which the log and a metric say.
func TestFiringsOfSchedulesThatAreGone(t *testing.T) {
	t.Parallel()
	var lines atomic.Int32
	s := newSchedules(&Node{parts: Parts{Registry: prometheus.NewRegistry()}, log: slog.New(handlerFunc(func(r slog.Record) {
		if r.Message == "a schedule firing is skipped" {
			lines.Add(1)
		}
	}))})
	opened := time.Now().Add(-time.Hour + time.Minute)
	p := ring.PartitionOf(schedule.KeyOf("gone"))
	sent := event.Sent{Name: "gone", Firing: &event.Firing{Definition: 1, Time: opened.UnixMilli()}}
	s.book.Opened(opened, p)
	if f := s.Arrive(1, 1, &sent); f.Run || f.After < 100*time.Millisecond || lines.Load() != 0 {
		t.Errorf("%+v within the hour, %d lines", f, lines.Load())
	}
	sent.Firing.Time = opened.Add(-time.Minute).UnixMilli()
	s.book.Opened(opened.Add(-time.Minute), p)
	if f := s.Arrive(1, 1, &sent); f != (app.Firing{}) || lines.Load() != 1 || s.counts().Dropped[schedule.Undeclared] != 1 {
		t.Errorf("%+v after the hour, %d lines", f, lines.Load())
	}
}

// TestSkippedFiring: a firing that an operator has skipped is not published again. One whose handler was done before
// the skip, and one of another key, are.
func TestSkippedFiring(t *testing.T) {
	t.Parallel()
	n := &Node{parts: Parts{Registry: prometheus.NewRegistry()}, log: slog.New(slog.DiscardHandler)}
	n.schedules = newSchedules(n)
	book := n.schedules.book
	now := time.Now()
	if err := book.Declare(now, 1, []schedule.Definition{{Name: "tick", Every: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	key := event.Key(schedule.KeyOf("tick"))
	book.Opened(now, ring.PartitionOf(string(key)))
	arms := book.Tick(now)
	book.Armed(now, arms[0].ID, nil)
	now = arms[0].Due
	again := func() bool { // and then it is armed
		now = now.Add(10 * time.Minute)
		for _, a := range book.Tick(now) {
			book.Armed(now, a.ID, nil)
			if a.ID == arms[0].ID {
				return true
			}
		}
		return false
	}
	n.skipped([]event.Skipped{
		{Skip: event.Skip{Key: "tick", Event: schedule.MessageID("tick", arms[0].ID)}},
		{Skip: event.Skip{Key: key, Event: schedule.MessageID("tick", arms[0].ID+1)}},
		{Skip: event.Skip{Key: key, Event: schedule.MessageID("tick", arms[0].ID)}, Done: true},
	})
	if !again() {
		t.Fatal("a firing that was not skipped is not published again")
	}
	n.skipped([]event.Skipped{{Skip: event.Skip{Key: key, Event: schedule.MessageID("tick", arms[0].ID)}}})
	if again() {
		t.Error("a skipped firing is published again")
	}
}

// TestFiringSkippedAsTheGateOpens: a firing that waited for the gate is skipped in the very moment in which it opens.
// The firings after it that were missed run. Neither do they get lost when a key of the partition is let go.
func TestFiringSkippedAsTheGateOpens(t *testing.T) {
	t.Parallel()
	n := &Node{parts: Parts{Registry: prometheus.NewRegistry()}, log: slog.New(slog.DiscardHandler), boxes: mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "me", clock.Now)}
	n.rollout, n.schedules = newRollout(n), newSchedules(n)
	now := timeOfDay()
	d, err := schedule.Definition{Name: "tick", Every: time.Minute, Missed: schedule.All, Grace: time.Hour}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.schedules.book.Declare(now, 1, []schedule.Definition{d}); err != nil {
		t.Fatal(err)
	}
	n.pipeline, err = pipeline.New(pipeline.Parts{Now: clock.Now, Ended: func([]ring.Partition) {}, Skipped: n.skipped, Known: n.schedules.known}, func(*pipeline.Pipeline) (pipeline.Stages, error) {
		return pipeline.Stages{Boxes: n.boxes, Holder: noHolder{}, App: noWorkers{}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	n.boxes.JudgeSkips(n.schedules.maySkip)
	key, first := event.Key(schedule.KeyOf("tick")), now.Add(-5*time.Minute).Truncate(time.Minute)
	id := schedule.MessageID("tick", schedule.FiringID(d, first))
	p := ring.PartitionOf(string(key))
	l := host{nil, n.pipeline, &incarnation{node: n}}
	l.SetLease(ownership.Lease{Until: clock.Forever - 1})
	l.SetGates([]ownership.GateChange{{Partition: p, Gate: ownership.Waiting, Token: 7}})
	sent := (&schedule.Arm{Definition: d, Time: first, Due: first}).Sent()
	n.pipeline.Deliver(event.RefsTo(&event.Event{Handle: 1, ID: id, Key: key, Partition: p, Round: 1, Properties: sent.Properties(nil)}))
	n.pipeline.SkipEvents([]event.Skip{{Key: key, Event: id}})
	l.SetGates([]ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: 7, Withheld: []ring.KeyHash{1}}})
	l.SetGates([]ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: 7}})
	var times []time.Time
	for _, a := range n.schedules.book.Tick(now) {
		if n.boxes.Inspect(key).Depth != 1 {
			t.Error("the firing ends before the one after it is safe")
		}
		times = append(times, a.Time)
		n.schedules.book.Armed(now, a.ID, nil)
	}
	if !slices.ContainsFunc(times, first.Add(time.Minute).Equal) {
		t.Errorf("armed are %v, want the one after %v, too", times, first)
	}
	l.SetLease(ownership.Lease{Until: clock.Forever - 1})
	if n.boxes.Inspect(key).Depth != 0 {
		t.Error("the firing does not end though the one after it is safe")
	}
}

// TestLettersOfAScheduleWaitForNoFiring: with MissedAll a firing waits for an earlier one, but not while its letters come back. The earlier one is then a later
// letter, or no letter: it waits for this one.
func TestLettersOfAScheduleWaitForNoFiring(t *testing.T) {
	t.Parallel()
	n := &Node{parts: Parts{Registry: prometheus.NewRegistry()}, log: slog.New(slog.DiscardHandler), boxes: mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "me", clock.Now)}
	n.schedules = newSchedules(n)
	var err error
	n.pipeline, err = pipeline.New(pipeline.Parts{Now: clock.Now}, func(*pipeline.Pipeline) (pipeline.Stages, error) {
		return pipeline.Stages{Boxes: n.boxes, Holder: noHolder{}, App: noWorkers{}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	d, err := schedule.Definition{Name: "tick", Every: time.Minute, Missed: schedule.All, Grace: time.Hour}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	now, book, key := timeOfDay(), n.schedules.book, event.Key(schedule.KeyOf("tick"))
	if err := book.Declare(now, 1, []schedule.Definition{d}); err != nil {
		t.Fatal(err)
	}
	book.Opened(now, ring.PartitionOf(string(key)))
	newest := now.Add(-d.Offset()).Truncate(time.Minute)
	arrive := func(at time.Time) schedule.Decision {
		for {
			got := book.Arrive(now, schedule.Firing{Name: "tick", DefinitionID: d.ID(), Time: at})
			if got.Reason != schedule.Arming {
				return got
			}
			for _, a := range book.Tick(now) {
				book.Armed(now, a.ID, nil)
			}
		}
	}
	keys := actKeys{Pipeline: n.pipeline, unparks: newUnparks(n), schedules: n.schedules}
	book.Arrive(now, schedule.Firing{Name: "tick", DefinitionID: d.ID(), Time: newest.Add(-2 * time.Minute)})
	keys.ParkKeys([]event.Park{{Key: key, State: event.ParkOn}})
	if got := arrive(newest); got.Reason != schedule.Order {
		t.Fatalf("while the key is parked: %+v, want order", got)
	}
	keys.ParkKeys([]event.Park{{Key: key, State: event.ParkEnds}})
	if got := arrive(newest); got.Verdict != schedule.Enter {
		t.Errorf("while its letters come back: %+v, want enter", got)
	}
	book.Done(now, schedule.Firing{Name: "tick", DefinitionID: d.ID(), Time: newest}, schedule.End{Settled: true})
	keys.ParkKeys([]event.Park{{Key: key}})
	if got := arrive(newest.Add(-time.Minute)); got.Reason != schedule.Order {
		t.Errorf("after that: %+v, want order", got)
	}
}

// noHolder holds nothing.
type noHolder struct{ pipeline.Holder }

func (noHolder) Settle(forward.Peer, []event.Set, []event.Verdict) {}

// noWorkers are no workers.
type noWorkers struct{ pipeline.Workers }

func (noWorkers) WakeAll() {}

// handlerFunc is a handler of log lines without attributes.
type handlerFunc func(slog.Record)

func (handlerFunc) Enabled(context.Context, slog.Level) bool        { return true }
func (f handlerFunc) Handle(_ context.Context, r slog.Record) error { f(r); return nil }
func (f handlerFunc) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f handlerFunc) WithGroup(string) slog.Handler                 { return f }

// TestHeldScheduleIsNotPublishedAgain: a firing that waits because its key is on hold runs once after the release, and
// no copy of it is published meanwhile.
func TestHeldScheduleIsNotPublishedAgain(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	f := &fired{runs: map[string]int{}, by: map[string]int{}}
	m := g.startWith("a", nil, actsOn("a", controllog.NewMem(), nil))
	<-m.parts.Acts.Read()
	key := event.Key(schedule.KeyOf("once")) // it is on hold before the firing can come
	if _, _, err := m.Acts().Hold(t.Context(), act.Order{Key: key, By: "alice", From: "127.0.0.1:1", Reason: "poison pill"}); err != nil {
		t.Fatal(err)
	}
	g.goByActs(m)
	g.owning(m)
	g.serve(m, done, client.WithSchedule("once", client.At(time.Now().Add(9*time.Second)), f.handler("once")))
	g.waitsOnHold(key, 1, m)
	time.Sleep(2*schedule.UnseenMax + time.Second)
	if n := m.schedules.counts().Rearmed; n != 0 {
		t.Errorf("%d copies are published while the key is on hold", n)
	}
	if _, _, err := m.Acts().Release(t.Context(), act.Order{Key: key, By: "alice", From: "127.0.0.1:1", Reason: "nothing"}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "it runs", func() bool { runs, _ := f.count(); return runs == 1 })
}

// scheduleOwner returns the owner of a schedule, as far as this node knows.
func (n *Node) scheduleOwner(name string) string {
	if t := n.Table(); t != nil {
		return t.Owner(ring.PartitionOf(schedule.KeyOf(name))).Name
	}
	return ""
}
