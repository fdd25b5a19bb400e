package ownership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/ringfence/router/ring"
)

// TestTranscripts replays the conversations in testdata: what each member decides, and the records that land in the
// control log, on the test world of one seed without faults. -rewrite writes them anew.
//
//	world members=(a,b) seed=1        members that have come to rest
//	empty seed=1                      no members
//	start name=c                      a process starts
//	kill name=a [app]                 a process ends, with its application or without
//	pause name=a for=3s               a process stands still
//	cut name=a for=3s                 a process does not reach the log
//	leave name=a                      a member is asked to leave
//	busy partition=3 key=1 for=2s     the owner's application begins to work on a key
//	delete-log                        an operator deletes the control log
//	run for=2s                        time passes, and the transcript continues
//	owners                            gates that are open, and tokens
//
// Beats that only renew a lease, and leases, are left out.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var tr *transcript
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "world" || d.Cmd == "empty" {
				tr = newTranscript(t, d)
			}
			if tr == nil {
				d.Fatalf(t, "a transcript begins with world or empty")
			}
			tr.do(t, d)
			if tr.w.failure != "" {
				d.Fatalf(t, "%s", tr.w.failure)
			}
			text := tr.text.String()
			tr.text.Reset()
			return text
		})
	})
}

type transcript struct {
	w     *world
	text  strings.Builder
	from  time.Duration // where the clock of the transcript begins
	names map[Incarnation]string
	beats map[Incarnation]string // the newest Beat of each, as shown
}

func newTranscript(t *testing.T, d *datadriven.TestData) *transcript {
	t.Helper()
	seed := uint64(1)
	d.MaybeScanArgs(t, "seed", &seed)
	tr := &transcript{w: newWorld(seed, DefaultTiming()), names: map[Incarnation]string{}, beats: map[Incarnation]string{}}
	tr.w.idle = true
	tr.w.effect, tr.w.landed = tr.effect, tr.landed
	return tr
}

func (tr *transcript) do(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	w := tr.w
	length := time.Second
	if d.HasArg("for") {
		length = tr.duration(t, d)
	}
	switch d.Cmd {
	case "empty":
	case "world":
		for _, arg := range d.CmdArgs {
			if arg.Key != "members" {
				continue
			}
			for _, name := range arg.Vals {
				w.start(name)
			}
		}
		w.runUntil(30 * time.Second)
		if unrest := w.unrest(); unrest != "" {
			d.Fatalf(t, "no rest: %s", unrest)
		}
		tr.text.Reset()
		tr.from = w.now
		tr.owners()
	case "start":
		var name string
		d.ScanArgs(t, "name", &name)
		w.start(name)
	case "kill":
		tr.proc(t, d).kill(d.HasArg("app"))
	case "pause":
		tr.proc(t, d).pauseFor(length)
	case "cut":
		tr.proc(t, d).cut = w.now + length
	case "leave":
		tr.proc(t, d).step(Leave{})
	case "busy":
		var at keyAt
		var part, key int
		d.ScanArgs(t, "partition", &part)
		d.ScanArgs(t, "key", &key)
		at.part, at.key = ring.Partition(part), ring.KeyHash(key)
		owner := slices.IndexFunc(w.procs, func(p *proc) bool { return p.alive && p.gates[at.part].Gate == Open })
		if owner < 0 {
			d.Fatalf(t, "no member has an open gate for partition %d", part)
		}
		before := len(w.runs)
		w.idle, w.handler = false, length
		w.procs[owner].dispatch(at)
		w.idle = true
		if len(w.runs) == before {
			d.Fatalf(t, "key %d of partition %d is busy already", key, part)
		}
		w.runUntil(w.now + 10*time.Millisecond) // the delivery reaches the application
		fmt.Fprintf(&tr.text, "%s works on key %d of partition %d\n", w.procs[owner].name, key, part)
		w.handler = 0
	case "delete-log":
		w.deleteLog()
	case "run":
		w.runUntil(w.now + length)
	case "owners":
		tr.owners()
	default:
		d.Fatalf(t, "no such command")
	}
}

func (tr *transcript) duration(t *testing.T, d *datadriven.TestData) time.Duration {
	t.Helper()
	var text string
	d.ScanArgs(t, "for", &text)
	length, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return length
}

// proc returns the newest process of a name that is alive.
func (tr *transcript) proc(t *testing.T, d *datadriven.TestData) *proc {
	t.Helper()
	var name string
	d.ScanArgs(t, "name", &name)
	for _, p := range slices.Backward(tr.w.procs) {
		if p.name == name && p.alive {
			return p
		}
	}
	d.Fatalf(t, "no process %s is alive", name)
	return nil
}

// owners lists, for each partition, the open gates and their tokens.
func (tr *transcript) owners() {
	for _, p := range tr.w.procs {
		open := newSet(simPartitions)
		for part, g := range p.gates {
			if g.Gate == Open {
				open.add(ring.Partition(part))
			}
		}
		if p.alive {
			fmt.Fprintf(&tr.text, "%s owns %s\n", p.name, list(open))
		}
	}
}

