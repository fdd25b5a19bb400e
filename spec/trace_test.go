// Package spec compares the journals of routers with the model of the ownership protocol.
package spec

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// The lines of a journal (driver.Journal). A body has the fields, of all kinds of records, that tell
// the kind or are compared.
type (
	line struct {
		Inc     string
		Now     int64
		Input   named
		Effects []named
	}
	named struct {
		Type string
		Of   json.RawMessage
	}
	record struct {
		Inc  string
		Body struct {
			Seq                uint64 // of a Beat; it counts from 1
			Applied            event.Position
			Draining, Acquired ownership.Set
			Busy               []ownership.Busy
			ForHello           *event.Position                // of a Snap
			Node               *struct{ Lease time.Duration } // of a Hello
			Members            json.RawMessage                // of a Genesis and an Epoch
			Prev               *event.Position                // of an Epoch
			Take               json.RawMessage                // of Reservations, which have a Seq too, and which this model does not know
		}
	}
	table struct {
		Cur     event.Position
		Owners  []uint16
		Members []struct{ Inc string }
	}
)

// isBeat reports whether a record is a Beat.
func (r *record) isBeat() bool { return r.Body.Seq > 0 && r.Body.Take == nil }

// arrived is a record as one router has read it.
type arrived struct {
	at   event.Position
	rec  record
	now  int64
	line int
}

// step is one input or effect of a router, before it is split by partition: an *adoption, an arrived, an
// ownership.Drained, SetGates, Revoke or SetLease, a record that it sent, a tableRead or an end.
type step struct {
	line int // by which steps are in order
	node string
	now  int64
	what any
}

type (
	adoption  struct{ at event.Position } // of the state as of there
	tableRead struct{}
	end       struct{}
)

// router follows the journal of one incarnation, to know when it applies which record.
type router struct {
	reader  uint64
	joined  bool
	applied event.Position
	queue   []arrived
	check   *ownership.CheckContiguity // not answered yet
	hellos  map[event.Position]arrived
	kept    []arrived // while it joins
}

// trace is the merged content of a group's journals.
type trace struct {
	oneClock bool
	steps    []step
	log      map[event.Position]record
	tables   map[event.Position]table // by the records that began them
	lease    time.Duration
	routers  map[string]*router
}

// readJournals reads a journal whose lines are in their real order, or several that were written by one clock.
func readJournals(files ...io.Reader) (*trace, error) {
	tr := &trace{oneClock: len(files) > 1, log: map[event.Position]record{}, tables: map[event.Position]table{}, routers: map[string]*router{}}
	var lines []line
	for _, f := range files {
		for in := bufio.NewReader(f); ; {
			text, err := in.ReadBytes('\n')
			if err == io.EOF {
				break // an unfinished line was being written when its router was killed
			} else if err != nil {
				return nil, err
			}
			var l line
			if err := json.Unmarshal(text, &l); err != nil {
				return nil, err
			}
			lines = append(lines, l)
		}
	}
	if tr.oneClock {
		slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.Now, b.Now) })
	}
	for i, l := range lines {
		if err := tr.take(i, l); err != nil {
			return nil, fmt.Errorf("line %d of all journals: %w", i+1, err)
		}
	}
	slices.SortStableFunc(tr.steps, func(a, b step) int { return cmp.Compare(a.line, b.line) })
	if len(tr.tables) == 0 {
		return nil, fmt.Errorf("no member has a table in %d lines", len(lines))
	}
	return tr, nil
}

// as decodes raw JSON; undecodable JSON counts as empty, which the model does not allow.
func as[T any](raw json.RawMessage) (v T) {
	_ = json.Unmarshal(raw, &v)
	return v
}

