package wire

// Entry is a parsed entry. Its slices alias the frame, or a buffer of the Entry when the payload was compressed; a Parse into the same Entry
// overwrites that buffer.
type Entry struct {
	Metadata Metadata
	// Batched tells that Payload is a batch, for Split. Otherwise Payload is that of a single event, whose attributes are in Metadata.
	Batched bool
	// Chunked tells that Payload is a part of a message, for Assembler: it is still compressed. A chunk that is encrypted is not Chunked: its
	// Metadata.Encryption tells how to treat it.
	Chunked bool
	// Events is how many permits the broker takes for the entry, at least 1. After an error it is what the metadata declares, up to 2^31 - 1,
	// if they can be read: give back as many permits, allocate nothing by it.
	Events int
	// Payload is uncompressed, unless it is encrypted or a chunk. It is empty, not nil, for an event of no bytes.
	Payload []byte
	// BrokerTimestamp, in milliseconds since 1970, and BrokerIndex are -1 when the broker does not add them.
	BrokerTimestamp, BrokerIndex int64

	buffer []byte // of the decompressed payload
}

// Parser parses entries. It keeps the state of decompressors, so that they are not allocated for each entry. It is not safe for concurrent use.
type Parser struct{}

// Parse parses an entry into e, of which nothing stays but a buffer. A payload that would decompress to more than payloadMax bytes is refused. The
// error is a *BrokenError; e has the metadata then, as far as they could be read.
func (p *Parser) Parse(e *Entry, b []byte, payloadMax int) error { return nil }
