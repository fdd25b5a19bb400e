package claim

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog"
)

// Config of a [Keeper].
type Config struct {
	Identity identity.Identity
	Places   []Place

	// Optional lets a router whose mode is not exclusive continue without its claims after PatienceMax.
	Optional    bool
	PatienceMax time.Duration
}

// Constants of a Keeper.
const (
	prefetch    = 100
	answerMax   = 30 * time.Second // for a record to be read back, or for the log to be read to its end
	pauseFirst  = 200 * time.Millisecond
	pauseMax    = 5 * time.Second
	refresh     = 12 * time.Hour // a claim is written again after this and up to as much more by chance: see docs/adr/0029
	optionalMax = 10 * time.Second
)

// DefaultConfig returns a Config without an identity and places.
func DefaultConfig() Config { return Config{PatienceMax: optionalMax} }

// Errors that end a router.
var (
	// ErrTaken says that a resource belongs to a group with other settings.
	ErrTaken = errors.New("claimed by a group with other settings")
	// ErrReleased says that an operator has ended the claim of this group while this router ran.
	ErrReleased = errors.New("the claim of this group was released while this router ran")
)

// Keeper claims a group's resources and watches the claims while a router runs. Its methods are
// safe for concurrent use.
type Keeper struct {
	cfg     Config
	open    func(topic string) (controllog.Transport, error)
	log     *slog.Logger
	metrics *Metrics

	places []*place
	read   sync.WaitGroup // of all places: their logs were read once, so that a conflict would be known
	all    chan struct{}  // closed when read is over
	held   chan struct{}  // closed when all places are

	mu    sync.Mutex
	began bool
	gen   uint32
	seen  map[string]Verdict // by topic, of the newest look
	waits map[string]error   // by topic, why it is not held yet
}

// New returns a Keeper. open returns a new log of records on a topic. It does no I/O.
func New(cfg Config, open func(topic string) (controllog.Transport, error), log *slog.Logger, metrics *Metrics) *Keeper {
	k := &Keeper{
		cfg: cfg, open: open, log: log.With("component", "claim"), metrics: metrics,
		all: make(chan struct{}), held: make(chan struct{}),
		seen: map[string]Verdict{}, waits: map[string]error{},
	}
	turn := make(chan struct{})
	close(turn)
	for _, at := range cfg.Places {
		p := &place{
			keeper: k, Place: at, log: k.log.With("topic", at.Topic),
			turn: turn, held: make(chan struct{}), wake: make(chan struct{}, 1),
			logged: map[Result]clock.Instant{},
		}
		k.read.Add(1)
		p.wasRead = sync.OnceFunc(k.read.Done)
		k.places = append(k.places, p)
		k.waits[at.Topic] = errors.New("not read yet")
		// Two groups that want the same resources in two namespaces claim them in the same order, so that one of the
		// groups gets both.
		turn = p.held
	}
	metrics.watch(k)
	return k
}

// Run claims, and then watches until ctx ends. It returns nil when ctx ends, [ErrTaken] or
// [ErrReleased] with the differences, or an error if a claims topic cannot be used at all.
func (k *Keeper) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		k.read.Wait()
		close(k.all)
	})
	for _, p := range k.places {
		group.Go(func() error {
			defer p.wasRead()
			return p.run(ctx)
		})
	}
	group.Go(func() error {
		k.awaitAll(ctx)
		return nil
	})
	return group.Wait()
}

// awaitAll closes held when every place is.
func (k *Keeper) awaitAll(ctx context.Context) {
	for _, p := range k.places {
		select {
		case <-p.held:
		case <-ctx.Done():
			return
		}
	}
	close(k.held)
	<-ctx.Done()
}

// Held is closed when this group holds all that it needs.
func (k *Keeper) Held() <-chan struct{} { return k.held }

// Check returns the reason why the Keeper waits, nil when this group holds all its resources.
func (k *Keeper) Check() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.places {
		if why := k.waits[p.Topic]; why != nil {
			return fmt.Errorf("waiting for the claim on %s: %w", p.Topic, why)
		}
	}
	return nil
}

// Began returns the highest generation in which a group has issued fencing tokens on this
// Keeper's resources, according to the claims topics, and whether there is one.
func (k *Keeper) Began() (gen uint32, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.seen {
		if v.Began {
			gen, ok = max(gen, v.Gen), true
		}
	}
	return gen, ok
}

