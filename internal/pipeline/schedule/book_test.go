package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/outcome"
)

var (
	noon     = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	minutely = Definition{Name: "m", Every: time.Minute}
)

// opened returns a Book that owns every schedule, with these declared by worker 1.
func opened(t *testing.T, now time.Time, defs ...Definition) *Book {
	b := NewBook()
	if err := b.Declare(now, 1, defs); err != nil {
		t.Fatal(err)
	}
	for _, d := range defs {
		b.Opened(now, partition.Of(KeyOf(d.Name)))
	}
	return b
}

// arm lets everything be published that the Book wants published, and returns the times.
func arm(b *Book, now time.Time) (times []time.Time) {
	for _, a := range b.Tick(now) {
		times = append(times, a.Time)
		b.Armed(now, a.ID, nil)
	}
	return times
}

func firing(t *testing.T, d Definition, at time.Time) Firing {
	return Firing{Name: d.Name, DefinitionID: parse(t, d).ID(), Time: at}
}

func want(t *testing.T, got Decision, verdict Verdict, reason Reason) {
	t.Helper()
	if got.Verdict != verdict || got.Reason != reason {
		t.Fatalf("decision = %d %v until %v, want %d %v", got.Verdict, got.Reason, got.Until, verdict, reason)
	}
}

func wantTimes(t *testing.T, got []time.Time, want ...time.Time) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("armed %v, want %v", got, want)
	}
	for i := range got {
		if !got[i].Equal(want[i]) {
			t.Fatalf("armed %v, want %v", got, want)
		}
	}
}

// One firing from its arming to its end.
func TestBookFires(t *testing.T) {
	b := opened(t, noon, minutely)
	if next := b.Next(noon); !next.Equal(noon) {
		t.Fatalf("next = %v, want now", next)
	}
	wantTimes(t, arm(b, noon), noon.Add(time.Minute))
	wantTimes(t, arm(b, noon))
	f := firing(t, minutely, noon.Add(time.Minute))
	d := b.Arrive(noon.Add(59*time.Second), f)
	want(t, d, NotYet, Early)
	if !d.Until.Equal(f.Time) {
		t.Errorf("until = %v, want its time", d.Until)
	}
	if next := b.Next(noon); !next.Equal(f.Time) {
		t.Fatalf("next = %v, want the time of the firing", next)
	}
	d = b.Arrive(f.Time, f)
	if want(t, d, NotYet, Arming); !d.Until.Equal(f.Time.Add(askSoon)) {
		t.Errorf("until = %v, want soon", d.Until)
	}
	wantTimes(t, arm(b, f.Time), noon.Add(2*time.Minute))
	want(t, b.Arrive(f.Time, f), Enter, NoReason)
	if n := b.Counts().Entered; n != 1 {
		t.Errorf("%d have entered", n)
	}
	want(t, b.Arrive(f.Time, f), NotYet, Overlap)
	if s := b.Overview()[0]; !s.Running.Equal(f.Time) || !s.Owned || !s.Armed || !s.Next.Equal(noon.Add(2*time.Minute)) {
		t.Errorf("status = %+v", s)
	}
	b.Done(f.Time, f, End{Settled: true})
	want(t, b.Arrive(f.Time, f), Drop, Duplicate)
	if s := b.Overview()[0]; !s.LastRun.Equal(f.Time) || !s.Running.IsZero() || s.Dropped[Duplicate] != 1 || b.Counts().Dropped[Duplicate] != 1 {
		t.Errorf("status = %+v", s)
	}
}

// A firing that was lost in the lane runs again.
func TestLostFiringRunsAgain(t *testing.T) {
	b := opened(t, noon, minutely)
	f := firing(t, minutely, noon)
	b.Arrive(noon, f)
	arm(b, noon)
	want(t, b.Arrive(noon, f), Enter, NoReason)
	if b.Done(noon, f, End{}); b.Overview()[0].Waiting != 1 {
		t.Errorf("status = %+v", b.Overview()[0])
	}
	want(t, b.Arrive(noon, f), Enter, NoReason)
}

// A firing is due by the jitter of its schedule later than its time.
func TestJitterDelaysAFiring(t *testing.T) {
	d := Definition{Name: "j", Every: time.Hour, Jitter: 30 * time.Minute}
	offset := parse(t, d).Offset()
	if offset == 0 {
		t.Fatal("the test needs another name")
	}
	b, f := opened(t, noon.Add(-1), d), firing(t, d, noon)
	got := b.Arrive(noon.Add(offset-1), f)
	if want(t, got, NotYet, Early); !got.Until.Equal(noon.Add(offset)) {
		t.Errorf("until = %v, want %v", got.Until, noon.Add(offset))
	}
	want(t, b.Arrive(noon.Add(offset), f), NotYet, Arming)
}

// A firing that ran and failed is retried as an event is: it waits in the lane or the retry topic, or is a dead letter. A copy would run beyond its
// retries.
func TestFailedFiringIsNotArmedAgain(t *testing.T) {
	slow := Definition{Name: "s", Every: 2 * time.Hour}
	b := opened(t, noon.Add(-1), slow)
	f := firing(t, slow, noon)
	next := noon.Add(2 * time.Hour)
	wantTimes(t, arm(b, noon.Add(-1)), noon)
	wantTimes(t, arm(b, noon), next)
	quiet := func(from, to time.Time) {
		t.Helper()
		for now := from; now.Before(to); now = now.Add(time.Second) {
			wantTimes(t, arm(b, now))
			if at := b.Next(now); !at.After(now) {
				t.Fatalf("at %v there is something to do at %v", now, at)
			}
		}
	}
	for _, at := range []time.Time{noon, noon.Add(time.Second), noon.Add(20 * time.Minute)} { // the last time it comes by way of the retry topic
		want(t, b.Arrive(at, f), Enter, NoReason)
		b.Done(at, f, End{})
		quiet(at, at.Add(10*time.Minute))
	}
	quiet(noon.Add(30*time.Minute), next)
	if s := b.Overview()[0]; b.Counts().Rearmed != 0 || s.Waiting != 0 || !s.Armed {
		t.Errorf("status = %+v", s)
	}
	if want(t, b.Arrive(next, firing(t, slow, next)), NotYet, Arming); len(b.line("s").entries) != 2 {
		t.Errorf("entries = %+v", b.line("s").entries)
	}
}

// The next firing stands for one that failed, however long ago.
func TestNextFiringStandsForAFailedOne(t *testing.T) {
	d := Definition{Name: "d", Every: 10 * time.Minute}
	b := opened(t, noon.Add(-1), d)
	arm(b, noon.Add(-1))
	arm(b, noon)
	f := firing(t, d, noon)
	want(t, b.Arrive(noon, f), Enter, NoReason)
	b.Done(noon, f, End{})
	arm(b, noon.Add(2*LostMax))
	next := noon.Add(10 * time.Minute)
	arm(b, next)
	got := b.Arrive(next, firing(t, d, next))
	if want(t, got, Enter, NoReason); got.Missed != 1 {
		t.Errorf("missed = %d, want 1", got.Missed)
	}
}

// A firing that failed and, since the clock went back, runs after a newer one does not make the next one stand for that.
func TestARetryAfterANewerRun(t *testing.T) {
	b := opened(t, noon.Add(-1), minutely)
	arm(b, noon.Add(-1))
	run := func(now, at time.Time, end End) (missed int) {
		t.Helper()
		arm(b, now)
		f := firing(t, minutely, at)
		got := b.Arrive(now, f)
		want(t, got, Enter, NoReason)
		b.Done(now, f, end)
		return got.Missed
	}
	second, third := noon.Add(time.Minute), noon.Add(2*time.Minute)
	run(noon, noon, End{})
	run(second, second, End{Settled: true})
	run(noon.Add(30*time.Second), noon, End{Settled: true})
	if missed := run(third, third, End{Settled: true}); missed != 0 {
		t.Errorf("the next one stands for %d, want none", missed)
	}
}

// What has run before its schedule was declared anew does not count for the new definition.
func TestRedefinedAfterItsRun(t *testing.T) {
	often := Definition{Name: "m", Every: 10 * time.Second}
	b := opened(t, noon, minutely)
	arm(b, noon)
	f := firing(t, minutely, noon)
	want(t, b.Arrive(noon, f), Enter, NoReason)
	b.Done(noon, f, End{Settled: true})
	redefined := noon.Add(25 * time.Second)
	if err := b.Declare(redefined, 1, []Definition{often}); err != nil {
		t.Fatal(err)
	}
	wantTimes(t, arm(b, redefined), noon.Add(30*time.Second))
	want(t, b.Arrive(redefined, firing(t, often, noon)), NotYet, Arming)
	arm(b, redefined)
	want(t, b.Arrive(redefined, firing(t, often, noon)), Drop, Superseded)
	b = opened(t, noon, minutely)
	arm(b, noon)
	want(t, b.Arrive(noon, f), Enter, NoReason)
	b.Done(noon, f, End{Settled: true})
	if err := b.Declare(redefined, 1, []Definition{often}); err != nil {
		t.Fatal(err)
	}
	arm(b, redefined)
	late := noon.Add(50 * time.Second)
	for len(arm(b, late)) > 0 {
	}
	if d := b.Arrive(late, firing(t, often, late)); d.Verdict != Enter || d.Missed != 2 { // of those after the declaration
		t.Errorf("decision = %+v", d)
	}
}