func (tr *trace) take(i int, l line) error {
	r := tr.routers[l.Inc]
	if r == nil {
		r = &router{hellos: map[event.Position]arrived{}}
		tr.routers[l.Inc] = r
	}
	note := func(what any) { tr.steps = append(tr.steps, step{i, l.Inc, l.Now, what}) }
	switch l.Input.Type {
	case "RecordRead":
		in := as[struct {
			Reader uint64
			At     event.Position
			Record record
		}](l.Input.Of)
		if in.Reader == r.reader {
			r.queue = append(r.queue, arrived{in.At, in.Record, l.Now, i})
		}
		if known, ok := tr.log[in.At]; ok && (known.Inc != in.Record.Inc || known.Body.Seq != in.Record.Body.Seq) {
			return fmt.Errorf("another record stands at %v than others have read", in.At)
		}
		tr.log[in.At] = in.Record
	case "CheckAnswer":
		in := as[ownership.CheckAnswer](l.Input.Of)
		if c := r.check; c != nil && !in.Failed && in.Check == c.Check && in.First == c.Last && in.Second == c.Queued {
			r.check = nil
		}
	case "Drained":
		note(as[ownership.Drained](l.Input.Of))
	}
	var reader uint64
	var adopted, published, ended bool
	var lease *ownership.Lease
	for _, e := range l.Effects {
		switch e.Type {
		case "OpenReader":
			reader = as[ownership.OpenReader](e.Of).Reader
		case "CheckContiguity":
			c := as[ownership.CheckContiguity](e.Of)
			r.check = &c
		case "Note":
			adopted = adopted || as[ownership.Note](e.Of).Kind == ownership.NoteAdopted
		case "Lost", "Exit", "Left":
			ended = true
		}
	}
	if ended { // nothing that the machine does in the end is of use to it
		note(end{})
		return nil
	}
	r.apply(adopted, note, func(h arrived, what any) {
		tr.steps = append(tr.steps, step{h.line, l.Inc, h.now, what})
	})
	for _, e := range l.Effects {
		switch e.Type {
		case "PublishTable":
			t := as[struct{ Table table }](e.Of).Table
			if known, ok := tr.tables[t.Cur]; ok && !slices.Equal(known.Owners, t.Owners) {
				return fmt.Errorf("another table than that of others begins at %v", t.Cur)
			}
			tr.tables[t.Cur] = t
			published = true
		case "SetGates":
			note(as[ownership.SetGates](e.Of))
		case "Revoke":
			note(as[ownership.Revoke](e.Of))
		case "SetLease":
			lease = &ownership.Lease{}
			*lease = as[ownership.SetLease](e.Of).Lease
		case "Append":
			sent := as[struct{ Record record }](e.Of).Record
			if sent.isBeat() {
				note(sent)
			}
			if n := sent.Body.Node; n != nil {
				if tr.lease != 0 && tr.lease != n.Lease {
					return fmt.Errorf("leases of %v and %v: the model has one length for all", tr.lease, n.Lease)
				}
				tr.lease = n.Lease
			}
		}
	}
	if lease != nil { // of several the last one: records that came together are applied first
		note(*lease)
	}
	if published {
		note(tableRead{})
	}
	if reader != 0 {
		r.reader, r.queue, r.check = reader, nil, nil
		if !r.joined {
			r.kept, r.applied = nil, event.Position{}
			clear(r.hellos)
		}
	}
	return nil
}

// apply applies the records that are not behind a contiguity check. The records that a joining router keeps are
// applied when it adopts a state, each as of the instant at which it was read.
func (r *router) apply(adopted bool, note func(any), noteThen func(arrived, any)) {
	ready := len(r.queue)
	if r.check != nil {
		ready = slices.IndexFunc(r.queue, func(h arrived) bool { return r.check.Last.Before(h.at) })
		if ready < 0 {
			ready = len(r.queue)
		}
	}
	records := r.queue[:ready]
	r.queue = slices.Clone(r.queue[ready:])
	for _, h := range records {
		if !r.applied.Before(h.at) {
			continue // it has been read before
		}
		r.applied = h.at
		if r.joined {
			note(h)
			continue
		}
		r.kept = append(r.kept, h)
		if h.rec.Body.Node != nil {
			r.hellos[h.at] = h
		}
		from := h
		if snap := h.rec.Body.ForHello; snap != nil {
			hello, known := r.hellos[*snap]
			if !known {
				continue
			}
			from = hello
		} else if h.rec.Body.Members == nil || h.rec.Body.Prev != nil {
			continue // no Genesis
		}
		if !adopted {
			continue
		}
		r.joined = true
		noteThen(from, adoption{from.at})
		for _, k := range r.kept {
			if from.at.Before(k.at) {
				noteThen(k, k)
			}
		}
	}
}

