package act

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

var noon = time.UnixMilli(1_800_000_000_000)

// record returns a record that is within all bounds.
func record(kind Kind, key event.Key, at time.Time, duration time.Duration) Record {
	return Record{Kind: kind, ID: newID(), Key: key, By: "alice@laptop", Via: "router-0, asked from 127.0.0.1:1", Reason: "poison pill", At: at, Until: at.Add(duration)}
}

func encoded(t interface{ Fatal(...any) }, r Record) []byte {
	data, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// skipRecord returns the record of a skip of an event.
func skipRecord(key event.Key, entry int64, at time.Time, duration time.Duration) Record {
	r := record(Skip, key, at, duration)
	r.Event = event.MessageID{Ledger: 7, Entry: entry, Batch: -1, TopicPartition: -1}
	return r
}

// endRecord returns the record of the end of a skip.
func endRecord(of Record, end End) Record {
	r := record(Skipped, of.Key, of.At, 0)
	r.Of, r.End, r.By = of.ID, end, "router-1"
	return r
}

// unparkedRecord returns the record of the end of an unpark.
func unparkedRecord(of Record) Record {
	r := record(Unparked, of.Key, of.At, 0)
	r.Of, r.End, r.By = of.ID, EndEmpty, "router-1"
	return r
}

// TestFoldMatchesTheReference: which keys are held or parked at an instant is decided by the newest act on each in the
// log, an unpark by its end, too, and which events are skipped by the first skip of each that has not expired, whatever
// the writers' clocks say and however often a record is read.
func TestFoldMatchesTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f, again Fold
		type entry struct {
			at   event.Position
			data []byte
		}
		var log []entry
		newest, skips := map[event.Key]Record{}, map[skipped]Record{}
		var ordered []Record // all skips
		parks := map[event.Key]Record{}
		var unparks []Record // all
		ends := map[ID]End{}
		position := event.Position{Ledger: 1}
		for range rapid.IntRange(1, 40).Draw(t, "records") {
			position.Entry += rapid.Int64Range(1, 3).Draw(t, "step")
			key := event.Key(rapid.SampledFrom([]string{"a", "b", "", "\xff"}).Draw(t, "key"))
			at := noon.Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "clock")) * time.Second)
			kind := rapid.SampledFrom([]Kind{Hold, Hold, Release, Skip, Skip, Skipped, Park, Unpark, Unpark, Unparked, Mark}).Draw(t, "kind")
			duration := time.Duration(0)
			if kind.lasts() {
				duration = time.Duration(rapid.IntRange(1, 200).Draw(t, "duration")) * time.Second
			}
			r := record(kind, key, at, duration)
			switch kind {
			case Skip:
				r = skipRecord(key, rapid.Int64Range(1, 2).Draw(t, "event"), at, duration)
				if before, is := skips[skipped{key, r.Event}]; !is || !at.Before(before.Until) {
					skips[skipped{key, r.Event}] = r
				}
				ordered = append(ordered, r)
			case Skipped:
				of := record(Skip, key, at, 0) // of none
				if len(ordered) > 0 {
					of = rapid.SampledFrom(ordered).Draw(t, "of")
				}
				r = endRecord(of, rapid.SampledFrom([]End{EndDeadLetter, EndDone}).Draw(t, "end"))
				if _, told := ends[of.ID]; !told {
					ends[of.ID] = r.End
				}
			case Hold, Release:
				newest[key] = r
			case Park, Unpark:
				before := parks[key]
				if kind == Park || before.Kind != Unpark || !at.Before(before.Until) {
					parks[key] = r
				}
				if kind == Unpark {
					unparks = append(unparks, r)
				}
			case Unparked:
				of := record(Unpark, key, at, 0) // of none
				if len(unparks) > 0 {
					of = rapid.SampledFrom(unparks).Draw(t, "of")
				}
				r = unparkedRecord(of)
				if parks[of.Key].ID == of.ID {
					delete(parks, of.Key)
				}
				ends[of.ID] = EndEmpty
			case Mark:
			}
			log = append(log, entry{position, encoded(t, r)})
		}
		for i, e := range log {
			if _, result := f.Apply(e.at, e.data); result == Repeated || result == Malformed || result == Later || result == Full {
				t.Fatalf("record %d is %s", i, result)
			}
			again.Apply(e.at, e.data)
			back := log[rapid.IntRange(0, i).Draw(t, "back")]
			if _, result := again.Apply(back.at, back.data); result != Repeated {
				t.Fatalf("a record that was read before is %s", result)
			}
		}
		for range 5 {
			now := noon.Add(time.Duration(rapid.IntRange(-200, 400).Draw(t, "now")) * time.Second)
			var want []event.Key
			var next time.Time
			for key, r := range newest {
				if r.Kind == Hold && now.Before(r.Until) {
					want = append(want, key)
					if next.IsZero() || r.Until.Before(next) {
						next = r.Until
					}
				}
			}
			for name, r := range skips {
				if !now.Before(r.Until) {
					continue
				}
				if next.IsZero() || r.Until.Before(next) {
					next = r.Until
				}
				if !slices.Contains(f.Skips(now), r.skip()) || !slices.ContainsFunc(f.SkipsOf(name.key, now), func(s Shown) bool {
					return s.ID == r.ID.String() && s.Event == name.event.String() && s.Active && s.End == ends[r.ID].String()
				}) {
					t.Fatalf("skips are %+v, shown as %+v, without %+v, whose end is %q", f.Skips(now), f.SkipsOf(name.key, now), r, ends[r.ID])
				}
			}
			effective := 0
			for _, r := range skips {
				if now.Before(r.Until) {
					effective++
				}
			}
			if n, m := len(f.Skips(now)), len(again.Skips(now)); n != effective || m != effective {
				t.Fatalf("%d skips are in effect, and with records read twice %d, want %d", n, m, effective)
			}
			for _, s := range f.List(now) {
				if i := slices.IndexFunc(ordered, func(r Record) bool { return r.ID.String() == s.ID }); i >= 0 && s.End != ends[ordered[i].ID].String() {
					t.Fatalf("the end of %+v is listed, want %q", s, ends[ordered[i].ID])
				}
			}
			parked, lapsed := 0, 0
			for key, r := range parks {
				if !now.Before(r.Until) {
					lapsed++
					continue
				}
				if parked++; next.IsZero() || r.Until.Before(next) {
					next = r.Until
				}
				state := map[Kind]event.ParkState{Park: event.ParkOn, Unpark: event.ParkEnds}[r.Kind]
				if got, is := f.ParkOf(key, now); !is || got != r || !slices.Contains(f.Parks(now), event.Park{Key: key, Act: r.ID, State: state}) {
					t.Fatalf("the park of %q is %+v (%v) among %+v, want %+v", key, got, is, f.Parks(now), r)
				}
			}
			if n, m := len(f.Parks(now)), len(again.Parks(now)); n != parked || m != parked || f.LapsedParks(now) != lapsed {
				t.Fatalf("%d keys are parked, %d with records read twice, and of %d it has lapsed; want %d and %d", n, m, f.LapsedParks(now), parked, lapsed)
			}
			for _, s := range f.List(now) {
				if i := slices.IndexFunc(unparks, func(r Record) bool { return r.ID.String() == s.ID }); i >= 0 && s.End != ends[unparks[i].ID].String() {
					t.Fatalf("the end of %+v is listed, want %q", s, ends[unparks[i].ID])
				}
			}
			effective += parked
			got, same := f.Keys(now), again.Keys(now)
			for _, keys := range [][]event.Key{want, got, same} {
				slices.SortFunc(keys, func(a, b event.Key) int { return cmp.Compare(a, b) })
			}
			if !slices.Equal(got, want) || !slices.Equal(same, want) {
				t.Fatalf("held are %q, and with records read twice %q, want %q", got, same, want)
			}
			if at, ok := f.Next(now); ok != (len(want)+effective > 0) || ok && !at.Equal(next) {
				t.Fatalf("the next one expires at %v (%v), want %v", at, ok, next)
			}
			for _, key := range want {
				if r, ok := f.Held(key, now); !ok || r != newest[key] {
					t.Fatalf("the hold of %q is %+v, want %+v", key, r, newest[key])
				}
			}
		}
	})
}

