package node

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// shown is a machine that publishes the incarnations that the control log names, each time that they change, and the reasons why its gates wait,
// so that readers need not query it: after one of its own steps, if there was a reader since the last time, and twice a
// second at most. A read neither wakes the goroutine that steps it nor waits for a lock that
// this goroutine takes.
type shown struct {
	*ownership.Machine

	publish func(directory) // does not block
	named   census          // as published

	wanted atomic.Bool
	newest atomic.Pointer[gateWaits]
}

// waitsEvery is the least time between two publications.
const waitsEvery = 500 * time.Millisecond

// gateWaits are the waits of a machine's gates. It is immutable.
type gateWaits struct {
	at         clock.Instant // 0: before the first publication
	partitions map[ring.Partition]waiting
	next       chan struct{} // closed when there is a newer one
}

// waiting lists the reasons why one gate, or keys behind it, wait.
type waiting struct {
	blockers []ownership.Blocker
	names    []string // of their members; "": unknown
	running  bool     // a delivery of an own earlier tenure
}

func newShown(m *ownership.Machine, publish func(directory)) *shown {
	s := &shown{Machine: m, publish: publish}
	s.newest.Store(&gateWaits{next: make(chan struct{})})
	return s
}

// Step implements machine.
func (s *shown) Step(now clock.Instant, in ownership.Input) []ownership.Effect {
	effects := s.Machine.Step(now, in)
	if named := s.named.changed(s.State()); named != nil {
		s.publish(named)
	}
	if s.wanted.Load() && now.Sub(s.newest.Load().at) >= waitsEvery {
		s.wanted.Store(false)
		before := s.newest.Swap(s.picture(now))
		close(before.next)
	}
	return effects
}

func (s *shown) picture(now clock.Instant) *gateWaits {
	w := &gateWaits{at: now, partitions: make(map[ring.Partition]waiting), next: make(chan struct{})}
	for p := range ring.Partition(ring.Partitions) {
		if g := s.Gate(p); g != ownership.Waiting && g != ownership.Open { // an open one may withhold keys
			continue
		}
		blockers, running := s.Why(p)
		if len(blockers) == 0 && !running {
			continue
		}
		one := waiting{blockers: blockers, running: running}
		for _, b := range blockers {
			known, _ := s.State().Node(b.Inc)
			one.names = append(one.names, known.Name)
		}
		w.partitions[p] = one
	}
	return w
}

// look returns the recently published waits. If there are none, it waits for the next step, at
// most until ctx ends, and then returns the last ones.
func (s *shown) look(ctx context.Context) *gateWaits {
	newest := s.newest.Load()
	if newest.at != 0 && clock.Now().Sub(newest.at) < waitsEvery {
		return newest
	}
	s.wanted.Store(true)
	select {
	case <-newest.next:
	case <-ctx.Done():
	}
	return s.newest.Load()
}
