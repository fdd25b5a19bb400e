package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// fakeClient is a client whose calls are functions of the test.
type fakeClient struct {
	pulsar.Client
	subscribe func(pulsar.ConsumerOptions) (pulsar.Consumer, error)
	produce   func(pulsar.ProducerOptions) (pulsar.Producer, error)
	closed    atomic.Int32
}

func (c *fakeClient) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	return c.subscribe(o)
}

func (c *fakeClient) TopicPartitions(topic string) ([]string, error) { return []string{topic}, nil }

func (c *fakeClient) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	return c.produce(o)
}

func (c *fakeClient) Close() { c.closed.Add(1) }

type fakeConsumer struct{ pulsar.Consumer }

func (*fakeConsumer) Close() {}

// fakeProducer answers a copy by a function of the test.
type fakeProducer struct {
	pulsar.Producer
	answer func(*pulsar.ProducerMessage, func(error))
	closed atomic.Int32
}

func (f *fakeProducer) SendAsync(_ context.Context, m *pulsar.ProducerMessage, done func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	f.answer(m, func(err error) { done(nil, m, err) })
}

func (f *fakeProducer) Close() { f.closed.Add(1) }

// answering is a producer that answers every copy alike.
func answering(err error) *fakeProducer {
	return &fakeProducer{answer: func(_ *pulsar.ProducerMessage, done func(error)) { done(err) }}
}

// fakeReader is a reader whose topics are functions of the test.
type fakeReader struct {
	reader
	names  func(topic string) ([]string, error)
	attach func(subscription) error
	closed int
}

func (r *fakeReader) partitions(_ context.Context, topic string) ([]string, error) {
	return r.names(topic)
}

func (r *fakeReader) subscribe(_ context.Context, s subscription) error { return r.attach(s) }
func (r *fakeReader) fetchAhead(string, int)                            {}

func (r *fakeReader) close() { r.closed++ }

func fakeLink(client *fakeClient) *pulsarConnection { return fakeLinkOf(client, &fakeReader{}) }

func fakeLinkOf(client *fakeClient, reader reader) *pulsarConnection {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	return newPulsarConnection(cfg.Resolved(), reader, &sdk{client: client}, nil, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
}

// A broker that does not answer does not delay a source that is stopped. The late result of the call
// is undone, and only then the client is closed.
func TestCallsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		late := answering(nil)
		client := &fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
			<-answer
			return late, nil
		}}
		p := fakeLink(client)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		var err error
		p.send(ctx, outgoing{topic: p.outlets.cfg.RetryTopic}, func(e error) { err = e })
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took != time.Second {
			t.Errorf("sending ended with %v after %v, want %v after 1s", err, took, context.Canceled)
		}
		p.close()
		if n := client.closed.Load(); n != 0 {
			t.Error("the client was closed under a call")
		}
		close(answer)
		synctest.Wait()
		if late.closed.Load() != 1 || client.closed.Load() != 1 {
			t.Errorf("a late producer was closed %d times, the client %d times, want once each", late.closed.Load(), client.closed.Load())
		}
		if _, err := await(t.Context(), p.outlets.sdk, func() (int, error) { return 1, nil }, func(int) {}); !errors.Is(err, errClosed) {
			t.Errorf("a call after close: %v, want %v", err, errClosed)
		}
	})
}

// sendOne sends a copy and returns how it ended, errPending if it has not.
func sendOne(t *testing.T, p *pulsarConnection, topic string) error {
	t.Helper()
	err := errPending
	p.send(t.Context(), outgoing{topic: topic, payload: []byte("x")}, func(e error) { err = e })
	return err
}

var errPending = errors.New("no answer")

// A copy that is confirmed after it has timed out is safe, and its end is told again. One that fails then has failed once. Both, and one whose producer was closed, count as
// not answered.
func TestALateConfirmationOfACopyIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answer func(error)
		p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
			return &fakeProducer{answer: func(_ *pulsar.ProducerMessage, done func(error)) { answer = done }}, nil
		}})
		for _, test := range []struct {
			late error
			want []error
		}{
			{nil, []error{pulsarsend.ErrTimeout, nil}},
			{errors.New("refused"), []error{pulsarsend.ErrTimeout}},
		} {
			var ends []error
			p.send(t.Context(), outgoing{topic: p.outlets.cfg.RetryTopic, payload: []byte("x")}, func(err error) { ends = append(ends, err) })
			time.Sleep(p.outlets.cfg.CopyTimeout)
			synctest.Wait()
			answer(test.late)
			synctest.Wait()
			if len(ends) != len(test.want) || !errors.Is(ends[0], test.want[0]) || ends[len(ends)-1] != nil && len(test.want) > 1 {
				t.Errorf("after a late %v the ends are %v, want %v", test.late, ends, test.want)
			}
			if u, is := errors.AsType[*unanswered](ends[0]); !is || u.by == nil {
				t.Errorf("%v counts as an answer", ends[0])
			}
		}
		var end error
		p.send(t.Context(), outgoing{topic: p.outlets.cfg.RetryTopic}, func(err error) { end = err })
		answer(pulsar.ErrProducerClosed)
		if _, is := errors.AsType[*unanswered](end); !is {
			t.Errorf("%v counts as an answer", end)
		}
	})
}