// TestAnActThatIsWrittenAgainDoesNotUndoALaterOne: a member that writes an act again may not have read yet that it is
// over. Its record then stands behind the later one, and a member that starts now knows no better.
func TestAnActThatIsWrittenAgainDoesNotUndoALaterOne(t *testing.T) {
	soon := noon.Add(time.Second)
	hold, longer, release := record(Hold, "k", noon, time.Hour), record(Hold, "k", soon, 2*time.Hour), record(Release, "k", soon, 0)
	park, unpark := record(Park, "k", noon, time.Hour), record(Unpark, "k", soon, time.Hour)
	skip := skipRecord("k", 3, noon, time.Hour)
	for name, c := range map[string]struct{ before, after []Record }{
		"a release":                          {[]Record{hold}, []Record{release, hold}},
		"a release, from an earlier state":   {[]Record{hold, release}, []Record{hold}},
		"a longer hold":                      {[]Record{hold}, []Record{longer, hold}},
		"an unpark":                          {[]Record{park}, []Record{unpark, park}},
		"an unpark that has ended":           {[]Record{park}, []Record{unpark, unparkedRecord(unpark), park}},
		"its end, from an earlier state":     {[]Record{park, unpark, unparkedRecord(unpark)}, []Record{park}},
		"its end, which was lost":            {[]Record{park, unpark, unparkedRecord(unpark)}, []Record{park, unpark}},
		"the end of a skip that is not over": {[]Record{skip, endRecord(skip, EndDone)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var old, fresh Fold
			for i, r := range c.before {
				old.Apply(event.Position{Ledger: 1, Entry: int64(i)}, encoded(t, r))
			}
			old.Restart()
			at := event.Position{Ledger: 10}
			read := func(r Record) {
				for _, f := range []*Fold{&old, &fresh} {
					f.Apply(at, encoded(t, r))
				}
				at.Entry++
			}
			for _, r := range c.after {
				read(r)
			}
			now := noon.Add(time.Minute)
			for rounds := 0; len(old.Missing(now)) > 0; rounds++ {
				if rounds == 5 {
					t.Fatalf("acts are written again and again: %v", old.Missing(now))
				}
				for _, r := range old.Missing(now) {
					read(r)
				}
			}
			effects := func(f *Fold) string {
				held, _ := f.Held("k", now)
				skips := f.SkipsOf("k", now)
				for i := range skips {
					skips[i].Active = true
				}
				return fmt.Sprint(held.ID, f.Parks(now), skips)
			}
			if want, got := effects(&old), effects(&fresh); got != want {
				t.Errorf("a member that started later goes by %s, and the others by %s", got, want)
			}
			if more := fresh.Missing(now); len(more) > 0 {
				t.Errorf("it would write again %v", more)
			}
		})
	}
}

