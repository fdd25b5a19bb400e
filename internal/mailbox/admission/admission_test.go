package admission_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/ring"
)

func inc(n byte) admission.Incarnation { return admission.Incarnation{n} }

func member(n byte, name string) admission.Member {
	return admission.Member{Inc: inc(n), Name: name, Key: "key of " + name}
}

// table gives every partition p to owners[p mod len(owners)].
func table(members []admission.Member, owners ...uint16) admission.Table {
	t := admission.Table{Members: members, Owners: make([]uint16, ring.Partitions)}
	for p := range t.Owners {
		t.Owners[p] = owners[p%len(owners)]
	}
	return t
}

const topic = "persistent://public/default/orders"

func at(ledger, entry int64) event.Position { return event.Position{Ledger: ledger, Entry: entry} }

func finished(p ring.Partition, ledger int64, entries ...int64) (done []event.Finished) {
	for _, e := range entries {
		done = append(done, event.Finished{Partition: p, ID: event.MessageID{Ledger: ledger, Entry: e, Batch: -1, TopicPartition: 0}})
	}
	return done
}

// asked returns an Admission that has learned where its one topic partition ends.
func asked(last event.Position) *admission.Admission {
	a := admission.New()
	a.Learn(a.Ask(), []admission.End{{Topic: topic, Last: last}}, true, new(admission.Output))
	return a
}

func offer(a *admission.Admission, from admission.Incarnation, proven bool, done []event.Finished) admission.Output {
	var out admission.Output
	a.Offer(0, from, proven, done, &out)
	return out
}

func want(t *testing.T, out admission.Output, counts map[admission.Result]int) {
	t.Helper()
	got := map[admission.Result]int{}
	for _, j := range out.Judged {
		for r := range admission.Results {
			if n := j.Counts[r]; n > 0 {
				got[r] += n
			}
		}
	}
	if !maps.Equal(got, counts) {
		t.Errorf("ids came to %v, want %v", got, counts)
	}
	if n := counts[admission.Admitted] + counts[admission.Keyless]; len(out.Admitted) != n {
		t.Errorf("%d ids admitted, want %d", len(out.Admitted), n)
	}
}

// The present owner and every known earlier owner may hand over ids of a partition, also
// ids of an earlier incarnation of their name. Other members may not, and unpublished ids
// are never admitted.
func TestOnlyOwnersMayHandOver(t *testing.T) {
	const p = 5
	a, b, c := member(1, "a"), member(2, "b"), member(3, "c")
	again := member(4, "a")
	left := member(5, "left")
	keyless := admission.Member{Inc: inc(6), Name: "old"}
	history := func(version1 bool) *admission.Admission {
		ad := asked(at(9, 100))
		first := table([]admission.Member{a, b, c, keyless}, 0)
		first.Formers = []admission.Former{{Member: left, Partitions: []ring.Partition{p}}}
		first.Owners[p+1] = 3
		ad.SetTable(first)
		last := table([]admission.Member{b, c, again, keyless}, 0)
		last.Keyless = version1
		ad.SetTable(last)
		return ad
	}
	done := finished(p, 9, 100)
	for name, test := range map[string]struct {
		from     admission.Incarnation
		proven   bool
		version1 bool
		done     []event.Finished
		want     admission.Result
	}{
		"the owner by our table":                      {from: b.Inc, proven: true, done: done, want: admission.Admitted},
		"the owner before, which has left":            {from: a.Inc, proven: true, done: done, want: admission.Admitted},
		"its next incarnation":                        {from: again.Inc, proven: true, done: done, want: admission.Admitted},
		"one that left before this member came":       {from: left.Inc, proven: true, done: done, want: admission.Admitted},
		"a member that never owned it":                {from: c.Inc, proven: true, done: done, want: admission.NotOwner},
		"one that left and never owned this one":      {from: left.Inc, proven: true, done: finished(p+1, 9, 100), want: admission.NotOwner},
		"a stranger":                                  {from: inc(77), done: done, want: admission.Unproven},
		"a stranger in version 1":                     {from: inc(77), version1: true, done: done, want: admission.NotOwner},
		"in the name of an owner":                     {from: b.Inc, done: done, want: admission.Unproven},
		"in the name of an owner in version 1":        {from: b.Inc, version1: true, done: done, want: admission.Unproven},
		"an owner without a key":                      {from: keyless.Inc, done: finished(p+1, 9, 100), want: admission.Unproven},
		"an owner without a key in version 1":         {from: keyless.Inc, version1: true, done: finished(p+1, 9, 100), want: admission.Keyless},
		"an earlier ledger":                           {from: b.Inc, proven: true, done: finished(p, 8, 1<<40), want: admission.Admitted},
		"the next entry":                              {from: b.Inc, proven: true, done: finished(p, 9, 101), want: admission.Ahead},
		"a later ledger":                              {from: b.Inc, proven: true, done: finished(p, 10, 0), want: admission.Ahead},
		"an id that no broker gives":                  {from: b.Inc, proven: true, done: finished(p, -3, 0), want: admission.Ahead},
		"a topic partition of which nothing is known": {from: b.Inc, proven: true, done: []event.Finished{{Partition: p, ID: event.MessageID{TopicPartition: 7}}}, want: admission.Ahead},
		"an owner without a key, ahead":               {from: keyless.Inc, version1: true, done: finished(p+1, 9, 101), want: admission.Ahead},
	} {
		t.Run(name, func(t *testing.T) {
			ad := history(test.version1)
			want(t, offer(ad, test.from, test.proven, test.done), map[admission.Result]int{test.want: len(test.done)})
		})
	}
}

