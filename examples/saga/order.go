package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/examples/killed"
)

// shop is the application: it handles the events of orders, and the calls of stock.
type shop struct {
	db     killed.Database
	lane   *client.Lane
	expire time.Duration
}

// order is the row of an order.
type order struct {
	State    string
	SKU      string
	Quantity int
	Expires  time.Time
	Late     bool // it was paid after it had expired: the money goes back
}

// The states of an order. One that ends with "ing" is a decision whose call has not been answered yet: it stands in the row before the call is made, so
// that the next handler of the order makes that call, and decides nothing else.
const (
	reserving = "reserving"
	open      = "open"
	refused   = "refused"
	paying    = "paying"
	paid      = "paid"
	expiring  = "expiring"
	expired   = "expired"
)

// placed is the payload of the event that places an order.
type placed struct {
	SKU      string
	Quantity int
}

// onEvent handles the events of an order: it was placed, it was paid, or its timer is due.
func (s *shop) onEvent(ctx context.Context, e *client.Event) error {
	if e.Timer == nil { // not one of ours
		return nil
	}
	var o order
	if err := s.claim(ctx, e.Key, e.Fence, &o); err != nil {
		return err
	}
	if err := s.finish(ctx, e, &o); err != nil { // what a handler before has begun
		return err
	}
	if err := decide(&o, e.Timer.Name, e.Payload, s.expire); err != nil {
		return err
	}
	if err := s.write(ctx, e.Key, e.Fence, o); err != nil {
		return err
	}
	if err := s.finish(ctx, e, &o); err != nil {
		return err
	}
	if e.Timer.Name == "placed" && o.State == open {
		// If this handler dies now, the event comes again, and sets the same timer.
		e.After(time.Until(o.Expires), "expire", nil)
	}
	return nil
}

// decide changes the state of an order by an event. An event that comes again changes nothing.
func decide(o *order, event string, payload []byte, expire time.Duration) error {
	switch {
	case event == "placed" && o.State == "":
		var p placed
		if err := json.Unmarshal(payload, &p); err != nil || p.Quantity < 1 {
			return client.Reject(fmt.Errorf("no order: %w", err))
		}
		*o = order{State: reserving, SKU: p.SKU, Quantity: p.Quantity, Expires: time.Now().Add(expire)}
	case event == "paid" && o.State == open:
		o.State = paying
	case event == "paid" && o.State == expired:
		o.Late = true
	case event == "expire" && o.State == open:
		o.State = expiring
	}
	return nil
}

// finish makes the call of a decision, and writes what has become of it.
func (s *shop) finish(ctx context.Context, e *client.Event, o *order) error {
	next := map[string]struct {
		method, want, then string
	}{
		reserving: {"reserve", reserved, open}, paying: {"commit", sold, paid}, expiring: {"cancel", cancelled, expired},
	}
	step, is := next[o.State]
	if !is {
		return nil
	}
	state, err := s.call(ctx, o, e.Key, step.method)
	switch {
	case err != nil:
		return err
	case state == step.want:
		o.State = step.then
	case o.State == reserving && state == outOf:
		o.State = refused
	default:
		return fmt.Errorf("%s of %s: it is %s", step.method, o.SKU, state)
	}
	return s.write(ctx, e.Key, e.Fence, *o)
}

// callPause is the pause before a call is made again.
const callPause = 100 * time.Millisecond

// call makes a step at the order's goods, until it is answered or the handler has to end. It has an id, so that it can be made again after any error; and if
// the answer is forgotten by then, the goods know it.
func (s *shop) call(ctx context.Context, o *order, key, method string) (state string, err error) {
	payload, err := json.Marshal(demand{Order: key, Quantity: o.Quantity})
	if err != nil {
		return "", err
	}
	id := map[string]string{"reserve": key + "/stock"}[method]
	if id == "" {
		id = key + "/" + method
	}
	for {
		reply, err := s.lane.Invoke(ctx, o.SKU, method, payload, client.WithCallID(id), client.WithCallTimeout(3*time.Second))
		if errors.Is(err, client.ErrDoneBefore) {
			reply, err = s.lane.Invoke(ctx, o.SKU, "look", payload, client.WithCallTimeout(3*time.Second))
		}
		if err == nil {
			return string(reply), nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s of %s: %w", method, o.SKU, err)
		case <-time.After(callPause):
		}
	}
}

// claim reads the row of a key into v. Handlers before this one can no longer change it.
func (s *shop) claim(ctx context.Context, key string, fence client.Fence, v any) error {
	row, err := s.db.Claim(ctx, key, fence)
	if err != nil || len(row) == 0 {
		return err
	}
	return json.Unmarshal(row, v)
}

func (s *shop) write(ctx context.Context, key string, fence client.Fence, v any) error {
	row, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.db.Write(ctx, key, fence, row)
}