// closing counts its ends.
type closing struct {
	pulsar.Consumer
	closed atomic.Int32
}

func (c *closing) Close() { c.closed.Add(1) }

// A copy is an entry of its own, may be larger than its original, and blocks nobody. The topics that may have no reader for long have a subscription from their
// beginning before a copy is sent, and another router may have it at the time.
func TestCopiesAsTheClientIsAskedToSendThem(t *testing.T) {
	for topic, kept := range map[string]bool{"t-s-RETRY": false, "t-s-DLQ": true, "t-s-PARKED": true, "t-s-TIMER": false} {
		for refusal, busy := range map[string]error{"": nil, "busy": errors.New("server error: ConsumerBusy: Exclusive consumer is already connected"), "many": errors.New("server error: ConsumerBusy: Topic reached max consumers limit"), "shared": errors.New("Subscription is of different type")} {
			consumer, subscribed := new(closing), 0
			var sent *pulsar.ProducerMessage
			p := fakeLink(&fakeClient{
				produce: func(o pulsar.ProducerOptions) (pulsar.Producer, error) {
					if o.Topic != FullTopicName(topic) || !o.DisableBatching || !o.EnableChunking || !o.DisableBlockIfQueueFull || o.SendTimeout != pulsarsend.NoTimeout || o.MaxPendingMessages < 2*DefaultConfig().CopiesMax {
						t.Errorf("%s: the producer is asked for with %+v", topic, o)
					}
					if kept != (subscribed > 0) {
						t.Errorf("%s: the subscription is made %d times before", topic, subscribed)
					}
					return &fakeProducer{answer: func(m *pulsar.ProducerMessage, done func(error)) { sent = m; done(nil) }}, nil
				},
				subscribe: func(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
					if subscribed++; o.Topic != FullTopicName(topic) || o.Type != pulsar.Exclusive || o.SubscriptionInitialPosition != pulsar.SubscriptionPositionEarliest || !o.EnableZeroQueueConsumer {
						t.Errorf("%s: subscribed with %+v", topic, o)
					}
					if busy != nil {
						return nil, busy
					}
					return consumer, nil
				},
			})
			if err := sendOne(t, p, FullTopicName(topic)); err != nil || sent == nil || !sent.EventTime.IsZero() {
				t.Errorf("%s: %+v is sent, %v", topic, sent, err)
			}
			if closed := int(consumer.closed.Load()); busy == nil && closed != subscribed {
				t.Errorf("%s %s: of %d consumers %d were closed", topic, refusal, subscribed, closed)
			}
			p.send(t.Context(), outgoing{topic: FullTopicName(topic), eventTime: 5000, delay: time.Minute, key: "k", orderingKey: "o"}, func(error) {})
			if !sent.EventTime.Equal(time.UnixMilli(5000)) || sent.DeliverAfter != time.Minute || sent.Key != "k" || sent.OrderingKey != "o" {
				t.Errorf("%s: %+v is sent", topic, sent)
			}
		}
	}
}

// The client closes a producer for good when its topic is gone as it reconnects. The next
// copy gets another one; after any other failure it has the same.
func TestAProducerThatTheClientGaveUpIsMadeAnew(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		anew bool
	}{
		"no topic":   {errors.Join(pulsar.ErrTopicNotfound, errors.New("TopicNotFound")), true},
		"terminated": {errors.Join(pulsar.ErrTopicTerminated, errors.New("TopicTerminatedError")), true},
		"fenced":     {errors.Join(pulsar.ErrProducerFenced, errors.New("ProducerFenced")), true},
		"closed":     {pulsar.ErrProducerClosed, true},
		"too large":  {pulsar.ErrMessageTooLarge, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := answering(c.err), answering(nil)
				producers := []*fakeProducer{first, second}
				p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
					made := producers[0]
					producers = producers[1:]
					return made, nil
				}})
				if err := sendOne(t, p, p.outlets.cfg.RetryTopic); !errors.Is(err, c.err) {
					t.Errorf("the first copy ended with %v, want %v", err, c.err)
				}
				synctest.Wait()
				err := sendOne(t, p, p.outlets.cfg.RetryTopic)
				if anew := err == nil; anew != c.anew {
					t.Errorf("the second copy ended with %v", err)
				}
				if closed := first.closed.Load() == 1; closed != c.anew {
					t.Errorf("the first producer was closed %d times", first.closed.Load())
				}
			})
		})
	}
}