// Topics with topic partitions of the same number have separate ends. An id in an unknown ledger must
// lie before both.
func TestEachTopicHasItsEnd(t *testing.T) {
	a := asked(at(9, 100))
	a.Learn(a.Ask(), []admission.End{{Topic: "other", Last: at(20, 3)}, {Topic: "empty", Partition: 1, Last: at(-1, -1)}}, true, new(admission.Output))
	a.SetTable(table([]admission.Member{member(1, "a")}, 0))
	good, bad := slices.Concat(finished(0, 9, 100), finished(0, 20, 3), finished(0, 4, 1)), slices.Concat(finished(0, 9, 101), finished(0, 20, 4), finished(0, 15, 0))
	want(t, offer(a, inc(1), true, slices.Concat(good, bad)), map[admission.Result]int{admission.Admitted: len(good), admission.Ahead: len(bad)})
	a.Seen(topic, 0, at(21, 0)) // the topic continues in another ledger
	a.Seen(topic, 0, at(21, 7))
	want(t, offer(a, inc(1), true, slices.Concat(finished(0, 9, 101), finished(0, 21, 7, 8), finished(0, 20, 4))),
		map[admission.Result]int{admission.Admitted: 2, admission.Ahead: 2})
}

// A topic whose end is not known may still be in the ledger of an id, although the ends of the others are in later ones.
func TestATopicWithAnUnknownEnd(t *testing.T) {
	for name, c := range map[string]struct {
		ends []admission.End
		want admission.Result
	}{
		"all ends are known": {nil, admission.Admitted},
		"one is not known":   {[]admission.End{{Topic: "lost", Last: at(-1, -1)}}, admission.Ahead},
	} {
		t.Run(name, func(t *testing.T) {
			a := asked(at(20, 3))
			a.Learn(a.Ask(), c.ends, true, new(admission.Output))
			a.SetTable(table([]admission.Member{member(1, "a")}, 0))
			want(t, offer(a, inc(1), true, finished(0, 15, 100)), map[admission.Result]int{c.want: 1})
		})
	}
}

