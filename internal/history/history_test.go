package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

const small = 1 << 20 // bytes

// attemptsOf returns all that is remembered of a key, and the number of steps that it took.
func attemptsOf(t *Attempts, key ring.KeyHash) (s AttemptSearch, steps int) {
	s.Key = key
	for steps = 1; t.Step(&s); steps++ {
	}
	return s, steps
}

// The memory is bounded whatever comes: the newest attempts stay, and those of keys that failed
// stay although many others come after them.
func TestAttemptsOfKeysThatFailedAreKeptLongest(t *testing.T) {
	a := Config{BytesMax: small}.NewAttempts(2)
	const poison, quiet, spoiled = 7, 8, 9
	add := func(key ring.KeyHash, at int, result event.ResultKind, keyFailed bool) {
		*a.Next(keyFailed || Failed(result)) = Attempt{Key: key, Ended: clock.Instant(at), Number: 1, Result: result}
	}
	add(poison, 1, event.ResultRetry, false)
	add(spoiled, 2, event.ResultDone, true)
	add(quiet, 3, event.ResultDone, false)
	const flood = 100_000
	for i := range flood {
		add(1, 10+i, event.ResultDone, false)
	}
	for key, want := range map[ring.KeyHash]int{poison: 1, spoiled: 1, quiet: 0} {
		if s, _ := attemptsOf(a, key); len(s.Found) != want {
			t.Errorf("key %d has %d attempts, want %d", key, len(s.Found), want)
		}
	}
	s, _ := attemptsOf(a, 1)
	newest := small / parts * attemptsPart / 2 * (failedPart - 1) / failedPart / 96
	if len(s.Found) != newest || s.Found[newest-1].Ended != 10+flood-1 || s.Oldest != s.Found[0].Ended || a.newest.countMax != newest {
		t.Errorf("%d attempts are remembered since %d, want the newest %d", len(s.Found), s.Oldest, newest)
	}
	for i := range 100_000 {
		add(poison, i, event.ResultRetry, false)
	}
	if untouched, _ := attemptsOf(Config{BytesMax: small}.NewAttempts(2), 1); untouched.Oldest != 0 {
		t.Errorf("nothing was forgotten before %d", untouched.Oldest)
	}
	if s, _ := attemptsOf(a, poison); len(s.Found) != a.failed.countMax {
		t.Errorf("%d failures are remembered, want %d", len(s.Found), a.failed.countMax)
	}
}

// A search makes short steps, between which attempts may be added: it neither loses one that
// stays nor finds one that came later.
func TestSearchesMakeSteps(t *testing.T) {
	a := Config{BytesMax: 16 << 20}.NewAttempts(1)
	for i := range a.newest.countMax {
		*a.Next(false) = Attempt{Key: ring.KeyHash(i % 2), Ended: clock.Instant(i), Result: event.ResultDone, Number: 1}
	}
	s, steps := AttemptSearch{Key: 1}, 1
	for a.Step(&s) {
		steps++
		for range 10 {
			*a.Next(false) = Attempt{Key: 1, Ended: clock.Forever - 1, Result: event.ResultDone, Number: 1}
		}
	}
	if want := (a.newest.countMax + stepMax - 1) / stepMax; steps < want {
		t.Errorf("%d steps, want %d", steps, want)
	}
	if lost := a.newest.countMax/2 - len(s.Found); lost != 0 {
		t.Errorf("%d of the attempts are lost", lost)
	}
	for _, one := range s.Found {
		if one.Ended == clock.Forever-1 {
			t.Fatal("an attempt is found that came later")
		}
	}
}

// To add an attempt or a verdict allocates nothing once the memory is there, and to add an entry a set of its events.
func TestRecordsAllocateNothing(t *testing.T) {
	c := Config{BytesMax: small}
	a, j := c.NewAttempts(1), c.NewJourneys()
	e := event.NewEntry(event.Message{Event: &event.Event{Key: "a"}})
	e.Fresh = event.AllBits(1)
	serial := uint64(0)
	all := func() {
		serial++
		e.SetFirst(event.NewHandle(serial, 0))
		*a.Next(false) = Attempt{Key: 1, Number: 1}
		j.Received(1, e)
		j.Settled(2, []event.Verdict{{Handle: e.First, Kind: event.Done}})
	}
	for range 20_000 {
		all()
	}
	if n := testing.AllocsPerRun(1000, all); n > 1 {
		t.Errorf("%v allocations, want that of the set of open journeys of an entry", n)
	}
}

