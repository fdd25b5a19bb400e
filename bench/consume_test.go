package main

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

// message is as much of a Pulsar message as lanes look at.
type message struct {
	pulsar.Message
	key     string
	payload []byte
}

func (m message) Key() string     { return m.key }
func (m message) Payload() []byte { return m.payload }

func TestLanesAreSerialByKeyAndParallelOtherwise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, last := map[string]bool{}, map[string]int{}
		var now, most atomic.Int64
		l := newLanes(func(_ context.Context, m pulsar.ConsumerMessage) {
			n, _ := strconv.Atoi(string(m.Payload()))
			mu.Lock()
			if running[m.Key()] {
				t.Errorf("two handlers of %s at once", m.Key())
			}
			if n <= last[m.Key()] {
				t.Errorf("%s: %d after %d", m.Key(), n, last[m.Key()])
			}
			running[m.Key()], last[m.Key()] = true, n
			mu.Unlock()
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Millisecond)
			now.Add(-1)
			mu.Lock()
			running[m.Key()] = false
			mu.Unlock()
		})
		const keys, each = 1000, 20
		began := time.Now()
		for n := 1; n <= each; n++ {
			for k := range keys {
				l.put(t.Context(), pulsar.ConsumerMessage{Message: message{key: keyName(k), payload: []byte(strconv.Itoa(n))}})
			}
		}
		l.all.Wait()
		for k := range keys {
			if last[keyName(k)] != each {
				t.Fatalf("%s ended with %d", keyName(k), last[keyName(k)])
			}
		}
		if most.Load() != waitingHandlers {
			t.Errorf("at most %d handlers at once, want %d", most.Load(), waitingHandlers)
		}
		if took := time.Since(began); took > 2*keys*each*time.Millisecond/waitingHandlers {
			t.Errorf("took %v", took)
		}
		if len(l.waiting) != 0 || len(l.room) != 0 {
			t.Errorf("%d keys and %d events are left", len(l.waiting), len(l.room))
		}
	})
}

// A stalled key delays no other key, until the receiver queue is full of its events.
func TestLanesGoRoundAStalledKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		var handled atomic.Int64
		l := newLanes(func(_ context.Context, m pulsar.ConsumerMessage) {
			if m.Key() == keyName(0) {
				<-free
			}
			handled.Add(1)
		})
		put := func(key int) {
			l.put(t.Context(), pulsar.ConsumerMessage{Message: message{key: keyName(key)}})
		}
		for i := range 1000 {
			put(0)
			put(1 + i%10)
		}
		synctest.Wait()
		if handled.Load() != 1000 {
			t.Errorf("%d events of other keys were handled, want 1000", handled.Load())
		}
		close(free)
		l.all.Wait()
		if handled.Load() != 2000 {
			t.Errorf("%d events were handled, want 2000", handled.Load())
		}
	})
}

func TestLanesGiveUpWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := newLanes(func(context.Context, pulsar.ConsumerMessage) { t.Error("handled after the end") })
	for range 3 {
		l.put(ctx, pulsar.ConsumerMessage{Message: message{key: "k"}})
	}
	l.all.Wait()
}

func TestWorkerKeepsAJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := journal.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{journal: j, handler: handler{decode: true}}
	for n, good := range []bool{true, false, true} {
		b := stampedPayload(keyName(1), n, 256, 0)
		if !good {
			b[len(b)-1] = '?' // not valid JSON
		}
		if err := w.handle(keyName(1), b, event.Fence{Token: 7}); (err == nil) != good {
			t.Errorf("event %d: %v", n, err)
		}
	}
	if err := w.handle(keyName(1), []byte("{}"), event.Fence{Token: 7}); err == nil {
		t.Error("an event without a number is taken")
	}
	report, err := journal.Check([]journal.File{{Path: path}}, eventNames(3))
	if err != nil || report.Done != 2 || report.Failed != 1 || report.Lost != 1 {
		t.Errorf("report = %+v, %v, want 2 done, 1 failed and so 1 lost", report, err)
	}
	if again := (killSample{report: report}).again(); again != 1 {
		t.Errorf("%d handlings too many, want 1", again)
	}
}

func TestStalledKeys(t *testing.T) {
	w := &worker{stalledKeys: 2, stall: time.Second, latencies: newLatencies(0)}
	synctest.Test(t, func(t *testing.T) {
		for key, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 0} {
			began, b := time.Now(), stampedPayload(keyName(key), 0, 256, 0)
			_ = w.handle(keyName(key), b, event.Fence{})
			w.finished(keyName(key), b)
			if took := time.Since(began); took != want {
				t.Errorf("key %d took %v, want %v", key, took, want)
			}
		}
	})
	if n := w.latencies.start.TotalCount() + w.latencies.end.TotalCount(); n != 2 {
		t.Errorf("%d latencies, want 2: of the key that does not stall", n)
	}
	if w.handled.Load() != 3 {
		t.Errorf("%d handled, want 3", w.handled.Load())
	}
}

func TestLockDelayGrowsWithinBounds(t *testing.T) {
	var sum time.Duration
	for tries := 1; tries < lockTries; tries++ {
		d := lockDelay(tries)
		if d < lockDelayFirst/2 || d > lockDelayMax {
			t.Errorf("try %d waits %v", tries, d)
		}
		if tries < 5 && d > lockDelayFirst<<tries {
			t.Errorf("try %d waits %v, want at most %v", tries, d, lockDelayFirst<<tries)
		}
		sum += lockDelayMax / 2
	}
	if sum < lockTTL-lockDelayMax*4 {
		t.Errorf("the tries may be over after %v, before the lock of a dead holder is (%v)", sum, lockTTL)
	}
}

func TestMissingRedisSaysWhatToDo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := findRedis()
	if err == nil || !strings.Contains(err.Error(), "apt-get install redis-server") || !strings.Contains(err.Error(), "--modes") {
		t.Errorf("without a Redis: %v", err)
	}
}
