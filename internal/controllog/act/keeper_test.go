package act

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
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
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pulsartest.LeftBehind()...) }

// boxes are the mailboxes of a member.
type boxes struct {
	mu   sync.Mutex
	held map[event.Key]bool
	log  []string

	skips map[skipped]event.Skip
	parks map[event.Key]event.Park
}

func (b *boxes) ParkKeys(parks []event.Park) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range parks {
		if b.parks[p.Key] == p {
			b.log = append(b.log, fmt.Sprintf("%+v twice", p))
		}
		if b.parks[p.Key] = p; p.State == event.NotParked {
			delete(b.parks, p.Key)
		}
	}
}

// park returns the park of a key that the mailboxes know.
func (b *boxes) park(key event.Key) event.Park {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.parks[key]
}

func (b *boxes) SkipEvents(skips []event.Skip) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range skips {
		b.skips[skipped{s.Key, s.Event}] = s
	}
}

func (b *boxes) UnskipEvents(skips []event.Skip) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range skips {
		if _, is := b.skips[skipped{s.Key, s.Event}]; !is {
			b.log = append(b.log, fmt.Sprintf("the end of a skip of %v that is not known", s.Event))
		}
		delete(b.skips, skipped{s.Key, s.Event})
	}
}

// skipping returns the skips that the mailboxes know.
func (b *boxes) skipping() []event.Skip {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.skips))
}

func (b *boxes) HoldKeys(keys []event.Key) { b.set("hold", true, keys) }

func (b *boxes) ReleaseKeys(keys []event.Key) { b.set("release", false, keys) }

func (b *boxes) set(what string, held bool, keys []event.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		if b.held[key] == held {
			b.log = append(b.log, fmt.Sprintf("%s %q twice", what, key))
		}
		b.held[key] = held
	}
}

func (b *boxes) holds(key event.Key) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held[key]
}

// watch is a time of day that a test sets.
type watch struct {
	mu  sync.Mutex
	now time.Time
}

func (w *watch) read() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *watch) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// keeper is a Keeper that runs.
type keeper struct {
	*Keeper
	boxes    *boxes
	watch    *watch
	registry *prometheus.Registry
	stop     func()
}

func startKeeper(t *testing.T, name string, open func() (controllog.Transport, error), change func(*Config)) *keeper {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("ACT_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	k := &keeper{boxes: &boxes{held: map[event.Key]bool{}, skips: map[skipped]event.Skip{}, parks: map[event.Key]event.Park{}}, watch: &watch{now: noon}, registry: prometheus.NewRegistry()}
	k.Keeper = New(cfg, name, open, k.watch.read, log, NewMetrics(k.registry))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		if err := k.Run(ctx, k.boxes); err != nil {
			t.Errorf("%s ended with %v", name, err)
		}
	})
	k.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(func() {
		k.stop()
		for _, bad := range k.boxes.log {
			t.Errorf("%s: %s", name, bad)
		}
	})
	return k
}

func (k *keeper) ready(t *testing.T) {
	t.Helper()
	eventually.NoError(t, eventually.Most, "the topic is read", k.Check)
	eventually.True(t, "that is told", func() bool { return signal.IsClosed(k.Read()) })
}

func order(key event.Key) Order {
	return Order{Key: key, By: "alice", From: "127.0.0.1:9", Reason: "poison pill"}
}

// logs are the topics that the contract of a Keeper is tried on.
var logs = map[string]func(*testing.T) func() (controllog.Transport, error){
	"memory": func(*testing.T) func() (controllog.Transport, error) {
		log := controllog.NewMem()
		return func() (controllog.Transport, error) { return log, nil }
	},
	"a log that does not tell its end": func(*testing.T) func() (controllog.Transport, error) {
		log := endless{controllog.NewMem()}
		return func() (controllog.Transport, error) { return log, nil }
	},
	"Pulsar": func(t *testing.T) func() (controllog.Transport, error) {
		pulsartest.URL(t) // or skip
		topic := pulsartest.Topic(t, 0) + "-acts"
		return func() (controllog.Transport, error) {
			cfg := controllog.DefaultPulsarConfig()
			cfg.Topic, cfg.DeniedIsFinal = topic, true
			options := pulsartest.Options(t)
			options.MetricsRegisterer = prometheus.NewRegistry()
			return controllog.NewPulsar(cfg, options, entries.Access{}, slog.New(slog.DiscardHandler))
		}
	},
}

type endless struct{ controllog.Transport }

func (endless) End(context.Context) (event.Position, error) { return event.Position{Entry: -1}, nil }

