package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/testing/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pulsartest.LeftBehind()...) }

// site is some claims topics of a test's own.
type site struct {
	places func(control, subscription string) []Place
	open   func(t *testing.T, topic string) (controllog.Transport, error)
}

// memSite has them in memory.
func memSite(*testing.T) site {
	logs := newMemLogs()
	return site{
		places: func(control, subscription string) []Place {
			return []Place{
				{"persistent://t/control/__ringfence-claims", []string{Control(control)}},
				{"persistent://t/events/__ringfence-claims", []string{Subscription("persistent://t/events/a", subscription)}},
			}
		},
		open: func(_ *testing.T, topic string) (controllog.Transport, error) { return logs.of(topic), nil },
	}
}

// remoteLike is memSite with a log that does not tell where it ends.
func remoteLike(t *testing.T) site {
	s := memSite(t)
	open := s.open
	s.open = func(t *testing.T, topic string) (controllog.Transport, error) {
		log, err := open(t, topic)
		return endless{log}, err
	}
	return s
}

type endless struct{ controllog.Transport }

func (endless) End(context.Context) (event.Position, error) { return event.Position{Entry: -1}, nil }

// pulsarSite has them on a real broker, if there is one.
func pulsarSite(t *testing.T) site {
	pulsartest.URL(t)                                                           // or skip
	control, events := pulsartest.Topic(t, 0)+"-a", pulsartest.Topic(t, 0)+"-b" // in one namespace, on topics of this test
	return site{
		places: func(c, subscription string) []Place {
			return []Place{
				{control, []string{Control(c)}},
				{events, []string{Subscription("persistent://t/events/a", subscription)}},
			}
		},
		open: func(t *testing.T, topic string) (controllog.Transport, error) {
			cfg := controllog.DefaultPulsarConfig()
			cfg.Topic, cfg.DeniedIsFinal = topic, true
			options := pulsartest.Options(t)
			options.MetricsRegisterer = prometheus.NewRegistry()
			return controllog.NewPulsar(cfg, options, entries.Access{}, quiet())
		},
	}
}

type memLogs struct {
	mu   sync.Mutex
	logs map[string]*controllog.Mem
}

func newMemLogs() *memLogs { return &memLogs{logs: map[string]*controllog.Mem{}} }

func (m *memLogs) of(topic string) *controllog.Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.logs[topic] == nil {
		m.logs[topic] = controllog.NewMem()
	}
	return m.logs[topic]
}

// claimant is a Keeper that runs.
type claimant struct {
	*Keeper
	stop  func()
	ended chan error // cap 1
}

func (s site) claim(t *testing.T, who identity.Identity, places []Place, adjust ...func(*Config)) *claimant {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Identity, cfg.Places = who, places
	for _, a := range adjust {
		a(&cfg)
	}
	log := quiet()
	if os.Getenv("CLAIM_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c := &claimant{
		Keeper: New(cfg, func(topic string) (controllog.Transport, error) { return s.open(t, topic) }, log, NewMetrics(prometheus.NewRegistry())),
		ended:  make(chan error, 1),
	}
	var running sync.WaitGroup
	running.Go(func() { c.ended <- c.Run(ctx) })
	c.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(c.stop)
	return c
}

const patience = eventually.Most

// outcome waits until a claimant holds, and returns "", or has ended with an error, and returns that.
func (c *claimant) outcome(t *testing.T) error {
	t.Helper()
	select {
	case <-c.Held():
		return nil
	case err := <-c.ended:
		c.ended <- err
		return err
	case <-time.After(patience):
		t.Fatalf("neither held nor refused within %v: %v", patience, c.Check())
		return nil
	}
}

func (c *claimant) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-c.ended:
		c.ended <- err
		return err
	case <-time.After(patience):
		t.Fatalf("it continues after %v", patience)
		return nil
	}
}

func group(name string) identity.Identity {
	return identity.Of(identity.Setting{Name: "control_log.topic", Value: "persistent://t/" + name + "/__ring-orders"},
		identity.Setting{Name: "node.group", Value: "orders"})
}

var sites = map[string]func(t *testing.T) site{"mem": memSite, "end not known": remoteLike, "pulsar": pulsarSite}

