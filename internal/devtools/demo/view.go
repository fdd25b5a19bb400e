package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// unknown stands for an unknown number.
const unknown = -1

// picture is a part at one moment.
type picture struct {
	title       string
	elapsed, of time.Duration // of the load; 0 before it
	rows        []row
	published   int
	overlaps    int // a few seconds ago
	against     int // overlaps of the part before, 0 when there was none
}

// row is one member, or one application without a router.
type row struct {
	name, state string
	handled     int
	partitions  int // or unknown
	unsettled   int // or unknown
	perSecond   int
}

// view shows how a demo goes: on a terminal a table that is drawn again and again
// under the notes, elsewhere one line from time to time. It is safe for concurrent use.
type view struct {
	out      io.Writer // for notes and pictures
	results  io.Writer // for the result
	json     bool
	live     bool // out is a terminal
	colours  bool
	mu       sync.Mutex
	drawn    int // lines of the table on the screen
	last     picture
	at       time.Time // of last
	lineDone time.Time // when the last line was written, where there is no terminal
}

func newView(stdout *os.File, stderr io.Writer, asJSON bool) *view {
	v := &view{out: stdout, results: stdout, json: asJSON}
	if asJSON {
		v.out = stderr // standard output is for the result alone
		return v
	}
	v.live = isTerminal(stdout) && os.Getenv("TERM") != "dumb"
	v.colours = v.live && os.Getenv("NO_COLOR") == ""
	return v
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// note prints an event of the run permanently.
func (v *view) note(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	fmt.Fprintf(v.out, format+"\n", args...)
	v.redraw()
}

const lineEvery = 2 * time.Second

// draw shows a picture.
func (v *view) draw(p picture) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rate(&p)
	v.erase()
	v.last = p
	if v.live {
		v.redraw()
		return
	}
	if now := time.Now(); now.Sub(v.lineDone) >= lineEvery && p.elapsed > 0 {
		v.lineDone = now
		fmt.Fprintln(v.out, p.line())
	}
}

// rate fills in how fast each row goes, smoothed over a few pictures.
func (v *view) rate(p *picture) {
	now := time.Now()
	if p.title == v.last.title && len(p.rows) == len(v.last.rows) {
		for i := range p.rows {
			latest := float64(p.rows[i].handled-v.last.rows[i].handled) / now.Sub(v.at).Seconds()
			p.rows[i].perSecond = (v.last.rows[i].perSecond + int(latest)) / 2
		}
	}
	v.at = now
}

// clear takes the table away.
func (v *view) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.last = picture{}
}

func (v *view) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.out, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func (v *view) redraw() {
	if !v.live || v.last.title == "" {
		return
	}
	table := v.last.table(v.paint)
	v.drawn = strings.Count(table, "\n")
	fmt.Fprint(v.out, table)
}

// The colours in use.
const (
	bold  = "1"
	red   = "31"
	green = "32"
)