// TestContract: every member that reads the topic holds the same keys, also one that starts later, and a release or
// the end of a hold ends it everywhere.
func TestContract(t *testing.T) {
	for name, topic := range logs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := topic(t)
			a, b := startKeeper(t, "a", open, nil), startKeeper(t, "b", open, nil)
			a.ready(t)
			b.ready(t)
			r, result, err := a.Hold(t.Context(), order("k\xff"))
			if err != nil || result != Held || r.Until.Sub(r.At) != a.cfg.HoldFor {
				t.Fatalf("hold: %+v %s %v", r, result, err)
			}
			if !a.boxes.holds("k\xff") {
				t.Error("the member that has taken the hold does not hold the key")
			}
			eventually.True(t, "the other member holds it", func() bool { return b.boxes.holds("k\xff") })
			if got, held := b.Held("k\xff"); !held || got != r {
				t.Errorf("b has the hold as %+v, want %+v", got, r)
			}
			if _, result, err := b.Hold(t.Context(), Order{Key: "short", By: "bob", From: "1.2.3.4:5", Reason: "a look", For: time.Minute}); err != nil || result != Held {
				t.Fatalf("hold: %s %v", result, err)
			}
			c := startKeeper(t, "c", open, nil)
			c.ready(t)
			if !c.boxes.holds("k\xff") || !c.boxes.holds("short") {
				t.Error("a member that starts later does not hold the keys when it has read the topic")
			}
			c.watch.advance(2 * time.Minute)
			eventually.True(t, "the short hold has expired", func() bool { return !c.boxes.holds("short") && c.HeldKeys() == 1 })
			if _, result, err := c.Release(t.Context(), order("k\xff")); err != nil || result != Released {
				t.Fatalf("release: %s %v", result, err)
			}
			eventually.True(t, "it is released everywhere", func() bool { return !a.boxes.holds("k\xff") && !b.boxes.holds("k\xff") && !c.boxes.holds("k\xff") })
			if _, result, err := a.Release(t.Context(), order("k\xff")); err != nil || result != NotHeld {
				t.Errorf("another release: %s %v", result, err)
			}
			eventually.True(t, "all acts are listed", func() bool { return len(b.List()) == 4 })
			trail := b.List()
			var acts []string
			for _, one := range trail {
				acts = append(acts, one.Act+" by "+one.By)
				if one.Reason == "" || one.Via == "" || one.At.IsZero() {
					t.Errorf("the trail is incomplete: %+v", one)
				}
			}
			// For b, whose clock is behind, one hold has an effect: it comes first.
			if want := []string{"hold by bob", "release by alice", "release by alice", "hold by alice"}; !slices.Equal(acts, want) {
				t.Errorf("the trail is %q, want %q", acts, want)
			}
		})
	}
}

// TestSettingsBoundActs: no hold is longer or one too many, and none is made without a reason.
func TestSettingsBoundActs(t *testing.T) {
	log := controllog.NewMem()
	k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, func(c *Config) { c.HeldMax, c.HoldForMax = 1, 30*time.Minute })
	k.ready(t)
	long, nameless := order("k"), order("k")
	long.For, nameless.Reason = time.Hour, ""
	for _, o := range []Order{long, nameless} {
		if _, _, err := k.Hold(t.Context(), o); !errors.Is(err, ErrRefused) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if r, _, err := k.Hold(t.Context(), order("k")); err != nil || r.Until.Sub(r.At) != 30*time.Minute {
		t.Errorf("by default until %v: %v", r.Until, err)
	}
	if _, _, err := k.Hold(t.Context(), order("k2")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "acts.held_max") {
		t.Errorf("a second key: %v", err)
	}
	if _, result, err := k.Hold(t.Context(), order("k")); err != nil || result != Renewed {
		t.Errorf("the same key again: %s %v", result, err)
	}
	if n := testutil.ToFloat64(k.metrics.refused); n != 1 {
		t.Errorf("%v holds are counted as refused", n)
	}
}

// TestSkips: every member skips the same event, also one that starts later, until the skip expires; a second order of it changes
// nothing, and all members learn what became of it.
func TestSkips(t *testing.T) {
	for name, topic := range logs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := topic(t)
			a, b := startKeeper(t, "a", open, nil), startKeeper(t, "b", open, func(c *Config) { c.SkipsMax = 1 })
			a.ready(t)
			b.ready(t)
			o := order("k\xff")
			o.Event = event.MessageID{Ledger: 7, Entry: 1, Batch: 2, TopicPartition: 3}
			s, result, err := a.Skip(t.Context(), o)
			if err != nil || result != Skipping || s.Until.Sub(s.At) != a.cfg.SkipFor || s.Event != "7:1:3:2" {
				t.Fatalf("skip: %+v %s %v", s, result, err)
			}
			want := "skipped by alice: poison pill (act " + s.ID + ")"
			knows := func(k *keeper) bool {
				skips := k.boxes.skipping()
				return len(skips) == 1 && skips[0].Key == o.Key && skips[0].Event == o.Event && skips[0].Reason == want
			}
			if !knows(a) {
				t.Errorf("the member that has taken the skip has %+v", a.boxes.skipping())
			}
			eventually.True(t, "the other member skips it", func() bool { return knows(b) })
			if again, result, err := b.Skip(t.Context(), o); err != nil || result != Already || again != s {
				t.Errorf("again: %+v %s %v", again, result, err)
			}
			other := o
			other.Event.Entry = 2
			if _, _, err := b.Skip(t.Context(), other); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "acts.skips_max") {
				t.Errorf("another one: %v", err)
			}
			skip := b.boxes.skipping()[0]
			b.Ended([]event.Skipped{{Skip: skip, Done: true}})
			b.Ended([]event.Skipped{{Skip: skip}, {Skip: event.Skip{Key: "k", Act: ID{1}}}}) // delivered again, and one that nobody knows
			c := startKeeper(t, "c", open, nil)
			c.ready(t)
			if !knows(c) {
				t.Error("a member that starts later does not skip the event when it has read the topic")
			}
			for _, k := range []*keeper{a, b, c} {
				eventually.NoError(t, eventually.Most, "all learn the end", func() error {
					if list := k.List(); len(list) != 1 || list[0].End != "done" || list[0].EndedBy != "b" || !list[0].Active {
						return fmt.Errorf("%+v", list)
					}
					return nil
				})
			}
			eventually.True(t, "b has nothing to tell any more", func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return len(b.ends) == 0
			})
			c.watch.advance(c.cfg.SkipFor)
			eventually.True(t, "it has expired", func() bool { return len(c.boxes.skipping()) == 0 && c.Skips() == 0 })
			if list := c.List(); len(list) != 1 || list[0].Active || list[0].End != "done" {
				t.Errorf("then %+v", list)
			}
		})
	}
}