// Claims keep this contract on every log. The Pulsar ones are skipped where there is no broker.
func TestContract(t *testing.T) {
	rules := map[string]func(t *testing.T, s site){
		"another group is refused, and the first goes on": func(t *testing.T, s site) {
			if broken := secondIsRefused(t, s); broken != "" {
				t.Error(broken)
			}
		},
		"of two at once one holds":            oneOfTwo,
		"equal ones all hold":                 equalsHold,
		"a release ends who runs, and frees":  releaseEndsAndFrees,
		"a generation outlasts all":           generationOutlasts,
		"who comes later writes nothing":      laterWritesNothing,
		"a new setting is there for the next": newSettingCounts,
	}
	for name, make := range sites {
		t.Run(name, func(t *testing.T) {
			for rule, check := range rules {
				t.Run(rule, func(t *testing.T) {
					t.Parallel()
					check(t, make(t))
				})
			}
		})
	}
}

// secondIsRefused returns an error text, or "".
func secondIsRefused(t *testing.T, s site) string {
	places := s.places("control", "s")
	first := s.claim(t, group("a"), places)
	if err := first.outcome(t); err != nil {
		return fmt.Sprintf("the first group: %v", err)
	}
	second := s.claim(t, group("b"), places[1:])
	err := second.outcome(t)
	if !errors.Is(err, ErrTaken) {
		return fmt.Sprintf("another group on the subscription: %v", err)
	}
	for _, part := range []string{
		`"subscription persistent://t/events/a s"`, `control_log.topic is "persistent://t/b/__ring-orders" here and "persistent://t/a/__ring-orders" there`,
		places[1].Topic, "run `router group release` with the settings there",
	} {
		if !strings.Contains(err.Error(), part) {
			return fmt.Sprintf("the error does not say %s: %v", part, err)
		}
	}
	select {
	case err := <-first.ended:
		return fmt.Sprintf("the first group ended, too: %v", err)
	default:
	}
	if err := first.Check(); err != nil {
		return fmt.Sprintf("the first group: %v", err)
	}
	return ""
}

// oneOfTwo: two groups that differ begin at the same moment, on the same of two namespaces: always exactly one
// of them holds. The other one has ended.
func oneOfTwo(t *testing.T, s site) {
	rounds := 5
	if first, _ := s.open(t, "x"); first != nil {
		if _, slow := first.(*controllog.Pulsar); !slow {
			rounds = 100
		}
	}
	won := map[string]int{}
	for round := range rounds {
		places := s.places(fmt.Sprintf("control-%d", round), fmt.Sprintf("s-%d", round))
		a, b := s.claim(t, group("a"), places), s.claim(t, group("b"), places)
		errA, errB := a.outcome(t), b.outcome(t)
		switch {
		case errA == nil && errors.Is(errB, ErrTaken):
			won["a"]++
		case errB == nil && errors.Is(errA, ErrTaken):
			won["b"]++
		default:
			t.Fatalf("round %d: a: %v, b: %v", round, errA, errB)
		}
		a.stop()
		b.stop()
	}
	t.Logf("won: %v", won)
}

func equalsHold(t *testing.T, s site) {
	places := s.places("control", "s")
	var all []*claimant
	for range 4 {
		all = append(all, s.claim(t, group("a"), places))
	}
	for i, c := range all {
		if err := c.outcome(t); err != nil {
			t.Errorf("member %d: %v", i, err)
		}
	}
}

