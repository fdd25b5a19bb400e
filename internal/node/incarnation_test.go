package node

import (
	"slices"
	"testing"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
)

// hearing is a machine that notes what it hears of the application, and ends when there is one.
type hearing struct{ heard []bool }

func (h *hearing) Step(_ clock.Instant, in ownership.Input) []ownership.Effect {
	app, ok := in.(ownership.AppReady)
	if !ok {
		return nil
	}
	h.heard = append(h.heard, app.Ready)
	if app.Ready {
		return []ownership.Effect{ownership.Left{}}
	}
	return nil
}

func (*hearing) Next() clock.Instant { return clock.Forever }

func (*hearing) Status(clock.Instant) ownership.Status { return ownership.Status{} }

// A machine hears the number of workers as it is when the driver takes it: one that was read before, and is delivered after a newer one, would be the last
// that it hears.
func TestAMachineHearsTheNewestOfTheApplication(t *testing.T) {
	_, before := standing(t)
	n := before.node
	changes := []int{1, 0, 2}
	for _, name := range []string{"the number changes while the incarnation begins", "it changed before"} {
		m := &hearing{}
		l := &incarnation{node: n}
		l.drive(m, nil)
		n.incarnation.Store(l)
		n.replayInputs(l)
		for _, workers := range changes {
			n.workersChanged(workers)
		}
		changes = nil
		if l.driver.run(t.Context()); !slices.Equal(m.heard, []bool{true}) {
			t.Errorf("%s: heard %v, want true, once", name, m.heard)
		}
	}
}
