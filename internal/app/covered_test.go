package app

import (
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
)

const someTTL = 30 * time.Second

// covering is a server with one reservation with a ttl.
type covering struct {
	*reservationsModel
	asked []ownership.Input
	turn  uint64
	key   ownership.KeyAt
}

func newCovering(t *testing.T) *covering {
	t.Helper()
	c := &covering{reservationsModel: &reservationsModel{now: clock.Instant(time.Hour), counts: map[string]int{}}}
	c.start(t)
	c.server.Cover = func(in ownership.Input) { c.asked = append(c.asked, in) }
	c.boxes.taking = func(*event.Delivery) {}
	c.lease = ownership.Lease{Until: c.now.Add(2 * time.Second)}
	e := &event.Event{Key: "k", ID: event.MessageID{Ledger: 5, Entry: 6}, Call: &event.Call{Reservation: true, TTL: someTTL}}
	c.boxes.waiting = []event.Delivery{{ID: 9, Partition: 3, Key: 77, Token: 7, Turn: 1, Ref: event.RefTo(e)}}
	c.server.TakeReservations()
	want := ownership.Cover{Take: ownership.Take{KeyAt: ownership.KeyAt{Partition: 3, Key: 77}, ID: ownership.ReservationOf(e.ID), TTL: someTTL}, Turn: 9}
	if len(c.asked) != 1 || c.asked[0] != want {
		t.Fatalf("the machine is asked %+v, want %+v", c.asked, want)
	}
	c.turn, c.key, c.asked = want.Turn, want.KeyAt, nil
	return c
}

func (c *covering) permission() event.Permission { return c.server.Renew([]event.DeliveryID{9})[0] }

func (c *covering) cover(within time.Duration) {
	c.server.Covered(ownership.Covered{KeyAt: c.key, Turn: c.turn, Until: c.now.Add(within)})
}

func (c *covering) ended(t *testing.T, kind event.ResultKind) {
	t.Helper()
	if len(c.boxes.ended) != 1 || c.boxes.ended[0].Delivery != 9 || c.boxes.ended[0].Kind != kind {
		t.Errorf("ended %+v, want one %v", c.boxes.ended, kind)
	}
}

// A reservation with a ttl is live until the machine says that it is covered. Then each renewal promises the ttl, if there is a lease and the
// take is young enough.
func TestCoveredReservationIsPromisedItsTTL(t *testing.T) {
	c := newCovering(t)
	if got := c.permission(); got.Covered || got.Remaining <= 0 || got.Remaining > 2*time.Second {
		t.Errorf("before it is covered the permission is %+v", got)
	}
	c.cover(4 * time.Minute)
	want := event.Permission{Remaining: someTTL - DefaultConfig().DeadlineMargin, Covered: true}
	if got := c.permission(); got != want {
		t.Errorf("the permission is %+v, want %+v", got, want)
	}
	c.now = c.lease.Until
	if got := c.permission(); got != (event.Permission{}) {
		t.Errorf("without a lease the permission is %+v", got)
	}
	c.lease.Until = c.now.Add(5 * time.Minute)
	if got := c.permission(); got != want {
		t.Errorf("with a lease again the permission is %+v", got)
	}
	c.cover(0)
	if got := c.permission(); got != (event.Permission{}) {
		t.Errorf("on a take that is too old the permission is %+v", got)
	}
	c.cover(time.Minute)
	c.server.Covered(ownership.Covered{KeyAt: c.key, Turn: c.turn + 1, Until: c.now.Add(time.Hour)}) // of another turn
	c.server.Covered(ownership.Covered{KeyAt: c.key, Turn: c.turn})
	if got := c.permission(); got != (event.Permission{}) {
		t.Errorf("after another take the permission is %+v", got)
	}
}

// One that has lasted an hour here is told so, which a want of permission for now is not. One that is not covered is
// told nothing that its holder would take for a cover.
func TestCoveredReservationIsTooOld(t *testing.T) {
	for _, covered := range []bool{true, false} {
		c := newCovering(t)
		if covered {
			c.cover(2 * time.Hour)
		}
		c.now = c.now.Add(reservationMax + 1)
		c.lease.Until = c.now.Add(2 * time.Second)
		if got, want := c.permission(), (event.Permission{Covered: covered}); got != want {
			t.Errorf("covered %t: the permission is %+v, want %+v", covered, got, want)
		}
	}
}

