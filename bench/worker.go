package main

import (
	"context"
	"flag"
	"fmt"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/ringfence/router/client"
)

// workerCommand makes this binary one application process of a run.
const workerCommand = "worker"

// runWorker consumes until it is told to stop, and prints ten times a second how
// many events it has handled.
func runWorker(args []string) error {
	f := flag.NewFlagSet(workerCommand, flag.ContinueOnError)
	mode := f.String("mode", "", "shared or ringfence")
	handler := f.String("handler", "none", "none or json")
	url := f.String("pulsar", "", "the broker, for shared")
	topic := f.String("topic", "", "the topic, for shared")
	endpoint := f.String("endpoint", "", "the router, for ringfence")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var handled atomic.Int64
	var report sync.WaitGroup
	defer report.Wait()
	report.Go(func() { reportProgress(ctx, &handled) })
	work := func(payload []byte) error { return nil }
	if *handler == "json" {
		work = decode
	}
	if *mode == modeRingfence {
		return client.Run(ctx, *endpoint, func(_ context.Context, e *client.Event) error {
			err := work(e.Payload)
			handled.Add(1)
			return err
		}, client.MaxInFlight(5000)) // as many as the other modes' receiver queues hold
	}
	return consumeShared(ctx, *url, *topic, work, &handled)
}

// reportProgress prints how many events have been handled, ten times a second.
func reportProgress(ctx context.Context, handled *atomic.Int64) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			fmt.Println(handled.Load())
		}
	}
}

// consumeShared is the plain way: one SHARED consumer, as many handlers as the
// machine has cores.
func consumeShared(ctx context.Context, url, topic string, work func([]byte) error, handled *atomic.Int64) error {
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return err
	}
	defer c.Close()
	messages := make(chan pulsar.ConsumerMessage, 1000)
	consumer, err := c.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "bench", Type: pulsar.Shared,
		ReceiverQueueSize: 5000, MessageChannel: messages,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	var handlers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		handlers.Go(func() { handle(ctx, consumer, messages, work, handled) })
	}
	handlers.Wait()
	return nil
}

func handle(ctx context.Context, consumer pulsar.Consumer, messages <-chan pulsar.ConsumerMessage, work func([]byte) error, handled *atomic.Int64) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-messages:
			if work(m.Payload()) != nil {
				consumer.Nack(m)
				continue
			}
			_ = consumer.Ack(m) // without a receipt from the broker it never fails
			handled.Add(1)
		}
	}
}
