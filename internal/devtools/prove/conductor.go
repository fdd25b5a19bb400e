package prove

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/report"
)

// Options describe a proof to the command.
type Options struct {
	For   time.Duration // of load
	Rate  int           // events per second, of all members together
	Keys  int
	Every time.Duration // least time from one fault to the next
	Kinds []string      // of faults
	Seed  uint64        // of their order, their members and their lengths
	By    string        // who runs it

	// LengthMin and LengthMax bound how long a killed process is away, or a stopped one stands still.
	LengthMin, LengthMax time.Duration
}

// DefaultOptions returns the options of a proof in a staging group.
func DefaultOptions() Options {
	return Options{
		For: 10 * time.Minute, Rate: 200, Keys: 500, Every: 15 * time.Second, Kinds: slices.Clone(Kinds),
		LengthMin: 500 * time.Millisecond, LengthMax: 6 * time.Second,
	}
}

// Validate reports options that make no sense.
func (o Options) Validate() error {
	for _, kind := range o.Kinds {
		if !slices.Contains(Kinds, kind) {
			return fmt.Errorf("no such fault: %q; there are %s", kind, strings.Join(Kinds, ", "))
		}
	}
	switch {
	case o.For < time.Second:
		return fmt.Errorf("--for = %v, want at least 1s", o.For)
	case o.Rate < 1:
		return fmt.Errorf("--rate = %d, want at least 1", o.Rate)
	case o.Keys < 1:
		return fmt.Errorf("--keys = %d, want at least 1", o.Keys)
	case o.Every < 100*time.Millisecond:
		return fmt.Errorf("--every = %v, want at least 100ms", o.Every)
	case o.LengthMax < 0 || o.LengthMax > faultSecondsMax*time.Second:
		return fmt.Errorf("--fault-max = %v, want 0s to %ds", o.LengthMax, faultSecondsMax)
	case len(o.Kinds) == 0:
		return errors.New("--faults is empty")
	}
	return nil
}

// Group is the user's group as the command reaches it.
type Group struct {
	Name, Version string
	Members       []string
	// Ask takes one step of one of Members.
	Ask func(ctx context.Context, member string, ask Ask) (Answer, error)
}

const (
	pollEvery    = 500 * time.Millisecond
	pollShare    = 40 * time.Millisecond // of each member of a large group: an admin endpoint answers 50 pages a second
	asksMax      = 16                    // at a time
	readyMax     = 2 * time.Minute       // until the group of the proof is formed, and until it has recovered from a fault
	settleMax    = 90 * time.Second      // until all events are handled
	leaveMax     = 90 * time.Second      // until all members have left
	unheardMax   = 30 * time.Second      // of a member; then the proof is over
	membersMin   = 2
	stopTimeout  = 15 * time.Second
	tellEvery    = 30 * time.Second
	firstFaultIn = 0.5 // of Options.Every
)

// conducting is a proof that runs, as the command sees it.
type conducting struct {
	o     Options
	group Group
	tell  func(format string, args ...any)
	run   *Run

	load    bool
	from    []int // next record of each member
	answers []Answer
	heard   []clock.Instant
	all     bool             // every member has answered the newest poll
	state   map[uint64]uint8 // of events
	open    int              // events that the broker has and that are not done
	running map[handlingOf]uint64
}

// handlingOf names a handling.
type handlingOf struct {
	member, process int
	number          uint64
}

// The states of an event.
const (
	isPublished uint8 = 1 << iota
	isDone
)

