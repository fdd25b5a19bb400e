package entries

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// After a broken connection, received entries can be acked on the next connection, unreceived entries are redelivered once, and permits of
// the earlier connection do not count.
func TestABrokenConnection(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		want := r.publish(5)
		c := r.subscribe(func(s *Subscription) { s.Permits = 3 })
		synctest.Wait()
		got, err := r.queue.Receive(r.Context(), nil, 2) // permits not returned
		if err != nil {
			t.Fatal(err)
		}
		a.Cut()
		synctest.Wait()
		if n := r.queue.Len(); n != 0 {
			t.Errorf("%d entries of the broken connection are queued", n)
		}
		r.ack(c, got...) // while there is no connection
		again := r.receive(3)
		if !slices.Equal(ids(again), want[2:]) {
			t.Errorf("received %v after the reconnect, want %v: acks are sent first", ids(again), want[2:])
		}
		Take(got...)
		Take(again...) // a second time
		r.ack(c, again...)
		r.nothing()
		if p, left := r.cluster.Permits(topicName), r.cluster.Backlog(topicName); !slices.Equal(p, []int{3}) || len(left) != 0 {
			t.Errorf("broker has permits %v and entries %v, want 3 and none", p, left)
		}
		if n := testutil.ToFloat64(r.metrics.reconnects.WithLabelValues(reasonConnection)); n != 1 {
			t.Errorf("metric counts %v reconnects, want 1", n)
		}
		if n := testutil.ToFloat64(r.metrics.permits); n != 3 {
			t.Errorf("metric shows %v permits, want 3", n)
		}
	})
}

// A broker is down for a long time: the consumer reconnects when it is back, although the broker refuses requests at first.
func TestABrokerIsKilledAndComesBack(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.URL = "pulsar://a"
		a := r.cluster.Broker("a:6650")
		c := r.subscribe()
		a.Kill()
		time.Sleep(time.Hour)
		refusals := 2
		a.Script = func(l *fakebroker.Link, command *pulsarpb.BaseCommand) bool {
			if command.GetType() != pulsarpb.BaseCommand_LOOKUP || refusals == 0 {
				return false
			}
			refusals--
			l.Refuse(command.GetLookupTopic().GetRequestId(), pulsarpb.ServerError_SERVICE_NOT_READY, "starting")
			return true
		}
		if err := c.Ack(wire.AckID{}); err != nil {
			t.Errorf("Ack while the broker is down: %v", err)
		}
		a.Revive()
		begun := time.Now()
		r.publish(1)
		r.receive(1)
		if took, most := time.Since(begun), r.cfg.ReconnectMax+8*r.cfg.BackoffMin; took > most || refusals > 0 {
			t.Errorf("reconnecting took %v after the broker was back, with %d refusals left; want at most %v", took, refusals, most)
		}
	})
}

// Acks that wait for a broker when the consumer ends are counted.
func TestUnsentAcksAreCounted(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		r.publish(3)
		c := r.subscribe()
		got := r.receive(3)
		a.Kill()
		synctest.Wait()
		r.ack(c, got...)
		c.Close()
		if n := testutil.ToFloat64(r.metrics.acksUnsent); n != 3 {
			t.Errorf("%v acks were counted as not sent, want 3", n)
		}
	})
}