// release ends the claims of a group.
func (s site) release(t *testing.T, who identity.Identity, force bool, places []Place) {
	t.Helper()
	for _, p := range places {
		log, err := s.open(t, p.Topic)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Look(t.Context(), log, func(*Fold) (*Record, error) {
			return &Record{Identity: who, Resources: p.Resources, Release: true, Force: force}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func releaseEndsAndFrees(t *testing.T, s site) {
	places := s.places("control", "s")
	a := s.claim(t, group("a"), places)
	if err := a.outcome(t); err != nil {
		t.Fatal(err)
	}
	s.release(t, group("b"), false, places) // which holds nothing
	if err := s.claim(t, group("b"), places).outcome(t); !errors.Is(err, ErrTaken) {
		t.Fatalf("after a release by a group without claims: %v", err)
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	s.release(t, group("b"), true, places)
	if err := a.end(t); !errors.Is(err, ErrReleased) ||
		!strings.Contains(err.Error(), places[0].Resources[0]) && !strings.Contains(err.Error(), places[1].Resources[0]) {
		t.Errorf("a router whose claim was released ended with %v", err)
	}
	b := s.claim(t, group("b"), places)
	if err := b.outcome(t); err != nil {
		t.Errorf("after the release: %v", err)
	}
	b.stop()
	s.release(t, group("b"), false, places)
	if err := s.claim(t, group("a"), places).outcome(t); err != nil {
		t.Errorf("after the release by the holder: %v", err)
	}
}

func generationOutlasts(t *testing.T, s site) {
	places := s.places("control", "s")
	a := s.claim(t, group("a"), places)
	if err := a.outcome(t); err != nil {
		t.Fatal(err)
	}
	if gen, ok := a.Began(); ok {
		t.Fatalf("a new subscription has a generation: %d", gen)
	}
	other := s.claim(t, group("a"), places) // a member that reads the records of a
	if err := other.outcome(t); err != nil {
		t.Fatal(err)
	}
	a.NoteBegan(3)
	a.NoteBegan(3)
	other.NoteBegan(2) // late
	eventually.NoError(t, patience, "the generation comes back", func() error {
		if gen, ok := other.Began(); !ok || gen != 3 {
			return fmt.Errorf("it is %d, %t", gen, ok)
		}
		return nil
	})
	a.stop()
	other.stop()
	again := s.claim(t, group("a"), places)
	if err := again.outcome(t); err != nil {
		t.Fatal(err)
	}
	if gen, ok := again.Began(); !ok || gen != 3 {
		t.Errorf("after a restart the generation is %d, %v", gen, ok)
	}
	again.stop()
	s.release(t, group("a"), false, places)
	b := s.claim(t, group("b"), places)
	if err := b.outcome(t); err != nil {
		t.Fatal(err)
	}
	if gen, ok := b.Began(); !ok || gen != 3 {
		t.Errorf("the next group got generation %d, %v", gen, ok)
	}
}

// laterWritesNothing: members come and go, and the log does not grow by them, where it tells its end.
func laterWritesNothing(t *testing.T, s site) {
	places := s.places("control", "s")
	ends := func() []event.Position {
		var all []event.Position
		for _, p := range places {
			log, err := s.open(t, p.Topic)
			if err != nil {
				t.Fatal(err)
			}
			var at event.Position
			if _, err := Look(t.Context(), log, func(f *Fold) (*Record, error) { at, _ = f.Last(); return nil, nil }); err != nil {
				t.Fatal(err)
			}
			all = append(all, at)
		}
		return all
	}
	var after []event.Position
	for i := range 3 {
		c := s.claim(t, group("a"), places)
		if err := c.outcome(t); err != nil {
			t.Fatal(err)
		}
		c.stop()
		now := ends()
		if _, cannotTell := mustOpen(t, s, places[0].Topic).(endless); i > 0 && !cannotTell && !slices.Equal(after, now) {
			t.Errorf("start %d moved the end from %v to %v", i, after, now)
		}
		after = now
	}
}

func mustOpen(t *testing.T, s site, topic string) controllog.Transport {
	t.Helper()
	log, err := s.open(t, topic)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// newSettingCounts: of two joining routers that know a setting of a later version, and differ in it, one holds.
func newSettingCounts(t *testing.T, s site) {
	places := s.places("control", "s")
	old := s.claim(t, orders, places)
	if err := old.outcome(t); err != nil {
		t.Fatal(err)
	}
	a, b := s.claim(t, newer, places), s.claim(t, newest, places)
	if errA, errB := a.outcome(t), b.outcome(t); (errA == nil) == (errB == nil) {
		t.Errorf("a: %v, b: %v", errA, errB)
	}
	if err := old.Check(); err != nil || len(old.ended) > 0 {
		t.Errorf("the old member: %v", err)
	}
}

// fragile is a log whose reader can be lost, and whose broker may refuse.
type fragile struct {
	*controllog.Mem
	mu     sync.Mutex
	cuts   []context.CancelFunc // of the readers
	denied bool
}

func (f *fragile) Run(ctx context.Context) error {
	if f.denied {
		return fmt.Errorf("%w x", controllog.ErrDenied)
	}
	return f.Mem.Run(ctx)
}

func (f *fragile) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(controllog.Entry)) error {
	if f.denied {
		<-ctx.Done()
		return ctx.Err()
	}
	own, cut := context.WithCancel(ctx)
	defer cut()
	f.mu.Lock()
	f.cuts = append(f.cuts, cut)
	f.mu.Unlock()
	err := f.Mem.Tail(own, from, prefetch, opened, record)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", controllog.ErrReaderLost, err)
}

func (f *fragile) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cut := range f.cuts {
		cut()
	}
}

func fragileSite() (site, *fragile) {
	log := &fragile{Mem: controllog.NewMem()}
	return site{
		places: func(_, subscription string) []Place {
			return []Place{{"persistent://t/events/__ringfence-claims", []string{Subscription("persistent://t/events/a", subscription)}}}
		},
		open: func(*testing.T, string) (controllog.Transport, error) { return log, nil },
	}, log
}

// After the deletion of the topic, a running group writes its claim again, unless another group was faster.
func TestLostClaims(t *testing.T) {
	s, log := fragileSite()
	places := s.places("", "s")
	a := s.claim(t, group("a"), places)
	if err := a.outcome(t); err != nil {
		t.Fatal(err)
	}
	log.Roll()
	log.Forget(event.Position{Ledger: 1 << 30})
	log.lose()
	eventually.NoError(t, patience, "the claim is written again", func() error {
		if end, err := log.End(t.Context()); end.Entry < 0 {
			return fmt.Errorf("the log ends at %v, %w", end, err)
		}
		return nil
	})
	b := s.claim(t, group("b"), places)
	if err := b.outcome(t); !errors.Is(err, ErrTaken) {
		t.Fatalf("after the claim was written again: %v", err)
	}

	log.Roll()
	log.Forget(event.Position{Ledger: 1 << 30})
	if err := s.claim(t, group("c"), places).outcome(t); err != nil {
		t.Fatalf("on a new topic: %v", err)
	}
	for pause := 300 * time.Millisecond; len(a.ended) == 0 && pause < patience; pause += pause / 2 { // all members read the present records, once their reader is not just replaced by another one
		log.lose()
		time.Sleep(pause)
	}
	if err := a.end(t); !errors.Is(err, ErrTaken) {
		t.Errorf("the group that has lost its claim: %v", err)
	}
}

// Pulsar's client goes on by itself in a topic that was deleted and made again, or restored: then, too, one group alone may hold a subscription.
func TestClaimsTopicIsReplacedUnderItsReader(t *testing.T) {
	for name, next := range map[string]event.Position{"deleted": {Ledger: 100}, "metadata lost": {Ledger: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, log := fragileSite()
			log.Restore(event.Position{Ledger: 3})
			places := s.places("", "s")
			a := s.claim(t, group("a"), places)
			if err := a.outcome(t); err != nil {
				t.Fatal(err)
			}
			log.Restore(next)
			b := s.claim(t, group("b"), places)
			if err := b.outcome(t); err != nil {
				return // the first group was faster
			}
			if err := a.end(t); !errors.Is(err, ErrTaken) {
				t.Errorf("two groups hold the subscription; the first one: %v", err)
			}
		})
	}
}

// A reader of a claims topic on which nothing happens is not replaced.
func TestQuietClaimsKeepTheirReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		metrics := NewMetrics(registry)
		s := memSite(t)
		cfg := DefaultConfig()
		cfg.Identity, cfg.Places = group("a"), s.places("persistent://t/control/__ring-orders", "s")
		k := New(cfg, func(topic string) (controllog.Transport, error) { return s.open(t, topic) }, quiet(), metrics)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		time.Sleep(10 * answerMax)
		if lost := testutil.ToFloat64(metrics.readers.WithLabelValues("lost")); lost > 0 || k.Check() != nil {
			t.Errorf("%v readers are lost; %v", lost, k.Check())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A broker that refuses ends a router at once, unless it can do without its claims.
func TestDenied(t *testing.T) {
	s, log := fragileSite()
	log.denied = true
	if err := s.claim(t, group("a"), s.places("", "s")).outcome(t); !errors.Is(err, controllog.ErrDenied) {
		t.Errorf("a router that is not let to the claims topic: %v", err)
	}
	a := s.claim(t, group("a"), s.places("", "s"), func(c *Config) { c.Optional = true })
	if err := a.outcome(t); err != nil {
		t.Errorf("one that can do without: %v", err)
	}
}

// A router that can do without waits for a broker that does not answer, but not for long.
func TestOptionalPatience(t *testing.T) {
	silent := site{open: func(*testing.T, string) (controllog.Transport, error) { return unreachable{}, nil }}
	places := []Place{{"persistent://t/events/__ringfence-claims", []string{subA}}}
	strict := silent.claim(t, group("a"), places)
	a := silent.claim(t, group("a"), places, func(c *Config) { c.Optional, c.PatienceMax = true, 20*time.Millisecond })
	if err := a.outcome(t); err != nil {
		t.Fatal(err)
	}
	if signal.IsClosed(strict.Held()) || strict.Check() == nil {
		t.Error("a keeper that is not optional continues, too")
	}
}

// unreachable is a log whose broker never answers.
type unreachable struct{}

func (unreachable) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (unreachable) Append([]byte, func(error))    {}
func (unreachable) End(ctx context.Context) (event.Position, error) {
	<-ctx.Done()
	return event.Position{}, ctx.Err()
}
func (unreachable) MoveAnchor(context.Context, event.Position) error { return nil }
func (unreachable) Tail(ctx context.Context, _ event.Position, _ int, _ func(), _ func(controllog.Entry)) error {
	<-ctx.Done()
	return ctx.Err()
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// distant is a log whose readers take some time to open, as those of a broker do.
type distant struct{ *controllog.Mem }

func (d distant) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(controllog.Entry)) error {
	time.Sleep(20 * time.Millisecond)
	return d.Mem.Tail(ctx, from, prefetch, opened, record)
}

// A claims topic is never trimmed, and its claims, which are written again twice a day, are each in a ledger of their
// own. A router that starts after years reads it all.
func TestClaimsOfYears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := controllog.NewMem()
		places := []Place{{"persistent://t/events/__ringfence-claims", []string{Subscription("persistent://t/events/a", "s")}}}
		data, err := Encode(Record{Resources: places[0].Resources, Identity: group("a"), Writer: Writer{1}})
		if err != nil {
			t.Fatal(err)
		}
		for range 5000 {
			log.Put(data)
			log.Roll()
		}
		log.Put(data)
		cfg := DefaultConfig()
		cfg.Identity, cfg.Places = group("a"), places
		k := New(cfg, func(string) (controllog.Transport, error) { return distant{log}, nil }, quiet(), NewMetrics(prometheus.NewRegistry()))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		select {
		case <-k.Held():
		case <-time.After(10 * time.Minute):
			t.Errorf("not held within 10 minutes: %v", k.Check())
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A claim is written again at the latest after twice the refresh, whatever else others write meanwhile: records that this build cannot read, and
// claims of members of the group that have other topics.
func TestOthersRecordsRefreshNoClaim(t *testing.T) {
	mine, theirs := Subscription("persistent://t/events/a", "s"), Subscription("persistent://t/events/b", "s")
	partial, err := Encode(Record{Resources: []string{theirs}, Identity: group("a"), Writer: Writer{1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"unreadable": {0xff}, "of a later version": {0x08, formatVersion + 1}, "a member with other topics": partial,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := controllog.NewMem()
				cfg := DefaultConfig()
				cfg.Identity, cfg.Places = group("a"), []Place{{"persistent://t/events/__ringfence-claims", []string{mine}}}
				metrics := NewMetrics(prometheus.NewRegistry())
				k := New(cfg, func(string) (controllog.Transport, error) { return log, nil }, quiet(), metrics)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- k.Run(ctx) }()
				<-k.Held()
				for range 8 {
					time.Sleep(refresh / 2)
					log.Put(data)
				}
				if written := testutil.ToFloat64(metrics.appends.WithLabelValues("ok")); written < 2 {
					t.Errorf("the claim was written %v times in %v, want at least 2", written, 4*refresh)
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// flawed is a log whose first appends fail, and which may name an end that nobody can read.
type flawed struct {
	*controllog.Mem

	fails  *atomic.Int32 // appends that fail from now on
	stands bool          // the record of an append that fails stands in the log nevertheless
	end    event.Position
}

func (f flawed) Append(data []byte, done func(error)) {
	fails := f.fails.Add(-1) >= 0
	if !fails || f.stands {
		f.Put(data)
	}
	if fails {
		done(errFlawed)
		return
	}
	done(nil)
}

var errFlawed = errors.New("refused on purpose")

func (f flawed) End(ctx context.Context) (event.Position, error) {
	if f.end != (event.Position{}) {
		return f.end, nil
	}
	return f.Mem.End(ctx)
}

func flawedSite(log flawed) (site, []Place) {
	return site{open: func(*testing.T, string) (controllog.Transport, error) { return log, nil }},
		[]Place{{"persistent://t/events/__ringfence-claims", []string{Subscription("persistent://t/events/a", "s")}}}
}

// A claim whose record could not be written is written again, and the reason is named meanwhile; one whose record stands in spite of the error counts.
func TestFailedAppends(t *testing.T) {
	for name, stands := range map[string]bool{"no record stands": false, "the records stand": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := flawed{Mem: controllog.NewMem(), fails: &atomic.Int32{}, stands: stands}
				log.fails.Store(3)
				s, places := flawedSite(log)
				a := s.claim(t, group("a"), places)
				defer a.stop()
				synctest.Wait()
				if why := a.Check(); !stands && !errors.Is(why, errFlawed) {
					t.Errorf("it waits because of %v", why)
				}
				if err := a.outcome(t); err != nil {
					t.Fatal(err)
				}
				b := s.claim(t, group("b"), places)
				defer b.stop()
				if err := b.outcome(t); !errors.Is(err, ErrTaken) {
					t.Errorf("another group: %v", err)
				}
			})
		})
	}
}

// A log whose newest record cannot be read keeps no router from its claim for long, and the claims before that record count.
func TestUnreadableEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := flawed{Mem: controllog.NewMem(), fails: &atomic.Int32{}, end: event.Position{Ledger: 1 << 30}}
		s, places := flawedSite(log)
		for _, c := range []struct {
			group string
			want  error
		}{{"a", nil}, {"b", ErrTaken}} {
			k := s.claim(t, group(c.group), places)
			defer k.stop()
			time.Sleep(answerMax - time.Second)
			synctest.Wait()
			if signal.IsClosed(k.Held()) || len(k.ended) > 0 {
				t.Errorf("%s has decided before it has read to the end", c.group)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if err := k.outcome(t); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.group, err, c.want)
			}
		}
		if _, err := Look(t.Context(), log, func(*Fold) (*Record, error) {
			t.Error("a change is asked for by a state that is not known")
			return nil, nil
		}); err == nil {
			t.Error("a look at a log that was not read to its end has seen all")
		}
	})
}

// crossed puts a record of another writer before each that is appended.
type crossed struct {
	*controllog.Mem

	other []byte
}

func (c crossed) Append(data []byte, done func(error)) {
	c.Put(c.other)
	c.Mem.Append(data, done)
}

// A release is done when its own record is read back, not another one; and one that could not be written is not done.
func TestLookReadsItsOwnRecordBack(t *testing.T) {
	resources := []string{Subscription("persistent://t/events/a", "s")}
	other, err := Encode(Record{Resources: []string{Subscription("persistent://t/events/b", "s")}, Identity: group("b"), Writer: Writer{1}})
	if err != nil {
		t.Fatal(err)
	}
	change := func(*Fold) (*Record, error) { return &Record{Resources: resources, Identity: group("a")}, nil }
	log := crossed{controllog.NewMem(), other}
	log.Put(other)
	if f, err := Look(t.Context(), log, change); err != nil || !holds(f, group("a"), resources[0]) {
		t.Errorf("the claim is not read back: %v", err)
	}
	failing := flawed{Mem: controllog.NewMem(), fails: &atomic.Int32{}}
	failing.Put(other)
	failing.fails.Store(1)
	if _, err := Look(t.Context(), failing, change); !errors.Is(err, errFlawed) {
		t.Errorf("an append that failed: %v", err)
	}
}
