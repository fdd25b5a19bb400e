package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/ring"
)

// words is the member a of a group, with its reports. No other member answers.
type words struct {
	report.Local
	listed bool            // a is in the table
	others []report.Member // at addresses that cannot be reached
	status report.Status
	key    report.KeyAt
}

func (w *words) Members() []report.Member {
	return append([]report.Member{{Name: "a", Reach: report.ReachSelf, Listed: w.listed}}, w.others...)
}
func (w *words) Status() report.Status                       { return w.status }
func (w *words) Key(context.Context, event.Key) report.KeyAt { return w.key }

func (w *words) group() *report.Group { return report.NewGroup(w, nil, insecure.NewCredentials()) }

// silent returns a member that does not answer.
func silent(listed bool) []report.Member {
	return []report.Member{{Name: "b", Address: "unix:/nowhere", Listed: listed}}
}

// TestUnparkWaitsForWords: letters come back when no member of the table may still park events of the key, and no member at all copies one to the
// parking topic.
func TestUnparkWaitsForWords(t *testing.T) {
	p := event.Park{Key: "k", Act: [16]byte{1}, State: event.ParkEnds}
	at := func(park *report.Park, parking int) report.KeyAt {
		return report.KeyAt{View: report.View{Member: "a"}, Park: park, Parking: parking}
	}
	id := act.ID(p.Act).String()
	unparks := &report.Park{ID: id, Unparking: true}
	const unread, copies = "a has not read the unpark", "a copies 2 events of the key to the parking topic"
	for name, test := range map[string]struct {
		words words
		want  string
	}{
		"all comply":                    {words{listed: true, key: at(unparks, 0)}, ""},
		"it knows of no act":            {words{listed: true, key: at(nil, 0)}, unread},
		"it parks the key":              {words{listed: true, key: at(&report.Park{ID: id}, 0)}, unread},
		"it has read another unpark":    {words{listed: true, key: at(&report.Park{ID: "other", Unparking: true}, 0)}, unread},
		"it copies events":              {words{listed: true, key: at(unparks, 2)}, copies},
		"it is in no table":             {words{key: at(nil, 0)}, ""},
		"it left, and copies events":    {words{key: at(nil, 2)}, copies},
		"a silent one is in the table":  {words{listed: true, key: at(unparks, 0), others: silent(true)}, "b does not answer, and may still park events: "},
		"a silent one is in no table":   {words{listed: true, key: at(unparks, 0), others: silent(false)}, ""},
		"beside one that is not asked":  {words{listed: true, key: at(unparks, 2), others: silent(false)}, copies},
		"behind one that does not tell": {words{key: at(nil, 0), others: silent(true)}, "b does not answer, and may still park events: "},
	} {
		u := newUnparks(&Node{group: test.words.group()})
		if why := u.restless(t.Context(), p); !strings.HasPrefix(why, test.want) || (why == "") != (test.want == "") {
			t.Errorf("%s: it waits, since %q, want %q", name, why, test.want)
		}
	}
}

// TestUnparkWaitsForVerdictsInFlight: the group must have complied for some time, all of it at once.
func TestUnparkWaitsForVerdictsInFlight(t *testing.T) {
	c := &comeback{park: event.Park{Key: "k", Act: [16]byte{1}, State: event.ParkEnds}}
	w := &words{listed: true, key: report.KeyAt{Park: &report.Park{ID: act.ID(c.park.Act).String(), Unparking: true}}}
	u := newUnparks(&Node{group: w.group()})
	ready := func() bool { return len(u.calmOf(t.Context(), []*comeback{c})) == 1 }
	if ready() || c.calm == 0 || !strings.Contains(c.waits, "under way") {
		t.Errorf("at first it waits as %+v", c)
	}
	c.calm = clock.Now().Add(time.Minute) // it is soon after that, however long the machine pauses here
	if ready() || c.calm == 0 {
		t.Errorf("soon after it waits as %+v", c)
	}
	c.calm = clock.Now().Add(-unparkCalm)
	w.key.Parking = 1
	if ready() || c.calm != 0 || !strings.Contains(c.waits, "copies 1 events") {
		t.Errorf("beside a copy on its way it waits as %+v", c)
	}
	w.key.Parking = 0
	if ready() {
		t.Error("it does not wait again")
	}
	c.calm = clock.Now().Add(-unparkCalm)
	if !ready() || c.waits != "" {
		t.Errorf("it waits for nothing as %+v", c)
	}
}

