package main

import (
	"bytes"
	"compress/lzw"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"testing"
)

func TestOccurrencesFindsAWordInEachForm(t *testing.T) {
	const word = "planted-payload"
	for form, text := range map[string]string{
		"text":             "x " + word + " y",
		"hex":              hex.EncodeToString([]byte("x" + word + "y")),
		"numbers of bytes": fmt.Sprintf("%d", []byte("x"+word+"y")),
		"base64":           base64.StdEncoding.EncodeToString([]byte(word)),
		"base64, 1 on":     base64.StdEncoding.EncodeToString([]byte("x" + word)),
		"base64, 2 on":     base64.StdEncoding.EncodeToString([]byte("xx" + word)),
	} {
		if n := occurrences([]byte(text), word); n != 1 {
			t.Errorf("%s: found %d times, want 1", form, n)
		}
	}
	if n := occurrences([]byte("nothing of it"), word); n != 0 {
		t.Errorf("found %d times where it is not", n)
	}
}

func TestBombExpands(t *testing.T) {
	const expanded = 1 << 20
	packet, err := bomb("group", expanded)
	if err != nil {
		t.Fatal(err)
	}
	_, body, found := bytes.Cut(packet, []byte("\xa3Buf\xda"))
	if !found {
		t.Fatalf("no Buf in %q", packet)
	}
	n, err := io.Copy(io.Discard, lzw.NewReader(bytes.NewReader(body[2:]), lzw.LSB, 8))
	if err != nil || n != expanded {
		t.Errorf("it expands to %d bytes (%v), want %d", n, err, expanded)
	}
}

func TestEmptyResultsFillTheFrame(t *testing.T) {
	frame := emptyResults(resultsFrame)
	if len(frame) > resultsFrame || len(frame) < resultsFrame-32 {
		t.Errorf("a frame of %d bytes, want close to %d", len(frame), resultsFrame)
	}
}

func TestJudgeAsksForAllToBeHeld(t *testing.T) {
	if err := judge([]result{{Verdict: verdictHeld}, {Verdict: verdictHeld}}); err != nil {
		t.Errorf("all held: %v", err)
	}
	for _, other := range []string{verdictBroken, verdictNone} {
		if judge([]result{{Verdict: verdictHeld}, {Verdict: other}}) == nil {
			t.Errorf("one is %s, and the run is fine", other)
		}
	}
	if judge(nil) == nil {
		t.Error("nothing was tried, and the run is fine")
	}
}

func TestEveryRowHasAnAttackAndAStorm(t *testing.T) {
	tried, stormed := map[int]bool{}, map[int]bool{}
	for _, a := range attacks() {
		tried[a.number] = true
	}
	for _, s := range storms() {
		stormed[s.number] = true
	}
	for row := 1; row <= rows; row++ {
		if !tried[row] || !stormed[row] {
			t.Errorf("row %d: tried %t, under load %t", row, tried[row], stormed[row])
		}
	}
}

func TestLoadIsJudged(t *testing.T) {
	fine := phase{Name: "p", Rate: "r", Seconds: 10, Done: 1, Events: 10_000, Probes: 60, PeakMiB: 50, BoundMiB: 100}
	for name, change := range map[string]func(r *loadResult){
		"lapse":      func(r *loadResult) { r.Phases[0].Lapses = 1 },
		"late probe": func(r *loadResult) { r.Phases[0].ProbesLate = 1 },
		"memory":     func(r *loadResult) { r.Phases[0].PeakMiB = 100 },
		"no attack":  func(r *loadResult) { r.Phases[0].Done = 0 },
		"no load":    func(r *loadResult) { r.Phases[0].Events = 0 },
		"overlap":    func(r *loadResult) { r.Overlaps = 1 },
		"lost":       func(r *loadResult) { r.Lost = 1 },
		"":           func(*loadResult) {},
	} {
		r := &loadResult{Phases: []phase{fine}, Events: 10_000}
		change(r)
		r.judge(options{Rate: 1000})
		if (len(r.Broken) > 0) != (name != "") {
			t.Errorf("%q: broken %q", name, r.Broken)
		}
	}
}

func TestAHandlerThatAsksTheOwnershipGoroutineIsSeen(t *testing.T) {
	const module = "github.com/ringfence/router/internal/node."
	for name, c := range map[string]struct {
		stack string
		want  bool
	}{
		"it asks":             {"goroutine 7 [select]:\n" + module + "(*life).ask(0x1)\n\tlife.go:1\n" + module + "(*speaker).Partitions(0x1)\n", true},
		"it waits to hear":    {"goroutine 7 [chan receive, 1 minutes]:\n" + module + "(*life).ask(0x1)\n", true},
		"it works":            {"goroutine 7 [runnable]:\n" + module + "(*speaker).Partitions(0x1)\n", false},
		"it looks":            {"goroutine 7 [select]:\n" + module + "(*shown).look(0x1)\n\tshown.go:1\n" + module + "(*speaker).Partitions(0x1)\n", false},
		"it waits for a turn": {"goroutine 7 [select]:\ngithub.com/ringfence/router/internal/telemetry.(*renderedPage).render(0x1)\n", false},
	} {
		if got := asksOwnership(c.stack); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