// All waits for a dead letter that has come back, and for a firing that came back before its retry was due and vanished, no longer than for any other.
func TestAllWaitsForWhatCameBack(t *testing.T) {
	d := Definition{Name: "a", Every: time.Minute, Missed: All}
	first, second, third := firing(t, d, noon), firing(t, d, noon.Add(time.Minute)), firing(t, d, noon.Add(2*time.Minute))
	begun := func(end End) *Book {
		b := opened(t, noon.Add(-1), d)
		arm(b, noon.Add(-1))
		arm(b, noon)
		want(t, b.Arrive(noon, first), Enter, NoReason)
		b.Done(noon, first, end)
		arm(b, second.Time)
		return b
	}
	b := begun(End{Dead: true})
	want(t, b.Arrive(second.Time, second), Enter, NoReason)
	want(t, b.Arrive(second.Time, first), NotYet, Overlap) // its letter is replayed
	b.Done(second.Time, second, End{Settled: true})
	arm(b, third.Time)
	want(t, b.Arrive(third.Time, third), NotYet, Order)
	want(t, b.Arrive(third.Time, first), Enter, NoReason)

	b = begun(End{After: 20 * time.Minute})
	back := second.Time.Add(UnseenMax)
	arms := b.Tick(back) // the second one is published again
	want(t, b.Arrive(back, first), NotYet, Arming)
	for _, a := range arms {
		b.Armed(back, a.ID, nil)
	}
	arm(b, back.Add(LostMax-1))
	want(t, b.Arrive(back.Add(LostMax-1), second), NotYet, Order)
	arm(b, back.Add(LostMax))
	want(t, b.Arrive(back.Add(LostMax), second), Enter, NoReason)
}

// A firing whose schedule was declared anew while it ran is over: nothing of it counts for the new definition.
func TestRedefinedWhileItRuns(t *testing.T) {
	hourly := Definition{Name: "m", Every: time.Hour}
	for _, end := range []End{{Settled: true}, {Settled: true, Dead: true}, {Dead: true}, {}} {
		b := opened(t, noon, minutely)
		arm(b, noon)
		f := firing(t, minutely, noon)
		want(t, b.Arrive(noon, f), Enter, NoReason)
		if err := b.Declare(noon, 1, []Definition{hourly}); err != nil {
			t.Fatal(err)
		}
		arm(b, noon)
		if want(t, b.Arrive(noon, firing(t, hourly, noon)), NotYet, Overlap); b.Overview()[0].Waiting != 1 {
			t.Errorf("status = %+v", b.Overview()[0])
		}
		b.Done(noon, f, end)
		if l := b.line("m"); !l.newest.IsZero() || len(l.ran) > 0 {
			t.Errorf("%+v: the new definition has run at %v and %v", end, l.newest, l.ran)
		}
		want(t, b.Arrive(noon, firing(t, hourly, noon)), Enter, NoReason)
	}
	// No worker declares it any more.
	b := opened(t, noon, minutely)
	arm(b, noon)
	f := firing(t, minutely, noon)
	want(t, b.Arrive(noon, f), Enter, NoReason)
	b.Forget(noon, 1)
	b.Done(noon, f, End{})
	if l := b.line("m"); len(l.entries) > 0 {
		t.Errorf("entries of an undeclared schedule: %+v", l.entries)
	}
}

// After an outage the newest firing stands for those before it. The firing after it stands for none, even if an earlier
// firing has waited behind the run until then, or if the run has failed at first.
func TestMissedFiringsAreToldOnce(t *testing.T) {
	for name, test := range map[string]struct {
		fails bool   // the first run of the newest firing
		told  uint64 // by all runs that begin
	}{
		"one waits behind the run": {false, 2},
		"the run fails at first":   {true, 4},
	} {
		t.Run(name, func(t *testing.T) {
			first, newest, next := firing(t, minutely, noon), firing(t, minutely, noon.Add(2*time.Minute)), firing(t, minutely, noon.Add(3*time.Minute))
			now := newest.Time.Add(30 * time.Second)
			b := opened(t, now, minutely)
			want(t, b.Arrive(now, first), NotYet, Arming)
			for _, a := range b.Tick(now) {
				if b.Armed(now, a.ID, nil); a.Time.Equal(newest.Time) {
					newest.Missed = a.Missed
				}
			}
			got := b.Arrive(now, newest)
			if want(t, got, Enter, NoReason); got.Missed != 2 {
				t.Fatalf("missed = %d, want 2", got.Missed)
			}
			if test.fails {
				b.Done(now, newest, End{})
				want(t, b.Arrive(now, newest), Enter, NoReason)
			}
			b.Done(next.Time, newest, End{Settled: true})
			arm(b, next.Time)
			want(t, b.Arrive(next.Time, first), Drop, Superseded)
			got = b.Arrive(next.Time, next)
			if want(t, got, Enter, NoReason); got.Missed != 0 {
				t.Errorf("missed = %d, want 0", got.Missed)
			}
			if told, all := b.Overview()[0].Missed, b.Counts().Missed; told != test.told || all != told {
				t.Errorf("all runs stand for %d missed firings, in all %d, want %d", told, all, test.told)
			}
		})
	}
}

// A firing that failed counts as missed if the next one enters before it comes again.
func TestNextFiringTellsOfOneThatWaits(t *testing.T) {
	b := opened(t, noon.Add(-1), minutely)
	at := func(n int) Firing { return firing(t, minutely, noon.Add(time.Duration(n)*time.Minute)) }
	for n, test := range []struct {
		settled bool
		missed  int
	}{{true, 0}, {false, 0}, {true, 1}} {
		f := at(n)
		arm(b, f.Time.Add(-1))
		arm(b, f.Time)
		got := b.Arrive(f.Time, f)
		if got.Verdict != Enter || got.Missed != test.missed {
			t.Fatalf("firing %d: %+v, want to enter with %d missed", n, got, test.missed)
		}
		b.Done(f.Time, f, End{Settled: test.settled})
	}
	// Other owners may have run firings before the gate opened again: the count does not start at this owner's newest run.
	b.Opened(at(4).Time, b.line("m").partition)
	arm(b, at(5).Time)
	if got := b.Arrive(at(5).Time, at(5)); got.Verdict != Enter || got.Missed != 0 {
		t.Fatalf("%+v, want to enter with none missed", got)
	}
}

// A firing that returns from the retry topic does not bring back the one after it, which is a dead letter.
func TestDeadLetterIsNotArmedAgain(t *testing.T) {
	d := Definition{Name: "a", Every: time.Minute, Missed: All}
	b := opened(t, noon.Add(-1), d)
	arm(b, noon.Add(-1))
	second := noon.Add(time.Minute)
	failed := noon
	for _, at := range []time.Time{noon, second} {
		arm(b, failed)
		want(t, b.Arrive(failed, firing(t, d, at)), Enter, NoReason)
		b.Done(failed, firing(t, d, at), End{Dead: at.Equal(second)})
		failed = noon.Add(LostMax) // until then the second one waits for the first
		arm(b, second)
	}
	for now := failed; now.Before(noon.Add(20 * time.Minute)); now = now.Add(time.Second) {
		for _, at := range arm(b, now) {
			if !at.After(second) {
				t.Fatalf("at %v: %v is armed again", now, at)
			}
		}
	}
	want(t, b.Arrive(noon.Add(20*time.Minute), firing(t, d, noon)), Enter, NoReason)
}

