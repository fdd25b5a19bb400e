package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/examples/killed/killedtest"
)

// TestSaga: the command of the documentation, with kills: stock and orders add up.
func TestSaga(t *testing.T) {
	t.Parallel()
	if shown := killedtest.Run(t); !strings.Contains(shown, "it adds up") || strings.Count(shown, " is killed") < 5 {
		t.Error(shown)
	}
}

// TestDecide: an event that comes again, or too late, changes nothing.
func TestDecide(t *testing.T) {
	t.Parallel()
	payload := []byte(`{"SKU":"sku-1","Quantity":2}`)
	for name, test := range map[string]struct{ state, event, want string }{
		"placed":             {"", "placed", reserving},
		"placed again":       {open, "placed", open},
		"paid":               {open, "paid", paying},
		"paid again":         {paid, "paid", paid},
		"paid too late":      {expired, "paid", expired},
		"expires":            {open, "expire", expiring},
		"paid, then expires": {paid, "expire", paid},
		"expires again":      {expired, "expire", expired},
		"paid, and refused":  {refused, "paid", refused},
	} {
		o := order{State: test.state}
		if err := decide(&o, test.event, payload, time.Second); err != nil || o.State != test.want || o.Late != (test.state == expired && test.event == "paid") {
			t.Errorf("%s: %+v, %v; want %s", name, o, err, test.want)
		}
	}
	if err := decide(new(order), "placed", []byte(`{"Quantity":0}`), time.Second); err == nil {
		t.Error("an order of nothing is taken")
	}
}

// TestSteps: a step that is repeated changes nothing, and the wrong one is refused.
func TestSteps(t *testing.T) {
	t.Parallel()
	row := stock{Left: 5}
	for _, step := range []struct {
		do    func(*stock, demand) error
		order string
		n     int
		left  int
		state string
		fails bool
	}{
		{commit, "a", 3, 5, none, true},
		{cancel, "a", 3, 5, none, true},
		{look, "a", 3, 5, none, false},
		{reserve, "a", 3, 2, reserved, false},
		{reserve, "a", 3, 2, reserved, false},
		{reserve, "b", 3, 2, outOf, false},
		{commit, "b", 3, 2, outOf, true},
		{commit, "a", 3, 2, sold, false},
		{commit, "a", 3, 2, sold, false},
		{cancel, "a", 3, 2, sold, true},
		{reserve, "c", 2, 0, reserved, false},
		{cancel, "c", 2, 2, cancelled, false},
		{cancel, "c", 2, 2, cancelled, false},
		{commit, "c", 2, 2, cancelled, true},
		{reserve, "c", 2, 2, cancelled, false},
	} {
		err := step.do(&row, demand{step.order, step.n})
		if (err != nil) != step.fails || row.Left != step.left || row.stateOf(step.order) != step.state {
			t.Fatalf("%+v: %d left, %s, %v", step, row.Left, row.stateOf(step.order), err)
		}
	}
}

// TestBooks: sums that do not add up are found.
func TestBooks(t *testing.T) {
	t.Parallel()
	soldTo := func(left int, state string) stock {
		return stock{Left: left, Taken: map[string]*portion{"order-1": {2, state}}}
	}
	paidFor := order{State: paid, SKU: "sku-1", Quantity: 2}
	for name, test := range map[string]struct {
		stock stock
		order order
		want  string
	}{
		"it adds up":              {soldTo(3, sold), paidFor, ""},
		"too much is left":        {soldTo(4, sold), paidFor, "sku-1: 4 left, want 5 less the 2"},
		"paid and cancelled":      {soldTo(5, cancelled), paidFor, "order-1 is paid, and has"},
		"expired and sold":        {soldTo(3, sold), order{State: expired, SKU: "sku-1", Quantity: 2}, "order-1 is expired, and has"},
		"it is open":              {soldTo(3, reserved), order{State: open, SKU: "sku-1", Quantity: 2}, "order-1 has not ended"},
		"it decides, and no more": {soldTo(3, reserved), order{State: paying, SKU: "sku-1", Quantity: 2}, "order-1 has not ended"},
		"another quantity":        {soldTo(3, sold), order{State: paid, SKU: "sku-1", Quantity: 1}, "order-1 is paid, and has"},
		"no portion":              {stock{Left: 5}, paidFor, "0 portions of 1 orders"},
	} {
		b := newBooks()
		b.initial["sku-1"] = 5
		var told []string
		for _, fault := range b.sum(map[string][]byte{"sku-1": text(t, test.stock), "order-1": text(t, test.order)}, 1).faults {
			told = append(told, fault.Error())
		}
		if all := strings.Join(told, "\n"); test.want == "" && all != "" || !strings.Contains(all, test.want) {
			t.Errorf("%s: told %q, want %q", name, all, test.want)
		}
	}
	for name, test := range map[string]struct {
		key           string
		before, after any
		want          string
	}{
		"paid after it has expired": {"order-1", order{State: expired}, order{State: paid}, `goes from "expired" to "paid"`},
		"cancelled after sold":      {"sku-1", soldTo(3, sold), soldTo(5, cancelled), `goes from "sold" to "cancelled"`},
		"stock from nowhere":        {"sku-1", soldTo(3, reserved), soldTo(4, sold), "4 left and 6 in all, of 5"},
		"a portion goes":            {"sku-1", soldTo(3, sold), stock{Left: 5}, "is gone"},
		"a step":                    {"sku-1", soldTo(3, reserved), soldTo(3, sold), ""},
	} {
		b := newBooks()
		b.initial["sku-1"] = 5
		b.wrote(test.key, client.Fence{Token: 1}, text(t, test.before), text(t, test.after))
		if (len(b.faults) == 0) != (test.want == "") || len(b.faults) > 0 && !strings.Contains(b.faults[0].Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, b.faults, test.want)
		}
	}
}

func text(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