// history holds the steps of the routers for one partition, as the events of TraceHandoff.tla.
type history struct {
	partition ring.Partition
	cur, gen  []int
	events    []string
	keys      int
}

const micro = int64(time.Microsecond)

// historyOf looks at the steps for partition p.
func (tr *trace) historyOf(p ring.Partition) *history {
	f := &history{partition: p}
	var items []event.Position // content of the model's log
	positions := slices.SortedFunc(maps.Keys(tr.log), event.Position.Compare)
	lands := map[event.Position]string{}
	sent := map[string]int{}
	owner, cur, gen := "", 0, 0
	for _, at := range positions {
		rec := tr.log[at]
		if t, ok := tr.tables[at]; ok {
			now := t.Members[t.Owners[p]].Inc
			kind := "E"
			if rec.Body.Prev == nil {
				kind, gen = "G", len(items)+1
			} else if now == owner {
				continue
			}
			owner, cur = now, len(items)+1
			lands[at] = fmt.Sprintf("%q, %q", kind, now)
		} else if rec.isBeat() {
			name := fmt.Sprintf("%q, %q, %d", "land", rec.Inc, rec.Body.Seq)
			if before := sent[name]; before > 0 {
				lands[at] = fmt.Sprintf(`"again", "", %d`, before)
			} else {
				lands[at], sent[name] = name, len(items)+1
			}
		} else {
			continue
		}
		items = append(items, at)
		f.cur, f.gen = append(f.cur, cur), append(f.gen, gen)
	}
	index := func(at event.Position) (through int, exact bool) { // how many items stand up to there
		i, found := slices.BinarySearchFunc(items, at, event.Position.Compare)
		if found {
			i++
		}
		return i, found
	}
	names := map[ring.KeyHash]int{}
	set := func(keys []ring.KeyHash) string {
		list := make([]string, len(keys))
		for i, k := range keys {
			if names[k] == 0 {
				names[k] = len(names) + 1
			}
			list[i] = fmt.Sprint(names[k])
		}
		return "{" + strings.Join(list, ",") + "}"
	}
	busyOf := func(list []ownership.Busy) string { // "" if it is not there
		for _, b := range list {
			if b.Partition == p {
				return set(b.Keys)
			}
		}
		return ""
	}
	put := func(format string, args ...any) {
		f.events = append(f.events, "<<"+fmt.Sprintf(format, args...)+">>")
	}
	clocks := map[string]int64{} // of the newest event
	var s step
	do := func(kind, format string, args ...any) {
		clock := s.node
		if tr.oneClock {
			clock = "*"
		}
		now := s.now / micro
		if was, ok := clocks[clock]; !ok || now > was {
			if ok {
				put("%q, %q, %d", "age", clock, now-was)
			}
			clocks[clock] = now
		}
		put("%q, %q"+format, append([]any{kind, s.node}, args...)...)
	}
	landed := 0
	land := func(through int) {
		for ; landed < through; landed++ {
			put("%s", lands[items[landed]])
		}
	}
	open, revoked, newest := map[string]bool{}, map[string]uint64{}, map[string]uint64{}
	for _, s = range tr.steps {
		n := s.node
		switch what := s.what.(type) {
		case adoption:
			k, _ := index(what.at)
			land(k)
			do("adopt", ", %d", k)
		case arrived:
			if k, exact := index(what.at); exact {
				land(k)
				do("read", ", %d, %d", k, s.now/micro-what.now/micro)
			}
		case ownership.Drained:
			if what.Seq < revoked[n] || what.Seq > newest[n] {
				continue
			}
			if what.Partitions.Has(p) {
				do("rest", ", {}")
			} else if keys := busyOf(what.Busy); keys != "" {
				do("rest", ", %s", keys)
			}
		case ownership.SetGates:
			for _, c := range what.Gates {
				if c.Partition != p {
					continue
				}
				if c.Gate == ownership.Open {
					kind := "open"
					if open[n] {
						kind = "hold"
					}
					do(kind, ", %s", set(c.Withheld))
					do("run", ", %s", set(c.Withheld))
				}
				open[n] = c.Gate == ownership.Open
			}
		case ownership.Revoke:
			newest[n] = what.Seq
			if what.Partitions.Has(p) {
				revoked[n] = what.Seq
			}
		case ownership.Lease:
			do("lease", ", %d, %s", max(0, int64(what.Until)/micro-s.now/micro), truth(what.Draining.Has(p)))
		case record:
			k, _ := index(what.Body.Applied)
			do("beat", ", %d, %d, %s, %s, %s", what.Body.Seq, k, truth(what.Body.Draining.Has(p)), truth(what.Body.Acquired.Has(p)),
				cmp.Or(busyOf(what.Body.Busy), "Keys"))
		case tableRead:
			do("gate", ", %s", truth(open[n]))
		case end:
			do("end", "")
			open[n] = false
		}
	}
	f.keys = len(names)
	return f
}