// The client forgets a producer whose message the broker has refused, and answers none of its copies any more. Of a slow one others are confirmed.
func TestASilentProducerIsMadeAnew(t *testing.T) {
	for name, silent := range map[string]bool{"silent": true, "slow": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := &fakeProducer{answer: func(*pulsar.ProducerMessage, func(error)) {}}
				producers := []*fakeProducer{first, answering(nil)}
				p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
					made := producers[0]
					producers = producers[1:]
					return made, nil
				}})
				ends := make(chan error, 2)
				send := func() {
					p.send(t.Context(), outgoing{topic: p.outlets.cfg.RetryTopic, payload: []byte("x")}, func(err error) { ends <- err })
				}
				if made, err := p.outlets.tryProducer(t.Context(), p.outlets.byTopic[p.outlets.cfg.RetryTopic]); err != nil {
					t.Fatal(err)
				} else if silent {
					*made = pulsarsend.Sender{Producer: made.Producer} // no receipt since the machine was started
				}
				send()
				if err := <-ends; !errors.Is(err, pulsarsend.ErrTimeout) {
					t.Errorf("the first copy ended with %v", err)
				}
				synctest.Wait()
				send()
				if err := <-ends; (err == nil) != silent {
					t.Errorf("the second copy ended with %v", err)
				}
				if closed := first.closed.Load() == 1; closed != silent {
					t.Errorf("the first producer was closed %d times", first.closed.Load())
				}
			})
		})
	}
}

// Of a topic with partitions the client forgets the producer of the one whose copy was refused, while the others go on: a copy that another producer has
// sent there since then tells.
func TestAProducerThatIsSilentInAPartitionIsMadeAnew(t *testing.T) {
	for name, c := range map[string]struct {
		receipts []int32 // topic partitions that the first producer still confirms
		replaced bool
	}{
		"silent in the partition": {[]int32{1}, true},
		"slow":                    {[]int32{0, 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			first := &fakeProducer{answer: func(*pulsar.ProducerMessage, func(error)) {}}
			producers := []pulsar.Producer{first, &numbered{}}
			p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
				made := producers[0]
				producers = producers[1:]
				return made, nil
			}})
			topic := p.outlets.cfg.RetryTopic
			made, err := p.outlets.tryProducer(t.Context(), p.outlets.byTopic[topic])
			if err != nil {
				t.Fatal(err)
			}
			*made = pulsarsend.Sender{Producer: made.Producer} // no receipt since the machine was started
			for _, partition := range c.receipts {
				made.Received(partition)
			}
			sent := make(chan error, 1)
			p.send(t.Context(), outgoing{topic: topic, after: made}, func(err error) { sent <- err })
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if replaced := p.outlets.byTopic[topic].producer.Load() != made; replaced != c.replaced {
				t.Errorf("the first producer was replaced: %v, want %v", replaced, c.replaced)
			}
		})
	}
}

// A new event is given up soon. The producer that it was sent by alone is replaced then; that of the others when it is known to be no slow one.
func TestSilentProducersOfNewEventsAreMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func() *fakeProducer { return &fakeProducer{answer: func(*pulsar.ProducerMessage, func(error)) {}} }
		together, alone := silent(), silent()
		producers := []pulsar.Producer{together, alone, &numbered{}, answering(nil)}
		p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
			made := producers[0]
			producers = producers[1:]
			return made, nil
		}})
		p.outlets.cfg.CopyTimeout = math.MaxInt64
		topic := p.outlets.cfg.TimerTopic()
		const number = loneMax - 1
		send := func(after *pulsarsend.Sender, want error) *pulsarsend.Sender {
			t.Helper()
			o := p.outlets.byTopic[topic]
			if after != nil {
				o = p.outlets.alone[number][topic]
			}
			made, err := p.outlets.tryProducer(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			*made = pulsarsend.Sender{Producer: made.Producer} // no receipt since the machine was started
			ends := make(chan error, 1)
			begun := time.Now()
			p.send(t.Context(), outgoing{topic: topic, after: after, producer: number, awaited: true}, func(err error) { ends <- err })
			if err := <-ends; !errors.Is(err, want) || want == nil && err != nil || time.Since(begun) > sendTimeout {
				t.Errorf("a copy ended with %v after %v, want %v", err, time.Since(begun), want)
			}
			synctest.Wait()
			return made
		}
		first := send(nil, pulsarsend.ErrTimeout)
		send(first, pulsarsend.ErrTimeout)
		if together.closed.Load() != 0 || alone.closed.Load() != 1 {
			t.Errorf("the producers were closed %d and %d times, want only that of one copy to be", together.closed.Load(), alone.closed.Load())
		}
		send(first, nil)
		if together.closed.Load() != 1 {
			t.Error("the first producer was not closed, though another one's copy was confirmed")
		}
		send(nil, nil)
	})
}

