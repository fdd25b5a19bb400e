package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

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
	Entry   []byte   // of a Message, for Parser.Parse; aliases the frame
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

// complete reports whether a command has the field that its type names.
func complete(c *pulsarpb.BaseCommand) bool {
	switch c.GetType() {
	case pulsarpb.BaseCommand_PING, pulsarpb.BaseCommand_PONG:
		return true
	case pulsarpb.BaseCommand_CONNECT:
		return c.Connect != nil
	case pulsarpb.BaseCommand_CONNECTED:
		return c.Connected != nil
	case pulsarpb.BaseCommand_SUBSCRIBE:
		return c.Subscribe != nil
	case pulsarpb.BaseCommand_MESSAGE:
		return c.Message != nil
	case pulsarpb.BaseCommand_ACK:
		return c.Ack != nil
	case pulsarpb.BaseCommand_FLOW:
		return c.Flow != nil
	case pulsarpb.BaseCommand_UNSUBSCRIBE:
		return c.Unsubscribe != nil
	case pulsarpb.BaseCommand_SUCCESS:
		return c.Success != nil
	case pulsarpb.BaseCommand_ERROR:
		return c.Error != nil
	case pulsarpb.BaseCommand_CLOSE_CONSUMER:
		return c.CloseConsumer != nil
	case pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES:
		return c.RedeliverUnacknowledgedMessages != nil
	case pulsarpb.BaseCommand_PARTITIONED_METADATA:
		return c.PartitionMetadata != nil
	case pulsarpb.BaseCommand_PARTITIONED_METADATA_RESPONSE:
		return c.PartitionMetadataResponse != nil
	case pulsarpb.BaseCommand_LOOKUP:
		return c.LookupTopic != nil
	case pulsarpb.BaseCommand_LOOKUP_RESPONSE:
		return c.LookupTopicResponse != nil
	case pulsarpb.BaseCommand_REACHED_END_OF_TOPIC:
		return c.ReachedEndOfTopic != nil
	case pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID:
		return c.GetLastMessageId != nil
	case pulsarpb.BaseCommand_GET_LAST_MESSAGE_ID_RESPONSE:
		return c.GetLastMessageIdResponse != nil
	case pulsarpb.BaseCommand_ACTIVE_CONSUMER_CHANGE:
		return c.ActiveConsumerChange != nil
	case pulsarpb.BaseCommand_AUTH_CHALLENGE:
		return c.AuthChallenge != nil
	case pulsarpb.BaseCommand_AUTH_RESPONSE:
		return c.AuthResponse != nil
	case pulsarpb.BaseCommand_ACK_RESPONSE:
		return c.AckResponse != nil
	case pulsarpb.BaseCommand_TOPIC_MIGRATED:
		return c.TopicMigrated != nil
	}
	return true
}
