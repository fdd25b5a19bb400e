package ends

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
)

// written returns what a member writes of its events.
func written(t *testing.T, tell func(*Writer)) []Record {
	t.Helper()
	var out bytes.Buffer
	tell(NewWriter(&out, outcome.DefaultConfig()))
	var all []Record
	for line := range strings.Lines(out.String()) {
		r, err := Read(line)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func TestFailuresAreLines(t *testing.T) {
	e := &event.Event{Key: "ann\x1b[2J", ID: event.MessageID{Ledger: 7, Entry: 1, Batch: -1}, Attempts: 1}
	const key = `key ann\x1b[2J, `
	for name, test := range map[string]struct {
		result event.Result
		want   string // "": no line
	}{
		"failed":          {event.Result{Kind: event.ResultRetry, After: 2e9, Reason: "exit status 75"}, key + "attempt 2 failed, again in 2s: exit status 75"},
		"a reason":        {event.Result{Kind: event.ResultRetry, After: 2e9, Reason: "a\nb\x1b[2J"}, key + `attempt 2 failed, again in 2s: a\nb\x1b[2J`},
		"a long reason":   {event.Result{Kind: event.ResultRetry, After: 2e9, Reason: strings.Repeat("x", 1<<12)}, key + "attempt 2 failed, again in 2s: xxx"},
		"crashed":         {event.Result{Kind: event.ResultCrashed}, key + "attempt 2 failed, again at once: its worker crashed"},
		"lost":            {event.Result{Kind: event.ResultLost}, key + "attempt 2 failed, again at once: its worker has gone without an answer"},
		"put off":         {event.Result{Kind: event.ResultPutOff, After: 1e9}, key + "attempt 2: the router puts it off for 1s"},
		"behind another":  {event.Result{Kind: event.ResultPutOff, After: 1e8, Behind: true}, ""},
		"another worker":  {event.Result{Kind: event.ResultPutOff, After: 1e9, To: 2}, ""},
		"the key moves":   {event.Result{Kind: event.ResultCancelled}, ""},
		"rejected: later": {event.Result{Kind: event.ResultReject, Reason: "no"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			all := written(t, func(w *Writer) { w.Failed(e, test.result) })
			if test.want == "" {
				if len(all) > 0 {
					t.Errorf("it writes %v", all[0].Failure)
				}
				return
			}
			if len(all) != 1 || !strings.HasPrefix(all[0].Failure.String(), test.want) || len(all[0].Failure.String()) > 500 {
				t.Errorf("it writes %v, want %q", all, test.want)
			}
		})
	}
}

func TestEndsAreCountedOnce(t *testing.T) {
	id := func(entry int64) *event.Event {
		return &event.Event{Key: "ann", ID: event.MessageID{Ledger: 7, Entry: entry, Batch: -1}}
	}
	detail := &event.Detail{Attempts: 10, Reason: "failed 10 times: no"}
	all := written(t, func(w *Writer) {
		w.Settled([]event.Verdict{
			{Kind: event.Done},
			{Kind: event.Rejected, Detail: detail},
			{Kind: event.Failed, Detail: &event.Detail{}},            // by way of the retry topic: no end
			{Kind: event.Done, Handle: event.NewRelayedHandle(1, 0)}, // a peer's
			{Kind: event.Rejected, Detail: &event.Detail{Reason: "no key"}},
		}, []*event.Event{id(1), id(2), id(3), id(4), {ID: event.MessageID{Ledger: 7, Entry: 5, Batch: -1}}})
		w.Settled([]event.Verdict{{Kind: event.Done}}, []*event.Event{id(1)}) // it was delivered again
		w.Settled([]event.Verdict{{Kind: event.Failed}}, []*event.Event{id(6)})
	})
	var tally Tally
	var lines []string
	for _, r := range all {
		tally.Add(r)
		if r.Failure != nil {
			lines = append(lines, r.Failure.String())
		}
	}
	if done, dead := tally.Counts(); done != 1 || dead != 2 || !tally.Any() {
		t.Errorf("%d done, %d dead-lettered, want 1 and 2", done, dead)
	}
	crashed := written(t, func(w *Writer) {
		w.Settled([]event.Verdict{{Kind: event.Rejected, Detail: &event.Detail{Reason: "a worker crashed 5 times while it had the event"}}}, []*event.Event{{Key: "ben", ID: event.MessageID{Ledger: 7}}})
	})
	lines = append(lines, crashed[0].Failure.String())
	want := []string{
		"key ann, attempt 10: to the dead letter topic: failed 10 times: no",
		"event 7:5:0:-1 goes to the dead letter topic: no key",
		"key ben: to the dead letter topic: a worker crashed 5 times while it had the event",
	}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		t.Errorf("lines %q, want %q", lines, want)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	verdicts, events := make([]event.Verdict, 2*doneMax+1), make([]*event.Event, 2*doneMax+1)
	for i := range verdicts {
		verdicts[i].Kind, events[i] = event.Done, &event.Event{ID: event.MessageID{Entry: int64(i)}}
	}
	all := written(t, func(w *Writer) { w.Settled(verdicts, events) })
	if len(all) != 3 || len(all[0].Done) != doneMax || len(all[2].Done) != 1 {
		t.Errorf("%d records", len(all))
	}
}

func TestATallyIsBounded(t *testing.T) {
	var tally Tally
	if tally.Any() {
		t.Error("it counts before anything was added")
	}
	for i := range 2*recentMax + 1 {
		tally.Add(Record{Done: []string{fmt.Sprint(i)}})
	}
	if done, _ := tally.Counts(); done != 2*recentMax+1 || len(tally.recent) != recentMax || len(tally.order) != recentMax {
		t.Errorf("%d done; it knows %d events", done, len(tally.recent))
	}
	tally.Add(Record{Done: []string{fmt.Sprint(2 * recentMax)}})
	if done, _ := tally.Counts(); done != 2*recentMax+1 {
		t.Error("the newest event is counted twice")
	}
}