// Ids of a cluster mean nothing in another one: acks go to the cluster of their entries, or nowhere.
func TestAcksDoNotFollowATopicToAnotherCluster(t *testing.T) {
	bubble(t, func(r *rig) {
		var link *fakebroker.Link
		var consumer uint64
		a := r.cluster.Broker("a:6650")
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
				link, consumer = l, c.GetSubscribe().GetConsumerId()
			}
			return false
		}
		other := fakebroker.New()
		defer other.Close()
		defer func() { r.client.Close() }()
		other.Broker("green:6650")
		r.access.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			if address == "green:6650" {
				return other.Dial(ctx, address)
			}
			return r.cluster.Dial(ctx, address)
		}
		before := r.publish(4)
		c := r.subscribe()
		got := r.receive(4)
		for i := range 4 {
			if id := other.Publish(topicName, fakebroker.Message("x"), 1); id != before[i] {
				t.Fatalf("the other cluster names an entry %v, want %v", id, before[i])
			}
		}
		r.ack(c, got[0])                     // at once
		if err := got[1].Ack(); err != nil { // waits for others
			t.Fatal(err)
		}
		link.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_TOPIC_MIGRATED.Enum(), TopicMigrated: &pulsarpb.CommandTopicMigrated{
			ResourceId: &consumer, ResourceType: pulsarpb.CommandTopicMigrated_CONSUMER.Enum(), BrokerServiceUrl: new("pulsar://green"),
		}})
		synctest.Wait()
		r.receive(4)
		if err := got[2].Ack(); err == nil {
			t.Error("an entry of the cluster that the topic has left is acked")
		}
		if err := got[3].AckPart([]uint64{0}, 1); err == nil {
			t.Error("a part of an entry of the cluster that the topic has left is acked")
		}
		time.Sleep(2 * r.cfg.AckDelayMax)
		synctest.Wait()
		if left := r.cluster.Backlog(topicName); !slices.Equal(left, before[2:]) {
			t.Errorf("%v are not acked in the earlier cluster, want %v", left, before[2:])
		}
		if left := other.Backlog(topicName); len(left) != 4 {
			t.Errorf("only %v are left in the new cluster, want all 4", left)
		}
	})
}

func TestABrokerClosesTheConsumer(t *testing.T) {
	for name, named := range map[string]bool{"and names the next broker": true, "and says nothing": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				a, b := r.cluster.Broker("a:6650"), r.cluster.Broker("b:6650")
				r.cluster.Own(topicName, a)
				lookups := count(a, pulsarpb.BaseCommand_LOOKUP)
				subscribes := count(b, pulsarpb.BaseCommand_SUBSCRIBE)
				want := r.publish(2)
				c := r.subscribe()
				got := r.receive(1)
				time.Sleep(2 * r.cfg.BackoffMax) // so that it does not count as a repeated move
				asked := lookups.Load()
				begun := time.Now()
				r.cluster.Move(topicName, b, named)
				synctest.Wait()
				got = append(got[:0], r.receive(2)...)
				if !slices.Equal(ids(got), want) || time.Since(begun) != 0 {
					t.Errorf("received %v after %v, want %v at once", ids(got), time.Since(begun), want)
				}
				if n := lookups.Load() - asked; (n == 0) != named || subscribes.Load() != 1 {
					t.Errorf("%d lookups and %d subscriptions", n, subscribes.Load())
				}
				r.ack(c, got...)
				r.nothing()
			})
		})
	}
}

// If the named broker does not serve the topic, the topic is looked up.
func TestABrokerNamesAWrongOne(t *testing.T) {
	bubble(t, func(r *rig) {
		a, b := r.cluster.Broker("a:6650"), r.cluster.Broker("b:6650")
		b.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() != pulsarpb.BaseCommand_SUBSCRIBE {
				return false
			}
			l.Refuse(c.GetSubscribe().GetRequestId(), pulsarpb.ServerError_TOPIC_NOT_FOUND, "never heard of it")
			return true
		}
		r.cluster.Own(topicName, a)
		r.publish(1)
		r.subscribe()
		r.receive(1)
		r.cluster.Move(topicName, b, true)
		r.cluster.Own(topicName, a)
		r.receive(1)
	})
}

