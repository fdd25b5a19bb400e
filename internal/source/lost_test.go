package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// refusing is a source of the topics a and b. Its broker may refuse one of its topics.
type refusing struct {
	*Source

	t       *testing.T
	cluster *fakebroker.Cluster
	broker  *fakebroker.Broker
	refused atomic.Pointer[string] // topic
	text    string                 // of the refusal
	begun   *Begun
	log     strings.Builder // guarded by the handler of the log
	got     chan event.Message
	ended   chan error
	stop    context.CancelFunc
}

// refuses runs a test in a bubble, with a broker that has one answer for the topics that it refuses.
func refuses(t *testing.T, code pulsarpb.ServerError, test func(*refusing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &refusing{t: t, cluster: fakebroker.New(), text: "not this topic", begun: new(Begun), got: make(chan event.Message, 10)}
		defer r.cluster.Close()
		r.broker = r.cluster.Broker("a:6650")
		r.broker.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			refused := r.refused.Load()
			for topic, request := range map[*string]*uint64{
				new(c.GetSubscribe().GetTopic()):         new(c.GetSubscribe().GetRequestId()),
				new(c.GetLookupTopic().GetTopic()):       new(c.GetLookupTopic().GetRequestId()),
				new(c.GetPartitionMetadata().GetTopic()): new(c.GetPartitionMetadata().GetRequestId()),
			} {
				if refused != nil && *topic == *refused {
					l.Refuse(*request, code, r.text)
					return true
				}
			}
			return false
		}
		test(r)
		r.end()
	})
}

// start runs the next source of the process.
func (r *refusing) start() {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription, cfg.FromEarliest = []string{"a", "b"}, "s", true
	r.Source = newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(&r.log, nil)),
		func(ctx context.Context, cfg Config, _ int, log *slog.Logger) (connection, error) {
			access := entries.Access{Dial: r.cluster.Dial}
			reader, err := newEntryReader(cfg, entriesConfig(cfg, &pulsar.ClientOptions{URL: "pulsar://a:6650"}), access, entries.NewMetrics(prometheus.NewRegistry()), log)
			if err != nil {
				return nil, err
			}
			p := newPulsarConnection(cfg, reader, &sdk{client: &fakeClient{}}, nil, r.metrics, log)
			p.discovery.begun = r.begun
			if err := p.discovery.start(ctx); err != nil {
				p.close()
				return nil, err
			}
			return p, nil
		})
	ctx, cancel := context.WithCancel(r.t.Context())
	r.stop, r.ended = cancel, make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() { r.ended <- r.Run(ctx, r) })
}

// end ends the source, which must be running.
func (r *refusing) end() {
	r.t.Helper()
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Errorf("Run = %v", err)
	}
}

func (r *refusing) Received(_ context.Context, batch []*event.Entry) {
	for _, e := range batch {
		for i := range e.Fresh.All() {
			r.got <- e.Message(i)
		}
	}
}

func (*refusing) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	return append(dst, make([]*event.Event, len(handles))...)
}

func (*refusing) Drop([]event.Handle, event.Drop) {}

// publish publishes an event.
func (r *refusing) publish(topic, payload string) {
	r.cluster.Publish(FullTopicName(topic), fakebroker.Message(payload), 1)
}

// take returns the next event, and checks its payload.
func (r *refusing) take(want string) event.Message {
	r.t.Helper()
	select {
	case m := <-r.got:
		if got := string(m.Event.Payload); got != want {
			r.t.Errorf("received %q, want %q", got, want)
		}
		return m
	case err := <-r.ended:
		r.ended <- err
		r.t.Fatalf("the source has ended instead of receiving %q: %v", want, err)
	case <-time.After(time.Hour): // of the bubble
		r.t.Fatalf("%q does not come", want)
	}
	panic("not reached")
}

func (r *refusing) done(m event.Message) {
	r.Settle(nil, []event.Verdict{{Handle: m.Event.Handle, Kind: event.Done}})
	synctest.Wait()
}