// Conduct runs a proof until its time is over or ctx ends, and returns what happened. An error means that it could not begin, or that there is
// nothing to judge; then nothing is left running. tell gets a line of progress at a time.
func Conduct(ctx context.Context, o Options, group Group, tell func(format string, args ...any)) (*Run, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n := len(group.Members)
	if n < membersMin {
		return nil, fmt.Errorf("the group has %s: a proof needs %d, between which keys can move; a router joins when its application is connected (router members)",
			report.Plural(n, "member"), membersMin)
	}
	c := &conducting{
		o: o, group: group, tell: tell, from: make([]int, n), answers: make([]Answer, n), heard: make([]clock.Instant, n), state: map[uint64]uint8{}, running: map[handlingOf]uint64{},
		run: &Run{ID: newRun(), Group: group.Name, Version: group.Version, Seed: o.Seed, Rate: o.Rate, Keys: o.Keys, Members: make([]Member, n)},
	}
	for i, name := range group.Members {
		c.run.Members[i].Name = name
	}
	if err := c.look(ctx); err != nil {
		return nil, err
	}
	// The steps after the start must be taken also after Ctrl-C.
	lasting := context.WithoutCancel(ctx)
	if err := c.start(ctx); err != nil {
		return nil, c.abandon(lasting, err)
	}
	tell("the group of the proof is forming: %s-prove-%s", group.Name, c.run.ID)
	if err := c.until(ctx, readyMax, c.ready); err != nil {
		return nil, c.abandon(lasting, fmt.Errorf("the group of the proof is not ready: %w: %s", err, c.notReady()))
	}
	tell("ready: %d events/s on %d keys for %v; a fault every %v at the soonest (seed %d)", o.Rate, o.Keys, o.For, o.Every, o.Seed)
	c.load, c.run.From = true, int64(clock.Shared())
	err := c.drive(ctx)
	c.load, c.run.Until = false, int64(clock.Shared())
	if err == nil {
		err = c.finish(lasting)
	}
	if err != nil {
		c.run.Trouble, c.run.Cut = append(c.run.Trouble, err.Error()), true
	}
	for i, a := range c.answers {
		m := &c.run.Members[i]
		m.Lost, m.Drained, m.Open, m.Audit, m.ClockID = a.Lost, a.Drained, a.Unsettled, a.Audit, a.ClockID
		if m.Refused > 0 {
			c.run.Trouble = append(c.run.Trouble, fmt.Sprintf("%s told of more than the load and the faults explain: %s refused", m.Name, report.Plural(m.Refused, "record")))
		}
	}
	c.run.ClockID = ownClockID()
	c.stop(lasting)
	c.clean(lasting)
	return c.run, nil
}

// newRun names a proof. Names of topics and of the group follow from it, so that proofs never meet.
func newRun() string {
	var random [3]byte
	_, _ = crand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// ask takes one step of a member, "" for any. A step that was not taken is an error.
func (c *conducting) ask(ctx context.Context, member string, ask Ask) (Answer, error) {
	a, err := c.group.Ask(ctx, member, ask)
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// each asks all members at the same time.
func (c *conducting) each(ctx context.Context, ask func(i int) Ask) []error {
	errs := make([]error, len(c.group.Members))
	var asked errgroup.Group
	asked.SetLimit(asksMax)
	for i, name := range c.group.Members {
		asked.Go(func() error {
			sent := int64(clock.Shared())
			a, err := c.ask(ctx, name, ask(i))
			back := int64(clock.Shared())
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", name, err)
				return nil
			}
			a.Audit.Found = a.Audit.Found[:min(len(a.Audit.Found), foundMax)]
			c.answers[i], c.heard[i] = a, clock.Now()
			c.run.Members[i].trips = append(c.run.Members[i].trips, trip{sent, back, a.Now})
			return nil
		})
	}
	_ = asked.Wait() // the errors are in errs
	return errs
}

// look refuses a group that cannot have a proof.
func (c *conducting) look(ctx context.Context) error {
	errs := c.each(ctx, func(int) Ask { return Ask{Do: DoLook} })
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("not every member takes part in proofs: %w", err)
	}
	var off []string
	for i, a := range c.answers {
		name := c.group.Members[i]
		switch {
		case !a.Enabled:
			off = append(off, name)
		case a.Run != "":
			errs = append(errs, fmt.Errorf("proof %s runs at %s", a.Run, name))
		case c.o.For.Seconds() > a.Limits.Seconds:
			errs = append(errs, fmt.Errorf("--for %v is longer than prove.for_max of %s, %v", c.o.For, name, time.Duration(a.Limits.Seconds*1e9)))
		case c.o.Keys > a.Limits.Keys:
			errs = append(errs, fmt.Errorf("--keys %d is more than prove.keys_max of %s, %d", c.o.Keys, name, a.Limits.Keys))
		case c.rate(i) > a.Limits.Rate:
			errs = append(errs, fmt.Errorf("--rate %d is %d for each member, more than prove.rate_max of %s, %d", c.o.Rate, c.rate(i), name, a.Limits.Rate))
		}
	}
	if len(off) > 0 {
		errs = append(errs, fmt.Errorf("prove.enabled is false at %s: set it at all members of a staging group", strings.Join(off, ", ")))
	}
	return errors.Join(errs...)
}

