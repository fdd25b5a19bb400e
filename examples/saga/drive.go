package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/examples/killed"
)

// run of customers and kills.
type drill struct {
	options

	rows  *killed.Rows
	books *books
	lanes []*client.Lane
	group *killed.Group
	begun time.Time

	mu    sync.Mutex // guards the fields below
	rng   *rand.Rand
	out   io.Writer
	kills int
}

const (
	members    = 3
	goods      = 3
	placeEvery = 300 * time.Millisecond
	lookEvery  = 20 * time.Millisecond
)

// drive plays customers, kills processes meanwhile, and counts.
func (o *options) drive(ctx context.Context, shared killed.Options, out io.Writer) (err error) {
	if o.orders < 1 || o.expire < 100*time.Millisecond {
		return fmt.Errorf("%d orders of %v: want one at least, and 100ms", o.orders, o.expire)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.most, fmt.Errorf("it has taken longer than %v", o.most))
	defer cancel()
	d := &drill{options: *o, books: newBooks(), out: out, begun: time.Now(), rng: rand.New(rand.NewPCG(o.seed, 0))} //nolint:gosec // what happens when
	d.rows = &killed.Rows{Wrote: d.books.wrote}
	for i := range goods {
		d.books.initial[sku(i)] = max(1, o.orders/2)
		row, _ := json.Marshal(stock{Left: max(1, o.orders/2)}) // a struct of ours: it cannot fail
		d.rows.Set(sku(i), row)
	}
	address, stopServing, err := d.rows.Serve(ctx)
	if err != nil {
		return err
	}
	defer stopServing()
	d.say("a group of %d routers, each with an application; seed %d", members, o.seed)
	d.group, err = killed.Start(ctx, killed.Config{
		Options: shared, Members: members, Application: func(endpoint string) []string { return []string{"serve", endpoint, address, o.expire.String()} },
	})
	if err != nil {
		return err
	}
	defer d.group.Stop()
	for _, endpoint := range d.group.Endpoints() {
		lane, err := client.Dial(endpoint)
		if err != nil {
			return err
		}
		defer func() { _ = lane.Close() }()
		d.lanes = append(d.lanes, lane)
	}
	return d.play(ctx)
}

// play plays all customers, and counts when every order has ended.
func (d *drill) play(ctx context.Context) error {
	d.say("%d orders come, some are paid, and a process is killed every %v", d.orders, d.killEvery)
	killing, stopKilling := context.WithCancel(ctx)
	defer stopKilling()
	var customers, killer sync.WaitGroup
	if d.killEvery > 0 {
		killer.Go(func() { d.kill(killing) })
	}
	for i := range d.orders {
		customers.Go(func() { d.customer(ctx, i) })
	}
	customers.Wait()
	stopKilling()
	killer.Wait()
	d.say("no more kills; what is open ends now")
	for ctx.Err() == nil && !d.ended() {
		killed.Pause(ctx, lookEvery)
	}
	select {
	case err := <-d.group.Failed():
		return err
	default:
	}
	r := d.books.sum(d.rows.All(), d.orders)
	d.say("%d orders: %d paid, %d expired, %d refused for want of stock; %d were paid too late, and that money goes back", d.orders, r.paid, r.expired, r.refused, r.late)
	for i := range goods {
		d.say("%s: %d = %d left + %d sold", sku(i), d.books.initial[sku(i)], r.left[sku(i)], r.sold[sku(i)])
	}
	d.say("%d kills; %d statements with an old fence were refused; the last order to expire did so %v after its time", d.kills, d.rows.Refused(), r.latest.Round(time.Millisecond))
	if len(r.faults) > 0 {
		return fmt.Errorf("it does not add up:\n%w", errors.Join(r.faults...))
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	d.say("it adds up")
	return nil
}

func sku(i int) string { return fmt.Sprintf("sku-%d", i+1) }

func orderKey(i int) string { return fmt.Sprintf("order-%d", i+1) }

// say prints a line.
func (d *drill) say(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, _ = fmt.Fprintf(d.out, "%5.1fs  %s\n", time.Since(d.begun).Seconds(), fmt.Sprintf(format, args...))
}

func (d *drill) random(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// customer places an order, and pays it: in time, at the last moment, or not at all.
func (d *drill) customer(ctx context.Context, i int) {
	killed.Pause(ctx, time.Duration(i)*placeEvery)
	key := orderKey(i)
	payload, _ := json.Marshal(placed{SKU: sku(i % goods), Quantity: 1 + d.random(3)})
	d.send(ctx, key, "placed", payload)
	var o order
	for ctx.Err() == nil && (o.State == "" || o.State == reserving) {
		killed.Pause(ctx, lookEvery)
		o = d.order(key)
	}
	until := time.Until(o.Expires)
	switch kind := d.random(10); {
	case o.State != open:
		return
	case kind < 5: // in time
		killed.Pause(ctx, until*time.Duration(d.random(80))/100)
		d.send(ctx, key, "paid", nil)
	case kind < 7: // at the last moment, or a little later
		killed.Pause(ctx, until+time.Duration(d.random(600)-400)*time.Millisecond)
		d.send(ctx, key, "paid", nil)
	default:
		killed.Pause(ctx, until)
	}
}

func (d *drill) order(key string) (o order) {
	if row := d.rows.Get(key); row != nil {
		_ = json.Unmarshal(row, &o) // the application wrote it
	}
	return o
}

// send publishes an event, through any router, until the broker has it. Its id makes that one event.
func (d *drill) send(ctx context.Context, key, name string, payload []byte) {
	for ctx.Err() == nil {
		trying, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := d.lanes[d.random(len(d.lanes))].Send(trying, key, payload, client.WithSendName(name), client.WithSendID(key+"/"+name))
		cancel()
		if err == nil {
			return
		}
		killed.Pause(ctx, 50*time.Millisecond)
	}
}

// kill kills one process after the other, and sometimes a router with its application. Each is started again within a second.
func (d *drill) kill(ctx context.Context) {
	var restarts sync.WaitGroup
	defer restarts.Wait()
	for killed.Pause(ctx, d.killEvery); ctx.Err() == nil; killed.Pause(ctx, d.killEvery) {
		names := d.group.Names()
		one := d.random(len(names))
		victims := names[one : one+1]
		if d.random(4) == 0 {
			victims = []string{names[one%members], names[one%members+members]}
		}
		for _, name := range victims {
			if !d.group.Kill(name) {
				continue // it is being started again
			}
			d.mu.Lock()
			d.kills++
			d.mu.Unlock()
			d.say("%s is killed", name)
			after := time.Duration(d.random(1000)) * time.Millisecond
			restarts.Go(func() {
				killed.Pause(ctx, after)
				if err := d.group.Begin(name); err != nil {
					d.say("%v", err)
				}
			})
		}
	}
}

// ended reports whether all orders have ended.
func (d *drill) ended() bool {
	for i := range d.orders {
		if !slices.Contains(ends, d.order(orderKey(i)).State) {
			return false
		}
	}
	return true
}
