package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
)

// plant writes journals as applications would, in real time: a good run, unless the
// test adds to it.
type plant struct {
	t        *testing.T
	journals []string
	writers  []*journal.Writer
	sent     publication
	kills    []journal.Kill
}

func newPlant(t *testing.T) *plant {
	t.Helper()
	p := &plant{t: t}
	for i := range 2 {
		path := filepath.Join(t.TempDir(), fmt.Sprintf("%d.journal", i))
		w, err := journal.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		p.journals, p.writers = append(p.journals, path), append(p.writers, w)
	}
	return p
}

// publish enters one event, and returns its name.
func (p *plant) publish() string {
	return p.sent.next(newLoad(Options{Keys: 1, Rate: 1}, 0), 1)[0].name
}

func (p *plant) start(app int, name, key string, token int64) journal.Handling {
	p.t.Helper()
	h, err := p.writers[app].Start(name, event.Key(key), event.Fence{Token: token, Turn: 1})
	if err != nil {
		p.t.Fatal(err)
	}
	return h
}

func (p *plant) end(app int, h journal.Handling) {
	p.t.Helper()
	if err := p.writers[app].End(h, journal.Done); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plant) handle(app int, name, key string, token int64) {
	p.t.Helper()
	p.end(app, p.start(app, name, key, token))
}

// goodRun handles two events of a key, with a kill between them.
func (p *plant) goodRun() {
	p.t.Helper()
	p.handle(0, p.publish(), "k", 1)
	next := p.publish()
	p.kills = append(p.kills, journal.Kill{Path: p.journals[0], At: clock.Now()})
	p.handle(1, next, "k", 2)
}

func (p *plant) judge() *Result {
	p.t.Helper()
	r, err := judge(p.journals, p.kills, &p.sent)
	if err != nil {
		p.t.Fatal(err)
	}
	r.BaselineSharedOverlaps = 1
	return r
}

func TestVerdict(t *testing.T) {
	tests := map[string]struct {
		plant func(*plant)
		then  func(*Result) // after the journals were read
		want  string        // in the verdict; "": every promise held
	}{
		"a good run": {plant: (*plant).goodRun},
		"an overlap": {
			plant: func(p *plant) {
				p.goodRun()
				one := p.start(0, p.publish(), "other", 1)
				two := p.start(1, p.publish(), "other", 2)
				p.end(1, two)
				p.end(0, one)
			},
			want: "exclusive: 1 times",
		},
		"a loss": {
			plant: func(p *plant) { p.goodRun(); p.publish() },
			want:  "nothing lost: 1 events",
		},
		"a handling that never ends": {
			plant: func(p *plant) { p.goodRun(); p.start(0, p.publish(), "other", 1) },
			want:  "nothing lost: 1 events",
		},
		"a stale token": {
			plant: func(p *plant) { p.goodRun(); p.handle(0, p.publish(), "k", 1) },
			want:  "fencing: 1 handlings",
		},
		"a stale turn": {
			plant: func(p *plant) {
				p.goodRun()
				for turn := range uint64(2) {
					h, err := p.writers[0].Start(p.publish(), "k", event.Fence{Token: 3, Turn: 9 - turn})
					if err != nil {
						p.t.Fatal(err)
					}
					p.end(0, h)
				}
			},
			want: "fencing: 1 handlings",
		},
		"an event from nowhere": {
			plant: func(p *plant) { p.goodRun(); p.handle(0, "nobody's", "other", 1) },
			want:  "1 events were handled that were not published",
		},
		"nothing at all": {
			plant: func(*plant) {},
			want:  "nothing was handled",
		},
		"no takeover": {
			plant: func(p *plant) { p.goodRun(); p.kills[0].At = clock.Now() },
			want:  "none of its keys was taken over",
		},
		"a fence that is given twice": {
			plant: (*plant).goodRun,
			then:  func(r *Result) { *r = *withRepeatedFence(r) },
			want:  "fencing: 1 handlings had the fence",
		},
		"a member that stayed away": {
			plant: (*plant).goodRun,
			then:  func(r *Result) { r.stayedAway = true },
			want:  "did not come back",
		},
		"a load without overlaps": {
			plant: (*plant).goodRun,
			then:  func(r *Result) { r.BaselineSharedOverlaps = 0 },
			want:  "plain SHARED did not overlap",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t)
			test.plant(p)
			r := p.judge()
			if test.then != nil {
				test.then(r)
			}
			err := r.Broken(DefaultOptions())
			if test.want == "" && err != nil {
				t.Errorf("verdict = %v, want none", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("verdict = %v, want %q", err, test.want)
			}
		})
	}
}

// withRepeatedFence is r as its journals would tell it if they had a repeated fence.
func withRepeatedFence(r *Result) *Result {
	told := *r
	told.RepeatedFences = resultOf(journal.Report{RepeatedFences: 1}, journal.Waits{}).RepeatedFences
	return &told
}

// Machines read these names: they are for good.
func TestResultFields(t *testing.T) {
	text, err := json.Marshal(&Result{})
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.Number
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"baseline_shared_overlaps", "dead_lettered", "duplicates", "events", "handled", "handoff_p99_ms", "lost", "overlaps",
		"repeated_fences", "stale_same_token", "stale_token_writes", "takeover_ms", "throughput",
	}
	var got []string
	for name := range fields {
		got = append(got, name)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("fields = %v, want %v", got, want)
	}
}

