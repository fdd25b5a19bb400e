package entries

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

func startAt(s Start) func(*Subscription) {
	return func(sub *Subscription) { sub.Type, sub.Start = Exclusive, &s }
}

// payloadsOf are the payloads of entries, none of which is broken, and the numbers of incomplete messages at chunks.
func payloadsOf(t *testing.T, list []*Delivered) (all []string) {
	t.Helper()
	for _, d := range list {
		if d.Broken != nil {
			t.Errorf("%v is broken: %v", d.ID, d.Broken)
		}
		if d.Waits {
			all = append(all, fmt.Sprint("waits ", d.Unfinished))
			continue
		}
		all = append(all, string(d.Entry.Payload))
	}
	return all
}

// A reader begins where it is told, under a name of its own for each session, and neither acks nor asks for the position of its subscription.
func TestAReaderBeginsWhereItIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		start    Start
		want     []string
		from     wire.ID
		rollback uint64
	}{
		"at the oldest entry": {Start{ID: Earliest}, []string{"m0", "m1", "m2"}, Earliest, 0},
		"at an entry":         {Start{ID: wire.ID{Ledger: 1, Entry: 1}}, []string{"m1", "m2"}, wire.ID{Ledger: 1, Entry: 1}, 0},
		"behind all":          {Start{ID: Latest}, nil, Latest, 0},
		"at a time":           {Start{ID: Latest, Since: time.Date(1999, 12, 31, 23, 58, 59, 0, time.UTC)}, []string{"m0", "m1", "m2"}, Earliest, 62},
		"at a time to come":   {Start{Since: time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)}, []string{"m0", "m1", "m2"}, Earliest, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				var asked []*pulsarpb.CommandSubscribe
				var types []pulsarpb.BaseCommand_Type
				a := r.cluster.Broker("a:6650")
				a.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
					if types = append(types, c.GetType()); c.GetSubscribe() != nil {
						asked = append(asked, c.GetSubscribe())
					}
					return false
				}
				r.cfg.URL = "pulsar://a"
				ids := r.publish(3)
				consumer := r.subscribe(startAt(c.start))
				if got := payloadsOf(t, r.receive(len(c.want))); !slices.Equal(got, c.want) {
					t.Errorf("it reads %q, want %q", got, c.want)
				}
				if end, err := consumer.End(r.Context()); err != nil || end != ids[2] {
					t.Errorf("the end is %v, %v, want %v", end, err, ids[2])
				}
				a.Cut()
				r.nothing()
				consumer.Close()
				first := asked[0]
				if first.GetDurable() || first.GetSubType() != pulsarpb.CommandSubscribe_EXCLUSIVE || idOf(first.GetStartMessageId()) != c.from || first.GetStartMessageRollbackDurationSec() != c.rollback {
					t.Errorf("it subscribes with %v", first)
				}
				if len(asked) < 2 || asked[1].GetSubscription() == first.GetSubscription() {
					t.Errorf("%d subscriptions, the first with the name %q", len(asked), first.GetSubscription())
				}
				if again := asked[1]; len(c.want) > 0 && (idOf(again.GetStartMessageId()) != ids[2] || again.GetStartMessageRollbackDurationSec() != 0) {
					t.Errorf("it subscribes again with %v", again)
				}
				asks := 0
				for _, is := range types {
					if is == pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID {
						asks++
					}
				}
				if slices.Contains(types, pulsarpb.BaseCommand_ACK) || asks != 1 || len(r.cluster.Backlog(topicName)) != 3 {
					t.Errorf("its commands are %v", types)
				}
			})
		})
	}
}