// receive notes the receipt of one event of a key.
func receive(j *Journeys, at clock.Instant, key string, handle event.Handle) {
	received(j, at, handle, key)
}

// received notes the receipt of an entry with an event of each of the keys. first is the handle of its first event.
func received(j *Journeys, at clock.Instant, first event.Handle, keys ...string) {
	var messages []event.Message
	for i, key := range keys {
		messages = append(messages, event.Message{Event: &event.Event{
			Key: event.Key(key), Partition: ring.PartitionOf(key), ID: event.MessageID{Ledger: 1, Entry: int64(first), Batch: int32(i)},
		}})
	}
	e := event.NewEntry(messages...)
	e.Fresh = event.AllBits(len(keys))
	e.SetFirst(first)
	j.Received(at, e)
}

func tell(j *Journeys, key string) Told { return j.Tell(ring.HashOf(key), ring.PartitionOf(key)) }

// A journey has the owner at its receipt and its end; a verdict on another event changes nothing.
func TestJourneys(t *testing.T) {
	j := DefaultConfig().NewJourneys()
	j.Owned(1, ring.Partitions, func(ring.Partition) (string, int64) { return "a", 5 })
	first, second := event.NewHandle(1, 0), event.NewHandle(2, 0)
	receive(j, 10, "alice", first)
	j.Settled(20, []event.Verdict{{Handle: first, Kind: event.Attempted}})
	if got := tell(j, "alice").Journeys; len(got) != 1 || got[0].Ended != 0 {
		t.Fatalf("after a failure that is no end: %+v", got)
	}
	j.Settled(30, []event.Verdict{{Handle: first, Kind: event.Done}})
	j.Owned(35, ring.Partitions, func(ring.Partition) (string, int64) { return "b", 7 })
	receive(j, 40, "alice", second)
	j.Settled(50, []event.Verdict{{Handle: first, Kind: event.Rejected}, {Handle: event.NewRelayedHandle(2, 0), Kind: event.Done}, {Handle: event.NewHandle(9, 7), Kind: event.Done}})
	got := tell(j, "alice")
	if len(got.Journeys) != 2 || got.Journeys[0].Ended != 30 || got.Journeys[0].Verdict != event.Done || got.Journeys[1].Ended != 0 {
		t.Errorf("journeys %+v", got.Journeys)
	}
	if got.Names[got.Journeys[0].Owner] != "a" || got.Names[got.Journeys[1].Owner] != "b" || got.Oldest != 0 {
		t.Errorf("%+v", got)
	}
	if len(got.Moves) != 2 || got.Moves[1].Token != 7 || got.Names[got.Moves[1].From] != "a" || got.Names[got.Moves[1].To] != "b" || got.Moves[1].At != 35 {
		t.Errorf("moves %+v", got.Moves)
	}
	j.Dropped(60, []event.Handle{second}, event.Spilled)
	if got := tell(j, "alice").Journeys[1]; got.Dropped != event.Spilled || got.Ended != 60 {
		t.Errorf("a spilled event: %+v", got)
	}
	times := j.Times()
	if n, _, _ := times.Histogram(); n != 1 {
		t.Errorf("%d times to settle, want that of the one that was settled", n)
	}
}

