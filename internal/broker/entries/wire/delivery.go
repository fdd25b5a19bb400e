package wire

// ID names an entry in its topic partition.
type ID struct{ Ledger, Entry int64 }

// Delivery is the command of a Message.
type Delivery struct {
	Consumer   uint64
	ID         ID
	Partition  int32  // -1: none
	Redelivery uint32 // how often the broker has sent the entry before
	AckSet     []uint64
	Epoch      uint64
}

// Acked reports whether an event of the entry was acked before this delivery. Events count from zero.
func (d *Delivery) Acked(event int) bool { return false }
