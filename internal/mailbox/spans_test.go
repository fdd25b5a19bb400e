package mailbox

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

// Each id has a bit of one span, and is found again by it.
func TestSpansGiveBackTheirIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSpans()
		batch := rapid.OneOf(rapid.Int32Range(-1, 3*spanLen), rapid.SampledFrom([]int32{math.MinInt32, math.MaxInt32}))
		known := map[event.MessageID]bool{}
		for range 200 {
			id := event.MessageID{Entry: rapid.Int64Range(0, 1).Draw(t, "entry"), Batch: batch.Draw(t, "batch"), TopicPartition: rapid.Int32Range(-1, 0).Draw(t, "topic partition")}
			at := s.find(hashOf(id), id)
			if is := at != nil && at.here.has(bitOf(id)); is != known[id] {
				t.Fatalf("%v is known: %v, want %v", id, is, known[id])
			}
			if known[id] {
				at.here.remove(bitOf(id))
				s.drop(at)
				delete(known, id)
				continue
			}
			if at == nil {
				at = s.add(hashOf(id), id)
			}
			at.here.add(bitOf(id))
			known[id] = true
			if got := at.id(bitOf(id)); got != id {
				t.Fatalf("its span takes %v for %v", id, got)
			}
		}
	})
}

// A span that is gone is not found again, not even by the id of all zeros.
func TestNoSpanIsLeftBehind(t *testing.T) {
	s, zero := newSpans(), event.MessageID{}
	s.drop(s.add(hashOf(zero), zero))
	if got := s.find(hashOf(zero), zero); got != nil || s.table.len() != 0 {
		t.Errorf("found %+v, %d spans", got, s.table.len())
	}
}