// TestParks: a park, and an unpark until its end, have an effect at all members, those that start later, too; both
// expire by themselves, which is seen.
func TestParks(t *testing.T) {
	for name, topic := range logs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			open := topic(t)
			a, b := startKeeper(t, "a", open, nil), startKeeper(t, "b", open, func(c *Config) { c.ParkedMax = 1 })
			a.ready(t)
			b.ready(t)
			o := order("k\xff")
			r, result, err := a.Park(t.Context(), o)
			if err != nil || result != Parking || r.Until.Sub(r.At) != a.cfg.ParkFor {
				t.Fatalf("park: %+v %s %v", r, result, err)
			}
			is := func(k *keeper, id ID, state event.ParkState) bool {
				return k.boxes.park(o.Key) == event.Park{Key: o.Key, Act: id, State: state}
			}
			if !is(a, r.ID, event.ParkOn) {
				t.Errorf("the member that has taken the park has %+v", a.boxes.park(o.Key))
			}
			eventually.True(t, "the other member parks it", func() bool { return is(b, r.ID, event.ParkOn) })
			for name, act := range map[string]func(context.Context, Order) (Record, Result, error){"park": b.Park, "unpark": b.Unpark} {
				if _, _, err := act(t.Context(), order("another")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "acts.parked_max") {
					t.Errorf("one %s more: %v", name, err)
				}
			}
			back, result, err := b.Unpark(t.Context(), o)
			if err != nil || result != Unparking || back.Until.Sub(back.At) != b.cfg.HoldForMax || !is(b, back.ID, event.ParkEnds) {
				t.Fatalf("unpark: %+v %s %v, and the mailboxes have %+v", back, result, err, b.boxes.park(o.Key))
			}
			eventually.True(t, "the other member knows the unpark", func() bool { return is(a, back.ID, event.ParkEnds) })
			if again, result, err := a.Unpark(t.Context(), o); err != nil || result != Already || again.ID != back.ID {
				t.Errorf("again: %+v %s %v", again, result, err)
			}
			a.Unparked(a.boxes.park(o.Key), 7)
			c := startKeeper(t, "c", open, nil)
			c.ready(t)
			for _, k := range []*keeper{a, b, c} {
				eventually.NoError(t, eventually.Most, "all learn the end", func() error {
					list := k.List()
					if len(list) != 2 || list[0].End != "empty" || list[0].EndedBy != "a" || !strings.Contains(list[0].EndWords, "handled 7") || list[0].Active || list[1].Active {
						return fmt.Errorf("%+v", list)
					}
					if p := k.boxes.park(o.Key); p != (event.Park{}) {
						return fmt.Errorf("the mailboxes have %+v", p)
					}
					return nil
				})
			}
			o.For = time.Hour
			if r, _, err = c.Park(t.Context(), o); err != nil || r.Until.Sub(r.At) != time.Hour {
				t.Fatalf("a park for an hour: %+v %v", r, err)
			}
			c.watch.advance(time.Hour)
			eventually.True(t, "it has expired, and is counted as such", func() bool {
				active, lapsed := c.Parks()
				return active == 0 && lapsed == 1 && c.boxes.park(o.Key) == event.Park{}
			})
		})
	}
}

// TestEndsWaitForTheTopic: the end of a skip at a member that cannot use the topic is told when it can.
func TestEndsWaitForTheTopic(t *testing.T) {
	log := &breakable{Mem: controllog.NewMem(), broken: make(chan struct{})}
	a := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
	a.ready(t)
	if _, _, err := a.Skip(t.Context(), order("k")); err != nil {
		t.Fatal(err)
	}
	log.breakIt()
	eventually.True(t, "a knows that it cannot read", func() bool { return errors.Is(a.Check(), errBroken) })
	a.Ended([]event.Skipped{{Skip: a.boxes.skipping()[0]}})
	for i := range endsMax {
		a.Ended([]event.Skipped{{Skip: event.Skip{Key: "k", Act: ID{1, byte(i), byte(i >> 8)}}}})
	}
	if n := testutil.ToFloat64(a.metrics.endsLost); n != 1 {
		t.Errorf("%v ends are counted as lost, want 1", n)
	}
	log.repair()
	eventually.True(t, "the end is recorded", func() bool { return a.List()[0].End == "dead_letter" })
}

