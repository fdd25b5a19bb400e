package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

// parksOn makes a member take acts from a log, and bring letters back.
func (g *group) parksOn(name string, log controllog.Transport) func(*Parts) {
	acts := actsOn(name, log, nil)
	return func(p *Parts) {
		acts(p)
		p.Parking = source.NewMemParking(g.source, g.broker, source.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	}
}

// TestParkOutlastsMoves: the events of a parked key leave for the parking topic in their order, at whichever member owns it, and come back in
// it, before those that came meanwhile; failed ones with their counts.
func TestParkOutlastsMoves(t *testing.T) {
	t.Parallel()
	calmly(t, parkOutlastsMoves)
}

func parkOutlastsMoves(t testing.TB, g *group) {
	const key = "parked"
	log := controllog.NewMem()
	h := &handledKeys{events: map[string][]string{}}
	var attempts []string
	handle := func(ctx context.Context, e *client.Event) error {
		if e.Key == key {
			h.mu.Lock()
			attempts = append(attempts, fmt.Sprintf("%s %d", e.Payload, e.Attempt))
			h.mu.Unlock()
			if string(e.Payload) == "event-1" && e.Attempt == 1 {
				return errors.New("not yet")
			}
		}
		return h.handle(ctx, e)
	}
	a := g.startWith("a", nil, g.parksOn("a", log))
	g.handle(a, handle)
	g.ready(a)
	ctx := t.Context()
	order := act.Order{Key: key, By: "alice", From: "here", Reason: "a look"}
	if err := Parkable(ctx, a.reports); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Acts().Park(ctx, order); err != nil {
		t.Fatal(err)
	}
	parkedNow := func(m *member, n uint64) {
		t.Helper()
		eventually.NoError(t, eventually.Most, "the events are parked", func() error {
			if s := m.boxes.Stats(); s.Parked != n || s.Events != 0 || m.parking(key) != 0 {
				return fmt.Errorf("%d are, %d are here, %d on their way", s.Parked, s.Events, m.parking(key))
			}
			return nil
		})
	}
	for i := range 3 {
		g.publishKeys(key)
		parkedNow(a, uint64(i)+1)
	}
	b := g.startWith("b", nil, g.parksOn("b", log))
	g.handle(b, handle)
	g.ready(a, b)
	g.closes("drained", a.Drain()) // what a receives until then may return to the broker, and be parked by b twice
	eventually.True(t, "b owns the key", func() bool {
		return b.Table() != nil && b.Table().Owner(ring.PartitionOf(key)).Name == "b" && b.boxes.Inspect(key).Gate.String() == "open"
	})
	for i := range 2 {
		g.publishKeys(key)
		parkedNow(b, uint64(i)+1)
	}
	g.publishKeys("another")
	eventually.True(t, "another key does not wait", func() bool { return len(h.of("another")) == 1 })
	if got := h.of(key); len(got) != 0 {
		t.Fatalf("%v were handled while the key was parked", got)
	}
	if _, _, err := b.Acts().Unpark(ctx, order); err != nil {
		t.Fatal(err)
	}
	g.publishKeys(key)
	eventually.NoError(t, eventually.Most, "the unpark has ended", func() error {
		list := b.Acts().List()
		if list[0].Act != "unpark" || list[0].End != "empty" || !strings.HasSuffix(list[0].EndWords, "b has handled 5") {
			return fmt.Errorf("the trail is %+v; the key is at %+v", list, b.reports.Key(ctx, key))
		}
		return nil
	})
	eventually.True(t, "the last event is handled", func() bool { return len(h.of(key)) == 6 })
	if got, want := h.of(key), []string{"event-0", "event-1", "event-2", "event-3", "event-4", "event-6"}; !slices.Equal(got, want) {
		t.Errorf("the events were handled in the order %v, want %v", got, want)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if want := []string{"event-0 1", "event-1 1", "event-1 2", "event-2 1"}; !slices.Equal(attempts[:4], want) {
		t.Errorf("the attempts were %v, want %v first", attempts, want)
	}
}

// TestParkIsRefusedBesideOthers: no key is parked while a member would handle its events.
func TestParkIsRefusedBesideOthers(t *testing.T) {
	t.Parallel()
	g, log := newGroup(t), controllog.NewMem()
	a := g.startWith("a", nil, g.parksOn("a", log))
	g.startApp(a)
	b := g.startWith("b", nil, nil) // as one with acts.enabled: false
	g.startApp(b)
	g.ready(a, b)
	if err := Parkable(t.Context(), a.reports); !errors.Is(err, act.ErrRefused) || !strings.HasPrefix(err.Error(), "refused: b takes no acts") {
		t.Errorf("it is refused with %v", err)
	}
}

// TestUnparkWaitsForTheGroup: a member says of another one, and of itself, that it may still park events of a key.
func TestUnparkWaitsForTheGroup(t *testing.T) {
	t.Parallel()
	g, log := newGroup(t), controllog.NewMem()
	a := g.startWith("a", nil, g.parksOn("a", log))
	g.startApp(a)
	g.ready(a)
	r, _, err := a.Acts().Unpark(t.Context(), act.Order{Key: "k", By: "alice", From: "here", Reason: "a look"})
	if err != nil {
		t.Fatal(err)
	}
	p := event.Park{Key: "k", Act: r.ID, State: event.ParkEnds}
	if why := a.unparks.restless(t.Context(), p); why != "" && why != "a has not read the unpark" { // it ends at any moment
		t.Errorf("it waits, since %s", why)
	}
	p.Act = [16]byte{1}
	if why := a.unparks.restless(t.Context(), p); why != "a has not read the unpark" {
		t.Errorf("an unpark that nobody has read: %q", why)
	}
	b := g.startWith("b", nil, nil) // takes no acts
	g.startApp(b)
	g.ready(a, b)
	g.eventually("b is listed", func() error {
		if why := a.unparks.restless(t.Context(), p); why != "a has not read the unpark" {
			return fmt.Errorf("it waits, since %s", why)
		}
		return nil
	})
}

// TestUnparkOfManyLetters: there are more letters than are read ahead. All come back in the order of the events, and a
// key with few does not wait for them.
func TestUnparkOfManyLetters(t *testing.T) {
	t.Parallel()
	const many, few = 2*unparkLettersMax + 500, 3
	g, log := newGroup(t), controllog.NewMem()
	h := &handledKeys{events: map[string][]string{}}
	a := g.startWith("a", nil, g.parksOn("a", log))
	g.handle(a, h.handle)
	g.ready(a)
	events := map[string][]string{} // that were published
	for _, key := range []string{"many", "few"} {
		if _, _, err := a.Acts().Park(t.Context(), act.Order{Key: event.Key(key), By: "alice", From: "here", Reason: "a look"}); err != nil {
			t.Fatal(err)
		}
	}
	publish := func(key string, n int) {
		for range n {
			events[key] = append(events[key], fmt.Sprintf("event-%d", len(g.published)))
			g.publishKeys(key)
		}
	}
	for range many / 500 {
		publish("many", 500)
		g.eventually("the events are parked", func() error {
			if s := a.boxes.Stats(); int(s.Parked) < len(events["many"]) {
				return fmt.Errorf("%d are", s.Parked)
			}
			return nil
		})
	}
	publish("few", few)
	g.eventually("the events are parked", func() error {
		if s := a.boxes.Stats(); s.Parked != many+few || a.parking("many")+a.parking("few") != 0 {
			return fmt.Errorf("%d are", s.Parked)
		}
		return nil
	})
	for _, key := range []string{"many", "few"} {
		if _, _, err := a.Acts().Unpark(t.Context(), act.Order{Key: event.Key(key), By: "alice", From: "here", Reason: "fixed"}); err != nil {
			t.Fatal(err)
		}
	}
	g.eventually("all letters have come back", func() error {
		ended := 0
		for _, one := range a.Acts().List() {
			if one.End == "empty" {
				ended++
			}
		}
		if ended < 2 {
			return fmt.Errorf("%d of 2 unparks have ended, %d events of one key were handled and %d of the other", ended, len(h.of("many")), len(h.of("few")))
		}
		return nil
	})
	for key, want := range events {
		if got := h.of(key); !slices.Equal(got, want) {
			t.Errorf("the key %s: %d events were handled, want %d in their order: the first are %v", key, len(got), len(want), got[:min(10, len(got))])
		}
	}
}

// startParked starts a member whose key k is parked with one event. order unparks it, and h notes what is handled.
func (g *group) startParked() (a *member, h *handledKeys, order act.Order) {
	g.t.Helper()
	h = &handledKeys{events: map[string][]string{}}
	a = g.startWith("a", nil, g.parksOn("a", controllog.NewMem()))
	g.handle(a, h.handle)
	g.ready(a)
	order = act.Order{Key: "k", By: "alice", From: "here", Reason: "a look"}
	if _, _, err := a.Acts().Park(g.t.Context(), order); err != nil {
		g.t.Fatal(err)
	}
	g.publishKeys("k")
	g.eventually("the event is parked", func() error {
		if s := a.boxes.Stats(); s.Parked != 1 || a.parking("k") != 0 {
			return fmt.Errorf("%d are", s.Parked)
		}
		return nil
	})
	return a, h, order
}

// TestUnparkOfALetterWithAFalseID: a copy that any producer of the retry topic has given the id of another event of its
// key does not keep that one from being handled when both come back.
func TestUnparkOfALetterWithAFalseID(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, h, order := g.startParked()
	parked := func(n uint64) {
		t.Helper()
		g.eventually("the events are parked", func() error {
			if s := a.boxes.Stats(); s.Parked != n || a.parking("k") != 0 {
				return fmt.Errorf("%d are", s.Parked)
			}
			return nil
		})
	}
	next := g.publishAlone("other")
	next.Entry++
	if _, err := g.broker.Publish(t.Context(), g.source.Resolved().RetryTopic, []membroker.Message{{Key: "k", Payload: []byte("false"), Properties: map[string]string{
		source.PropertyMessageID: next.String(), source.PropertyRound: "1", source.PropertyTopic: "persistent://public/default/orders",
	}}}); err != nil {
		t.Fatal(err)
	}
	parked(2)
	if id := g.publishAlone("k"); id != next {
		t.Fatalf("the event has the id %v, want %v", id, next)
	}
	parked(3)
	if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	g.eventually("the unpark has ended", func() error {
		if list := a.Acts().List(); list[0].End != "empty" {
			return fmt.Errorf("the trail is %+v", list)
		}
		return nil
	})
	if got, want := h.of("k"), []string{"event-0", "false", "event-2"}; !slices.Equal(got, want) {
		t.Errorf("%v were handled, want %v", got, want)
	}
}

// parkEach parks keys with one event each.
func (g *group) parkEach(a *member, order act.Order, keys []string) {
	g.t.Helper()
	for _, key := range keys {
		order.Key = event.Key(key)
		if _, _, err := a.Acts().Park(g.t.Context(), order); err != nil {
			g.t.Fatal(err)
		}
	}
	before := a.boxes.Stats().Parked
	g.publishKeys(keys...)
	g.eventually("the events are parked", func() error {
		parking := 0
		for _, key := range keys {
			parking += a.parking(event.Key(key))
		}
		if s := a.boxes.Stats(); int(s.Parked-before) != len(keys) || parking != 0 {
			return fmt.Errorf("%d are", s.Parked-before)
		}
		return nil
	})
}

// manyKeys returns as many keys as letters come back of at a time.
func manyKeys() (keys []string) {
	for i := range unparkKeysMax {
		keys = append(keys, fmt.Sprint("many-", i))
	}
	return keys
}

// TestUnparkBesideHeldKeys: unparked keys that are on hold as well do not keep the letters of another key from coming back.
func TestUnparkBesideHeldKeys(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, h, order := g.startParked()
	many := manyKeys()
	g.parkEach(a, order, many)
	for _, key := range many {
		order.Key = event.Key(key)
		if _, _, err := a.Acts().Hold(t.Context(), order); err != nil {
			t.Fatal(err)
		}
		if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2 * unparkCalm) // whatever comes back of them has done so
	order.Key = "k"
	if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	g.eventually("the letter of the key that is not on hold is handled", func() error {
		if len(h.of("k")) == 0 {
			return fmt.Errorf("it waits as %+v", a.parkOf("k"))
		}
		return nil
	})
	if p := a.parkOf("many-0"); p == nil || p.Waits != waitsForHold {
		t.Errorf("the unpark of a key on hold waits as %+v", p)
	}
	for _, key := range many {
		order.Key = event.Key(key)
		if _, _, err := a.Acts().Release(t.Context(), order); err != nil {
			t.Fatal(err)
		}
	}
	g.eventually("the letters of the others are handled", func() error {
		for _, key := range many {
			if len(h.of(key)) != 1 {
				return fmt.Errorf("%s waits as %+v", key, a.parkOf(event.Key(key)))
			}
		}
		return nil
	})
}

// TestUnparkBesideStuckKeys: unparked keys whose handlers are stuck keep the letters of another key waiting for one slice only.
func TestUnparkBesideStuckKeys(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, h, order := g.startParked()
	a.unparks.slice = 500 * time.Millisecond
	release := make(chan struct{})
	defer close(release)
	many := manyKeys()
	g.parkEach(a, order, many)
	h.stuck.Store(&release)
	for _, key := range many {
		order.Key = event.Key(key)
		if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
			t.Fatal(err)
		}
	}
	g.eventually("all of them run", func() error {
		for _, key := range many {
			if s := a.boxes.Inspect(event.Key(key)); s.Wait != mailbox.WaitHandler {
				return fmt.Errorf("%s waits as %+v", key, s)
			}
		}
		return nil
	})
	h.stuck.Store(nil)
	order.Key = "k"
	if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	g.eventually("the letter of the other key is handled", func() error {
		if len(h.of("k")) == 0 {
			return fmt.Errorf("it waits as %+v", a.parkOf("k"))
		}
		return nil
	})
}

// unackable is a reading of the parking topic whose acks fail.
type unackable struct {
	parkingReading
	acks *atomic.Int32
}

func (r unackable) Ack(*source.ParkedLetter) error {
	r.acks.Add(1)
	return errors.New("no answer")
}

// TestUnparkPausesWhenNoLetterIsRemoved: each reading subscribes, and writes to the topic. While letters that were
// handled cannot be removed, there are few of them, `router locate` says why, and no letter is handled twice.
func TestUnparkPausesWhenNoLetterIsRemoved(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, h, order := g.startParked()
	var readings, acks atomic.Int32
	var works atomic.Bool
	read := a.unparks.read
	a.unparks.read = func(ctx context.Context, each func(*source.ParkedLetter)) (parkingReading, error) {
		readings.Add(1)
		r, err := read(ctx, each)
		if err != nil || works.Load() {
			return r, err
		}
		return unackable{r, &acks}, nil
	}
	if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	g.eventually("acks fail", func() error {
		if acks.Load() == 0 {
			return errors.New("there was none")
		}
		return nil
	})
	before := readings.Load()
	time.Sleep(time.Second)
	if n := readings.Load() - before; n > 5 { // after 200, 400, 800 ms, or a little less
		t.Errorf("%d readings in a second while acks fail", n)
	}
	g.eventually("it is said why the unpark waits", func() error { // not while the topic is being read
		if p := a.parkOf("k"); p == nil || !strings.Contains(p.Waits, "no answer") {
			return fmt.Errorf("it waits as %+v", p)
		}
		return nil
	})
	works.Store(true)
	g.eventually("the unpark has ended", func() error {
		if list := a.Acts().List(); list[0].End != "empty" {
			return fmt.Errorf("the trail is %+v", list)
		}
		return nil
	})
	if got := h.of("k"); len(got) != 1 {
		t.Errorf("the letter was handled as %v, want once", got)
	}
}

// unackableOf is a reading of the parking topic that removes no letter of one key.
type unackableOf struct {
	parkingReading
	key event.Key
}

func (r unackableOf) Ack(l *source.ParkedLetter) error {
	if l.Event.Key == r.key {
		return errors.New("no answer")
	}
	return r.parkingReading.Ack(l)
}

// TestUnparkBesideALetterThatIsNotRemoved: a letter that cannot be removed keeps its own key, and no other whose letters come back at the same time.
func TestUnparkBesideALetterThatIsNotRemoved(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, _, order := g.startParked()
	g.parkEach(a, order, []string{"other"})
	read := a.unparks.read
	a.unparks.read = func(ctx context.Context, each func(*source.ParkedLetter)) (parkingReading, error) {
		r, err := read(ctx, each)
		if err != nil {
			return nil, err
		}
		return unackableOf{r, "k"}, nil
	}
	for _, key := range []event.Key{"k", "other"} {
		order.Key = key
		if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
			t.Fatal(err)
		}
	}
	g.eventually("the other unpark has ended", func() error {
		if p := a.parkOf("other"); p != nil {
			return fmt.Errorf("the key waits as %+v", p)
		}
		return nil
	})
	if p := a.parkOf("k"); p == nil || p.Letters != 1 {
		t.Errorf("the unpark of the letter that is not removed waits as %+v", p)
	}
}

