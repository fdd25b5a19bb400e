package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"
	"weak"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

type cart struct{ n int }

// TestStateIsOfTheTurnBefore: whatever turns come, State returns what the turn before has left, or loads. Handlers that have lost their keys
// write as long as they run, and what a turn gets is what the database has.
func TestStateIsOfTheTurnBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := &states{max: rapid.IntRange(1, 3).Draw(t, "max")}
		streams := []*stream{{runner: &runner{states: all}}, {runner: &runner{states: all}}}
		last := map[string]*cart{} // by key: what the last turn left, nil: nothing that may be used
		where := map[string]string{}
		rows := map[string]int{} // the database: the number of the last write of each key
		var lost []*Event        // of handlers that still run
		keys, writes := []string{"a", "b", "c"}, 0
		write := func(key string) int {
			writes++
			rows[key] = writes
			return writes
		}
		begin := func(t *rapid.T, keys ...string) *Event {
			e := &Event{Key: rapid.SampledFrom(keys).Draw(t, "key")}
			e.run.stream = streams[max(0, rapid.IntRange(-3, 1).Draw(t, "stream"))]
			e.run.generation = rapid.SampledFrom([]uint64{1, 1, 1, 1, 0, 2}).Draw(t, "generation")
			e.Fence.Token = rapid.SampledFrom([]int64{1, 1, 1, 1, 2}).Draw(t, "token")
			e.run.item.Of, e.run.item.Partition = e, uint32(e.Key[0])
			all.begun(e)
			return e
		}
		ask := func(t *rapid.T, e *Event) (got *cart, loaded bool) {
			got, err := State(context.WithValue(t.Context(), handlingKey{}, e), func(context.Context) (*cart, error) {
				loaded = true
				return &cart{rows[e.Key]}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return got, loaded
		}
		lostWrite := func(t *rapid.T) {
			if len(lost) > 0 {
				write(rapid.SampledFrom(lost).Draw(t, "lost").Key)
			}
		}
		lostReturn := func(t *rapid.T) {
			if len(lost) > 0 {
				i := rapid.IntRange(0, len(lost)-1).Draw(t, "lost")
				all.ended(lost[i], false)
				all.returned(lost[i])
				lost = slices.Delete(lost, i, i+1)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"turn": func(t *rapid.T) {
				var before *Event // whose handler has lost the key, which nobody has noticed yet
				e := begin(t, keys...)
				if rapid.IntRange(0, 5).Draw(t, "overtakes") == 0 {
					before, e = e, begin(t, e.Key)
				}
				asks, fails := rapid.Bool().Draw(t, "asks"), rapid.IntRange(0, 3).Draw(t, "fails") == 0
				here := fmt.Sprintf("%p %d %d", e.run.stream, e.run.generation, e.Fence.Token)
				generation, own := e.run.generation, 0
				if asks {
					got, loaded := ask(t, e)
					if !loaded && (got != last[e.Key] || where[e.Key] != here) {
						t.Fatalf("the turn got %v, which the turn before did not leave here", got)
					}
					if got.n != rows[e.Key] {
						t.Fatalf("the turn got %d, and the database has %d", got.n, rows[e.Key])
					}
					if before != nil {
						write(e.Key)
						all.lose([]*Event{before})
						lost = append(lost, before)
					}
					lostWrite(t)
					if rapid.IntRange(0, 3).Draw(t, "asks again") == 0 {
						other := begin(t, slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == e.Key })...)
						ask(t, other) // takes the place of the first if there is only one
						last[other.Key] = nil
						lostReturn(t)
						ask(t, e)
						all.ended(other, false)
					}
					got.n, last[e.Key] = write(e.Key), got
					own = got.n
				} else {
					own = write(e.Key)
				}
				lostWrite(t)
				all.ended(e, !fails)
				where[e.Key] = here
				if fails || !asks || generation == 0 || rows[e.Key] != own {
					last[e.Key] = nil
				}
			},
			"lose": func(t *rapid.T) {
				e := begin(t, keys...)
				if rapid.Bool().Draw(t, "asks") {
					ask(t, e)
				}
				write(e.Key)
				all.lose([]*Event{e})
				lost = append(lost, e)
			},
			"lost write":  lostWrite,
			"lost return": lostReturn,
			"revoke": func(t *rapid.T) {
				p := uint32(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")[0])
				of := rapid.SampledFrom(streams).Draw(t, "stream")
				all.forget(of, func(q uint32) bool { return q == p })
				for key := range last {
					if uint32(key[0]) == p && all.byKey[key] != nil && all.byKey[key].Value.(*kept).stream == of {
						t.Fatal("a state remained after its partition was taken back")
					}
				}
			},
			"": func(t *rapid.T) {
				if len(all.byKey) > all.max || len(all.byKey) != all.recent.Len() || int(all.n.Load()) != len(all.byKey) {
					t.Fatalf("%d keys, %d in the list, %d counted, want at most %d", len(all.byKey), all.recent.Len(), all.n.Load(), all.max)
				}
				if len(all.lost) > len(lost) {
					t.Fatalf("%d keys count as lost by %d handlers", len(all.lost), len(lost))
				}
			},
		})
	})
}