// A firing that an operator skips is a dead letter, whether it has come here or not. It is not published again, the one
// after it is, and it runs if its letter is replayed.
func TestSkippedFiringIsNotArmedAgain(t *testing.T) {
	d := Definition{Name: "s", Every: time.Hour, Missed: All, Grace: 24 * time.Hour}
	key, next := event.Key(KeyOf(d.Name)), noon.Add(time.Hour)
	for name, came := range map[string]bool{"waiting here": true, "not here yet": false} {
		t.Run(name, func(t *testing.T) {
			b := opened(t, noon.Add(-1), d)
			arms := b.Tick(noon.Add(-1))
			b.Armed(noon.Add(-1), arms[0].ID, nil)
			if came {
				want(t, b.Arrive(noon, firing(t, d, noon)), NotYet, Arming)
			}
			b.Skip(key, MessageID(d.Name, arms[0].ID+1))
			b.Skip(event.Key(d.Name), MessageID(d.Name, arms[0].ID))
			b.Skip(key, MessageID(d.Name, arms[0].ID))
			wantTimes(t, arm(b, noon), next)
			for now := noon; now.Before(next); now = now.Add(time.Second) {
				wantTimes(t, arm(b, now))
			}
			arm(b, next)
			want(t, b.Arrive(next, firing(t, d, next)), Enter, NoReason)
			b.Done(next, firing(t, d, next), End{Settled: true})
			want(t, b.Arrive(next, firing(t, d, noon)), Enter, NoReason)
		})
	}
	b := opened(t, noon.Add(-1), d)
	a := b.Tick(noon.Add(-1))[0]
	b.Skip(key, MessageID(d.Name, a.ID)) // an earlier copy of it
	b.Armed(noon.Add(-1), a.ID, errors.New("no broker"))
	wantTimes(t, arm(b, noon.Add(time.Second)), next)
}

// A new owner skips a firing that it has never seen: the ones after it run all the same.
func TestSkipOfAFiringOfAnEarlierOwner(t *testing.T) {
	for missed, next := range map[Policy]time.Time{All: noon.Add(time.Minute), Latest: noon.Add(3 * time.Minute)} {
		d := Definition{Name: "s", Every: time.Minute, Missed: missed}
		now := noon.Add(3*time.Minute + time.Second)
		b := opened(t, now, d)
		arm(b, now)
		b.MaySkip(now, firing(t, d, noon))
		wantTimes(t, arm(b, now), next)
	}
}

// A skipped firing ends only when the one that follows is safe: an owner that dies first has lost nothing.
func TestASkippedFiringEndsAfterItsSuccessorIsSafe(t *testing.T) {
	all := Definition{Name: "a", Every: time.Minute, Missed: All}
	now := noon.Add(10 * time.Minute)
	tooLate := now.Add(-GraceDefault - time.Minute)
	for skipped, next := range map[time.Time]time.Time{
		noon.Add(5 * time.Minute): noon.Add(6 * time.Minute),
		tooLate:                   now.Add(-GraceDefault),
	} {
		f := firing(t, all, skipped)
		b := opened(t, now, all)
		arm(b, now)
		if b.MaySkip(now, f) || b.Overview()[0].Waiting != 1 {
			t.Fatalf("the firing of %v ends before that of %v is safe: %+v", skipped, next, b.Overview()[0])
		}
		wantTimes(t, arm(b, now), next)
		if !b.MaySkip(now, f) {
			t.Fatalf("the firing of %v does not end though that of %v is safe", skipped, next)
		}
		b.Skip(event.Key(KeyOf("a")), MessageID("a", FiringID(parse(t, all), skipped)))
		wantTimes(t, arm(b, now))
		b.Closed(partition.Of(KeyOf("a")))
		if b.MaySkip(now, f) {
			t.Fatal("it ends at a node that does not own it")
		}
	}

	b := opened(t, now, all)
	arm(b, now)
	ran := firing(t, all, now)
	want(t, b.Arrive(now, ran), Enter, NoReason)
	b.Done(now, ran, End{Settled: true})
	redefined, strange := firing(t, all, noon.Add(5*time.Minute)), firing(t, all, noon.Add(5*time.Minute+time.Second))
	redefined.DefinitionID++
	for _, f := range []Firing{ran, redefined, strange} {
		if !b.MaySkip(now, f) {
			t.Errorf("%+v, which leads to no other, does not end", f)
		}
	}
}

// A skipped firing whose worker has crashed waits for it: the missed ones behind it are still to run. If none comes back, it ends.
func TestASkippedFiringWaitsForAWorker(t *testing.T) {
	all := Definition{Name: "a", Every: time.Minute, Missed: All}
	now := noon.Add(10 * time.Minute)
	f := firing(t, all, noon.Add(5*time.Minute))
	b := opened(t, now, all)
	arm(b, now)
	b.Forget(now, 1)
	if b.MaySkip(now, f) {
		t.Fatal("it ends while no worker declares its schedule")
	}
	if !b.MaySkip(now.Add(GraceDefault), f) {
		t.Error("it does not end though no worker has come for long")
	}
	if err := b.Declare(now, 1, []Definition{all}); err != nil {
		t.Fatal(err)
	}
	if b.MaySkip(now, f) {
		t.Error("it ends before the one that follows is safe")
	}
	wantTimes(t, arm(b, now), noon.Add(6*time.Minute), noon.Add(11*time.Minute))
	if !b.MaySkip(now, f) {
		t.Error("it does not end though the one that follows is safe")
	}
}

func TestUnseenFiringIsArmedAgain(t *testing.T) {
	b := opened(t, noon, minutely)
	arm(b, noon)
	due := noon.Add(time.Minute)
	wantTimes(t, arm(b, due), due.Add(time.Minute))
	if next := b.Next(due); !next.Equal(due.Add(UnseenMax)) {
		t.Fatalf("next = %v, want %v", next, due.Add(UnseenMax))
	}
	wantTimes(t, arm(b, due.Add(UnseenMax-1)))
	arms := b.Tick(due.Add(UnseenMax))
	if len(arms) != 1 || !arms[0].Time.Equal(due) {
		t.Fatalf("arms = %+v", arms)
	}
	b.Armed(due.Add(UnseenMax), arms[0].ID, nil)
	if again := b.Counts().Rearmed; again != 1 {
		t.Errorf("rearmed = %d", again)
	}
	wantTimes(t, arm(b, due.Add(2*UnseenMax)))      // the second time it is given longer
	wantTimes(t, arm(b, due.Add(3*UnseenMax)), due) // 10 s
}

// While an operator holds or has parked the key of a schedule, a firing that has come waits there, or is a letter: a
// copy would join it, or be another letter. It is armed again if it has not come some time after that.
func TestFiringOfAStoppedKeyIsNotArmedAgain(t *testing.T) {
	slow := Definition{Name: "s", Every: 12 * time.Hour, Grace: 3 * time.Hour}
	b := opened(t, noon.Add(-1), slow)
	key := event.Key(KeyOf("s"))
	next := noon.Add(12 * time.Hour)
	wantTimes(t, arm(b, noon.Add(-1)), noon)
	b.Stop(noon, "another key", OnHold, true)
	b.Stop(noon, "s", OnHold, true) // an event's key
	b.Stop(noon, key, OnHold, true)
	wantTimes(t, arm(b, noon), next)
	quiet := func(from, to time.Time) {
		t.Helper()
		for now := from; now.Before(to); now = now.Add(time.Second) {
			wantTimes(t, arm(b, now))
			if at := b.Next(now); !at.After(now) {
				t.Fatalf("at %v there is something to do at %v", now, at)
			}
		}
	}
	quiet(noon, noon.Add(time.Hour))
	b.Stop(noon.Add(time.Hour), key, Parked, true)
	b.Stop(noon.Add(time.Hour), key, OnHold, false)
	quiet(noon.Add(time.Hour), noon.Add(90*time.Minute))
	b.Stop(noon.Add(90*time.Minute), key, OnHold, true)
	b.Stop(noon.Add(90*time.Minute), key, OnHold, false)
	quiet(noon.Add(90*time.Minute), noon.Add(2*time.Hour))
	end := noon.Add(2 * time.Hour)
	b.Stop(end, key, Parked, false)
	b.Stop(end, key, Parked, false)
	wantTimes(t, arm(b, end.Add(UnseenMax-1)))
	if at := b.Next(end); !at.Equal(end.Add(UnseenMax)) {
		t.Errorf("next = %v, want %v", at, end.Add(UnseenMax))
	}
	wantTimes(t, arm(b, end.Add(UnseenMax)), noon)
	if len(b.stopped) != 0 {
		t.Errorf("stopped = %v", b.stopped)
	}
}

// After a stop a firing that had been armed again and again is armed again as soon as any other. One that could not be published waits as before.
func TestArmsAfterAStop(t *testing.T) {
	daily := Definition{Name: "d", Cron: "@daily", Missed: All, Grace: 24 * time.Hour}
	midnight := noon.Add(12 * time.Hour)
	b := opened(t, noon, daily)
	key := event.Key(KeyOf("d"))
	arm(b, noon)
	now := midnight
	for b.Counts().Rearmed < 5 {
		for _, a := range b.Tick(now) {
			var err error
			if a.Time.After(midnight) {
				err = errors.New("no broker")
			}
			b.Armed(now, a.ID, err)
		}
		now = now.Add(time.Second)
	}
	later, _ := b.line("d").search(midnight.Add(24 * time.Hour))
	failed := b.line("d").entries[later]
	b.Stop(now, key, OnHold, true)
	b.Stop(now, key, OnHold, false)
	if got := b.line("d").entries[later]; !got.tried.Equal(failed.tried) || got.wait != failed.wait || failed.wait == 0 {
		t.Errorf("the one that could not be published waits for %v since %v, want %v since %v", got.wait, got.tried, failed.wait, failed.tried)
	}
	for _, a := range b.Tick(now.Add(UnseenMax)) {
		if a.Time.Equal(midnight) {
			return
		}
	}
	t.Errorf("it is not armed again: %+v", b.line("d").entries)
}

