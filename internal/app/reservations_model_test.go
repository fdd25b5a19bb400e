package app

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// keeperBoxes are mailboxes with reservations alone.
type keeperBoxes struct {
	waiting []event.Delivery
	taking  func(*event.Delivery) // called while one is taken
	grants  func()                // called when one is granted; nil: nothing
	ends    func()                // called when one has ended; nil: nothing
	ended   []event.Result        // since the last look
	granted map[event.DeliveryID]event.Grant
}

func (*keeperBoxes) WorkerUp(event.WorkerID)   {}
func (*keeperBoxes) WorkerGone(event.WorkerID) {}

func (b *keeperBoxes) Take(_ event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	n := min(limit, len(b.waiting))
	dst = append(dst, b.waiting[:n]...)
	b.waiting = b.waiting[n:]
	for i := range dst {
		b.taking(&dst[i])
	}
	return dst
}

func (b *keeperBoxes) Finish(results []event.Result) {
	b.ended = append(b.ended, results...)
	if b.ends != nil {
		b.ends()
	}
}

func (b *keeperBoxes) Grant(id event.DeliveryID, g event.Grant) {
	b.granted[id] = g
	if b.grants != nil {
		b.grants()
	}
}

// refHeld is a reservation, as the rules have it.
type refHeld struct {
	id        event.DeliveryID
	partition ring.Partition
	granted   clock.Instant
	until     clock.Instant // the lease behind the last permission: until then its holder may act
	revoked   bool
	forced    bool
}

// reservationsModel drives the owner's half of reservations.
type reservationsModel struct {
	*rapid.T
	server *Server
	boxes  keeperBoxes
	now    clock.Instant
	lease  ownership.Lease
	held   []*refHeld
	want   []event.Result
	last   event.DeliveryID
	counts map[string]int
}

func newReservationsModel(t *rapid.T, counts map[string]int) *reservationsModel {
	m := &reservationsModel{T: t, now: clock.Instant(time.Hour), counts: counts}
	m.start(t)
	return m
}

