package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/tally"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// endsTimeout bounds the time for the broker's answer about the ends of its topic partitions.
const endsTimeout = 2 * time.Second

// learnEnds asks the broker where its topic partitions end, whenever the pipeline wants to
// know. Without a subscription it does not: the pipeline asks again when there is one.
func (n *Node) learnEnds(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.pipeline.EndsAsked():
		}
		src, number := n.source.Load(), n.pipeline.NewestAsk()
		if src == nil {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, endsTimeout)
		found, known, err := src.Ends(asking)
		cancel()
		if errors.Is(err, source.ErrNotReading) { // also of a source that has ended, before the next one subscribes
			continue
		}
		if err != nil {
			n.log.Warn("the broker did not report the ends of its topics; ids of finished events beyond the last one received here are refused", "error", err)
		}
		ends := make([]admission.End, len(found))
		for i, e := range found {
			ends[i] = admission.End{Topic: e.Topic, Partition: e.Partition, Last: event.Position(e.Last)}
		}
		n.pipeline.LearnEnds(number, ends, known)
	}
}

// refusals counts the results for ids that other members have handed over, and logs refused
// ones: at most a line per refusalsEvery, since any sender can cause it.
type refusals struct {
	node  *Node
	count map[admission.Result]prometheus.Counter

	mu      sync.Mutex
	refused tally.Tally // ids
}

const refusalsEvery = 10 * time.Second

func newRefusals(n *Node) *refusals {
	r := &refusals{node: n, count: make(map[admission.Result]prometheus.Counter)}
	for result := range admission.Results {
		r.count[result] = n.metrics.admitted.WithLabelValues(result.String()) // from the start: an increase is only seen from a count that was there before it
	}
	return r
}

// judged records the results for the ids of one sender.
func (r *refusals) judged(j admission.Judged) {
	for result, n := range j.Counts {
		if n > 0 {
			r.count[admission.Result(result)].Add(float64(n))
		}
	}
	if j.Counts.Refused() == 0 {
		return
	}
	r.mu.Lock()
	ids, due := r.refused.Add(clock.Now(), j.Counts.Refused(), refusalsEvery)
	r.mu.Unlock()
	if !due {
		return
	}
	attrs := []any{"ids", ids, "peer", j.Name, "incarnation", ownership.Incarnation(j.From).String()}
	for result := admission.Unproven; int(result) < len(j.Counts); result++ {
		if n := j.Counts[result]; n > 0 {
			attrs = append(attrs, result.String(), n)
		}
	}
	r.node.log.Warn("ids of finished events were refused; those events are handled again if they are redelivered", attrs...)
}

// ForgetDone forgets the ids of recently finished events, and returns their number. An operator
// requests it, of all members, before a replay: redelivered events then run again, instead of
// being acked.
func (n *Node) ForgetDone() (ids int) {
	ids = n.pipeline.ForgetDone() + n.pool.ForgetHandover()
	n.log.Warn("ids of finished events were forgotten on request: redelivered events are handled again", "ids", ids)
	return ids
}
