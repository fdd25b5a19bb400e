package wire

// Single is one event of a batch. Its slices alias the batch; they are nil when absent, and not nil when empty.
type Single struct {
	Key          []byte
	OrderingKey  []byte
	Payload      []byte
	Properties   Properties
	EventTime    int64  // milliseconds since 1970, 0 when absent
	Sequence     uint64 // valid if HasSequence; the entry's otherwise
	HasSequence  bool
	KeyBase64    bool // Key is base64 of the producer's bytes
	NullKey      bool
	NullValue    bool
	CompactedOut bool // removed by compaction: ack it, and deliver nothing
}

// Split appends the events of a batch to dst. It allocates nothing if dst has room for Events more. An entry that is not Batched, or is encrypted,
// has no events to split. The error is a *BrokenError, with dst as it was given.
func (e *Entry) Split(dst []Single) ([]Single, error) { return dst, nil }