// refuse withdraws a topic that is read, and unloads it.
func (r *refusing) refuse(topic string) {
	name := FullTopicName(topic)
	r.refused.Store(&name)
	r.cluster.Move(name, r.broker, false)
}

// A topic that the broker refuses, or that was deleted, does not keep the router from the other topics. The log and the status name it, and it is
// read again when that is possible: with the events whose acks were lost.
func TestTheOtherTopicsAreReadWithoutALostOne(t *testing.T) {
	for _, code := range []pulsarpb.ServerError{pulsarpb.ServerError_AUTHORIZATION_ERROR, pulsarpb.ServerError_TOPIC_NOT_FOUND} {
		refuses(t, code, func(r *refusing) {
			r.start()
			r.publish("b", "b1")
			open := r.take("b1")
			r.refuse("b")
			r.publish("b", "b2")
			time.Sleep(time.Minute)
			for range 3 {
				r.publish("a", "a")
				r.done(r.take("a"))
			}
			unread := r.Unread()
			if why := unread[FullTopicName("b")]; len(unread) != 1 || why == nil || !strings.Contains(why.Error(), "not this topic") {
				r.t.Errorf("not read are %v, want b and the broker's words", unread)
			}
			if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 || !strings.Contains(r.log.String(), `it is tried again" component=source topic=persistent://public/default/b `) {
				r.t.Errorf("%d errors in the log, want one that names the topic:\n%s", n, r.log.String())
			}
			if n := testutil.ToFloat64(r.metrics.topicPartitions); n != 3 {
				r.t.Errorf("%v topic partitions are read, want a, the retry topic and the timer topic", n)
			}
			if _, known, err := r.Ends(r.t.Context()); !known || err != nil {
				r.t.Errorf("the ends of the other topics: %v", err)
			}
			r.done(open)
			r.refused.Store(nil)
			time.Sleep(lostAgainMax)
			synctest.Wait()
			r.done(r.take("b1")) // again: its ack had no consumer
			r.done(r.take("b2"))
			time.Sleep(time.Second) // acks go out in groups
			synctest.Wait()
			if left := r.cluster.Backlog(FullTopicName("b")); len(left) > 0 {
				r.t.Errorf("%v are not acked", left)
			}
			if unread := r.Unread(); unread != nil {
				r.t.Errorf("not read are %v, want none", unread)
			}
			if n := testutil.ToFloat64(r.metrics.topicPartitions); n != 4 {
				r.t.Errorf("%v topic partitions are read, want 4", n)
			}
		})
	}
}

// An event of a lost topic that its handler still has is not handed on a second time when the topic is read again, and is acked then.
func TestAnOpenEventOfALostTopicIsJoined(t *testing.T) {
	refuses(t, pulsarpb.ServerError_AUTHORIZATION_ERROR, func(r *refusing) {
		r.start()
		r.publish("b", "b1")
		open := r.take("b1")
		r.refuse("b")
		time.Sleep(time.Minute)
		r.refused.Store(nil)
		time.Sleep(lostAgainMax)
		synctest.Wait()
		r.done(open)
		time.Sleep(time.Second)
		synctest.Wait()
		if left := r.cluster.Backlog(FullTopicName("b")); len(left) > 0 || len(r.got) > 0 {
			r.t.Errorf("%v are not acked, and %d events came twice", left, len(r.got))
		}
	})
}

// A router that starts with a topic that it may not read says so and reads nothing. One that has read it continues without it, if its source begins
// anew for another reason.
func TestADeniedTopicAtTheStart(t *testing.T) {
	refuses(t, pulsarpb.ServerError_AUTHORIZATION_ERROR, func(r *refusing) {
		denied := FullTopicName("b")
		r.refused.Store(&denied)
		r.start()
		if err := <-r.ended; err == nil || !strings.Contains(err.Error(), "b: ") || !strings.Contains(err.Error(), "grant the router's role") {
			r.t.Errorf("Run = %v, want an error that names the topic and the remedy", err)
		}
		r.refused.Store(nil)
		r.start()
		<-r.Ready()
		r.end()
		r.refused.Store(&denied)
		r.start()
		r.publish("a", "a")
		r.done(r.take("a"))
		if why := r.Unread()[denied]; why == nil {
			r.t.Error("the denied topic counts as read")
		}
		r.refused.Store(nil)
		r.publish("b", "b")
		r.done(r.take("b"))
	})
}

