package ownership

import (
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/ring"
)

// logged is the log of a seeded run of a whole group, with all its faults but those after which a member has read another
// log than the rest.
func logged(t *testing.T, seed uint64) (records []read) {
	t.Helper()
	w := simulate(seed, false)
	if w.failure != "" {
		t.Fatal(w.failure)
	}
	if w.stats["hole"]+w.stats["delete"] > 0 {
		return nil
	}
	for _, e := range w.log {
		records = append(records, read{at: e.at, rec: e.rec, sum: 1})
	}
	return records
}

// full is the log of the first seeded run with all kinds of records.
func full(t *testing.T) []read {
	t.Helper()
	for seed := uint64(1); seed < 100; seed++ {
		records := logged(t, seed)
		snaps := slices.ContainsFunc(records, func(one read) bool { s, ok := one.rec.Body.(*Snap); return ok && s.State != nil })
		if snaps && len(records) > 200 {
			return records
		}
	}
	t.Fatal("no seed has a full log")
	return nil
}

func replayOf(records []read, group string) (*Replay, *Violation) {
	r := NewReplay(group)
	var first *Violation
	for _, one := range records {
		if v := r.Read(one.at, one.rec, one.sum); v != nil && first == nil {
			first = v
		}
	}
	return r, first
}

// TestReplayFindsNothingInAnHonestLog: neither from the beginning, nor from a later record on, as after the log was trimmed.
func TestReplayFindsNothingInAnHonestLog(t *testing.T) {
	var sum Checked
	trimmed := 0
	for seed := uint64(1); seed <= 10; seed++ {
		records := logged(t, seed)
		if len(records) == 0 {
			continue
		}
		group := records[0].rec.Group
		r, v := replayOf(records, group)
		if v != nil {
			t.Fatalf("seed %d: %v", seed, v)
		}
		c := r.Checked()
		sum.Epochs, sum.Beats, sum.Acquired, sum.Released = sum.Epochs+c.Epochs, sum.Beats+c.Beats, sum.Acquired+c.Acquired, sum.Released+c.Released
		sum.Prefixes, sum.Snaps = sum.Prefixes+c.Prefixes, sum.Snaps+c.Snaps
		for from := len(records) / 10; from < len(records); from += len(records)/10 + 1 {
			r, v := replayOf(records[from:], group)
			if v != nil {
				t.Fatalf("seed %d, from record %d on: %v", seed, from, v)
			}
			if r.Judges() {
				trimmed++
			}
		}
	}
	if sum.Epochs < 10 || sum.Beats < 500 || sum.Acquired < 100 || sum.Released < 10 || sum.Prefixes < 500 || sum.Snaps < 4 || trimmed < 4 {
		t.Errorf("this run proved little: %+v, and %d trimmed logs with a state", sum, trimmed)
	}
}

