package forward

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/event"
)

// refuseAll makes peer 1 take and refuse all events for a time, and returns the number of events
// that it was sent.
func (tt *tableTest) refuseAll(d time.Duration) (sent int) {
	const step = 10 * time.Millisecond
	for range d / step {
		tt.after(step)
		taken := tt.take(1)
		sent += len(taken)
		tt.say(1, event.Overloaded, 0, taken...)
	}
	return sent
}

// A key that stays full is tried again ever more rarely, and by a burst, however many
// of its events wait, and also if all of them fit into one burst.
func TestNoStormAtAFullMailbox(t *testing.T) {
	for name, events := range map[string]int{"more than a burst": 1000, "less than a burst": 5} {
		t.Run(name, func(t *testing.T) {
			inEachForm(t, func(t *testing.T, tt *tableTest) {
				tt.hold("hot", 1, events)
				first := tt.take(1)
				tt.say(1, event.Overloaded, 0, first...)
				tt.take(1)

				const stuck = time.Minute
				burst := min(events, tt.config.FullBurstMin)
				pauses := 7 + int(stuck/tt.config.FullDelayMax) // 100 ms, doubled until it is the longest
				if sent := tt.refuseAll(stuck); sent > pauses*burst {
					t.Errorf("%d events were sent in %v, want %d in %d bursts at most", sent, stuck, pauses*burst, pauses)
				} else if sent < burst {
					t.Errorf("%d events were sent in %v: a lost credit would block the key", sent, stuck)
				}
			})
		})
	}
}

// A credit ends the pause, however long it has become, and releases as many events as it allows.
func TestCreditReleasesWhatThereIsRoomFor(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("hot", 1, 100)
		tt.say(1, event.Overloaded, 0, tt.take(1)...)
		tt.refuseAll(10 * time.Second)
		for _, room := range []int{20, 1, 50} {
			tt.Credit(tt.now, peerNumber(1), []event.Key{"hot", "none"}, room, &tt.out)
			if got := len(tt.take(1)); got != room {
				t.Fatalf("%d events are sent for a credit of %d", got, room)
			}
		}
		tt.after(100 * time.Millisecond)
		if got := len(tt.take(1)); got == 0 || tt.Stats().FullKeys != 0 {
			t.Errorf("%d events are sent after a pause without a refusal, and %d mailboxes full: want the rest, and none", got, tt.Stats().FullKeys)
		}
	})
}

// A key is open once all events that waited for room were sent: new events do not wait.
func TestAKeyWhoseMailboxWasFullIsOpen(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("hot", 1, 1)
		tt.wantTake(1, 1)
		tt.say(1, event.Overloaded, 0, 1)
		tt.Credit(tt.now, peerNumber(1), []event.Key{"hot"}, 5, &tt.out)
		tt.hold("hot", 2, 3)
		tt.wantTake(1, 1, 2, 3)
		tt.say(1, event.Overloaded, 0, 3) // and is again
		tt.hold("hot", 4, 4)
		tt.wantTake(1)
		if s := tt.Stats(); s.FullKeys != 1 || s.In[Full] != 2 {
			t.Errorf("stats = %+v, want 2 events of 1 key that wait for room", s)
		}
		tt.Credit(tt.now, peerNumber(1), nil, 0, &tt.out)
		tt.wantTake(1, 3, 4)
		tt.after(time.Hour)
		if len(tt.waiting) != 0 {
			t.Errorf("%d keys are remembered", len(tt.waiting))
		}
	})
}

// A credit finds its way over a stream, and spares the rest of a long pause.
func TestCreditOverTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := threeNodes(t, &pipes{}, DefaultConfig(), bubbleClock())
		a, b := nodes[0], nodes[1]
		var stream StreamID
		b.verdict = func(_ *event.Event, attempt int) (event.Verdict, bool) {
			if attempt > 1 {
				return event.Verdict{Kind: event.Done}, true
			}
			return event.Verdict{Kind: event.Overloaded, Detail: &event.Detail{Delay: time.Minute}}, true
		}
		for _, n := range nodes[:2] {
			n.start()
			defer n.stop()
		}
		a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}, epoch: event.Position{Ledger: 1}}, nodes[:2]...)
		events := a.events(1, 3)
		a.hold(events)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := a.pool.Stats(); s.FullKeys != 3 {
			t.Fatalf("%d mailboxes are full, want 3", s.FullKeys)
		}
		for id := range b.server.streams {
			stream = id
		}
		b.server.Credit(stream, &events[0].Key, 1)
		b.server.Credit(stream+1, &events[1].Key, 1) // an unknown stream
		time.Sleep(time.Second)
		a.await(1)
		if s := a.pool.Stats(); s.FullKeys != 2 {
			t.Fatalf("%d mailboxes are full after a credit for one, want 2", s.FullKeys)
		}
		b.server.Credit(stream, nil, 0)
		time.Sleep(time.Second)
		a.await(3)
		if in, out := testutil.ToFloat64(a.metrics.creditsIn), testutil.ToFloat64(b.metrics.creditsOut); in != 2 || out != 2 {
			t.Errorf("%v credits given, %v received, want 2", out, in)
		}
	})
}