// A policy may permit as many producers of a topic as there are routers: copies that are to be sent alone take the first producer then.
func TestACopyIsSentWithTheOthersForLackOfAnotherProducer(t *testing.T) {
	made := 0
	p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
		if made++; made > 1 {
			return nil, errors.New("ProducerBusy: Topic reached max producers limit")
		}
		return &numbered{}, nil
	}})
	for _, after := range []*pulsarsend.Sender{nil, pulsarsend.NewSender(nil)} {
		sent := make(chan error, 1)
		p.send(t.Context(), outgoing{topic: p.outlets.cfg.RetryTopic, after: after}, func(err error) { sent <- err })
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	p.outlets.alone[0][p.outlets.cfg.RetryTopic].again = clock.Forever
	sent := make(chan error, 1)
	p.send(t.Context(), outgoing{topic: p.outlets.cfg.RetryTopic, after: pulsarsend.NewSender(nil), producer: loneMax - 1}, func(err error) { sent <- err })
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if made != 2 {
		t.Errorf("%d producers were asked for, want one for each way", made)
	}
}

// A producer that the client gave up is replaced where it was taken from, also when it has sent a copy alone.
func TestAProducerOfALoneCopyIsMadeAnew(t *testing.T) {
	for name, limit := range map[string]int{"its own": 2, "the common one, for lack of another": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				made := 0
				p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
					if made++; made > limit {
						return nil, errors.New("ProducerBusy: Topic reached max producers limit")
					}
					return answering(pulsar.ErrProducerClosed), nil
				}})
				topic := p.outlets.cfg.RetryTopic
				common, own := p.outlets.byTopic[topic], p.outlets.alone[0][topic]
				if _, err := p.outlets.tryProducer(t.Context(), common); err != nil {
					t.Fatal(err)
				}
				p.send(t.Context(), outgoing{topic: topic, after: pulsarsend.NewSender(nil)}, func(error) {})
				synctest.Wait()
				if own.producer.Load() != nil || (common.producer.Load() != nil) != (limit > 1) {
					t.Errorf("there is a common producer: %v, and its own: %v", common.producer.Load() != nil, own.producer.Load() != nil)
				}
			})
		})
	}
}

// A receipt shows that its producer is not silent.
func TestReceiptsAreNoted(t *testing.T) {
	p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) { return &numbered{}, nil }})
	made, err := p.outlets.tryProducer(t.Context(), p.outlets.byTopic[p.outlets.cfg.RetryTopic])
	if err != nil {
		t.Fatal(err)
	}
	*made = pulsarsend.Sender{Producer: made.Producer} // no receipt since the machine was started
	ago := clock.Now()
	if err := sendOne(t, p, p.outlets.cfg.RetryTopic); err != nil || made.Silent(ago.Sub(0)) {
		t.Errorf("it is silent after a receipt; the copy ended with %v", err)
	}
}

// A policy may permit one further producer, and not as many as send alone: a copy that is sent alone takes that one also right after the attempt to get another
// has failed. If it was refused, it would take the receipts of all others with it otherwise, each time.
func TestALoneCopyTakesItsProducerThoughThereIsNoOther(t *testing.T) {
	var made []*numbered
	asked := 0
	p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
		if asked++; len(made) == 2 {
			return nil, errors.New("ProducerBusy: Topic reached max producers limit")
		}
		made = append(made, &numbered{})
		return made[len(made)-1], nil
	}})
	send := func(after *pulsarsend.Sender, producer int) {
		t.Helper()
		sent := make(chan error, 1)
		p.send(t.Context(), outgoing{topic: p.outlets.cfg.RetryTopic, after: after, producer: producer}, func(err error) { sent <- err })
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	send(nil, 0)
	send(pulsarsend.NewSender(nil), 0)
	send(pulsarsend.NewSender(nil), 1) // by the common producer
	p.outlets.alone[1][p.outlets.cfg.RetryTopic].again = clock.Forever
	send(refused, 0)
	send(pulsarsend.NewSender(nil), 2) // by the common producer, without a further attempt
	if made[0].sent != 3 || made[1].sent != 2 || asked != 3 {
		t.Errorf("%d copies were sent together and %d alone, and %d producers asked for, want 3, 2 and 3", made[0].sent, made[1].sent, asked)
	}
}

// Outlets that send alone have a pause in common after the subscription of their topic could not be created, however many of them have a producer: an attempt
// may take long to fail, and the other copies wait for it.
func TestOutletsThatSendAloneShareThePauseForASubscription(t *testing.T) {
	var broken error
	attempts := 0
	p := fakeLink(&fakeClient{
		subscribe: func(pulsar.ConsumerOptions) (pulsar.Consumer, error) { attempts++; return &fakeConsumer{}, broken },
		produce:   func(pulsar.ProducerOptions) (pulsar.Producer, error) { return &numbered{}, nil },
	})
	get := func(n int) error {
		o := p.outlets.alone[n][p.outlets.cfg.DeadLetterTopic]
		_, err := p.outlets.tryProducer(t.Context(), o)
		o.keeper.checked = 0 // its next check is due
		return err
	}
	for n := range loneMax {
		if err := get(n); err != nil {
			t.Fatal(err)
		}
	}
	broken, attempts = errors.New("broken"), 0
	for n := range 3 * loneMax {
		if n == 1 {
			p.outlets.alone[0][p.outlets.cfg.DeadLetterTopic].again = clock.Forever
		}
		if err := get(n % loneMax); !errors.Is(err, broken) {
			t.Errorf("outlet %d: %v", n%loneMax, err)
		}
	}
	if attempts != 1 {
		t.Errorf("%d attempts, want one", attempts)
	}
}

