package entries

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// ackLog records the ack commands of a broker.
type ackLog struct {
	mu    sync.Mutex
	sizes []int
	sets  [][]int64
}

func logAcks(b *fakebroker.Broker) *ackLog {
	a := new(ackLog)
	b.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		if c.GetType() != pulsarpb.BaseCommand_ACK {
			return false
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sizes = append(a.sizes, len(c.GetAck().GetMessageId()))
		for _, id := range c.GetAck().GetMessageId() {
			if id.AckSet != nil {
				a.sets = append(a.sets, id.AckSet)
			}
		}
		return false
	}
	return a
}

func (a *ackLog) commands() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.sizes)
}

// Acks are grouped for at most AckDelayMax. The first one and a full group are sent at once.
func TestAcksAreGrouped(t *testing.T) {
	bubble(t, func(r *rig) {
		log := logAcks(r.cluster.Broker("a:6650"))
		c := r.subscribe(func(s *Subscription) { s.Permits = 5000 })
		r.publish(2500)
		got := r.receive(2500)
		time.Sleep(r.cfg.AckDelayMax)
		synctest.Wait()
		for _, d := range got {
			r.ack(c, d)
		}
		synctest.Wait()
		if sizes := log.commands(); !slices.Equal(sizes, []int{1, 1000, 1000}) {
			t.Errorf("commands with %v acks were sent at once, want the first ack and two with 1000", sizes)
		}
		time.Sleep(r.cfg.AckDelayMax)
		synctest.Wait()
		if sizes := log.commands(); !slices.Equal(sizes, []int{1, 1000, 1000, 499}) {
			t.Errorf("commands with %v acks, want the last 499 after %v", sizes, r.cfg.AckDelayMax)
		}
		if n := testutil.ToFloat64(r.metrics.acks); n != 2500 {
			t.Errorf("metric counts %v acks", n)
		}
	})
}

func TestEventsOfABatchAreAcked(t *testing.T) {
	bubble(t, func(r *rig) {
		log := logAcks(r.cluster.Broker("a:6650"))
		r.cluster.Publish(topicName, fakebroker.Batch("0", "1", "2", "3"), 4)
		c := r.subscribe()
		d := r.receive(1)[0]
		for _, left := range []uint64{0b1110, 0b1011} {
			if err := c.Ack(wire.AckID{ID: d.ID, AckSet: []uint64{left}, BatchSize: 4}); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		if len(log.sets) != 1 || log.sets[0][0] != 0b1010 {
			t.Errorf("ack sets %b, want one with the events that neither acks", log.sets)
		}
		c = r.subscribe()
		d = r.receive(1)[0]
		if len(d.AckSet) != 1 || d.AckSet[0] != 0b1010 || d.Permits != 2 {
			t.Errorf("redelivered with %b for %d permits, want the two unacked events", d.AckSet, d.Permits)
		}
		r.ack(c, d)
		r.nothing()
		if p := r.cluster.Permits(topicName); !slices.Equal(p, []int{100}) {
			t.Errorf("broker has permits %v, want 100", p)
		}
	})
}

// receipts collects the arguments of Receipt.
type receipts struct {
	mu   sync.Mutex
	good []wire.ID
	bad  []error
}

func (a *receipts) take(ids []wire.AckID, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.bad = append(a.bad, err)
		return
	}
	for _, id := range ids {
		a.good = append(a.good, id.ID)
	}
}

func (a *receipts) all() ([]wire.ID, []error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.good), slices.Clone(a.bad)
}

