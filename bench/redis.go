package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/ringfence/router/internal/testing/eventually"
)

// errNoRedis contains the remedy.
var errNoRedis = errors.New("mode redlock needs redis-server, which is not on the PATH: install it (Debian: apt-get install redis-server), or leave redlock out of --modes")

func findRedis() (string, error) {
	name, err := exec.LookPath("redis-server")
	if err != nil {
		return "", errNoRedis
	}
	return name, nil
}

// redisStartMax bounds the start of a Redis.
const redisStartMax = 10 * time.Second

// startRedis starts a Redis on a free loopback port, with nothing on disk: locks are
// not worth a write, and it is the fastest that Redis can be.
func startRedis(ctx context.Context, c *cluster) (address string, err error) {
	name, err := findRedis()
	if err != nil {
		return "", err
	}
	free, err := freeAddresses(1)
	if err != nil {
		return "", err
	}
	address = free[0]
	_, port, _ := net.SplitHostPort(address) // it came from the listener
	data := filepath.Join(c.dir, "redis")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", err
	}
	if _, err := c.launch(ctx, roleRedis, name, "--bind", "127.0.0.1", "--port", port, "--dir", data, "--save", "", "--appendonly", "no"); err != nil {
		return "", err
	}
	client := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = client.Close() }()                  // it only asked
	ctx, cancel := context.WithTimeout(ctx, redisStartMax) // of a Ping that hangs, too
	defer cancel()
	err = eventually.Ask(ctx, redisStartMax, "redis-server answers", func() error { return client.Ping(ctx).Err() })
	if err != nil {
		return "", fmt.Errorf("redis-server at %s: %w", address, err)
	}
	return address, nil
}

// freeAddresses returns loopback addresses with ports that nobody listens on.
func freeAddresses(n int) (free []string, err error) {
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait for anybody
		if err != nil {
			return nil, err
		}
		defer func() { _ = listener.Close() }() // at the end, so that no two are the same
		free = append(free, listener.Addr().String())
	}
	return free, nil
}

// Settings that a team that locks with Redis would choose for handlers of milliseconds. The
// retries outlast the TTL, so that an event is returned to Pulsar only when its key's holder is
// alive and takes longer than expected.
const (
	lockTTL        = 8 * time.Second // redsync's default
	lockDelayFirst = time.Millisecond
	lockDelayMax   = 64 * time.Millisecond
	lockTries      = 250 // about 12 s

	// lockHandlers bounds the concurrent handlers that do not wait: enough to hide the round trip
	// to Redis.
	lockHandlers = 64
)

// locks guard keys by a Redis.
type locks struct {
	client *redis.Client
	sync   *redsync.Redsync
}

func newLocks(address string, handlers int) *locks {
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: handlers})
	return &locks{client, redsync.New(goredis.NewPool(client))}
}

func (l *locks) of(key string) *redsync.Mutex {
	return l.sync.NewMutex("lock:"+key, redsync.WithExpiry(lockTTL), redsync.WithTries(lockTries), redsync.WithRetryDelayFunc(lockDelay))
}

func (l *locks) close() { _ = l.client.Close() } // the process ends

// lockDelay doubles from try to try. Its jitter comes from the try's own instant, so that
// waiters for one lock do not retry together.
func lockDelay(tries int) time.Duration {
	d := lockDelayMax
	if tries < 7 {
		d = min(d, lockDelayFirst<<tries)
	}
	return d/2 + time.Duration(time.Now().UnixNano())%(d/2+1)
}

// redisVersion is for the report; empty when there is no Redis.
func redisVersion(ctx context.Context) string {
	name, err := findRedis()
	if err != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, name, "--version").Output()
	if err != nil {
		return ""
	}
	return firstField(string(out), "v=")
}