// unheard is a reading of the parking topic that removes letters, but whose answers are lost.
type unheard struct{ parkingReading }

func (r unheard) Ack(l *source.ParkedLetter) error {
	return errors.Join(r.parkingReading.Ack(l), errors.New("no answer"))
}

// TestUnparkEndsThoughAnAnswerWasLost: a letter that was removed is not waited for.
func TestUnparkEndsThoughAnAnswerWasLost(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a, h, order := g.startParked()
	read := a.unparks.read
	a.unparks.read = func(ctx context.Context, each func(*source.ParkedLetter)) (parkingReading, error) {
		r, err := read(ctx, each)
		if err != nil {
			return nil, err
		}
		return unheard{r}, nil
	}
	if _, _, err := a.Acts().Unpark(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	g.eventually("the unpark has ended", func() error {
		if list := a.Acts().List(); list[0].End != "empty" {
			return fmt.Errorf("the trail is %+v, and the key waits as %+v", list, a.parkOf("k"))
		}
		return nil
	})
	if got := h.of("k"); len(got) != 1 {
		t.Errorf("the letter was handled as %v, want once", got)
	}
}

// TestLettersAreNotCopiedByAMemberThatHasLostThem: a copy that has waited for a source is not sent once another member may have handled the letter.
func TestLettersAreNotCopiedByAMemberThatHasLostThem(t *testing.T) {
	t.Parallel()
	g, log := newGroup(t), controllog.NewMem()
	a := g.startWith("a", nil, g.parksOn("a", log))
	g.startApp(a)
	g.ready(a)
	u, src := a.unparks, a.source.Swap(nil)
	defer a.source.Store(src)
	for name, lose := range map[string]func(c *comeback){
		"the unpark has ended":      func(c *comeback) { u.set([]event.Park{{Key: c.park.Key, Act: c.park.Act}}) },
		"another park has come":     func(c *comeback) { u.set([]event.Park{{Key: c.park.Key, Act: [16]byte{9}, State: event.ParkOn}}) },
		"it is still this member's": func(*comeback) {},
	} {
		c := &comeback{park: event.Park{Key: "k", Act: [16]byte{1}, State: event.ParkEnds}, unacked: map[event.MessageID]struct{}{}, busy: true}
		u.mu.Lock()
		u.keys["k"] = c
		u.mu.Unlock()
		e := &event.Event{Key: "k", Partition: ring.PartitionOf("k"), ID: event.MessageID{Ledger: 1 << 30, Batch: -1, TopicPartition: -1}, Topic: "orders", Payload: []byte("x")}
		l := &source.ParkedLetter{Message: event.Message{Event: e}}
		copied := make(chan bool)
		a.source.Store(nil)
		go func() {
			copied <- u.copy(t.Context(), c, l, e, event.Verdict{Kind: event.Failed, Detail: &event.Detail{Reason: "no"}})
		}()
		time.Sleep(10 * time.Millisecond) // it waits for a source
		lose(c)
		a.source.Store(src)
		select {
		case got := <-copied:
			if want := name == "it is still this member's"; got != want {
				t.Errorf("%s: copied is %v, want %v", name, got, want)
			}
		case <-time.After(eventually.Most):
			t.Errorf("%s: the copy is waited for", name)
		}
		u.set([]event.Park{{Key: "k"}})
	}
}

// TestUnparkWaitsForRoomForItsEnd: an unpark whose end finds no room is looked at again.
func TestUnparkWaitsForRoomForItsEnd(t *testing.T) {
	t.Parallel()
	keeper := act.New(act.DefaultConfig(), "a", nil, time.Now, slog.New(slog.DiscardHandler), act.NewMetrics(prometheus.NewRegistry()))
	for i := range act.SkipsLimit { // ends that the topic has not got
		keeper.Ended([]event.Skipped{{Skip: event.Skip{Key: "skipped", Act: [16]byte{1, byte(i), byte(i >> 8)}}}})
	}
	u := newUnparks(&Node{parts: Parts{Acts: keeper}})
	u.set([]event.Park{{Key: "k", Act: [16]byte{2}, State: event.ParkEnds}})
	if c := u.keys["k"]; u.end(c, false) || c.ended {
		t.Error("the unpark counts as ended, and no record of it will be written")
	}
}

// TestReturnedIsNotSpilled: what the history of a key says of events that ended without a verdict.
func TestReturnedIsNotSpilled(t *testing.T) {
	for why, want := range map[event.Drop]string{event.Spilled: "spilled", event.Returned: "returned", event.GivenUp: "dead letter topic"} {
		if got := settledAs(&history.Journey{Dropped: why}); got != want {
			t.Errorf("an event ends as %q, want %q", got, want)
		}
	}
}

// TestFirstUnprovenIDIsAnIncrease: the alert on forged ends asks for the increase of a count, which begins when the count is there.
func TestFirstUnprovenIDIsAnIncrease(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry())
	newRefusals(&Node{metrics: m})
	before := testutil.CollectAndCount(m.admitted)
	m.admitted.WithLabelValues(admission.Unproven.String())
	if n := testutil.CollectAndCount(m.admitted); n != before {
		t.Errorf("%d counts of ids at the start, want %d: that of the unproven ones, too", before, n)
	}
}