// Timers are refused while their topic cannot be read, and set again later. Events are not affected.
func TestALostTimerTopic(t *testing.T) {
	refuses(t, pulsarpb.ServerError_AUTHORIZATION_ERROR, func(r *refusing) {
		r.start()
		<-r.Ready()
		r.refuse("a-s-TIMER")
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := r.Source.broker.timers(); err == nil {
			r.t.Error("timers can be set")
		}
		r.publish("a", "a")
		r.done(r.take("a"))
		r.refused.Store(nil)
		time.Sleep(lostAgainMax)
		synctest.Wait()
		if err := r.Source.broker.timers(); err != nil {
			r.t.Errorf("timers cannot be set again: %v", err)
		}
	})
}

// A broker that does not answer the lookup of the timer topic, as in an outage, ends no timers: its partitions are read when the broker is back, and
// until the next lookup nothing else would permit timers again.
func TestTimersContinueWithoutALookup(t *testing.T) {
	refuses(t, pulsarpb.ServerError_SERVICE_NOT_READY, func(r *refusing) {
		r.start()
		<-r.Ready()
		r.refused.Store(new(FullTopicName("a-s-TIMER")))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if err := r.Source.broker.timers(); err != nil {
			r.t.Errorf("timers cannot be set: %v", err)
		}
		if got := r.log.String(); strings.Contains(got, "level=ERROR") || !strings.Contains(got, "cannot look up new topic partitions") {
			r.t.Errorf("the log is\n%s, want the failed lookup as a warning", got)
		}
	})
}

// A subscription that has got consumers of another type ends the source, as at the start: the settings are wrong.
func TestALostTopicWithConsumersOfAnotherType(t *testing.T) {
	refuses(t, pulsarpb.ServerError_CONSUMER_BUSY, func(r *refusing) {
		r.text = "Subscription is of different type"
		r.start()
		<-r.Ready()
		r.refuse("b")
		if err := <-r.ended; !errors.Is(err, errLost) {
			r.t.Errorf("Run = %v, want %v", err, errLost)
		}
		r.refused.Store(nil)
		r.start()
		<-r.Ready()
	})
}

// A topic that is lost repeatedly is read each time that it can be, and keeps no memory of the consumers that it has had.
func TestATopicThatIsLostRepeatedly(t *testing.T) {
	refuses(t, pulsarpb.ServerError_AUTHORIZATION_ERROR, func(r *refusing) {
		r.start()
		<-r.Ready()
		for i := range 10 {
			payload := fmt.Sprint("b", i)
			r.publish("b", payload)
			r.done(r.take(payload))
			time.Sleep(time.Second) // acks go out in groups
			r.refuse("b")
			time.Sleep(time.Minute)
			r.refused.Store(nil)
			time.Sleep(lostAgainMax)
		}
		r.publish("b", "last")
		r.done(r.take("last"))
		reader := r.Source.broker.(*pulsarConnection).reader.(*entryReader)
		if len(reader.origins) != 1 || len(reader.consumers) != 4 {
			r.t.Errorf("%d origins of events and %d consumers, want that of b, and those of a, b, the retry topic and the timer topic", len(reader.origins), len(reader.consumers))
		}
	})
}

// The acks of a lost topic are refused, each of them. The log says so once in ten seconds.
func TestTheAcksOfALostTopicAreOneLine(t *testing.T) {
	refuses(t, pulsarpb.ServerError_AUTHORIZATION_ERROR, func(r *refusing) {
		const events = 200
		r.got = make(chan event.Message, events)
		r.start()
		for range events {
			r.publish("b", "b")
		}
		var open []event.Message
		for range events {
			open = append(open, r.take("b"))
		}
		r.refuse("b")
		time.Sleep(time.Minute)
		for _, m := range open {
			r.done(m)
		}
		if n := strings.Count(r.log.String(), "ack refused"); n < 1 || n > events/10 { // the clock of these ten seconds is not the bubble's
			r.t.Errorf("%d lines, want one", n)
		}
	})
}

