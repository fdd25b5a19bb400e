package node

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// revoking is a machine that revokes when it is asked to leave, and sends a Beat when it gets a
// Drained.
type revoking struct{}

func (revoking) Step(_ clock.Instant, in ownership.Input) []ownership.Effect {
	switch in.(type) {
	case ownership.Leave:
		return []ownership.Effect{ownership.Revoke{Seq: 1, Partitions: ownership.SetOf(7)}}
	case ownership.Drained:
		return []ownership.Effect{ownership.Append{}}
	}
	return nil
}

func (revoking) Next() clock.Instant { return clock.Forever }

func (revoking) Status(clock.Instant) ownership.Status { return ownership.Status{} }

// steps records the calls of a driver whose order is tested.
type steps chan string

func (s steps) OpenReader(ownership.OpenReader)           {}
func (s steps) CheckContiguity(ownership.CheckContiguity) {}
func (s steps) Append(ownership.Append)                   { s <- "append" }
func (s steps) MoveAnchor(ownership.MoveAnchor)           {}
func (s steps) ReadFirst(ownership.ReadFirst)             {}
func (s steps) SetGates([]ownership.GateChange)           {}
func (s steps) Revoke(ownership.Revoke)                   { s <- "revoke" }
func (s steps) Force(ownership.ForceDrain)                {}
func (s steps) SetLease(ownership.Lease)                  {}
func (s steps) SetTable(*ownership.Table)                 {}
func (s steps) HandOver() (more bool)                     { return false }
func (s steps) HandOverLate()                             { s <- "hand over" }

func (s steps) Rest(ownership.Set) (idle ownership.Set, busy []ownership.Busy) {
	s <- "rest"
	return idle, busy
}

// A reader of a Beat without a running delivery must know its result: late results are handed
// over after the question which deliveries run, and before the Beat with the answer.
func TestWhatHasEndedIsToldBeforeTheBeat(t *testing.T) {
	calls := make(steps, 16)
	d := newDriverLoop(revoking{}, calls, calls, nil, func() []ownership.Input { return nil })
	ctx, stop := context.WithCancel(t.Context())
	go d.run(ctx)
	defer func() { stop(); <-d.ended }()
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			select {
			case call := <-calls:
				got = append(got, call)
			case <-time.After(10 * time.Second):
				t.Fatalf("calls %v, and then none; want %v", got, want)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("calls %v, want %v", got, want)
		}
	}
	d.deliver(ownership.Leave{})
	expect("revoke", "rest", "hand over", "append")
	d.drained([]ring.Partition{7})
	expect("rest", "hand over", "append")
}
