package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
)

// disturbSample is one round of a workload with a disturbed half.
type disturbSample struct {
	both      [2]half
	allowance allowance
	perEntry  float64 // events in an entry; 0 if the broker did not say
}

func (s disturbSample) line(o Options) string {
	return disturbResult(o, mode{}, []disturbSample{s}).Disturbed.String()
}

// lateMax bounds the time after the end within which events of other keys may begin. Later ones
// count as if they began then.
const lateMax = 3 * time.Second

// allowanceTick is the interval of queries for the broker's count of unacked events.
const allowanceTick = 500 * time.Millisecond

// stuck publishes at a fixed rate; in the second half some keys' handlers hang, and
// others' fail.
func (r round) stuck(ctx context.Context) (disturbSample, error) {
	o := r.options
	d := disturbance{slow: int(o.Stuck * float64(o.Keys)), fails: int(o.PoisonPill * float64(o.Keys)), takes: o.StuckFor}
	pick := keyPicker(o.Distribution, o.Keys)
	return r.disturb(ctx, d, func(int) int { return pick() })
}

// hot publishes at a fixed rate; in the second half every second event is of one key,
// whose handler cannot keep up with that.
func (r round) hot(ctx context.Context) (disturbSample, error) {
	half := r.options.plan().half
	random := rand.New(rand.NewPCG(1, 1))
	return r.disturb(ctx, disturbance{slow: 1, takes: r.options.HotTakes}, func(n int) int {
		if n >= half && n%2 == 0 {
			return 0
		}
		return random.IntN(r.options.Keys)
	})
}

// disturb publishes events of the keys that pick selects, and measures the effect of the
// disturbed half on undisturbed keys.
func (r round) disturb(ctx context.Context, d disturbance, pick func(n int) int) (s disturbSample, err error) {
	plan := r.options.plan()
	r.options.Measure *= 2 // used by paced
	times := newTimes(plan)
	var others []int
	err = r.onLoad(ctx, record{timeline: &plan, disturbance: d}, func(ctx context.Context, c *cluster, p *publisher) error {
		next := 0
		p.pick = func() int {
			n := next
			next++
			key := pick(n)
			if key >= d.keys() {
				others = append(others, n)
			}
			return key
		}
		watch := r.watchAllowance(ctx, &s.allowance)
		_, err := r.paced(ctx, c, p, func(since time.Duration) {
			if since >= r.options.WarmUp+r.options.Measure/2 {
				watch()
			}
		})
		if err != nil {
			return err
		}
		if err := backoff.Sleep(ctx, lateMax); err != nil {
			return err
		}
		if e, err := r.admin.entriesOf(ctx, r.topic, r.partitions()); err == nil && e.added > 0 {
			s.perEntry = float64(next) / e.added
		}
		c.stopApps()
		for _, app := range c.apps() {
			if err := mergeTimeline(app.latency, times); err != nil {
				return errors.Join(err, c.lastWords())
			}
		}
		s.both = times.halves(plan, others)
		return nil
	})
	return s, err
}

// Disturbed is the effect that a disturbance of some keys has on all other keys, over all repetitions.
type Disturbed struct {
	Before Half `json:"undisturbed"`
	After  Half `json:"disturbed"`
	// Kept is the share of published events that was handled in time, of the disturbed half
	// divided by that of the undisturbed one.
	Kept float64 `json:"throughput_kept"`
	// P99Ratio divides the p99 of the disturbed half by that of the undisturbed one.
	P99Ratio float64 `json:"p99_ratio"`
	// The broker's maximum count of unacked events in the disturbed half, and whether it
	// blocked a consumer or the subscription for it.
	UnackedConsumer     int  `json:"unacked_consumer_max"`
	UnackedSubscription int  `json:"unacked_subscription_max"`
	Blocked             bool `json:"blocked"`

	PerEntry float64 `json:"events_per_entry"` // of the topic, retries not counted; 0 if the broker did not say
}

// Half is one half, of the keys that are not disturbed.
type Half struct {
	PublishedPerS float64   `json:"published_per_s"`
	HandledPerS   float64   `json:"handled_per_s"`
	Late          int       `json:"late"` // not begun when the round was over
	Start         Quantiles `json:"start"`
	End           Quantiles `json:"end"`
}

func disturbResult(o Options, m mode, samples []disturbSample) Result {
	d := &Disturbed{}
	for i, to := range []*Half{&d.Before, &d.After} {
		sum := newHalf()
		for _, s := range samples {
			sum.start.Merge(s.both[i].start)
			sum.end.Merge(s.both[i].end)
			seconds := o.Measure.Seconds() * float64(len(samples))
			to.PublishedPerS += float64(s.both[i].published) / seconds
			to.HandledPerS += float64(s.both[i].handled) / seconds
			to.Late += s.both[i].late
		}
		to.Start, to.End = quantilesOf(sum.start), quantilesOf(sum.end)
	}
	if before, after := d.Before, d.After; before.HandledPerS > 0 && after.PublishedPerS > 0 && before.Start.P99 > 0 {
		d.Kept = (after.HandledPerS / after.PublishedPerS) / (before.HandledPerS / before.PublishedPerS)
		d.P99Ratio = after.Start.P99 / before.Start.P99
	}
	for _, s := range samples {
		d.UnackedConsumer = max(d.UnackedConsumer, s.allowance.Consumer)
		d.UnackedSubscription = max(d.UnackedSubscription, s.allowance.Subscription)
		d.Blocked = d.Blocked || s.allowance.Blocked
		d.PerEntry = max(d.PerEntry, s.perEntry)
	}
	return Result{Mode: m.name, Batching: m.batchingFor(o), Events: o.plan().to, Repetitions: len(samples), Disturbed: d}
}

func (d *Disturbed) String() string {
	text := fmt.Sprintf("others keep %.3f (%.0f of %.0f/s)  start p99 %8.2f → %8.2f ms (%.2f×)  unacked at most %d, of one consumer %d",
		d.Kept, d.After.HandledPerS, d.After.PublishedPerS, d.Before.Start.P99, d.After.Start.P99, d.P99Ratio, d.UnackedSubscription, d.UnackedConsumer)
	if d.PerEntry > 0 {
		text += fmt.Sprintf("  %.0f events in an entry", d.PerEntry)
	}
	if d.Blocked {
		text += "  BLOCKED by the broker"
	}
	return text
}
