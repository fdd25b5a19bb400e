package wire

// Reason classifies unreadable input from the network.
//
//exhaustive:enforce
type Reason uint8

// Reasons. ReasonFrame and ReasonCommand make the connection unusable, all other reasons only one entry.
const (
	ReasonFrame       Reason = iota + 1 // the sizes of a frame contradict each other or a limit
	ReasonCommand                       // a command is invalid protobuf, or lacks a required field
	ReasonChecksum                      // the CRC32C of an entry is wrong
	ReasonMetadata                      // the metadata of an entry are cut off, invalid protobuf, or lack a required field
	ReasonCompression                   // the compression is unknown
	ReasonDecompress                    // a payload does not decompress as declared
	ReasonSize                          // the size of a payload is beyond a limit, or is not the declared one
	ReasonBatch                         // the events of a batch are cut off, miscounted, or have bad metadata
	ReasonChunk                         // the number, count, size or identity of a chunk is impossible, or other chunks of its message do not come
)

// Reasons lists all reasons, for metrics.
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

// BrokenError reports unreadable input from the network. Its text contains none of the input.
type BrokenError struct {
	Reason Reason
	What   string // constant text
}

// Error returns the reason and the details.
func (e *BrokenError) Error() string { return "wire: " + e.Reason.String() + ": " + e.What }

// broken returns an error rather than a *BrokenError, because a nil *BrokenError in an error is not nil.
func broken(r Reason, what string) error { return &BrokenError{Reason: r, What: what} }
