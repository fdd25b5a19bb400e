package wire

// AckID is an entry to ack, or some of its events.
type AckID struct {
	ID
	// AckSet has a bit for each event that stays unacked, the first event in the lowest bit of the first word. Nil acks the whole entry.
	AckSet []uint64
	// BatchSize is the number of events in the entry; it is written with an AckSet.
	BatchSize int32
}

// AppendFlow appends a frame with Flow: the broker may send that many more events to the consumer.
func AppendFlow(dst []byte, consumer uint64, permits uint32) []byte { return dst }

// AppendAck appends a frame with one individual Ack of all ids. A request of 0 asks for no receipt.
func AppendAck(dst []byte, consumer, request uint64, ids []AckID) []byte { return dst }

// AppendRedeliver appends a frame that asks for entries again which are not acked.
func AppendRedeliver(dst []byte, consumer uint64, ids []ID) []byte { return dst }

// AppendPing appends a frame with Ping.
func AppendPing(dst []byte) []byte { return dst }

// AppendPong appends a frame with Pong.
func AppendPong(dst []byte) []byte { return dst }