// TestStateIsKept: in the usual case there is a hit, and each doubt ends it.
func TestStateIsKept(t *testing.T) {
	all := &states{max: 10}
	on := &stream{runner: &runner{states: all}}
	turn := func(generation uint64, asks bool, err error) (loaded bool) {
		e := &Event{Key: "k"}
		e.run.stream, e.run.generation, e.Fence.Token, e.run.item.Of = on, generation, 1, e
		if asks {
			ctx := context.WithValue(t.Context(), handlingKey{}, e)
			load := func(context.Context) (*cart, error) { loaded = true; return new(cart), nil }
			c, _ := State(ctx, load)
			c.n++
			if again, _ := State(ctx, load); again != c && generation != 0 {
				t.Error("a handler that asks twice gets two states")
			}
		}
		all.ended(e, err == nil)
		return loaded
	}
	for i, c := range []struct {
		generation uint64
		asks       bool
		err        error
		loads      bool
	}{
		{1, true, nil, true},
		{1, true, nil, false},
		{1, true, errors.New("no"), false},
		{1, true, nil, true},
		{1, false, nil, false},
		{1, true, nil, true},
		{2, true, nil, true},
		{2, true, nil, false},
		{0, true, nil, true},
		{0, true, nil, true},
	} {
		if loaded := turn(c.generation, c.asks, c.err); loaded != c.loads {
			t.Errorf("turn %d: loaded = %v", i, loaded)
		}
	}
	failed := errors.New("no database")
	e := &Event{Key: "k"}
	e.run.stream, e.run.item.Of = on, e
	if _, err := State(context.WithValue(t.Context(), handlingKey{}, e), func(context.Context) (*cart, error) { return nil, failed }); !errors.Is(err, failed) {
		t.Errorf("the error of load is %v", err)
	}
}

// TestStateOfAHandlerThatGoesOn: a handler that has lost its key leaves nothing, and takes nothing from the turn after it.
func TestStateOfAHandlerThatGoesOn(t *testing.T) {
	all := &states{max: 10}
	s, now := fiveWaiting(t, func(context.Context, *Event) error { return nil })
	s.runner.states = all
	ask := func(e *Event) (loaded bool) {
		e.run.generation = 1
		_, err := State(context.WithValue(t.Context(), handlingKey{}, e), func(context.Context) (*cart, error) { loaded = true; return new(cart), nil })
		if err != nil {
			t.Fatal(err)
		}
		return loaded
	}
	lost := take(s)
	lost.Key, lost.Fence = "k", Fence{Token: 1, Turn: 1}
	ask(lost)
	now.pass(time.Minute) // its deadline
	turn := func(number uint64) *Event {
		e := &Event{Key: "k", Fence: Fence{Token: 1, Turn: number}}
		e.run.stream, e.run.item.Of = s, e
		return e
	}
	second := turn(2)
	if !ask(second) {
		t.Error("the next turn got the state of a handler that still runs")
	}
	if !ask(lost) {
		t.Error("the handler that goes on got the state of the next turn")
	}
	if ask(second) {
		t.Error("the handler that goes on took the state of the next turn")
	}
	all.ended(second, true)
	if !ask(lost) {
		t.Error("the handler that goes on got what the next turn had left")
	}
	done := all.done(lost, nil)
	if done {
		t.Error("a handler has done its work after its deadline")
	}
	all.ended(lost, done)
	if third := turn(3); !ask(third) {
		t.Error("what the two left is not in one order")
	}
}

