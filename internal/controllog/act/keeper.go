package act

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Config of a [Keeper].
type Config struct {
	Enabled bool // operators may act on single keys of the group, through a topic __acts-<group> beside the control topic

	// HoldFor is the duration of a hold for which the operator names none.
	HoldFor time.Duration `above:"0" max:"720h"`
	// HoldForMax is the longest hold that this router accepts.
	HoldForMax time.Duration `above:"0" max:"720h"`
	// HeldMax is the greatest number of keys that are held at a time: this router refuses further holds.
	HeldMax int `min:"1" max:"1024"`
	// SkipFor is the time for which a skip is in effect: in that time its event becomes a dead letter, whichever member owns
	// the key.
	SkipFor time.Duration `above:"0" max:"720h"`
	// SkipsMax is the greatest number of skips in effect at a time: this router refuses further ones.
	SkipsMax int `min:"1" max:"1024"`
	// ParkFor is the duration of a park for which the operator names none.
	ParkFor time.Duration `above:"0" max:"720h"`
	// ParkedMax is the greatest number of keys that are parked or come back at a time: this router refuses further parks.
	ParkedMax int `min:"1" max:"1024"`
	// StartWait is the time that a router waits at its start for the acts topic to be read; then it joins
	// without the holds that it has not read, and logs that.
	StartWait time.Duration `min:"0s"`
	// KeepFor is the time for which the acts topic keeps records of acts that no longer have an effect.
	KeepFor time.Duration `above:"0"`
}

// DefaultConfig returns the default bounds.
func DefaultConfig() Config {
	return Config{
		Enabled: true, HoldFor: time.Hour, HoldForMax: 24 * time.Hour, HeldMax: 1000,
		SkipFor: time.Hour, SkipsMax: 1000,
		ParkFor: 7 * 24 * time.Hour, ParkedMax: 100,
		StartWait: 10 * time.Second, KeepFor: 30 * 24 * time.Hour,
	}
}

// Constants of a Keeper.
const (
	prefetch   = 100
	answerMax  = 10 * time.Second // for a record to be read back, or for the topic to be read to its end
	orderMax   = 7 * time.Second  // for an act: the answer must go out within the write timeout of the admin endpoint
	pauseFirst = 200 * time.Millisecond
	pauseMax   = 30 * time.Second
	lookEvery  = 5 * time.Second // checks for expired holds, since the wall clock may jump
	trimEvery  = time.Hour
	lineEvery  = time.Second // between log lines about acts: any writer of the topic can cause them
	lineBurst  = 20

	againWithin = 2 * time.Second // random wait before a member writes lost acts again, so that mostly one member does
	againMost   = 32              // acts that it writes again at a time
)

// Errors of acts.
var (
	// ErrUnreadable says that the acts topic cannot be read or written.
	ErrUnreadable = errors.New("the acts topic cannot be used now")
	// ErrUnknown says that the record of an act may or may not be in the topic, now or later.
	ErrUnknown = errors.New("it is unknown whether the act takes effect: check the list of acts before you try again")
	// ErrNothing says that there is no event to skip.
	ErrNothing = errors.New("nothing to skip")
	// ErrRefused says that the bounds of the settings do not allow an act.
	ErrRefused = errors.New("refused")
)

// Keeper follows the acts topic of a group and appends to it. Its methods are safe for concurrent use.
type Keeper struct {
	cfg     Config
	member  string
	open    func() (controllog.Transport, error)
	wall    func() time.Time
	log     *slog.Logger
	lines   *loglimit.Limit
	metrics *Metrics
	read    chan struct{} // closed when the topic was read to its end for the first time

	effects Effects       // of Run's goroutine
	lapsed  int           // keys whose park has expired, as of the last check by Run's goroutine
	ended   chan struct{} // cap 1: ends has changed

	restart bool                 // the topic was replaced: it is read again from its first record
	again   map[ID]clock.Instant // acts that the topic has lost: the times at which they were written again
	answers []func()             // to acts of this member that were read back; given once the mailboxes apply them

	mu        sync.Mutex
	fold      Fold
	transport controllog.Transport // nil: none at present
	why       error                // the reason why the topic cannot be used now; nil: it can
	waiting   map[ID]chan Result   // acts of this member that are not read back yet
	ends      map[ID]*ending       // of skips and unparks at this member, that are not read back yet
}

