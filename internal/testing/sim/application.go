package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership/inbox"
	"github.com/ringfence/router/internal/testing/planted"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// application is one process of the user's, with the SDK in it.
type application struct {
	w        *world
	id       int
	pod      *pod
	host     *host
	process  *process
	conn     *conn   // the live stream, nil while there is none
	conns    []*conn // live, and streams whose handlers still run
	dialing  bool
	defiant  bool   // its handlers ignore their deadlines
	slewable bool   // its SDK reads a clock that NTP steers, and does not declare another
	calls    bool   // its SDK has handlers of calls
	pinged   func() // the scene's action while the next Ping is on its way
}

func (a *application) String() string { return fmt.Sprintf("%s/app%d", a.pod.name, a.id) }

// conn is one stream between an application and its router: the SDK's inbox at one
// end, the router's session at the other.
type conn struct {
	app    *application
	member *member
	manual *app.Manual

	inbox    inbox.Inbox[handling]
	handlers []*handling             // started and not ended
	newest   map[event.Key]*handling // of each key, the one that started last
	given    uint64                  // newest Deliveries frame taken in
	told     uint64                  // newest that the router knows of
	sent     uint64                  // newest Results frame
	receipt  uint64                  // newest that the router has taken in
	appUp    bool
	routerUp bool
	in, out  time.Duration // when the newest frames to and from the application arrive
	pumping  bool
	flushing bool
	watching bool
}

// handling is one delivery at the application.
type handling struct {
	item      inbox.Item[handling]
	conn      *conn
	id        event.MessageID
	key       event.Key
	partition ring.Partition
	token     int64
	turn      uint64
	state     uint64 // event.Delivery.Generation
	order     int    // among all handlers, by their beginnings
	result    event.Result
	call      *event.Call // nil: it is an event, or a reservation
	sent      *event.Sent // of a firing, else nil
	reserved  *reserving  // of a holder of a reservation, which has no conn
	begun     time.Duration
	cancelled bool
	hung      bool // it does nothing any more, and does not return
	ended     bool
}

func (h *handling) String() string {
	return fmt.Sprintf("%v of %s (partition %d, token %d, turn %d) at %s", h.id, string(h.key), h.partition, h.token, h.turn, h.where())
}

// where names the process that runs it.
func (h *handling) where() string {
	if h.reserved != nil {
		return h.reserved.by.String()
	}
	return h.conn.app.String()
}

// owner is the router that has given it out.
func (h *handling) owner() *member {
	if h.reserved != nil {
		return h.reserved.owner
	}
	return h.conn.member
}

// fence returns the fence of a handling, the lowest of no handling.
func (h *handling) fence() event.Fence {
	if h == nil {
		return event.Fence{}
	}
	return event.Fence{Token: h.token, Turn: h.turn}
}

func (w *world) newApplication(p *pod) *application {
	w.apps++
	a := &application{w: w, id: w.apps, pod: p, host: p.host, defiant: w.p.defiant}
	if w.chance(0.6) {
		a.host = w.newHost()
	}
	a.slewable, a.calls = a.id%3 == 0, a.id%9 != 4
	a.process = &process{loop: &w.loop}
	a.process.later(w.between(0, 300*time.Millisecond), a.connect)
	return a
}

// clock is the clock that the SDK reads.
func (a *application) clock() clock.Instant {
	if planted.On(planted.SDKMonotonic) {
		return a.host.monotonic()
	}
	if a.slewable {
		return a.host.steered()
	}
	return a.host.lease()
}

// capabilities are the capabilities that the SDK declares.
func (a *application) capabilities() []string {
	var list []string
	if !a.slewable {
		list = append(list, appwire.RawClock)
	}
	if a.calls {
		list = append(list, appwire.Calls)
	}
	return list
}

// connect dials the router of the pod until there is a stream.
func (a *application) connect() {
	a.dialing = false
	if a.conn != nil {
		return
	}
	m := a.pod.member
	if m == nil || m.process.dead || m.process.isStopped() || m.leftAt != 0 {
		a.redial()
		return
	}
	c := &conn{app: a, member: m, newest: map[event.Key]*handling{}, appUp: true, routerUp: true}
	a.conn = c
	a.conns = slices.DeleteFunc(a.conns, func(o *conn) bool { return !o.appUp && len(o.handlers) == 0 })
	a.conns = append(a.conns, c)
	c.manual = m.app.Manual()
	m.streams = append(m.streams, c)
	c.toRouter(&appwire.FromWorker{Other: &appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{
		Worker: a.String(), MaxInFlight: 8, Sdk: "sim", VersionMin: 1, VersionMax: 1, Capabilities: a.capabilities(), Schedules: a.schedules(),
	}}}})
	c.ping()
}

// schedules are those that the application declares.
func (a *application) schedules() []*appv1.Schedule {
	if a.w.agenda == nil {
		return nil
	}
	return a.w.agenda.wire
}

func (a *application) redial() {
	if !a.dialing {
		a.dialing = true
		a.process.later(a.w.between(20*time.Millisecond, 300*time.Millisecond), a.connect)
	}
}

// ---- the router's end ----

