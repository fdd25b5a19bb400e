package main

import (
	"context"
	"errors"
	"flag"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
)

// holderCommand makes this binary the process of all holders of a phase. They are in one process so that it sees whether two hold a key.
const holderCommand = "holder"

// waitersMax bounds --waiters: an owner keeps at most 100 waiting for a key.
const waitersMax = 90

// holders take keys and release them at once. Its methods are safe for concurrent use.
type holders struct {
	begin         clock.Instant // of the warm-up
	warmUp, count time.Duration

	watch []watched // by key

	mu      sync.Mutex // guards the fields below
	pick    func() int
	file    holdsFile
	pairs   *hdrhistogram.Histogram // from the ask to the end of the release
	waits   *hdrhistogram.Histogram // from the ask to the grant
	over    *hdrhistogram.Histogram // from a release to the grant of another one
	lastOne int                     // who had the one key last; -1: nobody
	freeAt  clock.Instant           // when that one has released it for the first time in a row
}

// watched finds out whether a key has two holders, and whether its fences grow.
type watched struct {
	now   atomic.Int32 // holders
	fence atomic.Pointer[client.Fence]
}

// holdsFile is what holders know at the end. Without the warm-up, but for the checks.
type holdsFile struct {
	Grants   uint64            `json:"grants"` // in all, with the warm-up
	Releases uint64            `json:"releases"`
	Twice    uint64            `json:"twice"`    // grants of a key that another holder had
	Backward uint64            `json:"backward"` // grants with a fence that was not greater than that of the one before
	Failed   map[string]uint64 `json:"failed"`   // by the reason

	Counted []uint64 `json:"counted"` // grants of each holder
	Again   uint64   `json:"again"`   // of them, by the one that had it before, though others waited
	Pairs   []byte   `json:"pairs"`
	Waits   []byte   `json:"waits"`
	Over    []byte   `json:"over"`
}

func newHolders(keys int, pick func() int) *holders {
	return &holders{
		watch: make([]watched, keys), pick: pick, lastOne: -1, file: holdsFile{Failed: map[string]uint64{}},
		pairs: newHistogram(), waits: newHistogram(), over: newHistogram(),
	}
}

func runHolders(args []string) error {
	f := flag.NewFlagSet(holderCommand, flag.ContinueOnError)
	mode := f.String("mode", "", "one of "+namesOnly(workloadReservations))
	endpoints := f.String("endpoints", "", "of the routers, or of what else the mode has, comma-separated")
	keys := f.Int("keys", 1, "distinct keys")
	distribution := f.String("distribution", distributionUniform, "of the reservations over the keys")
	n := f.Int("holders", 1, "how many")
	begin := f.Int64("begin", 0, "when to begin, on the clock of leases")
	warmUp := f.Duration("warm-up", 0, "how long reservations do not count")
	count := f.Duration("measure", time.Second, "how long they count")
	out := f.String("out", "", "file for the result")
	if err := f.Parse(args); err != nil {
		return err
	}
	h := newHolders(*keys, keyPicker(*distribution, *keys))
	h.begin, h.warmUp, h.count = clock.Instant(*begin), *warmUp, *count
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	all, closeAll, err := newLockers(ctx, *mode, strings.Split(*endpoints, ","), *n)
	if err != nil {
		return err
	}
	defer closeAll()
	h.run(ctx, all)
	if err := ctx.Err(); err != nil {
		return err
	}
	return h.write(*out)
}

func (h *holders) write(path string) error {
	h.file.Pairs, h.file.Waits, h.file.Over = encoded(h.pairs), encoded(h.waits), encoded(h.over)
	return writeJSON(path, h.file)
}

// run lets all holders take and release keys until the time is up.
func (h *holders) run(ctx context.Context, all []locker) {
	h.file.Counted = make([]uint64, len(all))
	if backoff.Sleep(ctx, h.begin.Sub(clock.Now())) != nil {
		return
	}
	end := h.begin.Add(h.warmUp + h.count)
	var running sync.WaitGroup
	defer running.Wait()
	for who, l := range all {
		running.Go(func() {
			for now := clock.Now(); now.Before(end) && ctx.Err() == nil; now = clock.Now() {
				if err := h.hold(ctx, who, l, now); err != nil {
					h.mu.Lock()
					h.file.Failed[reason(err)]++
					h.mu.Unlock()
					return
				}
			}
		})
	}
}

// hold takes one key and releases it.
func (h *holders) hold(ctx context.Context, who int, l locker, asked clock.Instant) error {
	h.mu.Lock()
	key := h.pick()
	h.mu.Unlock()
	got, err := l.lock(ctx, keyName(key))
	if err != nil {
		return err
	}
	w := &h.watch[key]
	alone := w.now.Add(1) == 1
	fence := got.fence
	before := w.fence.Swap(&fence)
	h.granted(who, asked, alone, fence == client.Fence{} || before == nil || before.Before(fence))
	w.now.Add(-1)
	if err := got.release(ctx); err != nil {
		return errors.Join(errors.New("a release"), err)
	}
	h.released(asked)
	return nil
}

// counts reports whether a reservation counts that was asked for at an instant.
func (h *holders) counts(asked clock.Instant) bool { return !asked.Before(h.begin.Add(h.warmUp)) }

// granted notes a grant, and that the holder releases the key now.
func (h *holders) granted(who int, asked clock.Instant, alone, grows bool) {
	now := clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file.Grants++
	if !alone {
		h.file.Twice++
	}
	if !grows {
		h.file.Backward++
	}
	counts := h.counts(asked)
	if counts {
		h.file.Counted[who]++
		recordLatency(h.waits, now.Sub(asked))
	}
	if len(h.watch) > 1 {
		return
	}
	switch {
	case h.lastOne == who:
		if counts {
			h.file.Again++
		}
		return // the others have waited since it has released the key for the first time
	case h.lastOne >= 0 && counts:
		recordLatency(h.over, now.Sub(h.freeAt))
	}
	h.lastOne, h.freeAt = who, now
}

func (h *holders) released(asked clock.Instant) {
	now := clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.file.Releases++
	if h.counts(asked) {
		recordLatency(h.pairs, now.Sub(asked))
	}
}
