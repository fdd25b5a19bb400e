// Command saga is an example of a transaction over several keys: an order reserves stock, waits for its payment, and then takes the stock
// or gives it back.
//
//	order-7  ─ placed ─▶ reserving ──▶ open ─ paid ───▶ paying ───▶ paid
//	                         │          └──── expire ──▶ expiring ─▶ expired
//	                         └─▶ refused
//	sku-3                 reserve                        commit or cancel
//
// Order and stock are keys, so one handler at a time works on each, in whichever process. The order calls the handlers of the stock, with an id
// for each step, so that a repeated step changes nothing. The state of the order is in its row, written with the fence of the handler. A timer of
// the order's key fires if the payment has not come in time.
//
//	go run ./examples/saga
//
// starts three routers and three applications, kills one of them again and again while orders come, and then counts: it ends with an error if stock and
// orders do not add up. order.go and stock.go are the application, and the rest plays customers and kills.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/examples/killed"
)

// options of a run.
type options struct {
	orders    int
	expire    time.Duration
	killEvery time.Duration
	most      time.Duration
	seed      uint64
}

func (o *options) flags(flags *flag.FlagSet) {
	flags.IntVar(&o.orders, "orders", 60, "how many orders are placed")
	flags.DurationVar(&o.expire, "expire", 4*time.Second, "how long an order waits for its payment, fifteen minutes in real life")
	flags.DurationVar(&o.killEvery, "kill-every", 1500*time.Millisecond, "how often a router or an application is killed; 0: never")
	flags.DurationVar(&o.most, "most", 3*time.Minute, "how long all may take")
	flags.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "what is ordered and killed when")
}

func main() {
	var o options
	killed.Program{Name: "saga", Flags: o.flags, Drive: o.drive, Serve: serve}.Main()
}

// serve is the application: serve ENDPOINT DATABASE TIME.
func serve(ctx context.Context, arguments []string) error {
	if len(arguments) != 3 {
		return fmt.Errorf("serve takes an endpoint, a database and a time, and was given %q", arguments)
	}
	expire, err := time.ParseDuration(arguments[2])
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	lane, err := client.Dial(arguments[0], client.WithLogger(log))
	if err != nil {
		return err
	}
	defer func() { _ = lane.Close() }()
	ctx, stop := killed.Follow(ctx)
	defer stop()
	s := &shop{db: killed.Database(arguments[1]), lane: lane, expire: expire}
	return client.Run(ctx, arguments[0], s.onEvent, client.WithLogger(log),
		client.WithCall("reserve", s.stockCall(reserve)), client.WithCall("commit", s.stockCall(commit)), client.WithCall("cancel", s.stockCall(cancel)),
		client.WithCall("look", s.stockCall(look)))
}
