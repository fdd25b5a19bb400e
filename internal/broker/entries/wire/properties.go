package wire

import "iter"

// propertiesMax bounds the properties of an entry, and those of all events of a batch, repeated names included. A reader needs up to about 100 bytes for
// each at once, and a compressed batch could bring ten times as many. Producers do not meet it: their batches hold 1,000 events by default, which may have
// 1,000 properties each.
const propertiesMax = 1 << 20

// Properties are the properties of an entry or event, in the producer's order. They alias the entry. All parses them on each call, so code
// that ignores properties does not pay for them.
type Properties struct {
	fields []byte // of the enclosing message, already checked
	number uint8  // field number of a property
	count  uint32
}

// Len returns the number of properties. A repeated name counts each time.
func (p Properties) Len() int { return int(p.count) }

// All yields names and values, which alias the entry.
func (p Properties) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		b := p.fields
		for left := p.count; left > 0; {
			f, rest, ok := readField(b)
			if !ok {
				return // unreachable: the fields were checked
			}
			if b = rest; f.tag != uint64(p.number)<<3|delimited {
				continue
			}
			left--
			if name, value, ok := keyValue(f.bytes); !ok || !yield(name, value) {
				return
			}
		}
	}
}

// keyValue reads a KeyValue. Both fields are required.
func keyValue(b []byte) (name, value []byte, ok bool) {
	for len(b) > 0 {
		f, rest, ok := readField(b)
		if !ok {
			return nil, nil, false
		}
		switch f.tag {
		case 1<<3 | delimited:
			name = f.bytes
		case 2<<3 | delimited:
			value = f.bytes
		}
		b = rest
	}
	return name, value, name != nil && value != nil
}

// Encryption holds the encryption parameters of a payload. Ringfence decrypts nothing.
type Encryption struct {
	Keys  Keys
	Algo  []byte // nil when absent
	Param []byte // nil when absent
}

// Present reports whether the payload is encrypted.
func (e *Encryption) Present() bool { return e.Keys.count > 0 }

// Keys holds the data key of an encrypted payload, encrypted for each receiver.
type Keys struct {
	fields []byte // of the MessageMetadata, already checked
	count  uint32
}

// Len returns the number of keys.
func (k Keys) Len() int { return int(k.count) }

// Key is the data key as encrypted for one receiver. Its slices alias the entry.
type Key struct {
	Name       []byte
	Value      []byte
	Properties Properties
}

// All yields the keys.
func (k Keys) All() iter.Seq[Key] {
	return func(yield func(Key) bool) {
		b := k.fields
		for left := k.count; left > 0; {
			f, rest, ok := readField(b)
			if !ok {
				return // unreachable: the fields were checked
			}
			if b = rest; f.tag != 13<<3|delimited {
				continue
			}
			left--
			if key, ok := readKey(f.bytes); !ok || !yield(key) {
				return
			}
		}
	}
}

// readKey reads an EncryptionKeys, whose name and value are required.
func readKey(b []byte) (key Key, ok bool) {
	key.Properties = Properties{fields: b, number: 3}
	for len(b) > 0 {
		f, rest, ok := readField(b)
		if !ok {
			return key, false
		}
		switch f.tag {
		case 1<<3 | delimited:
			key.Name = f.bytes
		case 2<<3 | delimited:
			key.Value = f.bytes
		case 3<<3 | delimited:
			if _, _, ok := keyValue(f.bytes); !ok {
				return key, false
			}
			key.Properties.count++
		}
		b = rest
	}
	return key, key.Name != nil && key.Value != nil
}
