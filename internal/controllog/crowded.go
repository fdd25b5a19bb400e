package controllog

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ringfence/router/internal/wire/hotframe"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
)

// Bounds of what a record may repeat, counted before memory is allocated for it: an empty node of two bytes takes hundreds in
// memory, and a broker takes records of 5 MB, which all members read at once.
const (
	itemsMax     = 1 << 18 // texts and ids, and messages: more than in the largest Snap that a group can write
	messageItems = 4       // as many texts take the memory of a message
	smallMax     = 1 << 17 // bytes of a record that is not counted
)

var recordShape = (*controllogv1.Record)(nil).ProtoReflect().Descriptor()

// crowded reports whether a record has more than itemsMax items. It stops at the first malformed field, where the generated
// code fails too.
func crowded(data []byte) bool {
	return len(data) > smallMax && countItems(recordShape, data, itemsMax) < 0
}

// countItems returns room less the items in a message, or a negative number.
func countItems(shape protoreflect.MessageDescriptor, data []byte, room int) int {
	fields := shape.Fields()
	for num, content := range hotframe.Fields(data) {
		field := fields.ByNumber(num)
		if field == nil || content == nil {
			continue
		}
		switch field.Kind() {
		case protoreflect.MessageKind:
			room = countItems(field.Message(), content, room-messageItems)
		case protoreflect.BytesKind, protoreflect.StringKind:
			room--
		default: // packed numbers
		}
		if room < 0 {
			break
		}
	}
	return room
}

// headOf returns a record without its body.
func headOf(data []byte) (head []byte) {
	body := recordShape.Oneofs().ByName("record").Fields()
	for len(data) > 0 {
		num, _, size := protowire.ConsumeField(data)
		if size < 0 {
			return head
		}
		if body.ByNumber(num) == nil {
			head = append(head, data[:size]...)
		}
		data = data[size:]
	}
	return head
}
