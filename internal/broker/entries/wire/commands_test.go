package wire

import (
	"encoding/binary"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// sameCommand checks that got has the earlier bytes unchanged, followed by a frame of the command.
func sameCommand(t *rapid.T, got []byte, want *pulsarpb.BaseCommand) {
	t.Helper()
	const before = 3
	if len(got) < before+8 || string(got[:before]) != "abc" {
		t.Fatalf("frame = %x", got)
	}
	frame := got[before:]
	same(t, "size", int(binary.BigEndian.Uint32(frame)), len(frame)-4)
	same(t, "command size", int(binary.BigEndian.Uint32(frame[4:])), len(frame)-8)
	var c pulsarpb.BaseCommand
	if err := proto.Unmarshal(frame[8:], &c); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&c, want) {
		t.Fatalf("command = %v, want %v", &c, want)
	}
	if parsed, err := ParseFrame(frame[FrameHead:]); err != nil || !proto.Equal(parsed.Command, want) {
		t.Fatalf("ParseFrame = %v, %v, want %v", parsed.Command, err, want)
	}
}

func TestAppendedCommandsUnmarshal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dst := []byte("abc")
		consumer := rapid.Uint64().Draw(t, "consumer")
		request := rapid.Uint64().Draw(t, "request")
		var acks []AckID
		var plain []ID
		var want, wantPlain []*pulsarpb.MessageIdData
		for range rapid.IntRange(1, 20).Draw(t, "ids") {
			id := AckID{ID: ID{Ledger: rapid.Int64().Draw(t, "ledger"), Entry: rapid.Int64().Draw(t, "entry")}}
			data := &pulsarpb.MessageIdData{LedgerId: new(uint64(id.Ledger)), EntryId: new(uint64(id.Entry))}
			plain, wantPlain = append(plain, id.ID), append(wantPlain, proto.CloneOf(data))
			if rapid.Bool().Draw(t, "partly") {
				id.AckSet = rapid.SliceOfN(rapid.Uint64(), 1, 20).Draw(t, "ack set")
				id.BatchSize = rapid.Int32().Draw(t, "batch size")
				for _, word := range id.AckSet {
					data.AckSet = append(data.AckSet, int64(word))
				}
				data.BatchSize = &id.BatchSize
			}
			acks, want = append(acks, id), append(want, data)
		}
		ack := &pulsarpb.CommandAck{ConsumerId: &consumer, AckType: pulsarpb.CommandAck_INDIVIDUAL.Enum(), MessageId: want}
		if request != 0 {
			ack.RequestId = &request
		}
		sameCommand(t, AppendAck(dst, consumer, request, acks), &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ACK.Enum(), Ack: ack})
		sameCommand(t, AppendRedeliverAll(dst, consumer), &pulsarpb.BaseCommand{
			Type:                            pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES.Enum(),
			RedeliverUnacknowledgedMessages: &pulsarpb.CommandRedeliverUnacknowledgedMessages{ConsumerId: &consumer},
		})
		sameCommand(t, AppendRedeliver(dst, consumer, plain), &pulsarpb.BaseCommand{
			Type:                            pulsarpb.BaseCommand_REDELIVER_UNACKNOWLEDGED_MESSAGES.Enum(),
			RedeliverUnacknowledgedMessages: &pulsarpb.CommandRedeliverUnacknowledgedMessages{ConsumerId: &consumer, MessageIds: wantPlain},
		})
		permits := rapid.Uint32().Draw(t, "permits")
		flow := &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_FLOW.Enum()}
		flow.Flow = &pulsarpb.CommandFlow{ConsumerId: &consumer, MessagePermits: &permits}
		sameCommand(t, AppendFlow(dst, consumer, permits), flow)
		sameCommand(t, must(AppendCommand(dst, flow)), flow)
		sameCommand(t, AppendPing(dst), &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_PING.Enum(), Ping: &pulsarpb.CommandPing{}})
		sameCommand(t, AppendPong(dst), &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_PONG.Enum(), Pong: &pulsarpb.CommandPong{}})
	})
}

// An ack of no ids writes no command, and a redelivery of no ids must not become the command that redelivers all entries.
func TestNoIDsNoCommand(t *testing.T) {
	if got := AppendAck(nil, 1, 2, nil); got != nil {
		t.Errorf("AppendAck of no ids = %x, want nothing", got)
	}
	if got := AppendRedeliver(nil, 1, nil); got != nil {
		t.Errorf("AppendRedeliver of no ids = %x, want nothing", got)
	}
}

func TestAppendCommandRefusesMissingFields(t *testing.T) {
	got, err := AppendCommand([]byte("abc"), &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_FLOW.Enum(), Flow: &pulsarpb.CommandFlow{}})
	if err == nil || string(got) != "abc" {
		t.Errorf("AppendCommand = %q, %v", got, err)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	buffer := make([]byte, 0, 1<<16)
	acks := []AckID{{ID: ID{1, 2}}, {ID: ID{1, 3}, AckSet: []uint64{1, 2}, BatchSize: 100}}
	ids := []ID{{1, 2}, {3, 4}}
	allocates(t, 0, "appending", func() {
		b := AppendAck(buffer, 1, 2, acks)
		b = AppendRedeliver(b, 1, ids)
		b = AppendFlow(b, 1, 1000)
		b = AppendPing(b)
		_ = AppendPong(b)
	})
}
