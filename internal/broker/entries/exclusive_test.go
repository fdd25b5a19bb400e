package entries

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// An exclusive consumer never asks for entries again, since the broker would begin anew with all of them. So chunks of producers that died do not keep later
// messages from being whole, and unacked entries, which brokers do not bound, take no memory.
func TestAnExclusiveConsumerReadsInOrder(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cfg.ChunkBytesMax = 1 << 14
		asked := false
		r.cluster.Broker("a:6650").Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			asked = asked || c.GetType() == pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES
			return false
		}
		r.cfg.URL = "pulsar://a"
		consumer := r.subscribe(func(s *Subscription) { s.Type = Exclusive })
		part := string(make([]byte, 1000))
		for i := range 100 {
			r.cluster.Publish(topicName, fakebroker.Chunk(fmt.Sprint("dead", i), 0, 2, 2000, part), 1)
		}
		for i := range 2 {
			r.cluster.Publish(topicName, fakebroker.Chunk("whole", i, 2, 2000, part), 1)
		}
		r.publish(1000)
		if got := r.receive(1001); len(got[0].Chunks) != 2 || got[0].Broken != nil || string(got[0].Entry.Payload) != part+part {
			t.Errorf("first came %v, %v, want the message in chunks", got[0].Chunks, got[0].Broken)
		}
		time.Sleep(10 * r.cfg.GivenUpDelay)
		synctest.Wait()
		consumer.mu.Lock()
		p := consumer.session.permits
		consumer.mu.Unlock()
		if asked || len(p.costs) != 0 || p.unacked != 0 {
			t.Errorf("redelivery was requested: %v; %d entries are counted, with %d events, want none", asked, len(p.costs), p.unacked)
		}
	})
}

// A subscription without a type must not be Pulsar's zero, which is exclusive: it would keep all other members out.
func TestASubscriptionNeedsAType(t *testing.T) {
	bubble(t, func(r *rig) {
		sub := r.subscription()
		sub.Type = 0
		if _, err := r.open().Subscribe(t.Context(), sub); err == nil || !strings.Contains(err.Error(), "type 0") {
			t.Errorf("it is subscribed to: %v", err)
		}
	})
}

// AckUpTo acks all entries up to one, also of a consumer that waits for its turn, and returns the broker's answer. A broker that gives none is not waited for.
func TestAckUpTo(t *testing.T) {
	for name, c := range map[string]struct {
		version int32
		answer  *pulsarpb.CommandAckResponse
		fails   string
	}{
		"acked":              {version: 21},
		"before Pulsar 2.8":  {version: 16},
		"refused":            {version: 21, answer: &pulsarpb.CommandAckResponse{Error: pulsarpb.ServerError_NOT_ALLOWED_ERROR.Enum(), Message: new("no")}, fails: "NotAllowedError: no"},
		"while reconnecting": {version: 21},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				a := r.cluster.Broker("a:6650")
				a.Version = c.version
				a.Script = func(l *fakebroker.Link, command *pulsarpb.BaseCommand) bool {
					if c.answer == nil || command.GetType() != pulsarpb.BaseCommand_ACK {
						return false
					}
					c.answer.ConsumerId, c.answer.RequestId = command.GetAck().ConsumerId, command.GetAck().RequestId
					l.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ACK_RESPONSE.Enum(), AckResponse: c.answer})
					return true
				}
				r.cfg.URL = "pulsar://a"
				all := r.publish(4)
				consumer := r.subscribe(func(s *Subscription) { s.Type = Failover })
				if name == "while reconnecting" {
					a.Cut()
				}
				err := consumer.AckUpTo(r.Context(), all[2])
				synctest.Wait()
				want := all[3:]
				if c.fails != "" {
					want = all
				}
				if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) || !slices.Equal(r.cluster.Backlog(topicName), want) {
					t.Errorf("AckUpTo = %v, and %v are unacked, want %v", err, r.cluster.Backlog(topicName), want)
				}
			})
		})
	}
}