func truth(b bool) string { return strings.ToUpper(fmt.Sprint(b)) }

// byChanges returns all partitions, those first whose owners and gates changed most often.
func (tr *trace) byChanges() []ring.Partition {
	var changes []int
	positions := slices.SortedFunc(maps.Keys(tr.tables), event.Position.Compare)
	var before table
	for _, at := range positions {
		now := tr.tables[at]
		changes = append(changes, make([]int, max(0, len(now.Owners)-len(changes)))...)
		for p, owner := range now.Owners {
			if p >= len(before.Owners) || now.Members[owner].Inc != before.Members[before.Owners[p]].Inc {
				changes[p]++
			}
		}
		before = now
	}
	for _, s := range tr.steps {
		if gates, ok := s.what.(ownership.SetGates); ok {
			for _, c := range gates.Gates {
				changes[c.Partition]++
			}
		}
	}
	list := make([]ring.Partition, len(changes))
	for p := range list {
		list[p] = ring.Partition(p)
	}
	slices.SortStableFunc(list, func(a, b ring.Partition) int { return cmp.Compare(changes[b], changes[a]) })
	return list
}

// validate lets TLC walk the model along the histories of *parts partitions: those with the most changes,
// without repetitions of the same history. It returns TLC's output up to the event that the model does not allow, ""
// if it allows all.
func (tr *trace) validate(t *testing.T) (counts map[string]int, rejected string) {
	t.Helper()
	began := time.Now()
	var histories []*history
	hashes, different := maphash.MakeSeed(), map[uint64]bool{}
	for _, p := range tr.byChanges() {
		if len(histories) == *parts {
			break
		}
		f := tr.historyOf(p)
		var h maphash.Hash
		h.SetSeed(hashes)
		for _, e := range f.events {
			_, _ = h.WriteString(e)
		}
		if !different[h.Sum64()] {
			different[h.Sum64()] = true
			histories = append(histories, f)
		}
	}
	counts = map[string]int{}
	cut := 0
	for _, f := range histories {
		cut += max(0, len(f.events)-*most)
		f.events = f.events[:min(len(f.events), *most)]
		for _, e := range f.events {
			counts[strings.SplitN(e, `"`, 3)[1]]++
		}
	}
	reached, _ := tr.walk(t, histories, false)
	t.Logf("%d partitions, %d routers, %v, without %d events at the end, %.1f s",
		len(histories), len(tr.routers), counts, cut, time.Since(began).Seconds())
	for i, f := range histories {
		if n := reached[i]; n < len(f.events) {
			before := *f
			before.events = f.events[:n]
			_, state := tr.walk(t, []*history{&before}, true)
			return counts, fmt.Sprintf("partition %d, event %d of %d: %s, where the model is at\n%s", f.partition, n+1, len(f.events), f.events[n], state)
		}
	}
	return counts, ""
}

