package wire

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// reasonOf returns the reason of an error, 0 for none.
func reasonOf(t interface{ Fatalf(string, ...any) }, err error) Reason {
	if err == nil {
		return 0
	}
	var b *BrokenError
	if !errors.As(err, &b) || b.Reason.String() == "unknown" || b.What == "" {
		t.Fatalf("error %v (%T) is not a valid *BrokenError", err, err)
	}
	return b.Reason
}

// metadata returns metadata with only the required fields.
func metadata() *pulsarpb.MessageMetadata {
	return &pulsarpb.MessageMetadata{ProducerName: new("p"), SequenceId: proto.Uint64(7), PublishTime: proto.Uint64(1700000000000)}
}

// batch returns the payload of a batch, with n events of size bytes each.
func batch(n, size int) []byte {
	payload := make([]byte, size)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range payload {
		payload[i] = byte(random.Uint32())
	}
	var b []byte
	for i := range n {
		if size >= 8 {
			binary.BigEndian.PutUint64(payload, uint64(i))
		}
		b = must(wiretest.AppendSingle(b, &pulsarpb.SingleMessageMetadata{}, payload))
	}
	return b
}

// shuffled draws an encoding of the same message: fields in another order, as far as protobuf allows, and unknown fields between them.
func shuffled(t *rapid.T, b []byte) []byte {
	byNumber := map[protowire.Number][][]byte{} // fields of one number keep their order
	var numbers []protowire.Number
	for len(b) > 0 {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			t.Fatalf("bad field")
		}
		byNumber[number] = append(byNumber[number], b[:n])
		numbers = append(numbers, number)
		b = b[n:]
	}
	if len(numbers) > 0 {
		numbers = rapid.Permutation(numbers).Draw(t, "order")
	}
	var out []byte
	for _, number := range numbers {
		for range rapid.IntRange(0, 2).Draw(t, "unknown fields") {
			out = append(out, unknown(t)...)
		}
		out = append(out, byNumber[number][0]...)
		byNumber[number] = byNumber[number][1:]
	}
	return append(out, unknown(t)...)
}

// unknown draws a field with a number that Pulsar never uses, or with a known number and a wire type that Pulsar never uses.
func unknown(t *rapid.T) []byte {
	number := protowire.Number(rapid.IntRange(1000, numberMax).Draw(t, "number"))
	switch rapid.IntRange(0, 5).Draw(t, "unknown type") {
	case 0:
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), rapid.Uint64().Draw(t, "varint"))
	case 1:
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes"))
	case 2:
		return protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), 1)
	case 3:
		b := protowire.AppendTag(nil, number, protowire.StartGroupType)
		b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), 3)
		return protowire.AppendTag(b, number, protowire.EndGroupType)
	case 4:
		known := protowire.Number(rapid.IntRange(1, 30).Draw(t, "known number"))
		return protowire.AppendFixed64(protowire.AppendTag(nil, known, protowire.Fixed64Type), 1)
	}
	return nil
}

func marshal(t interface{ Fatalf(string, ...any) }, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	return b
}

// some draws a value, or nil for absent.
func some[T any](t *rapid.T, g *rapid.Generator[T], name string) *T {
	if !rapid.Bool().Draw(t, name+" present") {
		return nil
	}
	v := g.Draw(t, name)
	return &v
}

func someBytes(t *rapid.T, name string) []byte {
	if b := some(t, rapid.SliceOfN(rapid.Byte(), 0, 30), name); b != nil {
		return append([]byte{}, *b...)
	}
	return nil
}

// blob returns the bytes of an optional string, nil if it is absent.
func blob(s *string) []byte {
	if s == nil {
		return nil
	}
	return append([]byte{}, *s...)
}

func drawProperties(t *rapid.T, name string) []*pulsarpb.KeyValue {
	var all []*pulsarpb.KeyValue
	for range rapid.IntRange(0, 3).Draw(t, name) {
		all = append(all, &pulsarpb.KeyValue{
			Key: new(rapid.StringN(0, 5, 20).Draw(t, "key")), Value: new(rapid.StringN(0, 5, 20).Draw(t, "value")),
		})
	}
	return all
}

func sameBytes(t *rapid.T, name string, got, want []byte) {
	t.Helper()
	if (got == nil) != (want == nil) || string(got) != string(want) {
		t.Fatalf("%s = %q, want %q", name, got, want)
	}
}

func same[T comparable](t *rapid.T, name string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s = %v, want %v", name, got, want)
	}
}

func sameProperties(t *rapid.T, got Properties, want []*pulsarpb.KeyValue) {
	t.Helper()
	same(t, "number of properties", got.Len(), len(want))
	i := 0
	for name, value := range got.All() {
		same(t, "name", string(name), want[i].GetKey())
		same(t, "value", string(value), want[i].GetValue())
		i++
	}
	same(t, "number of properties yielded", i, len(want))
}

// allocated returns the bytes that all goroutines allocate while f runs.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func allocates(t *testing.T, want float64, what string, f func()) {
	t.Helper()
	if got := testing.AllocsPerRun(20, f); got > want {
		t.Errorf("%s allocates %v times, want %v", what, got, want)
	}
}
