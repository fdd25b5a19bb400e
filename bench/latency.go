package main

import (
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latencySample is one repetition at a fixed rate.
type latencySample struct {
	start, end *hdrhistogram.Histogram
	acked      time.Duration // mean, as the broker sees it; 0: unknown
	behind     int           // events not handled when the last one was published
	cpu        map[string]float64
}

func (s latencySample) line(Options) string {
	q := quantilesOf(s.start)
	return fmt.Sprintf("start p50 %.2f  p99 %.2f  p99.9 %.2f ms", q.P50, q.P99, q.P999)
}

// ackTick is the interval of queries for unacked entries; an answer costs the broker a
// millisecond.
const ackTick = 250 * time.Millisecond

// catchUpMax bounds the time for handling the last published events.
const catchUpMax = 10 * time.Second

// latency publishes at a fixed rate, and lets the applications measure.
func (r round) latency(ctx context.Context) (s latencySample, err error) {
	load := r.options.load()
	rec := record{latencies: true, latencyFrom: load.warmUp}
	err = r.onLoad(ctx, rec, func(ctx context.Context, c *cluster, p *publisher) error {
		var unacked []entries
		var from time.Time
		_, err = r.paced(ctx, c, p, func(since time.Duration) {
			if since < r.options.WarmUp {
				return
			}
			c.sampleCPU()
			if from.IsZero() {
				from = time.Now()
			}
			if r.admin.there() && (len(unacked) == 0 || time.Since(unacked[len(unacked)-1].at) >= ackTick) {
				if e, err := r.admin.entriesOf(ctx, r.topic, r.partitions()); err == nil { // one answer less is no harm
					unacked = append(unacked, e)
				}
			}
		})
		if err != nil {
			return err
		}
		to := time.Now()
		s.behind = max(0, load.count-total(c.procs))
		s.cpu = cpuPerEvent(c.procs, from, to, to.Sub(from).Seconds()*float64(r.options.Rate))
		s.acked = meanOpen(unacked)
		catchUp, done := context.WithTimeout(ctx, catchUpMax)
		_ = c.awaitHandled(catchUp, load.count, func() {}) // events missing then are reported as behind
		done()
		c.stopApps()
		s.start, s.end = newHistogram(), newHistogram()
		for _, p := range c.apps() {
			if err := mergeLatencies(p.latency, s.start, s.end); err != nil {
				return err
			}
		}
		return nil
	})
	return s, err
}
