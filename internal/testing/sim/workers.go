package sim

import (
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// This file contains workers that drain in order, handlers that take longer than their timeout, and events that kill their worker.

// handlerTimeout is the timeout of handlers in runs with difficult workers.
const handlerTimeout = 1500 * time.Millisecond

// killsMax is how many workers an event kills at most. Crashes are not counted whose owner died, too, and forgotten with the router that received the event.
const killsMax = 40

// withDifficultWorkers gives handlers a timeout, and some events the power to kill their worker.
func withDifficultWorkers(w *world) {
	w.difficult = true
	w.after(10*time.Second, w.drainOn)
}

// drainOn lets workers end in order, as in a deploy of the application alone.
func (w *world) drainOn() {
	if w.troubles {
		if p := w.pods[w.rng.IntN(len(w.pods))]; !p.gone {
			for _, a := range p.living() {
				if w.chance(0.5) {
					a.process.act(a.drain)
				}
			}
			if m := p.member; m != nil {
				m.touch(10 * time.Second)
			}
		}
	}
	w.after(w.between(0, 10*time.Second), w.drainOn)
}

// drain ends the worker as package client does when its context ends: nothing more starts, what runs gets some seconds.
func (a *application) drain() {
	c := a.conn
	a.w.count("worker_drained")
	a.w.tracef("%s: drains", a)
	end := func() {
		a.kill()
		a.w.restart(a.pod, 2*time.Second)
	}
	if c == nil || !c.appUp {
		end()
		return
	}
	c.inbox.Drain()
	c.toRouter(&appwire.FromWorker{Other: &appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{Reason: "it ends"}}}})
	c.flush()
	until := a.w.now + a.w.between(0, 5*time.Second)
	var look func()
	look = func() {
		switch {
		case c.appUp && c.inbox.Started() == 0 && len(c.inbox.Results) == 0 && c.receipt == c.sent:
			a.w.count("worker_drained_in_order")
			end()
		case a.w.now > until:
			end()
		default:
			a.process.later(20*time.Millisecond, look)
		}
	}
	look()
}

// kills reports whether a handler of the event kills its worker.
func (w *world) kills(h *handling) bool {
	return w.difficult && w.troubles && h.call == nil && !h.id.IsSent() && hashOf(uint64(h.id.Entry), uint64(h.id.Batch), "")%40 == 0
}

// killLater kills the worker of a handler while it runs.
func (w *world) killLater(h *handling, takes time.Duration) {
	a := h.conn.app
	a.process.later(w.between(0, takes), func() {
		if !h.ended {
			w.count("killed_by_an_event")
			if p := w.broker.byID[h.id]; p != nil {
				if p.kills++; p.kills > killsMax {
					w.fail("%v has killed %d workers", h, p.kills)
				}
			}
			h.conn.member.touch(10 * time.Second)
			a.kill()
			w.restart(a.pod, time.Second)
		}
	})
}

// tooSlow cuts handlers that took longer than their timeout. Some return only when their deadline has passed.
func (c *conn) tooSlow(lost []*handling) {
	w, a := c.app.w, c.app
	for _, h := range lost {
		h.cancelled = true
		w.count("timed_out")
		w.tracef("%s: timed out %v", a, h)
		d := time.Duration(0)
		if w.chance(0.4) {
			w.count("hung")
			d = max(0, c.inbox.Deadline(&h.item).Sub(a.clock())*9/10-100*time.Millisecond)
			if w.chance(0.1) {
				w.count("hung_for_long")
				h.hung, d = true, 5*time.Minute
			}
		}
		a.process.later(d+w.between(0, returnWithin), func() { c.end(h, event.Result{Kind: event.ResultCancelled}) })
	}
}

// ---- the broker's answers about the ends of topics ----

// learnEnds does what internal/node's learnEnds does.
func (m *member) learnEnds() {
	select {
	case <-m.pipeline.EndsAsked():
	default:
		return
	}
	number, w := m.pipeline.NewestAsk(), m.w
	if !w.knowsEnds {
		m.pipeline.LearnEnds(number, nil, false)
		return
	}
	if m.reading == nil {
		return
	}
	known := w.now >= w.broker.outage && !w.chance(0.05)
	d := w.between(time.Millisecond, 30*time.Millisecond)
	if !known {
		d = 2 * time.Second
	}
	last := w.broker.last
	m.process.later(d, func() {
		w.count("ends_asked")
		m.pipeline.LearnEnds(number, []admission.End{{Topic: "t", Partition: -1, Last: last}}, known)
	})
}

// endHung ends a worker whose handlers hang in many of its places.
func (a *application) endHung() {
	n := 0
	for _, c := range a.conns {
		for _, h := range c.handlers {
			if h.hung {
				n++
			}
		}
	}
	if n >= hungMax {
		a.kill()
	}
}

// hungMax leaves a worker half of its places.
const hungMax = 4
