package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ringfence/router/client"
)

// stock is the row of a kind of goods, such as sku-3.
type stock struct {
	Left  int                 // neither reserved nor sold
	Taken map[string]*portion // by order
}

// portion holds an order's share of a kind of goods.
type portion struct {
	Quantity int
	State    string
}

// The states of a portion.
const (
	none      = "none" // there is no such portion
	reserved  = "reserved"
	sold      = "sold"
	cancelled = "cancelled"
	outOf     = "out of stock"
)

// demand is the payload of calls of a kind of goods.
type demand struct {
	Order    string
	Quantity int
}

// stockCall makes a call of a step. The reply is the portion's state. The row remembers every portion, so a step that runs again, because its call did or
// because the caller has lost the reply, changes nothing.
func (s *shop) stockCall(step func(*stock, demand) error) client.CallHandler {
	return func(ctx context.Context, c *client.Call) ([]byte, error) {
		var d demand
		if err := json.Unmarshal(c.Payload, &d); err != nil {
			return nil, client.FailCall("no_demand", err)
		}
		var row stock
		if err := s.claim(ctx, c.Key, c.Fence, &row); err != nil {
			return nil, err
		}
		before := row.stateOf(d.Order)
		if err := step(&row, d); err != nil {
			return nil, client.FailCall("wrong_step", err)
		}
		after := row.stateOf(d.Order)
		if after != before {
			if err := s.write(ctx, c.Key, c.Fence, row); err != nil {
				return nil, err
			}
		}
		return []byte(after), nil
	}
}

func (row *stock) stateOf(order string) string {
	if p := row.Taken[order]; p != nil {
		return p.State
	}
	return none
}

func reserve(row *stock, d demand) error {
	if row.Taken[d.Order] != nil {
		return nil
	}
	p := &portion{d.Quantity, outOf}
	if d.Quantity <= row.Left {
		row.Left -= d.Quantity
		p.State = reserved
	}
	if row.Taken == nil {
		row.Taken = make(map[string]*portion)
	}
	row.Taken[d.Order] = p
	return nil
}

func commit(row *stock, d demand) error {
	switch p := row.Taken[d.Order]; row.stateOf(d.Order) {
	case reserved:
		p.State = sold
	case sold:
	default:
		return fmt.Errorf("commit of a portion that is %s", row.stateOf(d.Order))
	}
	return nil
}

func cancel(row *stock, d demand) error {
	switch p := row.Taken[d.Order]; row.stateOf(d.Order) {
	case reserved:
		p.State = cancelled
		row.Left += p.Quantity
	case cancelled:
	default:
		return fmt.Errorf("cancel of a portion that is %s", row.stateOf(d.Order))
	}
	return nil
}

func look(*stock, demand) error { return nil }