// The pauses between attempts to get a further producer of a topic grow, though outlets that have one send beside them.
func TestPausesForAFurtherProducerGrow(t *testing.T) {
	made := 0
	p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
		if made++; made > 1 {
			return nil, errors.New("ProducerBusy: Topic reached max producers limit")
		}
		return &numbered{}, nil
	}})
	one, other := p.outlets.alone[0][p.outlets.cfg.RetryTopic], p.outlets.alone[1][p.outlets.cfg.RetryTopic]
	var pause time.Duration
	for range 8 {
		one.again = 0 // the pause is over
		if _, err := p.outlets.tryProducer(t.Context(), one); err != nil {
			t.Fatal(err)
		}
		before := clock.Now()
		if _, err := p.outlets.tryProducer(t.Context(), other); err == nil {
			t.Fatal("a further producer")
		}
		pause = max(pause, one.again.Sub(before))
	}
	if least := p.outlets.cfg.CopyBackoffMax / 4; pause < least {
		t.Errorf("the longest pause is %v, want at least %v", pause, least)
	}
}

// The dead letter topic loses its subscription behind our back when it is deleted, and
// when the subscription expires: it is looked after again, and no dead letter is sent
// where nothing keeps it.
func TestTheDeadLetterSubscriptionIsLookedAfter(t *testing.T) {
	var tries int
	broken := errors.New("broken")
	var fails error
	p := fakeLink(&fakeClient{
		subscribe: func(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
			tries++
			if o.Topic != FullTopicName("t-s-DLQ") || o.SubscriptionName != "ringfence" {
				t.Errorf("subscribed %q on %s", o.SubscriptionName, o.Topic)
			}
			return &fakeConsumer{}, fails
		},
		produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) { return answering(nil), nil },
	})
	o := p.outlets.byTopic[p.outlets.cfg.DeadLetterTopic]
	for _, step := range []struct {
		what  string
		after time.Duration // since it was sure of it last
		fails error
		tries int // in all
		want  error
	}{
		{"the first", 0, nil, 1, nil},
		{"soon after", keepEvery - time.Second, nil, 1, nil},
		{"later", keepEvery, nil, 2, nil},
		{"when the topic is broken", keepEvery, broken, 3, broken},
		{"when another consumer reads it", 0, errors.New("ConsumerBusy"), 4, nil},
		{"soon after that", 0, nil, 4, nil},
		{"with another producer", 0, nil, 5, nil},
	} {
		fails = step.fails
		o.again = 0 // the pause after a failure is over
		if step.what == "with another producer" {
			o.producer.Store(nil)
		}
		if o.keeper.checked != 0 {
			o.keeper.checked = o.keeper.checked.Add(-step.after)
		}
		if err := sendOne(t, p, p.outlets.cfg.DeadLetterTopic); !errors.Is(err, step.want) || step.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", step.what, err, step.want)
		}
		if tries != step.tries {
			t.Errorf("%s: subscribed %d times, want %d", step.what, tries, step.tries)
		}
	}
	if err := sendOne(t, p, p.outlets.cfg.RetryTopic); err != nil || tries != 5 {
		t.Errorf("a copy for the retry topic: %v, subscribed %d times", err, tries)
	}
}

