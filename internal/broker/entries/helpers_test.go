package entries

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

const topicName = "persistent://public/default/t"

// rig holds a client and its brokers in memory, in a bubble.
type rig struct {
	*testing.T
	cluster *fakebroker.Cluster
	cfg     Config
	access  Access
	client  *Client // after open
	queue   *Queue
	metrics *Metrics
}

// bubble runs a test with its own time and brokers. It ends only when all goroutines have ended.
func bubble(t *testing.T, run func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, cluster: fakebroker.New(), cfg: DefaultConfig(), queue: NewQueue(), metrics: NewMetrics(prometheus.NewRegistry())}
		r.cfg.URL = "pulsar://a,b"
		r.access.Dial = r.cluster.Dial
		defer r.cluster.Close()
		defer func() {
			if r.client == nil {
				return
			}
			begun := time.Now()
			r.client.Close()
			if took := time.Since(begun); took > r.cfg.CloseTimeout+time.Second {
				t.Errorf("Close took %v", took)
			}
		}()
		run(r)
	})
}

func (r *rig) open() *Client {
	r.Helper()
	var err error
	if r.client, err = New(r.cfg, r.access, r.metrics, slog.New(slog.DiscardHandler)); err != nil {
		r.Fatal(err)
	}
	began := time.Now()
	r.client.now = func() clock.Instant { return clock.Instant(time.Since(began)) } // the bubble's
	return r.client
}

func (r *rig) subscription() Subscription {
	return Subscription{Topic: topicName, Name: "s", Type: Shared, FromEarliest: true, Permits: 100, Queue: r.queue}
}

// subscribe opens a client if there is none, and subscribes.
func (r *rig) subscribe(change ...func(*Subscription)) *Consumer {
	r.Helper()
	if r.client == nil {
		r.open()
	}
	s := r.subscription()
	for _, c := range change {
		c(&s)
	}
	consumer, err := r.client.Subscribe(r.Context(), s)
	if err != nil {
		r.Fatal(err)
	}
	return consumer
}

// receive takes n entries.
func (r *rig) receive(n int) (got []*Delivered) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
	defer cancel()
	for len(got) < n {
		before := len(got)
		var err error
		if got, err = r.queue.Receive(ctx, got, n-len(got)); err != nil {
			r.Fatalf("%d of %d entries arrived: %v", len(got), n, err)
		}
		Take(got[before:]...)
	}
	return got
}

// nothing checks that no entry arrives.
func (r *rig) nothing() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	if got, err := r.queue.Receive(ctx, nil, 10); !errors.Is(err, context.DeadlineExceeded) {
		r.Fatalf("received %d entries and %v, want nothing", len(got), err)
	}
}

// lost waits for the end of a consumer.
func (r *rig) lost() error {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
	defer cancel()
	for {
		if _, err := r.queue.Receive(ctx, nil, 10); errors.Is(err, ErrLost) {
			return err
		} else if err != nil {
			r.Fatal(err)
		}
	}
}

func ids(list []*Delivered) (all []wire.ID) {
	for _, d := range list {
		all = append(all, d.ID)
	}
	return all
}

func whole(list ...*Delivered) (acks []wire.AckID) {
	for _, d := range list {
		if d.Chunks == nil {
			acks = append(acks, wire.AckID{ID: d.ID})
		}
		for _, id := range d.Chunks {
			acks = append(acks, wire.AckID{ID: id})
		}
	}
	return acks
}

func (r *rig) ack(c *Consumer, list ...*Delivered) {
	r.Helper()
	if err := c.Ack(whole(list...)...); err != nil {
		r.Fatal(err)
	}
}

// publish appends n entries of one event.
func (r *rig) publish(n int) (all []wire.ID) {
	for i := range n {
		all = append(all, r.cluster.Publish(topicName, fakebroker.Message(fmt.Sprint("m", i)), 1))
	}
	return all
}

// Ack acks entries by their ids alone, whatever their cluster and their chunks.
func (c *Consumer) Ack(ids ...wire.AckID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ack(ids)
}
