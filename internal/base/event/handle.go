package event

// Handle is a consumer node's own name for an event that it has received and not
// yet settled. It is never reused while that process lives. Zero is no handle.
//
// Things can be found by it without hashing: the handle of an own event is a slot
// below a generation. A source uses few slots, and each again and again, every time
// under another generation. So what is kept by slot must be compared by the whole
// handle; and events of two successive sources may be open in one slot at once.
// A relayed event, which a peer has sent here to be passed on, has a number instead.
type Handle uint64

const (
	slotBits          = 24
	relayedBit Handle = 1 << 63
)

// SlotsMax is the number of slots: they count from 0. At a million events per second
// through a single slot its 2^39 generations would last six days, and a source uses
// its slots in turn.
const SlotsMax = 1 << slotBits

// NewHandle returns the handle of an own event. Generations count from 1.
func NewHandle(generation uint64, slot int32) Handle {
	return Handle(generation<<slotBits|uint64(slot)) &^ relayedBit
}

// NewRelayedHandle returns the handle of the n-th relayed event of this process, from 1.
func NewRelayedHandle(n uint64) Handle { return relayedBit | Handle(n) }

// IsRelayed reports whether h is the handle of a relayed event, which has no slot.
func (h Handle) IsRelayed() bool { return h&relayedBit != 0 }

// Slot returns the slot of an own event's handle, less than SlotsMax.
func (h Handle) Slot() int32 { return int32(h & (SlotsMax - 1)) }

// Generation returns the generation of an own event's handle.
func (h Handle) Generation() uint64 { return uint64(h >> slotBits) }