// The topics that are known to have moved to another cluster are not all topics that have: one whose move was not noticed, or that was lost before, has no end there.
// Only ids in ledgers that this cluster has shown are admitted, and its ledgers say nothing about those of the other one.
func TestIdsOfAnotherCluster(t *testing.T) {
	const there = 7 << event.ClusterShift
	a := asked(at(20, 3))
	a.Learn(a.Ask(), []admission.End{{Topic: "moved", Partition: there, Last: at(500, 9)}, {Topic: "lost", Last: at(-1, -1)}}, true, new(admission.Output))
	a.SetTable(table([]admission.Member{member(1, "a")}, 0))
	for name, c := range map[string]struct {
		partition     int32
		ledger, entry int64
		want          admission.Result
	}{
		"published":     {there, 500, 9, admission.Admitted},
		"not published": {there, 500, 10, admission.Ahead},
		"older ledger, of a topic without an end": {there, 15, 1, admission.Ahead},
		"ledger of the former cluster":            {there, 20, 1, admission.Ahead},
		"its ledger in the former cluster":        {0, 500, 1, admission.Ahead},
	} {
		done := finished(0, c.ledger, c.entry)
		done[0].ID.TopicPartition = c.partition
		t.Run(name, func(t *testing.T) { want(t, offer(a, inc(1), true, done), map[admission.Result]int{c.want: 1}) })
	}
	b := admission.New()
	b.Learn(b.Ask(), []admission.End{{Topic: "moved", Partition: there, Last: at(500, 9)}, {Topic: topic, Partition: 1, Last: at(20, 3)}}, true, new(admission.Output))
	b.SetTable(table([]admission.Member{member(1, "a")}, 0))
	b.Seen("another", 0, at(31, 1)) // it was added after the answer, and so may be the one with ledger 30
	want(t, offer(b, inc(1), true, finished(0, 30, 1)), map[admission.Result]int{admission.Ahead: 1})
}

// A new member knows no ends: ids that it receives wait for the broker's answer and are judged by
// it.
func TestIdsWaitForTheEnds(t *testing.T) {
	a := admission.New()
	a.SetTable(table([]admission.Member{member(1, "a")}, 0))
	number := a.Ask()
	out := offer(a, inc(1), true, finished(0, 9, 1, 2, 3))
	want(t, out, map[admission.Result]int{})
	if a.Next() == clock.Forever {
		t.Fatal("waiting ids are never due")
	}
	a.Tick(a.Next()-1, &out)
	want(t, out, map[admission.Result]int{})
	a.Learn(number, []admission.End{{Topic: topic, Last: at(9, 2)}}, true, &out)
	want(t, out, map[admission.Result]int{admission.Admitted: 2, admission.Ahead: 1})
	want(t, offer(a, inc(1), true, finished(0, 9, 3)), map[admission.Result]int{admission.Ahead: 1})

	a.Ask() // without an answer
	out = offer(a, inc(1), true, finished(0, 9, 2, 3))
	want(t, out, map[admission.Result]int{admission.Admitted: 1})
	a.Tick(a.Next(), &out)
	want(t, out, map[admission.Result]int{admission.Admitted: 1, admission.Late: 1})
	if a.Next() != clock.Forever {
		t.Error("something waits still")
	}

	a.Learn(a.Ask(), nil, false, &out) // by a broker that cannot tell
	want(t, offer(a, inc(1), true, finished(0, 1000, 3)), map[admission.Result]int{admission.Admitted: 1})
}

