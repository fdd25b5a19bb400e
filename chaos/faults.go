//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/testing/eventually"
)

// chaos does faults to a group.
type chaos struct {
	group   *group
	network *network
	broker  *broker
	proxies *proxies

	callers *callers

	joiners joiners
}

// do injects one fault, and returns when it is over: stopped processes continue, cuts are
// healed, and killed processes have been restarted.
func (c *chaos) do(ctx context.Context, f fault) (done outcome, err error) {
	done = outcome{Fault: f, From: clock.Now()}
	m := c.group.members[f.Member]
	switch f.Kind {
	case kindKill:
		done.From, err = c.kill(ctx, m, f)
	case kindPower:
		done.From, err = c.powerOff(ctx, m, f)
	case kindPause:
		at := f.Variant
		if c.group.options.Control == controlShared {
			at = atApp // there is no router
		}
		if at != atApp {
			m.router.signal(syscall.SIGSTOP)
		}
		if at != atRouter {
			c.group.freeze(m.workers...)
		}
		err = backoff.Sleep(ctx, f.Length)
		if at != atRouter {
			c.group.thaw(m.workers...)
		}
		if at != atApp {
			m.router.signal(syscall.SIGCONT)
		}
	case kindCut, kindHalfCut:
		err = c.cut(ctx, m, f)
	case kindSlow:
		err = c.proxies.slow(ctx, f)
	case kindBroker:
		err = c.broker.restart(ctx)
	case kindUnload:
		topic := controlTopic
		if f.Variant == atEvents {
			topic = eventsTopic
		}
		err = c.broker.unload(ctx, topic)
	case kindPartitions:
		err = c.broker.morePartitions(ctx)
	case kindDelete:
		err = c.delete(ctx)
	case kindRollover:
		err = c.broker.awaitRollover(ctx, controlTopic)
	case kindLeave:
		err = c.rejoin(ctx, m)
	case kindDeploy:
		err = c.deploy(ctx)
	case kindScale:
		err = c.scale(ctx)
	case kindRegroup:
		err = c.regroup(ctx, f)
	case kindSlew:
		err = c.slew(ctx, m, f)
	case kindCrashWorker:
		err = c.crashWorker(ctx, m, f)
	case kindCallerGivesUp:
		err = c.callers.giveUp(ctx, f)
	case kindHolderKill:
		done.From, err = killAll(ctx, []*process{c.group.holders[f.Worker].process}, f.Length)
	case kindHolderStop:
		w := c.group.holders[f.Worker]
		c.group.freeze(w)
		err = backoff.Sleep(ctx, f.Length)
		c.group.thaw(w)
	}
	done.Until = clock.Now()
	if err != nil {
		err = fmt.Errorf("%v: %w", f, err)
	}
	return done, err
}

// kill kills processes of a member, and returns when it began and they are back.
func (c *chaos) kill(ctx context.Context, m *member, f fault) (at clock.Instant, err error) {
	var victims []*process
	if f.Variant != atApp && c.group.options.Control != controlShared {
		victims = append(victims, m.router)
	}
	if f.Variant != atRouter || c.group.options.Control == controlShared {
		for _, w := range m.workers {
			victims = append(victims, w.process)
		}
	}
	return killAll(ctx, victims, f.Length)
}

// killAll kills processes, and returns when it began and they are back.
func killAll(ctx context.Context, victims []*process, down time.Duration) (at clock.Instant, err error) {
	at = clock.Now()
	var all sync.WaitGroup
	errs := make([]error, len(victims))
	for i, p := range victims {
		all.Go(func() {
			run := p.run()
			p.kill(down)
			errs[i] = p.await(ctx, run)
		})
	}
	all.Wait()
	return at, errors.Join(errs...)
}

