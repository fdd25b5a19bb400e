package entries

import (
	"math/bits"
	"slices"

	"github.com/ringfence/router/internal/broker/entries/wire"
)

// ackGroup collects acks that share commands. Several acks of events of one entry are merged: the broker compares each ack set with the
// state before the command, and would count events twice. Pure.
type ackGroup struct {
	ids   []wire.AckID
	at    map[wire.ID]int // index in ids; nil without ack sets, because a repeated whole entry does no harm
	sets  bool
	bytes int // upper bound of the length of ids in a command
}

// ackBytesMax bounds the bytes of one command, because long batches have long ack sets.
const ackBytesMax = 1 << 20

// weight is an upper bound of the length of id in a command: two numbers and their tags, and the words of its set.
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

// both returns the events that neither of two acks of an entry acks; nil acks all.
func both(a, b []uint64) []uint64 {
	if a == nil || b == nil {
		return nil
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	left := slices.Clone(a) // the shorter set acks all events beyond its end
	for i := range left {
		left[i] &= b[i]
	}
	if unacked(left) == 0 {
		return nil
	}
	return left
}

// unacked returns the number of events that an ack set leaves unacked.
func unacked(ackSet []uint64) (n int) {
	for _, word := range ackSet {
		n += bits.OnesCount64(word)
	}
	return n
}

// full reports whether the group fills a command of idsMax ids or ackBytesMax bytes.
func (g *ackGroup) full(idsMax int) bool { return len(g.ids) >= idsMax || g.bytes >= ackBytesMax }

// take splits the group into commands of at most idsMax ids each, and empties it.
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