// Publications that fail are tried again, with growing delays; another's success shows in between.
func TestFailedArmsAreRetriedWithBackoff(t *testing.T) {
	b := opened(t, noon, Definition{Name: "d", Cron: "@daily"})
	now, tries := noon, 0
	for now.Before(noon.Add(5 * time.Minute)) {
		for _, a := range b.Tick(now) {
			tries++
			if again := b.Tick(now); len(again) != 0 {
				t.Fatalf("armed twice at once: %+v", again)
			}
			b.Armed(now, a.ID, errors.New("no broker"))
		}
		if s := b.Overview()[0]; s.Armed || s.ArmError != "no broker" {
			t.Fatalf("status = %+v", s)
		}
		next := b.Next(now)
		if !next.After(now) || next.Sub(now) > retryLast {
			t.Fatalf("next = %v after %v", next, now)
		}
		if early := b.Tick(next.Add(-1)); len(early) != 0 {
			t.Fatalf("armed again before %v: %+v", next, early)
		}
		now = next
	}
	if tries < 12 || tries > 20 {
		t.Errorf("%d tries in five minutes", tries)
	}
	if len(arm(b, now)) != 1 || b.Overview()[0].ArmError != "" || !b.Overview()[0].Armed {
		t.Errorf("status = %+v", b.Overview()[0])
	}
	// After a success the delays begin anew: when the firing has not come, it is tried again as soon as the one that follows.
	lost := noon.Add(12*time.Hour + UnseenMax)
	arms := b.Tick(lost)
	for _, a := range arms {
		b.Armed(lost, a.ID, errors.New("no broker"))
	}
	if again := b.Tick(lost.Add(retryFirst)); len(arms) != 2 || len(again) != 2 {
		t.Errorf("%d are armed, and %d again after %v, want 2 and 2", len(arms), len(again), retryFirst)
	}
	// A stopped key does not hold up what is not published.
	b = opened(t, noon, Definition{Name: "d", Cron: "@daily"})
	b.Stop(noon, event.Key(KeyOf("d")), OnHold, true)
	b.Armed(noon, b.Tick(noon)[0].ID, errors.New("no broker"))
	if next := b.Next(noon); !next.Equal(noon.Add(retryFirst)) {
		t.Errorf("with a stopped key, next = %v", next)
	}
	// A clock that went back does not prolong a delay by hours.
	b = opened(t, noon, Definition{Name: "d", Cron: "0 0 1 1 *"})
	b.Armed(noon, b.Tick(noon)[0].ID, errors.New("no broker"))
	back := noon.Add(-10 * time.Hour)
	if next := b.Next(back); !next.Equal(back) || len(arm(b, back)) != 1 {
		t.Errorf("after the clock went back, next = %v", next)
	}
}

// A firing that could not be published in time is late like any other: its policy says what runs for it.
func TestUnpublishedFiringIsMissed(t *testing.T) {
	late := noon.Add(10*time.Minute + 30*time.Second)
	newest, next := noon.Add(10*time.Minute), noon.Add(11*time.Minute)
	for policy, want := range map[Policy][]time.Time{
		Latest: {newest, next},
		All:    {noon.Add(time.Minute), next},
		Skip:   {newest, next},
	} {
		d := minutely
		d.Missed = policy
		b := opened(t, noon, d)
		b.Armed(noon, b.Tick(noon)[0].ID, errors.New("no broker"))
		arms := b.Tick(late)
		var got []time.Time
		for _, a := range arms {
			got = append(got, a.Time)
		}
		slices.SortFunc(got, time.Time.Compare)
		wantTimes(t, got, want...)
		if at := slices.IndexFunc(arms, func(a Arm) bool { return a.Time.Equal(newest) }); policy == Latest && arms[at].Missed != 9 {
			t.Errorf("arm = %+v, want 9 missed", arms[at])
		}
	}
}

// A firing that waits with its sender, and is not heard of again, is armed again.
func TestWaitingFiringThatVanishes(t *testing.T) {
	b := opened(t, noon.Add(-1), minutely)
	arm(b, noon.Add(-1))
	arm(b, noon)
	want(t, b.Arrive(noon, firing(t, minutely, noon)), Enter, NoReason)
	second := noon.Add(time.Minute)
	arm(b, second)
	want(t, b.Arrive(second, firing(t, minutely, second)), NotYet, Overlap)
	if s := b.Overview()[0]; s.Waiting != 1 {
		t.Errorf("status = %+v", s)
	}
	hourly := Definition{Name: "h", At: noon}
	b = opened(t, noon.Add(-time.Hour), hourly)
	arm(b, noon.Add(-time.Hour))
	b.runs(t, hourly)
	want(t, b.Arrive(noon, firing(t, hourly, noon)), NotYet, Overlap)
	if next := b.Next(noon); !next.Equal(noon.Add(LostMax)) || len(arm(b, noon.Add(LostMax-1))) != 0 {
		t.Errorf("next = %v", next)
	}
	wantTimes(t, arm(b, noon.Add(LostMax)), noon)
}

// runs puts a firing of another definition into the lane.
func (b *Book) runs(t *testing.T, d Definition) {
	t.Helper()
	l := b.line(d.Name)
	l.runs, l.running = true, Firing{Name: d.Name}
}

func TestMissedFirings(t *testing.T) {
	late := noon.Add(10*time.Minute + 30*time.Second)
	newest := noon.Add(10 * time.Minute)
	next := noon.Add(11 * time.Minute)
	tests := map[string]struct {
		missed Policy
		grace  time.Duration
		now    time.Time
		armed  []time.Time // before the firing of noon is decided
		reason Reason
		stands int // of the newest one, if it enters
	}{
		"latest":                           {Latest, 0, late, []time.Time{newest, next}, Superseded, 10},
		"latest, beyond the grace":         {Latest, time.Minute, late, []time.Time{newest, next}, TooLate, 10},
		"latest, nothing within the grace": {Latest, 10 * time.Second, late, []time.Time{next}, TooLate, -1},
		"all":                              {All, 0, late, []time.Time{noon.Add(time.Minute), next}, NoReason, -1},
		"all, too many":                    {All, GraceMax, noon.Add(105 * time.Minute), []time.Time{noon.Add(6 * time.Minute), noon.Add(106 * time.Minute)}, TooMany, -1},
		"all, the most":                    {All, GraceMax, noon.Add(99 * time.Minute), []time.Time{noon.Add(time.Minute), noon.Add(100 * time.Minute)}, NoReason, -1},
		"all, beyond the grace":            {All, 5 * time.Minute, late, []time.Time{noon.Add(6 * time.Minute), next}, TooLate, -1},
		"skip":                             {Skip, 0, late, []time.Time{newest, next}, Skipped, 0},
		"skip, a bit late":                 {Skip, 0, noon.Add(59 * time.Second), []time.Time{noon.Add(time.Minute)}, NoReason, -1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := Definition{Name: "m", Every: time.Minute, Missed: test.missed, Grace: test.grace}
			b := opened(t, noon.Add(-time.Hour), d)
			f := firing(t, d, noon)
			want(t, b.Arrive(test.now, f), NotYet, Arming)
			wantTimes(t, arm(b, test.now), test.armed...)
			if test.reason == NoReason {
				want(t, b.Arrive(test.now, f), Enter, NoReason)
				return
			}
			if want(t, b.Arrive(test.now, f), Drop, test.reason); b.Overview()[0].Waiting != 0 {
				t.Errorf("it counts as one that waits: %+v", b.Overview()[0])
			}
			if test.stands >= 0 {
				got := b.Arrive(test.now, firing(t, d, newest))
				if want(t, got, Enter, NoReason); got.Missed != test.stands {
					t.Errorf("missed = %d, want %d", got.Missed, test.stands)
				}
				b.Done(test.now, firing(t, d, newest), End{})
				if got = b.Arrive(test.now, firing(t, d, newest)); got.Verdict != Enter || got.Missed != test.stands {
					t.Errorf("when it runs again: %+v, want %d missed", got, test.stands)
				}
			}
		})
	}
}

