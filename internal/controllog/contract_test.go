package controllog

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// A site is one log and a way to connect to it as one more member.
type site struct {
	connect func(t *testing.T) Transport
	roll    func(t *testing.T) // the log continues in a new ledger
}

// Every transport keeps this contract. The Pulsar one is skipped where there is no broker.
func TestContract(t *testing.T) {
	sites := map[string]func(t *testing.T) site{
		"mem":    memSite,
		"remote": remoteSite,
		"pulsar": pulsarSite,
	}
	rules := map[string]func(t *testing.T, s site){
		"one order for all":             oneOrder,
		"own appends come back in turn": ownAppendsInTurn,
		"latest sees only what follows": latestSeesWhatFollows,
		"reopen is inclusive":           reopenIsInclusive,
		"ahead of the end sees it grow": aheadOfTheEndSeesItGrow,
		"short reader returns two":      shortReaderReturnsTwo,
		"order survives a new ledger":   orderSurvivesNewLedger,
		"a cancelled tail ends":         cancelledTailEnds,
		"first sees all":                firstSeesAll,
		"the end is the newest record":  endIsTheNewestRecord,
	}
	for name, make := range sites {
		t.Run(name, func(t *testing.T) {
			for rule, check := range rules {
				t.Run(rule, func(t *testing.T) { check(t, make(t)) })
			}
		})
	}
}

// All readers see the concurrent appends of several members in the same order, and each once.
func oneOrder(t *testing.T, s site) {
	const members, each = 3, 40
	var tails []*tail
	var transports []Transport
	for range members {
		tr := s.connect(t)
		transports = append(transports, tr)
		tails = append(tails, openTail(t, tr, event.Position{}))
	}
	var appenders sync.WaitGroup
	for m, tr := range transports {
		appenders.Go(func() {
			for i := range each {
				appendOne(t, tr, fmt.Sprintf("%d/%d", m, i))
			}
		})
	}
	appenders.Wait()
	want := tails[0].take(t, members*each)
	for _, other := range tails[1:] {
		if got := other.take(t, members*each); !slices.EqualFunc(got, want, sameEntry) {
			t.Error("two readers saw different orders")
		}
	}
	if !slices.IsSortedFunc(want, func(a, b Entry) int { return a.At.Compare(b.At) }) {
		t.Error("positions are not in the order of reading")
	}
	seen := make(map[string]bool)
	for _, e := range want {
		seen[string(e.Data)] = true
	}
	if len(seen) != members*each {
		t.Errorf("%d different records, want %d", len(seen), members*each)
	}
}

// Records that one member appends without waiting come back in the order of appending.
func ownAppendsInTurn(t *testing.T, s site) {
	const n = 30
	tr := s.connect(t)
	tail := openTail(t, tr, event.Position{})
	done := make(chan error, n)
	for i := range n {
		tr.Append([]byte(fmt.Sprint(i)), func(err error) { done <- err })
	}
	for range n {
		if err := receiveWithin(t, done); err != nil {
			t.Fatalf("append: %v", err)
		}
	}
	for i, e := range tail.take(t, n) {
		if string(e.Data) != fmt.Sprint(i) {
			t.Fatalf("record %d is %s", i, e.Data)
		}
	}
}

// A reader at the zero position starts behind the records that existed when it opened.
func latestSeesWhatFollows(t *testing.T, s site) {
	tr := s.connect(t)
	appendOne(t, tr, "before")
	tail := openTail(t, tr, event.Position{})
	appendOne(t, tr, "after")
	if got := tail.take(t, 1); string(got[0].Data) != "after" {
		t.Errorf("first record = %s, want after", got[0].Data)
	}
}

// A reader that is opened at a place which the log has not reached, as after a restore, begins behind the newest record, and not there: its positions show that the log
// is another one.
func aheadOfTheEndSeesItGrow(t *testing.T, s site) {
	tr := s.connect(t)
	before := openTail(t, tr, event.Position{})
	appendOne(t, tr, "before")
	at := before.take(t, 1)[0].At
	for _, ahead := range []event.Position{{Ledger: at.Ledger, Entry: at.Entry + 5}, {Ledger: at.Ledger + 1000, Entry: 3}} {
		tail := openTail(t, tr, ahead)
		appendOne(t, tr, "after")
		want := before.take(t, 1)
		if got := tail.take(t, 1); !sameEntry(got[0], want[0]) {
			t.Errorf("opened at %v the first record is that at %v, want that at %v", ahead, got[0].At, want[0].At)
		}
	}
}

// A reader that is opened at a position begins with the record at that position.
func reopenIsInclusive(t *testing.T, s site) {
	tr := s.connect(t)
	tail := openTail(t, tr, event.Position{})
	for i := range 5 {
		appendOne(t, tr, fmt.Sprint(i))
	}
	all := tail.take(t, 5)
	for i, from := range all {
		again := openTail(t, tr, from.At)
		if got := again.take(t, 5-i); !slices.EqualFunc(got, all[i:], sameEntry) {
			t.Errorf("reader opened at record %d began with %s at %v", i, got[0].Data, got[0].At)
		}
	}
}

// A reader at First begins with the oldest record, whatever ledger that is in.
func firstSeesAll(t *testing.T, s site) {
	tr := s.connect(t)
	before := openTail(t, tr, First) // of a log that has no record yet
	appendOne(t, tr, "0")
	all := before.take(t, 1)
	s.roll(t)
	appendOne(t, tr, "1")
	all = append(all, before.take(t, 1)...)
	if got := openTail(t, s.connect(t), First).take(t, 2); !slices.EqualFunc(got, all, sameEntry) || string(got[0].Data) != "0" {
		t.Errorf("a reader at First sees %v, want %v", got, all)
	}
}

