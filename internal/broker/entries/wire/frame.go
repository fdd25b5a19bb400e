package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

const (
	// FrameHead is the length of a frame's leading size, in bytes.
	FrameHead = 4
	// FrameOverheadMax bounds the bytes of a frame beyond the broker's max_message_size. Brokers themselves allow 10 KiB.
	FrameOverheadMax = 64 << 10
	// MessageSizeDefault is the default max_message_size of brokers, in bytes. It applies until Connected names another.
	MessageSizeDefault = 5 << 20
	// CommandMax bounds all commands except Message, in bytes, because their protobuf takes many times its size in memory. The longest are
	// acks: a thousand entries with 30 words of AckSet each fit.
	CommandMax = 512 << 10
)

// FrameSize returns the size of a frame without its head. head must have FrameHead bytes. The error is a *BrokenError: the frame has no
// room for a command, or is longer than messageSizeMax + FrameOverheadMax.
func FrameSize(head []byte, messageSizeMax int) (int, error) {
	if len(head) < FrameHead {
		return 0, broken(ReasonFrame, "size cut off")
	}
	size := binary.BigEndian.Uint32(head)
	if size < 4 {
		return 0, broken(ReasonFrame, "no room for a command")
	}
	if sizeMax := uint64(max(messageSizeMax, 0)) + FrameOverheadMax; uint64(size) > sizeMax || size > math.MaxInt32 {
		return 0, broken(ReasonFrame, fmt.Sprintf("want at most %d bytes", sizeMax))
	}
	return int(size), nil
}

// Frame is a parsed frame.
type Frame struct {
	// Command is nil for a Message. The field that its type names is set: Command.Success is not nil when the type is SUCCESS. Only Ping
	// and Pong, which are empty, may be nil. Callers skip commands of unknown type.
	Command *pulsarpb.BaseCommand
	Message Delivery // of a Message
	Entry   []byte   // of a Message, for Parser.ParseHead; aliases the frame
}

// ParseFrame splits a frame without its head. It does not copy the entry, and allocates for a Message only if some of its events are
// already acked. The error is a *BrokenError, and means that the connection is unusable.
func ParseFrame(b []byte) (Frame, error) {
	if len(b) < 4 {
		return Frame{}, broken(ReasonFrame, "no room for a command")
	}
	size := binary.BigEndian.Uint32(b)
	if b = b[4:]; uint64(size) > uint64(len(b)) {
		return Frame{}, broken(ReasonFrame, "command longer than its frame")
	}
	command, entry := b[:size], b[size:]
	kind, ok := commandType(command)
	if !ok {
		return Frame{}, broken(ReasonCommand, "invalid protobuf")
	}
	if kind == pulsarpb.BaseCommand_MESSAGE {
		f := Frame{Entry: entry}
		if !parseMessage(command, &f.Message) {
			return Frame{}, broken(ReasonCommand, "bad Message")
		}
		return f, nil
	}
	if len(command) > CommandMax {
		return Frame{}, broken(ReasonCommand, "too long")
	}
	c := new(pulsarpb.BaseCommand)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(command, c); err != nil {
		return Frame{}, broken(ReasonCommand, "invalid protobuf, or a required field is missing")
	}
	if !complete(c) {
		return Frame{}, broken(ReasonCommand, "the field that the type names is missing")
	}
	return Frame{Command: c}, nil
}

// commandType returns the type of a BaseCommand, and whether its top-level fields are valid.
func commandType(b []byte) (kind pulsarpb.BaseCommand_Type, ok bool) {
	for len(b) > 0 {
		var f field
		if f, b, ok = readField(b); !ok {
			return 0, false
		}
		if f.tag == 1<<3|varint {
			kind = pulsarpb.BaseCommand_Type(f.value)
		}
	}
	return kind, true
}

// complete reports whether a command has the field that its type names, which has the number of the type. Types without one are unknown here.
func complete(c *pulsarpb.BaseCommand) bool {
	kind := c.GetType()
	if kind == pulsarpb.BaseCommand_PING || kind == pulsarpb.BaseCommand_PONG {
		return true
	}
	m := c.ProtoReflect()
	part := m.Descriptor().Fields().ByNumber(protoreflect.FieldNumber(kind))
	return part == nil || m.Has(part)
}