// start makes the server.
func (m *reservationsModel) start(t interface{ Fatal(args ...any) }) {
	m.boxes.granted = map[event.DeliveryID]event.Grant{}
	var err error
	m.server, err = New(DefaultConfig(), Identity{}, Parts{
		Boxes: &m.boxes, Lease: func() ownership.Lease { return m.lease }, Workers: func(int) {}, Drain: func(string) {},
		Now: func() clock.Instant { return m.now }, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
}

// promise returns what an owner may promise now: the rest of its lease, less the margin, by the slowest clock of a holder.
func (m *reservationsModel) promise() time.Duration {
	return max(0, m.lease.Until.Sub(m.now)-m.server.cfg.DeadlineMargin) * 99 / 101
}

// permit returns how long a holder may go on, and moves its end.
func (m *reservationsModel) permit(h *refHeld) time.Duration {
	promise := m.promise()
	switch {
	case promise == 0:
		return 0
	case m.now.Sub(h.granted) > time.Hour:
		m.counts["too old"]++
		return 0
	case h.forced, h.revoked && (!m.lease.Draining.Has(h.partition) || !m.now.Before(h.until)):
		m.counts["frozen"]++
		return 0
	case h.revoked:
		m.counts["drains"]++
	}
	h.until = max(h.until, m.lease.Until)
	return promise
}

func (m *reservationsModel) partitions(label string) (set ownership.Set) {
	return ownership.SetOf(rapid.SliceOfN(rapid.SampledFrom([]ring.Partition{0, 1, 2, 3}), 0, 3).Draw(m.T, label)...)
}

// take lets reservations begin. While one is taken, anything may happen.
func (m *reservationsModel) take() {
	for range rapid.IntRange(0, 3).Draw(m.T, "waiting") {
		m.last++
		m.boxes.waiting = append(m.boxes.waiting, event.Delivery{
			ID: m.last, Partition: ring.Partition(rapid.Uint16Range(0, 3).Draw(m.T, "partition")), Token: 7, Turn: uint64(m.last), Ref: event.RefTo(&event.Event{Key: "k"}),
		})
	}
	var newest *refHeld // has been given out, and its grant was not looked at
	look := func() {
		if h := newest; h != nil {
			want := event.Grant{Fence: event.Fence{Token: 7, Turn: uint64(h.id)}, Remaining: m.permit(h)}
			if got := m.boxes.granted[h.id]; got != want {
				m.Fatalf("reservation %d is granted with %+v, want %+v", h.id, got, want)
			}
			m.counts["granted"]++
		}
		newest = nil
	}
	m.boxes.taking = func(d *event.Delivery) {
		look()
		back := false
		switch rapid.IntRange(0, 9).Draw(m.T, "meanwhile") {
		case 0:
			set := m.partitions("revoked meanwhile")
			m.revoke(set, rapid.Bool().Draw(m.T, "final"))
			back = set.Has(d.Partition)
		case 1:
			m.revokeAll()
			back = true
		case 2: // its holder has released it
			m.server.TakeBack([]event.DeliveryID{d.ID})
			back = true
			m.counts["released while it is taken"]++
		case 3:
			m.renew()
		}
		if back {
			m.want = append(m.want, event.Result{Delivery: d.ID, Kind: event.ResultNotStarted})
			m.counts["taken back"]++
			return
		}
		newest = &refHeld{id: d.ID, partition: d.Partition, granted: m.now}
		m.held = append(m.held, newest)
	}
	m.server.TakeReservations()
	look()
}

func (m *reservationsModel) renew() {
	ids, want := []event.DeliveryID{0, m.last + 1}, make([]event.Permission, 2)
	for _, h := range m.held {
		if rapid.Bool().Draw(m.T, "renew") {
			ids, want = append(ids, h.id), append(want, event.Permission{Remaining: m.permit(h)})
		}
	}
	if got := m.server.Renew(ids); !slices.Equal(got, want) {
		m.Fatalf("renewed %v for %v, want %v", ids, got, want)
	}
}

func (m *reservationsModel) revoke(set ownership.Set, final bool) {
	m.server.Revoke(set, final)
	for _, h := range m.held {
		if set.Has(h.partition) {
			h.revoked, h.forced = true, h.forced || final
		}
	}
}

func (m *reservationsModel) revokeAll() {
	m.server.RevokeAll()
	for _, h := range m.held {
		h.revoked, h.forced = true, true
	}
}

func (m *reservationsModel) force() {
	set := m.partitions("forced")
	m.server.Force(set)
	for _, h := range m.held {
		h.forced = h.forced || h.revoked && set.Has(h.partition)
	}
}

// expire ends those whose last permission has passed, and no others.
func (m *reservationsModel) expire() {
	next := clock.Forever
	m.held = slices.DeleteFunc(m.held, func(h *refHeld) bool {
		if h.until.After(m.now) {
			next = min(next, h.until)
			return false
		}
		m.want = append(m.want, event.Result{Delivery: h.id, Kind: event.ResultLost})
		m.counts["expired"]++
		return true
	})
	if got := m.server.Expire(); got != next {
		m.Fatalf("the next end is at %v, want %v", got, next)
	}
}

func (m *reservationsModel) release() {
	ids := []event.DeliveryID{m.last + 1}
	m.held = slices.DeleteFunc(m.held, func(h *refHeld) bool {
		if rapid.IntRange(0, 2).Draw(m.T, "release") > 0 {
			return false
		}
		ids = append(ids, h.id)
		m.want = append(m.want, event.Result{Delivery: h.id, Kind: event.ResultDone})
		m.counts["released"]++
		return true
	})
	m.server.TakeBack(append(ids, ids...))
}

// beat moves the lease: its end grows, and which partitions drain is as the newest Beat has it.
func (m *reservationsModel) beat() { m.beatWith(m.partitions("draining")) }

func (m *reservationsModel) beatWith(draining ownership.Set) {
	m.lease = ownership.Lease{Until: max(m.lease.Until, m.now.Add(2*time.Second)), Draining: draining}
}

func (m *reservationsModel) pass() {
	m.now = m.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, 100 * time.Millisecond, 700 * time.Millisecond, 3 * time.Second, 40 * time.Minute}).Draw(m.T, "time"))
}