// applierOf returns a function that applies one record after the other, from the first position of a ledger on.
func applierOf(t *testing.T, f *Fold) func(Record) Result {
	at := event.Position{Ledger: 1}
	return func(r Record) Result {
		t.Helper()
		at.Entry++
		_, result := f.Apply(at, encoded(t, r))
		return result
	}
}

func TestFoldIsBounded(t *testing.T) {
	var f Fold
	apply := applierOf(t, &f)
	for i := range HeldLimit {
		if got := apply(record(Hold, event.Key(fmt.Sprint(i)), noon, time.Minute)); got != Held {
			t.Fatalf("hold %d is %s", i, got)
		}
	}
	if got := apply(record(Hold, "one more", noon, time.Minute)); got != Full {
		t.Errorf("one more is %s", got)
	}
	if got := apply(record(Hold, "7", noon, time.Hour)); got != Renewed {
		t.Errorf("a longer hold of a held key is %s", got)
	}
	if got := apply(record(Release, "8", noon, 0)); got != Released {
		t.Errorf("a release is %s", got)
	}
	if got := apply(record(Release, "8", noon, 0)); got != NotHeld {
		t.Errorf("another release is %s", got)
	}
	if got := apply(record(Hold, "8b", noon, time.Minute)); got != Held {
		t.Errorf("in the place of the released one is %s", got)
	}
	later := noon.Add(2 * time.Minute)
	if got := apply(record(Hold, "one more", later, time.Minute)); got != Held || len(f.holds) != HeldLimit {
		t.Errorf("when the others have expired it is %s, beside %d", got, len(f.holds))
	}
	if len(f.list) != listMax {
		t.Errorf("%d records are listed, want %d", len(f.list), listMax)
	}
	list := f.List(later)
	if len(list) != listMax || list[0].Key != "one more" || !list[0].Active || list[1].Key != "7" || !list[1].Active || list[2].Active {
		t.Errorf("%d are listed, first %+v", len(list), list[:3])
	}
}