// NoteBegan writes down, once, that this group gives out fencing tokens of a generation. It does not block.
func (k *Keeper) NoteBegan(gen uint32) {
	k.mu.Lock()
	known := k.began && k.gen >= gen
	k.began, k.gen = true, max(k.gen, gen)
	k.mu.Unlock()
	if known {
		return
	}
	for _, p := range k.places {
		signal.Set(p.wake)
	}
}

func (k *Keeper) generation() (gen uint32, began bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gen, k.began
}

// place is one claims topic of a Keeper.
type place struct {
	Place

	keeper  *Keeper
	log     *slog.Logger
	turn    <-chan struct{} // closed when the place before this one is held
	held    chan struct{}
	wake    chan struct{}            // cap 1: there is a generation to write down
	wasRead func()                   // once
	logged  map[Result]clock.Instant // when a line about records with this result was last logged; used only by the goroutine of visits
	owned   bool                     // the log has said that this group holds all here; of the goroutine of visits
}

// run keeps one claim until ctx ends or something final happens.
func (p *place) run(ctx context.Context) error {
	err := p.keep(ctx)
	switch {
	case ctx.Err() != nil && !final(err):
		return nil
	case final(err) || !p.keeper.cfg.Optional:
		return err
	}
	p.goOnUnclaimed(err)
	<-ctx.Done()
	return nil
}

func final(err error) bool { return errors.Is(err, ErrTaken) || errors.Is(err, ErrReleased) }

func (p *place) keep(ctx context.Context) error {
	transport, err := p.keeper.open(p.Topic)
	if err != nil {
		return err
	}
	transport = controllog.Watched(transport) // a claim that the topic has lost is written again
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return transport.Run(ctx) })
	if p.keeper.cfg.Optional {
		group.Go(func() error {
			p.continueUnclaimed(ctx)
			return nil
		})
	}
	group.Go(func() error { return p.visits(ctx, transport) })
	return group.Wait()
}

// continueUnclaimed lets an Optional router continue without the claim after PatienceMax.
func (p *place) continueUnclaimed(ctx context.Context) {
	timer := time.NewTimer(p.keeper.cfg.PatienceMax)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-p.held:
	case <-timer.C:
		p.goOnUnclaimed(p.keeper.Check())
	}
}

func (p *place) goOnUnclaimed(why error) {
	p.log.Warn("continuing without the claim", "error", why)
	p.wasRead()
	p.hold(nil)
}

// visits reads the log from its beginning, again each time that the reader is lost: only the
// log's present content counts.
func (p *place) visits(ctx context.Context, transport controllog.Transport) error {
	pauses := backoff.Backoff{Min: pauseFirst, Max: pauseMax}
	for ctx.Err() == nil {
		v := newVisit(p, transport)
		err := v.run(ctx)
		if v.caughtUp {
			pauses.Reset()
		}
		pause := pauses.Next()
		switch {
		case final(err), errors.Is(err, controllog.ErrDenied) && !p.isHeld():
			return err
		case ctx.Err() == nil:
			p.waitsFor(err)
			p.keeper.metrics.readers.WithLabelValues("lost").Inc()
			p.log.Warn("claims topic not readable; trying again", "error", err, "pause", pause)
		}
		_ = backoff.Sleep(ctx, pause) // ctx ends the loop
	}
	return nil
}

func (p *place) isHeld() bool { return signal.IsClosed(p.held) }

// hold notes that this group holds its resources here.
func (p *place) hold(v *Verdict) {
	k := p.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if v != nil {
		k.seen[p.Topic] = *v
	}
	delete(k.waits, p.Topic)
	if !p.isHeld() {
		close(p.held)
	}
}

func (p *place) waitsFor(why error) {
	p.keeper.mu.Lock()
	defer p.keeper.mu.Unlock()
	if !p.isHeld() {
		p.keeper.waits[p.Topic] = why
	}
}

// visit is one reader of a claims topic, from the first record on.
type visit struct {
	*place

	transport controllog.Transport
	fold      Fold
	writer    Writer
	every     time.Duration
	refresh   *time.Timer // no member of this group has written its claim for that long
	answer    *time.Timer // later answers are not expected

	caughtUp  bool       // fold covers the log up to the start of the visit, or later
	appending chan error // the answer to an append that is under way; nil: none is
	unread    bool       // an append has been answered, and is not read back yet
	due       bool       // refresh has passed
	retryAt   *time.Timer
	paused    bool // an append has failed
}