func (m *reservationsModel) check() {
	sorted := func(results []event.Result) []event.Result {
		return slices.SortedFunc(slices.Values(results), func(a, b event.Result) int { return int(a.Delivery) - int(b.Delivery) })
	}
	got, want := sorted(m.boxes.ended), sorted(m.want)
	if len(got) != len(want) {
		m.Fatalf("results %+v, want %+v", got, want)
	}
	for i := range got {
		if got[i].Delivery != want[i].Delivery || got[i].Kind != want[i].Kind {
			m.Fatalf("results %+v, want %+v", got, want)
		}
	}
	m.boxes.ended, m.want = nil, nil
	if got := len(m.server.reservations.held); got != len(m.held) {
		m.Fatalf("%d reservations are held, want %d", got, len(m.held))
	}
}

// The owner promises no more than the rest of its lease less the margin; a key that was taken back moves only while it drains; and a
// reservation is over when it is released, or when the lease behind the last permission has passed, and not before.
func TestReservationsMatchTheRules(t *testing.T) {
	counts := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		m := newReservationsModel(t, counts)
		m.beat()
		actions := []func(){
			func() {}, m.take, m.take, m.renew, m.renew, m.renew, m.expire, m.release, m.beat, m.beat, m.pass, m.pass, m.force,
			func() { m.revoke(m.partitions("revoked"), rapid.IntRange(0, 3).Draw(t, "final") == 0) },
			func() {
				if rapid.IntRange(0, 4).Draw(t, "all") == 0 {
					m.revokeAll()
				}
			},
			func() { // a member leaves: all of its keys drain
				m.beatWith(ownership.SetOf(0, 1, 2, 3))
				m.revoke(m.lease.Draining, false)
				m.renew()
			},
			func() { // holders ask again after more than the hour for which the owner answers
				if rapid.IntRange(0, 4).Draw(t, "late") == 0 {
					m.now = m.now.Add(61 * time.Minute)
					m.beat()
					m.renew()
				}
			},
		}
		for range 100 {
			rapid.SampledFrom(actions).Draw(t, "action")()
			m.check()
		}
		m.now = max(m.now, m.lease.Until)
		m.expire()
		if m.check(); len(m.held) > 0 {
			t.Fatalf("%d reservations never end", len(m.held))
		}
	})
	for _, what := range []string{"granted", "taken back", "released while it is taken", "frozen", "drains", "too old", "expired", "released"} {
		if counts[what] < 10 {
			t.Errorf("%d times %s: these histories proved little (%v)", counts[what], what, counts)
		}
	}
	t.Log(counts)
}

// A member holds so many reservations, and the next when one of them has ended.
func TestReservationsMax(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newReservationsModel(t, map[string]int{})
		m.beat()
		m.boxes.taking = func(*event.Delivery) {}
		for id := range event.DeliveryID(ReservationsMax + 3) {
			m.boxes.waiting = append(m.boxes.waiting, event.Delivery{ID: id + 1, Token: 7, Turn: 1, Ref: event.RefTo(&event.Event{Key: "k"})})
		}
		m.server.TakeReservations()
		if n := len(m.boxes.granted); n != ReservationsMax {
			t.Fatalf("%d are granted, want %d", n, ReservationsMax)
		}
		m.server.ReservationsAwake()
		m.server.TakeBack([]event.DeliveryID{event.DeliveryID(rapid.IntRange(1, ReservationsMax).Draw(t, "released"))})
		if !m.server.ReservationsAwake() {
			t.Fatal("nobody takes the next one")
		}
		m.server.TakeReservations()
		if n := len(m.boxes.granted); n != ReservationsMax+1 {
			t.Fatalf("%d are granted after the first release, want %d", n, ReservationsMax+1)
		}
		m.now = m.lease.Until
		m.server.Expire()
		m.server.ReservationsAwake()
		m.beat()
		m.server.TakeReservations()
		if n := len(m.boxes.granted); n != ReservationsMax+3 {
			t.Fatalf("%d are granted after all have expired, want %d", n, ReservationsMax+3)
		}
	})
}