// New returns the Keeper of the member with that name. open returns a new log of records on the acts topic, and wall the time of
// day. It does no I/O.
func New(cfg Config, member string, open func() (controllog.Transport, error), wall func() time.Time, log *slog.Logger, metrics *Metrics) *Keeper {
	k := &Keeper{
		cfg: cfg, member: member, open: open, wall: wall, metrics: metrics,
		log:  log.With("component", "act"),
		read: make(chan struct{}), ended: make(chan struct{}, 1), ends: map[ID]*ending{}, again: map[ID]clock.Instant{},
		why: errors.New("not read yet"), waiting: map[ID]chan Result{},
	}
	k.lines = loglimit.NewBurst(k.log, "acts", lineEvery, lineBurst, metrics.lines)
	metrics.watch(k)
	return k
}

// Read is closed when the topic was read to its end, and the mailboxes know all keys that are held.
func (k *Keeper) Read() <-chan struct{} { return k.read }

// StartWait returns how long a member should wait for Read at its start.
func (k *Keeper) StartWait() time.Duration { return k.cfg.StartWait }

// Check returns the reason why the topic cannot be used now, nil if it can.
func (k *Keeper) Check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.why
}

// Held returns the hold of a key, and whether there is one.
func (k *Keeper) Held(key event.Key) (Record, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fold.Held(key, k.wall())
}

// HeldKeys returns how many keys are held in the group, as this member has read.
func (k *Keeper) HeldKeys() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.fold.Keys(k.wall()))
}

// SkipsOf returns the skips of a key that have an effect, as this member has read them, the newest first.
func (k *Keeper) SkipsOf(key event.Key) []Shown {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fold.SkipsOf(key, k.wall())
}

// Skips returns how many skips are in effect in the group, as this member has read.
func (k *Keeper) Skips() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.fold.Skips(k.wall()))
}

// ParkOf returns the park or unpark of a key that has an effect, as this member has read it, and whether there is one.
func (k *Keeper) ParkOf(key event.Key) (Record, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fold.ParkOf(key, k.wall())
}

// Parks returns how many keys are parked or come back in the group, and of how many a park or unpark has expired before its
// owner told its end, as this member has read.
func (k *Keeper) Parks() (active, lapsed int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.wall()
	return len(k.fold.Parks(now)), k.fold.LapsedParks(now)
}

// List returns the acts that this member has read: those with an effect first, each newest first.
func (k *Keeper) List() []Shown {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fold.List(k.wall())
}

// Order is the request of an operator.
type Order struct {
	Key    event.Key
	By     string        // who made it, in their own words
	From   string        // where the request came from
	Reason string        // why
	For    time.Duration // of a hold, park or unpark; 0: Config.HoldFor, Config.ParkFor or Config.HoldForMax

	Event event.MessageID // of a skip
	named bool            // the operator has named the event
}

// Hold makes the key's events wait at every member that reads the acts topic. It returns when the record was read
// back: then this member holds the key, and the others do so in a moment.
func (k *Keeper) Hold(ctx context.Context, o Order) (Record, Result, error) {
	if o.For == 0 {
		o.For = min(k.cfg.HoldFor, k.cfg.HoldForMax)
	}
	o.For = o.For.Truncate(time.Millisecond)
	if o.For <= 0 || o.For > k.cfg.HoldForMax {
		return Record{}, "", fmt.Errorf("%w: a hold for %v, want more than 0s and at most %v (acts.hold_for_max, and half of what pulsar.spill.rounds_max allows)", ErrRefused, o.For, k.cfg.HoldForMax)
	}
	if _, held := k.Held(o.Key); !held && k.HeldKeys() >= k.cfg.HeldMax {
		k.metrics.refused.Inc()
		return Record{}, "", fmt.Errorf("%w: %d keys are held already (acts.held_max)", ErrRefused, k.cfg.HeldMax)
	}
	return k.perform(ctx, Hold, o)
}

