package main

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
)

// redlockConsumer is what docs/migration-from-redlock.md leaves to its readers.
type redlockConsumer struct {
	locks *redsync.Redsync
	store interface {
		Apply(ctx context.Context, userID string, data []byte) error
	}
	ack, nack func(msg pageMessage) error
}

type pageMessage interface{ Payload() []byte }

// The Go of that page which is not about our packages, word for word: client.TestPagesCompile compares the two.
var _ = func(ctx context.Context, c *redlockConsumer, userID string, msg pageMessage) error {
	locks, store, ack, nack := c.locks, c.store, c.ack, c.nack
	lock := locks.NewMutex("order:"+userID, redsync.WithExpiry(8*time.Second))
	if err := lock.LockContext(ctx); err != nil {
		return nack(msg) // another consumer holds the lock: try again later, and again, and again
	}
	defer lock.Unlock() //nolint:errcheck // the page is about what is gone
	if err := store.Apply(ctx, userID, msg.Payload()); err != nil {
		return nack(msg)
	}
	return ack(msg)
}