// TestAHandlerThatReturnsLateWasNotCancelled: its state is not kept, and the log does not say that it was cancelled.
func TestAHandlerThatReturnsLateWasNotCancelled(t *testing.T) {
	var s *stream
	var now *testClock
	s, now = fiveWaiting(t, func(ctx context.Context, e *Event) error {
		if _, err := State(ctx, func(context.Context) (*cart, error) { return new(cart), nil }); err != nil {
			return err
		}
		now.pass(time.Minute) // its deadline
		return nil
	})
	var log bytes.Buffer
	s.runner.states, s.runner.log = &states{max: 10}, slog.New(slog.NewTextHandler(&log, nil))
	late := take(s)
	late.Key, late.Fence, late.run.generation = "k", Fence{Token: 1, Turn: 1}, 1
	var result event.Result
	s.runner.call(late, &result)
	if result.Kind != event.ResultDone {
		t.Errorf("the answer is %v", result.Kind)
	}
	if n := s.runner.states.n.Load(); n != 0 {
		t.Errorf("the states of %d keys are kept", n)
	}
	if log.Len() > 0 {
		t.Errorf("the log is %s", &log)
	}
}

// TestStateBesideAHandlerThatGoesOn: a handler that has lost its key may write until it ends, so that the turn in which it ends may have loaded less.
func TestStateBesideAHandlerThatGoesOn(t *testing.T) {
	for _, during := range []string{"the turn", "its load", "the load of another value"} {
		all := &states{max: 10}
		s := &stream{runner: &runner{states: all}}
		turn := func(number uint64) (*Event, context.Context) {
			e := &Event{Key: "k", Fence: Fence{Token: 1, Turn: number}}
			e.run.stream, e.run.generation, e.run.item.Of = s, 1, e
			return e, context.WithValue(t.Context(), handlingKey{}, e)
		}
		lost, _ := turn(1)
		loads := 0
		ask := func(ctx context.Context, meanwhile string) {
			_, err := State(ctx, func(context.Context) (*cart, error) {
				if loads++; meanwhile == during {
					all.ended(lost, false)
				}
				return new(cart), nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		second, ctx := turn(2)
		ask(ctx, "its load")
		switch during {
		case "the turn":
			all.ended(lost, false)
		case "the load of another value":
			type other struct{}
			_, err := State(ctx, func(context.Context) (*other, error) { all.ended(lost, false); return new(other), nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		all.ended(second, true)
		third, ctx := turn(3)
		ask(ctx, "")
		all.ended(third, true)
		fourth, ctx := turn(4)
		ask(ctx, "")
		all.ended(fourth, true)
		if loads != 2 {
			t.Errorf("a handler ends during %s: the states of three turns were loaded %d times, want 2: the second loads again, and the third does not", during, loads)
		}
	}
}

// TestStateBesideAHandlerThatGoesOnForTurns: no turn gets or leaves a state while a handler of its key runs that has lost it, also after further turns.
func TestStateBesideAHandlerThatGoesOnForTurns(t *testing.T) {
	for name, lose := range map[string]func(s *stream, now *testClock, lost *Event){
		"its deadline has passed": func(s *stream, now *testClock, lost *Event) {
			now.pass(time.Minute)
			if lost.run.Err() == nil {
				t.Fatal("the handler has not lost its key")
			}
		},
		"its deadline has passed and a Pong comes": func(s *stream, now *testClock, _ *Event) {
			now.pass(time.Minute)
			s.runner.mu.Lock()
			k := s.inbox.SendPing(now.now)
			s.runner.mu.Unlock()
			control(s, &appv1.WorkResponse{Frame: &appv1.WorkResponse_Pong{Pong: &appv1.Pong{K: k, RemainingNs: int64(time.Minute)}}})
		},
		"it took too long": func(s *stream, _ *testClock, lost *Event) {
			control(s, &appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: &appv1.Revoke{DeliveryIds: []uint64{uint64(lost.run.item.ID)}, TimedOut: true}}})
		},
		"its stream has ended and its deadline passed": func(s *stream, now *testClock, lost *Event) {
			s.runner.end(s)
			now.pass(time.Minute)
			_ = lost.run.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := fiveWaiting(t, func(context.Context, *Event) error { return nil })
			all := s.runner.states
			lost := take(s)
			lost.Key = "k"
			present := &stream{runner: s.runner}
			number := uint64(1)
			var turn *Event
			begin := func() {
				number++
				turn = &Event{Key: "k", Fence: Fence{Token: 1, Turn: number}}
				turn.run.stream, turn.run.generation, turn.run.item.Of = present, 1, turn
				all.begun(turn)
			}
			loads := func() (loaded bool) {
				_, err := State(context.WithValue(t.Context(), handlingKey{}, turn), func(context.Context) (*cart, error) { loaded = true; return new(cart), nil })
				if err != nil {
					t.Fatal(err)
				}
				return loaded
			}
			begin()
			loads()
			lose(s, now, lost) // which is noticed only during the next turn
			all.ended(turn, true)
			for range 3 {
				begin()
				if !loads() {
					t.Errorf("turn %d got a state beside a handler that may still write", number)
				}
				all.ended(turn, true)
			}
			begin()
			loads()
			all.ended(lost, false)
			s.runner.mu.Lock()
			s.runner.answer(lost, new(event.Result))
			s.runner.mu.Unlock()
			all.ended(turn, true)
			begin()
			if !loads() {
				t.Error("a turn got what the one before had loaded when the lost handler still ran")
			}
			all.ended(turn, true)
			begin()
			if loads() {
				t.Error("states are not kept again after the handler has returned")
			}
			if len(all.lost) != 0 {
				t.Errorf("%d keys are counted as lost by handlers that have returned", len(all.lost))
			}
		})
	}
}

// TestStateOfWhatWasLoadedTwice: a handler whose state was dropped may still change that one, and not the one that it has loaded since.
func TestStateOfWhatWasLoadedTwice(t *testing.T) {
	all := &states{max: 1}
	on := &stream{runner: &runner{states: all}}
	turn := func(key string) *Event {
		e := &Event{Key: key, Fence: Fence{Token: 1}}
		e.run.stream, e.run.generation, e.run.item.Of = on, 1, e
		return e
	}
	row := 0 // of the key k in the database
	ask := func(e *Event) *cart {
		got, err := State(context.WithValue(t.Context(), handlingKey{}, e), func(context.Context) (*cart, error) { return &cart{row}, nil })
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	lost := turn("k")
	for name, c := range map[string]struct{ before, after func() }{
		"another key took its place":                   {func() {}, func() { ask(turn("other")) }}, // there is room for one
		"a handler that had lost the key has returned": {func() { all.lose([]*Event{lost}) }, func() { all.returned(lost) }},
	} {
		t.Run(name, func(t *testing.T) {
			e := turn("k")
			c.before()
			first := ask(e)
			c.after()
			ask(e)
			first.n++
			row = first.n
			all.ended(e, true)
			next := turn("k")
			if got := ask(next); got.n != row {
				t.Errorf("the next turn got %d, and the database has %d", got.n, row)
			}
			all.ended(next, false)
		})
	}
}

// TestStateOfATurnThatWasPassedOver: a handler that has not asked may have written, and continues while the next turn begins.
func TestStateOfATurnThatWasPassedOver(t *testing.T) {
	var s *stream
	var next *Event
	loaded := make(map[uint64]bool)
	ask := func(ctx context.Context, e *Event) {
		_, err := State(ctx, func(context.Context) (*cart, error) { loaded[e.Fence.Turn] = true; return new(cart), nil })
		if err != nil {
			t.Error(err)
		}
	}
	s, _ = fiveWaiting(t, func(ctx context.Context, e *Event) error {
		if e.Fence.Turn == 2 {
			s.runner.call(next, new(event.Result))
			ask(ctx, e)
			return errors.New("its key was lost")
		}
		ask(ctx, e)
		return nil
	})
	turn := func(number uint64) *Event {
		e := take(s)
		e.Key, e.Fence, e.run.generation = "k", Fence{Token: 1, Turn: number}, 1
		return e
	}
	first, second := turn(1), turn(2)
	next = turn(3)
	s.runner.call(first, new(event.Result))
	s.runner.call(second, new(event.Result))
	s.runner.call(turn(4), new(event.Result))
	for number, want := range map[uint64]bool{1: true, 2: true, 3: true, 4: true} {
		if loaded[number] != want {
			t.Errorf("turn %d loads its state: %t, want %t", number, loaded[number], want)
		}
	}
}

// TestStateOfWhatAHandlerLeftBehind: code that continues after its handler has returned takes nothing from the next turn, and leaves nothing.
func TestStateOfWhatAHandlerLeftBehind(t *testing.T) {
	loads := func(ctx context.Context) (loaded bool) {
		if _, err := State(ctx, func(context.Context) (*cart, error) { loaded = true; return new(cart), nil }); err != nil {
			t.Error(err)
		}
		return loaded
	}
	var left context.Context // of the first handler
	var second bool
	ended, slow := make(chan struct{}), make(chan error) // slow: the result of a load that takes longer than the handler
	s, _ := fiveWaiting(t, func(ctx context.Context, e *Event) error {
		if loaded := loads(ctx); e.Fence.Turn == 1 {
			left = ctx
			loading := make(chan struct{})
			go func() {
				type other struct{}
				_, err := State(ctx, func(context.Context) (*other, error) { close(loading); <-ended; return new(other), nil })
				slow <- err
			}()
			<-loading
		} else {
			second = loaded
		}
		return nil
	})
	turn := func(number uint64) *Event {
		e := take(s)
		e.Key, e.Fence, e.run.generation = "k", Fence{Token: 1, Turn: number}, 1
		return e
	}
	s.runner.call(turn(1), new(event.Result))
	if !loads(left) {
		t.Error("it got what is for the next turn")
	}
	close(ended)
	if err := <-slow; err != nil {
		t.Error(err)
	}
	if s.runner.call(turn(2), new(event.Result)); second {
		t.Error("the next turn has lost the state")
	}
}

// TestStateOfWhatIsTakenBack: a Revoke, of all partitions or of its own, ends the state of a key, and one of others does not.
func TestStateOfWhatIsTakenBack(t *testing.T) {
	for name, c := range map[string]struct {
		revoke *appv1.Revoke
		loads  bool
	}{
		"of all partitions":    {&appv1.Revoke{All: true}, true},
		"of its own":           {&appv1.Revoke{Partitions: []uint32{3, 7}}, true},
		"of another partition": {&appv1.Revoke{Partitions: []uint32{8}}, false},
		"of one delivery":      {&appv1.Revoke{DeliveryIds: []uint64{1}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := fiveWaiting(t, func(context.Context, *Event) error { return nil })
			turn := func() (loaded bool) {
				e := &Event{Key: "k", Fence: Fence{Token: 1}}
				e.run.stream, e.run.generation, e.run.item.Of, e.run.item.Partition = s, 1, e, 7
				_, err := State(context.WithValue(t.Context(), handlingKey{}, e), func(context.Context) (*cart, error) { loaded = true; return new(cart), nil })
				if err != nil {
					t.Fatal(err)
				}
				s.runner.states.ended(e, true)
				return loaded
			}
			if !turn() || turn() {
				t.Fatal("the second turn does not get what the first has left")
			}
			control(s, &appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: c.revoke}})
			if loaded := turn(); loaded != c.loads {
				t.Errorf("the next turn loads its state: %t, want %t", loaded, c.loads)
			}
		})
	}
}

// TestStateKeepsNoFrame: the key of an event shares the memory of its whole frame, which a state must not keep.
func TestStateKeepsNoFrame(t *testing.T) {
	all := &states{max: 10}
	frame := func() weak.Pointer[byte] {
		bytes := make([]byte, 1<<20)
		e := &Event{Key: unsafe.String(&bytes[0], 1)}
		e.run.stream, e.run.generation, e.run.item.Of = &stream{runner: &runner{states: all}}, 1, e
		if _, err := State(context.WithValue(t.Context(), handlingKey{}, e), func(context.Context) (*cart, error) { return new(cart), nil }); err != nil {
			t.Fatal(err)
		}
		all.ended(e, true)
		return weak.Make(&bytes[0])
	}()
	runtime.GC()
	if len(all.byKey) != 1 {
		t.Errorf("there are states of %d keys", len(all.byKey))
	}
	if frame.Value() != nil {
		t.Error("the frame is kept")
	}
	runtime.KeepAlive(all)
}

// TestStateKeepsNoEndedStream: states of a stream that has ended are of no use. They would keep it in memory, as each further one,
// until the states of as many other keys have come as there may be.
func TestStateKeepsNoEndedStream(t *testing.T) {
	s, _ := fiveWaiting(t, func(context.Context, *Event) error { return nil })
	all := s.runner.states
	begin := func(key string) *Event {
		e := &Event{Key: key, Fence: Fence{Token: 1}}
		e.run.stream, e.run.generation, e.run.item.Of = s, 1, e
		if _, err := State(context.WithValue(t.Context(), handlingKey{}, e), func(context.Context) (*cart, error) { return new(cart), nil }); err != nil {
			t.Fatal(err)
		}
		return e
	}
	all.ended(begin("before"), true)
	running := begin("running")
	if len(all.byKey) != 2 {
		t.Fatalf("there are states of %d keys, want 2", len(all.byKey))
	}
	s.runner.end(s)
	all.ended(running, true)
	all.ended(begin("after"), true) // a handler that asks only now
	if n := len(all.byKey); n != 0 || all.n.Load() != 0 {
		t.Errorf("after the end of the stream there are states of %d keys, %d counted, want none", n, all.n.Load())
	}
}