// paint colours a text, which keeps its width.
func (v *view) paint(colour, text string) string {
	if !v.colours {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (p picture) handled() (n int) {
	for _, r := range p.rows {
		n += r.handled
	}
	return n
}

func (p picture) perSecond() (n int) {
	for _, r := range p.rows {
		n += r.perSecond
	}
	return n
}

func (p picture) table(paint func(colour, text string) string) string {
	var b strings.Builder
	clock := "starting"
	if p.elapsed > 0 {
		clock = fmt.Sprintf("%.1f s of %v", min(p.elapsed, p.of).Seconds(), p.of)
	}
	if p.elapsed > p.of {
		clock = "draining"
	}
	fmt.Fprintf(&b, "\n  %s%50s\n\n", paint(bold, fmt.Sprintf("%-14s", p.title)), clock)
	fmt.Fprintf(&b, "  %-10s %-8s %11s %10s %10s %10s\n", "", "", "partitions", "handled", "events/s", "unsettled")
	for _, r := range p.rows {
		state := fmt.Sprintf("%-8s", r.state)
		if r.state == stateKilled {
			state = paint(red, state)
		}
		fmt.Fprintf(&b, "  %-10s %s %11s %10s %10s %10s\n", r.name, state,
			number(r.partitions), number(r.handled), number(r.perSecond), number(r.unsettled))
	}
	overlaps := "overlaps so far: " + thousands(p.overlaps)
	if p.overlaps > 0 {
		overlaps = paint(red, overlaps)
	}
	if p.against > 0 {
		overlaps += fmt.Sprintf(" (plain SHARED had %s)", thousands(p.against))
	}
	fmt.Fprintf(&b, "\n  published %s, handled %s, %s/s\n  %s\n\n",
		thousands(p.published), thousands(p.handled()), thousands(p.perSecond()), overlaps)
	return b.String()
}

func (p picture) line() string {
	var shares []string
	unsettled := 0
	for _, r := range p.rows {
		shares = append(shares, number(r.partitions))
		unsettled += max(0, r.unsettled)
	}
	line := fmt.Sprintf("%5.1f s  %s: published %s, handled %s, %s/s; overlaps so far: %s", p.elapsed.Seconds(), p.title,
		thousands(p.published), thousands(p.handled()), thousands(p.perSecond()), thousands(p.overlaps))
	if p.rows[0].partitions != unknown {
		line += fmt.Sprintf("; unsettled %s, partitions %s", thousands(unsettled), strings.Join(shares, "+"))
	}
	return line
}

// number shows one that may be unknown.
func number(n int) string {
	if n == unknown {
		return "-"
	}
	return thousands(n)
}

// thousands groups the digits of a number that is not negative.
func thousands[N int | int64 | uint64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// result prints the result of the demo.
func (v *view) result(r *Result, o Options, broken error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.json {
		_ = json.NewEncoder(v.results).Encode(r) // a reader notices a missing result
		return
	}
	line := func(name, plain, fenced string) { fmt.Fprintf(v.results, "  %-28s %14s %14s\n", name, plain, fenced) }
	numbers := func(name string, plain, fenced uint64) { line(name, thousands(plain), thousands(fenced)) }
	fmt.Fprintln(v.results)
	line("", "plain SHARED", "Ringfence")
	numbers("events", r.plain.Published, r.Events)
	numbers("handled", r.plain.Events, r.Handled)
	numbers("overlaps", r.plain.Overlaps, r.Overlaps)
	numbers("lost", r.plain.Lost, r.Lost)
	numbers("duplicates", r.plain.Duplicates, r.Duplicates)
	line("stale writes", "(no fences)", thousands(r.StaleTokenWrites))
	numbers("events/s", uint64(throughput(r.plain)), uint64(r.Throughput))
	if o.KillAt > 0 {
		line("handlers cut by their lease", "(no leases)", thousands(r.cut))
		line("takeover after SIGKILL", "", fmt.Sprintf("%.0f ms", r.TakeoverMS))
	}
	if o.RestartAt > 0 {
		line("handoff at the return", "", fmt.Sprintf("%.1f ms", r.HandoffP99MS))
	}
	fmt.Fprintln(v.results)
	fmt.Fprintf(v.results, "  %s done, %s dead-lettered, %s pending\n\n", thousands(r.Handled), thousands(r.DeadLettered), thousands(r.pending()))
	if o.KillAt > 0 && r.Duplicates > 0 {
		fmt.Fprintln(v.results, "  Duplicates come from the kill: what the dead member had not acked is delivered again, and a\n"+
			"  batch is acked as a whole. Those whose owner lives are recognized; these were done by the dead one's.")
		fmt.Fprintln(v.results)
	}
	if broken != nil {
		fmt.Fprintln(v.results, v.paint(red, "  BROKEN"))
		return
	}
	fmt.Fprintln(v.results, v.paint(green, "  PASSED")+": no two handlers of a key ran at the same time, and nothing was lost.")
}
