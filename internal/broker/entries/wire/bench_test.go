package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

const (
	benchEvents = 400
	benchSize   = 256
)

// benchFrame returns a frame with a batch, without its head.
func benchFrame(c pulsarpb.CompressionType, key *string, properties []*pulsarpb.KeyValue) []byte {
	var payload []byte
	for range benchEvents {
		m := &pulsarpb.SingleMessageMetadata{PartitionKey: key, Properties: properties}
		payload = must(wiretest.AppendSingle(payload, m, make([]byte, benchSize)))
	}
	m := metadata()
	m.NumMessagesInBatch = proto.Int32(benchEvents)
	payload = must(wiretest.Compress(m, c, payload))
	return must(wiretest.Frame(message(), must(wiretest.Entry(m, payload))))[FrameHead:]
}

func message() *pulsarpb.BaseCommand {
	return wiretest.Message(&pulsarpb.CommandMessage{
		ConsumerId: proto.Uint64(3),
		MessageId:  &pulsarpb.MessageIdData{LedgerId: proto.Uint64(12345), EntryId: proto.Uint64(678), Partition: proto.Int32(-1)},
	})
}

func BenchmarkParseEntry(b *testing.B) {
	for name, c := range pulsarpb.CompressionType_value {
		b.Run(name, func(b *testing.B) {
			frame := benchFrame(pulsarpb.CompressionType(c), new("customer-4711"), nil)
			f := must(ParseFrame(frame))
			var parser Parser
			var e Entry
			b.ReportAllocs()
			for b.Loop() {
				if err := parser.Parse(&e, f.Entry, MessageSizeDefault); err != nil {
					b.Fatal(err)
				}
			}
			perEvent(b)
		})
	}
}

func BenchmarkSplit(b *testing.B) {
	for name, frame := range map[string][]byte{
		"plain":      benchFrame(pulsarpb.CompressionType_NONE, nil, nil),
		"key":        benchFrame(pulsarpb.CompressionType_NONE, new("customer-4711"), nil),
		"properties": benchFrame(pulsarpb.CompressionType_NONE, nil, []*pulsarpb.KeyValue{{Key: new("trace"), Value: new("00-1234")}}),
	} {
		b.Run(name, func(b *testing.B) {
			var parser Parser
			var e Entry
			if err := parser.Parse(&e, must(ParseFrame(frame)).Entry, MessageSizeDefault); err != nil {
				b.Fatal(err)
			}
			var singles []Single
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if singles, err = e.Split(singles[:0]); err != nil {
					b.Fatal(err)
				}
			}
			perEvent(b)
		})
	}
}

// BenchmarkFrame measures all steps from a frame to its events.
func BenchmarkFrame(b *testing.B) {
	frame := benchFrame(pulsarpb.CompressionType_NONE, new("customer-4711"), nil)
	var parser Parser
	var e Entry
	var singles []Single
	b.ReportAllocs()
	for b.Loop() {
		f, err := ParseFrame(frame)
		if err == nil {
			err = parser.Parse(&e, f.Entry, MessageSizeDefault)
		}
		if err == nil {
			singles, err = e.Split(singles[:0])
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	perEvent(b)
}

func BenchmarkAppendAck(b *testing.B) {
	ids := make([]AckID, 1000)
	for i := range ids {
		ids[i].ID = ID{Ledger: 12345, Entry: int64(i)}
	}
	var buffer []byte
	b.ReportAllocs()
	for b.Loop() {
		buffer = AppendAck(buffer[:0], 3, 9, ids)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ids)), "ns/id")
}

func perEvent(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchEvents, "ns/event")
}
