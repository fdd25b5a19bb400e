package source

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/ringfence/router/internal/pulsarsend"
)

// fakeClient is a client of which a test says what its calls do.
type fakeClient struct {
	pulsar.Client
	subscribe func(pulsar.ConsumerOptions) (pulsar.Consumer, error)
	produce   func(pulsar.ProducerOptions) (pulsar.Producer, error)
	closed    atomic.Int32
}

func (*fakeClient) TopicPartitions(topic string) ([]string, error) { return []string{topic}, nil }

func (c *fakeClient) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	return c.subscribe(o)
}

func (c *fakeClient) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	return c.produce(o)
}

func (c *fakeClient) Close() { c.closed.Add(1) }

type fakeConsumer struct {
	pulsar.Consumer
	closed atomic.Int32
}

func (c *fakeConsumer) Close() { c.closed.Add(1) }

// fakeProducer answers a copy as a test says.
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

func fakeLink(client *fakeClient) *pulsarLink {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	p := newPulsarLink(cfg.Resolved(), nil)
	p.client = client
	return p
}

// A broker that does not answer holds up nobody who is told to stop. What the call makes
// in the end is undone, and only then the client is closed.
func TestOpeningEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		var late fakeConsumer
		client := &fakeClient{subscribe: func(pulsar.ConsumerOptions) (pulsar.Consumer, error) {
			<-answer
			return &late, nil
		}}
		p := fakeLink(client)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		err := p.subscribeAll(ctx)
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took != time.Second {
			t.Errorf("subscribing ended with %v after %v, want %v after 1s", err, took, context.Canceled)
		}
		if n := client.closed.Load(); n != 0 {
			t.Error("the client was closed under a call")
		}
		close(answer)
		synctest.Wait()
		if late.closed.Load() != 1 || client.closed.Load() != 1 {
			t.Errorf("the late consumer was closed %d times, the client %d times, want once each", late.closed.Load(), client.closed.Load())
		}
		if _, err := await(t.Context(), p, func() (int, error) { return 1, nil }, func(int) {}); !errors.Is(err, errClosed) {
			t.Errorf("a call after close: %v, want %v", err, errClosed)
		}
	})
}

// sendOne sends a copy and returns how it ended, errPending if it has not.
func sendOne(t *testing.T, p *pulsarLink, topic string) error {
	t.Helper()
	err := errPending
	p.send(t.Context(), outgoing{topic: topic, payload: []byte("x")}, func(e error) { err = e })
	return err
}

var errPending = errors.New("no answer")

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
				if err := sendOne(t, p, p.cfg.RetryTopic); !errors.Is(err, c.err) {
					t.Errorf("the first copy ended with %v, want %v", err, c.err)
				}
				synctest.Wait()
				err := sendOne(t, p, p.cfg.RetryTopic)
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
	o := p.outlets[p.cfg.DeadLetterTopic]
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
		{"when somebody reads there", 0, errors.New("ConsumerBusy"), 4, nil},
		{"soon after that", 0, nil, 4, nil},
		{"with another producer", 0, nil, 5, nil},
	} {
		fails = step.fails
		o.again = 0 // the pause after a failure is over
		if step.what == "with another producer" {
			o.drop(o.producer)
		}
		if o.kept != 0 {
			o.kept = o.kept.Add(-step.after)
		}
		if err := sendOne(t, p, p.cfg.DeadLetterTopic); !errors.Is(err, step.want) || step.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", step.what, err, step.want)
		}
		if tries != step.tries {
			t.Errorf("%s: subscribed %d times, want %d", step.what, tries, step.tries)
		}
	}
	if err := sendOne(t, p, p.cfg.RetryTopic); err != nil || tries != 5 {
		t.Errorf("a copy for the retry topic: %v, subscribed %d times", err, tries)
	}
}

// A consumer whose topic is gone as it reconnects is given up by the client, which says
// so in its log alone: whoever waits for its messages has to hear of it.
func TestAConsumerThatTheClientGaveUpIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fakeLink(&fakeClient{})
		logger := watched{log.NewLoggerWithSlog(slog.New(slog.DiscardHandler)), p.ears(func() {})}
		failed := make(chan error, 1)
		var reading sync.WaitGroup
		defer reading.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		reading.Go(func() {
			_, err := p.receive(ctx, nil)
			failed <- err
		})
		of := logger.SubLogger(log.Fields{"topic": "t"}) // as the client's consumers make theirs
		of.Warn("Topic not found, stop reconnecting, close the producer")
		of.WithField("error", "x").Error("Failed to create consumer at reconnect")
		synctest.Wait()
		select {
		case err := <-failed:
			t.Fatalf("receive = %v before anything was given up", err)
		default:
		}
		of.Warn(lostWords)
		if err := <-failed; !errors.Is(err, errLost) {
			t.Errorf("receive = %v, want %v", err, errLost)
		}
	})
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
	o := p.outlets[p.cfg.RetryTopic]
	for i := range 10 {
		for range 100 {
			if err := sendOne(t, p, p.cfg.RetryTopic); !errors.Is(err, broken) {
				t.Fatalf("a copy without a producer: %v, want %v", err, broken)
			}
		}
		if want := min(p.cfg.CopyBackoffMin<<i, p.cfg.CopyBackoffMax); tries != i+1 || o.pause != want {
			t.Errorf("%d attempts and a pause of %v, want %d and %v", tries, o.pause, i+1, want)
		}
		o.again = 0 // the pause is over
	}
	fails = nil
	if err := sendOne(t, p, p.cfg.RetryTopic); err != nil || o.pause != 0 {
		t.Errorf("a copy with a producer: %v, a pause of %v comes next", err, o.pause)
	}
}

// A broker that confirms nothing holds up nobody: the client refuses what it has no room
// for, and so do we, for each topic by itself.
func TestCopiesThatAreNotConfirmedTakeUpTheirTopicOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var unanswered []func(error)
		p := fakeLink(&fakeClient{produce: func(o pulsar.ProducerOptions) (pulsar.Producer, error) {
			if !o.DisableBlockIfQueueFull {
				t.Error("the client may block who sends")
			}
			if o.Topic == FullTopicName("t-s-RETRY") {
				return answering(nil), nil
			}
			return &fakeProducer{answer: func(_ *pulsar.ProducerMessage, done func(error)) { unanswered = append(unanswered, done) }}, nil
		}, subscribe: func(pulsar.ConsumerOptions) (pulsar.Consumer, error) { return &fakeConsumer{}, nil }})
		payload := make([]byte, copyBytesMax/8)
		ends := make(chan error, 100)
		dead := func() {
			p.send(t.Context(), outgoing{topic: p.cfg.DeadLetterTopic, payload: payload}, func(err error) { ends <- err })
		}
		for range 8 {
			dead()
		}
		time.Sleep(p.cfg.CopyTimeout)
		for range 8 {
			if err := <-ends; !errors.Is(err, pulsarsend.ErrTimeout) {
				t.Errorf("a copy without an answer: %v", err)
			}
		}
		dead()
		if err := <-ends; !errors.Is(err, errFull) {
			t.Errorf("a dead letter beside those: %v, want %v", err, errFull)
		}
		if err := sendOne(t, p, p.cfg.RetryTopic); err != nil {
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
