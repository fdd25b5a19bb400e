package wire

// Single is one event of a batch. Its slices alias the batch; they are nil when absent, and not nil when empty.
type Single struct {
	Key          []byte
	OrderingKey  []byte
	Payload      []byte
	Properties   Properties
	EventTime    int64 // milliseconds since 1970, 0 when absent
	NullValue    bool
	CompactedOut bool // removed by compaction: ack it without delivering it
}

// Split appends the e.Events events of a batch to dst. It allocates nothing if dst has room for them. An entry that is not Batched, or is
// encrypted, cannot be split. The error is a *BrokenError, and dst is then returned unchanged.
func (e *Entry) Split(dst []Single) ([]Single, error) {
	if !e.Batched || e.Metadata.Encryption.Present() || e.Events > len(e.Payload)/singleMin {
		return dst, broken(ReasonBatch, "not a batch")
	}
	singles, b, properties := dst, e.Payload, 0
	for range e.Events {
		fields, rest, ok := sized(b)
		if !ok {
			return dst, broken(ReasonBatch, "an event is cut off")
		}
		singles = append(singles, Single{})
		s := &singles[len(singles)-1]
		size, ok := s.parse(fields)
		if !ok {
			return dst, broken(ReasonBatch, "bad event metadata")
		}
		if properties += s.Properties.Len(); properties > propertiesMax {
			return dst, broken(ReasonBatch, "too many properties")
		}
		if size < 0 || int(size) > len(rest) {
			return dst, broken(ReasonBatch, "a payload is cut off")
		}
		s.Payload, b = rest[:size:size], rest[size:]
	}
	if len(b) > 0 {
		return dst, broken(ReasonBatch, "bytes after the last event")
	}
	return singles, nil
}

// parse reads a SingleMessageMetadata and returns the payload size, which is required.
func (s *Single) parse(b []byte) (size int32, ok bool) {
	s.Properties = Properties{fields: b, number: 1}
	sized := false
	for len(b) > 0 {
		// Fast path without readField: nearly all events have only a size of one or two bytes and a key.
		if tag := b[0]; tag == 3<<3|byte(varint) {
			if value, n := uvarint(b[1:]); n > 0 {
				size, sized, b = int32(value), true, b[1+n:]
				continue
			}
		} else if tag == 2<<3|byte(delimited) && len(b) > 1 && b[1] < 0x80 && int(b[1]) <= len(b)-2 {
			end := 2 + int(b[1])
			s.Key, b = b[2:end:end], b[end:]
			continue
		}
		f, rest, ok := readField(b)
		if !ok {
			return 0, false
		}
		switch f.tag {
		case 1<<3 | delimited:
			if _, _, ok := keyValue(f.bytes); !ok {
				return 0, false
			}
			s.Properties.count++
		case 2<<3 | delimited:
			s.Key = f.bytes
		case 3<<3 | varint:
			size, sized = int32(f.value), true
		case 4<<3 | varint:
			s.CompactedOut = f.value != 0
		case 5<<3 | varint:
			s.EventTime = int64(f.value)
		case 7<<3 | delimited:
			s.OrderingKey = f.bytes
		case 9<<3 | varint:
			s.NullValue = f.value != 0
		}
		b = rest
	}
	return size, sized
}
