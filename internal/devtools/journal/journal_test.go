package journal

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// script writes journals with instants of the test's choice, in milliseconds.
type script struct {
	t   testing.TB
	dir string
	now clock.Instant
}

func newScript(t testing.TB) *script { return &script{t: t, dir: t.TempDir()} }

func ms(n int) clock.Instant { return clock.Instant(time.Duration(n) * time.Millisecond) }

func (s *script) process(name string) *process {
	s.t.Helper()
	w, err := create(filepath.Join(s.dir, name), func() clock.Instant { return s.now })
	if err != nil {
		s.t.Fatal(err)
	}
	return &process{script: s, w: w, path: filepath.Join(s.dir, name)}
}

type process struct {
	script *script
	w      *Writer
	path   string
}

func (p *process) start(at int, eventID, key string, token int64) Handling {
	p.script.t.Helper()
	return p.startFenced(at, eventID, key, event.Fence{Token: token})
}

func (p *process) startFenced(at int, eventID, key string, fence event.Fence) Handling {
	p.script.t.Helper()
	p.script.now = ms(at)
	h, err := p.w.Start(eventID, event.Key(key), fence)
	if err != nil {
		p.script.t.Fatal(err)
	}
	return h
}

func (p *process) end(at int, h Handling, o Outcome) {
	p.script.t.Helper()
	p.script.now = ms(at)
	if err := p.w.End(h, o); err != nil {
		p.script.t.Fatal(err)
	}
}

func (p *process) until(at int, h Handling, deadline int) {
	p.script.t.Helper()
	p.script.now = ms(at)
	if err := p.w.Deadline(h, ms(deadline)); err != nil {
		p.script.t.Fatal(err)
	}
}

// handle is a whole handling that ends as done.
func (p *process) handle(from, to int, eventID, key string, token int64) {
	p.script.t.Helper()
	p.end(to, p.start(from, eventID, key, token), Done)
}

func (p *process) file() File { return File{Path: p.path} }

func (p *process) killedAt(at int) File { return File{Path: p.path, KilledAt: ms(at)} }

