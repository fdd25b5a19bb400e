package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// roundMax bounds the duration of one round of one mode.
const roundMax = 5 * time.Minute

// round is one mode at one workload, once: a topic of its own, and processes of
// their own.
type round struct {
	options Options
	mode    mode
	topic   string
	dir     string
	admin   admin
	warn    io.Writer // for problems that do not affect figures
}

// run gives do a topic, which is deleted afterwards.
func (r round) run(ctx context.Context, do func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, roundMax)
	defer cancel()
	if r.mode.partitioned {
		if err := r.admin.createPartitioned(ctx, r.topic, r.options.Nodes); err != nil {
			return fmt.Errorf("create %s: %w", r.topic, err)
		}
	}
	defer func() {
		if gone := r.admin.deleteRound(context.WithoutCancel(ctx), r.topic); gone != nil {
			fmt.Fprintf(r.warn, "bench: a topic stays: %v\n", gone)
		}
	}()
	return do(ctx)
}

// newRound names a round so that no two have the same topic.
func newRound(o Options, m mode, workload, dir string, number int, warn io.Writer) round {
	name := fmt.Sprintf("bench-%s-%s-%d-%x", workload, m.name, number, time.Now().UnixNano())
	return round{
		options: o, mode: m, topic: "persistent://" + namespace + "/" + name, dir: filepath.Join(dir, name),
		admin: admin{pulsaradmin.Client{URL: o.AdminURL}}, warn: warn,
	}
}

// partitions returns the number of partitions of the topic, 0 if it is not partitioned.
func (r round) partitions() int {
	if r.mode.partitioned {
		return r.options.Nodes
	}
	return 0
}

// onLoad gives do a cluster on an empty topic, and a publisher for it.
func (r round) onLoad(ctx context.Context, rec record, do func(context.Context, *cluster, *publisher) error) error {
	return r.run(ctx, func(ctx context.Context) error {
		p, err := newPublisher(r.options, r.mode, r.topic)
		if err != nil {
			return err
		}
		defer p.close()
		return r.withCluster(ctx, rec, func(ctx context.Context, c *cluster) error { return do(ctx, c, p) })
	})
}

// onBacklog gives do a cluster that has just been started on a topic filled by fill.
func (r round) onBacklog(ctx context.Context, fill func(context.Context, *publisher) error, rec record, do func(context.Context, *cluster) error) error {
	return r.run(ctx, func(ctx context.Context) error {
		if err := r.backlog(ctx, fill); err != nil {
			return err
		}
		return r.withCluster(ctx, rec, do)
	})
}

// withCluster gives do the processes of the mode, which are ended afterwards.
func (r round) withCluster(ctx context.Context, rec record, do func(context.Context, *cluster) error) error {
	ctx, cancel := context.WithCancel(ctx)
	c, err := startCluster(ctx, r.options, r.mode, r.topic, r.dir, rec)
	defer c.end(cancel)
	if err != nil {
		return err
	}
	return do(ctx, c)
}

// backlog fills the topic.
func (r round) backlog(ctx context.Context, fill func(context.Context, *publisher) error) error {
	p, err := newPublisher(r.options, r.mode, r.topic)
	if err != nil {
		return err
	}
	defer p.close()
	if err := fill(ctx, p); err != nil {
		return fmt.Errorf("fill %s: %w", r.topic, err)
	}
	return ctx.Err()
}

// watchTick is the interval at which a round checks its processes.
const watchTick = 50 * time.Millisecond

// load is the load of a paced round: WarmUp and Measure at Rate.
type load struct {
	warmUp int // events before those that count
	count  int
}

func (o Options) load() load {
	return load{warmUp: o.eventsIn(o.WarmUp), count: o.eventsIn(o.WarmUp + o.Measure)}
}

// eventsIn returns the number of events that are published in d at Rate.
func (o Options) eventsIn(d time.Duration) int { return int(d.Seconds() * float64(o.Rate)) }

// paced publishes the load to processes that are ready, and calls watch all the time,
// with the time since the first event. It returns when everything is published.
func (r round) paced(ctx context.Context, c *cluster, p *publisher, watch func(time.Duration)) (timetable, error) {
	if err := c.awaitReady(ctx); err != nil {
		return timetable{}, err
	}
	t := timetable{begin: clock.Now(), rate: r.options.Rate}
	published := make(chan error, 1)
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() { published <- p.paced(ctx, t, r.options.load().count) })
	tick := time.NewTicker(watchTick)
	defer tick.Stop()
	for {
		select {
		case err := <-published:
			return t, err
		case <-tick.C:
			watch(clock.Now().Sub(t.begin))
		}
	}
}