// A source tells the ends of the other topics beside a lost one, also while its sink is busy and it does not know of the loss yet. The lost topic has no known end:
// it is named all the same, since ids of finished events are admitted only before the ends of all topics.
func TestTheEndsBesideALostTopic(t *testing.T) {
	refuses(t, pulsarpb.ServerError_AUTHORIZATION_ERROR, func(r *refusing) {
		r.start()
		n := cap(r.got) + 1
		for range n {
			r.publish("a", "a")
		}
		synctest.Wait()
		r.refuse("b")
		time.Sleep(time.Minute)
		wantEnds := func() {
			r.t.Helper()
			ends, _, err := r.Ends(r.t.Context())
			lost := slices.DeleteFunc(slices.Clone(ends), func(e End) bool { return e.Topic != FullTopicName("b") })
			if err != nil || len(ends) != 4 || !slices.Equal(lost, []End{unknownEnd(FullTopicName("b"), -1)}) {
				r.t.Errorf("ends %v and %v, want those of a, the retry topic and the timer topic, and an unknown one of b", ends, err)
			}
		}
		if r.Unread() != nil {
			r.t.Error("the source knows of the loss")
		}
		wantEnds()
		for range n {
			r.done(r.take("a"))
		}
		if r.Unread() == nil {
			r.t.Error("the source does not know of the loss")
		}
		wantEnds()
	})
}

// A topic that is lost at the start of a source is known by the partitions that an earlier source has read.
func TestTheEndsOfATopicThatIsLostAtTheStart(t *testing.T) {
	d := fakeLink(&fakeClient{}).discovery
	topic := FullTopicName("t")
	for n := range 2 {
		d.begun.add(fmt.Sprint(topic, "-partition-", n))
	}
	d.begun.add(FullTopicName("other"))
	d.lose(topic, errors.New("refused"))
	if names := d.unreadPartitions(); len(names) != 2 || !isOf(names[0], topic) || !isOf(names[1], topic) {
		t.Errorf("the topic partitions %v, want two of %s", names, topic)
	}
}

// endsOf is a reader whose ends a test gives.
type endsOf struct {
	fakeReader
	give func() []End
}

func (r *endsOf) ends(context.Context) ([]End, error) { return r.give(), nil }

// A topic partition that is read again while the reader asks for ends is not among those that it asks. It is named once if it is lost for all that time.
func TestTheEndsWhileALostTopicComesBack(t *testing.T) {
	for name, comes := range map[string]bool{"it comes back": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			lost, reader := FullTopicName("t")+"-partition-1", new(endsOf)
			reader.names = func(string) ([]string, error) { return nil, nil }
			p := fakeLinkOf(&fakeClient{}, reader)
			p.discovery.begun.add(lost)
			p.discovery.lose(lost, errors.New("refused"))
			reader.give = func() []End {
				if comes && !p.discovery.enter(lost, p.discovery.whyUnread(lost)) {
					t.Error("it is not read again")
				}
				return nil
			}
			if ends, known, err := p.ends(t.Context()); err != nil || !known || !slices.Equal(ends, []End{unknownEnd(FullTopicName("t"), 1)}) {
				t.Errorf("the ends %v, %t, %v", ends, known, err)
			}
		})
	}
}