// End returns the newest record or an error: never an older record, nor a later one.
func endIsTheNewestRecord(t *testing.T, s site) {
	tr := s.connect(t)
	tail := openTail(t, tr, First)
	is := func(when string, want event.Position) {
		t.Helper()
		got, err := tr.End(t.Context())
		if err != nil || got.Entry >= 0 && got != want {
			t.Errorf("%s: the end is %v (%v), want %v", when, got, err, want)
		}
		if _, cannotTell := tr.(*Remote); !cannotTell && want != First && got.Entry < 0 {
			t.Errorf("%s: the end is not known, want %v", when, want)
		}
	}
	is("empty", First)
	appendOne(t, tr, "0")
	is("one record", tail.take(t, 1)[0].At)
	appendOne(t, tr, "1")
	last := tail.take(t, 1)[0].At
	is("two records", last)
	s.roll(t)
	is("a new ledger without a record", last)
	appendOne(t, tr, "2")
	is("a record in the new ledger", tail.take(t, 1)[0].At)
}

// The contiguity check's reader returns the record it was opened at and the next.
func shortReaderReturnsTwo(t *testing.T, s site) {
	tr := s.connect(t)
	tail := openTail(t, tr, event.Position{})
	appendOne(t, tr, "a")
	all := tail.take(t, 1) // until it has read something, a reader may lose its place
	s.roll(t)
	appendOne(t, tr, "b")
	appendOne(t, tr, "c")
	all = append(all, tail.take(t, 2)...)
	if all[0].At.Ledger == all[1].At.Ledger {
		t.Fatalf("no ledger change between %v and %v; this run proves nothing", all[0].At, all[1].At)
	}
	first, second, err := readTwo(t.Context(), tr, all[0].At, time.Minute)
	if err != nil || first != all[0].At || second != all[1].At {
		t.Errorf("read %v, %v, %v; want %v, %v", first, second, err, all[0].At, all[1].At)
	}
	// Behind the end there is no second record: no answer, rather than a wrong one.
	if first, second, err := readTwo(t.Context(), tr, all[2].At, 100*time.Millisecond); err == nil {
		t.Errorf("check at the end of the log read %v and %v, want an error", first, second)
	}
}

// When the log moves to a new ledger, readers and appenders continue: entries count from 0 again in
// a higher ledger, and nothing is lost between.
func orderSurvivesNewLedger(t *testing.T, s site) {
	const rounds, each = 3, 10
	tr := s.connect(t)
	tail := openTail(t, tr, event.Position{})
	appendOne(t, tr, "0")
	all := tail.take(t, 1) // until it has read something, a reader may lose its place
	for r := range rounds {
		s.roll(t)
		for i := range each {
			appendOne(t, tr, fmt.Sprint(1+r*each+i))
		}
	}
	all = append(all, tail.take(t, rounds*each)...)
	ledgers := make(map[int64]bool)
	var last Entry
	for i, e := range all {
		if string(e.Data) != fmt.Sprint(i) {
			t.Fatalf("record %d is %s at %v", i, e.Data, e.At)
		}
		if i > 0 && !follows(last.At, e.At) {
			t.Errorf("%v came after %v", e.At, last.At)
		}
		last, ledgers[e.At.Ledger] = e, true
	}
	if len(ledgers) < 2 {
		t.Error("the ledger never changed; this run proves nothing")
	}
}

// A tail whose context ends returns the reason and delivers nothing more.
func cancelledTailEnds(t *testing.T, s site) {
	tr := s.connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	opened := make(chan struct{})
	go func() { ended <- tr.Tail(ctx, event.Position{}, 10, func() { close(opened) }, func(Entry) {}) }()
	receiveWithin(t, opened)
	cancel()
	if err := receiveWithin(t, ended); err == nil {
		t.Error("a cancelled tail returned nil, as if the log had an end")
	}
}

// follows reports whether contiguity is known without looking at the log.
func follows(last, next event.Position) bool {
	if last.Ledger == next.Ledger {
		return next.Entry == last.Entry+1
	}
	return next.Ledger > last.Ledger && next.Entry == 0
}

// tail collects the records of a reader, without duplicates, as the machine drops them.
type tail struct {
	entries chan Entry
	last    event.Position
}

// openTail starts a reader and waits until it stands.
func openTail(t *testing.T, tr Transport, from event.Position) *tail {
	t.Helper()
	collected := &tail{entries: make(chan Entry, 1<<14)}
	opened := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := tr.Tail(ctx, from, 1000, func() { close(opened) }, func(e Entry) { collected.entries <- e })
		if t.Context().Err() == nil { // it ends before ctx, and so may the client
			t.Errorf("tail ended: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	receiveWithin(t, opened)
	return collected
}

func (c *tail) take(t *testing.T, n int) []Entry {
	t.Helper()
	var out []Entry
	for len(out) < n {
		e := receiveWithin(t, c.entries)
		if !c.last.Before(e.At) {
			continue
		}
		c.last = e.At
		out = append(out, e)
	}
	return out
}

func appendOne(t *testing.T, tr Transport, data string) {
	t.Helper()
	done := make(chan error, 1)
	tr.Append([]byte(data), func(err error) { done <- err })
	if err := receiveWithin(t, done); err != nil {
		t.Errorf("append %s: %v", data, err)
	}
}

func receiveWithin[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("unreachable")
	}
}

// runTransport runs a transport until the test ends.
func runTransport(t *testing.T, tr Transport) Transport {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := tr.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return tr
}

func memSite(*testing.T) site {
	m := NewMem()
	return site{
		connect: func(t *testing.T) Transport { return runTransport(t, m) },
		roll:    func(*testing.T) { m.Roll() },
	}
}

func sameEntry(a, b Entry) bool { return a.At == b.At && string(a.Data) == string(b.Data) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
