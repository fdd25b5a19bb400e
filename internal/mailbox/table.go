package mailbox

// table is a slab whose values are found by hash: an open-addressing hash table of their places. A search reads one
// cache line, where a Go map reads several. With map[uint32]uint32 in its place (Go 1.26),
// an event costs 200 ns more in BenchmarkMailboxes. The caller compares the keys of values.
type table[T any] struct {
	slab[T]
	cells []cell // their number is a power of two; at least a third of them are empty
}

// cell refers to a place by its number plus one; 0: it is empty.
type cell struct{ hash, ref uint32 }

const cellsMin = 64

func newTable[T any]() table[T] { return table[T]{cells: make([]cell, cellsMin)} }

// find returns the value under a hash for which is returns true, or nil.
func (t *table[T]) find(hash uint32, is func(*T) bool) *T {
	for at := t.home(hash); ; at = t.after(at) {
		c := t.cells[at]
		if c.ref == 0 {
			return nil
		}
		if c.hash == hash {
			if v := t.at(c.ref - 1); is(v) {
				return v
			}
		}
	}
}

// add returns a new value under a hash, and its place.
func (t *table[T]) add(hash uint32) (*T, uint32) {
	v, place := t.get()
	if 3*t.len() > 2*len(t.cells) {
		t.grow()
	}
	t.cells[t.seek(hash, 0)] = cell{hash, place + 1}
	return v, place
}

// drop frees a place, and closes the gap in the cells, since a search ends at
// the first empty cell.
func (t *table[T]) drop(hash, place uint32) {
	gap := t.seek(hash, place+1)
	for at := t.after(gap); t.cells[at].ref != 0; at = t.after(at) {
		if t.distance(t.home(t.cells[at].hash), at) >= t.distance(gap, at) {
			t.cells[gap] = t.cells[at]
			gap = at
		}
	}
	t.cells[gap] = cell{}
	t.put(place)
}

// seek returns the cell of a reference that is present. For reference 0 it returns the
// next empty cell.
func (t *table[T]) seek(hash, ref uint32) uint32 {
	at := t.home(hash)
	for t.cells[at].ref != ref {
		at = t.after(at)
	}
	return at
}

func (t *table[T]) grow() {
	old := t.cells
	t.cells = make([]cell, 2*len(old))
	for _, c := range old {
		if c.ref != 0 {
			t.cells[t.seek(c.hash, 0)] = c
		}
	}
}

// home returns the cell at which the search for a hash begins.
func (t *table[T]) home(hash uint32) uint32 { return t.wrap(hash) }

func (t *table[T]) after(at uint32) uint32          { return t.wrap(at + 1) }
func (t *table[T]) distance(from, to uint32) uint32 { return t.wrap(to - from) }
func (t *table[T]) wrap(at uint32) uint32           { return at & uint32(len(t.cells)-1) }