// Topic partitions that are added are read from their beginning. One that cannot be subscribed is
// tried again, and does not affect the other partitions.
func TestTopicPartitionsThatAreAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := make(map[string]subscription)
		var mu sync.Mutex
		busy, timers := FullTopicName("t-partition-2"), FullTopicName("t-s-TIMER")
		forbidden := true
		partitions, lookupFails := 2, error(nil)
		reader := &fakeReader{attach: func(s subscription) error {
			mu.Lock()
			defer mu.Unlock()
			if s.topic == busy {
				return errors.New("ConsumerBusy")
			}
			if s.topic == timers && forbidden {
				return errors.New("AuthorizationError")
			}
			if _, twice := made[s.topic]; twice {
				t.Errorf("%s has a second consumer", s.topic)
			}
			made[s.topic] = s
			return nil
		}}
		reader.names = func(topic string) ([]string, error) {
			if topic != FullTopicName("t") {
				return []string{topic}, nil
			}
			mu.Lock()
			defer mu.Unlock()
			var names []string
			for i := range partitions {
				names = append(names, fmt.Sprintf("%s-partition-%d", topic, i))
			}
			return names, lookupFails
		}
		p := fakeLinkOf(&fakeClient{}, reader)
		p.discovery.cfg.FromEarliest = false
		if err := p.discovery.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		look := func(n int, fails error, busyTopic string) {
			mu.Lock()
			partitions, lookupFails, busy = n, fails, busyTopic
			mu.Unlock()
			time.Sleep(p.discovery.cfg.DiscoverEvery)
			synctest.Wait()
		}
		check := func(when string, want int, failures float64) {
			t.Helper()
			if read := testutil.ToFloat64(p.discovery.metrics.topicPartitions); len(made) != want || read != float64(want) {
				t.Errorf("%s: %d consumers and %v topic partitions, want %d", when, len(made), read, want)
			}
			if n := testutil.ToFloat64(p.discovery.metrics.discoveryFailures); n != failures {
				t.Errorf("%s: %v failures, want %v", when, n, failures)
			}
		}
		check("at first", 3, 1)
		if err := p.timers(); err == nil || !strings.Contains(err.Error(), "AuthorizationError") {
			t.Errorf("timers without their topic: %v", err)
		}
		look(2, nil, busy)
		check("when nothing changes", 3, 2)
		mu.Lock()
		forbidden = false
		mu.Unlock()
		look(2, nil, busy)
		check("when the timer topic can be had", 4, 2)
		if err := p.timers(); err != nil || !made[timers].earliest {
			t.Errorf("timers with their topic: %v, from the beginning: %t", err, made[timers].earliest)
		}
		look(4, nil, busy)
		check("when one of two cannot be had", 5, 3)
		look(4, errors.New("broken"), "")
		check("when the broker does not answer", 5, 4)
		look(4, nil, "")
		check("when it can be had", 6, 4)
		for i, want := range []bool{false, false, true, true} {
			if name := FullTopicName(fmt.Sprintf("t-partition-%d", i)); made[name].earliest != want {
				t.Errorf("%s is read from its beginning: %v, want %v", name, made[name].earliest, want)
			}
		}
		if reader.closed != 0 {
			t.Error("the reader was closed")
		}
		if p.close(); reader.closed != 1 {
			t.Errorf("the reader was closed %d times at the end", reader.closed)
		}
		if n := testutil.ToFloat64(p.discovery.metrics.topicPartitions); n != 0 {
			t.Errorf("%v topic partitions are read at the end", n)
		}
	})
}

// Events do not wait for a timer topic that does not answer, and the timers begin when it does.
func TestEventsDoNotWaitForTheTimerTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		reader := &fakeReader{
			names: func(topic string) ([]string, error) { return []string{topic}, nil },
			attach: func(s subscription) error {
				if s.topic == FullTopicName("t-s-TIMER") {
					<-answers
				}
				return nil
			},
		}
		p := fakeLinkOf(&fakeClient{}, reader)
		began := time.Now()
		time.AfterFunc(10*time.Minute, func() { close(answers) })
		if err := p.discovery.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer p.close()
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("the topics are read after %v", waited)
		}
		if err := p.timers(); !errors.Is(err, errNotReady) {
			t.Errorf("timers before their topic answers: %v", err)
		}
		<-answers
		synctest.Wait()
		if err := p.timers(); err != nil {
			t.Errorf("timers when their topic has answered: %v", err)
		}
	})
}

// A topic partition that the settings name twice, by itself and by its topic, has one consumer.
func TestTopicPartitionsThatAreNamedTwice(t *testing.T) {
	var mu sync.Mutex
	made := make(map[string]int)
	reader := &fakeReader{
		attach: func(s subscription) error {
			mu.Lock()
			defer mu.Unlock()
			made[s.topic]++
			return nil
		},
		names: func(topic string) ([]string, error) {
			if topic != FullTopicName("t") {
				return []string{topic}, nil
			}
			return []string{topic + "-partition-0", topic + "-partition-1"}, nil
		},
	}
	p := fakeLinkOf(&fakeClient{}, reader)
	p.discovery.cfg.Topics = append(p.discovery.cfg.Topics, FullTopicName("t-partition-0"))
	if err := p.discovery.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for topic, n := range made {
		if n != 1 {
			t.Errorf("%s has %d consumers", topic, n)
		}
	}
	if len(made) != 4 {
		t.Errorf("%d topic partitions, want those of the topic, of the retry topic and of the timer topic", len(made))
	}
}