// A topic partition that is added while the reader asks for ends, or that is not read yet, is named: ids of finished events are admitted only before the
// ends of all topic partitions of their number. Those that are read are named once, also in another cluster.
func TestTheEndsWhileATopicPartitionIsAdded(t *testing.T) {
	reader, topic := new(endsOf), FullTopicName("t")
	p := fakeLinkOf(&fakeClient{}, reader)
	names := []string{topic + "-partition-0"}
	timers := p.outlets.cfg.TimerTopic()
	reader.names = func(of string) ([]string, error) {
		switch of {
		case topic:
			return names, nil
		case timers:
			return []string{timers}, nil
		}
		return nil, nil
	}
	first := End{Topic: topic, Partition: marked(0, 7), Last: EntryID{Ledger: 5, Entry: 1}}
	reader.give = func() []End {
		names = append(names, topic+"-partition-1")
		return []End{first}
	}
	if ends, known, err := p.ends(t.Context()); err != nil || !known || !slices.Equal(ends, []End{first, unknownEnd(topic, 1)}) {
		t.Errorf("the ends %v, %t, %v, want an unknown one of the topic partition that was added", ends, known, err)
	}
	p.discovery.begun.add(timers) // it was read once
	if ends, _, err := p.ends(t.Context()); err != nil || !slices.Contains(ends, unknownEnd(timers, -1)) {
		t.Errorf("the ends %v, %v, want an unknown one of the timer topic", ends, err)
	}
	reader.names = func(string) ([]string, error) { return nil, context.DeadlineExceeded }
	if ends, _, err := p.ends(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the ends %v and %v without an answer about topic partitions, want its error", ends, err)
	}
}

// Of a topic that is read in part only the lost partition has no known end.
func TestTheEndsOfALostTopicPartition(t *testing.T) {
	d := fakeLink(&fakeClient{}).discovery
	lost := FullTopicName("t-partition-1")
	for _, name := range []string{FullTopicName("t-partition-0"), lost, FullTopicName("t-partition-10")} {
		d.begun.add(name)
	}
	d.lose(lost, errors.New("refused"))
	if names := d.unreadPartitions(); !slices.Equal(names, []string{lost}) {
		t.Errorf("the topic partitions %v, want %s", names, lost)
	}
}