// TestSkipsAreBounded: there are no more skips than SkipsLimit; those that have expired make room, and of one event there is one.
func TestSkipsAreBounded(t *testing.T) {
	var f Fold
	apply := applierOf(t, &f)
	for i := range int64(SkipsLimit) {
		if got := apply(skipRecord("k", i, noon, time.Minute)); got != Skipping {
			t.Fatalf("skip %d is %s", i, got)
		}
	}
	if got := apply(skipRecord("k", 7, noon, time.Hour)); got != Already {
		t.Errorf("a second skip of an event is %s", got)
	}
	last := skipRecord("l", 1, noon, time.Minute)
	if got := apply(last); got != Full {
		t.Errorf("one more is %s", got)
	}
	if got := apply(endRecord(last, EndDone)); got != Ended {
		t.Errorf("the end of a skip that a former reader had room for is %s", got)
	}
	if got := apply(endRecord(last, EndDeadLetter)); got != NoSkip {
		t.Errorf("another end of it is %s", got)
	}
	if got := apply(skipRecord("l", 2, noon.Add(2*time.Minute), time.Minute)); got != Skipping || len(f.skips) != SkipsLimit {
		t.Errorf("when the others have expired it is %s, beside %d", got, len(f.skips))
	}
}

// TestParksAreBounded: there are no more parks than ParksLimit; those that have ended or expired make room, and of one key there is one.
func TestParksAreBounded(t *testing.T) {
	var f Fold
	apply := applierOf(t, &f)
	for i := range ParksLimit {
		if got := apply(record(Park, event.Key(fmt.Sprint(i)), noon, time.Minute)); got != Parking {
			t.Fatalf("park %d is %s", i, got)
		}
	}
	if got := apply(record(Unpark, "one more", noon, time.Minute)); got != Full {
		t.Errorf("one more is %s", got)
	}
	back := record(Unpark, "7", noon, time.Minute)
	for _, want := range []Result{Unparking, Already} {
		if got := apply(back); got != want {
			t.Errorf("an unpark is %s, want %s", got, want)
		}
		back.ID = newID()
	}
	if got := apply(unparkedRecord(back)); got != NoSkip {
		t.Errorf("the end of an unpark without an effect is %s", got)
	}
	first, _ := f.ParkOf("7", noon)
	for _, want := range []Result{Ended, NoSkip} {
		if got := apply(unparkedRecord(first)); got != want || f.lacksEnd("7", first.ID) {
			t.Errorf("the end of the unpark is %s, want %s", got, want)
		}
	}
	if got := apply(record(Park, "one more", noon, time.Hour)); got != Parking {
		t.Errorf("in the place of the one that has ended is %s", got)
	}
	if got := apply(record(Park, "another", noon.Add(2*time.Minute), time.Minute)); got != Parking || len(f.parks) != ParksLimit {
		t.Errorf("when the others have expired it is %s, beside %d", got, len(f.parks))
	}
}

// TestAClockThatIsAheadTakesOnePlace: when all places are taken, an act from a clock that is hours ahead takes the place of the one that ends first, and
// the others keep their effect.
func TestAClockThatIsAheadTakesOnePlace(t *testing.T) {
	var f Fold
	apply := applierOf(t, &f)
	for i := range HeldLimit {
		if got := apply(record(Hold, event.Key(fmt.Sprint(i)), noon, time.Hour+time.Duration(i)*time.Second)); got != Held {
			t.Fatalf("hold %d is %s", i, got)
		}
	}
	if got := apply(record(Hold, "ahead", noon.Add(10*time.Hour), time.Hour)); got != Held {
		t.Errorf("the hold from a clock that is ahead is %s", got)
	}
	if got := apply(record(Hold, "one more", noon, time.Hour)); got != Full {
		t.Errorf("one more is %s", got)
	}
	_, first := f.Held("0", noon)
	_, second := f.Held("1", noon)
	if n := len(f.Keys(noon)); n != HeldLimit || first || !second {
		t.Errorf("%d keys are held, the first one %v, the second one %v; want all but the first one, and the new one", n, first, second)
	}
}

