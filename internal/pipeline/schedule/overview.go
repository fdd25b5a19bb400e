package schedule

import "time"

// Counts are totals since the Book was made.
type Counts struct {
	Rearmed, Entered, Missed uint64
	Dropped                  [reasons]uint64 // by Reason
}

// Status is one schedule in an [Book.Overview].
type Status struct {
	Definition Definition      // that counts; if no worker declares it, the last one
	Owned      bool            // this node arms it
	Workers    int             // that declare it
	Conflict   bool            // not all of them alike
	Next       time.Time       // when it is due next; zero: never, or not owned
	Armed      bool            // that firing is safe
	Running    time.Time       // the firing in the lane; zero: none
	LastRun    time.Time       // the newest firing that was settled here
	Waiting    int             // firings that came and were told to wait
	Missed     uint64          // firings for which others stood
	ArmError   string          // why the newest publication failed; "": it did not
	Dropped    [reasons]uint64 // by Reason
}

// Overview returns all schedules, by name.
func (b *Book) Overview() []Status {
	all := make([]Status, 0, len(b.names))
	for _, name := range b.names {
		l := b.schedules[name]
		s := l.status
		s.Definition, s.Owned, s.Workers = l.def, b.owned(l), len(l.by)
		for _, d := range l.by {
			s.Conflict = s.Conflict || d.def.ID() != l.def.ID() || d.def.Missed != l.def.Missed || d.def.Grace != l.def.Grace
		}
		if s.Owned && l.window.valid && !l.window.next.IsZero() {
			s.Next, s.Armed = l.due(l.window.next), l.covers(l.window.next)
		}
		if l.runs {
			s.Running = l.running.Time
		}
		for _, e := range l.entries {
			if e.seen {
				s.Waiting++
			}
		}
		all = append(all, s)
	}
	return all
}

// Counts returns the totals, for metrics.
func (b *Book) Counts() Counts { return b.counts }
