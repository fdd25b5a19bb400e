package forward

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// The release of a reservation that may outlive its owner is kept until an owner has confirmed it. Until then the key may
// still be reserved: the owner may have died before it got the Cancel, and the next owner keeps the key for as long as
// the holder may have a promise. The next owner ignores a Cancel of an unknown turn, so this node asks it to resume the
// reservation first, and sends the Cancel after the grant.
//
// A release is forgotten when that promise has passed, even without a confirmation: an unreachable owner, or
// a router of a version without calls, sends none.

// releaseMargin is the time that a release is kept after the last promise: a next owner counts the ttl from the opening
// of its gate.
const releaseMargin = 10 * time.Second

// The bounds of the releases without a holder. Beyond them the release that is due first is forgotten. Releases with a
// holder are bounded with the reservations.
const (
	aloneMax      = 1024
	aloneBytesMax = 1 << 20
)

// confirmation is the number of the renewal by which an owner is asked to confirm a release. It goes behind the Cancel
// on the same stream, so that its answer shows that the Cancel was handled. Holders count from one.
const confirmation = math.MaxUint64

func confirms(a event.Renewal) bool { return a.Number == confirmation }

// releases holds the kept releases, ordered by when they are due.
type releases struct {
	all        []*release // ascending by due
	alone      int        // number of those without a holder
	aloneBytes int
	forgotten  uint64 // number of releases that ended without a confirmation
}

type release struct {
	held

	due   clock.Instant // when it is forgotten
	alone bool          // its holder's stream has ended
}

func byDue(a, b *release) int {
	return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.handle(), b.handle()))
}

// isReleased reports whether the holder of a reservation has released it.
func (t *Table) isReleased(h held) bool {
	x := t.extraOf(h)
	return x != nil && x.release != nil
}

// keepRelease keeps the release of a reservation whose holder may have a promise, and tells the owner if it has granted it.
func (t *Table) keepRelease(now clock.Instant, h held, out *Moves) {
	x := t.ensureExtra(h)
	if x.release != nil {
		return
	}
	x.release = &release{held: h, due: now.Add(h.entry.Call(h.index).TTL + releaseMargin)}
	at, _ := slices.BinarySearchFunc(t.releases.all, x.release, byDue)
	t.releases.all = slices.Insert(t.releases.all, at, x.release)
	t.tellRelease(h, out)
}

// tellRelease sends the owner the release, if it has granted the reservation, and asks it to confirm.
func (t *Table) tellRelease(h held, out *Moves) {
	sent := h.sentTo()
	if sent == nil || !t.extraOf(h).granted {
		return
	}
	out.Cancel = append(out.Cancel, Cancel{Peer: sent.lane.peer, Handle: h.handle(), Confirm: true})
}

// confirmed ends a reservation whose release was handled where it was sent. If the key has another owner by now, the
// release is sent to that owner, too.
func (t *Table) confirmed(h held, sent *share, out *Moves) {
	if t.ownerOf(h) == sent.lane {
		t.settle(h, t.notAnswered(h, event.CodeTimeout, "its time was up"), out)
		return
	}
	t.markPast(h, sent.lane.peer)
	sent.takeBack(h.index)
	t.send(h, out)
}

// Confirmed takes an owner's answers to renewals, consumes those that confirm releases, and returns the others, which
// are for holders.
func (t *Table) Confirmed(from Peer, answers []event.Renewal, out *Moves) (others []event.Renewal) {
	return slices.DeleteFunc(answers, func(a event.Renewal) bool {
		if !confirms(a) {
			return false
		}
		if h, ok := t.lookUp(a.Handle); ok && t.isReleased(h) && t.extraOf(h).granted {
			if sent := h.sentTo(); sent != nil && sent.lane.peer == from {
				t.confirmed(h, sent, out)
			}
		}
		return true
	})
}

// Renewal asks the owner to confirm that it has handled the Cancel before.
func (c *Cancel) Renewal() event.Renewal {
	return event.Renewal{Handle: c.Handle, Number: confirmation}
}

// expireReleases ends the reservations whose release no owner has confirmed within the time of the last promise.
func (t *Table) expireReleases(now clock.Instant, out *Moves) {
	for all := t.releases.all; len(all) > 0 && !all[0].due.After(now); all = t.releases.all {
		v := event.Unknown(all[0].handle(), "no owner of the key has confirmed the release")
		v.Detail.Reply.Code = event.CodeUnreachable
		t.releases.forgotten++
		t.settle(all[0].held, v, out)
	}
}

// leaveAlone keeps a release although the stream of its holder has ended. Beyond the bounds of such releases it forgets
// those that are due first.
func (t *Table) leaveAlone(r *release) {
	rs := &t.releases
	if !r.alone {
		r.alone = true
		rs.alone++
		rs.aloneBytes += r.entry.Bytes
	}
	for rs.alone > aloneMax || rs.aloneBytes > aloneBytesMax {
		first := slices.IndexFunc(rs.all, func(r *release) bool { return r.alone })
		t.end(rs.all[first].held)
		rs.forgotten++
	}
}

// dropExtra frees the extra fields of an event that ends.
func (t *Table) dropExtra(h held) {
	x, rs := t.extraOf(h), &t.releases
	if x == nil {
		return
	}
	if x.release != nil {
		if x.release.alone {
			rs.alone--
			rs.aloneBytes -= h.entry.Bytes
		}
		at, _ := slices.BinarySearchFunc(rs.all, x.release, byDue)
		rs.all = slices.Delete(rs.all, at, at+1)
	}
	delete(t.extras, h.handle())
}