func (tr *transcript) line(format string, args ...any) {
	at := (tr.w.now - tr.from).Round(time.Millisecond)
	fmt.Fprintf(&tr.text, "%7.3fs  ", at.Seconds())
	fmt.Fprintf(&tr.text, format+"\n", args...)
}

func (tr *transcript) name(inc Incarnation) string {
	if name, ok := tr.names[inc]; ok {
		return name
	}
	return "?"
}

func (tr *transcript) effect(p *proc, e Effect) {
	tr.names[p.inc] = p.name
	switch e := e.(type) {
	case SetGates:
		for _, gate := range []Gate{Closed, Waiting, Open, Draining} {
			set := newSet(simPartitions)
			var withheld []string
			for _, c := range e.Gates {
				if c.Gate != gate {
					continue
				}
				set.add(c.Partition)
				if len(c.Withheld) > 0 {
					withheld = append(withheld, fmt.Sprintf("%v of partition %d", c.Withheld, c.Partition))
				}
			}
			if set.Empty() {
				continue
			}
			but := ""
			if len(withheld) > 0 {
				but = ", but for keys " + strings.Join(withheld, ", ")
			}
			tr.line("%s: gates %s: %s%s", p.name, list(set), gate, but)
		}
	case Revoke:
		final := map[bool]string{true: ", for good"}[e.Final]
		tr.line("%s: revoke %d of %s%s", p.name, e.Seq, list(e.Partitions), final)
	case ForceDrain:
		tr.line("%s: force %s: %s", p.name, list(e.Partitions), e.Reason)
	case OpenReader:
		from := "the end"
		if !e.At.IsZero() {
			from = e.At.String()
		}
		tr.line("%s: read the log from %s", p.name, from)
	case CheckContiguity:
		tr.line("%s: check that nothing is missing between %v and %v", p.name, e.Last, e.Queued)
	case Lost:
		tr.line("%s: LOST: %s", p.name, e.Reason)
	case Exit:
		tr.line("%s: exit: %s", p.name, e.Reason)
	case Left:
		tr.line("%s: left", p.name)
	case SetLease:
		if e.Lease.Until == 0 {
			tr.line("%s: no lease", p.name)
		}
	case Note:
		tr.note(p, e)
	case Append, PublishTable, TakenOver, MoveAnchor, ReadFirst:
	}
}

func (tr *transcript) note(p *proc, n Note) {
	text := strings.ReplaceAll(string(n.Kind), "_", " ")
	if n.Count > 0 {
		text += fmt.Sprintf(", %d", n.Count)
	}
	if n.Took > 0 {
		text += fmt.Sprintf(", after %.3f s", n.Took.Seconds())
	}
	if n.Inc != (Incarnation{}) && n.Inc != p.inc {
		text += ", of " + tr.name(n.Inc)
	}
	if n.Reason != "" {
		text += ": " + n.Reason
	}
	tr.line("%s: note: %s", p.name, text)
}

func (tr *transcript) landed(at Position, r Record) {
	author := tr.name(r.Inc)
	switch b := r.Body.(type) {
	case *Hello:
		tr.line("log %v: hello of %s", at, author)
	case *Snap:
		tr.line("log %v: snap of %s, for the hello at %v", at, author, b.ForHello)
	case *Genesis:
		members := make([]Incarnation, len(b.Members))
		for i, n := range b.Members {
			members[i] = n.Inc
		}
		tr.line("log %v: genesis of %s: %s", at, author, tr.table(members, b.Table))
	case *Epoch:
		tr.line("log %v: epoch of %s (%s): %s", at, author, b.Reason, tr.table(b.Members, b.Table))
	case *Beat:
		var text strings.Builder
		fmt.Fprintf(&text, "acquired %s", list(b.Acquired))
		if !b.Draining.Empty() {
			fmt.Fprintf(&text, ", draining %s", list(b.Draining))
		}
		for _, busy := range b.Busy {
			fmt.Fprintf(&text, ", busy keys %v of partition %d", busy.Keys, busy.Partition)
		}
		if len(b.Unreachable) > 0 {
			names := make([]string, len(b.Unreachable))
			for i, inc := range b.Unreachable {
				names[i] = tr.name(inc)
			}
			fmt.Fprintf(&text, ", does not reach %s", strings.Join(names, " "))
		}
		if text.String() != tr.beats[r.Inc] {
			tr.beats[r.Inc] = text.String()
			tr.line("log %v: beat of %s: %s", at, author, &text)
		}
	}
}

// table names the partitions of each member.
func (tr *transcript) table(members []Incarnation, table []uint16) string {
	parts := make([]string, len(members))
	for i, inc := range members {
		owned := newSet(simPartitions)
		for part, owner := range table {
			if int(owner) == i {
				owned.add(ring.Partition(part))
			}
		}
		parts[i] = fmt.Sprintf("%s owns %s", tr.name(inc), list(owned))
	}
	return strings.Join(parts, ", ")
}

// list names the partitions of a set.
func list(s Set) string {
	if s.Empty() {
		return "nothing"
	}
	var parts []string
	for part := range s.All() {
		parts = append(parts, fmt.Sprint(part))
	}
	return strings.Join(parts, " ")
}
