package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/signal"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

// workerCommand makes this binary one application process of a run.
const workerCommand = "worker"

// worker is one application process. Its methods are safe for concurrent use.
type worker struct {
	name     string
	mode     mode
	topic    string
	pulsar   string
	redis    string
	endpoint string

	handler     handler
	stalledKeys int
	stall       time.Duration
	disturbance disturbance     // from the disturbed half on
	ending      <-chan struct{} // closed when the process must stop
	singleAcks  bool            // the broker counts acks of single events in a batch

	journal   *journal.Writer // nil: none
	latencies *latencies      // nil: none
	timeline  *timeline       // nil: none
	callee    callee          // of calls
	handled   atomic.Int64
}

// runWorker consumes until SIGTERM, and prints the number of handled events ten
// times a second.
func runWorker(args []string) error {
	w := &worker{}
	f := flag.NewFlagSet(workerCommand, flag.ContinueOnError)
	f.StringVar(&w.name, "name", "", "of this process, unique in its run")
	name := f.String("mode", "", "one of "+modeNames())
	work := f.String("handler", "none", "none, json or how long it waits")
	f.StringVar(&w.pulsar, "pulsar", "", "the broker")
	f.StringVar(&w.topic, "topic", "", "the topic")
	f.StringVar(&w.redis, "redis", "", "address of the Redis, for redlock")
	f.StringVar(&w.endpoint, "endpoint", "", "the router, for ringfence")
	f.IntVar(&w.stalledKeys, "stalled-keys", 0, "keys whose handler waits for --stall")
	f.DurationVar(&w.stall, "stall", 0, "how long")
	journalPath := f.String("journal", "", "file to write starts and ends to")
	latencyPath := f.String("latencies", "", "file to write latencies to, at the end")
	latencyFrom := f.Int("latency-from", 0, "number of the first event whose latency counts")
	var p plan
	timelinePath := f.String("timeline", "", "file for the start and end of each event, written at the end")
	f.IntVar(&p.from, "plan-from", 0, "number of the first event of the undisturbed half")
	f.IntVar(&p.half, "plan-half", 0, "number of the first event of the disturbed half")
	f.IntVar(&p.to, "plan-to", 0, "number of the first event after it")
	f.IntVar(&p.rate, "plan-rate", 0, "events a second")
	f.IntVar(&w.disturbance.slow, "disturb-slow", 0, "keys whose handler takes --disturb-takes in the disturbed half")
	f.IntVar(&w.disturbance.fails, "disturb-fails", 0, "keys after these whose handler fails")
	f.DurationVar(&w.disturbance.takes, "disturb-takes", 0, "how long")
	tallyPath := f.String("tally", "", "file for the tally of the calls, written at the end")
	f.IntVar(&w.callee.node, "node", 0, "number of this node, for calls")
	f.BoolVar(&w.singleAcks, "single-acks", false, "the broker counts acks of single events in a batch")
	if err := f.Parse(args); err != nil {
		return err
	}
	var known bool
	if w.mode, known = modeNamed(*name); !known {
		return fmt.Errorf("mode %q is not one of %s", *name, modeNames())
	}
	var err error
	if w.handler, err = parseHandler(*work); err != nil {
		return err
	}
	if *journalPath != "" {
		if w.journal, err = journal.Create(*journalPath); err != nil {
			return err
		}
	}
	if *latencyPath != "" {
		w.latencies = newLatencies(*latencyFrom)
	}
	if *timelinePath != "" {
		w.timeline = newTimeline(p)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	w.ending = ctx.Done()
	if err := w.consume(ctx); err != nil {
		return err
	}
	switch {
	case *tallyPath != "":
		return w.callee.write(*tallyPath)
	case w.timeline != nil:
		return w.timeline.write(*timelinePath)
	case w.latencies != nil:
		return w.latencies.write(*latencyPath)
	}
	return nil
}

func (w *worker) consume(ctx context.Context) error {
	switch w.mode.name {
	case modeRingfence:
	case modeInvoke, modeUnary:
		return w.serveCalls(ctx)
	case modeReserve, modeCovered: // it handles nothing, but a router owns no keys without an application
		var report sync.WaitGroup
		defer report.Wait()
		report.Go(func() { w.reportProgress(ctx) })
		return client.Run(ctx, w.endpoint, func(context.Context, *client.Event) error { return errEvent })
	case modeBare:
		return w.consumeBare(ctx)
	default:
		return w.consumeTopic(ctx)
	}
	var report sync.WaitGroup
	defer report.Wait()
	report.Go(func() { w.reportProgress(ctx) })
	atOnce := receiverQueue // as many as the other modes' receiver queues hold
	if w.waits() {
		atOnce = waitingHandlers
	}
	return client.Run(ctx, w.endpoint, func(_ context.Context, e *client.Event) error {
		if err := w.handle(e.Key, e.Payload, event.Fence(e.Fence)); err != nil {
			return err
		}
		w.finished(e.Key, e.Payload)
		return nil
	}, client.WithMaxInFlight(atOnce))
}

// reportProgress prints how many events have been handled and how many bytes of heap were allocated, ten times a second.
func (w *worker) reportProgress(ctx context.Context) {
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			metrics.Read(allocated)
			fmt.Println(w.handled.Load(), allocated[0].Value.Uint64())
		}
	}
}