// A reader receives each message once, in the order of their last entries, wherever its connection ends: also one whose chunks lie before and behind what was received.
func TestAReaderAcrossReconnects(t *testing.T) {
	const total = 12
	for received := range total {
		bubble(t, func(r *rig) {
			a := r.cluster.Broker("a:6650")
			r.cfg.URL = "pulsar://a"
			r.publish(1)
			chunk := func(uuid string, number int) {
				r.cluster.Publish(topicName, fakebroker.Chunk(uuid, number, 2, 2*len(uuid)+2, uuid+string(rune('0'+number))), 1)
			}
			chunk("a", 0)
			r.publish(1)
			chunk("b", 0)
			chunk("a", 1) // a is whole
			r.publish(1)
			chunk("dead", 0)
			chunk("b", 1) // b is whole
			r.publish(3)
			chunk("end", 0)
			want := []string{"m0", "waits 1", "m0", "waits 2", "a0a1", "m0", "waits 2", "b0b1", "m0", "m1", "m2", "waits 2"}
			r.subscribe(startAt(Start{ID: Earliest}))
			synctest.Wait() // all are in the queue
			got := payloadsOf(t, r.receive(received))
			a.Cut()
			synctest.Wait() // what is left in the queue is dropped
			got = append(got, payloadsOf(t, r.receive(total-received))...)
			if !slices.Equal(got, want) {
				t.Errorf("a connection that ends behind %d messages: it reads %q, want %q", received, got, want)
			}
			a.Cut()
			r.nothing()
		})
	}
}

// A topic that lacks the newest entry of a reader when it connects again is another one, or was trimmed. The reader of a log ends then; another one continues, unless
// the entries are older.
func TestAReaderOfAReplacedTopic(t *testing.T) {
	for name, c := range map[string]struct {
		change     func(*rig)
		other, log string // the next payload of either reader, or the error
	}{
		"the same":          {func(r *rig) { r.cluster.Trim(topicName, 0) }, "next", "next"},
		"trimmed before it": {func(r *rig) { r.cluster.Trim(topicName, 2) }, "next", "next"},
		"trimmed with it":   {func(r *rig) { r.cluster.Trim(topicName, 3) }, "next", "it begins with {1 3} in place of {1 2}"},
		"made again":        {func(r *rig) { r.cluster.Remake(topicName, 7) }, "next", "it begins with {7 0} in place of {5 2}"},
		"restored":          {func(r *rig) { r.cluster.Remake(topicName, 1) }, "it begins with {1 0} in place of {5 2}", "it begins with {1 0} in place of {5 2}"},
	} {
		for log, want := range map[bool]string{false: c.other, true: c.log} {
			t.Run(fmt.Sprintf("%s/log=%v", name, log), func(t *testing.T) {
				bubble(t, func(r *rig) {
					r.cluster.Broker("a:6650")
					r.cfg.URL = "pulsar://a"
					if name == "made again" || name == "restored" {
						r.cluster.Remake(topicName, 5)
					}
					r.publish(3)
					r.subscribe(startAt(Start{ID: Earliest, Log: log}))
					r.receive(3)
					c.change(r)
					time.Sleep(time.Minute) // it has connected again
					r.cluster.Publish(topicName, fakebroker.Message("next"), 1)
					ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
					defer cancel()
					got := ""
					if list, err := r.queue.Receive(ctx, nil, 1); err == nil {
						got = string(list[0].Entry.Payload)
					} else if got = err.Error(); !errors.Is(err, ErrReplaced) || !errors.Is(err, ErrLost) {
						t.Errorf("the error is %v", err)
					}
					if !strings.HasSuffix(got, want) {
						t.Errorf("then it has %q, want %q", got, want)
					}
					if synctest.Wait(); len(r.cluster.Permits(topicName)) == 1 != (want == "next") {
						t.Errorf("the broker has %d consumers", len(r.cluster.Permits(topicName)))
					}
				})
			})
		}
	}
}

