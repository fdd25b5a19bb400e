//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

const (
	holdMax     = 3 * time.Second // of one reservation
	holdWaitMax = 3 * time.Second // for one
	holdTick    = 20 * time.Millisecond

	// One of coveredEvery reservations has a ttl, and is held for longer, so that it lasts through deaths of its key's owner.
	coveredEvery   = 3
	coveredTTL     = 5 * time.Second
	coveredHoldMax = 15 * time.Second
)

// newHolders makes the processes that hold reservations. They live beside the first members, and ask the routers of all that are there at the beginning.
func (g *group) newHolders() (all []*worker) {
	if g.options.Reservations == 0 {
		return nil
	}
	for i := range holdersCount {
		w := &worker{}
		name := fmt.Sprint("holder", i)
		w.process = &process{
			namespace: memberName(i % scaleLeast), log: filepath.Join(g.dir, name+".log"),
			launch: func(run int) (string, []string, []string) {
				return g.launchHolder(w, fmt.Sprintf("%s-%d", name, run), uint64(i*1000+run))
			},
			ended: func(at clock.Instant, killed bool) { g.appEnded(w, at, killed) },
		}
		all = append(all, w)
	}
	return all
}

func (g *group) launchHolder(w *worker, name string, seed uint64) (binary string, args, env []string) {
	path := g.newJournal(w, ofNoMember, name)
	routers := make([]string, g.options.Members)
	for i := range routers {
		routers[i] = memberName(i)
	}
	return "/proc/self/exe", []string{
		roleHolder, "--journal", path, "--name", name, "--keys", strconv.Itoa(g.options.Keys), "--at-once", strconv.Itoa((g.options.Reservations + holdersCount - 1) / holdersCount),
		"--members", strings.Join(routers, ","), "--seed", strconv.FormatUint(g.options.Seed+seed, 10),
	}, nil
}

func (g *group) endHolders() { endAll(g.holders, 10*time.Second) }

// holder is a process that reserves keys. Its methods are safe for concurrent use.
type holder struct {
	name    string
	keys    int
	journal *journal.Writer
	members []string

	mu      sync.Mutex // guards the fields below
	random  *rand.Rand
	lanes   map[string]*client.Lane
	asked   int
	refused *os.File
}

// runHolder reserves keys until ctx ends.
func runHolder(ctx context.Context, args []string) error {
	h := holder{lanes: map[string]*client.Lane{}}
	var path, members string
	var atOnce int
	var seed uint64
	f := flag.NewFlagSet(roleHolder, flag.ContinueOnError)
	f.StringVar(&path, "journal", "", "file to write")
	f.StringVar(&h.name, "name", "", "of this process, unique in its run")
	f.IntVar(&h.keys, "keys", 1, "distinct keys")
	f.IntVar(&atOnce, "at-once", 1, "reservations that are held or waited for")
	f.StringVar(&members, "members", "", "whose routers to ask, comma-separated")
	f.Uint64Var(&seed, "seed", 0, "what keys and times are drawn from")
	err := f.Parse(args)
	if err != nil {
		return err
	}
	h.members, h.random = strings.Split(members, ","), rand.New(rand.NewPCG(seed, 4))
	if h.journal, err = journal.Create(path); err != nil {
		return err
	}
	if h.refused, err = os.Create(path + refusedHoldsSuffix); err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make([]error, atOnce)
	for i := range atOnce {
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = h.hold(ctx)
			}
		})
	}
	all.Wait()
	return errors.Join(append(errs, h.journal.Close(), h.refused.Close())...)
}

// drawn is a reservation to ask for.
type drawn struct {
	name, key, member string
	wait, length, ttl time.Duration // a ttl of 0: none
}

func (h *holder) draw() drawn {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	d := drawn{key: "user-" + strconv.Itoa(h.random.IntN(h.keys)), member: h.members[h.random.IntN(len(h.members))], wait: time.Duration(h.random.Int64N(int64(holdWaitMax)))}
	prefix, longest := reservationPrefix, holdMax
	if h.random.IntN(coveredEvery) == 0 {
		prefix, longest, d.ttl = coveredPrefix, coveredHoldMax, coveredTTL
	}
	d.name, d.length = fmt.Sprint(prefix, h.name, "-", h.asked), time.Duration(h.random.Int64N(int64(longest)))
	return d
}

