// Command reservation-queue is an example of a work queue: clerks in several processes look for open items, reserve one, work on it, and
// close it. Each item is a key. While a clerk holds it, no other clerk and no handler of the key's events works on it. If the clerk's
// process dies, another clerk gets the item within two seconds.
//
//	go run ./cmd/router dev -- go run ./examples/reservation-queue
//
// starts three clerks. They share a folder, named by QUEUE_DIR, which stands for your database.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/ringfence/router/client"
)

const items = 20

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(ctx, log, cmp.Or(os.Getenv("QUEUE_DIR"), filepath.Join(os.TempDir(), "ringfence-queue"))); err != nil {
		log.Error("reservation-queue", "error", err)
		os.Exit(1)
	}
}

// run works on items until ctx ends. A router whose application takes no events owns no key, so this process handles events too.
func run(ctx context.Context, log *slog.Logger, dir string) error {
	queue, err := openQueue(dir)
	if err != nil {
		return err
	}
	lane, err := client.Dial("")
	if err != nil {
		return err
	}
	defer func() { _ = lane.Close() }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var clerk sync.WaitGroup
	defer clerk.Wait()
	clerk.Go(func() { work(ctx, log, lane, queue) })
	return client.Run(ctx, "", func(context.Context, *client.Event) error { return nil }, client.WithLogger(log))
}

// work is a clerk.
func work(ctx context.Context, log *slog.Logger, lane *client.Lane, q *queue) {
	said := false
	for ctx.Err() == nil {
		open := 0
		for i := range items {
			item := fmt.Sprintf("item-%d", i)
			if q.isClosed(item) { // only to save the reservation: it is looked at again below
				continue
			}
			open++
			if err := handle(ctx, log, lane, q, item); err != nil && ctx.Err() == nil {
				log.Warn("not closed", "item", item, "error", err)
			}
		}
		if open == 0 && !said {
			said = true
			log.Info("all items are closed: without the folder the queue begins again", "folder", q.dir.Name())
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// handle reserves an item and closes it, unless another clerk has it, or had it before.
func handle(ctx context.Context, log *slog.Logger, lane *client.Lane, q *queue, item string) error {
	r, err := lane.Reserve(ctx, item)
	if errors.Is(err, client.ErrNotReserved) {
		return nil // next time
	}
	if err != nil {
		return err
	}
	defer r.Release()
	if q.isClosed(item) {
		return nil
	}
	q.note(item, "begun", r.Fence())
	held := r.Context()
	select { // the work: it ends when the reservation does
	case <-time.After(50 * time.Millisecond):
	case <-held.Done():
	}
	if held.Err() != nil { // it reads the clock: both may have passed in a process that was paused
		return context.Cause(held) //nolint:contextcheck // it is the context of the reservation
	}
	if err := q.close(item, r.Fence()); err != nil {
		return err
	}
	log.Info("closed", "item", item, "fence", r.Fence().String())
	return nil
}