// TestWrongClocksHoldNoKeyForLong: a hold from the far future has no effect.
func TestWrongClocksHoldNoKeyForLong(t *testing.T) {
	var f Fold
	f.Apply(event.Position{Ledger: 1, Entry: 1}, encoded(t, record(Hold, "k", noon.Add(10*365*24*time.Hour), time.Hour)))
	if r, held := f.Held("k", noon); held {
		t.Errorf("held until %v", r.Until)
	}
}

// TestWrongClocksKeepNoRecords: a record from the far future, listed or not, does not keep all later ones in the topic.
func TestWrongClocksKeepNoRecords(t *testing.T) {
	var f Fold
	entry := int64(0)
	apply := func(r Record) {
		entry++
		f.Apply(event.Position{Ledger: 1, Entry: entry}, encoded(t, r))
	}
	const keep = time.Hour
	apply(record(Hold, "far", noon.Add(10*365*24*time.Hour), time.Hour))
	apply(record(Release, "a", noon, 0))
	apply(record(Release, "a", noon, 0))
	if upTo, ok := f.Old(noon.Add(2*keep), keep); !ok || upTo.Entry != entry-1 {
		t.Errorf("listed, it lets go up to %v (%v), want entry %d", upTo, ok, entry-1)
	}
	apply(record(Hold, "b", noon, 10*time.Hour))
	for range listMax {
		apply(record(Release, "a", noon, 0))
	}
	if upTo, ok := f.Old(noon.Add(2*keep), keep); ok {
		t.Errorf("up to %v, though a hold that is not listed any more has an effect", upTo)
	}
	if upTo, ok := f.Old(noon.Add(12*time.Hour), keep); !ok || upTo.Entry != entry-1 {
		t.Errorf("forgotten, it lets go up to %v (%v), want entry %d", upTo, ok, entry-1)
	}
}

// TestAClockThatIsFarBehindDeletesNothing: to a member whose clock stands at its battery's last year, all records are from the far future. Those that
// were expired before are the only ones that it may let go.
func TestAClockThatIsFarBehindDeletesNothing(t *testing.T) {
	var f Fold
	f.Apply(event.Position{Ledger: 1, Entry: 1}, encoded(t, record(Hold, "a", noon, 10*time.Hour)))
	f.Apply(event.Position{Ledger: 1, Entry: 2}, encoded(t, record(Release, "b", noon, 0)))
	if upTo, ok := f.Old(noon.Add(-10*365*24*time.Hour), time.Hour); ok {
		t.Errorf("up to %v, though a hold has an effect", upTo)
	}
}

// TestOldRecordsMayGo: a record is kept while it has an effect, and for some time after; so are all behind it, and the newest one.
func TestOldRecordsMayGo(t *testing.T) {
	var f Fold
	for i, r := range []Record{
		record(Hold, "a", noon, time.Minute),
		record(Release, "b", noon, 0),
		record(Hold, "c", noon, 10*time.Hour),
		record(Release, "d", noon, 0),
	} {
		f.Apply(event.Position{Ledger: 1, Entry: int64(i)}, encoded(t, r))
	}
	const keep = time.Hour
	for after, want := range map[time.Duration]int64{0: -1, time.Hour: -1, time.Hour + 2*time.Minute: 1, 11*time.Hour + time.Second: 2} {
		upTo, ok := f.Old(noon.Add(after), keep)
		if ok != (want >= 0) || ok && upTo.Entry != want {
			t.Errorf("after %v: up to %v (%v), want entry %d", after, upTo, ok, want)
		}
	}
	for i := range listMax { // now the list forgets the first ones, one of which has an effect for long
		f.Apply(event.Position{Ledger: 2, Entry: int64(i)}, encoded(t, record(Release, "e", noon, 0)))
	}
	if upTo, ok := f.Old(noon.Add(5*time.Hour), keep); ok {
		t.Errorf("up to %v, though a hold that is not listed any more has an effect", upTo)
	}
	if _, held := f.Held("c", noon.Add(5*time.Hour)); !held {
		t.Error("the list has forgotten a hold, and so it has no effect")
	}
	if _, ok := f.Old(noon.Add(12*time.Hour), keep); !ok {
		t.Error("nothing may go when all is over")
	}
}