// The events of an entry end together or one by one, in any order, each once.
func TestJourneysOfAnEntry(t *testing.T) {
	j := DefaultConfig().NewJourneys()
	var keys []string
	for i := range 130 {
		keys = append(keys, fmt.Sprint("key", i))
	}
	first := event.NewHandle(7, 0)
	received(j, 10, first, keys...)
	even := event.NewBits(len(keys))
	for i := 0; i < len(keys); i += 2 {
		even.Add(i)
	}
	at := func(i int) event.Handle { return first | event.Handle(i) }
	j.Settled(15, []event.Verdict{{Handle: at(3), Kind: event.Rejected}})
	j.Done(20, []event.Set{{First: first, Events: even}, {First: event.NewHandle(9, 0), Events: even}})
	j.Dropped(25, []event.Handle{at(5)}, event.Returned)
	j.Settled(30, []event.Verdict{{Handle: at(3), Kind: event.Rejected}, {Handle: at(4), Kind: event.Rejected}, {Handle: at(127), Kind: event.Done}})
	for i, key := range keys {
		want := Journey{}
		switch {
		case i%2 == 0:
			want = Journey{Ended: 20, Verdict: event.Done}
		case i == 3:
			want = Journey{Ended: 15, Verdict: event.Rejected}
		case i == 5:
			want = Journey{Ended: 25, Dropped: event.Returned}
		case i == 127:
			want = Journey{Ended: 30, Verdict: event.Done}
		}
		got := tell(j, key).Journeys
		if len(got) != 1 || got[0].Ended != want.Ended || got[0].Verdict != want.Verdict || got[0].Dropped != want.Dropped || got[0].Received != 10 {
			t.Errorf("event %d: %+v, want %+v", i, got, want)
		}
	}
	j.Done(35, []event.Set{{First: first, Events: event.AllBits(6)}}) // all but the second are over already
	if got := tell(j, keys[1]).Journeys; got[0].Ended != 35 {
		t.Errorf("the second event: %+v", got[0])
	}
	if got := tell(j, keys[5]).Journeys; got[0].Ended != 25 {
		t.Errorf("an event that was dropped ends again: %+v", got[0])
	}
	times := j.Times()
	if n, _, _ := times.Histogram(); n != 68 {
		t.Errorf("%d times to settle, want 68", n)
	}
	for i := range keys {
		j.Dropped(40, []event.Handle{at(i)}, event.Spilled)
	}
	if len(j.open) > 0 {
		t.Errorf("%d entries are still known", len(j.open))
	}
}

// Journeys that failed stay although many others come after them, once each.
func TestJourneysThatFailedAreKeptLongest(t *testing.T) {
	j := Config{BytesMax: small}.NewJourneys()
	received(j, 10, event.NewHandle(1, 0), "poison", "quiet")
	j.Settled(20, []event.Verdict{{Handle: event.NewHandle(1, 0), Kind: event.Rejected}, {Handle: event.NewHandle(1, 1), Kind: event.Done}})
	if got := tell(j, "poison").Journeys; len(got) != 1 {
		t.Fatalf("it is told %d times", len(got))
	}
	for i := range 100_000 {
		h := event.NewHandle(uint64(i+2), 0)
		receive(j, clock.Instant(i), "user", h)
		j.Settled(clock.Instant(i+1), []event.Verdict{{Handle: h, Kind: event.Done}})
	}
	poison, quiet, user := tell(j, "poison").Journeys, tell(j, "quiet").Journeys, tell(j, "user").Journeys
	if len(poison) != 1 || poison[0].Received != 10 || poison[0].Ended != 20 || len(quiet) != 0 || len(user) != j.newest.countMax {
		t.Errorf("%+v, %+v, and %d of %d", poison, quiet, len(user), j.newest.countMax)
	}
	for _, one := range user {
		if one.Ended == 0 {
			t.Fatalf("a journey has no end: %+v", one)
		}
	}
}

// Each duration is counted at the first bound that is not less.
func TestDurations(t *testing.T) {
	bound := firstBound
	for i := range durationBuckets {
		for took, want := range map[time.Duration]int{bound: i, bound + 1: i + 1} {
			if got := bucketOf(took); got != want {
				t.Errorf("%v is in bucket %d, want %d", took, got, want)
			}
		}
		bound *= 4
	}
	var d Durations
	for _, took := range []time.Duration{-1, time.Millisecond, time.Second, time.Hour} {
		d.Add(took)
	}
	sum := d.Plus(d)
	n, seconds, buckets := sum.Histogram()
	if n != 8 || seconds != 2*3601.001 || buckets[0.0001] != 2 || buckets[0.0016] != 4 || buckets[1.6384] != 6 || len(buckets) != durationBuckets {
		t.Errorf("%d durations of %v s: %v", n, seconds, buckets)
	}
}

// TestNamesBeyondTheBound: a step names no member only if there was none.
func TestNamesBeyondTheBound(t *testing.T) {
	j := DefaultConfig().NewJourneys()
	for i := range namesMax + 10 {
		j.Owned(clock.Instant(i+1), 1, func(ring.Partition) (string, int64) { return fmt.Sprintf("pod-%d", i), int64(i + 1) })
	}
	told := j.Tell(0, 0)
	last := told.Moves[len(told.Moves)-1]
	if got := told.Names[last.To]; got != NameNotKept || len(told.Names) > namesMax+1 {
		t.Errorf("the newest owner is %q, of %d names", got, len(told.Names))
	}
}