// rate is the part of one member.
func (c *conducting) rate(i int) int {
	n := len(c.group.Members)
	return (c.o.Rate + n - 1 - i) / n
}

func (c *conducting) start(ctx context.Context) error {
	return errors.Join(c.each(ctx, func(i int) Ask {
		return Ask{Do: DoStart, Run: c.run.ID, Plan: &Plan{Seconds: c.o.For.Seconds(), Rate: c.rate(i), Keys: c.o.Keys, Member: i, By: c.o.By}}
	})...)
}

// stop ends the proof at all members. It does no harm where it has ended.
func (c *conducting) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	answers := slices.Clone(c.answers)
	c.each(ctx, func(int) Ask { return Ask{Do: DoStop, Run: c.run.ID} }) // a member that does not hear it ends by itself
	c.answers = answers
}

// abandon ends a proof that could not begin. The error names the topics that may be left.
func (c *conducting) abandon(ctx context.Context, err error) error {
	c.stop(ctx)
	c.clean(ctx)
	if len(c.run.Remain) > 0 {
		err = fmt.Errorf("%w; these topics may be left: %s", err, strings.Join(c.run.Remain, ", "))
	}
	return err
}

// clean lets one member remove the topics.
func (c *conducting) clean(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	a, err := c.ask(ctx, "", Ask{Do: DoClean, Run: c.run.ID})
	c.run.Remain = a.Remain
	if err != nil {
		c.run.Remain = []string{fmt.Sprintf("all topics with %s in their names (%v)", c.run.ID, err)}
	}
}

// poll asks all members what has happened.
func (c *conducting) poll(ctx context.Context) error {
	errs := c.each(ctx, func(i int) Ask { return Ask{Do: DoPoll, Run: c.run.ID, From: c.from[i], Load: c.load} })
	c.all = true
	for i, err := range errs {
		if err != nil {
			c.all = false
			if ctx.Err() == nil && clock.Now().Sub(c.heard[i]) > unheardMax {
				return fmt.Errorf("not heard of for %v: %w", unheardMax, err)
			}
			continue
		}
		a := &c.answers[i]
		c.from[i] = a.Next
		for _, r := range a.Records {
			if c.keep(i, &r) {
				c.note(i, r)
			}
		}
		a.Records = nil
	}
	return nil
}

// note follows the events.
func (c *conducting) note(member int, r Record) {
	switch r.Kind {
	case WasPublished:
		if c.state[r.Event]&isDone == 0 {
			c.open++
		}
		c.state[r.Event] |= isPublished
	case HasStarted:
		c.running[handlingOf{member, r.Process, r.Handling}] = r.Event
	case HasEnded:
		one := handlingOf{member, r.Process, r.Handling}
		event := c.running[one]
		delete(c.running, one)
		if r.Outcome != Done {
			return
		}
		if c.state[event]&(isPublished|isDone) == isPublished {
			c.open--
		}
		c.state[event] |= isDone
	}
}

// pause is the time between two polls.
func (c *conducting) pause() time.Duration {
	return max(pollEvery, time.Duration(len(c.group.Members))*pollShare)
}

func (c *conducting) ready() bool {
	return !slices.ContainsFunc(c.answers, func(a Answer) bool { return !a.Ready })
}

func (c *conducting) notReady() string {
	var all []string
	for i, a := range c.answers {
		if !a.Ready {
			all = append(all, c.group.Members[i]+": "+a.Why)
		}
	}
	return strings.Join(all, "; ")
}

var errSlow = errors.New("the wait was cancelled")

// until polls until a condition holds by the answers of all members to one poll: a member that has not answered may publish still.
func (c *conducting) until(ctx context.Context, most time.Duration, holds func() bool) error {
	began := clock.Now()
	for {
		if err := c.poll(ctx); err != nil {
			return err
		}
		switch {
		case c.all && holds():
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case clock.Now().Sub(began) > most:
			return fmt.Errorf("%w after %v", errSlow, most)
		}
		_ = backoff.Sleep(ctx, c.pause()) // the context is looked at above
	}
}

