package wire

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// AppendCommand appends a frame with a command and no entry. It fails when a required field is missing, and then returns dst unchanged.
func AppendCommand(dst []byte, c *pulsarpb.BaseCommand) ([]byte, error) {
	framed, err := proto.MarshalOptions{}.MarshalAppend(appendHead(dst, 0), c)
	if err != nil {
		return dst, fmt.Errorf("wire: command %v: %w", c.GetType(), err)
	}
	size := len(framed) - len(dst) - 8
	binary.BigEndian.PutUint32(framed[len(dst):], uint32(size)+4)
	binary.BigEndian.PutUint32(framed[len(dst)+4:], uint32(size))
	return framed, nil
}

// appendHead appends the frame size and the command size of a command of that many bytes.
func appendHead(dst []byte, command int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(command)+4)
	return binary.BigEndian.AppendUint32(dst, uint32(command))
}

// appendPart appends the two sizes, the type, and the tag and length of the BaseCommand field, whose number equals the type in all commands
// of this file.
func appendPart(dst []byte, kind pulsarpb.BaseCommand_Type, size int) []byte {
	tag := uint64(kind)<<3 | delimited
	dst = appendHead(dst, 2+protowire.SizeVarint(tag)+protowire.SizeVarint(uint64(size))+size)
	dst = append(dst, 1<<3|byte(varint), byte(kind))
	dst = protowire.AppendVarint(dst, tag)
	return protowire.AppendVarint(dst, uint64(size))
}

// appendUint appends a varint field whose number is below 16. sizeUint returns its length.
func appendUint(dst []byte, number byte, value uint64) []byte {
	return protowire.AppendVarint(append(dst, number<<3|byte(varint)), value)
}

func sizeUint(value uint64) int { return 1 + protowire.SizeVarint(value) }

// AckID names an entry to ack, or some of its events.
type AckID struct {
	ID
	// AckSet has a bit for each event that stays unacked, the first event in the lowest bit of the first word. Nil acks the whole entry.
	AckSet []uint64
	// BatchSize is the number of events in the entry. It is written only with an AckSet.
	BatchSize int32
}

// AppendFlow appends a Flow frame, which lets the broker send that many more events to the consumer.
func AppendFlow(dst []byte, consumer uint64, permits uint32) []byte {
	dst = appendPart(dst, pulsarpb.BaseCommand_FLOW, sizeUint(consumer)+sizeUint(uint64(permits)))
	return appendUint(appendUint(dst, 1, consumer), 2, uint64(permits))
}

// AppendAck appends one individual Ack frame for all ids, or nothing if ids is empty. Request 0 asks for no receipt.
func AppendAck(dst []byte, consumer, request uint64, ids []AckID) []byte {
	if len(ids) == 0 {
		return dst
	}
	const individual = 0
	size := sizeUint(consumer) + sizeUint(individual)
	for i := range ids {
		size += ids[i].framed()
	}
	if request != 0 {
		size += sizeUint(request)
	}
	dst = appendPart(dst, pulsarpb.BaseCommand_ACK, size)
	dst = appendUint(dst, 1, consumer)
	dst = appendUint(dst, 2, individual)
	for i := range ids {
		dst = ids[i].append(dst, 3)
	}
	if request != 0 {
		dst = appendUint(dst, 8, request)
	}
	return dst
}

// AppendRedeliver appends a frame that asks the broker to redeliver the entries, or nothing if ids is empty: to Pulsar, an empty list means
// all unacked entries.
func AppendRedeliver(dst []byte, consumer uint64, ids []ID) []byte {
	if len(ids) == 0 {
		return dst
	}
	size := sizeUint(consumer)
	for _, id := range ids {
		size += (&AckID{ID: id}).framed()
	}
	dst = appendPart(dst, pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES, size)
	dst = appendUint(dst, 1, consumer)
	for _, id := range ids {
		dst = (&AckID{ID: id}).append(dst, 2)
	}
	return dst
}

// AppendRedeliverAll appends a frame that asks the broker to redeliver all unacked entries, and to count them anew.
func AppendRedeliverAll(dst []byte, consumer uint64) []byte {
	dst = appendPart(dst, pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES, sizeUint(consumer))
	return appendUint(dst, 1, consumer)
}

// size returns the length of the MessageIdData. framed includes the tag and length of the field.
func (a *AckID) size() int {
	size := sizeUint(uint64(a.Ledger)) + sizeUint(uint64(a.Entry))
	for _, word := range a.AckSet {
		size += sizeUint(word)
	}
	if a.AckSet != nil {
		size += sizeUint(uint64(int64(a.BatchSize)))
	}
	return size
}

func (a *AckID) framed() int {
	size := a.size()
	return 1 + protowire.SizeVarint(uint64(size)) + size
}

// append appends a as a MessageIdData field.
func (a *AckID) append(dst []byte, number byte) []byte {
	dst = protowire.AppendVarint(append(dst, number<<3|byte(delimited)), uint64(a.size()))
	dst = appendUint(dst, 1, uint64(a.Ledger))
	dst = appendUint(dst, 2, uint64(a.Entry))
	for _, word := range a.AckSet {
		dst = appendUint(dst, 5, word)
	}
	if a.AckSet != nil {
		dst = appendUint(dst, 6, uint64(int64(a.BatchSize)))
	}
	return dst
}

// AppendPing appends a Ping frame.
func AppendPing(dst []byte) []byte { return appendPart(dst, pulsarpb.BaseCommand_PING, 0) }

// AppendPong appends a Pong frame.
func AppendPong(dst []byte) []byte { return appendPart(dst, pulsarpb.BaseCommand_PONG, 0) }