// A covered reservation is over when nothing was heard of its holder for as long as the last promise may last, by any
// clock; the lease does not count.
func TestCoveredReservationExpires(t *testing.T) {
	c := newCovering(t)
	c.cover(4 * time.Minute)
	c.now = c.now.Add(time.Second)
	c.permission()
	last := c.now
	c.now = last.Add(ownership.WaitFor(someTTL) - 1)
	if next := c.server.expireReservations(c.now); len(c.boxes.ended) > 0 || next != last.Add(ownership.WaitFor(someTTL)) {
		t.Fatalf("it ended early: %+v; the next check is at %v", c.boxes.ended, next)
	}
	c.now++
	c.server.expireReservations(c.now)
	c.ended(t, event.ResultLost)
	if want := []ownership.Input{ownership.Drop{KeyAt: c.key, ID: ownership.ReservationOf(event.MessageID{Ledger: 5, Entry: 6}), Turn: 9}}; !reflect.DeepEqual(c.asked, want) {
		t.Errorf("the machine is told %+v, want %+v", c.asked, want)
	}
}

// One that was covered and never renewed, as for a holder that died while it waited, was promised a lease, and ends with it.
func TestCoveredReservationThatNobodyRenews(t *testing.T) {
	c := newCovering(t)
	c.now = c.now.Add(time.Second)
	c.cover(4 * time.Minute)
	c.now = c.lease.Until - 1
	if next := c.server.expireReservations(c.now); len(c.boxes.ended) > 0 || next != c.lease.Until {
		t.Fatalf("it ended early: %+v; the next check is at %v, want %v", c.boxes.ended, next, c.lease.Until)
	}
	c.now++
	c.server.expireReservations(c.now)
	c.ended(t, event.ResultLost)
	if d, ok := c.asked[0].(ownership.Drop); len(c.asked) != 1 || !ok || d.Released {
		t.Errorf("the machine is told %+v, want that nobody has released it: a former owner may have promised more", c.asked)
	}
}

// A revocation ends a covered reservation at once, here alone; one that is not covered drains.
func TestCoveredReservationIsHandedOver(t *testing.T) {
	for name, revoke := range map[string]func(*Server){
		"move":    func(s *Server) { s.Revoke(ownership.SetOf(3), false) },
		"genesis": (*Server).RevokeAll,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCovering(t)
			c.cover(4 * time.Minute)
			c.server.Revoke(ownership.SetOf(2), false) // of another partition
			revoke(c.server)
			c.ended(t, event.ResultHandedOver)
			if got := c.permission(); got != (event.Permission{}) || len(c.asked) > 0 {
				t.Errorf("afterwards the permission is %+v, and the machine is told %+v", got, c.asked)
			}
		})
	}
	c := newCovering(t)
	c.server.Revoke(ownership.SetOf(3), false)
	c.cover(4 * time.Minute)
	if len(c.boxes.ended) > 0 {
		t.Errorf("a live one ended: %+v", c.boxes.ended)
	}
}

// A release frees the key, and says so to the machine after that.
func TestCoveredReservationIsReleased(t *testing.T) {
	c := newCovering(t)
	c.cover(4 * time.Minute)
	c.server.Cover = func(in ownership.Input) {
		c.ended(t, event.ResultDone)
		c.asked = append(c.asked, in)
	}
	c.server.TakeBack([]event.DeliveryID{9})
	if d, ok := c.asked[0].(ownership.Drop); len(c.asked) != 1 || !ok || !d.Released || d.Turn != 9 {
		t.Errorf("the machine is told %+v", c.asked)
	}
	if n := testutil.ToFloat64(c.server.Metrics.covered); n != 0 {
		t.Errorf("%v are covered", n)
	}
}

