package wire

// Compression is the compression algorithm of a payload.
//
//exhaustive:enforce
type Compression uint8

// Compressions, with Pulsar's numbers.
const (
	CompressionNone Compression = iota
	CompressionLZ4
	CompressionZlib
	CompressionZstd
	CompressionSnappy
)

// Metadata holds the producer's metadata of an entry. Times are milliseconds since 1970, 0 when absent. Byte slices alias the entry; they
// are nil when absent, and not nil when empty.
type Metadata struct {
	Producer         []byte
	PublishTime      int64
	EventTime        int64
	Properties       Properties
	Key              []byte // of a message outside of a batch
	NullValue        bool   // of a message outside of a batch
	OrderingKey      []byte
	SchemaVersion    []byte
	Compression      Compression
	UncompressedSize uint32 // 0 when absent
	Encryption       Encryption
	UUID             []byte // of a chunked message
	Chunk            int32  // from 0
	Chunks           int32  // 0 or 1 when the message is not chunked
	ChunkedSize      int32  // bytes of all chunks, 0 when absent
	Marker           bool   // a record of the broker itself, not an event
}

// Required fields of MessageMetadata.
const (
	hasProducer seen = 1 << iota
	hasSequence
	hasPublishTime
)

// counted holds num_messages_in_batch. Its presence marks a batch.
type counted struct {
	present bool
	events  int32
}

// schemaVersionMax bounds a schema version in bytes. Pulsar's have eight. Brokers take any, and copies of an event carry it in hex, so that of a long one no
// copy could be sent.
const schemaVersionMax = 1 << 10

// parse reads a MessageMetadata. The error is a *BrokenError. It continues after invalid values, because the count may follow.
func (m *Metadata) parse(b []byte) (count counted, err error) {
	*m = Metadata{Properties: Properties{fields: b, number: 4}, Encryption: Encryption{Keys: Keys{fields: b}}}
	var has seen
	for len(b) > 0 {
		f, rest, ok := readField(b)
		if !ok {
			return count, broken(ReasonMetadata, "invalid protobuf")
		}
		switch f.tag {
		case 1<<3 | delimited:
			m.Producer = f.bytes
			has.add(hasProducer)
		case 2<<3 | varint:
			has.add(hasSequence)
		case 3<<3 | varint:
			m.PublishTime = int64(f.value)
			has.add(hasPublishTime)
		case 4<<3 | delimited:
			if _, _, ok := keyValue(f.bytes); !ok {
				err = broken(ReasonMetadata, "bad property")
			}
			m.Properties.count++
		case 8<<3 | varint:
			if f.value > uint64(CompressionSnappy) {
				err = broken(ReasonCompression, "unknown")
			}
			m.Compression = Compression(f.value)
		case 9<<3 | varint:
			m.UncompressedSize = uint32(f.value)
		case 11<<3 | varint:
			count = counted{present: true, events: int32(f.value)}
		case 13<<3 | delimited:
			if _, ok := readKey(f.bytes); !ok {
				err = broken(ReasonMetadata, "bad encryption key")
			}
			m.Encryption.Keys.count++
		default:
			m.rare(&f)
		}
		b = rest
	}
	switch {
	case err != nil:
	case !has.all(hasProducer | hasSequence | hasPublishTime):
		err = broken(ReasonMetadata, "a required field is missing")
	case len(m.SchemaVersion) > schemaVersionMax:
		err = broken(ReasonMetadata, "the schema version is too long")
	case m.Properties.count > propertiesMax:
		err = broken(ReasonMetadata, "too many properties")
	}
	return count, err
}

// rare reads the fields that most entries do not have.
func (m *Metadata) rare(f *field) {
	switch f.tag {
	case 6<<3 | delimited:
		m.Key = f.bytes
	case 12<<3 | varint:
		m.EventTime = int64(f.value)
	case 14<<3 | delimited:
		m.Encryption.Algo = f.bytes
	case 15<<3 | delimited:
		m.Encryption.Param = f.bytes
	case 16<<3 | delimited:
		m.SchemaVersion = f.bytes
	case 18<<3 | delimited:
		m.OrderingKey = f.bytes
	case 20<<3 | varint:
		m.Marker = true
	case 25<<3 | varint:
		m.NullValue = f.value != 0
	case 26<<3 | delimited:
		m.UUID = f.bytes
	case 27<<3 | varint:
		m.Chunks = int32(f.value)
	case 28<<3 | varint:
		m.ChunkedSize = int32(f.value)
	case 29<<3 | varint:
		m.Chunk = int32(f.value)
	}
}