// breakable is a log whose readers and writers fail while it is broken.
type breakable struct {
	*controllog.Mem
	mu     sync.Mutex
	broken chan struct{} // closed: it is
}

func (b *breakable) now() chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.broken
}

func (b *breakable) breakIt() { close(b.now()) }

func (b *breakable) repair() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = make(chan struct{})
}

var errBroken = errors.New("broken on purpose")

func (b *breakable) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(controllog.Entry)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	broken := b.now()
	if signal.IsClosed(broken) {
		return errBroken
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-broken:
			cancel()
		case <-stop:
		}
	})
	defer watching.Wait()
	defer close(stop)
	_ = b.Mem.Tail(ctx, from, prefetch, opened, record)
	return errBroken
}

// TestHoldsOutlastAnUnreadableTopic: without the topic, known holds stay and still expire, new acts are refused, and
// acts of others come with the topic.
func TestHoldsOutlastAnUnreadableTopic(t *testing.T) {
	log := &breakable{Mem: controllog.NewMem(), broken: make(chan struct{})}
	whole := func() (controllog.Transport, error) { return log.Mem, nil }
	a, b := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil), startKeeper(t, "b", whole, nil)
	a.ready(t)
	b.ready(t)
	short := order("short")
	short.For = time.Minute
	for _, o := range []Order{short, order("long")} {
		if _, _, err := a.Hold(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	log.breakIt()
	eventually.True(t, "a knows that it cannot read", func() bool { return errors.Is(a.Check(), errBroken) })
	if _, _, err := a.Hold(t.Context(), order("k")); !errors.Is(err, ErrUnreadable) {
		t.Errorf("an act without the topic: %v", err)
	}
	pages := Handlers(a.Keeper, "", nil, nil)
	w := httptest.NewRecorder()
	pages["POST /v1/acts/hold"].ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/?key=k&by=alice&reason=r", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("the answer to an act without the topic: %d %s", w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	pages["GET /v1/acts"].ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
	var acts Acts
	if err := json.Unmarshal(w.Body.Bytes(), &acts); err != nil || acts.Error == "" || len(acts.Acts) != 2 {
		t.Errorf("the list without the topic: %+v, %v", acts, err)
	}
	if _, _, err := b.Hold(t.Context(), order("of b")); err != nil {
		t.Fatal(err)
	}
	a.watch.advance(2 * time.Minute)
	eventually.True(t, "the short hold has expired", func() bool { return !a.boxes.holds("short") })
	if !a.boxes.holds("long") || a.boxes.holds("of b") {
		t.Errorf("without the topic a holds %v", a.boxes.held)
	}
	log.repair()
	eventually.True(t, "a holds what b has held", func() bool { return a.boxes.holds("of b") && a.Check() == nil })
	if !a.boxes.holds("long") {
		t.Error("the long hold is gone")
	}
}

// TestTrim: records that have been without an effect for long may be deleted.
func TestTrim(t *testing.T) {
	log := &anchored{Mem: controllog.NewMem()}
	k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
	k.ready(t)
	if _, _, err := k.Hold(t.Context(), order("k")); err != nil {
		t.Fatal(err)
	}
	end, _ := log.End(t.Context())
	if _, _, err := k.Release(t.Context(), order("other")); err != nil { // its record stays, as the newest one
		t.Fatal(err)
	}
	v := &visit{Keeper: k.Keeper, keys: k.boxes, topic: log}
	v.trim(t.Context())
	if log.upTo != (event.Position{}) {
		t.Fatalf("while the hold has an effect, records up to %v may go", log.upTo)
	}
	k.watch.advance(k.cfg.KeepFor + 2*time.Hour)
	v.trim(t.Context())
	if log.upTo != end {
		t.Errorf("records up to %v may go, want %v", log.upTo, end)
	}
}

// TestAnActIsAnsweredWhenItHasItsEffect: also one whose record is read by the next reader, on its way to the end of the topic.
func TestAnActIsAnsweredWhenItHasItsEffect(t *testing.T) {
	boxes := &boxes{held: map[event.Key]bool{}, skips: map[skipped]event.Skip{}, parks: map[event.Key]event.Park{}}
	k := New(DefaultConfig(), "a", nil, func() time.Time { return noon }, slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	hold, mark := record(Hold, "k", noon, time.Hour), record(Mark, "", noon, 0)
	answers := map[ID]chan Result{hold.ID: make(chan Result, 1), mark.ID: make(chan Result, 1)}
	maps.Copy(k.waiting, answers)
	v := &visit{Keeper: k, keys: boxes}
	v.apply(controllog.Entry{At: event.Position{Ledger: 1}, Data: encoded(t, hold)})
	if len(answers[hold.ID]) > 0 && !boxes.holds("k") {
		t.Error("the operator hears that the key is held, and it is not yet")
	}
	v.apply(controllog.Entry{At: event.Position{Ledger: 1, Entry: 1}, Data: encoded(t, mark)})
	if len(answers[mark.ID]) != 1 {
		t.Error("a mark has no answer, which shows that the end is reached")
	}
	v = &visit{Keeper: k, keys: boxes, topic: controllog.NewMem()} // the reader was lost again
	v.reachedEnd()
	if len(answers[hold.ID]) != 1 || <-answers[hold.ID] != Held || !boxes.holds("k") {
		t.Errorf("at the end of the topic the hold has no answer, or no effect")
	}
}

// TestLogLinesNameAKeyByItsHash: in the 16 digits by which reports and other log lines name it.
func TestLogLinesNameAKeyByItsHash(t *testing.T) {
	boxes := &boxes{held: map[event.Key]bool{}, skips: map[skipped]event.Skip{}, parks: map[event.Key]event.Park{}}
	var said bytes.Buffer
	k := New(DefaultConfig(), "a", nil, func() time.Time { return noon }, slog.New(slog.NewTextHandler(&said, nil)), NewMetrics(prometheus.NewRegistry()))
	v := &visit{Keeper: k, keys: boxes, caughtUp: true}
	v.apply(controllog.Entry{At: event.Position{Ledger: 1}, Data: encoded(t, record(Hold, "k", noon, time.Hour))})
	k.Ended([]event.Skipped{{Skip: event.Skip{Key: "k", Act: newID()}}})
	k.Unparked(event.Park{Key: "k", Act: newID()}, 1)
	hash := " key_hash=" + ring.HashOf("k").String()
	for _, line := range []string{"msg=act ", `msg="event skipped"`, `msg="key unparked"`} {
		if !slices.ContainsFunc(strings.Split(said.String(), "\n"), func(l string) bool {
			return strings.Contains(l, line) && (strings.Contains(l, hash+" ") || strings.HasSuffix(l, hash))
		}) {
			t.Errorf("no line with %s has%s:\n%s", line, hash, said.String())
		}
	}
}

type anchored struct {
	*controllog.Mem
	upTo event.Position
}

func (a *anchored) MoveAnchor(_ context.Context, to event.Position) error { a.upTo = to; return nil }

// TestTrimDelaysNoAct: while the broker does not answer to a trim, acts take effect.
func TestTrimDelaysNoAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &stuckAnchor{Mem: controllog.NewMem()}
		k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
		defer k.stop()
		k.ready(t)
		o := order("k")
		o.For = time.Minute
		for range 2 { // the newest record stays
			if _, _, err := k.Hold(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		k.watch.advance(k.cfg.KeepFor + time.Hour)
		time.Sleep(trimEvery + time.Second)
		if !log.asked.Load() {
			t.Fatal("nothing was trimmed")
		}
		if _, result, err := k.Hold(t.Context(), order("another")); result != Held || err != nil || !k.boxes.holds("another") {
			t.Errorf("a hold during a trim: %q, %v", result, err)
		}
	})
}

// stuckAnchor is a log whose anchor does not move.
type stuckAnchor struct {
	*controllog.Mem
	asked atomic.Bool
}

func (s *stuckAnchor) MoveAnchor(ctx context.Context, _ event.Position) error {
	s.asked.Store(true)
	<-ctx.Done()
	return ctx.Err()
}

// TestKnownEndsAreNotLost: an end that is kept already, of an event that was delivered again, is not counted as lost.
func TestKnownEndsAreNotLost(t *testing.T) {
	k := New(DefaultConfig(), "a", nil, time.Now, slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	end := func(i int) Record { return Record{Kind: Skipped, Of: ID{1, byte(i >> 8), byte(i)}, End: EndDone} }
	for i := range endsMax {
		k.keepEnd(end(i))
	}
	k.keepEnd(end(0))
	if lost := testutil.ToFloat64(k.metrics.endsLost); lost != 0 || len(k.ends) != endsMax {
		t.Errorf("%v ends are lost, want none; %d are kept", lost, len(k.ends))
	}
	k.keepEnd(end(endsMax))
	if lost := testutil.ToFloat64(k.metrics.endsLost); lost != 1 {
		t.Errorf("%v ends are lost, want 1", lost)
	}
}

// TestPages: an order needs a key, a reason and a person; its answer tells what became of it.
func TestPages(t *testing.T) {
	log := controllog.NewMem()
	k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
	k.ready(t)
	there, entry := true, int64(6)
	first := func(context.Context, event.Key) (event.MessageID, error) {
		if !there {
			return event.MessageID{}, fmt.Errorf("%w here", ErrNothing)
		}
		entry++ // the one before has gone
		return event.MessageID{Ledger: 7, Entry: entry, Batch: -1, TopicPartition: -1}, nil
	}
	former := true
	parkable := func(context.Context) error {
		if former {
			return fmt.Errorf("%w: b is of a former version", ErrRefused)
		}
		return nil
	}
	mux := http.NewServeMux()
	for pattern, page := range Handlers(k.Keeper, "", first, parkable) {
		mux.Handle(pattern, page)
	}
	request := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return w
	}
	ask := func(method, path string, answer any) int {
		t.Helper()
		w := request(method, path)
		if w.Code == http.StatusOK {
			if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
				t.Errorf("%s: %v in %s", path, err, w.Body)
			}
			if h := w.Header(); h.Get("Content-Type") != "application/json" || h.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: the headers %v", path, h)
			}
		}
		return w.Code
	}
	const good = "&by=alice&reason=poison+pill"
	key := url.QueryEscape("a key/with?all&of ä\x00\xff")
	var done Done
	for path, want := range map[string]int{
		"hold?by=alice&reason=r":                                      400,
		"hold?key=k&reason=r":                                         400,
		"hold?key=k&by=alice":                                         400,
		"hold?key=" + good:                                            400,
		"hold?key=k&for=soon" + good:                                  400,
		"hold?key=k&for=0s" + good:                                    400, // not the usual duration
		"hold?key=k&for=-1s" + good:                                   400,
		"hold?key=k&for=1000h" + good:                                 400,
		"hold?key=" + strings.Repeat("k", 5000) + good:                400,
		"skip?by=alice&reason=r":                                      400,
		"skip?key=k&event=1:2" + good:                                 400,
		"park?key=k" + good:                                           400, // beside a member of a former version
		"unpark?key=k&for=1000h" + good:                               400,
		"release?key=k&by=alice&reason=" + url.QueryEscape("\x1b[2J"): 400,
	} {
		if got := ask("POST", "/v1/acts/"+path, &done); got != want {
			t.Errorf("POST %.60s: %d, want %d", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"hold?by=alice&reason=r":      "refused: say which key: key=KEY, percent-encoded\n",
		"hold?key=k&for=soon" + good:  `refused: for = "soon", want a duration such as 30m` + "\n",
		"skip?key=k&event=1:2" + good: `refused: event = "1:2", want a message id as ledger:entry:partition:batch` + "\n",
	} {
		if got := request("POST", "/v1/acts/"+path).Body.String(); got != want {
			t.Errorf("POST %s: %q, want %q", path, got, want)
		}
	}
	if got := ask("GET", "/v1/acts/hold?key=k"+good, &done); got != http.StatusMethodNotAllowed {
		t.Errorf("GET of a hold: %d", got)
	}
	if code := ask("POST", "/v1/acts/hold?for=10m&key="+key+good, &done); code != 200 || done.Result != Held || !done.Act.Active || done.Act.KeyBase64 == "" || done.Act.Until.Sub(done.Act.At) != 10*time.Minute {
		t.Errorf("%d %+v", code, done)
	}
	var acts Acts
	if code := ask("GET", "/v1/acts", &acts); code != 200 || acts.Member != "a" || acts.Error != "" || len(acts.Acts) != 1 || acts.Acts[0] != done.Act {
		t.Errorf("%d %+v, want %+v", code, acts, done.Act)
	}
	for range 2 {
		if code := ask("POST", "/v1/acts/skip?key=skipped"+good, &done); code != 200 || done.Act.Event != "7:7:-1:-1" || !done.Act.Active {
			t.Errorf("a skip: %d %+v", code, done)
		}
	}
	if done.Result != Already {
		t.Errorf("a second skip is %s", done.Result)
	}
	if code := ask("POST", "/v1/acts/skip?event=7:8:-1:-1&key=skipped"+good, &done); code != 200 || done.Result != Skipping || done.Act.Event != "7:8:-1:-1" {
		t.Errorf("a skip of another event: %d %+v", code, done)
	}
	there = false
	if code := ask("POST", "/v1/acts/skip?key=nothing"+good, &done); code != 404 {
		t.Errorf("a skip of nothing: %d", code)
	}
	former = false
	for _, c := range []struct {
		path string
		want Result
	}{{"hold?key=" + key, Renewed}, {"park?for=30m&key=away", Parking}, {"unpark?key=back", Unparking}, {"unpark?key=back", Already}} {
		if code := ask("POST", "/v1/acts/"+c.path+good, &done); code != 200 || done.Result != c.want || !done.Act.Active {
			t.Errorf("POST %s: %d %+v", c.path, code, done)
		}
	}
	limited := false
	for range 100 * ordersBurst { // without a reason none is done, which takes least on a busy machine
		limited = limited || ask("POST", "/v1/acts/release?key=k&by=alice", &done) == http.StatusTooManyRequests
	}
	if !limited {
		t.Error("nothing bounds the rate of acts")
	}
	off := Handlers(nil, "off", nil, nil)
	w := httptest.NewRecorder()
	off["POST /v1/acts/hold"].ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/v1/acts/hold?key=k"+good, nil))
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "off") {
		t.Errorf("without acts: %d %s", w.Code, w.Body)
	}
}