func newVisit(p *place, transport controllog.Transport) *visit {
	v := &visit{place: p, transport: transport}
	_, _ = rand.Read(v.writer[:]) // never fails
	v.every = refresh + time.Duration(binary.LittleEndian.Uint64(v.writer[:])%uint64(refresh))
	return v
}

func (v *visit) run(ctx context.Context) error {
	v.keeper.metrics.readers.WithLabelValues("opened").Inc()
	return controllog.Read(ctx, v.transport, controllog.First, prefetch, answerMax, v.follow)
}

func (v *visit) follow(ctx context.Context, end event.Position, entries <-chan controllog.Entry) error {
	v.refresh = time.NewTimer(v.every)
	v.answer = time.NewTimer(answerMax)
	v.retryAt = time.NewTimer(0)
	defer v.refresh.Stop()
	defer v.answer.Stop()
	defer v.retryAt.Stop()
	endKnown := end.Entry >= 0
	if !endKnown {
		v.wasRead() // reading our own record proves that everything before it was read
	}
	turn, all := v.turn, v.keeper.all
	for {
		last, some := v.fold.Last()
		if !v.caughtUp && endKnown && some && !last.Before(end) {
			v.caughtUp = true
		}
		if err := v.consider(endKnown); err != nil {
			return err
		}
		if v.caughtUp && !v.unread {
			v.answer.Reset(answerMax) // nothing is waited for
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-entries:
			if err := v.read(e); err != nil {
				return err
			}
		case err := <-v.appending:
			v.appended(err)
		case <-turn:
			turn = nil
		case <-all:
			all = nil
		case <-v.wake:
		case <-v.refresh.C:
			v.due = true
		case <-v.retryAt.C:
			v.paused = false
		case <-v.answer.C:
			if v.caughtUp && !v.unread { // nothing was waited for, and nothing has happened meanwhile
				continue
			}
			if !v.caughtUp && endKnown { // the last record cannot be read
				endKnown = false
				v.wasRead()
				v.answer.Reset(answerMax)
				continue
			}
			return fmt.Errorf("%s was not read back or not read to its end within %v", v.Topic, answerMax)
		}
	}
}

// read takes one record.
func (v *visit) read(e controllog.Entry) error {
	news := v.caughtUp // earlier records were reported when they arrived
	r, result := v.fold.Apply(e.At, e.Data)
	ours := r.Writer == v.writer
	if ours {
		v.unread, v.caughtUp = false, true
	}
	if result == Repeated {
		return nil
	}
	if news || result == Malformed || result == Later {
		v.report(e.At, r, result)
	}
	if ours && result == Malformed {
		return fmt.Errorf("%s does not take this group's claim: it knows %d resources, or a holder has too many settings", v.Topic, len(v.fold.states))
	}
	if (result == Claimed || result == Confirmed) && len(v.keeper.cfg.Identity.Against(r.Identity)) == 0 && v.covered(r) {
		v.due = false
		v.refresh.Reset(v.every)
	}
	return nil
}

// covered reports whether a record names all resources here. That of a member with other topics may name fewer.
func (v *visit) covered(r Record) bool {
	if slices.Equal(v.Resources, r.Resources) { // nearly always, and there may be thousands
		return true
	}
	named := make(map[string]bool, len(r.Resources))
	for _, name := range r.Resources {
		named[name] = true
	}
	return !slices.ContainsFunc(v.Resources, func(name string) bool { return !named[name] })
}

// report counts a record, and logs it if operators should know.
func (v *visit) report(at event.Position, r Record, result Result) {
	v.keeper.metrics.records.WithLabelValues(string(result)).Inc()
	if !v.mayLog(result) {
		return
	}
	switch result {
	case Malformed, Later:
		v.log.Warn("claim record ignored", "position", at.String(), "reason", string(result))
	case Refused:
		v.log.Warn("claim of another group refused", "position", at.String(),
			"resources", shown(r.Resources), "differs", v.keeper.cfg.Identity.Against(r.Identity).String())
	case Released:
		v.log.Info("claim released", "position", at.String(), "resources", shown(r.Resources), "force", r.Force)
	case Claimed, Confirmed, Repeated:
	}
}

