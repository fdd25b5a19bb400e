package schedule

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/partition"
)

type declared struct {
	worker uint64
	def    Definition
}

// Declare replaces the schedules of a worker. Of workers that declare a name differently, the one
// that came last wins. After an error nothing has changed.
func (b *Book) Declare(now time.Time, worker uint64, defs []Definition) error {
	if len(defs) > SchedulesMax {
		return fmt.Errorf("schedule: %d schedules, want at most %d of one worker", len(defs), SchedulesMax)
	}
	parsed := map[string]Definition{}
	added := 0
	for _, d := range defs {
		d, err := d.Parse()
		if err != nil {
			return err
		}
		if _, twice := parsed[d.Name]; twice {
			return fmt.Errorf("schedule %q is declared twice; give each a name of its own", d.Name)
		}
		parsed[d.Name] = d
		if b.line(d.Name) == nil {
			added++
		}
	}
	if !b.makeRoom(len(b.lines)+added-NamesMax, parsed) {
		return fmt.Errorf("schedule: more than %d schedules in all workers; declare fewer", NamesMax)
	}
	for _, d := range defs {
		if at, found := b.search(d.Name); !found {
			b.lines = slices.Insert(b.lines, at, &line{name: d.Name, partition: partition.Of(KeyOf(d.Name)), since: now})
		}
	}
	b.replace(now, worker, parsed)
	return nil
}

// makeRoom removes so many schedules that no worker declares any more, first those whose workers left first, but none of wanted. It reports whether
// there were enough.
func (b *Book) makeRoom(n int, wanted map[string]Definition) bool {
	if n <= 0 {
		return true
	}
	var left []*line
	for _, l := range b.lines {
		if _, is := wanted[l.name]; !is && !l.declared() && !l.runs {
			left = append(left, l)
		}
	}
	if len(left) < n {
		return false
	}
	slices.SortStableFunc(left, func(x, y *line) int { return x.since.Compare(y.since) })
	b.lines = slices.DeleteFunc(b.lines, func(l *line) bool { return slices.Contains(left[:n], l) })
	return true
}

// Forget removes the schedules of a worker that left.
func (b *Book) Forget(now time.Time, worker uint64) { b.replace(now, worker, nil) }

// Elsewhere returns the worker to which a firing that has come to a worker must go, since that one does not declare its schedule: the one that declared it
// last, of those that have not left. 0: the firing need not go elsewhere, or no worker declares it.
func (b *Book) Elsewhere(worker uint64, name string) uint64 {
	l := b.line(name)
	if l == nil || !l.declared() || slices.ContainsFunc(l.by, func(d declared) bool { return d.worker == worker }) {
		return 0
	}
	return l.by[len(l.by)-1].worker
}

// replace makes these the schedules of a worker, as its newest word.
func (b *Book) replace(now time.Time, worker uint64, defs map[string]Definition) {
	for _, l := range b.lines {
		was := l.declared()
		l.by = slices.DeleteFunc(l.by, func(d declared) bool { return d.worker == worker })
		if d, ok := defs[l.name]; ok {
			l.by = append(l.by, declared{worker, d})
		}
		l.choose(now, was)
	}
}

// choose makes the newest declaration the one that counts. was says whether there was one before.
func (l *line) choose(now time.Time, was bool) {
	if !l.declared() {
		if was {
			l.since, l.entries = now, nil
		}
		return
	}
	def := l.by[len(l.by)-1].def
	if !was || l.def.ID() != def.ID() {
		l.entries = nil
		if l.def.parsed != nil && l.def.ID() != def.ID() {
			l.ran, l.letters, l.newest = nil, nil, time.Time{}
		}
	}
	l.def, l.window = def, window{}
}
