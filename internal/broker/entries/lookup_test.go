package entries

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// count makes a script count commands of a type.
func count(b *fakebroker.Broker, kind pulsarpb.BaseCommand_Type) *atomic.Int32 {
	n, before := new(atomic.Int32), b.Script
	b.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		if c.GetType() == kind {
			n.Add(1)
		}
		return before != nil && before(l, c)
	}
	return n
}

func TestLookupFollowsRedirects(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		b := r.cluster.Broker("b:6650")
		r.cluster.Own(topicName, b)
		var authoritative []bool
		b.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() == pulsarpb.BaseCommand_LOOKUP {
				authoritative = append(authoritative, c.GetLookupTopic().GetAuthoritative())
			}
			return false
		}
		r.publish(1)
		r.subscribe()
		r.receive(1)
		if !slices.Equal(authoritative, []bool{true}) {
			t.Errorf("second broker was asked with authoritative = %v, want one true", authoritative)
		}
	})
}

// redirecting answers every lookup with a redirect.
func redirecting(to string) func(*fakebroker.Link, *pulsarpb.BaseCommand) bool {
	return func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		if c.GetType() != pulsarpb.BaseCommand_LOOKUP {
			return false
		}
		l.Send(fakebroker.Named(c.GetLookupTopic().GetRequestId(), pulsarpb.CommandLookupTopicResponse_REDIRECT, to))
		return true
	}
}

func TestLookupEndsWhereBrokersRedirectToOneAnother(t *testing.T) {
	bubble(t, func(r *rig) {
		a, b := r.cluster.Broker("a:6650"), r.cluster.Broker("b:6650")
		a.Script, b.Script = redirecting("b:6650"), redirecting("a:6650")
		_, err := r.open().Subscribe(r.Context(), r.subscription())
		if err == nil || !strings.Contains(err.Error(), "redirect to one another") || !strings.Contains(err.Error(), topicName) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestLookupThroughAProxy(t *testing.T) {
	bubble(t, func(r *rig) {
		proxy := r.cluster.Broker("a:6650")
		var targets []string
		proxy.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			switch c.GetType() {
			case pulsarpb.BaseCommand_LOOKUP:
				answer := fakebroker.Named(c.GetLookupTopic().GetRequestId(), pulsarpb.CommandLookupTopicResponse_CONNECT, "hidden:6650")
				answer.LookupTopicResponse.ProxyThroughServiceUrl = new(true)
				l.Send(answer)
				return true
			case pulsarpb.BaseCommand_SUBSCRIBE:
				targets = append(targets, l.Connect.GetProxyToBrokerUrl())
			default:
			}
			return false
		}
		r.publish(1)
		r.subscribe()
		r.receive(1)
		if !slices.Equal(targets, []string{"hidden:6650"}) {
			t.Errorf("subscribed through connections to %q, want the hidden broker", targets)
		}
	})
}

func TestHostsAreTriedInTurn(t *testing.T) {
	bubble(t, func(r *rig) {
		b := r.cluster.Broker("b:6650") // a does not exist
		r.publish(1)
		r.subscribe()
		r.receive(1)
		a := r.cluster.Broker("a:6650")
		b.Kill()
		r.publish(1)
		r.receive(2) // the first entry is redelivered
		if a.Dials() != 1 {
			t.Errorf("%d connections to host a, want 1", a.Dials())
		}
	})
}

func TestPartitions(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.cluster.Partition(topicName, 3)
		c := r.open()
		want := []string{topicName + "-partition-0", topicName + "-partition-1", topicName + "-partition-2"}
		if got, err := c.Partitions(r.Context(), topicName); err != nil || !slices.Equal(got, want) {
			t.Errorf("partitions = %q, %v, want %q", got, err, want)
		}
		if got, err := c.Partitions(r.Context(), "other"); err != nil || !slices.Equal(got, []string{"other"}) {
			t.Errorf("partitions of a topic without any = %q, %v", got, err)
		}
		r.cluster.Partition(topicName, partitionsMax+1)
		if _, err := c.Partitions(r.Context(), topicName); err == nil || !strings.Contains(err.Error(), "100001") {
			t.Errorf("with 100001 partitions: %v", err)
		}
	})
}