// A topic moves to another cluster, and all later requests go there.
func TestATopicMigrates(t *testing.T) {
	bubble(t, func(r *rig) {
		var link *fakebroker.Link
		var consumer uint64
		a, green := r.cluster.Broker("a:6650"), r.cluster.Broker("green:6650")
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
				link, consumer = l, c.GetSubscribe().GetConsumerId()
			}
			return false
		}
		lookups := count(green, pulsarpb.BaseCommand_LOOKUP)
		r.subscribe()
		synctest.Wait()
		r.cluster.Own(topicName, green)
		for range 2 {
			link.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_TOPIC_MIGRATED.Enum(), TopicMigrated: &pulsarpb.CommandTopicMigrated{
				ResourceId: &consumer, ResourceType: pulsarpb.CommandTopicMigrated_CONSUMER.Enum(),
				BrokerServiceUrl: new("pulsar://nowhere,green"), BrokerServiceUrlTls: new(""),
			}})
		}
		synctest.Wait()
		r.cluster.Publish(topicName, fakebroker.Message("x"), 1)
		if r.receive(1); lookups.Load() != 1 {
			t.Errorf("other cluster was asked %d times", lookups.Load())
		}
		if p := r.cluster.Permits(topicName); len(p) != 1 {
			t.Errorf("%d consumers are left, want only the consumer in the other cluster", len(p))
		}
		green.Cut()
		if r.receive(1); lookups.Load() != 2 {
			t.Errorf("other cluster was asked %d times after a reconnect", lookups.Load())
		}
	})
}

// Partitions that are added to a topic which has moved to another cluster are found and read there; one of the former cluster that was not read yet is still read
// there first. The former cluster may end.
func TestPartitionsOfATopicThatMigrated(t *testing.T) {
	bubble(t, func(r *rig) {
		var link *fakebroker.Link
		var consumer uint64
		a := r.cluster.Broker("a:6650")
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
				link, consumer = l, c.GetSubscribe().GetConsumerId()
			}
			return false
		}
		other := fakebroker.New()
		defer other.Close()
		defer func() { r.client.Close() }()
		other.Broker("green:6650")
		r.access.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			if address == "green:6650" {
				return other.Dial(ctx, address)
			}
			return r.cluster.Dial(ctx, address)
		}
		part := func(n int) string { return topicName + "-partition-" + strconv.Itoa(n) }
		partitions := func(want int) {
			t.Helper()
			names, err := r.client.Partitions(r.Context(), topicName)
			if err != nil || len(names) != want || names[want-1] != part(want-1) {
				t.Errorf("partitions %v, %v, want %d", names, err, want)
			}
		}
		read := func(n int, in *fakebroker.Cluster) {
			t.Helper()
			r.subscribe(func(s *Subscription) { s.Topic = part(n) })
			synctest.Wait()
			if len(in.Permits(part(n))) != 1 {
				t.Errorf("partition %d is read in another cluster", n)
			}
		}
		r.cluster.Partition(topicName, 2)
		r.open()
		partitions(2)
		read(0, r.cluster)
		other.Partition(topicName, 2)
		link.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_TOPIC_MIGRATED.Enum(), TopicMigrated: &pulsarpb.CommandTopicMigrated{
			ResourceId: &consumer, ResourceType: pulsarpb.CommandTopicMigrated_CONSUMER.Enum(), BrokerServiceUrl: new("pulsar://green"),
		}})
		synctest.Wait()
		r.cluster.Partition(topicName, 3)
		partitions(3)
		read(1, r.cluster)
		read(2, r.cluster)
		other.Partition(topicName, 5)
		partitions(5)
		read(3, other)
		a.Kill()
		partitions(5)
		read(4, other)
		other.Publish(part(4), fakebroker.Message("x"), 1)
		r.receive(1)
	})
}

// Entries that a connection reads after the end of its session are not handed on: the broker redelivers them.
func TestLateEntries(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		c := r.subscribe()
		c.mu.Lock()
		s := c.session
		c.mu.Unlock()
		a.Kill()
		synctest.Wait()
		for _, entry := range [][]byte{fakebroker.Message("x"), fakebroker.Chunk("x", 0, 2, 2, "x")} {
			if err := s.arrived(wire.Frame{Entry: entry}); err != nil {
				t.Error(err)
			}
		}
		if n := r.queue.Len(); n != 0 || s.permits.entries != 0 {
			t.Errorf("%d entries are queued and %d counted, want 0 and 0", n, s.permits.entries)
		}
	})
}