// TestReplayFindsForgeries changes one record of an honest log.
func TestReplayFindsForgeries(t *testing.T) {
	for name, test := range map[string]struct {
		forge func(t *testing.T, records []read) []read
		want  string
	}{
		"a record is missing": {func(t *testing.T, records []read) []read {
			i := len(records) / 2
			return slices.Delete(records, i, i+1)
		}, "missing"},
		"a record comes twice": {func(t *testing.T, records []read) []read {
			i := len(records) / 2
			return slices.Insert(records, i, records[i-1])
		}, "not before it"},
		"a Beat acquires what its sender does not own": {func(t *testing.T, records []read) []read {
			beat, i := lastBeatOf(t, records, func(b *Beat) bool { return b.Acquired.Len() > 0 && b.Acquired.Len() < simPartitions })
			beat.Acquired = newSet(simPartitions)
			for p := range ring.Partition(simPartitions) {
				beat.Acquired.add(p)
			}
			records[i].rec.Body = &beat
			return records
		}, "acquires partition"},
		"a released partition drains again": {func(t *testing.T, records []read) []read {
			beat, i := lastBeatOf(t, records, func(b *Beat) bool { return b.Draining.Empty() && b.Acquired.Len() > 0 })
			beat.Draining = newSet(simPartitions)
			for p := range beat.Acquired.All() {
				beat.Draining.add(p)
			}
			records[i].rec.Body = &beat
			return records
		}, "had released it"},
		"a Beat names another epoch": {func(t *testing.T, records []read) []read {
			beat, i := lastBeatOf(t, records, func(b *Beat) bool { return !b.Cur.IsZero() })
			beat.Cur.Entry++
			records[i].rec.Body = &beat
			return records
		}, "the epoch was"},
		"a Beat of a forked log": {func(t *testing.T, records []read) []read {
			beat, i := lastBeatOf(t, records, func(b *Beat) bool { return b.PrefixHash != 0 })
			beat.PrefixHash++
			records[i].rec.Body = &beat
			return records
		}, "others than those"},
		"a Beat from the future": {func(t *testing.T, records []read) []read {
			beat, i := lastBeatOf(t, records, func(*Beat) bool { return true })
			beat.Applied = records[i].at
			records[i].rec.Body = &beat
			return records
		}, "not before it"},
		"a Snap with other tokens": {func(t *testing.T, records []read) []read {
			for i, one := range slices.Backward(records) {
				if snap, ok := one.rec.Body.(*Snap); ok && snap.State != nil {
					forged := snap.State.clone()
					forged.Start[0].Entry++
					records[i].rec.Body = &Snap{ForHello: snap.ForHello, State: forged}
					return records
				}
			}
			t.Fatal("no Snap")
			return nil
		}, "tokens"},
		"reservations from the future": {func(t *testing.T, records []read) []read {
			for i, one := range slices.Backward(records) {
				if b, ok := one.rec.Body.(*Reservations); ok {
					forged := *b
					forged.Applied = one.at
					records[i].rec.Body = &forged
					return records
				}
			}
			t.Fatal("no reservations")
			return nil
		}, "not before it"},
		"a Snap without a reservation": {func(t *testing.T, records []read) []read {
			for i, one := range slices.Backward(records) {
				if snap, ok := one.rec.Body.(*Snap); ok && snap.State != nil && len(snap.State.Reserved) > 0 {
					forged := snap.State.clone()
					forged.Reserved = forged.Reserved[1:]
					records[i].rec.Body = &Snap{ForHello: snap.ForHello, State: forged}
					return records
				}
			}
			t.Fatal("no Snap with a reservation")
			return nil
		}, "reservations"},
		"a Genesis with lower tokens": {func(t *testing.T, records []read) []read {
			last := records[len(records)-1]
			for _, one := range records {
				if g, ok := one.rec.Body.(*Genesis); ok {
					forged := *g
					forged.After, forged.Base = Position{}, last.at // it has read all takes
					greater := forged
					greater.Gen++
					for i, g := range []*Genesis{&greater, &forged} {
						rec := one.rec
						rec.Body = g
						records = append(records, read{at: Position{Ledger: last.at.Ledger, Entry: last.at.Entry + 1 + int64(i)}, rec: rec, sum: 1})
					}
					return records
				}
			}
			t.Fatal("no Genesis")
			return nil
		}, "is not greater"},
	} {
		t.Run(name, func(t *testing.T) {
			records := full(t)
			_, v := replayOf(test.forge(t, records), records[0].rec.Group)
			if v == nil || !strings.Contains(v.Reason, test.want) {
				t.Errorf("violation %v, want one about %q", v, test.want)
			}
		})
	}
}

// lastBeatOf returns a copy of the newest Beat for which hit holds, of a sender that has sent several, and its index.
func lastBeatOf(t *testing.T, records []read, hit func(*Beat) bool) (Beat, int) {
	t.Helper()
	for i, one := range slices.Backward(records) {
		b, ok := one.rec.Body.(*Beat)
		if !ok || !hit(b) {
			continue
		}
		earlier := slices.ContainsFunc(records[:i], func(one read) bool {
			before, ok := one.rec.Body.(*Beat)
			return ok && one.rec.Inc == records[i].rec.Inc && before.Seq < b.Seq
		})
		if earlier {
			return *b, i
		}
	}
	t.Fatal("no such Beat")
	return Beat{}, 0
}

// TestReplayCountsTenures: neither that Beats repeat what their sender has acquired, nor what a Genesis waits for, counts as another tenure.
func TestReplayCountsTenures(t *testing.T) {
	r := NewReplay("g")
	for i, step := range append(begun(),
		beatOf(incA, 4, false, true), beatOf(incA, 5, false, true), // 5, 6: A goes on
		give(1, nodeB),                                              // 7
		beatOf(incA, 7, false, false), beatOf(incB, 8, false, true), // A releases, B acquires
		beatOf(incB, 9, false, true),
	) {
		if b, ok := step.body.(*Beat); ok { // what an honest sender has read
			b.Seq, b.Cur, b.ViewHash = uint64(i), r.state.Cur, r.state.ViewHash
		}
		if v := r.Read(at(int64(i+1)), Record{LogVersion: LogVersionMin, Group: "g", Inc: step.inc, Body: step.body}, 1); v != nil {
			t.Fatal(v)
		}
		if c := r.Checked(); i == 5 && (c.Tenures != 1 || c.Acquired != 1 || c.Released != 0) {
			t.Errorf("of a new group with one member and one partition: %d tenures, %d acquired, %d released; want 1, 1, 0", c.Tenures, c.Acquired, c.Released)
		}
	}
	if c := r.Checked(); c.Epochs != 1 || c.Beats != 6 || c.Tenures != 2 || c.Acquired != 2 || c.Released != 1 {
		t.Errorf("after a handoff: %+v, want 2 tenures, both acquired and one released", c)
	}
}