// toRouter sends a frame to the router. Frames keep their order.
func (c *conn) toRouter(f *appwire.FromWorker) {
	w := c.app.w
	c.out = max(c.out, w.now+w.hop())
	c.member.process.later(c.out-w.now, func() {
		if !c.routerUp {
			return
		}
		if err := c.manual.Take(f); err != nil {
			w.fail("%s ends the stream of %s: %v", c.member, c.app, err)
		}
		c.member.look()
	})
}

// wake lets the router's writer look, a little later.
func (c *conn) wake() {
	if c.pumping {
		return
	}
	c.pumping = true
	c.member.process.later(c.app.w.hop(), func() {
		c.pumping = false
		c.pump()
	})
}

// pump is one turn of the router's writer.
func (c *conn) pump() {
	if !c.routerUp {
		return
	}
	frame, end := c.manual.Give()
	switch f := frame.(type) {
	case nil:
		if end {
			c.breakBoth()
		}
		return
	case *appv1.WorkResponse:
		c.toApp(func() { c.control(f) })
	case *appwire.ToWorker:
		number, receipt := f.Number, f.Receipt
		given := slices.Clone(f.Deliveries)
		c.toApp(func() { c.deliveries(number, receipt, given) })
	}
	c.wake()
}

func (c *conn) toApp(do func()) {
	w := c.app.w
	c.in = max(c.in, w.now+w.hop())
	c.app.process.later(c.in-w.now, func() {
		if c.appUp {
			do()
		}
	})
}

// breakBoth breaks the stream; each end notices by itself.
func (c *conn) breakBoth() {
	w := c.app.w
	w.count("app_stream_broken")
	c.member.process.later(w.hop(), c.routerEnd)
	c.app.process.later(w.hop(), c.appEnd)
}

// routerGone ends c after the death of its router.
func (c *conn) routerGone() {
	c.routerUp = false
	c.app.process.later(c.app.w.hop(), c.appEnd)
}

func (c *conn) routerEnd() {
	if !c.routerUp {
		return
	}
	c.routerUp = false
	c.manual.Close()
	m := c.member
	m.streams = slices.DeleteFunc(m.streams, func(o *conn) bool { return o == c })
	m.look()
}

// ---- the application's end, as package client does it ----

func (c *conn) appEnd() {
	if !c.appUp {
		return
	}
	c.appUp = false
	c.inbox.BreakOff()
	if c.app.conn == c {
		c.app.conn = nil
		c.app.redial()
	}
}

func (c *conn) ping() {
	if !c.appUp {
		return
	}
	k := c.inbox.SendPing(c.app.clock())
	c.toRouter(&appwire.FromWorker{Other: &appv1.WorkRequest{Frame: &appv1.WorkRequest_Ping{Ping: &appv1.Ping{K: k}}}})
	c.app.process.later(min(pingEvery, c.member.cfg.Timing.Lease/5), c.ping)
	if do := c.app.pinged; do != nil {
		c.app.pinged = nil
		do()
	}
}

func (c *conn) receipted(receipt uint64) {
	if receipt > c.receipt {
		c.receipt = receipt
		c.flush()
	}
}

func (c *conn) deliveries(number, receipt uint64, given []event.Delivery) {
	c.receipted(receipt)
	c.given = number
	for _, d := range given {
		h := &handling{
			conn: c, id: d.MessageID(), key: d.Ref.Key(), partition: d.Partition, token: d.Token, turn: d.Turn, state: d.Generation, call: d.Call(),
		}
		if h.call != nil && !c.app.calls {
			c.app.w.fail("%s gets %v, a call, and takes none", c.app, h)
		}
		if h.id.IsSent() {
			if sent, err := event.ParseSent(d.Event().Properties); err == nil {
				h.sent = &sent
			}
		}
		h.item = inbox.Item[handling]{Of: h, ID: d.ID, Partition: uint32(d.Partition)}
		c.inbox.Give(&h.item)
	}
	c.flush()
	c.startAll()
}

func (c *conn) control(f *appv1.WorkResponse) {
	c.receipted(f.GetReceipt())
	switch frame := f.GetFrame().(type) {
	case *appv1.WorkResponse_Pong:
		p := frame.Pong
		lost := c.inbox.Pong(c.app.clock(), p.GetK(), time.Duration(p.GetRemainingNs()), p.GetDraining(), nil)
		c.cancel(lost, "cancelled")
		if len(p.GetDraining()) > 0 { // the deadlines of deliveries move that were taken back
			c.app.w.count("extended")
		}
	case *appv1.WorkResponse_Revoke:
		r := frame.Revoke
		c.inbox.Revoke(func(it *inbox.Item[handling]) bool {
			return r.GetAll() || slices.Contains(r.GetPartitions(), it.Partition)
		})
		if single := r.GetDeliveryIds(); len(single) > 0 {
			lost := c.inbox.Cut(func(it *inbox.Item[handling]) bool { return slices.Contains(single, uint64(it.ID)) }, nil)
			if r.GetTimedOut() {
				c.tooSlow(lost)
			} else {
				c.cancel(lost, "call_cancelled")
			}
		}
		c.flush()
	case *appv1.WorkResponse_Suspend:
		c.inbox.Suspend()
	case *appv1.WorkResponse_Resume:
		c.inbox.Resume()
	}
	c.startAll()
}