func TestRecordsAreBounded(t *testing.T) {
	good := record(Hold, "key", noon, time.Hour)
	with := func(change func(*Record)) Record {
		r := good
		change(&r)
		return r
	}
	for name, r := range map[string]Record{
		"no kind":               with(func(r *Record) { r.Kind = 0 }),
		"another kind":          with(func(r *Record) { r.Kind = 9 }),
		"a long key":            with(func(r *Record) { r.Key = event.Key(strings.Repeat("k", event.KeyMax+1)) }),
		"nobody":                with(func(r *Record) { r.By = "" }),
		"no reason":             with(func(r *Record) { r.Reason = "" }),
		"a long reason":         with(func(r *Record) { r.Reason = strings.Repeat("r", reasonMax+1) }),
		"an escape sequence":    with(func(r *Record) { r.Reason = "\x1b[31mred" }),
		"a second line":         with(func(r *Record) { r.By = "alice\nlevel=ERROR" }),
		"broken UTF-8":          with(func(r *Record) { r.Via = "\xff" }),
		"no time":               with(func(r *Record) { r.Until = r.At }),
		"a negative time":       with(func(r *Record) { r.Until = r.At.Add(-1 * time.Second) }),
		"more than DurationMax": with(func(r *Record) { r.Until = r.At.Add(DurationMax + time.Millisecond) }),
		"a release with a time": with(func(r *Record) { r.Kind = Release }),
		"a skip without an end": with(func(r *Record) { r.Kind, r.Until = Skip, r.At }),
		"an end that is none":   with(func(r *Record) { r.Kind, r.Until = Skipped, r.At }),
		"a park without a time": with(func(r *Record) { r.Kind, r.Until = Park, r.At }),
		"a skip that is empty":  with(func(r *Record) { r.Kind, r.Until, r.End = Skipped, r.At, EndEmpty }),
		"an unpark with a done": with(func(r *Record) { r.Kind, r.Until, r.End = Unparked, r.At, EndDone }),
		"an end with a time":    with(func(r *Record) { r.Kind, r.End = Skipped, EndDone }),
	} {
		if _, err := Encode(r); err == nil {
			t.Errorf("a record with %s is encoded", name)
		}
	}
	data := encoded(t, good)
	if got, err := Decode(data); err != nil || got != good {
		t.Errorf("%+v (%v), want %+v", got, err, good)
	}
	skip := skipRecord("k", 1, noon, time.Minute)
	for _, want := range []Record{skip, endRecord(skip, EndDone), record(Park, "k", noon, time.Hour), unparkedRecord(record(Unpark, "k", noon, time.Hour))} {
		if got, err := Decode(encoded(t, want)); err != nil || got != want {
			t.Errorf("%+v (%v), want %+v", got, err, want)
		}
	}
	if _, err := Decode(append(encoded(t, skip), 0x52, 3, '1', ':', '2')); err == nil {
		t.Error("a skip of no message id is taken")
	}
	if _, err := Decode(append(encoded(t, skip), 0x10, byte(Unparked)+1)); !errors.Is(err, errVersion) {
		t.Errorf("an act of a later release: %v", err)
	}
	var f Fold
	if _, got := f.Apply(event.Position{Ledger: 1}, data[:len(data)-3]); got != Malformed {
		t.Errorf("a cut record is %s", got)
	}
	if _, got := f.Apply(event.Position{Ledger: 1, Entry: 1}, append([]byte{0x08, 0x07}, data[2:]...)); got != Later {
		t.Errorf("a record of version 7 is %s", got)
	}
}