// Of a log each entry counts: the chunks of a message are broken entries of their own, in their order.
func TestAReaderOfALogAssemblesNothing(t *testing.T) {
	bubble(t, func(r *rig) {
		a := r.cluster.Broker("a:6650")
		r.cfg.URL = "pulsar://a"
		var want []wire.ID
		for i := range 3 {
			want = append(want, r.cluster.Publish(topicName, fakebroker.Chunk("u", i, 3, 6, "cc"), 1))
			want = append(want, r.publish(1)...)
		}
		r.subscribe(startAt(Start{ID: Earliest, Log: true}))
		got := r.receive(3)
		a.Cut()
		got = append(got, r.receive(3)...)
		if !slices.Equal(ids(got), want) {
			t.Errorf("it reads %v, want %v", ids(got), want)
		}
		for i, d := range got {
			if chunk := i%2 == 0; (d.Broken != nil) != chunk || chunk && len(d.Raw) == 0 {
				t.Errorf("%v is broken: %v", d.ID, d.Broken)
			}
		}
	})
}

// A reader is at the end of its topic partition when it has received an entry for it, also if that is a chunk of a message that is not whole, or repeats one. It
// needs no more permits than for one entry. A message that began before the reader does not count, and one that is whole later comes then.
func TestAReaderIsAtAnEndOfChunks(t *testing.T) {
	bubble(t, func(r *rig) {
		r.cluster.Broker("a:6650")
		r.cfg.URL = "pulsar://a"
		chunk := func(uuid string, number int) wire.ID {
			return r.cluster.Publish(topicName, fakebroker.Chunk(uuid, number, 3, 3, string(rune('0'+number))), 1)
		}
		r.publish(1)
		chunk("earlier", 0)
		start := chunk("earlier", 1)
		for n := range 3 {
			chunk("whole", n)
		}
		chunk("whole", 0) // resent
		chunk("late", 0)
		last := chunk("late", 1)
		consumer := r.subscribe(startAt(Start{ID: start}), func(sub *Subscription) { sub.Permits = 1 })
		list := r.receive(7)
		want := []string{"waits 0", "waits 1", "waits 1", "012", "waits 0", "waits 1", "waits 1"}
		if got := payloadsOf(t, list); !slices.Equal(got, want) {
			t.Errorf("it reads %q, want %q", got, want)
		}
		if end, err := consumer.End(r.Context()); err != nil || end != last || list[6].ID != end {
			t.Errorf("the end is %v, %v, and the reader at %v", end, err, list[6].ID)
		}
		r.nothing()
		chunk("late", 2)
		if got := r.receive(1)[0]; string(got.Entry.Payload) != "012" || got.Unfinished != 0 {
			t.Errorf("the last chunk shows %q", got.Entry.Payload)
		}
	})
}

// A reader is exclusive: its entries come in their order.
func TestAReaderIsExclusive(t *testing.T) {
	bubble(t, func(r *rig) {
		sub := r.subscription()
		sub.Start = new(Start)
		if _, err := r.open().Subscribe(r.Context(), sub); err == nil || !strings.Contains(err.Error(), "as for a reader") {
			t.Errorf("a shared one has the error %v", err)
		}
	})
}

// A reader ends when its topic moves to another cluster, whose ids are others: none of its entries is taken for one that was received.
func TestAReaderEndsWithItsCluster(t *testing.T) {
	bubble(t, func(r *rig) {
		var link *fakebroker.Link
		var consumer uint64
		r.cluster.Broker("green:6650")
		r.cluster.Broker("a:6650").Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() == pulsarpb.BaseCommand_SUBSCRIBE {
				link, consumer = l, c.GetSubscribe().GetConsumerId()
			}
			return false
		}
		r.cfg.URL = "pulsar://a"
		r.publish(2)
		r.subscribe(startAt(Start{ID: Earliest}))
		r.receive(2)
		link.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_TOPIC_MIGRATED.Enum(), TopicMigrated: &pulsarpb.CommandTopicMigrated{
			ResourceId: &consumer, ResourceType: pulsarpb.CommandTopicMigrated_CONSUMER.Enum(),
			BrokerServiceUrl: new("pulsar://green"), BrokerServiceUrlTls: new(""),
		}})
		if err := r.lost(); !errors.Is(err, errMoved) {
			t.Errorf("it ends with %v", err)
		}
	})
}