// startAll starts all startable deliveries.
func (c *conn) startAll() {
	if !c.inbox.Startable() {
		return
	}
	c.app.process.later(c.app.w.hop(), func() {
		for c.appUp && c.app.conn == c {
			h := c.inbox.Take(c.app.clock())
			if h == nil {
				return
			}
			c.start(h)
		}
	})
}

// start calls a handler.
func (c *conn) start(h *handling) {
	w := c.app.w
	h.begun = w.now
	if h.call != nil && h.call.Method != callMethod {
		c.inbox.End(&h.item, &event.Result{Kind: event.ResultNotStarted, Reason: "no handler", Reply: &event.CallReply{Code: event.CodeNoHandler}})
		c.flush()
		return
	}
	w.checkStart(h)
	if h.sent != nil {
		w.agenda.started(h)
	}
	c.handlers = append(c.handlers, h)
	var takes time.Duration
	takes, h.result = w.drawWork(h)
	if w.kills(h) {
		w.killLater(h, takes)
	}
	c.app.process.later(takes, func() { c.end(h, h.result) })
	c.watch()
}

// end is the return of a handler.
func (c *conn) end(h *handling, r event.Result) {
	if h.ended {
		return
	}
	inTime := h.runs()
	h.ended = true
	w := c.app.w
	c.handlers = slices.DeleteFunc(c.handlers, func(o *handling) bool { return o == h })
	w.checkEnd(h, r, inTime)
	c.inbox.End(&h.item, &r)
	c.flush()
}

// watch looks every 50 ms whether a deadline has passed, while handlers run. Looks
// before the earliest deadline change nothing and are left out.
func (c *conn) watch() {
	if c.watching || len(c.handlers) == 0 {
		return
	}
	c.watching = true
	a := c.app
	now, next := a.clock(), clock.Forever
	for _, h := range c.handlers {
		if !h.cancelled {
			next = min(next, c.inbox.Deadline(&h.item))
		}
	}
	if next == clock.Forever {
		c.watching = false
		return
	}
	look := func() {
		c.watching = false
		c.cancel(c.inbox.Check(a.clock(), nil), "cancelled")
		c.watch()
	}
	due := a.host.until(now, next)
	if a.slewable { // it may run faster than that: look early, and again
		due = time.Duration(float64(due) * (1 - 2*clock.SlewMax))
	}
	a.process.look(due, look)
}

// How late a handler may learn that its deadline has passed, and how long it then
// takes to return. Together they stay below the margin of the deadlines (200 ms).
const (
	checkEvery   = 50 * time.Millisecond
	returnWithin = 80 * time.Millisecond
)

// cancel cuts handlers whose deadline has passed, or whose caller is gone. They return soon, unless they defy.
func (c *conn) cancel(lost []*handling, why string) {
	w := c.app.w
	for _, h := range lost {
		h.cancelled = true
		w.count(why)
		w.tracef("%s: %s %v", c.app, why, h)
		if c.app.defiant {
			continue
		}
		c.app.process.later(w.between(0, returnWithin), func() {
			c.end(h, event.Result{Kind: event.ResultCancelled})
		})
	}
}

// flush sends the router results, one frame of them without a receipt at a time, or the receipt
// alone.
func (c *conn) flush() {
	if c.flushing || !c.appUp {
		return
	}
	c.flushing = true
	c.app.process.later(c.app.w.hop(), func() {
		c.flushing = false
		switch {
		case !c.appUp:
		case len(c.inbox.Results) > 0 && c.receipt == c.sent:
			c.sent++
			c.told = c.given
			c.toRouter(&appwire.FromWorker{Number: c.sent, Receipt: c.given, Results: c.inbox.Results})
			c.inbox.Results = nil
		case c.told < c.given:
			c.told = c.given
			c.toRouter(&appwire.FromWorker{Receipt: c.given, Other: &appv1.WorkRequest{Receipt: c.given}})
		}
	})
}

// runs reports whether the handler runs now. A handler that was frozen with its process beyond
// its deadline does nothing until it is cancelled (A4): the token must stop its earlier writes.
func (h *handling) runs() bool {
	if h.ended {
		return false
	}
	if h.reserved != nil {
		return h.reserved.acts()
	}
	a := h.conn.app
	if a.process.dead {
		return false
	}
	if a.defiant || a.clock().Before(h.conn.inbox.Deadline(&h.item)) {
		return true
	}
	if h.hung {
		return false
	}
	return a.w.now-a.process.stopped > checkEvery+returnWithin
}

// kill ends the application, and its handlers with it.
func (a *application) kill() {
	if a.process.dead {
		return
	}
	a.w.tracef("%s: dead", a)
	for _, c := range a.conns {
		for _, h := range c.handlers {
			a.w.checkDied(h)
		}
		c.handlers = nil
		if c.appUp && c.routerUp {
			c.member.process.later(a.w.hop(), c.routerEnd)
		}
		c.appUp = false
	}
	a.process.kill()
}