// A holder may release the reservation as soon as it has the grant: the machine hears that the turn begins before it hears that it is over. The other
// way round it would cover the key for good.
func TestCoveredReservationIsReleasedAtOnce(t *testing.T) {
	c := newCovering(t)
	c.server.TakeBack([]event.DeliveryID{9})
	c.asked = nil
	c.boxes.grants = func() { c.server.TakeBack([]event.DeliveryID{10}) }
	e := &event.Event{Key: "k", ID: event.MessageID{Ledger: 5, Entry: 7}, Call: &event.Call{Reservation: true, TTL: someTTL}}
	c.boxes.waiting = []event.Delivery{{ID: 10, Partition: 3, Key: 77, Token: 7, Turn: 2, Ref: event.RefTo(e)}}
	c.server.TakeReservations()
	id := ownership.ReservationOf(e.ID)
	want := []ownership.Input{
		ownership.Cover{Take: ownership.Take{KeyAt: c.key, ID: id, TTL: someTTL}, Turn: 10},
		ownership.Drop{KeyAt: c.key, ID: id, Turn: 10, Released: true},
	}
	if !reflect.DeepEqual(c.asked, want) {
		t.Errorf("the machine is told %+v, want %+v", c.asked, want)
	}
}

// The next reservation of a key may begin as soon as the mailboxes know that the one before is over: the machine hears
// of the end first. Otherwise it would refuse the next one as if it was of another key.
func TestNextReservationOfACoveredKey(t *testing.T) {
	c := newCovering(t)
	c.cover(4 * time.Minute)
	e := &event.Event{Key: "k", ID: event.MessageID{Ledger: 5, Entry: 7}, Call: &event.Call{Reservation: true, TTL: someTTL}}
	c.boxes.ends = func() {
		c.boxes.ends = nil
		c.boxes.waiting = []event.Delivery{{ID: 10, Partition: 3, Key: 77, Token: 7, Turn: 2, Ref: event.RefTo(e)}}
		c.server.TakeReservations()
	}
	c.server.TakeBack([]event.DeliveryID{9})
	want := []ownership.Input{
		ownership.Drop{KeyAt: c.key, ID: ownership.ReservationOf(event.MessageID{Ledger: 5, Entry: 6}), Turn: 9, Released: true},
		ownership.Cover{Take: ownership.Take{KeyAt: c.key, ID: ownership.ReservationOf(e.ID), TTL: someTTL}, Turn: 10},
	}
	if !reflect.DeepEqual(c.asked, want) {
		t.Errorf("the machine is told %+v, want %+v", c.asked, want)
	}
}

// What happens while the machine is being told waits for its turn, and is told: a Cover does not overtake the Drop of the turn before it.
func TestTurnsAreToldInTheirOrder(t *testing.T) {
	c := newCovering(t)
	reserve := func(turn event.DeliveryID, entry int64) ownership.Take {
		e := &event.Event{Key: "k2", ID: event.MessageID{Ledger: 5, Entry: entry}, Call: &event.Call{Reservation: true, TTL: someTTL}}
		c.boxes.waiting = []event.Delivery{{ID: turn, Partition: 3, Key: 78, Token: 7, Turn: uint64(turn), Ref: event.RefTo(e)}}
		c.server.TakeReservations()
		return ownership.Take{KeyAt: ownership.KeyAt{Partition: 3, Key: 78}, ID: ownership.ReservationOf(e.ID), TTL: someTTL}
	}
	second := reserve(10, 7)
	c.asked = nil
	var third ownership.Take
	c.server.Cover = func(in ownership.Input) {
		c.asked = append(c.asked, in)
		if len(c.asked) == 1 {
			third = reserve(11, 8)
		}
	}
	c.server.TakeBack([]event.DeliveryID{9, 10})
	want := []ownership.Input{
		ownership.Drop{KeyAt: c.key, ID: ownership.ReservationOf(event.MessageID{Ledger: 5, Entry: 6}), Turn: 9, Released: true},
		ownership.Drop{KeyAt: second.KeyAt, ID: second.ID, Turn: 10, Released: true},
		ownership.Cover{Take: third, Turn: 11},
	}
	if !reflect.DeepEqual(c.asked, want) {
		t.Errorf("the machine is told %+v, want %+v", c.asked, want)
	}
}

