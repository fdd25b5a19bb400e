package mailbox

// index finds references by hash. It is an open table without pointers: a search
// reads one cache line, where Go's map reads three, and the garbage collector none.
// Its user checks what a reference stands for. No two references may be equal.
type index struct {
	cells []cell // a power of two of them, at least every third one empty
	n     int
}

// cell is empty if ref is 0.
type cell struct{ hash, ref uint32 }

const indexMin = 64

func newIndex() *index { return &index{cells: make([]cell, indexMin)} }

// find returns the reference under a hash that is the one looked for, or 0.
func (x *index) find(hash uint32, is func(ref uint32) bool) uint32 {
	for at := x.home(hash); ; at = x.after(at) {
		e := x.cells[at]
		if e.ref == 0 || e.hash == hash && is(e.ref) {
			return e.ref
		}
	}
}

// peek returns what is where the search for a hash begins.
func (x *index) peek(hash uint32) uint32 { return x.cells[x.home(hash)].ref }

// guess returns the first reference under a hash, or 0: nearly always what find returns.
func (x *index) guess(hash uint32) uint32 {
	for at := x.home(hash); ; at = x.after(at) {
		if e := x.cells[at]; e.ref == 0 || e.hash == hash {
			return e.ref
		}
	}
}

// add puts a reference, which is not 0, under a hash.
func (x *index) add(hash, ref uint32) {
	x.n++
	if 3*x.n > 2*len(x.cells) {
		x.grow()
	}
	x.cells[x.seek(hash, 0)] = cell{hash, ref}
}

// remove takes a reference out that is there, and closes the gap: searches end at the
// first empty cell.
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

// seek returns where a reference is that is there. Reference 0 is the next empty cell.
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

// home is where the search for a hash begins.
func (x *index) home(hash uint32) uint32 { return x.wrap(hash) }

func (x *index) after(at uint32) uint32          { return x.wrap(at + 1) }
func (x *index) distance(from, to uint32) uint32 { return x.wrap(to - from) }
func (x *index) wrap(at uint32) uint32           { return at & uint32(len(x.cells)-1) }