// Skip drops what is late by more than a minute though nothing newer exists, and nothing follows an At.
func TestSkipOfASingleFiring(t *testing.T) {
	d := Definition{Name: "o", At: noon, Missed: Skip}
	b := opened(t, noon.Add(-time.Hour), d)
	wantTimes(t, arm(b, noon.Add(-time.Hour)), noon)
	want(t, b.Arrive(noon.Add(LateMax+1), firing(t, d, noon)), Drop, Skipped)
	b = opened(t, noon.Add(-time.Hour), d)
	want(t, b.Arrive(noon.Add(LateMax), firing(t, d, noon)), Enter, NoReason)
	if b = opened(t, noon.Add(-time.Hour), d); !b.MaySkip(noon, firing(t, d, noon)) {
		t.Error("it waits for one that follows")
	}
	if b = opened(t, noon, d); len(arm(b, noon)) != 0 || !b.Next(noon).IsZero() {
		t.Error("a time that has passed is armed")
	}
}

// The firing in the lane takes long: of those that come meanwhile only the newest runs, and knows the others.
func TestOverlap(t *testing.T) {
	b := opened(t, noon.Add(-1), minutely)
	arm(b, noon.Add(-1))
	now := noon
	for n := range 4 {
		now = noon.Add(time.Duration(n) * time.Minute)
		arm(b, now)
		switch d := b.Arrive(now, firing(t, minutely, now)); n {
		case 0:
			want(t, d, Enter, NoReason)
		default:
			want(t, d, NotYet, Overlap)
			if n > 1 {
				want(t, b.Arrive(now, firing(t, minutely, now.Add(-time.Minute))), Drop, Superseded)
			}
		}
	}
	b.Done(now, firing(t, minutely, noon), End{Settled: true})
	d := b.Arrive(now, firing(t, minutely, now))
	if want(t, d, Enter, NoReason); d.Missed != 2 {
		t.Errorf("missed = %d, want 2", d.Missed)
	}
}

// Only the end of the firing in the lane ends it: not that of another time, definition or schedule.
func TestDoneOfAnotherFiring(t *testing.T) {
	b := opened(t, noon, minutely)
	arm(b, noon)
	running, next := firing(t, minutely, noon), firing(t, minutely, noon.Add(time.Minute))
	want(t, b.Arrive(noon, running), Enter, NoReason)
	redefined, stranger := running, running
	redefined.DefinitionID++
	stranger.Name = "stranger"
	arm(b, next.Time)
	for _, f := range []Firing{next, redefined, stranger} {
		b.Done(noon, f, End{Settled: true})
		want(t, b.Arrive(next.Time, next), NotYet, Overlap)
	}
	b.Done(next.Time, running, End{Settled: true})
	want(t, b.Arrive(next.Time, next), Enter, NoReason)
	b.Done(next.Time, next, End{Settled: true})
	b.Done(next.Time, next, End{}) // twice
	want(t, b.Arrive(next.Time, next), Drop, Duplicate)
}

// While a firing is on its way to the topic, there is nothing to do until another one is due.
func TestNextWhileAFiringIsArmed(t *testing.T) {
	b := opened(t, noon, minutely)
	arms := b.Tick(noon)
	if len(arms) == 0 {
		t.Fatal("nothing is armed")
	}
	if next := b.Next(noon); !next.After(noon) {
		t.Errorf("next = %v, before anything is answered", next)
	}
	b.Armed(noon, arms[0].ID+1, nil) // one that nobody has asked for
	if more := b.Tick(noon); len(more) > 0 {
		t.Errorf("armed twice: %+v", more)
	}
}

// A firing that runs for longer than an undeclared schedule is remembered leaves nothing to do until its end. Then the schedule is forgotten.
func TestNextWhileAnUndeclaredFiringRuns(t *testing.T) {
	b := opened(t, noon, minutely)
	arm(b, noon)
	f := firing(t, minutely, noon)
	want(t, b.Arrive(noon, f), Enter, NoReason)
	b.Forget(noon, 1)
	if to := b.Elsewhere(1, "m"); to != 0 {
		t.Errorf("a firing goes to worker %d, and none is left", to)
	}
	late := noon.Add(2 * GraceDefault)
	b.Tick(late)
	if next := b.Next(late); !next.IsZero() {
		t.Errorf("next = %v while it runs", next)
	}
	b.Done(late, f, End{Settled: true})
	if next := b.Next(late); !next.Equal(late) {
		t.Errorf("next = %v when it has run", next)
	}
	if b.Tick(late); len(b.Overview()) != 0 {
		t.Error("the schedule is still known")
	}
	// Its last worker leaves while the clock is ahead: it is forgotten as if that were now.
	b = opened(t, noon, minutely)
	b.Forget(noon.AddDate(10, 0, 0), 1)
	b.Tick(noon)
	if b.Tick(noon.Add(GraceDefault)); len(b.Overview()) != 0 {
		t.Error("the schedule is known for years")
	}
}

// A publication that is under way when the gate opens again does not make its firing safe, whichever gates open after that.
func TestAGateOfAnotherScheduleOpensAfterOurs(t *testing.T) {
	other := Definition{Name: "other", Every: time.Minute}
	p, q := partition.Of(KeyOf("m")), partition.Of(KeyOf("other"))
	if p == q {
		t.Fatal("both schedules are of one partition")
	}
	b := opened(t, noon, minutely, other)
	arms := b.Tick(noon)
	b.Opened(noon, p)
	b.Tick(noon)
	b.Opened(noon, q)
	b.Tick(noon)
	for _, a := range arms {
		b.Armed(noon, a.ID, nil)
	}
	for _, s := range b.Overview() {
		if s.Armed {
			t.Errorf("%s counts as armed", s.Definition.Name)
		}
	}
}

// A publication that is under way when its schedule is declared differently is not one of the firing of the same time by the new definition.
func TestArmOfAnEarlierDefinition(t *testing.T) {
	b := opened(t, noon, minutely)
	earlier := b.Tick(noon)[0]
	if err := b.Declare(noon, 1, []Definition{{Name: "m", Cron: "* * * * *"}}); err != nil {
		t.Fatal(err)
	}
	arms := b.Tick(noon)
	if len(arms) != 1 || !arms[0].Time.Equal(earlier.Time) || arms[0].ID == earlier.ID {
		t.Fatalf("armed %+v, want another firing of %v", arms, earlier.Time)
	}
	if b.Armed(noon, earlier.ID, nil); b.Overview()[0].Armed {
		t.Error("the firing counts as armed")
	}
	if b.Armed(noon, arms[0].ID, nil); !b.Overview()[0].Armed {
		t.Error("the firing does not count as armed")
	}
}

// What has run is remembered for a bounded number of firings.
func TestRememberedFiringsAreBounded(t *testing.T) {
	b := opened(t, noon, minutely)
	for i := range 2 * ranMax {
		f := firing(t, minutely, noon.Add(time.Duration(i)*time.Minute))
		arm(b, f.Time)
		want(t, b.Arrive(f.Time, f), Enter, NoReason)
		b.Done(f.Time, f, End{Settled: true})
	}
	if n := len(b.line("m").ran); n != ranMax {
		t.Errorf("%d firings are remembered, want %d", n, ranMax)
	}
}

// All runs the oldest first, whatever comes first; but not for ever, if the oldest does not come.
func TestAllRunsInOrder(t *testing.T) {
	d := Definition{Name: "a", Every: time.Minute, Missed: All}
	b := opened(t, noon.Add(-1), d)
	arm(b, noon.Add(-1))
	second := noon.Add(time.Minute)
	arm(b, noon)
	arm(b, second)
	want(t, b.Arrive(second, firing(t, d, second)), NotYet, Order)
	want(t, b.Arrive(second, firing(t, d, noon)), Enter, NoReason)
	b.Done(second, firing(t, d, noon), End{Settled: true})
	want(t, b.Arrive(second, firing(t, d, second)), Enter, NoReason)

	b = opened(t, noon.Add(-1), d)
	for now := noon.Add(-1); !now.After(noon.Add(LostMax)); now = now.Add(time.Second) {
		arm(b, now)
	}
	want(t, b.Arrive(noon.Add(LostMax), firing(t, d, second)), Enter, NoReason)
}

// While the letters of a parked key come back they alone run, one after the other in their order: one that waited for an earlier firing,
// which is no letter or a later one, would wait for what waits for it.
func TestAllWaitsForNoneWhileLettersComeBack(t *testing.T) {
	d := Definition{Name: "a", Every: time.Minute, Missed: All}
	key, second := event.Key(KeyOf("a")), noon.Add(time.Minute)
	b := opened(t, noon.Add(-1), d)
	arm(b, noon.Add(-1))
	arm(b, noon)
	arm(b, second)
	b.Stop(second, key, Parked, true)
	want(t, b.Arrive(second, firing(t, d, second)), NotYet, Order)
	b.Stop(second, key, Unparking, true)
	want(t, b.Arrive(second, firing(t, d, second)), Enter, NoReason)
	b.Done(second, firing(t, d, second), End{Settled: true})

	b.Stop(second, key, Parked, false)
	b.Stop(second, key, Unparking, false)
	third, fourth := second.Add(time.Minute), second.Add(2*time.Minute)
	arm(b, third)
	arm(b, fourth)
	want(t, b.Arrive(fourth, firing(t, d, fourth)), NotYet, Order)
	want(t, b.Arrive(fourth, firing(t, d, noon)), Enter, NoReason)
}