// waits reports whether handlers of this run spend their time waiting.
func (w *worker) waits() bool {
	return w.handler.wait > 0 || w.stalledKeys > 0 || w.disturbance.keys() > 0
}

// handlers returns the number of concurrent handlers in a mode that is neither striped nor
// Ringfence.
func (w *worker) handlers() int {
	switch {
	case w.waits():
		return waitingHandlers
	case w.mode.name == modeRedlock:
		return lockHandlers
	}
	return runtime.GOMAXPROCS(0)
}

// handle is the application's work for an event. Runs that measure speed have no bookkeeping.
func (w *worker) handle(key string, payload []byte, fence event.Fence) error {
	if w.journal == nil {
		return w.work(key, payload)
	}
	n, _, err := readStamp(payload)
	if err != nil {
		return err
	}
	h, err := w.journal.Start(eventName(n), event.Key(key), fence)
	if err != nil {
		return err
	}
	if err := w.work(key, payload); err != nil {
		return errors.Join(err, w.journal.End(h, journal.Failed))
	}
	return w.journal.End(h, journal.Done)
}

func (w *worker) work(key string, payload []byte) error {
	if w.latencies != nil && !w.stalled(key) {
		w.latencies.started(payload, clock.Now())
	}
	if w.timeline != nil && keyNumber(key) < w.disturbance.keys() {
		return w.disturb(key, payload)
	} else if w.timeline != nil {
		w.timeline.started(payload, clock.Now())
	}
	switch {
	case w.stalled(key):
		time.Sleep(w.stall)
	case w.handler.wait > 0:
		time.Sleep(w.handler.wait)
	case w.handler.decode:
		return decode(payload)
	}
	return nil
}

// errDisturbed is the error of the handlers that are to fail.
var errDisturbed = errors.New("a failure that the benchmark requested")

// disturb is the work on an event of a key that is disturbed.
func (w *worker) disturb(key string, payload []byte) error {
	n, _, err := readStamp(payload)
	switch {
	case err != nil || n < w.timeline.plan.half:
		return err
	case keyNumber(key) >= w.disturbance.slow:
		return errDisturbed
	}
	timer := time.NewTimer(w.disturbance.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-w.ending:
		return errDisturbed
	}
}

func (w *worker) stalled(key string) bool {
	return w.stalledKeys > 0 && keyNumber(key) < w.stalledKeys
}

// finished counts an event, after the application has acked it.
func (w *worker) finished(key string, payload []byte) {
	if w.latencies != nil && !w.stalled(key) {
		w.latencies.finished(payload, clock.Now())
	}
	if w.timeline != nil && keyNumber(key) >= w.disturbance.keys() {
		w.timeline.finished(payload, clock.Now())
	}
	w.handled.Add(1)
}
