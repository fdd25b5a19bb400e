package ownership

import (
	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/ring"
)

// Machine is one incarnation of one member. It is not safe for concurrent use.
type Machine struct {
	cfg Config
}

// New returns the machine of a new incarnation. cfg must be valid.
func New(cfg Config) *Machine { return &Machine{cfg: cfg} }

// Step applies in at time now, which never falls.
func (m *Machine) Step(now clock.Instant, in Input) []Effect { return nil }

// Next returns when Step is due at the latest.
func (m *Machine) Next() clock.Instant { return clock.Forever }

// Phase is where a node stands.
type Phase string

// The phases of a node.
const (
	Joining Phase = "joining" // no state yet
	Stale   Phase = "stale"   // state, no lease
	Fresh   Phase = "fresh"   // state and a valid lease; member or not
	Leaving Phase = "leaving"
	Over    Phase = "over" // lost, exited or left
)

// Status is a picture of a machine, for health and the admin page.
type Status struct {
	Phase    Phase
	Member   bool
	Lease    Lease
	Applied  Position // newest record taken in
	Cur      Position
	Open     int // gates
	Waiting  int
	Draining int
}

// Status returns the picture at time now.
func (m *Machine) Status(now clock.Instant) Status { return Status{} }

// Gate returns the gate of p.
func (m *Machine) Gate(p ring.Partition) Gate { return Closed }