// Skip makes an event of the key go to the dead letter topic, at whichever member owns the key. It returns when the record was read
// back. If the event is skipped already, nothing is written: the result is Already, with the earlier skip and its end.
func (k *Keeper) Skip(ctx context.Context, o Order) (Shown, Result, error) {
	o.For = k.cfg.SkipFor.Truncate(time.Millisecond)
	k.mu.Lock()
	before, already := k.fold.skipping(o.Key, o.Event, k.wall())
	k.mu.Unlock()
	if already {
		return before.shown(true), Already, nil
	}
	if k.Skips() >= k.cfg.SkipsMax {
		k.metrics.refused.Inc()
		return Shown{}, "", fmt.Errorf("%w: %d skips are in effect already (acts.skips_max)", ErrRefused, k.cfg.SkipsMax)
	}
	r, result, err := k.perform(ctx, Skip, o)
	if result == Already { // two orders at a time: the first counts
		k.mu.Lock()
		before, already = k.fold.skipping(o.Key, o.Event, k.wall())
		k.mu.Unlock()
		if already {
			return before.shown(true), Already, nil
		}
	}
	return r.shown(result == Skipping), result, err
}

// Park makes the key's events go to the parking topic, at whichever member owns the key. It returns when the record was read back.
// Members of versions that know no parks must not own keys, nor receive events: that is for the caller to see.
func (k *Keeper) Park(ctx context.Context, o Order) (Record, Result, error) {
	if o.For == 0 {
		o.For = k.cfg.ParkFor
	}
	if o.For = o.For.Truncate(time.Millisecond); o.For <= 0 || o.For > DurationMax {
		return Record{}, "", fmt.Errorf("%w: a park for %v, want more than 0s and at most %v", ErrRefused, o.For, DurationMax)
	}
	if err := k.roomToPark(o.Key); err != nil {
		return Record{}, "", err
	}
	return k.perform(ctx, Park, o)
}

// Unpark makes the key's letters in the parking topic run before its other events, which wait meanwhile, as on hold. It
// returns when the record was read back; the owner tells the end. If the letters come back already, nothing is written: the
// result is Already, with the earlier unpark.
func (k *Keeper) Unpark(ctx context.Context, o Order) (Record, Result, error) {
	if o.For == 0 {
		o.For = k.cfg.HoldForMax
	}
	if o.For = o.For.Truncate(time.Millisecond); o.For <= 0 || o.For > k.cfg.HoldForMax {
		return Record{}, "", fmt.Errorf("%w: an unpark that lasts for %v, want more than 0s and at most %v (acts.hold_for_max, and half of what pulsar.spill.rounds_max allows)", ErrRefused, o.For, k.cfg.HoldForMax)
	}
	if before, is := k.ParkOf(o.Key); is && before.Kind == Unpark {
		return before, Already, nil
	}
	if err := k.roomToPark(o.Key); err != nil {
		return Record{}, "", err
	}
	return k.perform(ctx, Unpark, o)
}

func (k *Keeper) roomToPark(key event.Key) error {
	if _, known := k.ParkOf(key); known {
		return nil
	}
	if active, _ := k.Parks(); active >= k.cfg.ParkedMax {
		k.metrics.refused.Inc()
		return fmt.Errorf("%w: %d keys are parked already (acts.parked_max)", ErrRefused, active)
	}
	return nil
}

// Release ends the hold of a key. The result is NotHeld if there was none.
func (k *Keeper) Release(ctx context.Context, o Order) (Record, Result, error) {
	o.For = 0
	return k.perform(ctx, Release, o)
}