// unguarded notes the keys that nothing keeps from running for a moment.
type unguarded struct {
	*boxes
	keys []event.Key
}

func (u *unguarded) look(key event.Key) {
	if !u.holds(key) && u.park(key).State == event.NotParked {
		u.keys = append(u.keys, key)
	}
}

func (u *unguarded) ParkKeys(parks []event.Park) {
	u.boxes.ParkKeys(parks)
	for _, p := range parks {
		u.look(p.Key)
	}
}

func (u *unguarded) ReleaseKeys(keys []event.Key) {
	u.boxes.ReleaseKeys(keys)
	for _, key := range keys {
		u.look(key)
	}
}

// TestNoKeyRunsBetweenTwoActs: a member that reads the topic again after an outage may learn at once that a key is held
// and that its park has ended, or the other way round. Its events wait all the time.
func TestNoKeyRunsBetweenTwoActs(t *testing.T) {
	for name, kinds := range map[string][2]Kind{"a park, then a hold": {Park, Hold}, "a hold, then a park": {Hold, Park}} {
		t.Run(name, func(t *testing.T) {
			now := noon
			k := New(DefaultConfig(), "a", nil, func() time.Time { return now }, slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
			to := &unguarded{boxes: &boxes{held: map[event.Key]bool{}, skips: map[skipped]event.Skip{}, parks: map[event.Key]event.Park{}}}
			read := func(entry int64, kind Kind, at time.Time) {
				data, err := Encode(Record{Kind: kind, ID: newID(), Key: "k", By: "alice", Via: "a", Reason: "a look", At: at, Until: at.Add(time.Hour)})
				if err != nil {
					t.Fatal(err)
				}
				k.fold.Apply(event.Position{Ledger: 1, Entry: entry}, data)
				k.settle(to)
			}
			read(0, kinds[0], now)
			now = now.Add(75 * time.Minute) // the member has stood still, or could not read
			read(1, kinds[1], now.Add(-45*time.Minute))
			if len(to.keys) > 0 || len(to.log) > 0 {
				t.Errorf("for a moment nothing keeps %q from running; %q", to.keys, to.log)
			}
		})
	}
}

// TestActsOutlastTheirTopic: if the topic is deleted or restored while members run, they write the acts that have an effect again, so that a
// member which starts later knows them, too, and later acts reach all members.
func TestActsOutlastTheirTopic(t *testing.T) {
	for name, c := range map[string]struct {
		next event.Position
		kept int // records that are left
	}{
		"deleted":               {event.Position{Ledger: 100}, 0},
		"metadata lost":         {event.Position{Ledger: 1}, 0},
		"restored from earlier": {event.Position{Ledger: 3}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := controllog.NewMem()
			log.Restore(event.Position{Ledger: 3})
			open := func() (controllog.Transport, error) { return log, nil }
			a, b := startKeeper(t, "a", open, nil), startKeeper(t, "b", open, nil)
			a.ready(t)
			b.ready(t)
			act := func(what string, do func(context.Context, Order) (Record, Result, error), key event.Key) {
				t.Helper()
				eventually.NoError(t, eventually.Most, what, func() error {
					_, _, err := do(t.Context(), order(key))
					return err
				})
			}
			act("hold", a.Hold, "gone") // with the marks of a and b, all that an earlier state has
			act("hold", a.Hold, "held")
			act("release", b.Release, "gone")
			act("park", b.Park, "parked")
			skip := order("k")
			skip.Event, skip.named = event.MessageID{Ledger: 7, Entry: 3, Batch: -1, TopicPartition: -1}, true
			if _, _, err := a.Skip(t.Context(), skip); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "b knows all", func() bool { return b.boxes.holds("held") && len(b.boxes.skipping()) == 1 })
			kept := readAll(t, log)[:c.kept]
			log.Restore(c.next)
			for _, e := range kept {
				log.Put(e.Data)
			}
			d := startKeeper(t, "d", open, nil)
			eventually.True(t, "a member that starts later knows the acts", func() bool {
				return d.boxes.holds("held") && len(d.boxes.skipping()) == 1 && d.boxes.park("parked").State == event.ParkOn
			})
			eventually.True(t, "what was released is not held again", func() bool { return !d.boxes.holds("gone") })
			if a.boxes.holds("gone") || b.boxes.holds("gone") {
				t.Error("what was released is held again")
			}
			act("release", d.Release, "held")
			act("hold", d.Hold, "later")
			for _, k := range []*keeper{a, b, d} {
				eventually.True(t, "later acts reach "+k.member, func() bool { return k.boxes.holds("later") && !k.boxes.holds("held") })
			}
		})
	}
}