// FuzzDecode: whatever stands in the topic, a record that is taken is within its bounds and can be shown.
func FuzzDecode(f *testing.F) {
	f.Add(encoded(f, record(Hold, "key", noon, time.Hour)))
	f.Add(encoded(f, record(Release, "\xff", noon, 0)))
	f.Add(encoded(f, skipRecord("k", 1, noon, time.Hour)))
	f.Add(encoded(f, endRecord(skipRecord("k", 1, noon, time.Hour), EndDone)))
	f.Add(encoded(f, unparkedRecord(record(Unpark, "k", noon, time.Hour))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		if err != nil {
			return
		}
		if _, err := Encode(r); err != nil {
			t.Errorf("taken, and not encoded: %v", err)
		}
		if _, err := r.shown(false).At.MarshalJSON(); err != nil {
			t.Error(err)
		}
		if _, err := r.shown(false).Until.MarshalJSON(); err != nil {
			t.Error(err)
		}
	})
}

// TestManyWrongClocksDeleteNothing: however many acts from the far future the list has forgotten, a hold that it has forgotten, too, keeps its record.
func TestManyWrongClocksDeleteNothing(t *testing.T) {
	var f Fold
	entry := int64(0)
	apply := func(r Record) {
		entry++
		f.Apply(event.Position{Ledger: 1, Entry: entry}, encoded(t, r))
	}
	apply(record(Hold, "c", noon, 10*time.Hour))
	for i := range 2 * forgottenMax {
		apply(record(Hold, "far", noon.Add(10*365*24*time.Hour+time.Duration(i)*time.Minute), time.Hour))
	}
	for range listMax {
		apply(record(Release, "a", noon, 0))
	}
	if upTo, ok := f.Old(noon.Add(3*time.Hour), time.Hour); ok {
		t.Errorf("up to %v, though a hold has an effect", upTo)
	}
	if len(f.forgotten) > forgottenMax {
		t.Errorf("%d forgotten acts are noted, want at most %d", len(f.forgotten), forgottenMax)
	}
}

// TestTheEndOfAForgottenSkipIsTold: the list forgets a skip that has an effect still, and its end is lacking until it is told.
func TestTheEndOfAForgottenSkipIsTold(t *testing.T) {
	var f Fold
	apply := applierOf(t, &f)
	skip := skipRecord("k", 1, noon, time.Hour)
	apply(skip)
	for range listMax {
		apply(record(Release, "a", noon, 0))
	}
	if !f.lacksEnd("k", skip.ID) || f.lacksEnd("other", skip.ID) {
		t.Error("the end of the skip is not lacking, or that of another key is")
	}
	if result := apply(endRecord(skip, EndDone)); result != Ended || f.lacksEnd("k", skip.ID) {
		t.Errorf("its end is %s, and lacking: %v", result, f.lacksEnd("k", skip.ID))
	}
	if of := f.SkipsOf("k", noon); len(of) != 1 || of[0].End != "done" {
		t.Errorf("the skips of the key are %+v", of)
	}
}

// TestExpiredActsAreNotRestored: what an act written again behind a later one undoes is written again only while that one has an effect.
func TestExpiredActsAreNotRestored(t *testing.T) {
	var f Fold
	entry := int64(0)
	apply := func(r Record) {
		entry++
		f.Apply(event.Position{Ledger: 1, Entry: entry}, encoded(t, r))
	}
	hold, release := record(Hold, "k", noon, time.Hour), record(Release, "k", noon.Add(time.Minute), 0)
	skip := skipRecord("k", 1, noon, time.Hour)
	end := endRecord(skip, EndDone)
	for _, r := range []Record{hold, release, skip, end, hold, skip} {
		apply(r)
	}
	if missing := f.Missing(noon.Add(2 * time.Minute)); len(missing) != 2 || missing[0].ID != end.ID || missing[1].ID != release.ID {
		t.Errorf("missing are %+v, want the end of the skip and the release", missing)
	}
	if missing := f.Missing(noon.Add(time.Hour)); len(missing) > 0 {
		t.Errorf("missing are %+v, though the hold and the skip have expired", missing)
	}
}
