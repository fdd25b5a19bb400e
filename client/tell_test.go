package client

import (
	"context"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// told reports whether the sender has been asked to look since the last call.
func told(s *stream) bool {
	select {
	case <-s.wake:
		return true
	default:
		return false
	}
}

// A receipt and a result, each as all that there is to say.
var sayings = map[string]func(*stream){
	"receipt": func(s *stream) { s.given++ },
	"result": func(s *stream) {
		s.inbox.Results = append(s.inbox.Results, event.Result{Delivery: 1, Kind: event.ResultDone})
	},
}

func TestSayingsWaitForWhoIsOnTheWay(t *testing.T) {
	for name, happens := range sayings {
		t.Run(name, func(t *testing.T) {
			const begun = clock.Instant(1000)
			s := &stream{runner: &runner{waking: true}, wake: make(chan struct{}, 1)}
			s.tell(begun)
			if told(s) {
				t.Error("the sender looks, and there is nothing to say")
			}
			happens(s)
			s.tell(begun)
			s.tell(begun.Add(holdFor - 1))
			if told(s) {
				t.Error("it went alone, and somebody was on the way")
			}
			s.tell(begun.Add(holdFor))
			if !told(s) {
				t.Errorf("it has waited for %v, and nobody looks", holdFor)
			}
			s.next() // the sender takes it
			happens(s)
			s.receipt = s.sent
			s.tell(begun.Add(holdFor))
			if told(s) {
				t.Error("what comes later does not wait for a time of its own")
			}
			s.runner.waking = false
			s.tell(begun.Add(holdFor))
			if !told(s) {
				t.Error("nobody is on the way, and nobody looks")
			}
		})
	}
}

// While a Results frame is under way, there is nothing to look for: its receipt comes.
func TestResultsDoNotWakeInVain(t *testing.T) {
	s := &stream{runner: new(runner), wake: make(chan struct{}, 1), sent: 1}
	sayings["result"](s)
	s.tell(1)
	if told(s) {
		t.Error("the sender was woken and may send nothing")
	}
}

// However handlers block, what is ready goes out: the last goroutine that starts one finds
// nobody on the way.
func TestNothingIsKeptByHandlersThatBlock(t *testing.T) {
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
			s.given++
			r.wakeOne()
			s.tell(r.fast())
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
		t.Errorf("%d events of %d bytes, want as many as go into 8 KiB: allocations come in sizes", slab, size)
	}
}