// A firing that an earlier owner has run, as a mailbox finds out when a copy of it comes, or the owner's word: none
// waits for it, and it is not armed again.
func TestFiringOfAnEarlierOwnerIsOver(t *testing.T) {
	d := Definition{Name: "a", Every: time.Minute, Missed: All, Grace: time.Hour}
	second := noon.Add(time.Minute)
	b := opened(t, noon.Add(-1), d)
	arms := b.Tick(noon.Add(-1))
	b.Armed(noon.Add(-1), arms[0].ID, nil)
	arm(b, noon)
	arm(b, second)
	want(t, b.Arrive(second, firing(t, d, second)), NotYet, Order)
	key, id := event.Key(KeyOf(d.Name)), MessageID(d.Name, arms[0].ID)
	b.Over("a", id)
	b.Over(key, MessageID(d.Name, arms[0].ID+1))
	b.Over(event.Key(KeyOf("b")), id)
	want(t, b.Arrive(second, firing(t, d, second)), NotYet, Order)
	b.Over(key, id)
	b.Over(key, id)
	want(t, b.Arrive(second, firing(t, d, noon)), Drop, Duplicate)
	want(t, b.Arrive(second, firing(t, d, second)), Enter, NoReason)
	for now := second; !now.After(second.Add(50 * time.Minute)); now = now.Add(time.Second) {
		for _, at := range arm(b, now) {
			if at.Equal(noon) {
				t.Fatalf("a firing that is over is armed again %v later", now.Sub(second))
			}
		}
	}
}

// All waits for a firing that failed until its retry is due, and as long as a broker may take to bring it; not for a dead letter, which comes again
// only if somebody replays it.
func TestAllWaitsForRetriesAndNotForDeadLetters(t *testing.T) {
	d := Definition{Name: "a", Every: time.Minute, Missed: All}
	failed := func(end End) (*Book, Firing) {
		b := opened(t, noon.Add(-1), d)
		arm(b, noon.Add(-1))
		arm(b, noon)
		f := firing(t, d, noon)
		want(t, b.Arrive(noon, f), Enter, NoReason)
		b.Done(noon, f, end)
		for now := noon; !now.After(noon.Add(20 * time.Minute)); now = now.Add(time.Second) {
			arm(b, now)
		}
		return b, f
	}
	second := firing(t, d, noon.Add(time.Minute))
	b, first := failed(End{After: 20 * time.Minute})
	want(t, b.Arrive(noon.Add(20*time.Minute+LostMax-1), second), NotYet, Order)
	want(t, b.Arrive(noon.Add(20*time.Minute), first), Enter, NoReason)
	b.Done(noon.Add(20*time.Minute), first, End{Settled: true})
	want(t, b.Arrive(noon.Add(20*time.Minute), second), Enter, NoReason)

	b = opened(t, noon.Add(-1), d) // its handler takes long, and its retry does not come
	arm(b, noon.Add(-1))
	arm(b, noon)
	want(t, b.Arrive(noon, first), Enter, NoReason)
	arm(b, second.Time)
	ended := noon.Add(10 * time.Minute)
	b.Done(ended, first, End{After: time.Minute})
	want(t, b.Arrive(ended.Add(time.Minute+LostMax-1), second), NotYet, Order)
	want(t, b.Arrive(ended.Add(time.Minute+LostMax), second), Enter, NoReason)

	b, _ = failed(End{After: 20 * time.Minute}) // its retry does not come
	want(t, b.Arrive(noon.Add(20*time.Minute+LostMax), second), Enter, NoReason)

	b, first = failed(End{Dead: true})
	want(t, b.Arrive(noon.Add(time.Minute), second), Enter, NoReason)
	b.Done(noon.Add(time.Minute), second, End{Settled: true})
	want(t, b.Arrive(noon.Add(time.Minute), first), Enter, NoReason) // its letter is replayed

	b = opened(t, noon.Add(-1), d) // skipped before it came here
	arm(b, noon.Add(-1))
	arm(b, noon)
	parsed, err := d.Parse()
	if err != nil {
		t.Fatal(err)
	}
	b.Skip(event.Key(KeyOf("a")), MessageID("a", FiringID(parsed, noon)))
	arm(b, noon.Add(time.Minute))
	want(t, b.Arrive(noon.Add(time.Minute), second), Enter, NoReason)
}

// A firing that its handler has rejected is a dead letter only when its consumer node has copied it. If that node ends before, the firing comes again, and runs, as any event
// does. No other firing waits for it or stands for it.
func TestRejectedFiringMayComeAgain(t *testing.T) {
	rejected := EndOf(event.ResultReject, outcome.Outcome{Kind: outcome.DeadLetter})
	for _, policy := range []Policy{Latest, All} {
		d := Definition{Name: "a", Every: time.Minute, Missed: policy}
		b := opened(t, noon.Add(-1), d)
		arm(b, noon.Add(-1))
		arm(b, noon)
		first, next := firing(t, d, noon), firing(t, d, noon.Add(time.Minute))
		for range 2 {
			want(t, b.Arrive(noon, first), Enter, NoReason)
			b.Done(noon, first, rejected)
		}
		if s := b.Overview()[0]; !s.LastRun.Equal(noon) || s.Waiting != 0 {
			t.Errorf("%v: status = %+v", policy, s)
		}
		for now := noon; !now.After(next.Time); now = now.Add(time.Second) {
			for _, at := range arm(b, now) {
				if at.Equal(noon) {
					t.Fatalf("%v: a rejected firing is armed again %v later", policy, now.Sub(noon))
				}
			}
		}
		got := b.Arrive(next.Time, next)
		if want(t, got, Enter, NoReason); got.Missed != 0 {
			t.Errorf("%v: the next one stands for %d", policy, got.Missed)
		}
	}
}

// The retry of an earlier firing, which looks for its successors, does not arm a dead letter again: the handler would get once more what it has rejected, or given up
// on. It knows no entries if the worker has reconnected meanwhile.
func TestADeadLetterIsNotArmedAgain(t *testing.T) {
	late := noon.Add(80*time.Second + LostMax + time.Second) // no firing waits for the retry of the first one
	done := func(end End) func(*Book, time.Time, Firing) {
		return func(b *Book, at time.Time, f Firing) { b.Done(at, f, end) }
	}
	for name, ends := range map[string]func(*Book, time.Time, Firing){
		"rejected": done(EndOf(event.ResultReject, outcome.Outcome{Kind: outcome.DeadLetter})),
		"given up": done(EndOf(event.ResultRetry, outcome.Outcome{Kind: outcome.DeadLetter})),
		"skipped while it waits for its next try": func(b *Book, at time.Time, f Firing) {
			b.Done(at, f, End{After: time.Hour})
			b.Skip(event.Key(KeyOf(f.Name)), MessageID(f.Name, FiringID(parse(t, Definition{Name: f.Name, Every: time.Minute}), f.Time)))
		},
	} {
		for policy, at := range map[Policy]time.Time{Latest: noon.Add(time.Minute), All: late} {
			d := Definition{Name: "a", Every: time.Minute, Missed: policy}
			b := opened(t, noon.Add(-1), d)
			arm(b, noon.Add(-1))
			arm(b, noon)
			first, second := firing(t, d, noon), firing(t, d, noon.Add(time.Minute))
			want(t, b.Arrive(noon, first), Enter, NoReason)
			b.Done(noon, first, End{After: 80 * time.Second})
			arm(b, at)
			enter := func() {
				got := b.Arrive(at, second)
				if got.Reason == Arming { // its successor was not safe yet
					arm(b, at)
					got = b.Arrive(at, second)
				}
				want(t, got, Enter, NoReason)
			}
			enter()
			ends(b, at, second)

			b.Forget(at, 1)
			if err := b.Declare(at, 1, []Definition{d}); err != nil {
				t.Fatal(err)
			}
			at = at.Add(20 * time.Second)
			arm(b, at)
			if got := b.Arrive(at, first); got.Verdict == Enter {
				b.Done(at, first, End{Settled: true})
			}
			if slices.ContainsFunc(arm(b, at), second.Time.Equal) {
				t.Errorf("%s, %v: it is armed again", name, policy)
			}
			enter() // its letter is replayed
		}
	}
}

