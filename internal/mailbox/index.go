package mailbox

// index finds references by hash. It is an open-addressing hash table: a search reads one
// cache line, where a Go map reads several. With map[uint32]uint32 in its place (Go 1.26),
// an event costs 200 ns more in BenchmarkMailboxes. The caller compares the keys behind
// references. References are unique.
type index struct {
	cells []cell // their number is a power of two; at least a third of them are empty
	n     int
}

// cell is empty if ref is 0.
type cell struct{ hash, ref uint32 }

const indexMin = 64

func newIndex() *index { return &index{cells: make([]cell, indexMin)} }

// find returns the reference under a hash for which is returns true, or 0.
func (x *index) find(hash uint32, is func(ref uint32) bool) uint32 {
	for at := x.home(hash); ; at = x.after(at) {
		e := x.cells[at]
		if e.ref == 0 || e.hash == hash && is(e.ref) {
			return e.ref
		}
	}
}

// add adds a reference, which must not be 0, under a hash.
func (x *index) add(hash, ref uint32) {
	x.n++
	if 3*x.n > 2*len(x.cells) {
		x.grow()
	}
	x.cells[x.seek(hash, 0)] = cell{hash, ref}
}

// remove removes a reference that is present, and closes the gap, since a search ends at
// the first empty cell.
func (x *index) remove(hash, ref uint32) {
	x.n--
	gap := x.seek(hash, ref)
	for at := x.after(gap); x.cells[at].ref != 0; at = x.after(at) {
		if x.distance(x.home(x.cells[at].hash), at) >= x.distance(gap, at) {
			x.cells[gap] = x.cells[at]
			gap = at
		}
	}
	x.cells[gap] = cell{}
}

// seek returns the cell of a reference that is present. For reference 0 it returns the
// next empty cell.
func (x *index) seek(hash, ref uint32) uint32 {
	at := x.home(hash)
	for x.cells[at].ref != ref {
		at = x.after(at)
	}
	return at
}

func (x *index) grow() {
	old := x.cells
	x.cells = make([]cell, 2*len(old))
	for _, e := range old {
		if e.ref != 0 {
			x.cells[x.seek(e.hash, 0)] = e
		}
	}
}

// home returns the cell at which the search for a hash begins.
func (x *index) home(hash uint32) uint32 { return x.wrap(hash) }

func (x *index) after(at uint32) uint32          { return x.wrap(at + 1) }
func (x *index) distance(from, to uint32) uint32 { return x.wrap(to - from) }
func (x *index) wrap(at uint32) uint32           { return at & uint32(len(x.cells)-1) }
