package controllog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/testing/eventually"
)

// producing is a client that makes producers by a function of the test.
type producing struct {
	pulsar.Client
	make func() pulsar.Producer
}

func (c *producing) CreateProducer(pulsar.ProducerOptions) (pulsar.Producer, error) {
	return c.make(), nil
}

// heldProducer keeps the answers to its records for the test.
type heldProducer struct {
	pulsar.Producer
	answers []func(error)
	closed  bool
}

func (h *heldProducer) SendAsync(_ context.Context, m *pulsar.ProducerMessage, done func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	h.answers = append(h.answers, func(err error) { done(nil, m, err) })
}

func (h *heldProducer) Close() { h.closed = true }

// The client fails all records of a producer that it has given up. Those that come late must not end the next producer.
func TestLateAnswersOfALostProducerEndNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultPulsarConfig()
		cfg.Topic = "persistent://public/default/log"
		p, err := NewPulsar(cfg, pulsar.ClientOptions{URL: "pulsar://a"}, entries.Access{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		first, second := &heldProducer{}, &heldProducer{}
		made := 0
		p.client = &producing{make: func() pulsar.Producer {
			made++
			switch made {
			case 1:
				return first
			case 2:
				first.answers[1](pulsar.ErrTopicNotfound)
				return second
			}
			return &heldProducer{}
		}}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = p.keepProducer(ctx) })
		synctest.Wait()
		for range 2 {
			p.Append([]byte("record"), func(error) {})
		}
		first.answers[0](pulsar.ErrTopicNotfound)
		synctest.Wait()
		if !first.closed || second.closed || made != 2 {
			t.Errorf("after the first producer was lost, it is closed: %v, the second one: %v, and %d were made; want true, false and 2", first.closed, second.closed, made)
		}
		failed := false
		p.Append([]byte("record"), func(err error) { failed = err != nil })
		if failed || len(second.answers) != 1 {
			t.Error("the second producer does not get the next record")
		}
		for _, answer := range second.answers {
			answer(nil)
		}
		stop()
		running.Wait()
	})
}

// The log says why a producer is replaced.
func TestALostProducerIsSaidWithItsReason(t *testing.T) {
	for reason, answer := range map[string]error{"TopicTerminatedError": errors.Join(pulsar.ErrTopicTerminated, errors.New("TopicTerminatedError")), "maxMessageSize": nil} {
		var said strings.Builder
		cfg := DefaultPulsarConfig()
		cfg.Topic = "persistent://public/default/log"
		if cfg.SendTimeout = time.Millisecond; answer != nil {
			cfg.SendTimeout = time.Hour // that no answer came is another reason
		}
		p, err := NewPulsar(cfg, pulsar.ClientOptions{URL: "pulsar://a"}, entries.Access{}, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		made, producer := make(chan struct{}, 2), &heldProducer{}
		p.client = &producing{make: func() pulsar.Producer {
			made <- struct{}{}
			return producer
		}}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = p.keepProducer(ctx) })
		<-made
		eventually.True(t, "the producer is replaced", func() bool {
			answered, before := make(chan struct{}), len(producer.answers)
			p.Append([]byte("record"), func(error) { close(answered) })
			if answer != nil && len(producer.answers) > before { // there is a producer
				producer.answers[before](answer)
			}
			<-answered
			return len(made) > 0
		})
		stop()
		running.Wait()
		if lines := said.String(); !strings.Contains(lines, "producer lost") || !strings.Contains(lines, reason) {
			t.Errorf("no reason with %q: %s", reason, lines)
		}
	}
}

// refusing is a client like Pulsar's: with an error it returns a nil pointer of its own type, which is not equal to nil.
type refusing struct {
	pulsar.Client
	refused func()
}

func (c *refusing) CreateProducer(pulsar.ProducerOptions) (pulsar.Producer, error) {
	c.refused()
	return (*heldProducer)(nil), errNotConnected
}

func TestAStopWhileNoProducerCanBeMade(t *testing.T) {
	cfg := DefaultPulsarConfig()
	cfg.Topic = "persistent://public/default/log"
	p, err := NewPulsar(cfg, pulsar.ClientOptions{URL: "pulsar://a"}, entries.Access{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	p.client = &refusing{refused: stop}
	if err := p.keepProducer(ctx); err != nil || signal.IsClosed(p.ready) {
		t.Errorf("keepProducer = %v, ready: %v; want nil and false", err, signal.IsClosed(p.ready))
	}
}

// A topic that is missing is said by name with a remedy, and not twice a second.
func TestAMissingTopicIsSaidWithARemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		cfg := DefaultPulsarConfig()
		cfg.Topic = "persistent://public/default/log"
		p, err := NewPulsar(cfg, pulsar.ClientOptions{URL: "pulsar://a"}, entries.Access{}, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		tries := 0
		_ = p.insist(ctx, "look-up", func() error {
			tries++
			return errors.New("TopicNotFound")
		})
		lines := strings.Count(said.String(), "\n")
		if lines < 1 || lines > 3 || tries < 20 || !strings.Contains(said.String(), "pulsar-admin topics create persistent://public/default/log") {
			t.Errorf("%d attempts are told in %d lines: %s", tries, lines, said.String())
		}
	})
}
