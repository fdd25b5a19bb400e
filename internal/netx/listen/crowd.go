package listen

import (
	"github.com/ringfence/router/internal/base/clock"
)

// crowd decides which connection of a full listener makes room for a new one: of the address
// with the most connections, the one that has been in its present state for longest. A probe
// sends its request at once and comes from an address of its own, so it finds room however many
// connections others hold open.
//
// It is pure: connections are numbers, and time is an argument.
type crowd struct {
	max     int // connections at once
	keptMax int // of these, such as are never chosen

	members map[uint64]*attendance
	kept    int
}

// attendance is one connection.
type attendance struct {
	source string        // the address that it comes from, without its port
	since  clock.Instant // since when it has waited for a request, or for the answer to one
	kept   bool
}

func newCrowd(most int) *crowd {
	return &crowd{max: most, keptMax: max(1, most/4), members: make(map[uint64]*attendance)}
}

// enter adds a connection. If there is no room, victim is the one that has to be closed
// for it, and is forgotten here; without one the new address is not added.
func (c *crowd) enter(id uint64, source string, now clock.Instant) (victim uint64, evicts, enters bool) {
	if len(c.members) >= c.max {
		victim, evicts = c.choose()
		if !evicts {
			return 0, false, false
		}
		c.leave(victim)
	}
	c.members[id] = &attendance{source: source, since: now}
	return victim, evicts, true
}

// choose returns the connection that makes room; none if all are kept.
func (c *crowd) choose() (victim uint64, found bool) {
	perSource := make(map[string]int)
	for _, m := range c.members {
		perSource[m.source]++
	}
	var chosen *attendance
	for id, m := range c.members {
		if m.kept {
			continue
		}
		better := chosen == nil
		if !better {
			more, same := perSource[m.source]-perSource[chosen.source], m.since == chosen.since
			better = more > 0 || more == 0 && (m.since.Before(chosen.since) || same && id < victim)
		}
		if better {
			victim, chosen = id, m
		}
	}
	return victim, chosen != nil
}

// moved says that a connection begins something else at now: to wait for a request, or to be answered.
func (c *crowd) moved(id uint64, now clock.Instant) {
	if m := c.members[id]; m != nil {
		c.free(m)
		m.since = now
	}
}

// keep prevents a connection from being closed for another one before it has moved, unless too many are kept already.
func (c *crowd) keep(id uint64) {
	if m := c.members[id]; m != nil && !m.kept && c.kept < c.keptMax {
		m.kept = true
		c.kept++
	}
}

// leave forgets a connection.
func (c *crowd) leave(id uint64) {
	if m := c.members[id]; m != nil {
		c.free(m)
		delete(c.members, id)
	}
}

func (c *crowd) free(m *attendance) {
	if m.kept {
		m.kept = false
		c.kept--
	}
}