// TestParkIsRefused: no key is parked while a member of the table would handle its events, or may.
func TestParkIsRefused(t *testing.T) {
	parks := &report.Acts{Parks: new(0)}
	for name, test := range map[string]struct {
		words words
		want  string // the beginning of the reason, "": it is not refused
	}{
		"all can":                      {words{listed: true, status: report.Status{Acts: parks}}, ""},
		"it takes no acts":             {words{listed: true}, "refused: a takes no acts"},
		"it does not park keys":        {words{listed: true, status: report.Status{Acts: &report.Acts{}}}, "refused: a takes no acts"},
		"its topic cannot be used":     {words{listed: true, status: report.Status{Acts: &report.Acts{Parks: new(0), Error: "no broker"}}}, "refused: a cannot use the acts topic now, and would handle the events: no broker"},
		"a silent one is in the table": {words{listed: true, status: report.Status{Acts: parks}, others: silent(true)}, "refused: b does not answer"},
		"a silent one is in no table":  {words{listed: true, status: report.Status{Acts: parks}, others: silent(false)}, ""},
	} {
		err := Parkable(t.Context(), test.words.group())
		if got := fmt.Sprint(err); (err == nil) != (test.want == "") || err != nil && (!errors.Is(err, act.ErrRefused) || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%s: %s, want %q", name, got, test.want)
		}
	}
}

// TestUnparkKeysThatAreWorkedOn: letters of few keys come back at a time. Those whose handlers take long do not count, unless their letters are large.
func TestUnparkKeysThatAreWorkedOn(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.startWith("a", nil, g.parksOn("a", controllog.NewMem()))
	g.startApp(a)
	g.ready(a)
	u := newUnparks(a.Node) // beside the one that runs
	var parks []event.Park
	for _, key := range append(manyKeys(), "further") {
		parks = append(parks, event.Park{Key: event.Key(key), State: event.ParkEnds})
	}
	u.set(parks)
	u.set([]event.Park{{Key: "parked", State: event.ParkOn}})
	waits := func() (n int) {
		for _, c := range u.keys {
			if c.waits == fmt.Sprintf("the letters of %d other keys come first", unparkKeysMax) {
				n++
			}
		}
		return n
	}
	wantMine := func(when string, want int) []*comeback {
		t.Helper()
		mine, some := u.mine()
		if len(mine) != want || !some {
			t.Errorf("%s: %d keys are worked on, want %d; there are some: %t", when, len(mine), want, some)
		}
		return mine
	}
	g.eventually("all gates are open", func() error {
		if mine, _ := u.mine(); len(mine) != unparkKeysMax {
			return fmt.Errorf("%d of %d keys are worked on", len(mine), len(u.keys))
		}
		return nil
	})
	for _, c := range u.keys {
		c.waits = ""
	}
	mine := wantMine("at first", unparkKeysMax)
	if waits() != 1 {
		t.Errorf("%d keys wait for others, want one", waits())
	}
	for _, c := range mine {
		c.busy = true
	}
	wantMine("while they are busy", 0)
	u.late(mine[:1])
	mine[0].weight = unparkBytesMax
	wantMine("beside a late one", 1)
	mine[0].weight++
	wantMine("beside a late one with a large letter", 0)
	mine[0].weight = 0
	for _, c := range u.keys {
		if !slices.Contains(mine, c) {
			c.ended = true
		}
	}
	wantMine("when the further one has ended", 0)

	idle := &comeback{ahead: make([]*source.ParkedLetter, 1)}
	busy := &comeback{ahead: make([]*source.ParkedLetter, 1), busy: true}
	if u.late([]*comeback{idle, busy}); idle.late || !busy.late || len(idle.ahead)+len(busy.ahead) > 0 {
		t.Errorf("at the end of the slice: %+v and %+v", idle, busy)
	}
	u.set([]event.Park{{Key: "further"}})
	if u.keys["further"] != nil || u.keys["parked"] != nil {
		t.Error("letters of keys that are not unparked come back")
	}
}

// TestUnparkEndsWithItsLetters: an unpark ends when its letters are removed, and if none other has taken its place.
func TestUnparkEndsWithItsLetters(t *testing.T) {
	keeper := act.New(act.DefaultConfig(), "a", nil, time.Now, slog.New(slog.DiscardHandler), act.NewMetrics(prometheus.NewRegistry()))
	u := newUnparks(&Node{parts: Parts{Acts: keeper}})
	parks := []event.Park{{Key: "k", Act: [16]byte{2}, State: event.ParkEnds}}
	u.set(parks)
	c := u.keys["k"]
	l := &source.ParkedLetter{ID: event.MessageID{Ledger: 1}}
	u.acked(c, l, false)
	if u.end(c, false) {
		t.Error("it ends before its letter is removed")
	}
	u.acked(c, l, true)
	if u.end(c, true) {
		t.Error("it ends though letters may be left")
	}
	u.set(parks)
	if u.end(c, false) {
		t.Error("one that another has followed ends")
	}
	if c = u.keys["k"]; !u.end(c, false) || !c.ended {
		t.Error("it does not end")
	}
}

