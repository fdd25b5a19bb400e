package node

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
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
func (s steps) Note(ownership.Note)                       {}
func (s steps) Covered(ownership.Covered)                 {}
func (s steps) TakenOver(ownership.TakenOver)             {}
func (s steps) HandOverLate()                             { s <- "hand over" }

func (s steps) Rest(ownership.Set) (idle ownership.Set, busy []ownership.Busy) {
	s <- "rest"
	return idle, busy
}

// A reader of a Beat without a running delivery must know its result: late results are handed
// over after the question which deliveries run, and before the Beat with the answer.
func TestWhatHasEndedIsToldBeforeTheBeat(t *testing.T) {
	calls := make(steps, 16)
	d := newDriverLoop(revoking{}, calls, nothingToHandOver, nothingNew)
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
			case <-time.After(time.Minute):
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

func nothingToHandOver() (more bool) { return false }

func nothingNew() []ownership.Input { return nil }

// idleHost is the host of a member without events.
type idleHost struct{ driver.ControlLog }

func (idleHost) SetGates([]ownership.GateChange)                            {}
func (idleHost) Revoke(ownership.Revoke)                                    {}
func (idleHost) Force(ownership.ForceDrain)                                 {}
func (idleHost) SetLease(ownership.Lease)                                   {}
func (idleHost) SetTable(*ownership.Table)                                  {}
func (idleHost) Covered(ownership.Covered)                                  {}
func (idleHost) TakenOver(ownership.TakenOver)                              {}
func (idleHost) HandOverLate()                                              {}
func (idleHost) Rest(asked ownership.Set) (ownership.Set, []ownership.Busy) { return asked, nil }
func (idleHost) Note(ownership.Note)                                        {}

// counting is a machine that counts its steps and the pictures of it.
type counting struct{ steps, pictures int }

func (c *counting) Step(_ clock.Instant, in ownership.Input) []ownership.Effect {
	if _, ok := in.(ownership.CheckAnswer); ok {
		c.steps++
	}
	if c.steps == inputsMax {
		return []ownership.Effect{ownership.Left{}}
	}
	return nil
}

func (*counting) Next() clock.Instant { return clock.Forever }

func (c *counting) Status(clock.Instant) ownership.Status {
	c.pictures++
	return ownership.Status{}
}

// Inputs that wait are taken in at once, not one for each turn of the driver.
func TestInputsThatWaitAreTakenTogether(t *testing.T) {
	m := &counting{}
	d := newDriverLoop(m, idleHost{}, nothingToHandOver, nothingNew)
	for range inputsMax {
		d.deliver(ownership.CheckAnswer{})
	}
	if _, ok := d.run(t.Context()).(ownership.Left); !ok || m.steps != inputsMax {
		t.Fatalf("the driver ended after %d of %d inputs", m.steps, inputsMax)
	}
	if m.pictures > 2 { // the other one is of a Tick
		t.Errorf("%d inputs that waited took %d turns", m.steps, m.pictures)
	}
}