// A topic partition that cannot be read at the start ends the source, unless the broker refuses one that this process has read.
func TestATopicPartitionThatCannotBeReadAtTheStart(t *testing.T) {
	topic, broken := FullTopicName("t"), errors.New("broken")
	denied := &entries.BrokerError{Code: pulsarpb.ServerError_AUTHORIZATION_ERROR}
	for name, c := range map[string]struct {
		begun bool
		fails error
		ends  bool
	}{"another error": {false, broken, true}, "refused": {false, denied, true}, "refused, and read before": {true, denied, false}} {
		t.Run(name, func(t *testing.T) {
			reader := &fakeReader{
				names: func(topic string) ([]string, error) { return []string{topic}, nil },
				attach: func(s subscription) error {
					if s.topic == topic {
						return c.fails
					}
					return nil
				},
			}
			p := fakeLinkOf(&fakeClient{}, reader)
			if c.begun {
				p.discovery.begun.add(topic)
			}
			defer p.close()
			if err := p.discovery.start(t.Context()); (err != nil) != c.ends || c.ends && !errors.Is(err, c.fails) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// A lost topic is tried again ever more slowly, and the broker is asked as seldom as before when it is read again.
func TestALostTopicIsTriedEverMoreSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := FullTopicName("t")
		var asked atomic.Int32
		var refused atomic.Bool
		reader := &fakeReader{attach: func(s subscription) error {
			if s.topic == topic && refused.Load() {
				return errors.New("refused")
			}
			return nil
		}}
		reader.names = func(of string) ([]string, error) {
			if of == topic {
				asked.Add(1)
			}
			return []string{of}, nil
		}
		p := fakeLinkOf(&fakeClient{}, reader)
		if err := p.discovery.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer p.close()
		inAnHour := func() int32 {
			before := asked.Load()
			time.Sleep(time.Hour)
			synctest.Wait()
			return asked.Load() - before
		}
		refused.Store(true)
		p.discovery.lose(topic, errors.New("refused"))
		if n := inAnHour(); n > int32(2*time.Hour/lostAgainMax) {
			t.Errorf("it is asked for %d times in an hour while it is lost", n)
		}
		refused.Store(false)
		time.Sleep(p.discovery.cfg.DiscoverEvery)
		if n := inAnHour(); p.discovery.unreadTopics() != nil || n > int32(time.Hour/p.discovery.cfg.DiscoverEvery)+1 {
			t.Errorf("it is asked for %d times in an hour when it is read again; not read are %v", n, p.discovery.unreadTopics())
		}
	})
}

// The loss of a topic partition is forgotten when the topic has it no longer, and not before.
func TestLossesOfTopicPartitionsThatAreGone(t *testing.T) {
	d := fakeLink(&fakeClient{}).discovery
	gone, there, other := FullTopicName("t-partition-0"), FullTopicName("t-partition-1"), FullTopicName("other")
	for _, name := range []string{gone, there, other} {
		d.lose(name, errors.New("refused"))
	}
	d.forgetGone(FullTopicName("t"), []string{there})
	if d.whyUnread(gone) != nil || d.whyUnread(there) == nil || d.whyUnread(other) == nil {
		t.Errorf("not read are %v", d.unread)
	}
	d.lose(gone, errors.New("refused"))
	d.reader = &fakeReader{names: func(string) ([]string, error) { return []string{there}, nil }, attach: func(subscription) error { return nil }}
	if err := d.look(t.Context(), FullTopicName("t")); err != nil || d.whyUnread(gone) != nil {
		t.Errorf("not read are %v, %v", d.unread, err)
	}
}

// A topic partition that is lost again just before it counts as read does not count as read: nothing would try it again.
func TestATopicPartitionThatIsLostWhileItIsEntered(t *testing.T) {
	d := fakeLink(&fakeClient{}).discovery
	before := d.whyUnread("t")
	d.lose("t", errors.New("refused"))
	if d.enter("t", before) || d.isRead("t") || d.whyUnread("t") == nil {
		t.Error("the lost topic partition counts as read")
	}
	if !d.enter("t", d.whyUnread("t")) || d.whyUnread("t") != nil {
		t.Error("the topic partition cannot be read again")
	}
}

// Timers are refused at once when their topic is lost, not only when it cannot be read at the next attempt, and for no other topic.
func TestTimersAreRefusedAtOnce(t *testing.T) {
	d := fakeLink(&fakeClient{}).discovery
	why := errors.New("refused")
	d.lose("t", why)
	if err := d.timers(); err != nil {
		t.Errorf("without another topic: %v", err)
	}
	d.lose(d.cfg.TimerTopic(), why)
	if err := d.timers(); !errors.Is(err, why) {
		t.Errorf("without their topic: %v", err)
	}
}

// A lost topic partition is tried again soon, also while others are lost one after the other.
func TestLossesDoNotPutOffTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &fakeReader{
			names: func(topic string) ([]string, error) {
				return []string{topic + "-partition-0", topic + "-partition-1"}, nil
			},
			attach: func(subscription) error { return nil },
		}
		p := fakeLinkOf(&fakeClient{}, reader)
		if err := p.discovery.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer p.close()
		first := FullTopicName("t-partition-0")
		p.discovery.lose(first, errors.New("refused"))
		for range 10 {
			time.Sleep(300 * time.Millisecond)
			p.discovery.lose(FullTopicName("t-partition-1"), errors.New("refused"))
		}
		synctest.Wait()
		if !p.discovery.isRead(first) {
			t.Error("the topic partition was not tried in three seconds")
		}
	})
}

// The reason why the many partitions of a topic cannot be read is told once, not for each of them.
func TestTheReasonForManyTopicPartitionsIsShort(t *testing.T) {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprint(FullTopicName("t"), "-partition-", i))
	}
	reader := &fakeReader{
		names:  func(string) ([]string, error) { return names, nil },
		attach: func(subscription) error { return errors.New("refused") },
	}
	err := fakeLinkOf(&fakeClient{}, reader).discovery.look(t.Context(), FullTopicName("t"))
	if err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "refused (and 99 more topic partitions)") {
		t.Errorf("%v, want one reason", err)
	}
}

