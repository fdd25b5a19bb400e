package client

import (
	"context"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// told reports whether the sender has been woken since the last call.
func told(s *stream) bool {
	select {
	case <-s.wake:
		return true
	default:
		return false
	}
}

// pending makes a stream have one thing to send: a receipt or a result.
var pending = map[string]func(*stream){
	"receipt": func(s *stream) { s.takenIn++ },
	"result": func(s *stream) {
		s.inbox.Results = append(s.inbox.Results, event.Result{Delivery: 1, Kind: event.ResultDone})
	},
}

func TestPendingFramesWaitForAWokenGoroutine(t *testing.T) {
	for name, happens := range pending {
		t.Run(name, func(t *testing.T) {
			const begun = clock.Instant(1000)
			s := &stream{runner: &runner{waking: true}, wake: make(chan struct{}, 1)}
			s.tell(begun)
			if told(s) {
				t.Error("the sender was woken, but nothing is pending")
			}
			happens(s)
			s.tell(begun)
			s.tell(begun.Add(holdFor - 1))
			if told(s) {
				t.Error("it was sent alone, though a woken goroutine may add to the frame")
			}
			s.tell(begun.Add(holdFor))
			if !told(s) {
				t.Errorf("it has waited for %v, but the sender was not woken", holdFor)
			}
			s.next() // the sender takes it
			happens(s)
			s.receiptIn = s.sent
			s.tell(begun.Add(holdFor))
			if told(s) {
				t.Error("the next one was sent at once, want a wait of its own")
			}
			s.runner.waking = false
			s.tell(begun.Add(holdFor))
			if !told(s) {
				t.Error("no goroutine is woken, but the sender was not woken either")
			}
		})
	}
}

// While a Results frame is in flight, results do not wake the sender: the receipt will.
func TestResultsDoNotWakeInVain(t *testing.T) {
	s := &stream{runner: new(runner), wake: make(chan struct{}, 1), sent: 1}
	pending["result"](s)
	s.tell(1)
	if told(s) {
		t.Error("the sender was woken, but may send nothing")
	}
}

// Results are sent even if all other handlers block: when the last goroutine starts one, no
// further goroutine is being woken.
func TestBlockedHandlersHoldBackNoResults(t *testing.T) {
	for _, most := range []int{1, 2, 100} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			s, _ := fiveWaiting(t, func(_ context.Context, e *Event) error {
				if e.run.item.ID > 1 {
					<-release
				}
				return nil
			})
			r := s.runner
			r.maxInFlight = most
			r.mu.Lock()
			s.takenIn++
			r.wakeOne()
			now, _ := r.fast()
			s.tell(now)
			r.mu.Unlock()
			synctest.Wait()
			if len(s.inbox.Results) != 1 || !told(s) {
				t.Errorf("%d goroutines: %d results, and the sender was not told", most, len(s.inbox.Results))
			}
			close(release)
			r.retire()
			r.handlers.Wait()
		})
	}
}

func TestEventsFillTheirSlab(t *testing.T) {
	if size := int(unsafe.Sizeof(Event{})); slab*size > 8<<10 || (slab+1)*size <= 8<<10 {
		t.Errorf("%d events of %d bytes, want as many as fit into 8 KiB, a size class of the allocator", slab, size)
	}
}
