package wire

// ID names an entry in its topic partition.
type ID struct{ Ledger, Entry int64 }

// ackSetWordsMax bounds the AckSet of a delivery to a batch of a million events, which takes 6 MiB even without payload.
const ackSetWordsMax = 1 << 14

// Delivery holds the fields of a Message command.
type Delivery struct {
	Consumer   uint64
	ID         ID
	Redelivery uint32 // number of earlier deliveries of the entry
	// AckSet has a bit for each event that is not acked yet, the first event in the lowest bit of the first word. Nil means all events.
	AckSet []uint64
}

// Acked reports whether an event of the entry was acked before this delivery. Events count from 0.
func (d *Delivery) Acked(event int) bool {
	if d.AckSet == nil {
		return false
	}
	word := event / 64
	return word >= len(d.AckSet) || d.AckSet[word]&(1<<(event%64)) == 0 // trailing words without a bit are not sent
}

// parseMessage reads the CommandMessage in a BaseCommand. A field that occurs more than once follows the rules of protobuf: the last value
// of a scalar counts, and messages are merged.
func parseMessage(b []byte, d *Delivery) bool {
	*d = Delivery{}
	var has seen
	for len(b) > 0 {
		f, rest, ok := readField(b)
		if !ok {
			return false
		}
		if f.tag == 9<<3|delimited && !d.command(f.bytes, &has) {
			return false
		}
		b = rest
	}
	return has.all(hasConsumer | hasLedger | hasEntry)
}

const (
	hasConsumer seen = 1 << iota
	hasLedger
	hasEntry
)

func (d *Delivery) command(b []byte, has *seen) bool {
	for len(b) > 0 {
		f, rest, ok := readField(b)
		if !ok {
			return false
		}
		switch f.tag {
		case 1<<3 | varint:
			d.Consumer = f.value
			has.add(hasConsumer)
		case 2<<3 | delimited:
			ok = d.id(f.bytes, has)
		case 3<<3 | varint:
			d.Redelivery = uint32(f.value)
		case 4<<3 | varint:
			ok = d.ackSet(f.value)
		case 4<<3 | delimited: // packed
			for words := f.bytes; len(words) > 0 && ok; {
				word, n := uvarint(words)
				ok = n > 0 && d.ackSet(word)
				words = words[n:]
			}
		}
		if !ok {
			return false
		}
		b = rest
	}
	return true
}

func (d *Delivery) id(b []byte, has *seen) bool {
	for len(b) > 0 {
		f, rest, ok := readField(b)
		if !ok {
			return false
		}
		switch f.tag {
		case 1<<3 | varint:
			d.ID.Ledger = int64(f.value)
			has.add(hasLedger)
		case 2<<3 | varint:
			d.ID.Entry = int64(f.value)
			has.add(hasEntry)
		}
		b = rest
	}
	return true
}

func (d *Delivery) ackSet(word uint64) bool {
	if len(d.AckSet) == ackSetWordsMax {
		return false
	}
	d.AckSet = append(d.AckSet, word)
	return true
}
