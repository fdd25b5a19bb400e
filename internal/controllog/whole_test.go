package controllog

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
)

// forgetful is a log whose readers miss records: reader n, counted from 0, those of missed[n].
type forgetful struct {
	*Mem

	mu      sync.Mutex
	readers int
	missed  [][]event.Position
}

func (f *forgetful) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error {
	f.mu.Lock()
	var missed []event.Position
	if f.readers < len(f.missed) {
		missed = f.missed[f.readers]
	}
	f.readers++
	f.mu.Unlock()
	return f.Mem.Tail(ctx, from, prefetch, opened, func(e Entry) {
		if !slices.Contains(missed, e.At) {
			record(e)
		}
	})
}

// repeating is a log whose readers give each third record again, and what its ledger has of the two before, as after a reconnect.
type repeating struct{ *Mem }

func (r repeating) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error {
	var got []Entry
	return r.Mem.Tail(ctx, from, prefetch, opened, func(e Entry) {
		if record(e); len(got)%3 == 2 {
			for _, again := range append(slices.Clone(got[len(got)-2:]), e) {
				if again.At.Ledger == e.At.Ledger {
					record(again)
				}
			}
		}
		got = append(got, e)
	})
}

// TestReplayIsWhole: a replay visits each record once, in its order, whatever its reader misses or repeats at a reconnect.
func TestReplayIsWhole(t *testing.T) {
	fill := func() *Mem {
		log := NewMem()
		for i := range 20 {
			if i%7 == 6 {
				log.Roll()
			}
			log.Put([]byte("a record"))
		}
		return log
	}
	missed := event.Position{Ledger: 1, Entry: 3}
	for name, transport := range map[string]Transport{
		"missed":   &forgetful{Mem: fill(), missed: [][]event.Position{{missed}}},
		"repeated": repeating{fill()},
	} {
		t.Run(name, func(t *testing.T) {
			var got, want []event.Position
			for _, e := range fill().records {
				want = append(want, e.At)
			}
			err := Replay(t.Context(), transport, group, func(at event.Position, _ ownership.Record, _ uint64) { got = append(got, at) })
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("visited %v, %v, want %v", got, err, want)
			}
		})
	}
}

// TestWhole: a record that one reader misses comes from another one, in its order, with a line in the log.
func TestWhole(t *testing.T) {
	at := func(ledger, entry int64) event.Position { return event.Position{Ledger: ledger, Entry: entry} }
	all := []event.Position{at(1, 0), at(1, 1), at(1, 2), at(2, 0), at(3, 0), at(3, 1)}
	type positions = []event.Position
	for name, c := range map[string]struct {
		from   event.Position
		missed []positions
		lines  int // in the log
	}{
		"none":                          {First, nil, 0},
		"within a ledger":               {First, []positions{nil, {at(1, 1)}}, 1},
		"the first":                     {First, []positions{{at(1, 0)}}, 1},
		"a ledger's last":               {First, []positions{nil, {at(1, 2)}}, 1},
		"a ledger's only":               {First, []positions{nil, {at(2, 0)}}, 1},
		"the same by the first reader":  {First, []positions{{at(2, 0)}}, 1},
		"a ledger's first":              {First, []positions{nil, {at(3, 0)}}, 1},
		"by the second reader":          {First, []positions{nil, {at(2, 0)}, {at(2, 0), at(3, 0)}}, 1},
		"behind where the reading goes": {at(1, 1), []positions{{at(1, 2)}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			log := &forgetful{Mem: NewMem(), missed: c.missed}
			for i, p := range all {
				if i > 0 && all[i-1].Ledger < p.Ledger {
					log.Roll()
				}
				if got := log.Put([]byte{byte(i)}); got != p {
					t.Fatalf("record %d is at %v, want %v", i, got, p)
				}
			}
			want := all[max(0, slices.Index(all, c.from)):]
			var lines strings.Builder
			var got []event.Position
			opened := 0
			ctx, done := context.WithCancel(t.Context())
			err := Whole(log, slog.New(slog.NewTextHandler(&lines, nil))).Tail(ctx, c.from, 10, func() { opened++ }, func(e Entry) {
				if got = append(got, e.At); e.At == all[len(all)-1] {
					done()
				}
			})
			if err == nil || opened != 1 {
				t.Errorf("it was opened %d times, and ended with %v", opened, err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("read %v, want %v", got, want)
			}
			if n := strings.Count(lines.String(), "reader missed a record"); n != c.lines {
				t.Errorf("%d lines, want %d:\n%s", n, c.lines, lines.String())
			}
		})
	}
}

// TestWholeOfTrimmedLog: records that the log does not have any more are not waited for.
func TestWholeOfTrimmedLog(t *testing.T) {
	log := NewMem()
	for range 3 {
		log.Put(nil)
	}
	log.Roll()
	last := log.Put(nil)
	log.Forget(event.Position{Ledger: 1, Entry: 2})
	for _, from := range []event.Position{First, {Ledger: 1}, Anchored} {
		var got []event.Position
		ctx, done := context.WithCancel(t.Context())
		_ = Whole(log, quiet()).Tail(ctx, from, 10, func() {}, func(e Entry) { // ends by done
			if got = append(got, e.At); e.At == last {
				done()
			}
		})
		if want := []event.Position{{Ledger: 1, Entry: 2}, last}; !slices.Equal(got, want) {
			t.Errorf("from %v it reads %v, want %v", from, got, want)
		}
	}
}

// TestWholeFromLatest: the first record of a reader at the end of the log has none before it.
func TestWholeFromLatest(t *testing.T) {
	log := NewMem()
	log.Put(nil)
	opened, got := make(chan struct{}), make(chan event.Position, 2)
	ctx, done := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		_ = Whole(log, quiet()).Tail(ctx, event.Position{}, 10, func() { close(opened) }, func(e Entry) { got <- e.At })
	})
	receiveWithin(t, opened)
	for range 2 {
		if want, is := log.Put(nil), receiveWithin(t, got); is != want {
			t.Errorf("read %v, want %v", is, want)
		}
		log.Roll()
	}
	done()
	reading.Wait()
}

