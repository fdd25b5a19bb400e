package hotframe

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// Calls are in fields whose tags have two bytes.
func TestCallRoundTrip(t *testing.T) {
	const now = clock.Instant(5 * time.Second)
	want := &event.Call{Method: "charge", ID: "order-7", Deadline: now.Add(3 * time.Second), Path: []partition.KeyHash{1, 1 << 63}}
	for _, num := range []protowire.Number{1, 15, 16, 18, 19} {
		b := AppendNumber(AppendCall(nil, num, want, now), 21, 7)
		content, rest := Chunk(b, num)
		if got := ReadCall(content, now); content == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("field %d: got %+v, want %+v", num, got, want)
		}
		if n, rest := Number(rest, 21); n != 7 || len(rest) > 0 {
			t.Errorf("field %d: behind it are %d and %d bytes", num, n, len(rest))
		}
	}
}
