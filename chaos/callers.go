//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

const (
	callersCount = 8               // each makes its share of the calls through the router of one member
	callTimeout  = 5 * time.Second // longer than the longest work
	callTriesMax = 5               // of a call with an id
	callsOpenMax = 2000            // of all callers
	giveUpMax    = 20 * time.Millisecond
)

// errGaveUp is the cause with which a caller ends its calls.
var errGaveUp = errors.New("the caller gives up")

// callers make calls at a fixed rate, of random keys of those that the publisher has. Its methods are safe for concurrent use.
type callers struct {
	group      *group
	rate, keys int

	mu      sync.Mutex // guards the fields below
	random  *rand.Rand
	log     callLog
	sends   []sendMade
	through [callersCount]*route
	hasty   map[int]bool // members whose callers give up
}

// route is a connection to the router of a member.
type route struct {
	member *member
	lane   *client.Lane
	cut    context.CancelCauseFunc // ends all calls through it
	ctx    context.Context         //nolint:containedctx // of the calls through it
}

func newCallers(o options, g *group) *callers {
	return &callers{group: g, rate: o.Calls, keys: o.Keys, random: rand.New(rand.NewPCG(o.Seed, 3)), hasty: map[int]bool{}}
}

// run makes calls until ctx ends, and returns when all have an answer.
func (c *callers) run(ctx context.Context) error {
	if c.rate == 0 {
		return nil
	}
	defer c.close()
	var open sync.WaitGroup
	defer open.Wait()
	places := make(chan struct{}, callsOpenMax)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	begin, sent := clock.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		due := int(clock.Now().Sub(begin).Seconds() * float64(c.rate))
		if due-sent > c.rate { // this process stood still
			begin, sent = clock.Now(), 0
			continue
		}
		for ; sent < due; sent++ {
			select {
			case places <- struct{}{}:
			default:
				continue // too many are open: this one is left out
			}
			key, number, once := c.next()
			open.Go(func() {
				c.call(context.WithoutCancel(ctx), key, number, once)
				<-places
			})
		}
	}
}

// next draws the next call. Every second one has an id.
func (c *callers) next() (key string, number int, once bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	number = len(c.log.made)
	once = number%2 == 0
	c.log.made = append(c.log.made, callMade{once: once, answer: unknown})
	return "user-" + strconv.Itoa(c.random.IntN(c.keys)), number, once
}

// call makes one call. One with an id is repeated until its caller knows what became of it.
func (c *callers) call(ctx context.Context, key string, number int, once bool) {
	made := callMade{once: once}
	caller := number / 2 % callersCount // so that each makes both kinds
	for {
		made.tries++
		c.try(ctx, caller, key, callName(number, once), &made)
		if once || made.tries == callTriesMax || made.answer != unknown {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log.made[number] = made
}

// try makes a call, and notes its answer.
func (c *callers) try(ctx context.Context, caller int, key, name string, made *callMade) {
	l, err := c.routeOf(caller)
	if err != nil { // nobody is there
		made.answer, made.code = notRun, "no router"
		_ = backoff.Sleep(ctx, 100*time.Millisecond)
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	giveUp := func() { cancel(errGaveUp) }
	defer context.AfterFunc(l.ctx, giveUp)() //nolint:contextcheck // it ends calls, and they inherit nothing from it
	if after, hasty := c.patience(l.member.number); hasty {
		defer time.AfterFunc(after, giveUp).Stop()
	}
	options := []client.CallOption{client.WithCallTimeout(callTimeout)}
	if !made.once {
		options = append(options, client.WithCallID(name))
	}
	reply, err := l.lane.Invoke(ctx, key, callMethod, []byte(name), options...)
	*made = callMade{once: made.once, tries: made.tries}
	var failure *client.CallError
	switch errors.As(err, &failure); {
	case err == nil:
		made.answer, made.reply = replied, string(reply)
		return
	case failure == nil:
		made.answer, made.code = unknown, err.Error()
		return
	case errors.Is(context.Cause(ctx), errGaveUp) && errors.Is(failure.Kind, client.ErrUnknown):
		made.answer = givenUp
	default:
		made.answer, made.code = answerOf(failure), failure.Code
	}
	if failure.Err != nil { // the router is dead, stands still, or has closed the connection
		c.leave(caller, l)
	}
	if made.answer == notRun && made.code == "" {
		made.code = "no connection"
	}
}

func answerOf(failure *client.CallError) answer {
	switch {
	case errors.Is(failure.Kind, client.ErrCallFailed):
		return failed
	case errors.Is(failure.Kind, client.ErrNotRun):
		return notRun
	case errors.Is(failure.Kind, client.ErrDoneBefore):
		return doneBefore
	}
	return unknown
}

var errNobody = errors.New("no member is present")

// routeOf returns the route of a caller, a new one to some member if it has none.
func (c *callers) routeOf(caller int) (*route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.through[caller]; l != nil {
		return l, nil
	}
	members := c.group.present()
	if len(members) == 0 {
		return nil, errNobody
	}
	m := members[c.random.IntN(len(members))]
	lane, err := client.Dial(routerEndpoint, client.WithDialer(dialWithin(m.name)))
	if err != nil {
		return nil, err
	}
	l := &route{member: m, lane: lane}
	l.ctx, l.cut = context.WithCancelCause(context.Background())
	c.through[caller] = l
	return l, nil
}

// leave makes a caller use another router for its next call. Calls that are under way through l go on.
func (c *callers) leave(caller int, l *route) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.through[caller] == l {
		c.through[caller] = nil
		time.AfterFunc(2*callTimeout, func() { _ = l.lane.Close() }) // all its calls are over then
	}
}

// patience returns how long a caller waits that gives its calls up, if those of the member do.
func (c *callers) patience(member int) (after time.Duration, hasty bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.random.Int64N(int64(giveUpMax))), c.hasty[member]
}

// giveUp lets the callers at a member's router end all their calls, those under way at once, and later ones while they wait or run. How
// says whether each call ends, or the connection of all.
func (c *callers) giveUp(ctx context.Context, f fault) error {
	c.mu.Lock()
	c.hasty[f.Member] = true
	for i, l := range c.through {
		if l == nil || l.member.number != f.Member {
			continue
		}
		c.through[i] = nil
		l.cut(errGaveUp)
		if f.Variant == byClosing {
			_ = l.lane.Close()
			continue
		}
		time.AfterFunc(2*callTimeout, func() { _ = l.lane.Close() })
	}
	c.mu.Unlock()
	err := backoff.Sleep(ctx, f.Length)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.hasty, f.Member)
	return err
}

func (c *callers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, l := range c.through {
		if l != nil {
			_ = l.lane.Close()
			c.through[i] = nil
		}
	}
}

// handleCall is a client.CallHandler. A call's payload is its name, and its reply the fence under which it was handled.
func (a *application) handleCall(ctx context.Context, call *client.Call) ([]byte, error) {
	ctx, held := a.heeding(ctx, func() bool { return ctx.Err() == nil })
	fence := event.Fence(call.Fence)
	if err := a.work(ctx, held, string(call.Payload), call.Key, fence); err != nil {
		return nil, err
	}
	return []byte(fence.String()), nil
}
