package hotframe

import (
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

// Tables holds the values that repeat in a frame of events. Events name them by their indexes.
type Tables struct {
	Topics, Names, Schemas Table[string]
	Tokens                 Table[int64]
}

var tables = sync.Pool{New: func() any { return new(Tables) }}

// NewTables returns empty tables.
func NewTables() *Tables { return tables.Get().(*Tables) }

// Free gives the memory of t back; it keeps no value alive.
func (t *Tables) Free() {
	t.Topics.reset()
	t.Names.reset()
	t.Schemas.reset()
	t.Tokens.reset()
	tables.Put(t)
}

// Table gives values their indexes, in the order of their coming. The zero Table is empty.
type Table[T comparable] struct {
	list   []T
	lookup map[T]int
	last   int // the index that was asked for last
}

// List returns the values. It is valid until the table is freed.
func (t *Table[T]) List() []T { return t.list }

// Index returns the index of v, which it adds if it is new.
func (t *Table[T]) Index(v T) int {
	if i, ok := t.recent(v); ok {
		return i
	}
	i, ok := t.lookup[v]
	if !ok {
		i = len(t.list)
		t.list = append(t.list, v)
		if t.lookup == nil {
			t.lookup = make(map[T]int)
		}
		t.lookup[v] = i
	}
	t.last = i
	return i
}

// recent returns the index of v if it is the last one that was asked for, or the one after
// it. Events of one topic carry the same values in the same order: this nearly always saves
// the map.
func (t *Table[T]) recent(v T) (int, bool) {
	n := len(t.list)
	if n == 0 {
		return 0, false
	}
	if t.list[t.last] == v {
		return t.last, true
	}
	next := t.last + 1
	if next == n {
		next = 0
	}
	if t.list[next] == v {
		t.last = next
		return next, true
	}
	return 0, false
}

// IndexText is Index for strings that need not be UTF-8, see [Text]. The strings in the table
// are UTF-8, and so is one that equals any of them.
func IndexText(t *Table[string], s string) int {
	if i, ok := t.recent(s); ok {
		return i
	}
	return t.Index(Text(s))
}

// AppendStrings appends the strings of a table as the repeated field num.
func AppendStrings(b []byte, num protowire.Number, t *Table[string]) []byte {
	for _, s := range t.list {
		b = append(AppendLen(b, num, len(s)), s...)
	}
	return b
}

func (t *Table[T]) reset() {
	clear(t.list)
	clear(t.lookup)
	t.list, t.last = t.list[:0], 0
}
