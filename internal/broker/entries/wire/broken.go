package wire

// Reason is why bytes of the network could not be read.
//
//exhaustive:enforce
type Reason uint8

// Reasons. ReasonFrame and ReasonCommand mean that the connection is unusable, all others that one entry is.
const (
	ReasonFrame       Reason = iota + 1 // sizes of a frame contradict each other or a limit
	ReasonCommand                       // a command that is no protobuf, or lacks a required field
	ReasonChecksum                      // the CRC32C of an entry is wrong
	ReasonMetadata                      // metadata of an entry that is cut off, no protobuf, or lacks a required field
	ReasonCompression                   // an unknown compression
	ReasonDecompress                    // a payload that is not compressed in the declared way
	ReasonSize                          // the size of a payload is beyond a limit, or is not the declared one
	ReasonBatch                         // a batch whose events are cut off, miscounted, or have bad metadata
	ReasonChunk                         // a chunk whose number, count, size or identity is impossible
)

// Reasons are all reasons there are, for metrics.
var Reasons = []Reason{
	ReasonFrame, ReasonCommand, ReasonChecksum, ReasonMetadata, ReasonCompression, ReasonDecompress, ReasonSize, ReasonBatch, ReasonChunk,
}

// String returns one lower-case word, for logs and labels of metrics.
func (r Reason) String() string {
	switch r {
	case ReasonFrame:
		return "frame"
	case ReasonCommand:
		return "command"
	case ReasonChecksum:
		return "checksum"
	case ReasonMetadata:
		return "metadata"
	case ReasonCompression:
		return "compression"
	case ReasonDecompress:
		return "decompress"
	case ReasonSize:
		return "size"
	case ReasonBatch:
		return "batch"
	case ReasonChunk:
		return "chunk"
	}
	return "unknown"
}

// BrokenError tells that bytes of the network could not be read. Its text has no byte of them.
type BrokenError struct {
	Reason Reason
	What   string // constant text
}

// Error returns the reason and what was wrong.
func (e *BrokenError) Error() string { return "wire: " + e.Reason.String() + ": " + e.What }

// broken returns the error, which must stay an untyped interface: a nil *BrokenError in an error is not nil.
func broken(r Reason, what string) error { return &BrokenError{Reason: r, What: what} }
