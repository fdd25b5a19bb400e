package wire

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	magicChecksum = 0x0e01
	magicBroker   = 0x0e02

	// singleMin is the length of the shortest event of a batch: the size of its metadata, and in it the size of its payload.
	singleMin = 4 + 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Entry is a parsed entry. Its slices alias the frame, or a buffer of the Entry when the payload was compressed; a Parse into the same
// Entry overwrites that buffer.
type Entry struct {
	Metadata Metadata
	// Batched tells that Payload is a batch, for Split. Otherwise Payload is that of a single event, whose attributes are in Metadata.
	Batched bool
	// Chunked tells that Payload is a part of a message, for Assembler: it is still compressed. A chunk that is encrypted is not Chunked: its
	// Metadata.Encryption tells how to treat it.
	Chunked bool
	// Events is how many permits the broker takes for the entry, at least 1. After an error it is what the metadata declare, up to 2^31 - 1,
	// if they can be read: give back as many permits, and allocate nothing by it.
	Events int
	// Payload is uncompressed, unless it is encrypted or a chunk. It is empty, not nil, for an event of no bytes.
	Payload []byte
	// BrokerTimestamp, in milliseconds since 1970, and BrokerIndex are -1 when the broker does not add them.
	BrokerTimestamp, BrokerIndex int64

	buffer []byte // of the decompressed payload
}

// Parser parses entries. It keeps the state of decompressors, so that they are not allocated for each entry. The zero Parser is ready. It
// is not safe for concurrent use.
type Parser struct{ inflate inflater }

// Parse parses an entry into e, of which nothing stays but a buffer. A payload of more than payloadMax bytes is refused, decompressed or
// not. payloadMax is greater than max_message_size where producers compress, because they compare the compressed size with that. An entry
// without checksum, as clients of a protocol before version 6 wrote them, is not refused.
//
// The error is a *BrokenError. e has the metadata then, as far as they could be read, and no Payload.
func (p *Parser) Parse(e *Entry, b []byte, payloadMax int) error {
	*e = Entry{buffer: e.buffer, Events: 1, BrokerTimestamp: -1, BrokerIndex: -1}
	b, err := e.broker(b)
	if err != nil {
		return err
	}
	b, intact := checked(b)
	payload, err := e.head(b)
	if !intact {
		return broken(ReasonChecksum, "the bytes are not those that were sent") // e has the head all the same, for its count
	}
	if err != nil {
		return err
	}
	switch {
	case len(payload) > payloadMax:
		return broken(ReasonSize, "payload beyond the limit")
	case e.Metadata.Encryption.Present():
		if e.Events > max(payloadMax/singleMin, 1) {
			return broken(ReasonBatch, "more events than can be in an encrypted payload")
		}
		e.Payload = payload
		return nil
	case e.Metadata.Chunks > 1:
		e.Chunked = true
		e.Payload = payload
		return e.chunk()
	}
	if payload, err = p.inflate.payload(&e.Metadata, e.buffer, payload, payloadMax); err != nil {
		return err
	}
	if e.Metadata.Compression != CompressionNone {
		e.buffer = payload
	}
	if e.Batched && e.Events > len(payload)/singleMin {
		return broken(ReasonBatch, "more events than bytes for them")
	}
	e.Payload = payload
	return nil
}

// broker reads the broker's metadata, if there are some, and returns what follows.
func (e *Entry) broker(b []byte) ([]byte, error) {
	if len(b) < 2 || binary.BigEndian.Uint16(b) != magicBroker {
		return b, nil
	}
	fields, b, ok := sized(b[2:])
	for len(fields) > 0 && ok {
		var f field
		f, fields, ok = readField(fields)
		switch f.tag {
		case 1<<3 | varint:
			e.BrokerTimestamp = int64(f.value)
		case 2<<3 | varint:
			e.BrokerIndex = int64(f.value)
		}
	}
	if !ok {
		return nil, broken(ReasonMetadata, "bad metadata of the broker")
	}
	return b, nil
}

// checked returns what is behind a checksum, and whether it is that of the bytes. An entry without one has a size of metadata there; it
// never begins like a checksum, because no metadata have 234 MiB.
func checked(b []byte) (rest []byte, intact bool) {
	if len(b) < 2 || binary.BigEndian.Uint16(b) != magicChecksum {
		return b, true
	}
	if len(b) < 6 {
		return nil, false
	}
	return b[6:], crc32.Checksum(b[6:], castagnoli) == binary.BigEndian.Uint32(b[2:])
}

// head reads the metadata, and returns the payload.
func (e *Entry) head(b []byte) (payload []byte, err error) {
	fields, payload, ok := sized(b)
	if !ok {
		return nil, broken(ReasonMetadata, "cut off")
	}
	count, err := e.Metadata.parse(fields)
	if count.present {
		e.Batched = true
		e.Events = max(int(count.events), 1)
	}
	if err == nil && count.present && count.events < 1 {
		err = broken(ReasonBatch, "no events")
	}
	return payload, err
}

// chunk checks what Assembler relies on.
func (e *Entry) chunk() error {
	m := &e.Metadata
	switch {
	case e.Batched:
		return e.refuse("a chunk of a batch")
	case m.Chunk < 0 || m.Chunk >= m.Chunks:
		return e.refuse("a number beyond the count")
	case m.ChunkedSize < m.Chunks:
		return e.refuse("more chunks than bytes")
	case len(m.UUID) == 0:
		return e.refuse("no uuid")
	case len(e.Payload) == 0 || len(e.Payload) > int(m.ChunkedSize):
		return e.refuse("empty, or longer than its message")
	}
	return nil
}

func (e *Entry) refuse(what string) error {
	e.Chunked, e.Payload = false, nil
	return broken(ReasonChunk, what)
}

// sized reads a size and as many bytes, and returns what follows.
func sized(b []byte) (part, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	size := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(size) > uint64(len(b)) {
		return nil, nil, false
	}
	return b[:size:size], b[size:], true
}