// A temporary refusal is retried, on a new connection if other brokers may be behind the address. A final refusal is not.
func TestRefusedLookups(t *testing.T) {
	for name, c := range map[string]struct {
		code  pulsarpb.ServerError
		asked int32
		dials int
	}{
		"not ready":      {pulsarpb.ServerError_SERVICE_NOT_READY, 3, 3},
		"many requests":  {pulsarpb.ServerError_TOO_MANY_REQUESTS, 3, 1},
		"metadata":       {pulsarpb.ServerError_METADATA_ERROR, 3, 1},
		"not authorised": {pulsarpb.ServerError_AUTHORIZATION_ERROR, 1, 1},
		"no topic":       {pulsarpb.ServerError_TOPIC_NOT_FOUND, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.cfg.URL = "pulsar://a"
				a := r.cluster.Broker("a:6650")
				var asked int32
				a.Script = func(l *fakebroker.Link, cmd *pulsarpb.BaseCommand) bool {
					if cmd.GetType() != pulsarpb.BaseCommand_PARTITIONED_METADATA {
						return false
					}
					if asked++; asked == 3 {
						return false
					}
					l.Send(&pulsarpb.BaseCommand{
						Type: pulsarpb.BaseCommand_PARTITIONED_METADATA_RESPONSE.Enum(),
						PartitionMetadataResponse: &pulsarpb.CommandPartitionedTopicMetadataResponse{
							RequestId: cmd.GetPartitionMetadata().RequestId, Response: pulsarpb.CommandPartitionedTopicMetadataResponse_FAILED.Enum(),
							Error: &c.code, Message: new("some words"),
						},
					})
					return true
				}
				_, err := r.open().Partitions(r.Context(), topicName)
				var refused *BrokerError
				if (err == nil) != (c.asked == 3) || err != nil && (!errors.As(err, &refused) || refused.Code != c.code || refused.Text != "some words") {
					t.Errorf("err = %v", err)
				}
				if asked != c.asked || a.Dials() != c.dials {
					t.Errorf("asked %d times on %d connections, want %d on %d", asked, a.Dials(), c.asked, c.dials)
				}
			})
		})
	}
}

func TestLookupOfNonsense(t *testing.T) {
	for name, address := range map[string]string{"no port": "", "two hosts": "x:1,y:2", "path": "x:1/y", "user": "u@x:1", "space": "x y:1"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.cluster.Broker("a:6650").Script = redirecting(address)
				if _, err := r.open().Subscribe(r.Context(), r.subscription()); err == nil || !strings.Contains(err.Error(), "look up "+topicName) {
					t.Errorf("err = %v", err)
				}
			})
		})
	}
}

// TestExists: the question creates no topic and leaves no consumer behind.
func TestExists(t *testing.T) {
	bubble(t, func(r *rig) {
		b := r.cluster.Broker("a:6650")
		there := map[string]bool{topicName: true, "parts-partition-0": true}
		b.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			s := c.GetSubscribe()
			switch {
			case c.GetType() == pulsarpb.BaseCommand_PARTITIONED_METADATA:
				t.Error("the broker is asked for partitions, which creates a topic where topics are created with partitions")
			case s != nil && s.GetTopic() == "refused":
				l.Refuse(s.GetRequestId(), pulsarpb.ServerError_AUTHORIZATION_ERROR, "no")
				return true
			case s == nil || there[s.GetTopic()]:
			case s.GetForceTopicCreation() || s.GetDurable():
				t.Errorf("it creates %s, or a subscription", s.GetTopic())
			default:
				l.Refuse(s.GetRequestId(), pulsarpb.ServerError_TOPIC_NOT_FOUND, "Topic does not exist")
				return true
			}
			return false
		}
		client := r.open()
		for topic, want := range map[string]bool{topicName: true, "parts": true, "nothing": false} {
			if got, err := client.Exists(r.Context(), topic); got != want || err != nil {
				t.Errorf("%s exists: %v, %v, want %v", topic, got, err, want)
			}
		}
		if got, err := client.Exists(r.Context(), "refused"); got || err == nil {
			t.Errorf("a topic that one may not read exists: %v, %v, want an error", got, err)
		}
		synctest.Wait()
		if left := r.cluster.Permits(topicName); len(left) != 0 {
			t.Errorf("%d consumers are left", len(left))
		}
	})
}
