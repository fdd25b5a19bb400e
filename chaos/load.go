//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/testing/eventually"
)

// publisher sends events at a fixed rate and records them. An event's payload is its name,
// which is its number. It is safe for concurrent use.
type publisher struct {
	client   pulsar.Client
	producer pulsar.Producer
	rate     int
	keys     int
	random   *rand.Rand

	mu   sync.Mutex
	load publication
}

func newPublisher(ctx context.Context, o options, url string) (p *publisher, err error) {
	p = &publisher{rate: o.Rate, keys: o.Keys, random: rand.New(rand.NewPCG(o.Seed, 2))}
	p.client, err = pulsar.NewClient(pulsar.ClientOptions{
		URL: url, Logger: plog.DefaultNopLogger(), ConnectionTimeout: 5 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	err = eventually.Ask(ctx, time.Minute, "a producer is made", func() error {
		p.producer, err = p.client.CreateProducer(pulsar.ProducerOptions{
			PartitionsAutoDiscoveryInterval: discoverEvery,
			Topic:                           eventsTopic, SendTimeout: pulsarsend.NoTimeout, // each event is sent once
			MaxReconnectToBroker: nil, // for ever
		})
		return err
	})
	return p, err
}

// tick is the interval at which shares of a second's events are sent.
const tick = 10 * time.Millisecond

// run sends until ctx ends, and returns when every event is at the broker or has failed.
func (p *publisher) run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	begin, sent := clock.Now(), 0
	for {
		select {
		case <-ctx.Done():
			flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 6*time.Minute)
			defer cancel()
			return p.producer.FlushWithCtx(flush)
		case <-ticker.C:
		}
		due := int(clock.Now().Sub(begin).Seconds() * float64(p.rate))
		if due-sent > p.rate { // the broker was away: the missed events are not sent in a burst now
			begin, sent = clock.Now(), 0
			continue
		}
		for ; sent < due; sent++ {
			p.send(context.WithoutCancel(ctx))
		}
	}
}

func (p *publisher) send(ctx context.Context) {
	p.mu.Lock()
	n := p.load.begin(clock.Now())
	p.mu.Unlock()
	p.producer.SendAsync(ctx, &pulsar.ProducerMessage{
		Key: "user-" + strconv.Itoa(p.random.IntN(p.keys)), Payload: []byte(strconv.Itoa(n)),
	}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		now := clock.Now()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.load.finish(n, now, err == nil)
	})
}

func (p *publisher) close() {
	p.producer.Close()
	p.client.Close()
}

// published returns the sent events. Call it when run has returned.
func (p *publisher) published() *publication { return &p.load }

// String tells how much was sent.
func (p *publisher) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("%d events", len(p.load.sent))
}
