package clienttest

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// timerTopic is the topic of events that this router publishes.
const timerTopic = "persistent://public/default/clienttest-TIMER"

// Sent is an event that was published through this router: a timer that a handler has set with client.Event.After, or an event of client.Lane.Send.
type Sent struct {
	Key     string
	Name    string
	Payload []byte
	Due     time.Time
	// Delivery is its delivery, which begins when it is due, on the time of the test: in a synctest bubble, sleep until
	// then before you ask for its outcome.
	Delivery *Delivery
}

// Sent returns what was published, in this order. One that is published again with the same id is there once.
func (r *Router) Sent() []Sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent)
}

// RefuseSends makes further timers and Sends fail with err, as without a broker; nil: they succeed again.
func (r *Router) RefuseSends(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sendsFail = err
}

// Publish implements lane.Publisher.
func (v *visits) Publish(e *event.Event, answer func(error)) error {
	r := v.router
	sent, err := event.ParseSent(e.Properties)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sendsFail != nil {
		return r.sendsFail
	}
	if !slices.ContainsFunc(r.sent, func(s Sent) bool { return s.Delivery.event.ID == e.ID }) {
		own := *e
		own.Partition, own.Topic = ring.PartitionOf(string(e.Key)), timerTopic
		d := &Delivery{router: r, event: own, attempt: 1, over: make(chan struct{})}
		due := time.UnixMilli(sent.Due)
		r.sent = append(r.sent, Sent{Key: string(e.Key), Name: sent.Name, Payload: e.Payload, Due: due, Delivery: d})
		r.timers = append(r.timers, time.AfterFunc(time.Until(due), func() { r.boxes.add(d) })) //nolint:forbidigo // the time of the test
	}
	answer(nil)
	return nil
}

// stopTimers ends the timers that have not come.
func (r *Router) stopTimers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.timers {
		t.Stop()
	}
}