// readAll returns the records of a log.
func readAll(t *testing.T, log *controllog.Mem) (all []controllog.Entry) {
	t.Helper()
	end, err := log.End(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, done := context.WithCancel(t.Context())
	defer done()
	_ = log.Tail(ctx, controllog.First, 1, func() {}, func(e controllog.Entry) { // ends by done
		if all = append(all, e); e.At == end {
			done()
		}
	})
	return all
}

// trimmed is a log that has lost all records that it might lose, as a broker does after a rollover.
type trimmed struct{ *controllog.Mem }

func (m trimmed) MoveAnchor(_ context.Context, to event.Position) error {
	m.Roll()
	m.Forget(event.Position{Ledger: to.Ledger, Entry: to.Entry + 1})
	return nil
}

// TestATrimmedTopicIsNotReplaced: a topic from which old acts were deleted, and where nobody acts any more, is not taken for one that was made again.
func TestATrimmedTopicIsNotReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := trimmed{controllog.NewMem()}
		k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
		defer k.stop()
		k.ready(t)
		for _, key := range []event.Key{"a", "b"} {
			if _, _, err := k.Hold(t.Context(), order(key)); err != nil {
				t.Fatal(err)
			}
		}
		k.watch.advance(k.cfg.KeepFor + 2*time.Hour)
		time.Sleep(3 * trimEvery)
		if left := len(readAll(t, log.Mem)); left != 1 {
			t.Errorf("%d records are left, want the newest one", left)
		}
		if lost := testutil.ToFloat64(k.metrics.readers.WithLabelValues("lost")); lost > 0 {
			t.Errorf("%v readers were lost", lost)
		}
	})
}

