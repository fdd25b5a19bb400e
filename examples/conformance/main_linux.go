// Command conformance is the Go SDK's worker for `router conformance`: its handler obeys the
// instruction in the payload, and writes a line when it starts and one when it ends.
//
//	go build -o worker ./examples/conformance && router conformance -- ./worker
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/router/client"
)

type instruction struct {
	ID    uint64 `json:"id"`
	Do    string `json:"do"`
	Ms    int    `json:"ms"`
	Bytes int    `json:"bytes"`
	Then  string `json:"then"`
}

// inFlight is the largest window of the protocol.
const inFlight = 100_000

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	err := client.Run(ctx, "", client.JSON(handle), client.WithMaxInFlight(inFlight), client.WithLogger(log),
		client.WithCall("echo", instructed(echo)), client.WithCall("obey", instructed(obey)),
		client.WithSchedule("conformance", client.Every(time.Hour), fire))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func handle(ctx context.Context, e *client.Event, in instruction) error {
	report("start", e.Key, in)
	defer report("end", e.Key, in)
	wait := time.Duration(in.Ms) * time.Millisecond
	if e.Timer != nil {
		fmt.Printf("timer %d %d %s\n", in.ID, e.Timer.Due.UnixMilli(), e.Timer.Name) //nolint:forbidigo // in one call, as in report
	}
	if in.Do == "state" {
		if err := visit(ctx, in); err != nil {
			return err
		}
		in.Do = cmp.Or(in.Then, "done")
	}
	switch in.Do {
	case "done":
		return nil
	case "fence":
		fmt.Printf("fence %d %v\n", in.ID, e.Fence) //nolint:forbidigo // in one call, as in report
		return nil
	case "after":
		setTimers(e, wait)
		return nil
	case "after_fail":
		setTimers(e, wait)
		return errors.New("told to fail")
	case "fail":
		return errors.New("told to fail" + strings.Repeat(" é", 500)) // longer than any reason may be
	case "reject":
		return client.Reject(errors.New("told to reject"))
	case "retry_after":
		return client.RetryAfter(errors.New("told to wait"), wait)
	case "sleep":
		return sleep(ctx, wait)
	case "progress":
		return e.Progress(ctx)
	case "ignore_cancel":
		time.Sleep(wait)
		return nil
	case "crash":
		panic("told to crash") //nolint:forbidigo // the rules are about panics too
	}
	return fmt.Errorf("no such instruction: %q", in.Do)
}

// visitors is the state of a key.
type visitors struct{ ids []uint64 }

// visit adds the id of an instruction to the state of its key, and reports the first one there.
func visit(ctx context.Context, in instruction) error {
	v, err := client.State(ctx, func(context.Context) (*visitors, error) {
		fmt.Printf("loaded %d\n", in.ID) //nolint:forbidigo // in one call, as in report
		return new(visitors), nil
	})
	if err != nil {
		return err
	}
	v.ids = append(v.ids, in.ID)
	fmt.Printf("state %d %d\n", in.ID, v.ids[0]) //nolint:forbidigo // in one call, as in report
	return nil
}

func sleep(ctx context.Context, wait time.Duration) error {
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fire is the handler of the schedule. The number of missed times says what it does.
func fire(_ context.Context, f *client.Firing) error {
	fmt.Printf("firing %d %d %d %v\n", f.Time.UnixMilli(), f.Missed, f.Attempt, f.Fence) //nolint:forbidigo // in one call, as in report
	switch f.Missed {
	case 1:
		return errors.New("told to fail" + strings.Repeat(" é", 500))
	case 2:
		setTimers(f, time.Minute)
	case 3:
		return client.Reject(errors.New("told to reject"))
	}
	return nil
}

// setTimers does it for an event, a call or a firing.
func setTimers(of interface {
	After(d time.Duration, name string, payload []byte)
}, wait time.Duration,
) {
	of.After(wait, "first", []byte("1"))
	of.After(0, "second", []byte("2"))
}

// instructed makes a handler of calls that decodes the payload, and reports as handle does.
func instructed(handler func(ctx context.Context, c *client.Call, in instruction) ([]byte, error)) client.CallHandler {
	return func(ctx context.Context, c *client.Call) ([]byte, error) {
		var in instruction
		if err := json.Unmarshal(c.Payload, &in); err != nil {
			return nil, err
		}
		report("start", c.Key, in)
		defer report("end", c.Key, in)
		return handler(ctx, c, in)
	}
}

func echo(_ context.Context, c *client.Call, _ instruction) ([]byte, error) { return c.Payload, nil }

func obey(ctx context.Context, c *client.Call, in instruction) ([]byte, error) {
	switch in.Do {
	case "after":
		setTimers(c, time.Duration(in.Ms)*time.Millisecond)
		return nil, nil
	case "done":
		return nil, nil
	case "reply":
		return bytes.Repeat([]byte{'x'}, in.Bytes), nil
	case "fail":
		return nil, client.FailCall("told", errors.New("told to fail"+strings.Repeat(" é", 500)))
	case "sleep":
		return nil, sleep(ctx, time.Duration(in.Ms)*time.Millisecond)
	case "crash":
		panic("told to crash") //nolint:forbidigo // the rules are about panics too
	}
	return nil, fmt.Errorf("no such instruction: %q", in.Do)
}

func report(what, key string, in instruction) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	fmt.Printf("%s %d %s %d\n", what, in.ID, key, now.Nano()) //nolint:forbidigo // in one call, so that lines of handlers do not mix
}