// A reservation that the machine refuses to cover is renewed no more, and ends with the reason: it is never silently a live one.
func TestRefusedCoverEndsTheReservation(t *testing.T) {
	c := newCovering(t)
	c.server.Covered(ownership.Covered{KeyAt: c.key, Turn: c.turn, Refused: ownership.RefusedFull})
	if got := c.permission(); got != (event.Permission{}) {
		t.Errorf("the permission is %+v", got)
	}
	c.now = c.lease.Until
	c.server.expireReservations(c.now)
	c.ended(t, event.ResultLost)
	if r := c.boxes.ended[0]; r.Reply == nil || r.Reply.Code != event.CodeNotCovered || r.Reason != ownership.RefusedFull {
		t.Errorf("it ended with %+v", r)
	}
}

// One whose live permission has passed is not covered any more, even if it has not been found to be over.
func TestCoverComesTooLate(t *testing.T) {
	c := newCovering(t)
	c.now = c.lease.Until
	c.lease.Until = c.now.Add(2 * time.Second)
	c.cover(4 * time.Minute)
	if n := testutil.ToFloat64(c.server.Metrics.covered); n != 0 {
		t.Errorf("%v are covered", n)
	}
	c.server.expireReservations(c.now)
	c.ended(t, event.ResultLost)

	c = newCovering(t)
	c.now = c.lease.Until
	c.lease.Until = c.now.Add(2 * time.Second)
	c.cover(4 * time.Minute)
	if got := c.permission(); got.Covered {
		t.Errorf("its holder is promised the ttl: %+v", got)
	}
}

// The holder of a covered reservation that has come back to the next owner still has the promise of the one before,
// while it has none here. If its live permission passes meanwhile, as while the control log or its router stalls, it is
// not told that it is lost: it may come back once more, here or at the owner after this one.
func TestResumedReservationOutlastsItsLivePermission(t *testing.T) {
	for name, c := range map[string]struct {
		fresh bool // it was not granted before
		then  func(*covering)
		want  event.ResultKind
	}{
		"not covered":              {want: event.ResultHandedOver},
		"covered, not renewed":     {then: func(c *covering) { c.cover(4 * time.Minute) }, want: event.ResultHandedOver},
		"moves on":                 {then: func(c *covering) { c.server.Revoke(ownership.SetOf(3), true) }, want: event.ResultHandedOver},
		"moves on before its take": {then: func(c *covering) { c.refuse(ownership.RefusedMoving) }, want: event.ResultHandedOver},
		"refused":                  {then: func(c *covering) { c.refuse(ownership.RefusedVersion) }, want: event.ResultLost},
		"promised anew": {then: func(c *covering) {
			c.cover(4 * time.Minute)
			c.permission()
			c.now = c.now.Add(ownership.WaitFor(someTTL))
		}, want: event.ResultLost},
		"a new one, not covered":              {fresh: true, want: event.ResultLost},
		"a new one, moves on before its take": {fresh: true, then: func(c *covering) { c.refuse(ownership.RefusedMoving) }, want: event.ResultLost},
	} {
		t.Run(name, func(t *testing.T) {
			o := newCovering(t)
			o.server.TakeBack([]event.DeliveryID{9})
			o.boxes.ended = nil
			e := &event.Event{Key: "k", ID: event.MessageID{Ledger: 5, Entry: 6}, Call: &event.Call{Reservation: true, Resume: !c.fresh, TTL: someTTL}}
			o.boxes.waiting = []event.Delivery{{ID: 9, Partition: 3, Key: 77, Token: 7, Turn: 1, Ref: event.RefTo(e)}}
			o.server.TakeReservations()
			if c.then != nil {
				c.then(o)
			}
			o.server.expireReservations(max(o.now, o.lease.Until))
			o.ended(t, c.want)
		})
	}
}

func (c *covering) refuse(why string) {
	c.server.Covered(ownership.Covered{KeyAt: c.key, Turn: c.turn, Refused: why})
}