func TestReceipts(t *testing.T) {
	for name, c := range map[string]struct {
		version  int32
		answer   func(*fakebroker.Link, *pulsarpb.CommandAck) // nil: as a real broker does
		requests int
		good     int
		failure  string
	}{
		"confirmed":  {version: 21, requests: 1, good: 2},
		"old broker": {version: receiptsSince - 1, good: 2},
		"refused": {version: 17, requests: 1, failure: "MetadataError: no space", answer: func(l *fakebroker.Link, a *pulsarpb.CommandAck) {
			l.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ACK_RESPONSE.Enum(), AckResponse: &pulsarpb.CommandAckResponse{
				ConsumerId: a.ConsumerId, RequestId: a.RequestId, Error: pulsarpb.ServerError_METADATA_ERROR.Enum(), Message: new("no space"),
			}})
		}},
		"never":   {version: 17, requests: 1, failure: "no answer", answer: func(*fakebroker.Link, *pulsarpb.CommandAck) {}},
		"another": {version: 17, requests: 1, failure: "another", answer: func(l *fakebroker.Link, a *pulsarpb.CommandAck) { l.Success(a.GetRequestId()) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				a := r.cluster.Broker("a:6650")
				a.Version = c.version
				var requests atomic.Int32
				a.Script = func(l *fakebroker.Link, cmd *pulsarpb.BaseCommand) bool {
					if cmd.GetType() != pulsarpb.BaseCommand_ACK {
						return false
					}
					if cmd.GetAck().RequestId != nil {
						requests.Add(1)
					}
					if c.answer != nil {
						c.answer(l, cmd.GetAck())
					}
					return c.answer != nil
				}
				var got receipts
				want := r.publish(2)
				consumer := r.subscribe(func(s *Subscription) { s.Receipt = got.take })
				r.ack(consumer, r.receive(2)...)
				time.Sleep(time.Minute)
				synctest.Wait()
				good, bad := got.all()
				if n := int(requests.Load()); n != c.requests || len(good) != c.good || c.good > 0 && !slices.Equal(good, want) {
					t.Errorf("%d requests, receipts for %v, want %d, and %d good receipts", n, good, c.requests, c.good)
				}
				if (len(bad) > 0) != (c.failure != "") || len(bad) > 0 && !strings.Contains(bad[0].Error(), c.failure) {
					t.Errorf("failures = %v, want %q", bad, c.failure)
				}
				if n := testutil.ToFloat64(r.metrics.receiptsFailed); n != float64(2*len(bad)) {
					t.Errorf("metric counts %v failures", n)
				}
			})
		})
	}
}

// Acks without an answer are sent again on the next connection. Close reports the acks that still have none.
func TestReceiptsAndReconnects(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		var drop atomic.Bool
		drop.Store(true)
		a.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			return drop.Load() && c.GetType() == pulsarpb.BaseCommand_ACK
		}
		var got receipts
		want := r.publish(1)
		c := r.subscribe(func(s *Subscription) { s.Receipt = got.take })
		r.ack(c, r.receive(1)...)
		time.Sleep(r.cfg.AckDelayMax)
		synctest.Wait()
		drop.Store(false)
		a.Cut()
		time.Sleep(time.Second)
		synctest.Wait()
		if good, bad := got.all(); !slices.Equal(good, want) || len(bad) != 0 {
			t.Errorf("receipts for %v, failures %v", good, bad)
		}
		r.nothing()
		drop.Store(true)
		if err := c.Ack(wire.AckID{}); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if _, bad := got.all(); len(bad) != 1 || !errors.Is(bad[0], ErrClosed) {
			t.Errorf("after Close: %v", bad)
		}
		if err := c.Ack(wire.AckID{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Ack after Close: %v", err)
		}
	})
}

// An ack that has no answer when the topic moves to another cluster has failed: it is not sent there, where its id means another entry.
func TestReceiptsWhenATopicMigrates(t *testing.T) {
	bubble(t, func(r *rig) {
		var link *fakebroker.Link
		var consumer uint64
		a, green := r.cluster.Broker("a:6650"), r.cluster.Broker("green:6650")
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
				link, consumer = l, c.GetSubscribe().GetConsumerId()
			}
			return c.GetType() == pulsarpb.BaseCommand_ACK
		}
		acks := count(green, pulsarpb.BaseCommand_ACK)
		var got receipts
		r.publish(1)
		c := r.subscribe(func(s *Subscription) { s.Receipt = got.take })
		r.ack(c, r.receive(1)...)
		time.Sleep(r.cfg.AckDelayMax)
		synctest.Wait()
		r.cluster.Own(topicName, green)
		link.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_TOPIC_MIGRATED.Enum(), TopicMigrated: &pulsarpb.CommandTopicMigrated{
			ResourceId: &consumer, ResourceType: pulsarpb.CommandTopicMigrated_CONSUMER.Enum(), BrokerServiceUrl: new("pulsar://green"),
		}})
		r.receive(1)
		time.Sleep(2 * r.cfg.AckDelayMax)
		synctest.Wait()
		if good, bad := got.all(); len(good) != 0 || len(bad) != 1 || !errors.Is(bad[0], errMoved) {
			t.Errorf("receipts for %v, failures %v, want one failure", good, bad)
		}
		if n := acks.Load(); n != 0 {
			t.Errorf("%d acks went to the new cluster", n)
		}
	})
}

// A drain that closes right after the last ack loses no ack.
func TestCloseSendsTheLastAcks(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.publish(10)
		c := r.subscribe()
		r.ack(c, r.receive(10)...)
		r.client.Close()
		if left := r.cluster.Backlog(topicName); len(left) != 0 {
			t.Errorf("%v are not acked", left)
		}
		if _, err := r.client.Subscribe(r.Context(), r.subscription()); !errors.Is(err, ErrClosed) {
			t.Errorf("Subscribe after Close: %v", err)
		}
	})
}