// drive injects faults while there is load. It returns nil also if ctx has ended.
func (c *conducting) drive(ctx context.Context) error {
	random := rand.New(rand.NewPCG(c.o.Seed, 0)) //nolint:gosec // the order of faults, which is to be repeated
	began := clock.Now()
	next, told := began.Add(time.Duration(firstFaultIn*float64(c.o.Every))), began
	var kinds []string
	var victim int
	for {
		if err := c.poll(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		now := clock.Now()
		current := c.current()
		if current != nil && c.ready() {
			current.Ready = seconds(int64(clock.Shared()) - c.run.From)
			c.tell("%6.1fs  all members are ready, %.1fs after the beginning of the fault; %d events open", current.Ready, current.Ready-current.From, c.open)
			current = nil
		}
		if current != nil && c.after(current) > readyMax {
			return fmt.Errorf("the group has not recovered from fault %d (%s at %s) within %v: %s", current.Number, current.Kind, current.Member, readyMax, c.notReady())
		}
		if signal.IsClosed(ctx.Done()) {
			return nil
		}
		if now.Sub(began) >= c.o.For && current == nil {
			return nil
		}
		if now.Sub(told) >= tellEvery {
			told = now
			c.tell("%6.1fs  %d events so far, %d open", now.Sub(began).Seconds(), len(c.state), c.open)
		}
		if current == nil && !now.Before(next) && now.Sub(began) < c.o.For-c.o.Every/3 {
			if len(kinds) == 0 { // each kind once before any comes again
				kinds = slices.Clone(c.o.Kinds)
				random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
			}
			victim = (victim + 1 + random.IntN(len(c.group.Members)-1)) % len(c.group.Members)
			if err := c.inject(context.WithoutCancel(ctx), kinds[0], victim, random); err != nil {
				return err
			}
			kinds, next = kinds[1:], now.Add(c.o.Every)
		}
		_ = backoff.Sleep(ctx, c.pause()) // the context is looked at above
	}
}

// current returns the fault from which the group has not recovered, nil if there is none.
func (c *conducting) current() *FaultAt {
	if n := len(c.run.Faults); n > 0 && c.run.Faults[n-1].Ready == 0 {
		return &c.run.Faults[n-1]
	}
	return nil
}

// after is the time since the beginning of a fault.
func (c *conducting) after(f *FaultAt) time.Duration {
	return time.Duration(int64(clock.Shared()) - c.run.From - int64(f.From*1e9))
}

func (c *conducting) inject(ctx context.Context, kind string, victim int, random *rand.Rand) error {
	length := c.o.LengthMin + time.Duration(random.Float64()*float64(c.o.LengthMax-c.o.LengthMin))
	f := FaultAt{
		Fault: Fault{Number: len(c.run.Faults) + 1, Kind: kind, Seconds: length.Seconds()}, Member: c.group.Members[victim], From: seconds(int64(clock.Shared()) - c.run.From),
	}
	if _, err := c.ask(ctx, f.Member, Ask{Do: DoFault, Run: c.run.ID, Fault: &f.Fault}); err != nil {
		return fmt.Errorf("fault %d (%s) at %s: %w", f.Number, kind, f.Member, err)
	}
	c.answers[victim].Ready = false // until it says so itself
	c.run.Faults = append(c.run.Faults, f)
	c.tell("%6.1fs  fault %d: %s at %s, %.1fs", f.From, f.Number, kind, f.Member, f.Seconds)
	return nil
}

// finish waits until everything is handled and the members have left, and fetches the last records.
func (c *conducting) finish(ctx context.Context) error {
	c.tell("the load has ended: waiting for the last events")
	err := c.until(ctx, settleMax, func() bool { return c.open == 0 && c.fetched() && c.confirmed() })
	if err != nil && !errors.Is(err, errSlow) { // what is missing then is lost, for the judge to say
		return err
	}
	if err := errors.Join(c.each(ctx, func(int) Ask { return Ask{Do: DoFault, Run: c.run.ID, Fault: &Fault{Kind: Leave}} })...); err != nil {
		return fmt.Errorf("leaving the group of the proof: %w", err)
	}
	err = c.until(ctx, leaveMax, func() bool {
		return c.fetched() && !slices.ContainsFunc(c.answers, func(a Answer) bool { return !a.Drained })
	})
	if err != nil {
		return fmt.Errorf("leaving the group of the proof: %w", err)
	}
	return nil
}

// confirmed reports whether the broker has answered for all events: what it accepts after the members have left is handled by nobody.
func (c *conducting) confirmed() bool {
	return !slices.ContainsFunc(c.answers, func(a Answer) bool { return a.Unconfirmed > 0 })
}

// fetched reports whether no member has records that were not fetched.
func (c *conducting) fetched() bool {
	return !slices.ContainsFunc(c.answers, func(a Answer) bool { return a.Pending > 0 })
}
