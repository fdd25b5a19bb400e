package source

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
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

func fakeLink(client *fakeClient) *pulsarLink {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	p := newPulsarLink(cfg.complete(), nil)
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