// perform appends the record of an act and waits until it is read back.
func (k *Keeper) perform(ctx context.Context, kind Kind, o Order) (Record, Result, error) {
	at := k.wall().Truncate(time.Millisecond)
	r := Record{
		Kind: kind, ID: newID(), Key: o.Key, By: o.By, Via: k.member + ", asked from " + o.From, Reason: o.Reason,
		At: at, Until: at.Add(o.For), Event: o.Event,
	}
	if err := r.validate(); err != nil {
		return Record{}, "", fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if why := k.Check(); why != nil { // or the record would be read back before the mailboxes go by it
		return Record{}, "", fmt.Errorf("%w: %w", ErrUnreadable, why)
	}
	ctx, cancel := context.WithTimeout(ctx, orderMax)
	defer cancel()
	result, err := k.append(ctx, r)
	return r, result, err
}

// append appends a record and waits until it is read back.
func (k *Keeper) append(ctx context.Context, r Record) (Result, error) {
	data, err := Encode(r)
	if err != nil {
		return "", err
	}
	read, failed := make(chan Result, 1), make(chan error, 1)
	k.mu.Lock()
	transport, why := k.transport, k.why
	if transport != nil {
		k.waiting[r.ID] = read
	}
	k.mu.Unlock()
	if transport == nil {
		return "", fmt.Errorf("%w: %w", ErrUnreadable, why)
	}
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.waiting, r.ID)
	}()
	transport.Append(data, func(err error) { failed <- err })
	for {
		select {
		case result := <-read:
			k.metrics.appends.WithLabelValues("ok").Inc()
			return result, nil
		case err := <-failed:
			if err == nil {
				failed = nil
				continue
			}
			k.metrics.appends.WithLabelValues("failed").Inc()
			return "", fmt.Errorf("%w: %w", ErrUnknown, err)
		case <-ctx.Done():
			k.metrics.appends.WithLabelValues("failed").Inc()
			return "", fmt.Errorf("%w: its record was not read back in time", ErrUnknown)
		}
	}
}

// Run follows the topic until ctx ends. It ends for no other reason: a member without acts is better than none.
func (k *Keeper) Run(ctx context.Context, keys Keys) error {
	pauses := backoff.Backoff{Min: pauseFirst, Max: pauseMax}
	for ctx.Err() == nil {
		v := &visit{Keeper: k, keys: keys}
		if err := v.run(ctx); ctx.Err() == nil {
			k.restart = k.restart || errors.Is(err, controllog.ErrReplaced)
			if v.caughtUp {
				pauses.Reset()
			}
			k.lost(ctx, cmp.Or(err, controllog.ErrReaderLost), pauses.Next(), keys)
		}
	}
	return nil
}

// lost notes that the topic cannot be used, and pauses.
func (k *Keeper) lost(ctx context.Context, why error, pause time.Duration, keys Keys) {
	k.setTransport(nil, why)
	k.metrics.readers.WithLabelValues("lost").Inc()
	k.log.Warn("acts topic not readable; trying again", "error", why, "pause", pause, "held_keys", k.effects.Held())
	k.wait(ctx, pause, keys)
}

// wait pauses, and lets acts expire meanwhile.
func (k *Keeper) wait(ctx context.Context, pause time.Duration, keys Keys) {
	for pause > 0 && ctx.Err() == nil {
		step := min(pause, lookEvery)
		_ = backoff.Sleep(ctx, step) // ctx ends the loop
		pause -= step
		if signal.IsClosed(k.read) { // before, the fold may lack a release
			k.settle(keys)
		}
	}
}

func (k *Keeper) setTransport(t controllog.Transport, why error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.transport, k.why = t, why
}

// settle makes the mailboxes go by the acts that have an effect now. It returns when to look again.
func (k *Keeper) settle(keys Keys) time.Duration {
	now := k.wall()
	k.mu.Lock()
	active, lapsed := k.fold.Active(now), k.fold.LapsedParks(now)
	next, expires := k.fold.Next(now)
	k.mu.Unlock()
	if released := k.effects.Become(active, keys); released > 0 {
		if log, due := k.lines.Line(); due {
			log.Info("keys are no longer held: released or expired", "keys", released, "held_keys", k.effects.Held())
		}
	}
	if lapsed > k.lapsed {
		k.log.Warn("a park or an unpark expired before its end was recorded: letters of the key may remain in the parking topic while newer events run; router unpark KEY runs the remaining letters",
			"keys", lapsed)
	}
	k.lapsed = lapsed
	if !expires {
		return lookEvery
	}
	return max(time.Millisecond, min(lookEvery, next.Sub(now)))
}

func newID() (id ID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}