// lane returns the connection to the router of a member.
func (h *holder) lane(member string) (*client.Lane, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.lanes[member]; l != nil {
		return l, nil
	}
	l, err := client.Dial(routerEndpoint, client.WithDialer(dialWithin(member)))
	if err == nil {
		h.lanes[member] = l
	}
	return l, err
}

// hold reserves a key for a while. It returns an error if the journal is broken.
func (h *holder) hold(ctx context.Context) error {
	d := h.draw()
	lane, err := h.lane(d.member)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, holdWaitMax+2*time.Second) // longer than any wait: the router may stand still
	defer cancel()
	options := []client.ReserveOption{client.WithWait(d.wait)}
	if d.ttl > 0 {
		options = append(options, client.WithTTL(d.ttl))
	}
	r, err := lane.Reserve(asking, d.key, options...)
	if err != nil {
		return h.noteRefusal(ctx, d.name, err)
	}
	defer r.Release()
	return h.keep(ctx, d, r) // writes the end before the release
}

// keep holds a reservation until its context ends or it was long enough, and writes it down with each of its deadlines. One that goes on at another owner,
// with another fence, ends and begins in the journal.
func (h *holder) keep(ctx context.Context, d drawn, r *client.Reservation) error {
	fence := r.Fence()
	number, err := h.journal.Start(d.name, event.Key(d.key), event.Fence(fence))
	if err != nil {
		return err
	}
	enough := time.After(d.length)
	for n := 1; ; n++ {
		outcome, goesOn, err := h.keepFence(ctx, r, fence, number, enough)
		if err = errors.Join(err, h.journal.End(number, outcome)); err != nil || !goesOn {
			return err
		}
		fence = r.Fence()
		if number, err = h.journal.Start(fmt.Sprint(d.name, resumedMark, n), event.Key(d.key), event.Fence(fence)); err != nil {
			return err
		}
	}
}

// keepFence holds a reservation for as long as it has a fence, and tells whether it goes on with another one.
func (h *holder) keepFence(ctx context.Context, r *client.Reservation, fence client.Fence, number journal.Handling, enough <-chan time.Time) (outcome journal.Outcome, goesOn bool, err error) {
	ticker := time.NewTicker(holdTick)
	defer ticker.Stop()
	var told clock.Instant
	for {
		now := clock.Shared() // read first: a deadline is written down a little too early rather than too late
		left := time.Until(r.Until())
		if left > 0 && r.Fence() != fence && r.Context().Err() == nil {
			return journal.Done, true, nil
		}
		if deadline := now.Add(left); left > 0 && deadline.After(told.Add(holdTick)) {
			if err := h.journal.Deadline(number, deadline); err != nil {
				return journal.Failed, false, err
			}
			told = deadline
		}
		select {
		case <-ctx.Done():
			return journal.Done, false, nil
		case <-enough:
			if r.Context().Err() != nil || time.Until(r.Until()) <= 0 { // this process may have stood still
				return journal.Cancelled, false, nil
			}
			return journal.Done, false, nil
		case <-r.Context().Done():
			return journal.Cancelled, false, nil
		case <-ticker.C:
		}
	}
}

// noteRefusal writes down a reservation that was not granted.
func (h *holder) noteRefusal(ctx context.Context, name string, err error) error {
	code := err.Error()
	failure, ok := errors.AsType[*client.CallError](err)
	if ok && failure.Code != "" {
		code = failure.Code
	}
	h.mu.Lock()
	_, broken := fmt.Fprint(h.refused, refusedHold{name, code})
	h.mu.Unlock()
	if ok && code != client.CodeTimeout {
		_ = backoff.Sleep(ctx, 100*time.Millisecond) // the router is dead, or not ready
	}
	return broken
}