// logEvery is the least time between two lines about records of one kind, since any writer of
// the topic can cause them. The counter has all.
const logEvery = 10 * time.Second

func (v *visit) mayLog(result Result) bool {
	now := clock.Now()
	if last, some := v.logged[result]; some && now.Sub(last) < logEvery {
		return false
	}
	v.logged[result] = now
	return true
}

// shown lists the first resources.
func shown(resources []string) string {
	if more := len(resources) - resourcesShown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(resources[:resourcesShown], ", "), more)
	}
	return strings.Join(resources, ", ")
}

// consider acts on the state of the log: it holds, writes, waits, or ends the router with an
// error.
func (v *visit) consider(endKnown bool) error {
	k := v.keeper
	if !v.caughtUp && endKnown {
		return nil
	}
	verdict := v.fold.Judge(k.cfg.Identity, v.Resources)
	gen, began := k.generation()
	missing := !verdict.Held() || verdict.Extends || v.due || began && !(verdict.AllBegan && verdict.GenLeast >= gen)
	if !v.caughtUp { // only a record of our own, when it is read, tells that the end was reached
		if !signal.IsClosed(v.turn) {
			return nil
		}
		return v.write(gen, began)
	}
	switch {
	case len(verdict.Conflicts) > 0:
		return &TakenError{Topic: v.Topic, Conflicts: verdict.Conflicts}
	case v.owned && len(verdict.Released) > 0:
		return fmt.Errorf("%w: %s, in %s", ErrReleased, shown(verdict.Released), v.Topic)
	}
	v.wasRead()
	if verdict.Held() && !verdict.Extends {
		v.owned = true
		v.hold(&verdict)
	}
	if !missing || !signal.IsClosed(v.turn) || !signal.IsClosed(k.all) {
		return nil
	}
	if v.owned && len(verdict.Free) > 0 && v.appending == nil && !v.unread && !v.paused {
		v.log.Warn("claim lost; writing it again")
	}
	return v.write(gen, began)
}

// write appends the claim, unless one is under way.
func (v *visit) write(gen uint32, began bool) error {
	if v.appending != nil || v.unread || v.paused {
		return nil
	}
	data, err := Encode(Record{Resources: v.Resources, Writer: v.writer, Identity: v.keeper.cfg.Identity, Gen: gen, Began: began})
	if err != nil {
		return err
	}
	answer := make(chan error, 1)
	v.appending, v.unread = answer, true
	v.transport.Append(data, func(err error) { answer <- err })
	return nil
}

// appended takes the answer to an append.
func (v *visit) appended(err error) {
	v.appending = nil
	if err == nil {
		v.keeper.metrics.appends.WithLabelValues("ok").Inc()
		return
	}
	v.keeper.metrics.appends.WithLabelValues("failed").Inc()
	v.log.Warn("claim not written; trying again", "error", err)
	v.waitsFor(fmt.Errorf("the claim cannot be written: %w", err))
	v.unread, v.paused = false, true
	v.retryAt.Reset(pauseFirst)
}

// TakenError names the resources that belong to other groups, and the differing settings.
type TakenError struct {
	Topic     string // the claims topic
	Conflicts []Conflict
}

// Unwrap returns [ErrTaken].
func (e *TakenError) Unwrap() error { return ErrTaken }

// Error names the resources and every setting that differs, with both values.
func (e *TakenError) Error() string {
	var all []string
	for i, c := range e.Conflicts {
		if i == resourcesShown {
			all = append(all, fmt.Sprintf("and %d more", len(e.Conflicts)-i))
			break
		}
		all = append(all, fmt.Sprintf("%q (%s)", c.Resource, c.Differences))
	}
	return fmt.Sprintf("%v: %s; %s says so. Give this router the settings of that group, or a group and a subscription of its own. "+
		"If the claim is from this group, before its settings were changed or corrected, stop all its routers, "+
		"run `router group release` with the settings there, and start them with those here "+
		"(docs/install.md#changing-what-a-group-agrees-on)", ErrTaken, strings.Join(all, "; "), e.Topic)
}

// resourcesShown is the number of resources that an error or a log line names.
const resourcesShown = 5
