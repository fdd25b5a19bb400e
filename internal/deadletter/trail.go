package deadletter

import (
	"context"
	"slices"
	"time"
)

// Done is one act, as the records of the replays topic tell it. All of it is what its command claimed.
type Done struct {
	Act       string     `json:"act"`
	What      string     `json:"what"`
	Who       string     `json:"who"`
	Why       string     `json:"why"`
	Selection *Selection `json:"selection,omitempty"`
	Began     time.Time  `json:"began"`
	Ended     time.Time  `json:"ended,omitzero"`    // zero: it runs, or was interrupted
	Counts    *Counts    `json:"counts,omitempty"`  // at the end
	Sending   int        `json:"sending,omitempty"` // of one that has not ended: letters in the batches that it began, but those that were not found in their topics

	newest int // those of Sending that are in the newest batch
}

// Trail is the newest acts on the dead letters and events of a group.
type Trail struct {
	Acts    []Done `json:"acts"`              // the newest first
	Cut     int    `json:"cut,omitempty"`     // older ones
	Foreign int    `json:"foreign,omitempty"` // messages of the replays topic that are no records
}

// trailOf collects acts from records.
type trailOf struct {
	trail Trail // the oldest first
	most  int
}

func (t *trailOf) add(r Record) {
	i := slices.IndexFunc(t.trail.Acts, func(d Done) bool { return d.Act == r.Act })
	switch {
	case r.Step == StepBegan && i < 0:
		t.trail.Acts = append(t.trail.Acts, Done{Act: r.Act, What: r.What, Who: r.Who, Why: r.Why, Selection: r.Selection, Began: r.At})
		if cut := len(t.trail.Acts) - t.most; cut > 0 {
			t.trail.Acts = slices.Delete(t.trail.Acts, 0, cut)
			t.trail.Cut += cut
		}
	case i < 0: // its beginning was cut
	case r.Step == StepSending:
		t.trail.Acts[i].newest = len(r.Letters)
		t.trail.Acts[i].Sending += len(r.Letters)
	case r.Step == StepResolved:
		d := &t.trail.Acts[i]
		d.Sending -= max(0, d.newest-len(r.Letters))
		d.newest = 0
	case r.Step == StepEnded:
		t.trail.Acts[i].Ended, t.trail.Acts[i].Counts, t.trail.Acts[i].Sending = r.At, r.Counts, 0
	}
}

// Trail reads the replays topic, and returns the newest acts: at most so many.
func (b *Broker) Trail(ctx context.Context, most int) (_ Trail, err error) {
	t := trailOf{trail: Trail{Acts: []Done{}}, most: most}
	t.trail.Foreign, err = b.records(ctx, t.add)
	slices.Reverse(t.trail.Acts)
	return t.trail, err
}