func TestEndOf(t *testing.T) {
	again := outcome.Outcome{Kind: outcome.Retry, Delay: time.Minute}
	for _, test := range []struct {
		result event.ResultKind
		o      outcome.Outcome
		want   End
	}{
		{event.ResultDone, outcome.Outcome{Kind: outcome.Ack}, End{Settled: true}},
		{event.ResultReject, outcome.Outcome{Kind: outcome.DeadLetter}, End{Settled: true, Dead: true}},
		{event.ResultRetry, again, End{After: time.Minute}},
		{event.ResultRetry, outcome.Outcome{Kind: outcome.DeadLetter}, End{Dead: true}},
		{event.ResultLost, outcome.Outcome{}, End{}},
	} {
		if got := EndOf(test.result, test.o); got != test.want {
			t.Errorf("%v, %v: %+v, want %+v", test.result, test.o, got, test.want)
		}
	}
}

func TestArriveOfOthers(t *testing.T) {
	b := opened(t, noon, minutely)
	arm(b, noon)
	f := firing(t, minutely, noon)
	other := f
	other.Name = "other"
	want(t, b.Arrive(noon, other), NotYet, NotOwner)
	redefined := f
	redefined.DefinitionID++
	want(t, b.Arrive(noon, redefined), Drop, Redefined)
	strange := f
	strange.Time = noon.Add(time.Second)
	want(t, b.Arrive(noon.Add(time.Minute), strange), Drop, NotScheduled)
	for _, at := range []time.Time{{}, time.UnixMilli(-1 << 62), time.UnixMilli(1 << 62)} {
		strange.Time = at
		want(t, b.Arrive(noon, strange), Drop, NotScheduled)
	}
	many := f
	many.Missed = 1 << 62
	if d := b.Arrive(noon, many); d.Verdict != Enter || d.Missed != CountMax {
		t.Errorf("decision = %+v", d)
	}
	b = opened(t, noon, minutely)
	arm(b, noon)
	many.Missed = -1 << 62
	if d := b.Arrive(noon, many); d.Verdict != Enter || d.Missed != 0 {
		t.Errorf("decision = %+v", d)
	}
	b.Closed(partition.Of(KeyOf("m")))
	want(t, b.Arrive(noon, f), NotYet, NotOwner)
	if arms := b.Tick(noon.Add(time.Hour)); len(arms) != 0 || b.Overview()[0].Owned {
		t.Errorf("a closed gate arms %+v", arms)
	}
}

// A firing whose schedule no worker here declares waits for one as long as a deploy may take.
func TestUndeclared(t *testing.T) {
	b := NewBook()
	b.Opened(noon, partition.Of(KeyOf("m")))
	f := firing(t, minutely, noon.Add(-10*time.Hour)) // a group that was down for long
	want(t, b.Arrive(noon, f), NotYet, Unknown)
	want(t, b.Arrive(noon.Add(GraceDefault-1), f), NotYet, Unknown)
	want(t, b.Arrive(noon.Add(GraceDefault), f), Drop, Undeclared)

	for _, at := range []time.Time{{}, time.UnixMilli(-1 << 62), time.UnixMilli(1 << 62)} {
		f.Time = at
		want(t, b.Arrive(noon, f), Drop, NotScheduled)
	}
	f.Time = noon.Add(2 * time.Hour)
	want(t, b.Arrive(noon.Add(time.Hour), f), NotYet, Early)
	want(t, b.Arrive(f.Time, f), NotYet, Unknown)

	b = opened(t, noon, minutely) // whose gate opens again after the last worker has left
	b.Forget(noon, 1)
	b.Opened(noon.Add(time.Minute), partition.Of(KeyOf("m")))
	f.Time = noon
	want(t, b.Arrive(noon.Add(time.Minute+GraceDefault-1), f), NotYet, Unknown)
	want(t, b.Arrive(noon.Add(time.Minute+GraceDefault), f), Drop, Undeclared)

	// The last worker leaves, and comes back: what it has run is remembered.
	b = opened(t, noon, minutely)
	arm(b, noon)
	f.Time = noon
	want(t, b.Arrive(noon, f), Enter, NoReason)
	b.Done(noon, f, End{Settled: true})
	left := noon.Add(10 * time.Hour)
	b.Forget(left, 1)
	if s := b.Overview()[0]; s.Owned || s.Workers != 0 || !s.Next.IsZero() {
		t.Errorf("status = %+v", s)
	}
	g := firing(t, minutely, left)
	want(t, b.Arrive(left, g), NotYet, Unknown)
	want(t, b.Arrive(left.Add(GraceDefault-1), g), NotYet, Unknown)
	if next := b.Next(left); !next.Equal(left.Add(GraceDefault)) {
		t.Errorf("next = %v", next)
	}
	b.Tick(left.Add(GraceDefault - 1))
	if err := b.Declare(left, 1, []Definition{minutely}); err != nil {
		t.Fatal(err)
	}
	want(t, b.Arrive(left, f), Drop, Duplicate)
	b.Forget(left, 1)
	b.Tick(left.Add(GraceDefault))
	if all := b.Overview(); len(all) != 0 {
		t.Errorf("an undeclared schedule stays: %+v", all)
	}
	again := left.Add(2 * GraceDefault)
	if err := b.Declare(again, 1, []Definition{minutely}); err != nil {
		t.Fatal(err)
	}
	if times := arm(b, again); len(times) == 0 {
		t.Errorf("a schedule that is declared again is not armed: %+v", b.Overview())
	}
}

// A gate that opened, or a worker that left, while the clock was years ahead makes no firing wait for years.
func TestUndeclaredAfterAClockThatWasAhead(t *testing.T) {
	ahead := noon.AddDate(10, 0, 0)
	b := NewBook()
	b.Opened(ahead, partition.Of(KeyOf("m")))
	f := firing(t, minutely, noon.Add(-time.Minute))
	want(t, b.Arrive(noon, f), NotYet, Unknown)
	want(t, b.Arrive(noon.Add(GraceDefault-1), f), NotYet, Unknown)
	want(t, b.Arrive(noon.Add(GraceDefault), f), Drop, Undeclared)

	b = opened(t, noon, minutely)
	b.Forget(ahead, 1)
	want(t, b.Arrive(noon, f), NotYet, Unknown)
	want(t, b.Arrive(noon.Add(GraceDefault), f), Drop, Undeclared)
	b.Tick(noon.Add(GraceDefault))
	if all := b.Overview(); len(all) != 0 {
		t.Errorf("an undeclared schedule stays: %+v", all)
	}
}

// A clock that goes back for a while makes no firing wait for less.
func TestUndeclaredWhileTheClockIsBehind(t *testing.T) {
	b := NewBook()
	b.Opened(noon, partition.Of(KeyOf("m")))
	f := firing(t, minutely, noon.Add(-30*time.Minute))
	want(t, b.Arrive(noon.Add(-time.Hour), f), NotYet, Early)
	want(t, b.Arrive(noon.Add(GraceDefault-1), f), NotYet, Unknown)
	want(t, b.Arrive(noon.Add(GraceDefault), f), Drop, Undeclared)
}

