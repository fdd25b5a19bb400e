package wire

import "iter"

// Compression is how a payload is compressed.
//
//exhaustive:enforce
type Compression uint8

// Compressions, in Pulsar's numbers.
const (
	CompressionNone Compression = iota
	CompressionLZ4
	CompressionZlib
	CompressionZstd
	CompressionSnappy
)

// Metadata is what the producer wrote about an entry. Times are milliseconds since 1970, 0 when absent. Byte slices alias the entry, and are nil when
// absent and not nil when empty.
type Metadata struct {
	Producer         []byte
	Sequence         uint64
	HighestSequence  uint64
	PublishTime      int64
	EventTime        int64
	DeliverAt        int64
	Properties       Properties
	Key              []byte // of a message outside of a batch
	KeyBase64        bool   // Key is base64 of the producer's bytes
	NullKey          bool
	NullValue        bool
	OrderingKey      []byte
	ReplicatedFrom   []byte
	SchemaVersion    []byte
	Compression      Compression
	UncompressedSize uint32 // 0 when absent
	Encryption       Encryption
	UUID             []byte // of a chunked message
	Chunk            int32  // from 0
	Chunks           int32  // 0 when the message is not chunked
	ChunkedSize      int32  // bytes of all chunks of the message together, 0 when absent
	Marker           bool   // the broker's own, no event
	Transaction      bool
	TransactionLeast uint64
	TransactionMost  uint64
}

// Encryption tells how a payload is encrypted. It is when Keys has an element.
type Encryption struct {
	Keys  Keys
	Algo  []byte
	Param []byte
}

// Present reports whether the payload is encrypted.
func (e *Encryption) Present() bool { return false }

// Properties are the properties of an entry or event, in the producer's order. They alias the entry and are parsed anew by each call.
type Properties struct {
	fields []byte
	number uint8
	count  uint32
}

// Len returns how many properties there are, names that repeat counted each time.
func (p Properties) Len() int { return int(p.count) }

// All yields names and values.
func (p Properties) All() iter.Seq2[[]byte, []byte] { return func(func(_, _ []byte) bool) {} }

// Keys are the data keys of an encrypted payload, each encrypted for another receiver.
type Keys struct {
	fields []byte
	count  uint32
}

// Len returns how many keys there are.
func (k Keys) Len() int { return int(k.count) }

// Key is one of them.
type Key struct {
	Name       []byte
	Value      []byte
	Properties Properties
}

// All yields the keys.
func (k Keys) All() iter.Seq[Key] { return func(func(Key) bool) {} }
