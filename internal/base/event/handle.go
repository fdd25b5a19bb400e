package event

// Handle is a consumer node's own name for an event that it has received and not
// yet settled. It is never reused while that process lives. Zero is no handle.
//
// It is the serial number of the [Entry] that the event came with, and the index of the event in that. So the
// events of one entry can be named together, by one handle and a set of indexes.
// A relayed event, which a peer has sent here to be passed on, has a serial number of another series, and so has a call.
type Handle uint64

const (
	indexBits         = 17
	relayedBit Handle = 1 << 63
	callBit    Handle = 1 << 62
)

// EntryEventsMax is the greatest number of events in an entry. At a million entries a second, serial numbers suffice for a year.
const EntryEventsMax = 1 << indexBits

// NewHandle returns the handle of an own event. Serial numbers count from 1.
func NewHandle(serial uint64, index int) Handle {
	return Handle(serial<<indexBits|uint64(index)) &^ (relayedBit | callBit)
}

// NewRelayedHandle returns the handle of a relayed event. Serial numbers count from 1.
func NewRelayedHandle(serial uint64, index int) Handle {
	return NewHandle(serial, index) | relayedBit
}

// NewCallHandle returns the handle of a call. Serial numbers count from 1.
func NewCallHandle(serial uint64) Handle { return NewHandle(serial, 0) | callBit }

// IsCall reports whether h is the handle of a call that was made at this node.
func (h Handle) IsCall() bool { return h&(callBit|relayedBit) == callBit }

// IsRelayed reports whether h is the handle of a relayed event.
func (h Handle) IsRelayed() bool { return h&relayedBit != 0 }

// Index returns the index of the event in its entry, less than EntryEventsMax.
func (h Handle) Index() int { return int(h & (EntryEventsMax - 1)) }

// First returns the handle of the event with index 0 in the same entry: all events of an entry have it in common, and no others.
func (h Handle) First() Handle { return h &^ (EntryEventsMax - 1) }

// Serial returns the serial number of the entry of an own event.
func (h Handle) Serial() uint64 { return uint64(h &^ relayedBit >> indexBits) }
