package driver_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
)

// script is a machine that answers each kind of input with the same effects, and notes its inputs.
type script struct {
	effects map[string][]ownership.Effect
	steps   []string
}

func (s *script) Step(now clock.Instant, in ownership.Input) []ownership.Effect {
	kind := fmt.Sprintf("%T", in)
	s.steps = append(s.steps, fmt.Sprintf("%d %s", now, kind))
	return s.effects[kind]
}

func (s *script) Next() clock.Instant                   { return clock.Forever }
func (s *script) Status(clock.Instant) ownership.Status { return ownership.Status{} }

// host notes the effects that it performs.
type host struct{ calls []string }

func (h *host) call(name string)                          { h.calls = append(h.calls, name) }
func (h *host) OpenReader(ownership.OpenReader)           { h.call("open reader") }
func (h *host) CheckContiguity(ownership.CheckContiguity) { h.call("check") }
func (h *host) Append(ownership.Append)                   { h.call("append") }
func (h *host) MoveAnchor(ownership.MoveAnchor)           { h.call("move anchor") }
func (h *host) Covered(ownership.Covered)                 { h.call("covered") }
func (h *host) TakenOver(ownership.TakenOver)             { h.call("taken over") }
func (h *host) ReadFirst(ownership.ReadFirst)             { h.call("read first") }
func (h *host) SetGates([]ownership.GateChange)           { h.call("set gates") }
func (h *host) Revoke(r ownership.Revoke)                 { h.call(fmt.Sprint("revoke ", r.Seq)) }
func (h *host) Force(ownership.ForceDrain)                { h.call("force") }
func (h *host) SetLease(ownership.Lease)                  { h.call("set lease") }
func (h *host) SetTable(*ownership.Table)                 { h.call("set table") }
func (h *host) HandOverLate()                             { h.call("hand over late") }
func (h *host) Note(ownership.Note)                       { h.call("note") }

func (h *host) Rest(asked ownership.Set) (ownership.Set, []ownership.Busy) {
	h.call(fmt.Sprint("rest ", slices.Collect(asked.All())))
	return asked, nil
}

// advance advances d until it rests or has ended, one instant later each time.
func advance(t *testing.T, d *driver.Driver) (progress []driver.Progress) {
	t.Helper()
	for now := clock.Instant(1); ; now++ {
		p := d.Advance(now)
		progress = append(progress, p)
		if p == driver.AtRest || p == driver.Ended {
			return progress
		}
		if now > 100 {
			t.Fatal("the driver does not come to rest")
		}
	}
}

func expect[T comparable](t *testing.T, what string, got []T, want ...T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

// All effects are performed in their order, one for each call, before the next input is taken.
func TestEffectsKeepTheirOrder(t *testing.T) {
	m := &script{effects: map[string][]ownership.Effect{
		"ownership.Tick": {
			ownership.OpenReader{},
			ownership.CheckContiguity{},
			ownership.Append{},
			ownership.MoveAnchor{},
			ownership.ReadFirst{},
			ownership.Covered{},
			ownership.SetGates{},
			ownership.ForceDrain{},
			ownership.SetLease{},
			ownership.PublishTable{},
			ownership.TakenOver{},
			ownership.Note{},
		},
	}}
	h := &host{}
	d := driver.New(m, h)
	expect(t, "without inputs", advance(t, d), driver.AtRest)
	d.Put(ownership.Tick{})
	d.Put(ownership.Leave{})
	if p := d.Advance(7); p != driver.Stepped || d.At() != 7 || d.Taken() != (ownership.Tick{}) {
		t.Errorf("progress %v at %v with %v", p, d.At(), d.Taken())
	}
	if effects, inputs := d.Pending(); len(effects) != 12 || !inputs {
		t.Errorf("%d effects and inputs %v wait", len(effects), inputs)
	}
	advance(t, d)
	expect(t, "calls", h.calls, "open reader", "check", "append", "move anchor", "read first", "covered", "set gates", "force", "set lease", "set table", "taken over", "note")
	expect(t, "steps", m.steps, "7 ownership.Tick", "13 ownership.Leave")
	if effects, inputs := d.Pending(); len(effects) != 0 || inputs || d.End() != nil {
		t.Errorf("at rest, %d effects and inputs %v wait, end %v", len(effects), inputs, d.End())
	}
}

// Revokes are answered before waiting inputs, at the instant of their step. Late results are handed
// over after the call of Rest and before the Beat that follows.
func TestRevokeIsAnsweredFirst(t *testing.T) {
	m := &script{effects: map[string][]ownership.Effect{
		"ownership.Leave":   {ownership.Revoke{Seq: 4, Partitions: ownership.SetOf(7)}, ownership.Revoke{Seq: 5, Partitions: ownership.SetOf(9)}, ownership.Note{}},
		"ownership.Drained": {ownership.Append{}},
	}}
	h := &host{}
	d := driver.New(m, h)
	d.Put(ownership.Leave{})
	d.Put(ownership.Tick{})
	advance(t, d)
	expect(t, "calls", h.calls, "revoke 4", "revoke 5", "note", "rest [7 9]", "hand over late", "append")
	expect(t, "steps", m.steps, "1 ownership.Leave", "1 ownership.Drained", "7 ownership.Tick")
	if in, ok := d.Rest(nil).(ownership.Drained); !ok || in.Seq != 5 {
		t.Errorf("the newest answer is %+v", d.Rest(nil))
	}
}

// The effect that ends a machine is the last: no other is performed, and no input is taken.
func TestNothingFollowsTheEnd(t *testing.T) {
	for _, end := range []ownership.Effect{ownership.Lost{Reason: "x"}, ownership.Exit{Reason: "x"}, ownership.Left{}} {
		m := &script{effects: map[string][]ownership.Effect{"ownership.Tick": {ownership.Note{}, end, ownership.Append{}}}}
		h := &host{}
		d := driver.New(m, h)
		d.Put(ownership.Tick{})
		d.Put(ownership.Leave{})
		expect(t, "progress", advance(t, d), driver.Stepped, driver.Performed, driver.Performed, driver.Ended)
		expect(t, "calls", h.calls, "note")
		expect(t, "steps", m.steps, "1 ownership.Tick")
		if d.End() != end {
			t.Errorf("the end is %v, want %v", d.End(), end)
		}
	}
}
