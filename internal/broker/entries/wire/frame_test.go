package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// The Message parser agrees with the generated code, for any order of the fields.
func TestMessageParsesLikeGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &pulsarpb.CommandMessage{
			ConsumerId:      new(rapid.Uint64().Draw(t, "consumer")),
			RedeliveryCount: some(t, rapid.Uint32(), "redelivery"),
			AckSet:          rapid.SliceOfN(rapid.Int64(), 0, 4).Draw(t, "ack set"),
			ConsumerEpoch:   some(t, rapid.Uint64(), "epoch"),
		}
		id := &pulsarpb.MessageIdData{
			LedgerId: new(rapid.Uint64().Draw(t, "ledger")), EntryId: new(rapid.Uint64().Draw(t, "entry")),
			Partition: some(t, rapid.Int32(), "partition"), BatchIndex: some(t, rapid.Int32(), "index"),
		}
		b := messageBytes(t, m, id)
		entry := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "entry")
		f, err := ParseFrame(append(wiretest.Sized(nil, b), entry...))
		if err != nil {
			t.Fatal(err)
		}
		same(t, "command", f.Command, nil)
		same(t, "entry", string(f.Entry), string(entry))
		d := f.Message
		same(t, "consumer", d.Consumer, m.GetConsumerId())
		same(t, "id", d.ID, ID{Ledger: int64(id.GetLedgerId()), Entry: int64(id.GetEntryId())})
		same(t, "redelivery", d.Redelivery, m.GetRedeliveryCount())
		same(t, "words", len(d.AckSet), len(m.AckSet))
		for i, word := range m.AckSet {
			same(t, "word", d.AckSet[i], uint64(word))
		}
	})
}

// messageBytes encodes a Message by hand, with the fields of all three messages in any order.
func messageBytes(t *rapid.T, m *pulsarpb.CommandMessage, id *pulsarpb.MessageIdData) []byte {
	part, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	part = protowire.AppendBytes(protowire.AppendTag(part, 2, protowire.BytesType), shuffled(t, marshal(t, id)))
	command := marshal(t, &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_MESSAGE.Enum()})
	command = protowire.AppendBytes(protowire.AppendTag(command, 9, protowire.BytesType), shuffled(t, part))
	return shuffled(t, command)
}

func TestMessageWithPackedAckSet(t *testing.T) {
	packed := protowire.AppendVarint(protowire.AppendVarint(nil, 1<<63|5), 0)
	part := marshal(t, &pulsarpb.CommandMessage{
		ConsumerId: proto.Uint64(1), MessageId: &pulsarpb.MessageIdData{LedgerId: proto.Uint64(2), EntryId: proto.Uint64(3)},
	})
	part = protowire.AppendBytes(protowire.AppendTag(part, 4, protowire.BytesType), packed)
	command := protowire.AppendBytes([]byte{1 << 3, 9, 9<<3 | 2}, part)
	f, err := ParseFrame(wiretest.Sized(nil, command))
	if err != nil {
		t.Fatal(err)
	}
	for event, want := range map[int]bool{0: false, 1: true, 2: false, 62: true, 63: false, 64: true, 127: true, 128: true, 1 << 40: true} {
		if got := f.Message.Acked(event); got != want {
			t.Errorf("Acked(%d) = %v, want %v", event, got, want)
		}
	}
	if (&Delivery{}).Acked(3) {
		t.Error("without an ack set, event 3 is acked")
	}
}

func TestParseFrameRefuses(t *testing.T) {
	id := &pulsarpb.MessageIdData{LedgerId: proto.Uint64(2), EntryId: proto.Uint64(3)}
	one, words := uint64(1), make([]int64, ackSetWordsMax+1)
	half := &pulsarpb.MessageIdData{LedgerId: &one}
	partial := func(m *pulsarpb.CommandMessage) []byte {
		b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(wiretest.Message(m))
		if err != nil {
			t.Fatal(err)
		}
		return wiretest.Sized(nil, b)
	}
	tests := map[string]struct {
		frame []byte
		want  Reason
	}{
		"nothing":                    {nil, ReasonFrame},
		"no size":                    {[]byte{0, 0, 0}, ReasonFrame},
		"command of 4 GiB":           {[]byte{0xff, 0xff, 0xff, 0xff, 1, 2}, ReasonFrame},
		"no protobuf":                {wiretest.Sized(nil, []byte{0xff}), ReasonCommand},
		"number 0":                   {wiretest.Sized(nil, []byte{0, 0}), ReasonCommand},
		"varint of 11 bytes":         {wiretest.Sized(nil, append([]byte{8}, bytes.Repeat([]byte{0xff}, 11)...)), ReasonCommand},
		"field of 2^63 bytes":        {wiretest.Sized(nil, protowire.AppendVarint([]byte{9<<3 | 2}, 1<<63)), ReasonCommand},
		"no Message":                 {wiretest.Sized(nil, []byte{8, 9}), ReasonCommand},
		"no consumer":                {partial(&pulsarpb.CommandMessage{MessageId: id}), ReasonCommand},
		"no id":                      {partial(&pulsarpb.CommandMessage{ConsumerId: proto.Uint64(1)}), ReasonCommand},
		"no entry":                   {partial(&pulsarpb.CommandMessage{ConsumerId: &one, MessageId: half}), ReasonCommand},
		"ack set without end":        {partial(&pulsarpb.CommandMessage{ConsumerId: &one, MessageId: id, AckSet: words}), ReasonCommand},
		"Success without its part":   {wiretest.Sized(nil, []byte{8, 13}), ReasonCommand},
		"Success without request_id": {wiretest.Sized(nil, []byte{8, 13, 13<<3 | 2, 0}), ReasonCommand},
		"a long command":             {wiretest.Sized(nil, bytes.Repeat([]byte{8, 18}, CommandMax/2+1)), ReasonCommand},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseFrame(test.frame)
			if got := reasonOf(t, err); got != test.want {
				t.Errorf("reason = %v, want %v", got, test.want)
			}
		})
	}
}

