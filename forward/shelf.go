package forward

import (
	"slices"

	"github.com/ringfence/router/internal/base/event"
)

// shelf keeps the held events in an array by the slot of their handles: a look-up needs no
// hash and one cache miss, a map of pointers three. Relayed events have no slot, and an
// event of an earlier source may still occupy the slot of a new one: these are in a map.
// Memory is never freed; there are as many places as the source has slots.
type shelf struct {
	blocks []*block // by slot
	beside map[event.Handle]*held
	n      int
}

const blockLen = 256

// block is an array of places. They do not move, since lists point to them.
type block [blockLen]held

// find returns the event held under handle, nil when there is none.
func (s *shelf) find(handle event.Handle) *held {
	if h := s.place(handle); h != nil && h.event != nil && h.handle == handle {
		return h
	}
	if len(s.beside) == 0 {
		return nil
	}
	return s.beside[handle]
}

// place returns the place of a handle, nil when it has no slot or no block yet.
func (s *shelf) place(handle event.Handle) *held {
	slot := handle.Slot()
	if i := int(slot / blockLen); i < len(s.blocks) && s.blocks[i] != nil && !handle.IsRelayed() {
		return &s.blocks[i][slot%blockLen]
	}
	return nil
}

// add returns the place for a new event, zero but for its handle; nil when the handle
// is held already.
func (s *shelf) add(handle event.Handle) *held {
	h := s.place(handle)
	if h == nil && !handle.IsRelayed() {
		i := int(handle.Slot() / blockLen)
		for i >= len(s.blocks) {
			s.blocks = append(s.blocks, nil)
		}
		s.blocks[i] = new(block)
		h = s.place(handle)
	}
	switch {
	case h == nil, h.event != nil && h.handle != handle:
		if s.beside[handle] != nil {
			return nil
		}
		h = new(held)
		s.beside[handle] = h
	case h.event != nil:
		return nil
	}
	h.handle = handle
	s.n++
	return h
}

// remove empties the place of h.
func (s *shelf) remove(h *held) {
	if len(s.beside) > 0 {
		delete(s.beside, h.handle)
	}
	*h = held{}
	s.n--
}

// on returns the events of l, a list without items, in the order of holding. It visits all
// places, so it is for infrequent events.
func (s *shelf) on(l *list) []*held {
	if l.n == 0 {
		return nil
	}
	found := make([]*held, 0, l.n)
	for h := range s.all {
		if h.on == l {
			found = append(found, h)
		}
	}
	slices.SortFunc(found, byAge)
	return found
}

// all yields all held events, in no order.
func (s *shelf) all(yield func(*held) bool) {
	for _, b := range s.blocks {
		if b == nil {
			continue
		}
		for i := range b {
			if h := &b[i]; h.event != nil && !yield(h) {
				return
			}
		}
	}
	for _, h := range s.beside {
		if !yield(h) {
			return
		}
	}
}
