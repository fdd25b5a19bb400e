package ownership

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// The prefix hash covers every record since the newest Genesis: its position and its bytes,
// also of records that change nothing. Two members that have read the same log have the same
// hash at the same position; a log that was forked or spliced gives different ones, at once,
// while the state may stay equal for long. Beats carry the hash at Applied, Snaps the hash at
// their Hello.

// prefixesMax is the number of newest records whose prefix hash is kept to judge Beats by. The
// Applied of a Beat that is older is not judged.
const prefixesMax = 8192

// differsMax is the number of Beats in a row by which a peer must contradict our prefix hash
// before it counts as living in another log: one faulty Beat does not.
const differsMax = 2

// prefixes are the prefix hashes at the newest records, ascending by position.
type prefixes struct{ list []view }

// prefixDoubt is the evidence of one peer's Beats about the prefix hash.
type prefixDoubt struct {
	judged  bool   // one could be judged
	differs int    // Beats in a row that contradict us
	seq     uint64 // of the newest of them
}

func (p *prefixes) add(at Position, hash uint64) {
	if len(p.list) >= 2*prefixesMax {
		p.list = p.list[:copy(p.list, p.list[len(p.list)-prefixesMax:])]
	}
	p.list = append(p.list, view{at, hash})
}

// at returns the hash at a position: 0 for a position that is not in this log. It is not ok for
// positions before the remembered records.
func (p *prefixes) at(at Position) (hash uint64, ok bool) {
	if len(p.list) == 0 || at.Before(p.list[0].at) {
		return 0, false
	}
	i, found := slices.BinarySearchFunc(p.list, at, func(v view, at Position) int { return v.at.Compare(at) })
	if !found {
		return 0, true
	}
	return p.list[i].hash, true
}

// hashPrefix continues a prefix hash. It is never 0, which means "not known".
func hashPrefix(before uint64, r read) uint64 {
	var buf [32]byte
	binary.LittleEndian.PutUint64(buf[0:], before)
	binary.LittleEndian.PutUint64(buf[8:], uint64(r.at.Ledger))
	binary.LittleEndian.PutUint64(buf[16:], uint64(r.at.Entry))
	binary.LittleEndian.PutUint64(buf[24:], r.sum)
	return max(1, xxhash.Sum64(buf[:]))
}

// begin starts with the hash of a state as of at.
func (p *prefixes) begin(at Position, s *State) {
	p.list = p.list[:0]
	if s.PrefixHash != 0 {
		p.add(at, s.PrefixHash)
	}
}

// goOn adds a record to the prefix hash of a state, before anything is done about the record.
func (p *prefixes) goOn(s *State, r read) {
	if s.PrefixHash == 0 { // adopted from a router that does not compute it
		return
	}
	s.PrefixHash = hashPrefix(s.PrefixHash, r)
	p.add(r.at, s.PrefixHash)
}

// beginPrefix starts the prefix hash with the record that begins a state.
func (m *Machine) beginPrefix(r read) {
	m.state.PrefixHash = hashPrefix(0, r)
	m.adoptPrefix(r.at)
}

// adoptPrefix takes the prefix hash of a state as of at. Beats from before are not judged.
func (m *Machine) adoptPrefix(at Position) {
	m.prefixes.begin(at, m.state)
	for _, p := range m.peers { // each is reset by itself: the order does not matter
		p.prefix = prefixDoubt{}
	}
}

// forked judges the prefix hash of a Beat, and reports whether this node is the one that has
// read another log: more than half of the other members that are FRESH and could be judged have
// contradicted it by two Beats each. The majority continues, and so does a group with one faulty
// member. Where neither side has a majority, the members that notice first stop, and the remaining
// ones have one log.
func (m *Machine) forked(r read, b *Beat) (reason string, forked bool) {
	hash, ok := m.prefixes.at(b.Applied)
	if !ok || b.PrefixHash == 0 || m.state.PrefixHash == 0 || r.rec.Inc == m.cfg.Inc {
		return "", false
	}
	d := &m.peer(r.rec.Inc).prefix
	d.judged = true
	if hash == b.PrefixHash {
		d.differs = 0
		return "", false
	}
	if d.differs > 0 && d.seq == b.Seq {
		return "", false // the log has it twice
	}
	d.seq = b.Seq
	d.differs = min(d.differs+1, differsMax+1)
	differ, judged := m.prefixDoubts()
	if d.differs <= differsMax { // then it is known
		m.emit(Note{
			Kind: NotePrefixDiffers, At: b.Applied, Inc: r.rec.Inc, Name: m.nameOf(r.rec.Inc),
			Reason: fmt.Sprintf("the records up to here are others than ours, for %d of %d fresh members", differ, judged),
		})
	}
	if 2*differ <= judged {
		return "", false
	}
	return fmt.Sprintf("log forked: for %d of %d fresh members the records up to %v are others than ours", differ, judged, b.Applied), true
}

// prefixDoubts counts, of the other members that are FRESH and whose Beats could be judged,
// those that contradict us.
func (m *Machine) prefixDoubts() (differ, judged int) {
	for i, inc := range m.state.Members {
		p := m.peers[inc]
		if inc == m.cfg.Inc || p == nil || !p.prefix.judged || !m.seenFresh(m.state.member(i)) {
			continue
		}
		judged++
		if p.prefix.differs >= differsMax {
			differ++
		}
	}
	return differ, judged
}
