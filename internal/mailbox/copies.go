package mailbox

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/event"
)

// The broker assigns the id of an event. A copy in the retry topic names the id of its
// original, and every producer that may write to that topic can write any id. Unless
// copies are signed, two events of one id therefore count as the same only if the broker
// assigned the id to both, or if both have the same content; and a finished copy does not
// mark an event of other content as finished.

// ContentOf returns the digest of what a copy of an event shares with its original.
func ContentOf(e *event.Event) (digest event.Content) {
	h := sha256.New()
	var n [8]byte
	text := func(s string) {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	text(string(e.Key))
	text(e.Topic)
	binary.BigEndian.PutUint64(n[:], uint64(len(e.Payload)))
	h.Write(n[:])
	h.Write(e.Payload)
	for _, p := range lasting(e.Properties) {
		text(p.Name)
		text(p.Value)
	}
	copy(digest[:], h.Sum(nil))
	return digest
}

// lasting returns the properties that a copy shares with its original, by name: all but
// the trace, which changes with each span, and those that the router adds.
func lasting(properties []event.Property) []event.Property {
	kept := make([]event.Property, 0, len(properties))
	for _, p := range properties {
		name := strings.ToLower(p.Name)
		if name != "traceparent" && name != "tracestate" && !strings.HasPrefix(name, "ringfence-") {
			kept = append(kept, p)
		}
	}
	slices.SortFunc(kept, func(a, b event.Property) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
	})
	return kept
}

// isCopy reports whether an event came by way of the retry topic.
func isCopy(e *event.Ref) bool {
	_, round := e.Rounds()
	return round > 0
}

// isDifferent reports whether e and the event under its id that is here or has recently
// finished are different events, one of which is a copy with a false id.
func (b *Boxes) isDifferent(s *span, bit uint8, e *event.Ref, seen *lookup) bool {
	if b.signed {
		return false
	}
	if s.here.has(bit) {
		it := b.search(b.actorSeen(seen), s, bit)
		return it != nil && (it.copied || isCopy(e)) && ContentOf(it.ref.Event()) != ContentOf(e.Event())
	}
	if !s.done.has(bit) || len(b.window.copies) == 0 {
		return false
	}
	what, copied := b.window.copies[seen.message]
	return copied && what != ContentOf(e.Event())
}

// aliasOf returns a substitute id for an event whose own id is in use by a different
// event. No broker assigns such an id; all deliveries of one event get the same one.
func aliasOf(e *event.Event) event.MessageID {
	what := ContentOf(e)
	h := sha256.New()
	var n [16]byte
	binary.BigEndian.PutUint64(n[:8], uint64(e.ID.Ledger))
	binary.BigEndian.PutUint64(n[8:], uint64(e.ID.Entry))
	h.Write(n[:])
	h.Write(what[:])
	sum := h.Sum(nil)
	return event.MessageID{
		Ledger: -1 - int64(binary.BigEndian.Uint64(sum)>>1), Entry: int64(binary.BigEndian.Uint64(sum[8:]) >> 1),
		Batch: e.ID.Batch, TopicPartition: e.ID.TopicPartition,
	}
}
