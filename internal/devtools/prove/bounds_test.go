package prove

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// TestAMemberThatReportsTooMuch: of a member that reports more than the load explains the command keeps no more, and the verdict names it.
func TestAMemberThatReportsTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, left := 0, 0
		long := strings.Repeat("x", 1<<16)
		ask := func(_ context.Context, member string, ask Ask) (Answer, error) {
			a := Answer{Member: member, Enabled: true, Limits: Limits{Seconds: 60, Rate: 100, Keys: 10}, Now: int64(clock.Shared()), Ready: true, Next: ask.From}
			if ask.Do == DoFault && ask.Fault.Kind == Leave {
				left++
			}
			a.Drained = left == 2
			if member != "b" || ask.Do != DoPoll {
				return a, nil
			}
			for range recordsPerAnswer / 2 {
				told++
				a.Records = append(a.Records, Record{Kind: HasStarted, At: a.Now, Process: 1, Handling: uint64(told), Event: 1, Key: 1}, Record{Kind: EndedByItself, At: a.Now, Text: long})
			}
			a.Next += len(a.Records)
			return a, nil
		}
		o := DefaultOptions()
		o.For, o.Every, o.By, o.Rate, o.Keys = time.Second, time.Hour, "a test", 10, 10
		run, err := Conduct(t.Context(), o, Group{Name: "orders", Members: []string{"a", "b"}, Ask: serially(ask)}, func(string, ...any) {})
		if err != nil {
			t.Fatal(err)
		}
		most := recordsLeast + (recordsLeast + 301*5 + 2*handlingsEach*301*10)
		if b := run.Members[1]; len(b.Records) > most || len(b.Records)+b.Refused != 2*told {
			t.Errorf("%d records of %d are kept, want at most %d, and %d are refused", len(b.Records), 2*told, most, b.Refused)
		}
		for _, r := range run.Members[1].Records {
			if len(r.Text) > textBytesMax {
				t.Fatalf("a record with %d bytes of text is kept", len(r.Text))
			}
		}
		if n := run.Members[0].Refused; n != 0 {
			t.Errorf("%d records of the other member are refused", n)
		}
		if !slices.ContainsFunc(run.Trouble, func(s string) bool {
			return strings.HasPrefix(s, "b told of more than the load and the faults explain: ")
		}) {
			t.Errorf("the trouble is %q, want the member that reported too much", run.Trouble)
		}
		run.Trouble = nil // the refused records alone keep the proof from showing anything
		if v := Judge(run); v.Exercised || !strings.Contains(broken(v), "events were handled") {
			t.Errorf("the verdict is %q", broken(v))
		}
	})
}

// TestHonestRecordsAreKept: the bounds leave room for a proof in which one member handles all events, some of them several times.
func TestHonestRecordsAreKept(t *testing.T) {
	c := &conducting{o: DefaultOptions(), group: Group{Members: []string{"a", "b", "c"}}, run: &Run{Members: make([]Member, 3), Faults: make([]FaultAt, 40)}}
	events := int(c.o.For.Seconds()) * c.o.Rate
	for i := range 3 * events {
		for _, kind := range []string{HasStarted, HasEnded, WasPublished}[:2+(1+i%3)/3] {
			if !c.keep(1, &Record{Kind: kind}) {
				t.Fatalf("handling %d of %d events is refused", i, events)
			}
		}
	}
	for range 6 * 40 {
		if !c.keep(1, &Record{Kind: FaultBegan, Fault: &Fault{Kind: Kill}}) {
			t.Fatal("the record of a fault is refused")
		}
	}
}

// TestManyHandlingsAtATime: a handling is compared with a bounded number of others. The verdict counts those of which some were left out, and shows nothing then.
func TestManyHandlingsAtATime(t *testing.T) {
	const many = 4 * runningMax
	s := newScene()
	for i := range int64(many) {
		s.handle(1, 401+10*int(i), 7000*ms+i, 0, "") // of key 1, with no end
	}
	v := Judge(&s.run)
	if v.Overlaps == 0 || v.Overlaps > (many+10)*runningMax {
		t.Errorf("%d overlaps are counted of %d handlings at a time, want no more than %d of each", v.Overlaps, many, runningMax)
	}
	if v.Uncompared < many-runningMax-1 || v.Held || v.Exercised || !slices.ContainsFunc(v.Notes, func(s string) bool { return strings.Contains(s, "were not compared") }) {
		t.Errorf("%d were not compared, want those after the first %d; held %v, exercised %v, %q", v.Uncompared, runningMax, v.Held, v.Exercised, v.Notes)
	}
}

// TestAnOverlapBesideManyOthers: handlings that can show no overlap, since their ends may be missing, take no place from those that can.
func TestAnOverlapBesideManyOthers(t *testing.T) {
	s := newScene()
	s.run.Members[0].Lost = 1
	for i := range int64(2 * runningMax) {
		s.handle(0, 401+10*int(i), 3000*ms+i, 0, "")
	}
	s.drop(func(r *Record) bool { return r.Kind == WasKilled })
	s.handle(1, 301, 6006*ms, 6008*ms, Cancelled) // another one runs from 6005 to 6009 ms
	v := Judge(&s.run)
	if v.Overlaps != 1 || v.Exercised || v.Uncompared == 0 {
		t.Errorf("%d overlaps, want 1; exercised %v, %d were not compared", v.Overlaps, v.Exercised, v.Uncompared)
	}
}

// TestAnAnswerOfTooManyRecords: a few bytes of an answer must not become many times as much memory.
func TestAnAnswerOfTooManyRecords(t *testing.T) {
	var a Answer
	if err := json.Unmarshal([]byte(`{"records":[`+strings.Repeat("{},", recordsDecodedMax)+`{}]}`), &a); err == nil || !strings.Contains(err.Error(), "records") {
		t.Errorf("an answer of %d records is decoded: %v", len(a.Records), err)
	}
	text, err := json.Marshal(Answer{Records: []Record{{Kind: HasStarted, At: 5}, {Kind: HasEnded, Outcome: Done}}})
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil || len(a.Records) != 2 || a.Records[0].At != 5 || a.Records[1].Outcome != Done {
		t.Errorf("%s is decoded as %+v (%v)", text, a.Records, err)
	}
	if err := json.Unmarshal([]byte(`{"records":null}`), &a); err != nil {
		t.Errorf("no records: %v", err)
	}
}

// TestStoodStill: stops count that contain each other, and two that touch do not count as one.
func TestStoodStill(t *testing.T) {
	for _, one := range []struct {
		from, until int64
		want        bool
	}{{15, 25, true}, {35, 95, true}, {95, 101, false}, {5, 15, false}, {105, 190, true}, {100, 100, true}} {
		j := &judging{stops: map[process][]stop{{0, 1}: {{100 * ms, 200 * ms}, {20 * ms, 30 * ms}, {10 * ms, 100*ms - wakeMax/2}}}, run: &Run{}}
		j.stops[process{0, 1}][2].until = 100*ms - wakeMax // a handler that wakes may run on for so long
		j.stops[process{0, 1}][0].until -= wakeMax
		j.stops[process{0, 1}][1].until -= wakeMax
		j.finish()
		if got := j.stoodStill(&handling{member: 0, process: 1}, one.from*ms, one.until*ms); got != one.want {
			t.Errorf("%d to %d ms: %v, want %v", one.from, one.until, got, one.want)
		}
	}
}