// A final refusal ends the consumer with the broker's text. All other refusals are retried.
func TestWhatEndsAConsumer(t *testing.T) {
	for name, c := range map[string]struct {
		code pulsarpb.ServerError
		text string
		lost bool
	}{
		"topic deleted":      {pulsarpb.ServerError_TOPIC_NOT_FOUND, "topic does not exist", true},
		"not authorised":     {pulsarpb.ServerError_AUTHORIZATION_ERROR, "no consume", true},
		"another type":       {pulsarpb.ServerError_CONSUMER_BUSY, "Subscription is of different type", true},
		"no subscription":    {pulsarpb.ServerError_SUBSCRIPTION_NOT_FOUND, "gone", true},
		"our own consumer":   {pulsarpb.ServerError_CONSUMER_BUSY, "consumer limit reached", false},
		"not ready":          {pulsarpb.ServerError_SERVICE_NOT_READY, "soon", false},
		"metadata":           {pulsarpb.ServerError_METADATA_ERROR, "", false},
		"persistence":        {pulsarpb.ServerError_PERSISTENCE_ERROR, "", false},
		"too many requests":  {pulsarpb.ServerError_TOO_MANY_REQUESTS, "", false},
		"something else":     {pulsarpb.ServerError_UNKNOWN_ERROR, "", false},
		"a code from beyond": {pulsarpb.ServerError(99), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				a := r.cluster.Broker("a:6650")
				var refuse atomic.Int32
				a.Script = func(l *fakebroker.Link, cmd *pulsarpb.BaseCommand) bool {
					if cmd.GetType() != pulsarpb.BaseCommand_SUBSCRIBE || refuse.Add(-1) < 0 {
						return false
					}
					l.Refuse(cmd.GetSubscribe().GetRequestId(), c.code, c.text)
					return true
				}
				r.publish(1)
				consumer := r.subscribe()
				r.receive(1)
				refuse.Store(5)
				a.Cut()
				if !c.lost {
					r.receive(1)
					return
				}
				err := r.lost()
				var lost *LostError
				if !errors.As(err, &lost) || lost.Consumer != consumer || lost.Topic != topicName || !strings.Contains(err.Error(), c.text) {
					t.Errorf("err = %v", err)
				}
				if err := consumer.Ack(wire.AckID{}); !errors.Is(err, ErrLost) {
					t.Errorf("Ack of a lost consumer: %v", err)
				}
				if _, err := consumer.LastID(r.Context()); !errors.Is(err, ErrLost) {
					t.Errorf("LastID of a lost consumer: %v", err)
				}
				consumer.Close()
			})
		})
	}
}

// A broker that closes each new consumer at once is not asked in a tight loop.
func TestABrokerThatClosesAgainAndAgain(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		n := count(a, pulsarpb.BaseCommand_SUBSCRIBE)
		before := a.Script
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			_ = before(l, c)
			if c.GetType() != pulsarpb.BaseCommand_SUBSCRIBE {
				return false
			}
			l.Handle(c)
			l.Send(closeConsumer(c.GetSubscribe().GetConsumerId(), 0))
			return true
		}
		r.subscribe()
		time.Sleep(10 * time.Minute)
		if got := n.Load(); got < 50 || got > 150 {
			t.Errorf("subscribed %d times in 10 minutes, want every 5 to 10 s", got)
		}
	})
}

func TestPace(t *testing.T) {
	p := pace{backoff.Backoff{Min: 1, Max: 4}}
	for i, c := range []struct {
		reason string
		steady bool
		want   time.Duration
	}{
		{reasonClosed, false, 1},
		{reasonClosed, false, 2},
		{reasonClosed, true, 0},
		{reasonClosed, false, 1},
		{reasonConnection, false, 2},
		{reasonConnection, false, 4},
		{reasonConnection, false, 4},
		{reasonConnection, true, 1},
		{reasonMigrated, true, 0},
	} {
		if got := p.after(c.reason, c.steady); got != c.want {
			t.Errorf("%d: after a session (steady: %v) that ended by %s, the delay is %v, want %v", i, c.steady, c.reason, got, c.want)
		}
	}
}

