package entries

import (
	"math/bits"
	"slices"

	"github.com/ringfence/router/internal/broker/entries/wire"
)

// ackGroup collects acks for common commands. An entry of which events are acked twice is in it once, with all of them: the broker
// compares each ack set with the state before the command, and would count them twice. Pure.
type ackGroup struct {
	ids   []wire.AckID
	at    map[wire.ID]int // places in ids; nil as long as there are no ack sets, since a repeated whole entry does no harm
	sets  bool
	bytes int // that ids may need in a command
}

// ackBytesMax bounds the bytes of one command: ack sets of long batches are long.
const ackBytesMax = 1 << 20

// weight is at least the length of id in a command: two numbers and their tags, and the words of its set.
func weight(id wire.AckID) int { return 40 + 11*len(id.AckSet) }

// add adds acks. It keeps the ack sets.
func (g *ackGroup) add(ids []wire.AckID) {
	for _, id := range ids {
		if id.AckSet != nil && !g.sets {
			g.index()
		}
		if g.sets {
			if i, ok := g.at[id.ID]; ok {
				g.ids[i].AckSet = both(g.ids[i].AckSet, id.AckSet)
				continue
			}
			g.at[id.ID] = len(g.ids)
		}
		g.ids = append(g.ids, id)
		g.bytes += weight(id)
	}
}

func (g *ackGroup) index() {
	g.sets, g.at = true, make(map[wire.ID]int, len(g.ids))
	for i, id := range g.ids {
		g.at[id.ID] = i
	}
}

// both returns the events that neither of two acks of an entry acks; nil is the ack of all.
func both(a, b []uint64) []uint64 {
	if a == nil || b == nil {
		return nil
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	left := slices.Clone(a) // what is beyond the shorter set is acked by it
	for i := range left {
		left[i] &= b[i]
	}
	if unacked(left) == 0 {
		return nil
	}
	return left
}

// unacked returns how many events of an entry its ack set leaves unacked.
func unacked(ackSet []uint64) (n int) {
	for _, word := range ackSet {
		n += bits.OnesCount64(word)
	}
	return n
}

// full reports whether the group is worth a command of so many ids.
func (g *ackGroup) full(idsMax int) bool { return len(g.ids) >= idsMax || g.bytes >= ackBytesMax }

// take returns everything as the ids of commands, of up to so many ids each, and empties the group.
func (g *ackGroup) take(idsMax int) (commands [][]wire.AckID) {
	begin, bytes := 0, 0
	for i, id := range g.ids {
		if w := weight(id); i > begin && (i-begin >= idsMax || bytes+w > ackBytesMax) {
			commands = append(commands, g.ids[begin:i])
			begin, bytes = i, 0
		}
		bytes += weight(id)
	}
	if begin < len(g.ids) {
		commands = append(commands, g.ids[begin:])
	}
	*g = ackGroup{}
	return commands
}