func TestOptions(t *testing.T) {
	tests := map[string]struct {
		change func(*Options)
		want   string
	}{
		"the usual":              {change: func(*Options) {}},
		"nobody is killed":       {change: func(o *Options) { o.KillAt, o.RestartAt, o.Nodes = 0, 0, 1 }},
		"not restarted":          {change: func(o *Options) { o.RestartAt = 0 }},
		"nobody":                 {change: func(o *Options) { o.Nodes = 0 }, want: "--nodes = 0"},
		"nobody survives":        {change: func(o *Options) { o.Nodes = 1 }, want: "leaves nobody"},
		"too fast for its keys":  {change: func(o *Options) { o.Keys = 10 }, want: "--rate = 2000"},
		"killed after the end":   {change: func(o *Options) { o.KillAt = o.Duration }, want: "--kill-at"},
		"restarted before death": {change: func(o *Options) { o.RestartAt = o.KillAt }, want: "--restart-at"},
		"not a pulsar":           {change: func(o *Options) { o.Pulsar = "http://localhost" }, want: "--pulsar"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			test.change(&o)
			err := o.Validate()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Validate() = %v, want %q", err, test.want)
			}
		})
	}
}

// With any options, a key is never so hot that its handlers cannot keep up.
func TestNoKeyIsTooHot(t *testing.T) {
	const n = 200_000
	for _, o := range []Options{DefaultOptions(), {Keys: 40, Rate: 2000}, {Keys: 100, Rate: 500}, {Keys: 1, Rate: 50}, {Keys: 5000, Rate: 10_000}} {
		l := newLoad(o, 0)

		counts := map[string]int{}
		for range n {
			counts[l.next().key]++
		}
		hottest := 0
		for _, c := range counts {
			hottest = max(hottest, c)
		}
		perSecond := float64(hottest) / n * float64(o.Rate)
		if busy := perSecond * usualWork.WorkMax.Seconds(); busy > 0.6 {
			t.Errorf("%d events/s on %d keys: the hottest gets %.0f/s and is busy %.0f %% of the time", o.Rate, o.Keys, perSecond, 100*busy)
		}
		if o.Keys > 1 && perSecond < 2*float64(o.Rate)/float64(o.Keys) && hotRateMax > 2*o.Rate/o.Keys {
			t.Errorf("%d events/s on %d keys: no key is hot", o.Rate, o.Keys)
		}
	}
}

// Slow events come before the kill, and never on a hot key, which they would stop.
func TestSlowEvents(t *testing.T) {
	o := DefaultOptions()
	l := newLoad(o, o.Duration)
	slow := 0
	for i := range o.Rate * int(o.Duration.Seconds()) {
		m := l.next()
		if m.conduct == "" {
			continue
		}
		slow++
		if n, err := strconv.Atoi(strings.TrimPrefix(m.key, "user-")); err != nil || n < l.hot {
			t.Errorf("event %d of the hot key %s is slow", i, m.key)
		}
		if i >= int(o.KillAt.Seconds())*o.Rate {
			t.Errorf("event %d is slow, and comes after the kill", i)
		}
	}
	if slow < 20 || slow > 60 {
		t.Errorf("%d events are slow, want about one in %d until the kill", slow, slowEvery)
	}
}

func TestPublicationKeepsItsRate(t *testing.T) {
	var p publication
	published := 0
	err := p.run(t.Context(), newLoad(Options{Keys: 10, Rate: 1000}, 0), 1000, 200*time.Millisecond, func(_ context.Context, m []message) error {
		published += len(m)
		return nil
	})
	if err != nil || published != 200 || len(slices.Collect(p.names)) != 200 {
		t.Errorf("%d events were published, and %d are on the list (%v), want 200", published, p.count(), err)
	}
	if _, ok := p.sentAt("199"); !ok {
		t.Error("the list does not tell when the last event was sent")
	}
	if _, ok := p.sentAt("200"); ok {
		t.Error("the list tells when an event was sent that was not")
	}
}

func TestFiguresIn(t *testing.T) {
	f, err := figuresIn(strings.NewReader("# HELP x y\nringfence_ownership_is_member 1\n" +
		"ringfence_ownership_open_partitions 1365\nringfence_source_unsettled 1.2e+01\nother{a=\"b c\"} 3\n"))
	if want := (figures{member: true, partitions: 1365, unsettled: 12}); err != nil || f != want {
		t.Errorf("figures = %+v, %v, want %+v", f, err, want)
	}
}

func TestMoves(t *testing.T) {
	members := []*member{{node: "a"}, {node: "b"}, {node: "c"}}
	if got := movesOf(members, []int{5, 5, 5}, []int{8, 0, 7}); got != "a +3, b -5, c +2" {
		t.Errorf("moves = %q", got)
	}
	if got := movesOf(members, nil, []int{8, 0, 7}) + movesOf(members, []int{1, 2, 3}, []int{1, 2, 3}); got != "" {
		t.Errorf("moves = %q, want none", got)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	p := picture{
		title: "Ringfence", elapsed: 12300 * time.Millisecond, of: 20 * time.Second, published: 24_600, overlaps: 0, against: 531,
		rows: []row{
			{name: "node-1", state: "up", handled: 16_000, partitions: 2330, unsettled: 3, perSecond: 1200},
			{name: "node-2", state: stateKilled, handled: 8590, partitions: unknown, unsettled: unknown},
		},
	}
	plain := func(_, text string) string { return text }
	want := `
  Ringfence                                          12.3 s of 20s

                       partitions    handled   events/s  unsettled
  node-1     up             2,330     16,000      1,200          3
  node-2     KILLED             -      8,590          0          -

  published 24,600, handled 24,590, 1,200/s
  overlaps so far: 0 (plain SHARED had 531)

`
	if got := p.table(plain); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

// TestOptionsWithManyKeys: a number of keys that no product may overflow with is refused by its own name.
func TestOptionsWithManyKeys(t *testing.T) {
	o := DefaultOptions()
	o.Keys = math.MaxInt
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--keys") || strings.Contains(err.Error(), "--rate") {
		t.Errorf("err = %v, want that --keys is too large", err)
	}
}