func check(t testing.TB, files []File, published ...string) Report {
	t.Helper()
	r, err := Check(files, slices.Values(published))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCheckOfWhatIsFine(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	a.handle(10, 20, "e1", "k1", 1)
	b.handle(12, 30, "e2", "k2", 1) // another key may run at the same time
	b.handle(30, 40, "e3", "k1", 2) // k1 has moved
	b.end(50, b.start(45, "e4", "k1", 2), Failed)
	b.handle(60, 70, "e4", "k1", 2)
	b.end(80, b.start(75, "e5", "k1", 2), Rejected)

	got := check(t, []File{a.file(), b.file()}, "e1", "e2", "e3", "e4", "e5")
	want := Report{
		Files: 2, Started: 6, Done: 4, Rejected: 1, Failed: 1, Keys: 2, Events: 5, Published: 5,
		FirstStart: ms(10), LastEnd: ms(80),
		Gap: got.Gap, Handoff: got.Handoff, GapMaxKey: "k1",
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got.Gap.Count != 4 || got.Gap.Max != 10*time.Millisecond {
		t.Errorf("gaps = %+v, want 4 with at most 10ms", got.Gap)
	}
	if got.Handoff.Count != 1 || got.Handoff.Max != 10*time.Millisecond {
		t.Errorf("handoffs = %+v, want one of 10ms", got.Handoff)
	}
}

func TestPlantedOverlaps(t *testing.T) {
	tests := map[string]struct {
		plant   func(a, b *process) []File
		want    uint64
		wantMax time.Duration
	}{
		"two processes": {func(a, b *process) []File {
			h := a.start(10, "e1", "k", 1)
			b.handle(15, 17, "e2", "k", 2)
			a.end(30, h, Done)
			return []File{a.file(), b.file()}
		}, 1, 2 * time.Millisecond},
		"one process": {func(a, b *process) []File {
			h := a.start(10, "e1", "k", 1)
			g := a.start(12, "e2", "k", 1)
			a.end(20, h, Done)
			a.end(25, g, Done)
			return []File{a.file(), b.file()}
		}, 1, 8 * time.Millisecond},
		"three at once are three pairs": {func(a, b *process) []File {
			h := a.start(10, "e1", "k", 1)
			g := b.start(11, "e2", "k", 1)
			b.handle(12, 16, "e3", "k", 1)
			a.end(20, h, Done)
			b.end(30, g, Done)
			return []File{a.file(), b.file()}
		}, 3, 9 * time.Millisecond},
		"killed in its handling: until the kill": {func(a, b *process) []File {
			a.start(10, "e1", "k", 1)
			b.handle(50, 60, "e2", "k", 2)
			b.handle(70, 80, "e3", "k", 2)
			return []File{a.killedAt(55), b.file()}
		}, 1, 5 * time.Millisecond},
		"killed before the other starts: none": {func(a, b *process) []File {
			a.start(10, "e1", "k", 1)
			b.handle(50, 60, "e2", "k", 2)
			return []File{a.killedAt(50), b.file()}
		}, 0, 0},
		"no end and no kill: until the end of the file": {func(a, b *process) []File {
			a.start(10, "e1", "k", 1)
			b.handle(20, 60, "e2", "k", 2)
			a.handle(45, 47, "e3", "other", 1)
			return []File{a.file(), b.file()}
		}, 1, 27 * time.Millisecond},
		"touching is not overlapping": {func(a, b *process) []File {
			b.handle(20, 30, "e2", "k", 2)
			a.handle(30, 40, "e1", "k", 3)
			return []File{a.file(), b.file()}
		}, 0, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			got := check(t, test.plant(s.process("a"), s.process("b")))
			if got.Overlaps != test.want || got.OverlapMax != test.wantMax {
				t.Errorf("overlaps = %d, longest %v; want %d, longest %v", got.Overlaps, got.OverlapMax, test.want, test.wantMax)
			}
			if len(got.OverlapExamples) != int(test.want) {
				t.Errorf("%d examples, want %d", len(got.OverlapExamples), test.want)
			}
		})
	}
}

func TestOverlapExampleTellsWhoAndWhen(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	h := a.start(10, "e1", "k", 1)
	b.handle(15, 17, "e2", "k", 2)
	a.end(30, h, Done)
	got := check(t, []File{a.file(), b.file()}).OverlapExamples
	want := []Overlap{{"k", [2]string{"e2", "e1"}, [2]string{b.path, a.path}, ms(15), 2 * time.Millisecond}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPlantedLossAndDuplicate(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	a.handle(10, 20, "done twice", "k1", 1)
	b.handle(30, 40, "done twice", "k1", 2)
	a.end(21, a.start(20, "only failed", "k2", 1), Failed)
	a.end(23, a.start(22, "only cancelled", "k2", 1), Cancelled)
	a.start(25, "never ended", "k2", 1)
	b.handle(50, 60, "not published", "k3", 2)

	got := check(t, []File{a.killedAt(29), b.file()}, "done twice", "only failed", "only cancelled", "never ended", "never handled", "never handled")
	if got.Published != 5 || got.Lost != 4 || got.Unknown != 1 || got.Duplicates != 1 || got.Unfinished != 1 {
		t.Errorf("published %d, lost %d, unknown %d, duplicates %d, unfinished %d; want 5, 4, 1, 1, 1",
			got.Published, got.Lost, got.Unknown, got.Duplicates, got.Unfinished)
	}
	if want := []string{"only failed", "only cancelled", "never ended", "never handled"}; !slices.Equal(got.LostExamples, want) {
		t.Errorf("lost %q, want %q", got.LostExamples, want)
	}
}

func TestNothingIsLostWhenNobodyKnowsWhatWasPublished(t *testing.T) {
	s := newScript(t)
	a := s.process("a")
	a.handle(10, 20, "e1", "k1", 1)
	got, err := Check([]File{a.file()}, nil)
	if err != nil || got.Lost != 0 || got.Unknown != 0 || got.Events != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestPlantedStaleTokens(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	h := a.start(10, "e1", "k", 5) // stale when it ends: b has started with 7
	b.handle(15, 20, "e2", "k", 7)
	a.end(30, h, Done)
	a.handle(40, 50, "e3", "k", 6) // stale from the start, and counted once
	b.handle(60, 70, "e4", "k", 7)
	g := a.start(80, "e5", "j", 1) // not stale: another key
	b.handle(81, 82, "e6", "j", 2)
	a.end(90, g, Cancelled) // wrote nothing
	if got := check(t, []File{a.file(), b.file()}); got.StaleTokens != 2 || got.StaleSameToken != 0 {
		t.Errorf("stale = %d, %d of them under the same token; want 2 and 0", got.StaleTokens, got.StaleSameToken)
	}
}

// TestPlantedStaleTurns: one owner has given the key to another worker while the first one
// continues. The process of the first was stopped, so the overlap alone would not count.
func TestPlantedStaleTurns(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	h := a.startFenced(10, "e1", "k", event.Fence{Token: 5, Turn: 1}) // stale when it ends
	b.end(20, b.startFenced(15, "e1", "k", event.Fence{Token: 5, Turn: 2}), Done)
	a.end(30, h, Done)
	a.end(50, a.startFenced(40, "e2", "k", event.Fence{Token: 5, Turn: 1}), Failed) // stale from the start
	b.end(70, b.startFenced(60, "e3", "k", event.Fence{Token: 6, Turn: 1}), Done)
	a.end(90, a.startFenced(80, "e4", "k", event.Fence{Token: 5, Turn: 9}), Done) // under an older token
	stopped := a.file()
	stopped.Stops = []Stop{{ms(12), ms(29)}}
	got := check(t, []File{stopped, b.file()})
	if got.StaleTokens != 3 || got.StaleSameToken != 2 || got.Overlaps != 0 {
		t.Errorf("stale = %d, %d of them under the same token, %d overlaps; want 3, 2 and 0", got.StaleTokens, got.StaleSameToken, got.Overlaps)
	}
}

// A journal of version 1 has no turns: both versions can stand side by side.
func TestJournalsWithoutTurns(t *testing.T) {
	s := newScript(t)
	b := s.process("b")
	old := filepath.Join(s.dir, "old")
	lines := headerNoTurns + "S 1000000 1 5 \"e1\" \"k\"\nE 9000000 1 done\n"
	if err := os.WriteFile(old, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	b.end(3, b.startFenced(2, "e2", "k", event.Fence{Token: 5, Turn: 1}), Done)
	if got := check(t, []File{{Path: old}, b.file()}); got.Done != 2 || got.StaleSameToken != 1 || got.Overlaps != 1 {
		t.Errorf("got %+v, want both handlings, and that of the old journal stale when it ends", got)
	}
}

func TestTakeover(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	a.handle(10, 20, "e1", "k1", 1)
	a.handle(20, 30, "e2", "k2", 1)
	a.handle(30, 40, "e3", "moved before", 1)
	b.handle(45, 50, "e4", "moved before", 2)
	b.handle(50, 55, "e5", "never there", 2)
	// a is killed at 100.
	b.handle(1100, 1110, "e6", "moved before", 2)
	b.handle(1200, 1210, "e7", "k1", 2)
	b.handle(1300, 1310, "e8", "k1", 2)
	b.handle(2100, 2110, "e9", "k2", 2)

	got := check(t, []File{b.file(), a.killedAt(100)})
	if len(got.Takeovers) != 1 || got.Takeovers[0].Path != a.path || got.Takeovers[0].KilledAt != ms(100) {
		t.Fatalf("takeovers = %+v, want one of %s", got.Takeovers, a.path)
	}
	if keys := got.Takeovers[0].Keys; keys.Count != 2 || keys.Max != 2*time.Second {
		t.Errorf("keys taken over = %+v, want 2 in at most 2s", keys)
	}
	if got.Handoff.Count != 1 || got.Handoff.Max != 5*time.Millisecond {
		t.Errorf("handoffs = %+v, want one of 5ms", got.Handoff)
	}
}

// The sweep over open handlings finds the same overlaps as a comparison of every pair.
func TestOverlapsAgreeWithEveryPairCompared(t *testing.T) {
	type interval struct{ from, to int }
	seen := 0
	rapid.Check(t, func(rt *rapid.T) {
		s := newScript(t)
		intervals := map[string][]interval{}
		var files []File
		for _, name := range []string{"a", "b", "c"} {
			p := s.process(name)
			running := map[Handling]string{}
			begun := map[Handling]int{}
			now := 0
			stop := func(h Handling) {
				p.end(now, h, Done)
				intervals[running[h]] = append(intervals[running[h]], interval{begun[h], now})
				delete(running, h)
			}
			for range rapid.IntRange(0, 12).Draw(rt, "steps") {
				now += rapid.IntRange(0, 3).Draw(rt, "step")
				if len(running) > 0 && rapid.Bool().Draw(rt, "end") {
					stop(slices.MinFunc(keysOf(running), func(x, y Handling) int { return int(x) - int(y) }))
					continue
				}
				key := rapid.SampledFrom([]string{"k1", "k2"}).Draw(rt, "key")
				h := p.start(now, "e", key, 1)
				running[h], begun[h] = key, now
			}
			for _, h := range slices.Sorted(slices.Values(keysOf(running))) {
				stop(h)
			}
			files = append(files, p.file())
			defer os.Remove(p.path)
		}
		var want uint64
		var wantMax int
		for _, of := range intervals {
			for i, x := range of {
				for _, y := range of[:i] {
					if length := min(x.to, y.to) - max(x.from, y.from); length > 0 {
						want++
						wantMax = max(wantMax, length)
					}
				}
			}
		}
		got := check(t, files)
		if got.Overlaps != want || got.OverlapMax != time.Duration(wantMax)*time.Millisecond {
			rt.Fatalf("overlaps = %d, longest %v; want %d, longest %dms", got.Overlaps, got.OverlapMax, want, wantMax)
		}
		seen += int(want)
	})
	if seen == 0 {
		t.Error("no overlap was drawn; this run proved nothing")
	}
}

func keysOf(m map[Handling]string) []Handling {
	var hs []Handling
	for h := range m {
		hs = append(hs, h)
	}
	return hs
}

func TestRecordsSurviveTheFile(t *testing.T) {
	anyBytes := rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")) })
	rapid.Check(t, func(t *rapid.T) {
		want := record{
			at:       clock.Instant(rapid.Int64().Draw(t, "at")),
			handling: Handling(rapid.Uint64().Draw(t, "handling")),
			outcome:  Outcome(rapid.IntRange(0, int(Cancelled)).Draw(t, "outcome")),
		}
		if want.isStart() {
			want.fence = event.Fence{Token: rapid.Int64().Draw(t, "token"), Turn: rapid.Uint64().Draw(t, "turn")}
			want.event = anyBytes.Draw(t, "event")
			want.key = event.Key(anyBytes.Draw(t, "key"))
		}
		line, one := strings.CutSuffix(string(want.appendTo(nil)), "\n")
		if !one || strings.Contains(line, "\n") {
			t.Fatalf("%q is not one line", line)
		}
		got, err := parseRecord(line)
		if err != nil || got != want {
			t.Fatalf("%q was read as %+v, %v; want %+v", line, got, err, want)
		}
	})
}

func TestLongestRecordCanBeReadBack(t *testing.T) {
	s := newScript(t)
	a := s.process("a")
	a.handle(1, 2, strings.Repeat("\xff", EventBytesMax), strings.Repeat("\x00", event.KeyMax), -1<<63)
	if got := check(t, []File{a.file()}); got.Done != 1 {
		t.Errorf("got %+v", got)
	}
	if _, err := a.w.Start("e", event.Key(strings.Repeat("k", event.KeyMax+1)), event.Fence{Token: 1, Turn: 1}); err == nil {
		t.Error("a key beyond the limit was taken")
	}
}

func TestTornLines(t *testing.T) {
	s := newScript(t)
	a := s.process("a")
	a.handle(10, 20, "e1", "k", 1)
	a.start(30, "e2", "k", 1)
	whole, err := os.ReadFile(a.path)
	if err != nil {
		t.Fatal(err)
	}
	lastLine := strings.LastIndex(strings.TrimSuffix(string(whole), "\n"), "\n") + 1
	for cut := range len(whole) {
		if err := os.WriteFile(a.path, whole[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		got := check(t, []File{a.killedAt(40)})
		atLineEnd := cut == 0 || whole[cut-1] == '\n'
		if (got.TornLines == 0) != atLineEnd {
			t.Errorf("cut at %d: %d torn lines", cut, got.TornLines)
		}
		if cut >= lastLine && got.Done != 1 {
			t.Errorf("cut at %d: the first handling is gone: %+v", cut, got)
		}
	}
}

func TestCheckRefusesWhatIsNoJournal(t *testing.T) {
	tests := map[string]struct{ content, want string }{
		"another file":      {"hello\n", "not a journal"},
		"another version":   {"ringfence-journal 3\n", "not a journal"},
		"garbage":           {header + "garbage\n", ":2: malformed"},
		"bad instant":       {header + "S x 1 1 \"e\" \"k\"\n", ":2: "},
		"bad outcome":       {header + "E 1 1 fine\n", `:2: outcome "fine"`},
		"not quoted":        {header + "S 1 1 1 1 e k\n", ":2: malformed"},
		"bad turn":          {header + "S 1 1 1 -1 \"e\" \"k\"\n", ":2: malformed"},
		"bad deadline":      {header + "D 1 1 never\n", `:2: strconv`},
		"no deadline":       {header + "D 1 1 0\n", ":2: malformed"},
		"deadline of none":  {header + "D 1 1 5\n", ":2: handling 1 has a deadline without a start"},
		"end without start": {header + "E 1 1 done\n", ":2: handling 1 ends without a start"},
		"two starts":        {header + "S 1 1 1 1 \"e\" \"k\"\nS 2 1 1 1 \"e\" \"k\"\n", ":3: handling 1 starts twice"},
		"back in time":      {header + "S 9 1 1 1 \"e\" \"k\"\nE 8 1 done\n", ":3: goes back in time by 1ns"},
		"endless line":      {header + strings.Repeat("x", lineBytesMax+1) + "\n", ":2: "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "j")
			if err := os.WriteFile(path, []byte(test.content), 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := Check([]File{{Path: path}}, nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := Check([]File{{Path: filepath.Join(t.TempDir(), "missing")}}, nil); err == nil {
		t.Error("a missing file was accepted")
	}
}

func TestCreateRefusesAnExistingFile(t *testing.T) {
	s := newScript(t)
	if _, err := Create(s.process("a").path); err == nil {
		t.Error("the journal of another process was taken over")
	}
}

func TestWriterStopsAfterTheFirstError(t *testing.T) {
	s := newScript(t)
	a := s.process("a")
	if err := a.w.Close(); err != nil {
		t.Fatal(err)
	}
	_, first := a.w.Start("e", "k", event.Fence{Token: 1, Turn: 1})
	_, second := a.w.Start("e", "k", event.Fence{Token: 1, Turn: 1})
	if first == nil || !errors.Is(second, first) {
		t.Errorf("errors %v and %v, want the same one twice", first, second)
	}
}

// Many goroutines, one file: the checker would refuse a file out of order.
func TestWriterIsSafeForConcurrentUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	w, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	const goroutines, handlings = 8, 200
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range handlings {
				h, err := w.Start(fmt.Sprintf("%d-%d", g, i), event.Key(fmt.Sprint(g)), event.Fence{Token: 1, Turn: 1})
				if err == nil {
					err = w.End(h, Done)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := check(t, []File{{Path: path}})
	if got.Done != goroutines*handlings || got.Keys != goroutines || got.Overlaps != 0 || got.Duplicates != 0 {
		t.Errorf("got %+v", got)
	}
}

const victimEnv = "RINGFENCE_TEST_JOURNAL_VICTIM"

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(victimEnv); path != "" {
		victim(path)
	}
	os.Exit(m.Run())
}

// victim writes until it is killed, and tells each end that it has written.
func victim(path string) {
	w, err := Create(path)
	if err != nil {
		panic(err)
	}
	for i := 0; ; i++ {
		h, err := w.Start(fmt.Sprint(i), "k", event.Fence{Token: 1, Turn: 1})
		if err == nil {
			err = w.End(h, Done)
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(i)
	}
}

func TestWhatWasWrittenSurvivesAKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var told []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		told = append(told, lines.Text())
		if len(told) == 1000 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the victim ended by itself")
	}
	if last := len(told) - 1; told[last] != fmt.Sprint(last) {
		told = told[:last] // the kill cut the line
	}
	got := check(t, []File{{Path: path, KilledAt: clock.Now()}}, told...)
	if got.Lost != 0 || got.Published < 1000 || got.Unfinished > 1 {
		t.Errorf("got %+v", got)
	}
}

func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		durations := rapid.SliceOfN(rapid.Int64Range(0, 1<<62), 1, 300).Draw(t, "durations")
		var h histogram
		for _, d := range durations {
			h.add(time.Duration(d))
		}
		slices.Sort(durations)
		got := h.spread()
		if got.Count != uint64(len(durations)) || int64(got.Max) != durations[len(durations)-1] {
			t.Fatalf("count %d and longest %d of %v", got.Count, got.Max, durations)
		}
		for q, got := range map[float64]time.Duration{0.50: got.P50, 0.99: got.P99} {
			exact := durations[int(q*float64(len(durations)))]
			if int64(got) < exact || int64(got)-exact > exact/steps {
				t.Fatalf("quantile %v = %d, exactly %d", q, got, exact)
			}
		}
	})
	if got := new(histogram).spread(); got != (Spread{}) {
		t.Errorf("spread of nothing = %+v", got)
	}
}

func BenchmarkWriter(b *testing.B) {
	w, err := Create(filepath.Join(b.TempDir(), "j"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		h, err := w.Start("12345:678:0:90", "user-123456", event.Fence{Token: 1 << 40, Turn: 1})
		if err == nil {
			err = w.End(h, Done)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkCheck(b *testing.B) {
	const handlings = 300_000
	s := newScript(b)
	processes := []*process{s.process("a"), s.process("b"), s.process("c")}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range handlings {
		p := processes[random.IntN(len(processes))]
		p.handle(2*i, 2*i+1, fmt.Sprintf("12345:%d:0:90", i), fmt.Sprintf("user-%d", random.IntN(10_000)), 1)
	}
	var files []File
	for _, p := range processes {
		files = append(files, p.file())
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := check(b, files); got.Done != handlings {
			b.Fatalf("got %+v", got)
		}
	}
	b.ReportMetric(2*handlings*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// TestRepeatedFences: two handlings of a key that have one fence are found, also if they do not overlap. A fence without a turn says nothing, as of a router of an older
// release.
func TestRepeatedFences(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	one, two := event.Fence{Token: 3, Turn: 1}, event.Fence{Token: 3, Turn: 2}
	a.end(11, a.startFenced(10, "e1", "k", one), Done)
	a.end(12, a.startFenced(11, "e2", "other", one), Done) // turns are counted by key
	a.end(21, a.startFenced(20, "e3", "k", two), Done)
	b.end(31, b.startFenced(30, "e4", "k", two), Done) // again
	b.end(41, b.startFenced(40, "e5", "plain", event.Fence{Token: 3}), Done)
	b.end(51, b.startFenced(50, "e6", "plain", event.Fence{Token: 3}), Done)
	if got := check(t, []File{a.file(), b.file()}); got.RepeatedFences != 1 || got.StaleTokens != 0 || got.Overlaps != 0 {
		t.Errorf("%d repeated fences, %d stale, %d overlaps, want 1, 0 and 0", got.RepeatedFences, got.StaleTokens, got.Overlaps)
	}
}
