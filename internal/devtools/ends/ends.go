// Package ends carries the ends and failures of events from a member to the process that shows
// them to the user of `router dev` or `router demo`.
//
// The member writes a [Record] as one line of JSON on its standard output for each failure of the
// application, and for each batch of events that have come to their end. It writes keys and the
// application's errors: it is for a group on the user's own machine, and no log.
//
// # Concurrency
//
// A [Writer] and a [Tally] are safe for concurrent use.
package ends

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/outcome"
)

// Record is what a member tells: one failure, or events that have come to their end.
type Record struct {
	Failure      *Failure `json:"failure,omitempty"`
	Done         []string `json:"done,omitempty"`          // message ids
	DeadLettered []string `json:"dead_lettered,omitempty"` // the same
}

// Failure is an attempt that did not succeed, and what follows.
type Failure struct {
	Key     string        `json:"key"`
	Event   string        `json:"event"`   // message id
	Attempt uint32        `json:"attempt"` // from 1
	Reason  string        `json:"reason"`
	Again   time.Duration `json:"again"`             // until the next attempt; not with Dead
	Dead    bool          `json:"dead"`              // it goes to the dead letter topic
	PutOff  bool          `json:"put_off,omitempty"` // the router did not give it out
}

const (
	doneMax        = 1000 // ids in one record: a reader bounds its lines
	keyBytesMax    = 64
	reasonBytesMax = 300
)

// String returns the failure as one line for a terminal.
func (f Failure) String() string {
	key, reason := untrusted.Short(f.Key, keyBytesMax), untrusted.Short(f.Reason, reasonBytesMax)
	switch {
	case f.Dead && f.Attempt == 0 && f.Key != "": // no handler has failed: workers crashed, or an operator skips it
		return fmt.Sprintf("key %s: to the dead letter topic: %s", key, reason)
	case f.Dead && f.Attempt == 0:
		return fmt.Sprintf("event %s goes to the dead letter topic: %s", f.Event, reason)
	case f.Dead:
		return fmt.Sprintf("key %s, attempt %d: to the dead letter topic: %s", key, f.Attempt, reason)
	case f.PutOff:
		return fmt.Sprintf("key %s, attempt %d: the router puts it off for %v", key, f.Attempt, f.Again.Round(time.Millisecond))
	case f.Again > 0:
		return fmt.Sprintf("key %s, attempt %d failed, again in %v: %s", key, f.Attempt, f.Again.Round(time.Millisecond), reason)
	}
	return fmt.Sprintf("key %s, attempt %d failed, again at once: %s", key, f.Attempt, reason)
}

// Read reads a line that a [Writer] wrote.
func Read(line string) (Record, error) {
	var r Record
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return Record{}, fmt.Errorf("ends: %w", err)
	}
	return r, nil
}

// Writer writes records. It implements pipeline.Watch.
type Writer struct {
	retry outcome.Config

	mu  sync.Mutex
	out *json.Encoder
}

// NewWriter returns a Writer to w. retry is that of the member's mailboxes.
func NewWriter(w io.Writer, retry outcome.Config) *Writer {
	return &Writer{retry: retry, out: json.NewEncoder(w)}
}

func (w *Writer) write(r Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(r) // a parent that has gone reads nothing
}

// Failed implements pipeline.Watch. A dead letter is written when it is settled.
func (w *Writer) Failed(e *event.Event, r event.Result) {
	if e.Call != nil {
		return // its caller is told, and nobody tries it again
	}
	o := outcome.Of(w.retry, e.ID, e.Attempts, e.Crashes, r)
	if o.Kind != outcome.Retry {
		return
	}
	f := &Failure{Key: string(e.Key), Event: e.ID.String(), Attempt: e.Attempts + 1, Reason: o.Reason, Again: o.Delay}
	switch r.Kind {
	case event.ResultNotStarted, event.ResultCancelled: // the key moves: no failure
		return
	case event.ResultPutOff:
		if r.Behind || r.To != 0 { // a firing that waits for another one, or for a worker that declares its schedule
			return
		}
		f.PutOff = true
	case event.ResultLost:
		f.Reason = "its worker has gone without an answer"
	}
	w.write(Record{Failure: f})
}

// Settled implements pipeline.Watch.
func (w *Writer) Settled(verdicts []event.Verdict, events []*event.Event) {
	var done []string
	for i := range verdicts {
		v, e := &verdicts[i], events[i]
		switch {
		case v.Handle.IsRelayed(), v.Handle.IsCall():
		case v.Kind == event.Done:
			done = append(done, e.ID.String())
		case v.Kind == event.Rejected:
			d := v.DetailOrZero()
			w.write(Record{
				Failure:      &Failure{Key: string(e.Key), Event: e.ID.String(), Attempt: d.Attempts, Reason: d.Reason, Dead: true},
				DeadLettered: []string{e.ID.String()},
			})
		}
	}
	for some := range slices.Chunk(done, doneMax) {
		w.write(Record{Done: some})
	}
}

// Tally counts the ends of events, each event once: an event that is delivered again after its
// end comes to it again. It knows the newest recentMax of them.
type Tally struct {
	mu           sync.Mutex
	recent       map[string]bool
	order        []string // of recent, as a ring
	next         int
	done         int
	deadLettered int
	failures     int
}

// recentMax is the number of events that have come to their end which a Tally knows.
const recentMax = 100_000

// Add counts a record.
func (t *Tally) Add(r Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Failure != nil {
		t.failures++
	}
	t.done += t.fresh(r.Done)
	t.deadLettered += t.fresh(r.DeadLettered)
}

// fresh returns how many of these ids are not known, and knows them from now on.
func (t *Tally) fresh(ids []string) (n int) {
	if t.recent == nil {
		t.recent = make(map[string]bool)
	}
	for _, id := range ids {
		if t.recent[id] {
			continue
		}
		n++
		t.recent[id] = true
		if len(t.order) < recentMax {
			t.order = append(t.order, id)
			continue
		}
		delete(t.recent, t.order[t.next])
		t.order[t.next] = id
		t.next = (t.next + 1) % recentMax
	}
	return n
}

// Counts returns how many events are done and dead-lettered.
func (t *Tally) Counts() (done, deadLettered int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done, t.deadLettered
}

// Any reports whether any event was done, dead-lettered or failed.
func (t *Tally) Any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.done+t.deadLettered+t.failures > 0
}