// TestATopicIsReplacedWhileItCannotBeRead: a member whose reader is lost finds another topic when it has one again. It keeps the acts that it knows, knows those
// that others have done there, and sees which ones the topic lacks.
func TestATopicIsReplacedWhileItCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		next   event.Position
		others int
	}{
		"later ledgers, no record":           {event.Position{Ledger: 100}, 0},
		"later ledgers, few records":         {event.Position{Ledger: 100}, 1},
		"later ledgers, more than before":    {event.Position{Ledger: 100}, 20},
		"earlier ledgers, no record":         {event.Position{Ledger: 1}, 0},
		"earlier ledgers, few records":       {event.Position{Ledger: 1}, 1},
		"earlier ledgers, more than before":  {event.Position{Ledger: 1}, 20},
		"the same ledger, no record":         {event.Position{Ledger: 3}, 0},
		"the same ledger, fewer than before": {event.Position{Ledger: 3}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &breakable{Mem: controllog.NewMem(), broken: make(chan struct{})}
				log.Restore(event.Position{Ledger: 3})
				k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
				defer k.stop()
				k.ready(t)
				for _, act := range []func(context.Context, Order) (Record, Result, error){k.Hold, k.Park} {
					if _, _, err := act(t.Context(), order("mine")); err != nil {
						t.Fatal(err)
					}
				}
				log.breakIt()
				synctest.Wait()
				log.Restore(c.next)
				for i := range c.others {
					log.Put(encoded(t, record(Hold, event.Key(fmt.Sprint(i)), noon, time.Hour)))
				}
				log.repair()
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if err := k.Check(); err != nil || !k.boxes.holds("mine") || k.boxes.park("mine").State != event.ParkOn {
					t.Errorf("it holds %v, parks %+v: %v", k.boxes.held, k.boxes.park("mine"), err)
				}
				if n := k.HeldKeys(); n != 1+c.others {
					t.Errorf("%d keys are held, want %d", n, 1+c.others)
				}
				known := map[ID]bool{} // to be missing, or written again already
				for _, r := range k.fold.Missing(noon) {
					known[r.ID] = true
				}
				for _, e := range readAll(t, log.Mem) {
					if r, err := Decode(e.Data); err == nil && r.Key == "mine" {
						known[r.ID] = true
					}
				}
				if len(known) != 2 {
					t.Errorf("%d acts are missing or written again, want the hold and the park", len(known))
				}
			})
		})
	}
}

