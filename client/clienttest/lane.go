package clienttest

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
	"github.com/ringfence/router/ring"
)

// Lane returns a lane through this router, for calls and reservations. They take turns with the events of their key, in
// the order in which they came. The router remembers no replies: a repeat of a call runs again. The lane is closed at
// the end of the test.
func (r *Router) Lane() *client.Lane {
	r.t.Helper()
	l, err := client.Dial("", r.WithClock(), client.WithDialer(r.dial), client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = l.Close() })
	return l
}

// visits makes deliveries of calls and reservations. It implements lane.Sender and lane.Publisher. Its lock is taken behind that of the boxes.
type visits struct {
	router *Router
	lane   *lane.Lane

	mu       sync.Mutex // guards the fields below, and those of all visits
	open     map[event.Handle]*visit
	reserved map[event.MessageID]*visit // reservations, by the id that their holder has chosen
}

// visit is a call or a reservation.
type visit struct {
	handle   event.Handle // 0: its caller or holder has gone
	call     *event.Call
	id       event.MessageID
	delivery *Delivery
	granted  event.Fence // zero before
}

func newVisits(r *Router) *visits {
	v := &visits{router: r, open: make(map[event.Handle]*visit), reserved: make(map[event.MessageID]*visit)}
	v.lane = lane.New(lane.DefaultConfig(), v, v, r.now, lane.NewMetrics(prometheus.NewRegistry()))
	lanev1.RegisterLaneServiceServer(r.grpc, &lane.Service{Lane: v.lane})
	return v
}

// Call implements lane.Sender.
func (v *visits) Call(e *event.Event) {
	if d := v.accept(e); d != nil {
		v.router.boxes.add(d)
	}
}

// accept returns a delivery to be added, nil if there is none.
func (v *visits) accept(e *event.Event) *Delivery {
	v.mu.Lock()
	defer v.mu.Unlock()
	here := v.reserved[e.ID]
	switch {
	case slices.Contains(e.Call.Path, ring.HashOf(string(e.Key))):
		v.lane.Answered([]event.Verdict{event.NotRun(e.Handle, event.CodeCycle, "a handler of this key waits for the call")})
		return nil
	case here != nil: // its holder comes back, on another stream
		v.lane.Answered([]event.Verdict{event.NotRun(here.handle, event.CodeLost, "the reservation is over here")})
		delete(v.open, here.handle)
		here.handle = e.Handle
		v.open[e.Handle] = here
		if here.granted != (event.Fence{}) { // to be renewed before anything is done
			v.lane.Answered([]event.Verdict{{Handle: e.Handle, Kind: event.Granted, Detail: &event.Detail{Grant: &event.Grant{Fence: here.granted}}}})
		}
		return nil
	case e.Call.Resume:
		v.lane.Answered([]event.Verdict{event.NotRun(e.Handle, event.CodeLost, "the reservation is over")})
		return nil
	}
	one := &visit{handle: e.Handle, call: e.Call, id: e.ID}
	one.delivery = &Delivery{router: v.router, event: *e, attempt: 1, visit: one, over: make(chan struct{})}
	v.open[e.Handle] = one
	if e.Call.Reservation {
		v.reserved[e.ID] = one
	}
	return one.delivery
}

// leave forgets the caller or holder of a visit.
func (v *visits) leave(h event.Handle, released bool) *visit {
	v.mu.Lock()
	defer v.mu.Unlock()
	one := v.open[h]
	if one == nil {
		return nil
	}
	delete(v.open, h)
	one.handle = 0
	if released {
		delete(v.reserved, one.id)
	}
	return one
}

// GiveUp implements lane.Sender.
func (v *visits) GiveUp(h event.Handle) {
	one := v.leave(h, true)
	if one == nil {
		return
	}
	waited, id := v.router.boxes.remove(one.delivery)
	if waited {
		v.lane.Answered([]event.Verdict{event.NotRun(h, event.CodeTimeout, "its time was up before it could begin")})
		return
	}
	v.router.server.TakeBack([]event.DeliveryID{id})
	v.lane.Answered([]event.Verdict{event.Unknown(h, "its time was up")})
}

// RenewReservation implements lane.Sender.
func (v *visits) RenewReservation(r event.Renewal) {
	v.mu.Lock()
	one := v.open[r.Handle]
	v.mu.Unlock()
	if one == nil {
		return
	}
	id := v.router.boxes.runningID(one.delivery)
	if v.router.server.Renew([]event.DeliveryID{id})[0].Remaining > 0 {
		r.Remaining = permission
	}
	v.lane.Renewed([]event.Renewal{r})
}

// permission is that of holders: longer than the clock moves in any test, since they are told when they have lost their key.
const permission = 1000 * lease

// granted returns the deliveries of the reservations that are held, and for which match holds.
func (v *visits) granted(match func(*visit) bool) (all []*visit, ids []event.DeliveryID) {
	v.mu.Lock()
	for _, one := range v.reserved {
		if one.granted != (event.Fence{}) && match(one) {
			all = append(all, one)
		}
	}
	v.mu.Unlock()
	for _, one := range all {
		ids = append(ids, v.router.boxes.runningID(one.delivery))
	}
	return all, ids
}

// keep lets the reservations last for the newest lease.
func (v *visits) keep() {
	_, ids := v.granted(func(*visit) bool { return true })
	v.router.server.Renew(ids)
}

// lose ends reservations, and tells their holders. The router's clock must not be past the deadline of a handler that
// is to be cancelled: the end of a reservation lets the server look for those that are over.
func (v *visits) lose(match func(*visit) bool) {
	lost, ids := v.granted(match)
	for _, one := range lost {
		v.mu.Lock()
		handle := one.handle
		v.mu.Unlock()
		v.leave(handle, true)
		v.lane.Answered([]event.Verdict{event.NotRun(handle, event.CodeLost, "the key was lost")})
		v.mu.Lock()
		delete(v.reserved, one.id) // of a holder that has gone, too
		v.mu.Unlock()
	}
	if len(ids) > 0 {
		v.router.server.TakeBack(ids)
	}
}

// ForgetReservation implements lane.Sender.
func (v *visits) ForgetReservation(h event.Handle) { v.leave(h, false) }

// grant tells the holder of a reservation that it has begun.
func (v *visits) grant(one *visit, g event.Grant) {
	v.mu.Lock()
	defer v.mu.Unlock()
	one.granted, g.Remaining = g.Fence, permission
	if one.handle != 0 {
		v.lane.Answered([]event.Verdict{{Handle: one.handle, Kind: event.Granted, Detail: &event.Detail{Grant: &g}}})
	}
}

// end answers the caller of a visit whose delivery has ended. It reports whether the visit waits for its turn again.
func (v *visits) end(one *visit, r *event.Result) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	wanted := one.handle != 0 && one.call.Deadline.After(v.router.now())
	o := outcome.OfCall(one.call.Once() || one.call.Reservation, wanted, r)
	if o.Again {
		return true
	}
	delete(v.open, one.handle)
	delete(v.reserved, one.id)
	if one.handle != 0 {
		v.lane.Answered([]event.Verdict{{Handle: one.handle, Kind: event.Answered, Detail: &event.Detail{Reason: o.Reason, Reply: &o.Reply}}})
	}
	return false
}
