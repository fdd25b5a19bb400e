//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/chaos/fencedsink"
	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

const (
	handlersMax = 256 // at once, in one application
	sinkConns   = 8   // to each database, from one application

	workMax    = time.Millisecond
	slowEvery  = 1000 // one event in so many takes longer than a lease
	longLeast  = 500 * time.Millisecond
	longMax    = 4 * time.Second
	sinkGiveUp = 5 * time.Second

	stubbornEvery = 10
	stubbornLeast = 2 * time.Second
	stubbornMax   = 8 * time.Second
)

var errStale = errors.New("a later delivery is at work")

// application is the process under test.
type application struct {
	journal  *journal.Writer
	share    float64
	timers   float64
	stubborn bool
	postgres *fencedsink.Postgres
	redis    *fencedsink.Redis

	mu      sync.Mutex
	refused *os.File // a line for each write that a sink refused
}

// runApp runs an application until ctx ends.
func runApp(ctx context.Context, args []string) error {
	var a application
	var path, postgresURL, redisURL, pulsarURL, script string
	var schedules int
	f := flag.NewFlagSet(roleApp, flag.ContinueOnError)
	f.StringVar(&path, "journal", "", "file to write")
	f.Float64Var(&a.share, "share", 0, "of the keys, that write to the sinks")
	f.IntVar(&schedules, "schedules", 0, "how many to declare")
	f.Float64Var(&a.timers, "timers", 0, "share of the events whose handlings set timers")
	f.BoolVar(&a.stubborn, "stubborn", false, "ignore every deadline")
	f.StringVar(&postgresURL, "postgres", "", "sink")
	f.StringVar(&redisURL, "redis", "", "sink")
	f.StringVar(&pulsarURL, "pulsar", "", "consume SHARED from here, instead of asking a router")
	f.StringVar(&script, "worker", "", "program that handles the events, and asks for each step")
	err := f.Parse(args)
	if err != nil {
		return err
	}
	if a.journal, err = journal.Create(path); err != nil {
		return err
	}
	if a.refused, err = os.Create(path + refusedSuffix); err != nil {
		return err
	}
	if a.share > 0 && postgresURL != "" {
		if a.postgres, err = fencedsink.OpenPostgres(ctx, postgresURL, sinkConns); err != nil {
			return err
		}
		defer a.postgres.Close()
		if a.redis, err = fencedsink.OpenRedis(redisURL, sinkConns); err != nil {
			return err
		}
		defer a.redis.Close()
	}
	switch {
	case pulsarURL != "":
		err = a.consume(ctx, pulsarURL)
	case script != "":
		err = a.serve(ctx, script)
	default:
		var options []client.Option
		if options, err = a.declare(schedules); err == nil {
			err = client.Run(ctx, "", a.handle, append(options, client.WithMaxInFlight(handlersMax), client.WithCall(callMethod, a.handleCall))...)
		}
	}
	return errors.Join(err, a.journal.Close())
}

// handle is a client.Handler.
func (a *application) handle(ctx context.Context, e *client.Event) error {
	ctx, held := a.heeding(ctx, func() bool { return ctx.Err() == nil && time.Until(e.LeaseUntil()) > 0 })
	name := string(e.Payload)
	err := a.work(ctx, held, name, e.Key, event.Fence(e.Fence))
	if err == nil && isEvent(name) {
		for i, after := range timersOf(name, a.timers) {
			e.After(after, timerMethod, []byte(timerName(name, i)))
		}
	}
	return err
}

// heeding returns the context of a handler, and what reports whether its key is still ours. A stubborn application heeds neither.
func (a *application) heeding(ctx context.Context, held func() bool) (context.Context, func() bool) {
	if a.stubborn {
		return context.WithoutCancel(ctx), func() bool { return true }
	}
	return ctx, held
}

// work handles one event. held reports whether the key is still ours: a process that was stopped
// may wake up while it handles events of keys that it has lost.
func (a *application) work(ctx context.Context, held func() bool, name, key string, fence event.Fence) error {
	h, err := a.begin(ctx, name, key, fence)
	if err != nil {
		return err
	}
	return a.end(ctx, h, backoff.Sleep(ctx, h.length), held)
}

// handling is one handling of an event.
type handling struct {
	journal.Handling
	name, key string
	fence     event.Fence
	sampled   bool // it writes to the sinks
	length    time.Duration
}

