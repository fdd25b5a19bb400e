package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
)

// lockWait bounds the wait for one key in all modes. A wait that ends by it ends the run.
const lockWait = 30 * time.Second

// The retries of a taken lock in Redis, as redsync has them by default.
const (
	retryLeast = 50 * time.Millisecond
	retryMost  = 250 * time.Millisecond
)

// A locker gives one holder a key for a while. It is for one goroutine.
type locker interface {
	// lock waits until the holder has the key.
	lock(ctx context.Context, key string) (held, error)
}

// held is a key that a holder has.
type held struct {
	fence   client.Fence // zero: the mode has none
	release func(ctx context.Context) error
}

// newLockers returns those of n holders, and how to close them.
func newLockers(ctx context.Context, mode string, endpoints []string, n int) (all []locker, closeAll func(), err error) {
	switch mode {
	case modeReserve:
		return newReservers(endpoints, n, 0)
	case modeCovered:
		return newCoverers(ctx, endpoints, n)
	case modeRedis, modeRedsync:
		c := redis.NewClient(&redis.Options{Addr: endpoints[0], PoolSize: n})
		locks := redsync.New(goredis.NewPool(c))
		for range n {
			if mode == modeRedis {
				all = append(all, &redisLocker{client: c, token: rand.Text()})
			} else {
				all = append(all, redsyncLocker{locks})
			}
		}
		return all, func() { _ = c.Close() }, nil // the process ends
	case modeEtcd:
		return newEtcdLockers(ctx, endpoints[0], n)
	}
	return nil, nil, fmt.Errorf("mode %q is not one of %s", mode, namesOnly(workloadReservations))
}

// reserver reserves keys through a router.
type reserver struct {
	lane *client.Lane
	ttl  time.Duration // 0: none
}

// newReservers makes one connection to each router. The holders share them in turn, as those of one process would.
func newReservers(endpoints []string, n int, ttl time.Duration) (all []locker, closeAll func(), err error) {
	lanes := make([]*client.Lane, len(endpoints))
	for i, endpoint := range endpoints {
		if lanes[i], err = client.Dial(endpoint); err != nil {
			return nil, nil, err
		}
	}
	for i := range n {
		all = append(all, reserver{lanes[i%len(lanes)], ttl})
	}
	return all, func() {
		for _, lane := range lanes {
			_ = lane.Close() // everything is released
		}
	}, nil
}

// newCoverers is newReservers for reservations with a ttl. They are refused until the group has written the version of the control log that they need.
func newCoverers(ctx context.Context, endpoints []string, n int) (all []locker, closeAll func(), err error) {
	all, closeAll, err = newReservers(endpoints, n, coveredTTL)
	if err != nil {
		return nil, nil, err
	}
	for _, one := range all[:min(n, len(endpoints))] { // each router
		pauses := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
		for began := time.Now(); ; {
			got, err := one.lock(ctx, "the first one")
			if err == nil {
				err = got.release(ctx)
			}
			if err == nil {
				break
			}
			if failure, ok := errors.AsType[*client.CallError](err); !ok || failure.Code != client.CodeNotCovered || time.Since(began) > lockWait || backoff.Sleep(ctx, pauses.Next()) != nil {
				closeAll()
				return nil, nil, err
			}
		}
	}
	return all, closeAll, nil
}

// coveredTTL is that of the reservations of the mode covered.
const coveredTTL = 30 * time.Second

func (r reserver) lock(ctx context.Context, key string) (held, error) {
	options := []client.ReserveOption{client.WithWait(lockWait)}
	if r.ttl > 0 {
		options = append(options, client.WithTTL(r.ttl))
	}
	got, err := r.lane.Reserve(ctx, key, options...)
	if err != nil {
		return held{}, err
	}
	return held{fence: got.Fence(), release: func(context.Context) error {
		if lost := context.Cause(got.Context()); lost != nil { //nolint:contextcheck // the reservation's own says whether it is held
			return lost
		}
		got.Release()
		return nil
	}}, nil
}

// redisLocker takes a lock by SET NX PX and releases it by DEL: two round trips, and the least that a team can do. The lock is deleted
// without a look at whose it is.
type redisLocker struct {
	client *redis.Client
	token  string
}

var errTaken = errors.New("the key was taken for too long")

func (l *redisLocker) lock(ctx context.Context, key string) (held, error) {
	key = "lock:" + key
	for began := time.Now(); time.Since(began) < lockWait; {
		set, err := l.client.SetNX(ctx, key, l.token, lockTTL).Result()
		if err != nil {
			return held{}, err
		}
		if set {
			return held{release: func(ctx context.Context) error { return l.client.Del(ctx, key).Err() }}, nil
		}
		if err := backoff.Sleep(ctx, retryDelay(0)); err != nil {
			return held{}, err
		}
	}
	return held{}, errTaken
}

// retryDelay has jitter, as lockDelay.
func retryDelay(int) time.Duration {
	return retryLeast + time.Duration(time.Now().UnixNano())%(retryMost-retryLeast)
}

// redsyncLocker takes a lock by redsync, with its defaults but for the number of tries.
type redsyncLocker struct{ locks *redsync.Redsync }

func (l redsyncLocker) lock(ctx context.Context, key string) (held, error) {
	m := l.locks.NewMutex("lock:"+key, redsync.WithExpiry(lockTTL), redsync.WithTries(int(lockWait/retryLeast)), redsync.WithRetryDelayFunc(retryDelay))
	if err := m.LockContext(ctx); err != nil {
		return held{}, err
	}
	return held{release: func(ctx context.Context) error {
		ok, err := m.UnlockContext(ctx)
		if err == nil && !ok {
			err = errors.New("the lock was not held any more")
		}
		return err
	}}, nil
}

// etcdLocker takes etcd's own mutex. Each has a session, since a session is the identity of a holder.
type etcdLocker struct{ session *concurrency.Session }

func newEtcdLockers(ctx context.Context, endpoint string, n int) (all []locker, closeAll func(), err error) {
	var clients []*clientv3.Client
	closeAll = func() {
		for _, c := range clients {
			_ = c.Close() // the process ends
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	const perConnection = 32 // holders
	for i := range n {
		if i%perConnection == 0 {
			c, err := etcdClient(endpoint)
			if err != nil {
				return nil, nil, err
			}
			clients = append(clients, c)
		}
		s, err := concurrency.NewSession(clients[len(clients)-1], concurrency.WithContext(ctx))
		if err != nil {
			return nil, nil, fmt.Errorf("a session of etcd: %w", err)
		}
		all = append(all, etcdLocker{s})
	}
	return all, closeAll, nil
}

func (l etcdLocker) lock(ctx context.Context, key string) (held, error) {
	m := concurrency.NewMutex(l.session, "lock/"+strings.ReplaceAll(key, "/", "_"))
	waiting, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if err := m.Lock(waiting); err != nil {
		return held{}, err
	}
	return held{release: m.Unlock}, nil
}
