package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
)

// callerCommand makes this binary one process that makes calls.
const callerCommand = "caller"

const (
	// callersMax bounds --callers: a router refuses more than 10,000 calls of its callers at once.
	callersMax = 10_000
	// openCallsMax bounds the open calls of a caller at a fixed rate. A caller that is so far behind waits, which the time from when a
	// call was due shows.
	openCallsMax = 2_000
	// warmUpStamp is the instant in the payloads of calls that do not count.
	warmUpStamp clock.Instant = 0
)

// caller makes the calls of one node. Its methods are safe for concurrent use.
type caller struct {
	invoke        func(ctx context.Context, key string, payload []byte) ([]byte, error)
	node, size    int
	begin         clock.Instant // of the warm-up
	warmUp, count time.Duration

	mu   sync.Mutex // guards the fields below
	pick func() int
	next int // number of the next call
	file callsFile
	call *hdrhistogram.Histogram // from the call to its reply
	due  *hdrhistogram.Histogram // from when it was due
}

// callsFile is what a caller knows of its calls at the end, without those that do not count.
type callsFile struct {
	Replies   tally             `json:"replies"` // those with the right checksum
	Handled   tally             `json:"handled"` // of setnx: by this process itself
	Calls     uint64            `json:"calls"`
	Elsewhere uint64            `json:"elsewhere"` // replies of another node's application
	Failed    map[string]uint64 `json:"failed"`    // calls without a right reply, by the reason
	Call      []byte            `json:"call"`
	Due       []byte            `json:"due"`
}

func runCaller(args []string) error {
	c := &caller{call: newHistogram(), due: newHistogram(), file: callsFile{Failed: map[string]uint64{}}}
	f := flag.NewFlagSet(callerCommand, flag.ContinueOnError)
	mode := f.String("mode", "", "one of "+namesOnly(workloadCalls))
	endpoint := f.String("endpoint", "", "what to call: a router, an application, or the Redis of the locks")
	keys := f.Int("keys", 1, "distinct keys")
	distribution := f.String("distribution", distributionUniform, "of the calls over the keys")
	f.IntVar(&c.size, "size", 256, "payload bytes")
	f.IntVar(&c.node, "node", 0, "number of this node")
	rate := f.Float64("rate", 0, "calls a second; 0: as many as are answered")
	callers := f.Int("callers", 1, "calls in flight, with no rate")
	begin := f.Int64("begin", 0, "when to begin, on the clock of leases")
	f.DurationVar(&c.warmUp, "warm-up", 0, "how long calls do not count")
	f.DurationVar(&c.count, "measure", time.Second, "how long they count")
	out := f.String("out", "", "file for the result")
	if err := f.Parse(args); err != nil {
		return err
	}
	c.begin = clock.Instant(*begin)
	c.pick = keyPickerOf(*distribution, *keys, c.node+1)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	here := callee{node: c.node}
	if *mode == modeSetNX {
		locks := newSetNX(*endpoint, *callers, &here)
		defer locks.close()
		c.invoke = locks.invoke
	} else {
		lane, err := client.Dial(*endpoint)
		if err != nil {
			return err
		}
		defer func() { _ = lane.Close() }() // every call is over
		c.invoke = func(ctx context.Context, key string, payload []byte) ([]byte, error) {
			return lane.Invoke(ctx, key, callMethod, payload)
		}
	}
	if *rate > 0 {
		c.paced(ctx, *rate)
	} else {
		c.saturate(ctx, *callers)
	}
	c.file.Handled = here.tally()
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.write(*out)
}

func (c *caller) write(path string) error {
	c.file.Call, c.file.Due = encoded(c.call), encoded(c.due)
	return writeJSON(path, c.file)
}

// end is when the last call begins.
func (c *caller) end() clock.Instant { return c.begin.Add(c.warmUp + c.count) }

// paced makes calls by a timetable, whether or not earlier ones were answered, and waits for their answers.
func (c *caller) paced(ctx context.Context, rate float64) {
	places := make(chan struct{}, openCallsMax)
	var calls sync.WaitGroup
	defer calls.Wait()
	for n := 0; ; n++ {
		due := c.begin.Add(time.Duration(float64(n) / rate * float64(time.Second)))
		if !due.Before(c.end()) {
			return
		}
		if wait := due.Sub(clock.Now()); wait > 0 && backoff.Sleep(ctx, wait) != nil {
			return
		}
		places <- struct{}{}
		calls.Go(func() {
			c.do(ctx, due)
			<-places
		})
	}
}

// saturate keeps so many calls in flight.
func (c *caller) saturate(ctx context.Context, callers int) {
	if backoff.Sleep(ctx, c.begin.Sub(clock.Now())) != nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for range callers {
		all.Go(func() {
			for now := clock.Now(); now.Before(c.end()) && ctx.Err() == nil; now = clock.Now() {
				c.do(ctx, now)
			}
		})
	}
}

// do makes a call that was due at an instant.
func (c *caller) do(ctx context.Context, due clock.Instant) {
	stamp := due
	if due.Before(c.begin.Add(c.warmUp)) {
		stamp = warmUpStamp
	}
	c.mu.Lock()
	key, n := keyName(c.pick()), c.next
	c.next++
	c.mu.Unlock()
	payload := stampedPayload(key, n, c.size, stamp)
	sum := checksum(key, payload)
	begun := clock.Now()
	reply, err := c.invoke(ctx, key, payload)
	now := clock.Now()
	if stamp == warmUpStamp {
		return
	}
	got, node, wrong := readReply(reply)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file.Calls++
	switch {
	case err != nil:
		c.file.Failed[reason(err)]++
		return
	case wrong != nil || got != sum:
		c.file.Failed["a wrong reply"]++
		return
	case node != c.node:
		c.file.Elsewhere++
	}
	c.file.Replies.add(tally{1, sum})
	recordLatency(c.call, now.Sub(begun))
	recordLatency(c.due, now.Sub(due))
}

// reason sorts the errors of calls.
func reason(err error) string {
	if failure, ok := errors.AsType[*client.CallError](err); ok && failure.Code != "" {
		return failure.Code
	}
	return err.Error()
}

// setNX calls a function of this process under a lock of its key in Redis: SET NX PX before and DEL after it. It is the least that a
// team can do: the lock is deleted without a look at whose it is.
type setNX struct {
	client *redis.Client
	callee *callee
	token  string
}

func newSetNX(address string, callers int, c *callee) *setNX {
	return &setNX{redis.NewClient(&redis.Options{Addr: address, PoolSize: max(callers, lockHandlers)}), c, rand.Text()}
}

func (s *setNX) invoke(ctx context.Context, key string, payload []byte) (reply []byte, err error) {
	for tries := 0; ; tries++ {
		set, err := s.client.SetNX(ctx, "lock:"+key, s.token, lockTTL).Result()
		if err != nil {
			return nil, err
		}
		if set {
			break
		}
		if tries == lockTries {
			return nil, errors.New("the lock of the key is taken")
		}
		if err := backoff.Sleep(ctx, lockDelay(tries)); err != nil {
			return nil, err
		}
	}
	reply, err = s.callee.handled(key, payload)
	return reply, errors.Join(err, s.client.Del(ctx, "lock:"+key).Err())
}

func (s *setNX) close() { _ = s.client.Close() } // the process ends