// Unknown commands and errors of newer brokers do not end the connection.
func TestUnknownNumbers(t *testing.T) {
	f, err := ParseFrame(wiretest.Sized(nil, []byte{8, 99, 0x9a, 0x06, 0}))
	if err != nil || f.Command.GetType() != 99 {
		t.Errorf("a command of type 99 is %v, %v", f.Command, err)
	}
	f, err = ParseFrame(wiretest.Sized(nil, []byte{8, 14, 14<<3 | 2, 6, 8, 5, 16, 99, 26, 0}))
	if err != nil || f.Command.GetError().GetRequestId() != 5 || f.Command.GetError().GetError() != 99 {
		t.Errorf("an error with number 99 is %v, %v", f.Command, err)
	}
}

// Each type requires the field with the same number, so callers may use the field of a command without a nil check.
func TestEveryTypeNeedsItsPart(t *testing.T) {
	types := pulsarpb.BaseCommand_PING.Descriptor().Values()
	fields := new(pulsarpb.BaseCommand).ProtoReflect().Descriptor().Fields()
	for i := range types.Len() {
		kind := pulsarpb.BaseCommand_Type(types.Get(i).Number())
		switch kind {
		case pulsarpb.BaseCommand_PING, pulsarpb.BaseCommand_PONG:
			continue
		}
		c := &pulsarpb.BaseCommand{Type: kind.Enum()}
		if complete(c) {
			t.Errorf("%v is complete without its field", kind)
		}
		part := fields.ByNumber(protoreflect.FieldNumber(kind))
		if part == nil {
			t.Errorf("%v has no field of its number", kind)
			continue
		}
		c.ProtoReflect().Mutable(part)
		if !complete(c) {
			t.Errorf("%v is not complete with its field", kind)
		}
	}
}

func TestFrameSize(t *testing.T) {
	const sizeMax = MessageSizeDefault + FrameOverheadMax
	for size, want := range map[uint32]Reason{
		0: ReasonFrame, 3: ReasonFrame, 4: 0, sizeMax: 0, sizeMax + 1: ReasonFrame, 1<<32 - 1: ReasonFrame,
	} {
		got, err := FrameSize(binary.BigEndian.AppendUint32(nil, size), MessageSizeDefault)
		if reason := reasonOf(t, err); reason != want || reason == 0 && got != int(size) {
			t.Errorf("FrameSize(%d) = %d, %v, want reason %v", size, got, err, want)
		}
	}
	if _, err := FrameSize([]byte{0, 0, 1}, 10); reasonOf(t, err) != ReasonFrame {
		t.Errorf("three bytes of a head: %v", err)
	}
	if _, err := FrameSize([]byte{0, 1, 0, 1}, -1<<62); reasonOf(t, err) != ReasonFrame {
		t.Errorf("a negative limit: %v", err)
	}
}

func TestParseFrameAllocatesNothing(t *testing.T) {
	frame := benchFrame(pulsarpb.CompressionType_NONE, nil, nil)
	allocates(t, 0, "ParseFrame", func() {
		if _, err := ParseFrame(frame); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzParseFrame(f *testing.F) {
	f.Add(benchFrame(pulsarpb.CompressionType_LZ4, nil, nil)[:200])
	f.Add(AppendPing(nil)[FrameHead:])
	f.Add(AppendAck(nil, 1, 2, []AckID{{ID: ID{1, 2}, AckSet: []uint64{1, 2}, BatchSize: 100}})[FrameHead:])
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := ParseFrame(b)
		if reasonOf(t, err) != 0 {
			return
		}
		size := binary.BigEndian.Uint32(b)
		var c pulsarpb.BaseCommand
		if err := proto.Unmarshal(b[4:4+size], &c); err != nil {
			return // the generated code also checks fields that ParseFrame does not read
		}
		if frame.Command != nil {
			if c.GetType() != frame.Command.GetType() || c.GetType() == pulsarpb.BaseCommand_MESSAGE {
				t.Errorf("type = %v, want %v", frame.Command.GetType(), c.GetType())
			}
			return
		}
		m, d := c.GetMessage(), frame.Message
		id := m.GetMessageId()
		if c.GetType() != pulsarpb.BaseCommand_MESSAGE || d.Consumer != m.GetConsumerId() ||
			d.ID != (ID{int64(id.GetLedgerId()), int64(id.GetEntryId())}) ||
			d.Redelivery != m.GetRedeliveryCount() || len(d.AckSet) != len(m.GetAckSet()) {
			t.Errorf("delivery = %+v, want %v", d, m)
		}
		if string(frame.Entry) != string(b[4+size:]) {
			t.Errorf("entry is not the rest of the frame")
		}
	})
}