// TestExpiredActsAreDoneAgain: a skip or an unpark that has expired is no reason to write none.
func TestExpiredActsAreDoneAgain(t *testing.T) {
	log := controllog.NewMem()
	k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
	k.ready(t)
	first, _, err := k.Skip(t.Context(), order("k"))
	if err != nil {
		t.Fatal(err)
	}
	back, _, err := k.Unpark(t.Context(), order("k"))
	if err != nil {
		t.Fatal(err)
	}
	k.watch.advance(max(k.cfg.SkipFor, k.cfg.HoldForMax))
	if s, result, err := k.Skip(t.Context(), order("k")); err != nil || result != Skipping || s.ID == first.ID || !s.Active {
		t.Errorf("a second skip: %+v %s %v", s, result, err)
	}
	if r, result, err := k.Unpark(t.Context(), order("k")); err != nil || result != Unparking || r.ID == back.ID {
		t.Errorf("a second unpark: %+v %s %v", r, result, err)
	}
}

// failing is a log that refuses all records but marks.
type failing struct{ *controllog.Mem }

func (f failing) Append(data []byte, done func(error)) {
	if r, err := Decode(data); err != nil || r.Kind != Mark {
		done(errBroken)
		return
	}
	f.Mem.Append(data, done)
}

// silent is a log that answers, and never shows a record that is no mark.
type silent struct{ failing }

func (s silent) Append(data []byte, done func(error)) {
	s.failing.Append(data, func(error) { done(nil) })
}

// TestUnknownActs: an act whose record may or may not stand in the topic is not reported as done, nor as refused.
func TestUnknownActs(t *testing.T) {
	for name, log := range map[string]controllog.Transport{"refused": failing{controllog.NewMem()}, "never read back": silent{failing{controllog.NewMem()}}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := startKeeper(t, "a", func() (controllog.Transport, error) { return log, nil }, nil)
				defer k.stop()
				k.ready(t)
				if _, _, err := k.Hold(t.Context(), order("k")); !errors.Is(err, ErrUnknown) || codeOf(err) != http.StatusGatewayTimeout {
					t.Errorf("a hold: %v", err)
				}
				if _, _, err := k.Skip(t.Context(), order("k")); !errors.Is(err, ErrUnknown) {
					t.Errorf("a skip: %v", err)
				}
				synctest.Wait()
				if k.HeldKeys() != 0 || k.Skips() != 0 || len(k.waiting) != 0 {
					t.Errorf("%d keys are held, %d events skipped, %d acts waited for", k.HeldKeys(), k.Skips(), len(k.waiting))
				}
			})
		})
	}
}