// An attempt to make a producer may take as long as the client's OperationTimeout. The
// copies of a whole batch do not pay for it one by one.
func TestAProducerIsNotTriedForEachCopy(t *testing.T) {
	broken := errors.New("broken")
	fails, tries := broken, 0
	p := fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
		tries++
		return answering(nil), fails
	}})
	o := p.outlets.byTopic[p.outlets.cfg.RetryTopic]
	for i := range 10 {
		for n := range 100 {
			if err := sendOne(t, p, p.outlets.cfg.RetryTopic); !errors.Is(err, broken) {
				t.Fatalf("a copy without a producer: %v, want %v", err, broken)
			}
			if n > 0 {
				continue
			}
			if o.again == 0 {
				t.Fatal("no pause follows an attempt that failed")
			}
			o.again = o.again.Add(time.Hour) // on a busy machine the pause could end before the other copies are sent
		}
		if want := min(p.outlets.cfg.CopyBackoffMin<<i, p.outlets.cfg.CopyBackoffMax); tries != i+1 || o.pauses.Last != want {
			t.Errorf("%d attempts and a pause of %v, want %d and %v", tries, o.pauses.Last, i+1, want)
		}
		o.again = 0 // the pause is over
	}
	fails = nil
	if err := sendOne(t, p, p.outlets.cfg.RetryTopic); err != nil || o.pauses.Last != 0 {
		t.Errorf("a copy with a producer: %v, a pause of %v comes next", err, o.pauses.Last)
	}
}

// A broker that confirms nothing blocks no caller: the client refuses copies beyond its limit, and
// so do we, for each topic separately.
func TestCopiesThatAreNotConfirmedTakeUpTheirTopicOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var unanswered []func(error)
		p := fakeLink(&fakeClient{produce: func(o pulsar.ProducerOptions) (pulsar.Producer, error) {
			if !o.DisableBlockIfQueueFull {
				t.Error("the client may block senders")
			}
			if o.Topic == FullTopicName("t-s-RETRY") {
				return answering(nil), nil
			}
			return &fakeProducer{answer: func(_ *pulsar.ProducerMessage, done func(error)) { unanswered = append(unanswered, done) }}, nil
		}, subscribe: func(pulsar.ConsumerOptions) (pulsar.Consumer, error) { return &fakeConsumer{}, nil }})
		payload := make([]byte, copyBytesMax/8)
		ends := make(chan error, 100)
		dead := func() {
			p.send(t.Context(), outgoing{topic: p.outlets.cfg.DeadLetterTopic, payload: payload}, func(err error) { ends <- err })
		}
		for range 8 {
			dead()
		}
		time.Sleep(p.outlets.cfg.CopyTimeout)
		for range 8 {
			if err := <-ends; !errors.Is(err, pulsarsend.ErrTimeout) {
				t.Errorf("a copy without an answer: %v", err)
			}
		}
		dead()
		if err := <-ends; !errors.Is(err, errFull) {
			t.Errorf("a dead letter beside those: %v, want %v", err, errFull)
		}
		if err := sendOne(t, p, p.outlets.cfg.RetryTopic); err != nil {
			t.Errorf("a copy for the other topic: %v", err)
		}
		unanswered[0](nil)
		dead()
		if len(unanswered) != 9 {
			t.Error("no room was left by a late answer")
		}
		unanswered[8](nil)
		if err := <-ends; err != nil {
			t.Errorf("a dead letter in its room: %v", err)
		}
	})
}

// numbered is a producer whose receipts have ids of one ledger.
type numbered struct {
	pulsar.Producer
	ledger int64
	sent   int
}

func (n *numbered) SendAsync(_ context.Context, m *pulsar.ProducerMessage, done func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	n.sent++
	done(pulsar.NewMessageID(n.ledger, 0, -1, 0), m, nil)
}

// A dead letter is safe when the topic has its subscription after it: at once if the topic may be another one, and else
// by and by, though no other letter follows.
func TestTheDeadLetterSubscriptionIsLookedAfterBehindALetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the next two
		var attached int
		var fails error
		looks := func() int {
			mu.Lock()
			defer mu.Unlock()
			return attached
		}
		fail := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fails = err
		}
		producer := &numbered{ledger: 0} // the first one of a new cluster
		p := fakeLink(&fakeClient{
			produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) { return producer, nil },
			subscribe: func(pulsar.ConsumerOptions) (pulsar.Consumer, error) {
				mu.Lock()
				defer mu.Unlock()
				attached++
				return &fakeConsumer{}, fails
			},
		})
		letter := func(want error, often int) {
			t.Helper()
			synctest.Wait()
			before, end := looks(), make(chan error, 1)
			p.send(t.Context(), outgoing{topic: p.outlets.cfg.DeadLetterTopic}, func(err error) { end <- err })
			if err := <-end; !errors.Is(err, want) || looks()-before != often {
				t.Errorf("a letter ended with %v, and its subscription was looked for %d times, want %v and %d", err, looks()-before, want, often)
			}
		}
		letter(nil, 2) // before the producer is made, and in its first ledger
		letter(nil, 0)
		letter(nil, 0)
		before := looks()
		time.Sleep(10 * keepEvery)
		synctest.Wait()
		if looks() != before+1 {
			t.Errorf("it was looked for %d times after the last letter, want once", looks()-before)
		}
		letter(nil, 0)
		fail(errors.New("not now"))
		before = looks()
		time.Sleep(keepEvery)
		synctest.Wait()
		fail(nil)
		time.Sleep(10 * keepEvery)
		synctest.Wait()
		if looks() != before+2 {
			t.Errorf("it was looked for %d times after a look that failed, want once more", looks()-before-1)
		}
		broken := errors.New("broken")
		producer.ledger = 9
		fail(broken)
		letter(broken, 1)
		synctest.Wait()
		sent := producer.sent
		letter(broken, 1)
		if producer.sent != sent {
			t.Error("a letter was sent to a topic that has no subscription")
		}
		synctest.Wait()
		fail(nil)
		p.outlets.byTopic[p.outlets.cfg.DeadLetterTopic].again = 0
		letter(nil, 2)
		letter(nil, 0)
		time.Sleep(keepEvery)
	})
}

