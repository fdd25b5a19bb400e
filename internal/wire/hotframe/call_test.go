package hotframe

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

const callField = 19

// bodyOf returns the call that AppendCall has written.
func bodyOf(t interface{ Fatalf(string, ...any) }, b []byte) []byte {
	num, typ, n := protowire.ConsumeTag(b)
	body, m := protowire.ConsumeBytes(b[max(n, 0):])
	if num != callField || typ != protowire.BytesType || m != len(b)-n {
		t.Fatalf("%x is no field", b)
	}
	return body
}

// A call is written as the generated code of both protocols writes it, with the time that is left, and read again.
func TestCallsAgreeWithTheGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.Just(""), rapid.String())
		now, there := clock.Instant(rapid.Int64Range(0, 1<<60).Draw(t, "now")), clock.Instant(rapid.Int64Range(0, 1<<60).Draw(t, "receiver's now"))
		left := time.Duration(rapid.Int64Range(-int64(time.Second), int64(2*CallTimeoutMax)).Draw(t, "left"))
		c := &event.Call{Method: text.Draw(t, "method"), ID: text.Draw(t, "id"), Deadline: now.Add(left)}
		for range rapid.IntRange(0, event.CallPathMax).Draw(t, "path") {
			c.Path = append(c.Path, partition.KeyHash(rapid.Uint64().Draw(t, "key")))
		}
		body := bodyOf(t, AppendCall(nil, callField, c, now))
		ms := uint64(max(0, left) / time.Millisecond)
		message := &appv1.Call{Method: c.Method, TimeoutMs: ms, Id: c.ID}
		for _, key := range c.Path {
			message.Path = append(message.Path, uint64(key))
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		if err != nil || !bytes.Equal(body, want) {
			t.Fatalf("ours %x, generated %x (%v)", body, want, err)
		}
		between := &peerv1.Call{Method: c.Method, TimeoutMs: ms, Id: c.ID, Path: message.Path}
		if b, err := (proto.MarshalOptions{Deterministic: true}).Marshal(between); err != nil || !bytes.Equal(b, want) {
			t.Fatalf("the protocols differ: %x and %x (%v)", b, want, err)
		}
		if rapid.Bool().Draw(t, "reservation") { // only between routers
			c.Reservation, c.Resume = true, rapid.Bool().Draw(t, "resume")
			c.TTL = time.Duration(rapid.Int64Range(0, int64(event.TTLMost/time.Millisecond)).Draw(t, "ttl")) * time.Millisecond
			between.Reservation, between.Resume, between.TtlMs = true, c.Resume, uint32(c.TTL/time.Millisecond)
			body = bodyOf(t, AppendCall(nil, callField, c, now))
			if b, err := (proto.MarshalOptions{Deterministic: true}).Marshal(between); err != nil || !bytes.Equal(b, body) {
				t.Fatalf("a reservation: ours %x, generated %x (%v)", body, b, err)
			}
		}
		c.Deadline = there.Add(min(time.Duration(ms)*time.Millisecond, CallTimeoutMax))
		if got := ReadCall(body, there); !reflect.DeepEqual(got, c) {
			t.Fatalf("read %+v, want %+v", got, c)
		}
	})
}

// FuzzCall: any bytes are read as the generated code reads them, or left to it.
func FuzzCall(f *testing.F) {
	for _, c := range []event.Call{{}, {Method: "m", ID: "i", Deadline: 5e9, Path: []partition.KeyHash{1, 1 << 63}}, {Path: make([]partition.KeyHash, event.CallPathMax)}, {ID: "r", Reservation: true, Resume: true, TTL: 5 * time.Second}} {
		f.Add(bodyOf(f, AppendCall(nil, callField, &c, 0)))
	}
	f.Add(protowire.AppendVarint([]byte{2 << 3}, 1<<63))
	f.Add([]byte{6 << 3, 2})                                  // true, too
	f.Add(protowire.AppendVarint([]byte{7 << 3}, 1<<32|7000)) // a ttl with more bits than it has
	f.Add(append([]byte{4<<3 | 2, 80}, make([]byte, 80)...))  // too long a path
	f.Add([]byte{4<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8})           // not packed
	f.Fuzz(func(t *testing.T, b []byte) {
		c := ReadCall(b, 7)
		if c == nil {
			return
		}
		m := new(peerv1.Call)
		err := proto.Unmarshal(b, m)
		if err != nil && (c.Method != Text(c.Method) || c.ID != Text(c.ID)) {
			return // only ours takes strings that are not UTF-8
		}
		want := &event.Call{
			Method: m.GetMethod(), ID: m.GetId(), Deadline: clock.Instant(7).Add(Duration(m.GetTimeoutMs(), time.Hour)),
			Reservation: m.GetReservation(), Resume: m.GetResume(), TTL: min(time.Duration(m.GetTtlMs())*time.Millisecond, event.TTLMost+time.Millisecond),
		}
		for _, key := range m.GetPath()[:min(len(m.GetPath()), event.CallPathMax+1)] {
			want.Path = append(want.Path, partition.KeyHash(key))
		}
		if err != nil || !reflect.DeepEqual(c, want) {
			t.Fatalf("%x: ours %+v, generated %+v (%v)", b, c, want, err)
		}
		if left := c.Deadline.Sub(7); left < 0 || left > CallTimeoutMax || len(c.Path) > event.CallPathMax+1 {
			t.Fatalf("%v left, behind %d others", left, len(c.Path))
		}
	})
}