// Pings are answered, and our pings keep a connection alive. A broker that sends no byte for two intervals loses its connection.
func TestKeepAlive(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		var silent atomic.Bool
		var link atomic.Pointer[fakebroker.Link]
		a.Script = func(l *fakebroker.Link, _ *pulsarpb.BaseCommand) bool {
			link.Store(l)
			return silent.Load()
		}
		pongs := count(a, pulsarpb.BaseCommand_PONG)
		r.subscribe()
		time.Sleep(10 * r.cfg.KeepAlive)
		link.Load().Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_PING.Enum(), Ping: new(pulsarpb.CommandPing)})
		synctest.Wait()
		if a.Dials() != 1 || pongs.Load() != 1 {
			t.Fatalf("%d connections and %d pongs, want 1 each", a.Dials(), pongs.Load())
		}
		silent.Store(true)
		time.Sleep(2*r.cfg.KeepAlive - 1)
		if a.Links() != 1 {
			t.Error("connection ended within two intervals")
		}
		time.Sleep(r.cfg.KeepAlive + r.cfg.BackoffMin + 1)
		if a.Dials() < 2 {
			t.Error("silent connection is open after three intervals")
		}
		silent.Store(false)
		time.Sleep(r.cfg.ConnectTimeout + r.cfg.BackoffMax)
		r.publish(1)
		r.receive(1)
	})
}

// A connection that served only lookups ends.
func TestUnusedConnectionsEnd(t *testing.T) {
	bubble(t, func(r *rig) {
		a, b := r.cluster.Broker("a:6650"), r.cluster.Broker("b:6650")
		r.cluster.Own(topicName, b)
		r.subscribe()
		time.Sleep(2 * time.Duration(r.cfg.IdleMax) * r.cfg.KeepAlive)
		if a.Links() != 0 || b.Links() != 1 {
			t.Errorf("%d and %d connections, want only the connection of the subscription", a.Links(), b.Links())
		}
		b.Cut()
		r.publish(1)
		r.receive(1)
	})
}

// The last id of an empty topic partition is the position of the subscription: in its ledger, and in no earlier one, entries may still come.
func TestTheLastIDOfAnEmptyTopicPartition(t *testing.T) {
	const none = 1<<64 - 1 // Pulsar's -1
	for name, c := range map[string]struct {
		stands *pulsarpb.MessageIdData
		want   wire.ID
	}{
		"a new one":                      {&pulsarpb.MessageIdData{LedgerId: new(uint64(21)), EntryId: new(uint64(none))}, wire.ID{Ledger: 21, Entry: -1}},
		"one whose entries are gone":     {&pulsarpb.MessageIdData{LedgerId: new(uint64(8)), EntryId: new(uint64(3))}, wire.ID{Ledger: 8, Entry: 3}},
		"at a broker that does not tell": {nil, wire.ID{Ledger: -1, Entry: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.cluster.Broker("a:6650").Script = func(l *fakebroker.Link, cmd *pulsarpb.BaseCommand) bool {
					asked := cmd.GetGetLastMessageId()
					if asked == nil {
						return false
					}
					l.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID_RESPONSE.Enum(), GetLastMessageIdResponse: &pulsarpb.CommandGetLastMessageIdResponse{
						LastMessageId: &pulsarpb.MessageIdData{LedgerId: new(uint64(none)), EntryId: new(uint64(none))}, RequestId: asked.RequestId, ConsumerMarkDeletePosition: c.stands,
					}})
					return true
				}
				consumer := r.subscribe()
				if last, err := consumer.LastID(r.Context()); err != nil || last != c.want {
					r.Errorf("the last id is %v, %v, want %v", last, err, c.want)
				}
			})
		})
	}
}