// begin writes the start of a handling down, and claims the key at the sinks.
func (a *application) begin(ctx context.Context, name, key string, fence event.Fence) (h handling, err error) {
	h = handling{name: name, key: key, fence: fence}
	if h.Handling, err = a.journal.Start(name, event.Key(key), fence); err != nil {
		return h, err
	}
	h.sampled = a.postgres != nil && float64(xxhash.Sum64String(key)%10_000) < a.share*10_000
	h.length = a.lengthOf(name, h.sampled)
	if h.sampled {
		if err := a.write(ctx, "claim", h, a.postgres.Claim); err != nil {
			return h, a.note(ctx, h, err)
		}
	}
	return h, nil
}

// end writes to the sinks, if the work went well and the key is still ours, and writes the end down.
func (a *application) end(ctx context.Context, h handling, err error, held func() bool) error {
	switch {
	case err != nil:
	case !held():
		err = errStale
	case h.sampled:
		err = a.write(ctx, "write", h, func(ctx context.Context, key, fence string) (bool, error) {
			return a.postgres.Write(ctx, key, fence, h.name)
		})
	}
	return a.note(ctx, h, err)
}

// note writes down how a handling has ended, and returns err.
func (a *application) note(ctx context.Context, h handling, err error) error {
	switch {
	case err == nil:
		return a.journal.End(h.Handling, journal.Done)
	case ctx.Err() != nil || errors.Is(err, errStale) || errors.Is(err, errCancelled):
		return errors.Join(err, a.journal.End(h.Handling, journal.Cancelled))
	}
	return errors.Join(err, a.journal.End(h.Handling, journal.Failed))
}

// write writes to both sinks. A stubborn application ignores a refusal and continues.
func (a *application) write(ctx context.Context, what string, h handling, postgres func(ctx context.Context, key, fence string) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, sinkGiveUp)
	defer cancel()
	fence := h.fence.String()
	inPostgres, err := postgres(ctx, h.key, fence)
	if err != nil {
		return err
	}
	inRedis, err := a.redis.Write(ctx, h.key, fence, h.name+" "+what)
	if err != nil {
		return err
	}
	if inPostgres && inRedis {
		return nil
	}
	if err := a.noteRefusal(what, h, inPostgres, inRedis); err != nil {
		return err
	}
	if a.stubborn {
		return nil
	}
	return errStale
}

// noteRefusal records a refusal.
func (a *application) noteRefusal(what string, h handling, inPostgres, inRedis bool) error {
	at := clock.Shared() // the later delivery has begun before
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range []struct {
		name     string
		accepted bool
	}{{"postgres", inPostgres}, {"redis", inRedis}} {
		if s.accepted {
			continue
		}
		if _, err := fmt.Fprint(a.refused, refusal{s.name, what, event.Key(h.key), h.fence.String(), h.name, at}); err != nil {
			return err
		}
	}
	return nil
}

// lengthOf returns the duration of the work on an event, the same each time. A stubborn application
// has much long work on the keys that it writes about, so that some is running whenever it loses
// keys.
func (a *application) lengthOf(name string, sampled bool) time.Duration {
	hash := xxhash.Sum64String(name)
	if a.stubborn && sampled && hash%stubbornEvery == 0 {
		return stubbornLeast + time.Duration(hash/slowEvery%uint64(stubbornMax-stubbornLeast))
	}
	if hash%slowEvery == 0 || strings.HasPrefix(name, firingPrefix) && hash%longFirings == 0 {
		return longLeast + time.Duration(hash/slowEvery%uint64(longMax-longLeast))
	}
	return time.Duration(hash / slowEvery % uint64(workMax))
}

// consume consumes plain SHARED, with as many handlers at once as beside a router.
func (a *application) consume(ctx context.Context, url string) error {
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: url, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return err
	}
	defer c.Close()
	consumer, err := c.Subscribe(pulsar.ConsumerOptions{
		Topic: eventsTopic, SubscriptionName: subscription, Type: pulsar.Shared, ReceiverQueueSize: handlersMax,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	var handlers errgroup.Group
	handlers.SetLimit(handlersMax)
	defer func() { _ = handlers.Wait() }() // they return no errors
	for {
		m, err := consumer.Receive(ctx)
		if err != nil {
			return nil // end of the context
		}
		handlers.Go(func() error {
			work := context.WithoutCancel(ctx)
			if a.work(work, func() bool { return true }, string(m.Payload()), m.Key(), event.Fence{}) == nil {
				_ = consumer.Ack(m) // if it fails, the event comes again
			}
			return nil
		})
	}
}
