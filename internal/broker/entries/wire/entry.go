package wire

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	magicChecksum = 0x0e01
	magicBroker   = 0x0e02

	// singleMin is the length of the shortest event of a batch: a metadata size, and metadata with only a payload size.
	singleMin = 4 + 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Entry is a parsed entry. Its slices alias the frame, except a decompressed Payload: that aliases a buffer of the Entry, which the next
// ParseHead and Open overwrite.
type Entry struct {
	Metadata Metadata
	// Batched means that Payload is a batch for Split. Otherwise Payload belongs to a single event, whose attributes are in Metadata.
	Batched bool
	// Chunked means that Payload is a part of a message for Assembler, still compressed. It is false for encrypted chunks, which are
	// treated like any encrypted entry.
	Chunked bool
	// Events is the number of permits that the broker deducts for the entry. It is at least 1, except after an error:
	// then it is the declared number, if that could be read, which may be negative, and up to 2^31 - 1: return that
	// many permits, but never allocate memory for so many events.
	Events int
	// Compressed means that Payload waits for Parser.Open.
	Compressed bool
	// Payload is decompressed, unless it is compressed as Compressed says, encrypted, or a chunk. It is empty, not nil, for an event without bytes.
	Payload []byte

	buffer []byte // of the decompressed payload
}

// Parser parses entries. It reuses its decompressors instead of allocating them for each entry. The zero Parser is ready. It is not safe
// for concurrent use.
type Parser struct{ inflate inflater }

// ParseHead parses an entry into e and keeps only e's buffer. A payload that is compressed stays so, since it may wait for a long time: Open must
// be called before it is used. A payload of more than payloadMax bytes, before or after decompression, is refused. payloadMax should exceed
// max_message_size where producers compress, because producers compare the compressed size with it. An entry without checksum, as written
// by clients before protocol version 6, is accepted.
//
// The error is a *BrokenError. e then has the metadata that could be read, and no Payload.
func (p *Parser) ParseHead(e *Entry, b []byte, payloadMax int) error {
	*e = Entry{buffer: e.buffer, Events: 1}
	b, err := withoutBroker(b)
	if err != nil {
		return err
	}
	b, intact := checked(b)
	payload, err := e.head(b)
	if !intact {
		return broken(ReasonChecksum, "does not match the bytes") // the head was parsed for its event count
	}
	if err != nil {
		return err
	}
	switch {
	case len(payload) > payloadMax:
		return broken(ReasonSize, "payload beyond the limit")
	case e.Metadata.Encryption.Present():
		if e.Events > max(payloadMax/singleMin, 1) {
			return broken(ReasonBatch, "more events than an encrypted payload can hold")
		}
		e.Payload = payload
		return nil
	case e.Metadata.Chunks > 1:
		e.Chunked = true
		e.Payload = payload
		return e.chunk()
	}
	e.Payload, e.Compressed = payload, e.Metadata.Compression != CompressionNone
	if !e.Compressed {
		return e.fits()
	}
	return nil
}

// Open decompresses the payload of an entry that waits for it. Its errors are those of ParseHead.
func (p *Parser) Open(e *Entry, payloadMax int) error {
	if !e.Compressed {
		return nil
	}
	payload, err := p.inflate.payload(&e.Metadata, e.buffer, e.Payload, payloadMax)
	e.Compressed, e.Payload = false, payload
	if err != nil {
		e.Payload = nil
		return err
	}
	e.buffer = payload
	return e.fits()
}

// fits checks that the payload has room for the declared events.
func (e *Entry) fits() error {
	if e.Batched && e.Events > len(e.Payload)/singleMin {
		e.Payload = nil
		return broken(ReasonBatch, "more events than the payload can hold")
	}
	return nil
}

// withoutBroker returns the bytes after the broker's metadata, if it adds them.
func withoutBroker(b []byte) ([]byte, error) {
	if len(b) < 2 || binary.BigEndian.Uint16(b) != magicBroker {
		return b, nil
	}
	fields, b, ok := sized(b[2:])
	for len(fields) > 0 && ok {
		_, fields, ok = readField(fields)
	}
	if !ok {
		return nil, broken(ReasonMetadata, "bad broker metadata")
	}
	return b, nil
}

// checked returns the bytes after the checksum, and whether the checksum matches them. An entry without checksum begins with the size of
// its metadata, which never equals the magic number, because no metadata have 234 MiB.
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
		e.Events = int(count.events)
	}
	if err == nil && count.present && count.events < 1 {
		err = broken(ReasonBatch, "no events")
	}
	return payload, err
}

// chunk checks the fields that Assembler relies on.
func (e *Entry) chunk() error {
	m := &e.Metadata
	switch {
	case e.Batched:
		return e.refuse("chunk of a batch")
	case m.Chunk < 0 || m.Chunk >= m.Chunks:
		return e.refuse("number beyond the count")
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

// sized reads a size and that many bytes, and returns the bytes after them as rest.
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