// crashWorker kills or freezes one of a member's applications. Its keys move to the other
// applications beside the same router, under the same token.
func (c *chaos) crashWorker(ctx context.Context, m *member, f fault) error {
	w := m.workers[f.Worker]
	if f.Variant == byKill {
		_, err := killAll(ctx, []*process{w.process}, f.Length)
		return err
	}
	c.group.freeze(w)
	err := backoff.Sleep(ctx, f.Length)
	c.group.thaw(w)
	return err
}

// slew kills a member, which comes back with steered clocks that keep their rate until its
// processes start the next time.
func (c *chaos) slew(ctx context.Context, m *member, f fault) error {
	router, app := f.clocks(c.group.options)
	m.router.nextEnv(router)
	victims := []*process{m.router}
	for _, w := range m.workers {
		w.nextEnv(app)
		victims = append(victims, w.process)
	}
	_, err := killAll(ctx, victims, f.Length)
	return err
}

// powerOff kills a member without a word to anybody: it is cut from all before it
// dies, until just before it comes back.
func (c *chaos) powerOff(ctx context.Context, m *member, f fault) (at clock.Instant, err error) {
	pairs := c.network.pairs(m.number, fromAll, "")
	if err := c.network.cut(ctx, pairs); err != nil {
		return clock.Now(), err
	}
	healed := make(chan error, 1)
	var healer sync.WaitGroup
	healer.Go(func() {
		slept := backoff.Sleep(ctx, f.Length-100*time.Millisecond)
		healed <- errors.Join(slept, c.network.heal(context.WithoutCancel(ctx), pairs))
	})
	at, err = c.kill(ctx, m, f)
	healer.Wait()
	return at, errors.Join(err, <-healed)
}

func (c *chaos) cut(ctx context.Context, m *member, f fault) error {
	direction, from := "", f.Variant
	if f.Kind == kindHalfCut {
		direction, from, _ = strings.Cut(f.Variant, ":")
	}
	pairs := c.network.pairs(m.number, from, direction)
	if err := c.network.cut(ctx, pairs); err != nil {
		return err
	}
	slept := backoff.Sleep(ctx, f.Length)
	return errors.Join(slept, c.network.heal(context.WithoutCancel(ctx), pairs))
}

// noticeMax is the time within which the members must notice that the control log is gone:
// their appends get no answer, and no lease is longer than that.
const noticeMax = 20 * time.Second

// delete deletes the control topic and waits until the group has noticed, which is
// whole for as long as its leases last.
func (c *chaos) delete(ctx context.Context) error {
	if err := c.broker.remove(ctx, controlTopic); err != nil {
		return err
	}
	return eventually.Ask(ctx, noticeMax, "the members notice", func() error {
		if c.group.whole(ctx) == nil {
			return errors.New("they have not noticed")
		}
		return nil
	})
}

// rejoin ends a member gracefully and starts it again.
func (c *chaos) rejoin(ctx context.Context, m *member) error {
	if err := c.group.leave(ctx, m); err != nil {
		return err
	}
	return c.group.join(m)
}

// deploy replaces all members, one after the other, each when the one before it is ready.
func (c *chaos) deploy(ctx context.Context) error {
	for _, m := range c.group.present() {
		if err := c.rejoin(ctx, m); err != nil {
			return err
		}
		if err := c.group.awaitWhole(ctx); err != nil {
			return err
		}
	}
	return nil
}

// scale goes to the least number of members, to the most, to the least and back.
func (c *chaos) scale(ctx context.Context) error {
	for _, n := range []int{scaleLeast, scaleMost, scaleLeast, c.group.options.Members} {
		if err := c.scaleTo(ctx, n); err != nil {
			return fmt.Errorf("to %d: %w", n, err)
		}
	}
	return nil
}

func (c *chaos) scaleTo(ctx context.Context, n int) error {
	var all sync.WaitGroup
	errs := make([]error, len(c.group.members))
	for i, m := range c.group.members {
		switch {
		case i < n && !m.isPresent():
			errs[i] = c.group.join(m)
		case i >= n && m.isPresent():
			all.Go(func() { errs[i] = c.group.leave(ctx, m) })
		}
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.group.awaitWhole(ctx)
}