// The holes of the worst topic partition are published, and asked for once a minute.
func TestAckHolesAreAskedForNowAndThen(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch r.URL.RequestURI() {
		case "/admin/v2/persistent/public/default/t/partitioned-stats?perPartition=true":
			_, _ = w.Write([]byte(`{"partitions":{"a":{"subscriptions":{"s":{"nonContiguousDeletedMessagesRanges":7}}},"b":{"subscriptions":{"other":{"nonContiguousDeletedMessagesRanges":9}}}}}`))
		case "/admin/v2/persistent/public/default/t-s-TIMER/stats":
			_, _ = w.Write([]byte(`{"subscriptions":{"s":{"nonContiguousDeletedMessagesRanges":1,"msgBacklog":5}}}`))
		default:
			_, _ = w.Write([]byte(`{"subscriptions":{"s":{"nonContiguousDeletedMessagesRanges":3,"msgBacklog":6}}}`))
		}
	}))
	defer server.Close()
	p := fakeLink(&fakeClient{})
	partition := FullTopicName("t") + "-partition-0"
	p.discovery.reading[partition] = struct{}{}
	p.discovery.noteHoles(t.Context())
	if asked.Load() != 0 {
		t.Error("asked without an address")
	}
	p.discovery.cfg.AdminURL = server.URL
	for range 2 {
		p.discovery.noteHoles(t.Context())
		if n := testutil.ToFloat64(p.discovery.metrics.ackHoles); n != 7 || asked.Load() != 3 {
			t.Errorf("%v holes after %d questions, want 7 after one for each topic", n, asked.Load())
		}
	}
	if n := testutil.ToFloat64(p.discovery.metrics.timersPending); n != 5 {
		t.Errorf("%v timers wait, want 5", n)
	}
	p.discovery.holesAsked = p.discovery.holesAsked.Add(-holesEvery)
	if p.discovery.noteHoles(t.Context()); asked.Load() != 6 {
		t.Errorf("%d questions a minute later, want 6", asked.Load())
	}
	p.discovery.stop() // nobody asks any more
	if holes, waiting := testutil.ToFloat64(p.discovery.metrics.ackHoles), testutil.ToFloat64(p.discovery.metrics.timersPending); holes != 0 || waiting != 0 {
		t.Errorf("%v holes and %v timers that wait at the end, want none", holes, waiting)
	}
}

// A broker that does not tell of a topic is reported once until it does, and asked about the other topics all the same. A topic of timers that is
// not read is left out.
func TestAckHolesThatCannotBeKnown(t *testing.T) {
	var broken atomic.Bool
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1); broken.Load() && !strings.Contains(r.URL.Path, "TIMER") {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(`{"subscriptions":{"s":{"msgBacklog":5}}}`))
	}))
	defer server.Close()
	d := fakeLink(&fakeClient{}).discovery
	var lines bytes.Buffer
	d.log, d.cfg.AdminURL = slog.New(slog.NewTextHandler(&lines, nil)), server.URL
	note := func(isBroken bool, logged int) {
		t.Helper()
		broken.Store(isBroken)
		d.holesAsked = d.holesAsked.Add(-holesEvery)
		d.metrics.timersPending.Set(-1)
		d.noteHoles(t.Context())
		if n := testutil.ToFloat64(d.metrics.timersPending); n != 5 {
			t.Errorf("%v timers wait, want 5", n)
		}
		if n := strings.Count(lines.String(), "level=WARN"); n != logged {
			t.Errorf("%d lines, want %d:\n%s", n, logged, lines.String())
		}
	}
	note(true, 2) // one for each topic
	note(true, 2)
	note(false, 2)
	note(true, 4)
	asked.Store(0)
	d.timersErr.Store(new(errTimersOff))
	d.holesAsked = d.holesAsked.Add(-holesEvery)
	if d.noteHoles(t.Context()); asked.Load() != 2 {
		t.Errorf("%d questions without timers, want 2", asked.Load())
	}
}
