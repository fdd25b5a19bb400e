package entries

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

func TestEntriesArriveUntilTheyAreAcked(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		want := r.publish(3)
		c := r.subscribe()
		got := r.receive(3)
		if !slices.Equal(ids(got), want) || string(got[1].Entry.Payload) != "m1" || got[1].Consumer != c {
			t.Fatalf("received %v, want %v", ids(got), want)
		}
		r.ack(c, got[0], got[2])
		c.Close()
		if left := r.cluster.Backlog(topicName); !slices.Equal(left, want[1:2]) {
			t.Errorf("after Close, broker has %v, want %v", left, want[1:2])
		}
		c = r.subscribe()
		if again := r.receive(1); again[0].ID != want[1] || again[0].Redelivery != 1 {
			t.Errorf("received %v again, redelivery count %d, want %v with 1", again[0].ID, again[0].Redelivery, want[1])
		}
		if err := c.Ack(); err != nil {
			t.Error(err)
		}
		r.nothing()
	})
}

// Brokers (4.0.8) count an entry as unacked for ever that has expired, or that an administrator has skipped, before it was acked. Once all is acked and nothing
// comes, the broker is asked to count anew, once; not if it may not have an ack, whose entry would come again and again.
func TestAnIdleBrokerCountsAnew(t *testing.T) {
	for name, refuses := range map[string]bool{"confirmed": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				a := r.cluster.Broker("a:6650")
				var all, some, refused atomic.Int64
				a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
					switch {
					case c.GetType() == pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES && len(c.RedeliverUnacknowledgedMessages.MessageIds) == 0:
						all.Add(1)
					case c.GetType() == pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES:
						some.Add(1)
					case c.GetType() == pulsarpb.BaseCommand_ACK && refuses && refused.Add(1) == 1:
						l.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ACK_RESPONSE.Enum(), AckResponse: &pulsarpb.CommandAckResponse{
							ConsumerId: c.GetAck().ConsumerId, RequestId: c.GetAck().RequestId, Error: pulsarpb.ServerError_NOT_ALLOWED_ERROR.Enum(), Message: new("no"),
						}})
						return true
					}
					return false
				}
				c := r.subscribe(func(s *Subscription) { s.UnackedMax, s.Receipt = 6, func([]wire.AckID, error) {} })
				for range 2 {
					r.publish(3)
					got := r.receive(3)
					r.ack(c, got[:2]...)
					r.nothing()
					before := all.Load()
					r.ack(c, got[2])
					r.nothing()
					if n := all.Load() - before; n != map[bool]int64{false: 1}[refuses] || before > 1 {
						t.Errorf("the broker was asked to count anew %d times, and %d times before", n, before)
					}
				}
				before := all.Load()
				r.publish(2)
				r.ack(c, r.receive(2)...)
				r.nothing()
				if all.Load() != before {
					t.Error("the broker was asked to count anew after few entries")
				}
				if some.Load() != 0 {
					t.Error("the broker was asked for entries")
				}
			})
		})
	}
}

// A member that does not ack gets no more events than it may hold unacked, until it acks, or may hold more.
func TestUnackedEventsAreBounded(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		c := r.subscribe(func(s *Subscription) { s.Permits, s.UnackedMax = 100, 10 })
		r.publish(60)
		got := r.receive(10)
		r.nothing()
		if n := testutil.ToFloat64(r.metrics.unacked); n != 10 {
			t.Errorf("the metric has %v unacked events, want 10", n)
		}
		if n := testutil.ToFloat64(r.metrics.unackedWaits); n != 1 {
			t.Errorf("the metric has %v waits, want 1", n)
		}
		r.ack(c, got[:4]...)
		r.receive(4)
		r.nothing()
		c.SetUnackedMax(30)
		r.receive(20)
		r.nothing()
		c.SetUnackedMax(0)
		r.receive(26)
		if n := testutil.ToFloat64(r.metrics.unacked); n != 56 {
			t.Errorf("the metric has %v unacked events, want 56", n)
		}
	})
}

// A batch costs one permit for each unacked event.
func TestPermitsAreCountedInEvents(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		c := r.subscribe(func(s *Subscription) { s.Permits = 3 })
		for range 20 {
			r.cluster.Publish(topicName, fakebroker.Batch("1", "2", "3", "4"), 4)
		}
		synctest.Wait()
		if n := r.queue.Len(); n != 1 {
			t.Fatalf("%d entries are unread, want 1, which takes all permits", n)
		}
		r.ack(c, r.receive(20)...)
		r.nothing()
		if p := r.cluster.Permits(topicName); !slices.Equal(p, []int{3}) {
			t.Errorf("broker has permits %v, want all 3 again", p)
		}
	})
}