// TestUnparkTakesTheVerdictOfALetter: however often its event is attempted, its last verdict is taken.
func TestUnparkTakesTheVerdictOfALetter(t *testing.T) {
	u := newUnparks(&Node{})
	verdicts := make(chan event.Verdict, 8)
	u.waiting[7] = verdicts
	attempted := slices.Repeat([]event.Verdict{{Handle: 7, Kind: event.Attempted}}, 2*cap(verdicts))
	u.settled(append(attempted, event.Verdict{Handle: 8, Kind: event.Done}, event.Verdict{Handle: 7, Kind: event.Failed}))
	var last event.Verdict
	for len(verdicts) > 0 {
		last = <-verdicts
	}
	if last.Kind != event.Failed {
		t.Errorf("the last verdict is %v", last.Kind)
	}
}

// TestLettersThatAreReadAhead: of each key those with the least fences, in their order. Keys share what may be read ahead, and each has one letter at least.
func TestLettersThatAreReadAhead(t *testing.T) {
	payload := make([]byte, 2*unparkBytesMax)
	letter := func(turn uint64, bytes int) *source.ParkedLetter {
		return &source.ParkedLetter{Message: event.Message{Event: &event.Event{Payload: payload[:bytes]}}, Mark: event.Mark{Fence: event.Fence{Token: 1, Turn: turn}}}
	}
	c, other := &comeback{park: event.Park{Key: "k"}}, &comeback{park: event.Park{Key: "other"}}
	check := func(k *chosen, cut bool, want ...uint64) {
		t.Helper()
		var got []uint64
		for _, l := range k.letters {
			got = append(got, l.Mark.Fence.Turn)
		}
		if !slices.Equal(got, want) || k.cut != cut {
			t.Errorf("%d letters from %v on, want %d; cut: %t", len(got), got[:min(3, len(got))], len(want), k.cut)
		}
	}
	many := newChoice([]*comeback{c, other})
	var want []uint64
	for turn := uint64(unparkLettersMax); turn > 0; turn-- {
		many.add(many["k"], letter(turn, 1))
		want = append(want, uint64(len(want)+1))
	}
	many.add(many["other"], letter(5, 1))
	many.add(many["other"], letter(4, 1))
	check(many["k"], true, want[:unparkLettersMax/2]...)
	check(many["other"], false, 4, 5)

	large := newChoice([]*comeback{c})
	large.add(large["k"], letter(3, unparkBytesMax*5/8))
	large.add(large["k"], letter(2, unparkBytesMax*5/8))
	check(large["k"], true, 2)
	large.add(large["k"], letter(1, unparkBytesMax*2/8))
	check(large["k"], true, 1, 2)
	larger := newChoice([]*comeback{c, other})
	larger.add(larger["k"], letter(1, 2*unparkBytesMax))
	check(larger["k"], false, 1)
	larger.add(larger["other"], letter(1, unparkBytesMax*3/8))
	larger.add(larger["other"], letter(2, unparkBytesMax*3/8))
	check(larger["other"], true, 1)

	extractor, err := key.Parse("message_key", key.Reject)
	if err != nil {
		t.Fatal(err)
	}
	l := letter(1, 1)
	l.Key = "k"
	if of := many.of(extractor, l); of != many["k"] || l.Event.Key != "k" || l.Event.Partition != ring.PartitionOf("k") {
		t.Errorf("the letter is of %+v, with the key %s of partition %d", of, l.Event.Key, l.Event.Partition)
	}
	l = letter(1, 1)
	l.OrderingKey = "other"
	if of := many.of(extractor, l); of != many["other"] {
		t.Errorf("the letter with an ordering key is of %+v", of)
	}
	if of := many.of(extractor, letter(1, 1)); of != nil {
		t.Errorf("the letter without a key is of %+v", of)
	}
}

// someReading removes letters until it fails.
type someReading struct {
	fails error
	acks  int
	ended bool
}

func (r *someReading) Ack(*source.ParkedLetter) error { r.acks++; return r.fails }
func (r *someReading) Close()                         { r.ended = true }

// TestReadingOfTheParkingTopicEnds: letters are removed until the reading is closed, and it says how many were, and why others were not.
func TestReadingOfTheParkingTopicEnds(t *testing.T) {
	inner := new(someReading)
	r, l := &reading{parkingReading: inner}, new(source.ParkedLetter)
	if !r.ack(l) {
		t.Error("a letter is not removed")
	}
	inner.fails = errors.New("no answer")
	if r.ack(l) {
		t.Error("a letter is removed whose ack fails")
	}
	if removed, err := r.outcome(); removed != 1 || !errors.Is(err, inner.fails) {
		t.Errorf("%d letters are removed, and others not since %v", removed, err)
	}
	inner.fails = nil
	if r.close(); !inner.ended || r.ack(l) || inner.acks != 2 {
		t.Errorf("when it is closed: %+v", inner)
	}
}
