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
		if b.schedules[d.Name] == nil {
			added++
		}
	}
	if !b.makeRoom(len(b.names)+added-NamesMax, parsed) {
		return fmt.Errorf("schedule: more than %d schedules in all workers; declare fewer", NamesMax)
	}
	for _, d := range defs {
		if b.schedules[d.Name] == nil {
			b.schedules[d.Name] = &line{name: d.Name, partition: partition.Of(KeyOf(d.Name)), since: now}
			at, _ := slices.BinarySearch(b.names, d.Name)
			b.names = slices.Insert(b.names, at, d.Name)
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
	for _, name := range b.names {
		if _, is := wanted[name]; is {
			continue
		}
		if l := b.schedules[name]; !l.has && !l.runs {
			left = append(left, l)
		}
	}
	if len(left) < n {
		return false
	}
	slices.SortStableFunc(left, func(x, y *line) int { return x.since.Compare(y.since) })
	for _, l := range left[:n] {
		delete(b.schedules, l.name)
	}
	b.names = slices.DeleteFunc(b.names, func(name string) bool { return b.schedules[name] == nil })
	return true
}

// Forget removes the schedules of a worker that left.
func (b *Book) Forget(now time.Time, worker uint64) { b.replace(now, worker, nil) }

// Declarer returns the worker that declared the schedule of that name last, of those that have not left; 0: there is none.
func (b *Book) Declarer(name string) (worker uint64) {
	if l := b.schedules[name]; l != nil && len(l.by) > 0 {
		worker = l.by[len(l.by)-1].worker
	}
	return worker
}

// replace makes these the schedules of a worker, as its newest word.
func (b *Book) replace(now time.Time, worker uint64, defs map[string]Definition) {
	for _, name := range b.names {
		l := b.schedules[name]
		l.by = slices.DeleteFunc(l.by, func(d declared) bool { return d.worker == worker })
		if d, ok := defs[name]; ok {
			l.by = append(l.by, declared{worker, d})
		}
		l.choose(now)
	}
}

// choose makes the newest declaration the one that counts.
func (l *line) choose(now time.Time) {
	if len(l.by) == 0 {
		if l.has {
			l.has, l.since, l.entries = false, now, nil
		}
		return
	}
	def := l.by[len(l.by)-1].def
	if !l.has || l.def.ID() != def.ID() {
		l.entries = nil
		if l.def.parsed != nil && l.def.ID() != def.ID() {
			l.ran, l.letters, l.newest = nil, nil, time.Time{}
		}
	}
	l.has, l.def, l.window = true, def, window{}
}
