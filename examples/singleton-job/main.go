// Command singleton-job is an example of scheduled jobs that run once in the whole group: three processes declare the same three jobs in their
// code, and each run of a job happens in one of them, whichever is alive.
//
//	go run ./examples/singleton-job
//
// starts three routers with an application beside each, prints every run, and kills the application of a run now and then, or its router, or both: another one takes over.
// Once it kills all of them, so that runs are missed. It ends with an error if two runs of a job were under way at once, if a time did not run, or if one ran twice without a kill
// in between. job.go is the application, and the rest kills and checks.
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
	long      time.Duration
	killEvery int
	outage    time.Duration
}

func (o *options) flags(flags *flag.FlagSet) {
	flags.DurationVar(&o.long, "for", 90*time.Second, "how long jobs run")
	flags.IntVar(&o.killEvery, "kill-every", 3, "the process of every so many runs is killed in the middle; 0: never")
	flags.DurationVar(&o.outage, "outage", 22*time.Second, "how long all processes are dead, once; 0: never")
}

func main() {
	var o options
	killed.Program{Name: "singleton-job", Flags: o.flags, Drive: o.drive, Serve: serve}.Main()
}

// serve is the application: serve ENDPOINT DATABASE.
func serve(ctx context.Context, arguments []string) error {
	if len(arguments) != 2 {
		return fmt.Errorf("serve takes an endpoint and a database, and was given %q", arguments)
	}
	ctx, stop := killed.Follow(ctx)
	defer stop()
	w := &worker{db: killed.Database(arguments[1]), endpoint: arguments[0]}
	options := []client.Option{client.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))}
	for _, name := range jobs {
		options = append(options, client.WithSchedule(name, client.Every(every), w.run))
	}
	return client.Run(ctx, arguments[0], func(context.Context, *client.Event) error { return nil }, options...)
}
