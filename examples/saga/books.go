package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/client"
)

// books checks every row that is written, and adds up at the end.
type books struct {
	initial map[string]int // of each kind of goods

	mu     sync.Mutex
	faults []error
	latest time.Duration // from when an order was to expire until it did
}

func newBooks() *books { return &books{initial: make(map[string]int)} }

// ends are the states in which nothing more happens to an order.
var ends = []string{paid, expired, refused}

// ways are the changes of an order's state and of a portion's that may happen.
var ways = map[[2]string]bool{
	{"", reserving}: true, {reserving, open}: true, {reserving, refused}: true, {open, paying}: true, {paying, paid}: true, {open, expiring}: true, {expiring, expired}: true,
	{none, reserved}: true, {none, outOf}: true, {reserved, sold}: true, {reserved, cancelled}: true,
}

// faultsMax bounds what is told.
const faultsMax = 20

// wrong notes a fault. The mutex is held.
func (b *books) wrong(format string, args ...any) {
	if len(b.faults) < faultsMax {
		b.faults = append(b.faults, fmt.Errorf(format, args...))
	}
}

// wrote checks a row that replaces another one.
func (b *books) wrote(key string, fence client.Fence, before, after []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if strings.HasPrefix(key, "order-") {
		was, is := rowOf[order](b, key, before), rowOf[order](b, key, after)
		if was.State != is.State && !ways[[2]string{was.State, is.State}] {
			b.wrong("%s goes from %q to %q, fence %v", key, was.State, is.State, fence)
		}
		if is.State == expired && was.State != expired {
			b.latest = max(b.latest, time.Since(is.Expires))
		}
		return
	}
	was, is := rowOf[stock](b, key, before), rowOf[stock](b, key, after)
	sum := is.Left
	for name, p := range is.Taken {
		if state := was.stateOf(name); state != p.State && !ways[[2]string{state, p.State}] {
			b.wrong("%s: the portion of %s goes from %q to %q, fence %v", key, name, state, p.State, fence)
		}
		if p.State == reserved || p.State == sold {
			sum += p.Quantity
		}
	}
	for name := range was.Taken {
		if is.Taken[name] == nil {
			b.wrong("%s: the portion of %s is gone, fence %v", key, name, fence)
		}
	}
	if is.Left < 0 || sum != b.initial[key] {
		b.wrong("%s: %d left and %d in all, of %d, fence %v", key, is.Left, sum, b.initial[key], fence)
	}
}

// rowOf reads a row. The mutex is held.
func rowOf[T any](b *books, key string, row []byte) (v T) {
	if len(row) > 0 {
		if err := json.Unmarshal(row, &v); err != nil {
			b.wrong("%s: %w", key, err)
		}
	}
	return v
}

// result holds the ends of all orders.
type result struct {
	paid, expired, refused, late int
	left, sold                   map[string]int
	latest                       time.Duration
	faults                       []error
}

// sum adds up stock and orders.
func (b *books) sum(rows map[string][]byte, orders int) result {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := result{left: make(map[string]int), sold: make(map[string]int), latest: b.latest}
	stocks := make(map[string]stock)
	portions := 0
	for key := range b.initial {
		s := rowOf[stock](b, key, rows[key])
		stocks[key] = s
		r.left[key] = s.Left
		portions += len(s.Taken)
	}
	wants := map[string]string{paid: sold, expired: cancelled, refused: outOf}
	for i := range orders {
		key := orderKey(i)
		o := rowOf[order](b, key, rows[key])
		goods := stocks[o.SKU]
		want, ended := wants[o.State]
		p := goods.Taken[key]
		switch {
		case !ended:
			b.wrong("%s has not ended: it is %q, and was to expire %v ago", key, o.State, time.Since(o.Expires).Round(time.Millisecond))
			continue
		case p == nil || p.State != want || p.Quantity != o.Quantity:
			b.wrong("%s is %s, and has %+v of %s", key, o.State, p, o.SKU)
		}
		switch o.State {
		case paid:
			r.paid++
			r.sold[o.SKU] += o.Quantity
		case expired:
			r.expired++
		case refused:
			r.refused++
		}
		if o.Late {
			r.late++
		}
	}
	if portions != orders {
		b.wrong("%d portions of %d orders", portions, orders)
	}
	for key, initial := range b.initial {
		if r.left[key] != initial-r.sold[key] {
			b.wrong("%s: %d left, want %d less the %d of paid orders", key, r.left[key], initial, r.sold[key])
		}
	}
	r.faults = b.faults
	return r
}