// Waiting ids are bounded for each sender and in total, and so are the remembered incarnations.
func TestBounds(t *testing.T) {
	a := admission.New()
	var members []admission.Member
	for i := range byte(20) {
		members = append(members, member(i+1, fmt.Sprint(i)))
	}
	a.SetTable(table(members, 0))
	for i := range uint16(20) { // each has owned everything
		a.SetTable(table(members, i))
	}
	counts := map[admission.Result]int{}
	for i := range byte(20) {
		for range 3 {
			out := offer(a, inc(i+1), true, slices.Repeat(finished(0, 9, 1), 1<<12))
			counts[admission.Full] += out.Judged[0].Counts[admission.Full]
		}
	}
	if waiting := 20*3<<12 - counts[admission.Full]; waiting != 1<<16 {
		t.Errorf("%d ids wait, want %d", waiting, 1<<16)
	}
	var out admission.Output
	a.Tick(clock.Instant(time.Hour), &out)
	if len(out.Judged) != 8 || out.Judged[0].Counts[admission.Late] != 1<<13 {
		t.Errorf("refused late: %v", out.Judged)
	}

	a = asked(at(9, 9))
	for i := range 600 {
		m := admission.Member{Inc: admission.Incarnation{byte(i), byte(i >> 8), 1}, Name: fmt.Sprint(i), Key: "k"}
		a.SetTable(table([]admission.Member{m}, 0))
	}
	for i, r := range map[int]admission.Result{599: admission.Admitted, 599 - 256: admission.Admitted, 599 - 257: admission.NotOwner} {
		want(t, offer(a, admission.Incarnation{byte(i), byte(i >> 8), 1}, true, finished(0, 9, 1)), map[admission.Result]int{r: 1})
	}
}

// In every case, no id is admitted that an event may get later.
func TestNoFutureIDIsAdmitted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := []admission.End{{Topic: "a"}, {Topic: "a", Partition: 1}, {Topic: "b"}, {Topic: "b", Partition: -1}, {Topic: "c", Partition: -1}}
		ledger := int64(0)
		ledgers := map[int64]int{} // → index in places
		publish := func(i int) { places[i].Last.Entry++ }
		roll := func(i int) {
			ledger++
			places[i].Last = at(ledger, 0)
			ledgers[ledger] = i
		}
		for i := range places {
			roll(i)
		}
		isFuture := func(id event.MessageID) bool {
			return id.Ledger > ledger || slices.ContainsFunc(places, func(e admission.End) bool {
				return e.Partition == id.TopicPartition && e.Last.Ledger == id.Ledger && e.Last.Entry < id.Entry
			})
		}
		a := admission.New()
		a.SetTable(table([]admission.Member{member(1, "m")}, 0))
		var out admission.Output
		var pending []uint64
		check := func(t *rapid.T) {
			for _, d := range out.Admitted {
				if isFuture(d.ID) {
					t.Fatalf("%v was admitted, and the topics end at %v", d.ID, places)
				}
			}
			out = admission.Output{}
		}
		index := rapid.IntRange(0, len(places)-1)
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) { publish(index.Draw(t, "place")) },
			"roll":    func(t *rapid.T) { roll(index.Draw(t, "place")) },
			"seen": func(t *rapid.T) {
				l := rapid.Int64Range(1, ledger).Draw(t, "ledger")
				e := places[ledgers[l]]
				last := int64(3)
				if e.Last.Ledger == l {
					last = e.Last.Entry
				}
				a.Seen(e.Topic, e.Partition, at(l, rapid.Int64Range(0, last).Draw(t, "entry")))
			},
			"ask": func(*rapid.T) { pending = append(pending, a.Ask()) },
			"learn": func(t *rapid.T) {
				if len(pending) == 0 {
					return
				}
				var said []admission.End
				if rapid.Bool().Draw(t, "answered") {
					said = slices.Clone(places)
				}
				a.Learn(pending[0], said, true, &out)
				pending = pending[1:]
				check(t)
			},
			"offer": func(t *rapid.T) {
				var done []event.Finished
				for range rapid.IntRange(1, 20).Draw(t, "ids") {
					done = append(done, event.Finished{ID: event.MessageID{
						Ledger: rapid.Int64Range(0, ledger+3).Draw(t, "ledger"), Entry: rapid.Int64Range(0, 8).Draw(t, "entry"),
						Batch: -1, TopicPartition: rapid.Int32Range(-1, 1).Draw(t, "partition"),
					}})
				}
				a.Offer(0, inc(1), true, done, &out)
				check(t)
			},
		})
	})
}
