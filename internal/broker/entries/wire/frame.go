package wire

import "github.com/ringfence/router/internal/broker/entries/pulsarpb"

const (
	// FrameHead is the length of a frame's leading size, in bytes.
	FrameHead = 4
	// FrameOverheadMax is how much longer than the broker's max_message_size a frame may be, in bytes. Brokers add 10 KiB themselves.
	FrameOverheadMax = 64 << 10
	// MessageSizeDefault is max_message_size of a stock broker, in bytes, in force until Connected names another.
	MessageSizeDefault = 5 << 20
)

// FrameSize returns the size of a frame without its head, from the head's bytes, of which there must be FrameHead. The error is a *BrokenError: the
// size is zero, or more than messageSizeMax + FrameOverheadMax.
func FrameSize(head []byte, messageSizeMax int) (int, error) { return 0, nil }

// Frame is a parsed frame.
type Frame struct {
	// Command is the command, nil for a Message. The part that its type names is there, so Command.Success is not nil when the type is SUCCESS; the
	// parts of PING and PONG may be nil, because nothing is in them. A type that is unknown here reads as UNKNOWN: skip it.
	Command *pulsarpb.BaseCommand
	Message Delivery // of a Message
	Entry   []byte   // of a Message, for Parser.Parse; aliases the frame
}

// ParseFrame splits a frame, given without its head. It copies nothing of an entry and allocates nothing for a Message, unless some of its events
// are acked already. The error is a *BrokenError: the connection is unusable then.
func ParseFrame(b []byte) (Frame, error) { return Frame{}, nil }

// AppendCommand appends a frame with a command and no entry. It fails when a required field is missing.
func AppendCommand(dst []byte, c *pulsarpb.BaseCommand) ([]byte, error) { return dst, nil }