// walk makes TLC walk the model along histories. It returns how many events of each history the model allows, and
// TLC's description of the state after the last one.
func (tr *trace) walk(t *testing.T, histories []*history, show bool) (reached []int, state string) {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"TraceData.tla": tr.data(histories, show), "TraceHandoff.cfg": tr.config(histories)}
	for _, module := range []string{"Handoff.tla", "TraceHandoff.tla"} {
		text, err := os.ReadFile(module)
		if err != nil {
			t.Fatal(err)
		}
		files[module] = string(text)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "java", "-XX:+UseParallelGC", "-Xmx2g", "-Djava.io.tmpdir="+dir, "-cp", findTLC(t), // see check.sh
		"tlc2.TLC", "-workers", "2", "-nowarning", "-metadir", filepath.Join(dir, "states"), "TraceHandoff.tla")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "No error has been found") {
		t.Fatalf("TLC: %v\n%s", err, out[max(0, len(out)-3000):])
	}
	reached = make([]int, len(histories))
	for l := range strings.Lines(string(out)) {
		var i, n int
		if _, err := fmt.Sscanf(l, `<<"event", %d, %d>>`, &i, &n); err == nil {
			reached[i-1] = max(reached[i-1], n)
		}
	}
	_, shown, _ := strings.Cut(string(out), "distinct state generated")
	_, shown, _ = strings.Cut(shown, "\n")
	shown, _, _ = strings.Cut(shown, "Model checking completed")
	for l := range strings.Lines(shown) {
		if !strings.HasPrefix(l, `<<"event"`) {
			state += l
		}
	}
	return reached, state
}

// data is the module TraceData.
func (tr *trace) data(histories []*history, show bool) string {
	keys := 0
	var parts []string
	for _, f := range histories {
		keys = max(keys, f.keys)
		parts = append(parts, fmt.Sprintf("[cur |-> <<%s>>, gen |-> <<%s>>, events |-> <<\n%s>>]", numbers(f.cur), numbers(f.gen), strings.Join(f.events, ",\n")))
	}
	return fmt.Sprintf("---- MODULE TraceData ----\nEXTENDS Naturals\nNodes == {\"%s\"}\nKeys == 0..%d\nOneClock == %s\nShowLast == %s\nTraces == <<\n%s\n>>\n====\n",
		strings.Join(slices.Sorted(maps.Keys(tr.routers)), `","`), keys, truth(tr.oneClock), truth(show), strings.Join(parts, ",\n"))
}

func numbers(list []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
}

// config has the constants: times in microseconds, rounded so that nothing is rejected that the code allows, and no bounds.
func (tr *trace) config(histories []*history) string {
	wait := func(lease time.Duration) int64 { return int64(lease*101/99+50*time.Millisecond+1) / micro } // rule 4: W
	records := 0
	for _, f := range histories {
		records = max(records, len(f.cur))
	}
	cfg := fmt.Sprintf(`SPECIFICATION TraceSpec
VIEW TraceView
CHECK_DEADLOCK FALSE
CONSTANTS
  Node <- Nodes
  Key <- Keys
  Cur <- TraceCur
  Gen <- TraceGen
  Sent <- TraceSent
  Incs <- TraceIncs
  Perms <- TracePerms
  L = %d W = %d WAny = %d
  MaxLog = %d MaxInc = 2 MaxEpoch = 0 MaxFast = 0 MaxSent = 1
  MaxRenew = 1000000 MaxGen = 1000000 MaxOut = 1000000
  Exact = FALSE ModeAbort = FALSE
`, tr.lease.Microseconds()+1, wait(tr.lease), wait(ownership.LeaseMax), records)
	for mode := range strings.FieldsSeq("Wait Conf All Ap Inc SendTime OwnRead Self Boot TenureExt Force Adopt AnyStart GenStop Withhold") {
		cfg += "  Mode" + mode + " = TRUE\n"
	}
	return cfg
}