// A topic that was deleted does not hide the broker's limits, which are those of the other topics then.
func TestTheLimitsBesideALostTopic(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/admin/v2/persistent/public/default/t/") {
			http.Error(w, "no such topic", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("70"))
	}))
	defer server.Close()
	p := fakeLink(&fakeClient{})
	p.discovery.cfg.AdminURL = server.URL
	if l, _, err := p.limits(t.Context()); err == nil {
		t.Errorf("limits %v without those of a topic that is read", l)
	}
	p.discovery.lose(FullTopicName("t"), errors.New("deleted"))
	if l, _, err := p.limits(t.Context()); err != nil || l.unackedConsumer != 70 || l.unackedSubscription != 70 {
		t.Errorf("limits %v and %v, want those of the retry topic", l, err)
	}
	p.discovery.lose(p.outlets.cfg.RetryTopic, errors.New("refused"))
	if l, _, err := p.limits(t.Context()); err != nil || l.unackedConsumer != 70 {
		t.Errorf("limits %v and %v, want those that the broker tells", l, err)
	}
	server.Close()
	if l, _, err := p.limits(t.Context()); err == nil {
		t.Errorf("limits %v without an answer", l)
	}
}

// A topic of which some partitions are read is not lost as a whole.
func TestATopicThatIsReadInPart(t *testing.T) {
	var names []string
	reader := &fakeReader{
		names: func(topic string) ([]string, error) {
			if topic != FullTopicName("t") {
				return []string{topic}, nil
			}
			return names, nil
		},
		attach: func(subscription) error { return nil },
	}
	for i := range 2 {
		names = append(names, fmt.Sprint(FullTopicName("t"), "-partition-", i))
	}
	p := fakeLinkOf(&fakeClient{}, reader)
	if err := p.discovery.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer p.close()
	refused := errors.New("refused")
	for i, name := range names {
		p.discovery.lose(name, refused)
		if why := p.unreadTopics()[FullTopicName("t")]; !errors.Is(why, refused) || errors.Is(why, ErrPartlyRead) != (i == 0) {
			t.Errorf("after %d lost partitions of 2: %v", i+1, why)
		}
	}
}

// A topic with partitions that was deleted counts as lost until it can be read again, also if the broker takes its name for a topic without partitions.
func TestATopicThatHasLostItsPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topic := FullTopicName("t")
		var gone atomic.Bool
		reader := &fakeReader{
			names: func(name string) ([]string, error) {
				if name == topic && !gone.Load() {
					return []string{name + "-partition-0"}, nil
				}
				return []string{name}, nil
			},
			attach: func(s subscription) error {
				if s.topic == topic && gone.Load() {
					return errors.New("no such topic")
				}
				return nil
			},
		}
		p := fakeLinkOf(&fakeClient{}, reader)
		if err := p.discovery.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer p.close()
		gone.Store(true)
		p.discovery.lose(topic+"-partition-0", errors.New("no such topic"))
		time.Sleep(time.Hour)
		synctest.Wait()
		if p.unreadTopics()[topic] == nil {
			t.Error("the deleted topic counts as read")
		}
		gone.Store(false)
		time.Sleep(lostAgainMax)
		synctest.Wait()
		if why := p.unreadTopics(); why != nil {
			t.Errorf("not read are %v", why)
		}
	})
}

// A source that has ended says so when it is asked for the ends: the broker has not failed to answer.
func TestAnEndedSourceKnowsNoEnds(t *testing.T) {
	refuses(t, pulsarpb.ServerError_AUTHORIZATION_ERROR, func(r *refusing) {
		r.start()
		synctest.Wait()
		if ends, known, err := r.Ends(r.t.Context()); err != nil || !known || len(ends) != 4 {
			r.t.Errorf("ends of a source that reads: %v, %v, %v", ends, known, err)
		}
		r.end()
		if ends, known, err := r.Ends(r.t.Context()); !errors.Is(err, ErrNotReading) || !known || ends != nil {
			r.t.Errorf("ends of one that has ended: %v, %v, %v", ends, known, err)
		}
		r.start()
	})
}