func TestDeclare(t *testing.T) {
	b := NewBook()
	var many []Definition
	for n := range SchedulesMax + 1 {
		many = append(many, Definition{Name: fmt.Sprint("n", n), Cron: "@daily"})
	}
	for want, defs := range map[string][]Definition{
		"at most 256":    many,
		"declared twice": {minutely, minutely},
		"exactly one":    {{Name: "x"}},
	} {
		if err := b.Declare(noon, 1, defs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q in it", err, want)
		}
		if all := b.Overview(); len(all) != 0 {
			t.Errorf("refused, but there: %+v", all)
		}
	}
	for worker := range uint64(NamesMax / SchedulesMax) {
		for i := range many {
			many[i].Name = fmt.Sprintf("%d.%d", worker, i)
		}
		if err := b.Declare(noon, worker, many[:SchedulesMax]); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Declare(noon, 99, []Definition{minutely}); err == nil || !strings.Contains(err.Error(), "declare fewer") {
		t.Errorf("error = %v", err)
	}
}

// Names that no worker declares any more are remembered for a while, but take no room from others: a worker with other names at each of
// its starts would shut out all workers for an hour. Those go first whose workers left first.
func TestForgottenNamesMakeRoom(t *testing.T) {
	b, now := NewBook(), noon
	many := make([]Definition, SchedulesMax)
	for start := range NamesMax / SchedulesMax {
		for i := range many {
			many[i] = Definition{Name: fmt.Sprintf("%02d.%d", 99-start, i), Cron: "@daily"}
		}
		if err := b.Declare(now, uint64(start), many); err != nil {
			t.Fatal(err)
		}
		if now = now.Add(time.Second); start > 0 { // the first worker remains
			b.Forget(now, uint64(start))
		}
	}
	if err := b.Declare(now, 100, []Definition{minutely, {Name: "other", Cron: "@daily"}}); err != nil {
		t.Fatalf("no room: %v", err)
	}
	if len(b.lines) != NamesMax {
		t.Errorf("%d schedules", len(b.lines))
	}
	for name, want := range map[string]bool{"99.0": true, "98.0": false, "98.1": false, "98.10": true, "97.0": true, "84.0": true, "m": true, "other": true} {
		if has := b.line(name) != nil; has != want {
			t.Errorf("%s is known: %t", name, has)
		}
	}
	// What is to be declared is not forgotten for that.
	if err := b.Declare(now, 101, []Definition{{Name: "98.10", Cron: "@daily"}, {Name: "new", Cron: "@daily"}}); err != nil {
		t.Fatal(err)
	}
	if b.line("98.10") == nil || b.line("98.100") != nil || b.line("98.101") == nil || b.line("new") == nil {
		t.Error("the wrong one was forgotten")
	}
	// Nor is one whose firing runs. All others may go.
	b.runs(t, Definition{Name: "97.0"})
	for worker := uint64(200); ; worker++ {
		for i := range many {
			many[i] = Definition{Name: fmt.Sprintf("%d.%d", worker, i), Cron: "@daily"}
		}
		free := NamesMax - SchedulesMax - 5 - int(worker-200)*SchedulesMax // beside those of 99, m, other, 98.10, new and 97.0
		if free < len(many) {
			if err := b.Declare(now, worker, many[:free+1]); err == nil {
				t.Error("the one that runs makes room")
			}
			if err := b.Declare(now, worker, many[:free]); err != nil {
				t.Errorf("no room for %d: %v", free, err)
			}
			break
		}
		if err := b.Declare(now, worker, many); err != nil {
			t.Fatalf("no room: %v", err)
		}
	}
	if b.line("97.0") == nil || b.line("98.101") != nil || len(b.lines) != NamesMax {
		t.Errorf("the one that runs was forgotten, or another was not: %d names", len(b.lines))
	}
}

// Of two workers that declare a name differently, the one that came last wins, until it leaves.
func TestConflictingWorkers(t *testing.T) {
	hourly := Definition{Name: "m", Every: time.Hour}
	b := opened(t, noon, minutely)
	wantTimes(t, arm(b, noon), noon.Add(time.Minute))
	if err := b.Declare(noon, 2, []Definition{hourly}); err != nil {
		t.Fatal(err)
	}
	wantTimes(t, arm(b, noon), noon.Add(time.Hour))
	if s := b.Overview()[0]; !s.Conflict || s.Workers != 2 || s.Definition.Every != time.Hour {
		t.Errorf("status = %+v", s)
	}
	want(t, b.Arrive(noon.Add(time.Minute), firing(t, minutely, noon.Add(time.Minute))), Drop, Redefined)
	if first, second, other := b.Elsewhere(1, "m"), b.Elsewhere(2, "m"), b.Elsewhere(3, "m"); first != 0 || second != 0 || other != 2 {
		t.Errorf("from the workers that declare it a firing goes to %d and %d, from another one to %d, want the newest for that", first, second, other)
	}
	b.Forget(noon, 2)
	if w, none := b.Elsewhere(2, "m"), b.Elsewhere(2, "n"); w != 1 || none != 0 {
		t.Errorf("a firing goes to %d, and one of another schedule to %d, want those that are left", w, none)
	}
	wantTimes(t, arm(b, noon), noon.Add(time.Minute))
	if s := b.Overview()[0]; s.Conflict || s.Workers != 1 || s.Definition.Every != time.Minute {
		t.Errorf("status = %+v", s)
	}
	// A change of the grace or of the policy alone is a conflict too, but leaves what is armed.
	graced := minutely
	graced.Grace = 5 * time.Minute
	if err := b.Declare(noon, 2, []Definition{graced}); err != nil {
		t.Fatal(err)
	}
	wantTimes(t, arm(b, noon))
	if s := b.Overview()[0]; !s.Conflict || !s.Armed {
		t.Errorf("status = %+v", s)
	}
	skip := minutely
	skip.Missed = Skip
	if err := b.Declare(noon, 2, []Definition{skip}); err != nil {
		t.Fatal(err)
	}
	wantTimes(t, arm(b, noon))
	if s := b.Overview()[0]; !s.Conflict || !s.Armed {
		t.Errorf("status = %+v", s)
	}
}

// A publication that was under way when the gate closed may have been consumed elsewhere when it
// opens again: it is no proof that the firing is safe.
func TestArmOfAnEarlierTenure(t *testing.T) {
	b := opened(t, noon, minutely)
	a := b.Tick(noon)[0]
	p := partition.Of(KeyOf("m"))
	b.Closed(p)
	b.Opened(noon, p)
	if arms := b.Tick(noon); len(arms) != 0 {
		t.Fatalf("armed twice at once: %+v", arms)
	}
	b.Armed(noon, a.ID, nil)
	wantTimes(t, arm(b, noon), a.Time)
	// What was safe before is armed again, too.
	b.Closed(p)
	b.Opened(noon, p)
	wantTimes(t, arm(b, noon), a.Time)
}

// Publications are bounded, and those that wait longest go first.
func TestArmsAreBounded(t *testing.T) {
	var defs []Definition
	for n := range SchedulesMax {
		defs = append(defs, Definition{Name: fmt.Sprintf("%03d", n), Every: time.Hour})
	}
	b := opened(t, noon, defs...)
	names := map[string]bool{}
	arms := b.Tick(noon)
	if len(arms) != ArmsMax || len(b.Tick(noon)) != 0 {
		t.Fatalf("%d arms", len(arms))
	}
	if next := b.Next(noon); !next.After(noon) {
		t.Errorf("next = %v, though nothing more may be under way", next)
	}
	now := noon
	for len(names) < SchedulesMax {
		if len(arms) == 0 {
			t.Fatalf("only %d schedules had their turn", len(names))
		}
		now = now.Add(10 * time.Second) // longer than the first delays
		for _, a := range arms {
			names[a.Definition.Name] = true
			b.Armed(now, a.ID, errors.New("no broker"))
		}
		now = now.Add(10 * time.Second)
		if arms = b.Tick(now); now.Sub(noon) > 5*20*time.Second {
			t.Fatalf("after five rounds only %d schedules had their turn", len(names))
		}
	}
}

// A clock that jumps makes no storm: at each jump a schedule arms what is newest and what is next.
func TestJumpsOfTheClock(t *testing.T) {
	var defs []Definition
	for n := range 20 {
		defs = append(defs, Definition{Name: fmt.Sprint(n), Every: 10 * time.Second, Missed: Policy(n % 3)})
	}
	b := opened(t, noon, defs...)
	arms, jumps := 0, 300
	for n := range jumps {
		now := noon.Add(time.Duration((n*7919)%36_000-18_000) * time.Second)
		for again := len(arm(b, now)); again > 0; again = len(arm(b, now)) {
			arms += again
		}
	}
	if arms > 3*jumps*len(defs) {
		t.Errorf("%d jumps of %d schedules armed %d firings", jumps, len(defs), arms)
	}
	// A clock that goes back and back makes each earlier firing the next one.
	for n := range 2 * entriesMax {
		now := noon.Add(-6*time.Hour - time.Duration(n)*10*time.Second)
		arm(b, now)
		for _, s := range b.Overview() {
			if !s.Armed {
				t.Fatalf("%s: the firing of %v is not armed", s.Definition.Name, s.Next)
			}
		}
	}
	for _, l := range b.lines {
		if len(l.entries) > entriesMax {
			t.Errorf("%d firings are followed, want at most %d", len(l.entries), entriesMax)
		}
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for r := NotOwner; r < reasons; r++ {
		if r.String() == "" || seen[r.String()] {
			t.Errorf("reason %d is called %q", r, r)
		}
		seen[r.String()] = true
	}
}

func BenchmarkTickOfManySchedules(b *testing.B) {
	book := NewBook()
	for worker := range uint64(NamesMax / SchedulesMax) {
		var defs []Definition
		for n := range SchedulesMax {
			d := Definition{Name: fmt.Sprintf("%d.%d", worker, n), Cron: "0 6 * * *", Zone: "Europe/Berlin"}
			defs = append(defs, d)
			book.Opened(noon, partition.Of(KeyOf(d.Name)))
		}
		if err := book.Declare(noon, worker, defs); err != nil {
			b.Fatal(err)
		}
	}
	for len(arm(book, noon)) > 0 {
	}
	for b.Loop() {
		book.Tick(noon)
		book.Next(noon)
	}
}
