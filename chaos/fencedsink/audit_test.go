//go:build unix

package fencedsink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/audit/collect"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/testing/eventually"
)

// lockExpiry is how long a lock of the test lasts.
const lockExpiry = 60 * time.Millisecond

// lockOf is the usual lock in Redis: SET NX with an expiry, and a release that compares the holder.
type lockOf struct {
	db     redis.UniversalClient
	holder string
}

func (l lockOf) acquire(ctx context.Context, key string) error {
	for {
		ok, err := l.db.SetNX(ctx, key, l.holder, lockExpiry).Result()
		if ok || err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// release reports whether the lock was still held.
func (l lockOf) release(ctx context.Context, key string) (held bool, err error) {
	const compareAndDelete = `if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0`
	n, err := l.db.Eval(ctx, compareAndDelete, []string{key}, l.holder).Int()
	return n == 1, err
}

// TestAuditFindsTheOverlapsOfARedisLock: a holder of a lock is paused past the lock's expiry, as by a GC pause, while another process takes the lock.
// client.Audit wraps both handlers: all of these overlaps are found, and none among the handlers whose holder was not paused.
func TestAuditFindsTheOverlapsOfARedisLock(t *testing.T) {
	db := redisServer(t).client
	collector := collect.New(collect.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler), clock.Now)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	(&exchange.Receiver{Take: collector.Take}).Register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })

	const paused, others = 20, 200
	processes := make([]*client.Audit, 2)
	locks := make([]lockOf, len(processes))
	for i := range processes {
		name := fmt.Sprintf("process-%d", i)
		if processes[i], err = client.NewAudit(client.AuditOptions{Collector: listener.Addr().String(), Name: name}); err != nil {
			t.Fatal(err)
		}
		locks[i] = lockOf{db, name}
	}
	// handle is one handling under the lock; work returns when its holder continues.
	handle := func(process int, key string, work func()) error {
		begun := time.Now()
		if err := locks[process].acquire(t.Context(), key); err != nil {
			return err
		}
		h := processes[process].Begin(key)
		h.Waited(time.Since(begun))
		work()
		h.End()
		held, err := locks[process].release(t.Context(), key)
		if !held {
			h.Expired()
		}
		return err
	}
	var workers sync.WaitGroup
	failures := make(chan error, 2*paused+2)
	for i := range paused {
		key := fmt.Sprintf("paused-%d", i)
		workers.Go(func() {
			holds, overtaken := make(chan struct{}), make(chan struct{})
			var next sync.WaitGroup
			next.Go(func() {
				<-holds
				failures <- handle(1, key, func() {
					close(overtaken)
					time.Sleep(10 * time.Millisecond)
				})
			})
			failures <- handle(0, key, func() {
				close(holds)
				<-overtaken // the pause: until another process has the lock, after its expiry
				time.Sleep(5 * time.Millisecond)
			})
			next.Wait()
		})
	}
	for process := range processes { // both handle the same keys, within the expiry
		workers.Go(func() {
			for i := range others {
				key := fmt.Sprintf("kept-%d", i%5)
				if err := handle(process, key, func() {}); err != nil {
					failures <- err
					return
				}
			}
			failures <- nil
		})
	}
	workers.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range processes {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually.NoError(t, eventually.Most, "all handlings are reported", func() error {
		if r := collector.Report(); r.Handlings != 2*paused+2*others {
			return fmt.Errorf("%d are", r.Handlings)
		}
		return nil
	})
	r := collector.Report()
	expired := int(r.LocksExpired) // a loaded machine may pause a holder by itself: then its lock has expired, too
	if int(r.Overlaps) < paused || int(r.Overlaps) > expired || len(r.Undecided) != 0 {
		t.Errorf("%d overlaps, %d locks expired, undecided %v; want %d overlaps", r.Overlaps, expired, r.Undecided, paused)
	}
	if expired == paused && int(r.Overlaps) != paused {
		t.Errorf("%d overlaps, want %d", r.Overlaps, paused)
	}
	if r.LockWaits != 2*paused+2*others || r.LockWaitMaxSeconds < lockExpiry.Seconds()/2 || r.Processes != 2 {
		t.Errorf("report %+v", r)
	}
	var text strings.Builder
	if err := errors.Join(r.Text(&text), r.JSON(&text)); err != nil || !strings.Contains(text.String(), "overlaps") {
		t.Errorf("text %q, %v", text.String(), err)
	}
	t.Logf("%d of %d overlaps found in %d handlings", r.Overlaps, paused, r.Handlings)
}