// TestWholeOfSilentLog: a topic that was deleted and made again is empty, and nobody may ever write to it. A reader
// that waits there finds it out. One of a log that is only quiet goes on.
func TestWholeOfSilentLog(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Mem)
		want   error
	}{
		"quiet":    {func(*Mem) {}, context.Canceled},
		"unloaded": {(*Mem).Roll, context.Canceled},
		"deleted":  {func(m *Mem) { m.Restore(event.Position{Ledger: 100}) }, ErrReplaced},
		"restored": {func(m *Mem) { m.Restore(event.Position{Ledger: 1}); m.Put(nil) }, ErrReplaced},
		"trimmed":  {func(m *Mem) { m.Roll(); m.Forget(event.Position{Ledger: 4}) }, ErrReplaced},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := NewMem()
				log.Restore(event.Position{Ledger: 3})
				log.Put(nil)
				log.Put(nil)
				ctx, done := context.WithCancel(t.Context())
				defer done()
				ended := make(chan error, 1)
				go func() { ended <- Whole(log, quiet()).Tail(ctx, First, 10, func() {}, func(Entry) {}) }()
				time.Sleep(time.Hour)
				c.change(log)
				time.Sleep(2 * time.Minute)
				if errors.Is(c.want, context.Canceled) {
					done()
				}
				synctest.Wait()
				select {
				case err := <-ended:
					if !errors.Is(err, c.want) {
						t.Errorf("it ended with %v, want %v", err, c.want)
					}
				default:
					t.Error("it waits for ever")
				}
			})
		})
	}
}

// TestWholeOfALogThatLacksTheNewestRecord: a record is in doubt, and the readers that are opened at the one before do not have that one any more. If a
// single one misses it, as at a reconnect, the reading goes on.
func TestWholeOfALogThatLacksTheNewestRecord(t *testing.T) {
	first, second := event.Position{Ledger: 1}, event.Position{Ledger: 2}
	for name, c := range map[string]struct {
		missed [][]event.Position // by the readers that are opened at the first record when the second one is in doubt
		want   error
	}{
		"gone":        {[][]event.Position{{first}, {first}, {first}}, ErrReplaced},
		"missed once": {[][]event.Position{{first}}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &forgetful{Mem: NewMem(), missed: append([][]event.Position{nil, nil}, c.missed...)} // two for the first record
				log.Put(nil)
				ctx, done := context.WithCancel(t.Context())
				defer done()
				var got []event.Position
				ended := make(chan error, 1)
				go func() {
					ended <- Whole(log, quiet()).Tail(ctx, First, 10, func() {}, func(e Entry) { got = append(got, e.At) })
				}()
				time.Sleep(time.Second)
				log.Roll()
				log.Put(nil)
				time.Sleep(10 * time.Second) // less than until the first look
				if errors.Is(c.want, context.Canceled) {
					done()
				}
				synctest.Wait()
				select {
				case err := <-ended:
					if !errors.Is(err, c.want) {
						t.Errorf("it ended with %v, want %v", err, c.want)
					}
				default:
					t.Error("it goes on")
				}
				want := []event.Position{first}
				if c.want != ErrReplaced { //nolint:errorlint // of the table
					want = append(want, second)
				}
				if !slices.Equal(got, want) {
					t.Errorf("read %v, want %v", got, want)
				}
			})
		})
	}
}

// endsAt is a log that says where it ends.
type endsAt struct {
	*Mem

	end event.Position
}

func (e endsAt) End(context.Context) (event.Position, error) { return e.end, nil }

// TestReplayEnds: a replay of a log that does not tell its end is over when nothing comes any more, and one that has not seen the end is an error.
func TestReplayEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end   event.Position
		fails bool
	}{"unknown": {endUnknown, false}, "not read": {event.Position{Ledger: 9}, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := endsAt{NewMem(), c.end}
				log.Put(nil)
				visited := 0
				err := Replay(t.Context(), log, group, func(event.Position, ownership.Record, uint64) { visited++ })
				if (err != nil) != c.fails || visited != 1 {
					t.Errorf("%d records, %v", visited, err)
				}
			})
		})
	}
}
