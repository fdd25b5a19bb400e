package membership

import (
	"bytes"
	"compress/lzw"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// The screen checks the network's data before memberlist (v0.7.0), which trusts it: memberlist
// would decompress 39 MB from a packet, allocate a million nodes for a header of a few bytes,
// and read 20 MiB for each stream. Everything here is pure.

// The limits of received data. Members of this and of earlier releases stay far below: their
// packets hold 1,400 bytes before compression.
const (
	packetBytesMax = 4 << 10 // of a packet, before and after decompression
	packetPartsMax = 64      // messages in one packet
	streamBytesMax = 1 << 20 // of a stream, before and after decompression
	streamNodesMax = 2048    // nodes in one exchange
)

// Types of memberlist's messages.
const (
	pingMsg = iota
	indirectPingMsg
	ackRespMsg
	suspectMsg
	aliveMsg
	deadMsg
	pushPullMsg
	compoundMsg
	userMsg // no member sends any
	compressMsg
	encryptMsg
	nackRespMsg
	hasCrcMsg
	errMsg

	hasLabelMsg = 244

	encryptionVersionMax = 1 // the first byte of a packet that is encrypted is a version
)

// refusal is the reason why received data is not handed to memberlist. It is the label reason of
// ringfence_listener_rejected_total, for the listener gossip.
type refusal string

// The refusals.
const (
	refusedLabel     refusal = "label"     // of another group, or no gossip at all
	refusedClear     refusal = "clear"     // not encrypted, though there are keys
	refusedMalformed refusal = "malformed" // no member sends such a thing
	refusedTooLarge  refusal = "too_large" // as it is, or when it is decompressed

	refusedName    refusal = "member_name"    // the name of a member that is none, or not that of its incarnation in the control log
	refusedAddress refusal = "member_address" // an address that is none of a host, or not that of the control log
	refusedMembers refusal = "members_full"   // there are gossip.strangers_max others that the control log does not name
)

// Error implements error.
func (r refusal) Error() string { return "membership: refused: " + string(r) }

// screen is one node's filter.
type screen struct {
	label     string
	encrypted bool // the clear is refused
}

// packet returns a packet as memberlist may see it: uncompressed.
func (s screen) packet(packet []byte) ([]byte, error) {
	if len(packet) > packetBytesMax {
		return nil, refusedTooLarge
	}
	header := 2 + len(s.label)
	if len(packet) < header || packet[0] != hasLabelMsg || int(packet[1]) != len(s.label) || string(packet[2:header]) != s.label {
		return nil, refusedLabel
	}
	message := packet[header:]
	if len(message) == 0 {
		return nil, refusedMalformed
	}
	if s.encrypted {
		if message[0] > encryptionVersionMax {
			return nil, refusedClear
		}
		return packet, nil // a node with the key is trusted with the content
	}
	plain, err := unwrap(message)
	if err != nil {
		return nil, err
	}
	if err := checkMessages(plain); err != nil {
		return nil, err
	}
	if bytes.Equal(plain, message) {
		return packet, nil
	}
	return append(packet[:header:header], plain...), nil
}

// unwrap takes off the checksum and the compression, each once.
func unwrap(message []byte) ([]byte, error) {
	if message[0] == hasCrcMsg {
		if len(message) < 6 || crc32.ChecksumIEEE(message[5:]) != binary.BigEndian.Uint32(message[1:5]) {
			return nil, refusedMalformed
		}
		message = message[5:]
	}
	if message[0] != compressMsg {
		return message, nil
	}
	return decompress(bytes.NewReader(message[1:]), packetBytesMax)
}

// checkMessages accepts one message, or several of which only the first one may ask for
// an answer: so a packet never causes more than one.
func checkMessages(message []byte) error {
	if message[0] != compoundMsg {
		return checkType(message)
	}
	if len(message) < 2 {
		return refusedMalformed
	}
	parts, lengths, rest := int(message[1]), message[2:], []byte(nil)
	if parts > packetPartsMax || len(lengths) < 2*parts {
		return refusedMalformed
	}
	lengths, rest = lengths[:2*parts], lengths[2*parts:]
	for i := range parts {
		n := int(binary.BigEndian.Uint16(lengths[2*i:]))
		if n == 0 || n > len(rest) {
			return refusedMalformed
		}
		part := rest[:n]
		rest = rest[n:]
		news := part[0] == suspectMsg || part[0] == aliveMsg || part[0] == deadMsg
		if i > 0 && !news || checkType(part) != nil {
			return refusedMalformed
		}
	}
	return nil
}

// checkType accepts the messages of packets.
func checkType(message []byte) error {
	if t := message[0]; t <= deadMsg || t == nackRespMsg {
		return nil
	}
	return refusedMalformed
}

// decompress reads a message that memberlist has compressed: {Algo: 0, Buf: bytes}. bytesMax bounds it before and after.
func decompress(r io.Reader, bytesMax int) ([]byte, error) {
	m := msgpack{r}
	fields, err := m.fields()
	if err != nil {
		return nil, err
	}
	var compressed []byte
	for range fields {
		name, err := m.bytes(32)
		if err != nil {
			return nil, err
		}
		switch string(name) {
		case "Algo":
			algorithm, err := m.integer()
			if err != nil {
				return nil, err
			}
			if algorithm != 0 {
				return nil, refusedMalformed
			}
		case "Buf":
			if compressed, err = m.bytes(bytesMax); err != nil {
				return nil, err
			}
		default:
			return nil, refusedMalformed
		}
	}
	from := lzw.NewReader(bytes.NewReader(compressed), lzw.LSB, 8)
	var plain bytes.Buffer
	n, err := io.CopyN(&plain, from, int64(bytesMax)+1)
	switch {
	case n > int64(bytesMax):
		return nil, refusedTooLarge
	case n == 0, !errors.Is(err, io.EOF):
		return nil, refusedMalformed
	}
	return plain.Bytes(), nil
}

// stream reads the beginning of a stream and returns a reader of all of it, as memberlist
// may see it. labelled: it begins with the label, as on connections that were dialed to us.
func (s screen) stream(conn io.Reader, labelled bool) (io.Reader, error) {
	conn = io.LimitReader(conn, streamBytesMax+512) // with its label
	var seen bytes.Buffer                           // the bytes read so far
	from := io.TeeReader(conn, &seen)
	if labelled {
		header := make([]byte, 2+len(s.label))
		if _, err := io.ReadFull(from, header[:2]); err != nil {
			return nil, err
		}
		if header[0] != hasLabelMsg || int(header[1]) != len(s.label) {
			return nil, refusedLabel
		}
		if _, err := io.ReadFull(from, header[2:]); err != nil {
			return nil, err
		}
		if string(header[2:]) != s.label {
			return nil, refusedLabel
		}
	}
	labelBytes := seen.Len()
	var kind [1]byte
	if _, err := io.ReadFull(from, kind[:]); err != nil {
		return nil, err
	}
	switch {
	case kind[0] == encryptMsg:
		var length [4]byte
		if _, err := io.ReadFull(from, length[:]); err != nil {
			return nil, err
		}
		if binary.BigEndian.Uint32(length[:]) > streamBytesMax {
			return nil, refusedTooLarge
		}
	case s.encrypted:
		return nil, refusedClear
	case kind[0] == compressMsg:
		plain, err := decompress(conn, streamBytesMax)
		if err != nil {
			return nil, err
		}
		if err := checkStream(plain[0], bytes.NewReader(plain[1:])); err != nil {
			return nil, err
		}
		return io.MultiReader(bytes.NewReader(seen.Bytes()[:labelBytes]), bytes.NewReader(plain)), nil
	default:
		if err := checkStream(kind[0], from); err != nil {
			return nil, err
		}
	}
	return io.MultiReader(bytes.NewReader(seen.Bytes()), conn), nil
}

// checkStream reads the header of a message in a stream.
func checkStream(kind byte, from io.Reader) error {
	switch kind {
	case pingMsg, ackRespMsg, errMsg:
		return nil
	case pushPullMsg:
	default:
		return refusedMalformed
	}
	m := msgpack{from}
	fields, err := m.fields()
	if err != nil {
		return err
	}
	for range fields {
		name, err := m.bytes(32)
		if err != nil {
			return err
		}
		limit := int64(0)
		switch string(name) {
		case "Nodes":
			limit = streamNodesMax
		case "UserStateLen":
			limit = settingsBytesMax
		case "Join":
			if err := m.boolean(); err != nil {
				return err
			}
			continue
		default:
			return refusedMalformed
		}
		n, err := m.integer()
		if err != nil {
			return err
		}
		if n < 0 || n > limit {
			return refusedTooLarge
		}
	}
	return nil
}

// msgpack reads the few forms of msgpack that the headers of memberlist's messages have.
// A length is judged before anything of it is read.
type msgpack struct{ r io.Reader }

func (m msgpack) byte() (byte, error) {
	var b [1]byte
	_, err := io.ReadFull(m.r, b[:])
	return b[0], err
}

// uint reads an unsigned number of so many bytes.
func (m msgpack) uint(size int) (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(m.r, b[8-size:])
	return binary.BigEndian.Uint64(b[:]), err
}

// fields reads the beginning of a struct: how many fields follow, each with its name.
func (m msgpack) fields() (int, error) {
	b, err := m.byte()
	if err != nil {
		return 0, err
	}
	if b&0xf0 != 0x80 {
		return 0, refusedMalformed
	}
	return int(b & 0x0f), nil
}

// bytes reads a string or bytes.
func (m msgpack) bytes(lengthMax int) ([]byte, error) {
	b, err := m.byte()
	if err != nil {
		return nil, err
	}
	length := uint64(0)
	switch {
	case b&0xe0 == 0xa0:
		length = uint64(b & 0x1f)
	case b == 0xd9 || b == 0xc4:
		length, err = m.uint(1)
	case b == 0xda || b == 0xc5:
		length, err = m.uint(2)
	case b == 0xdb || b == 0xc6:
		length, err = m.uint(4)
	default:
		return nil, refusedMalformed
	}
	if err != nil {
		return nil, err
	}
	if length > uint64(lengthMax) {
		return nil, refusedTooLarge
	}
	var text bytes.Buffer // grows with the received bytes, not with the announced ones
	if _, err := io.CopyN(&text, m.r, int64(length)); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// integer reads a number of any size; those that no int64 holds are refused.
func (m msgpack) integer() (int64, error) {
	b, err := m.byte()
	if err != nil {
		return 0, err
	}
	switch {
	case b <= 0x7f:
		return int64(b), nil
	case b >= 0xe0:
		return int64(int8(b)), nil
	case b >= 0xcc && b <= 0xcf: // unsigned, of 1, 2, 4 and 8 bytes
		n, err := m.uint(1 << (b - 0xcc))
		if err != nil || int64(n) < 0 {
			return 0, errors.Join(err, refusedMalformed)
		}
		return int64(n), nil
	case b >= 0xd0 && b <= 0xd3: // signed
		size := 1 << (b - 0xd0)
		n, err := m.uint(size)
		shift := 64 - 8*size
		return int64(n<<shift) >> shift, err
	}
	return 0, refusedMalformed
}

func (m msgpack) boolean() error {
	b, err := m.byte()
	if err != nil {
		return err
	}
	if b != 0xc2 && b != 0xc3 {
		return fmt.Errorf("%w: %#x is not a bool", refusedMalformed, b)
	}
	return nil
}
