package deadletter

import (
	"testing"
	"time"
)

// TestTrail: an act is told by its beginning and its end, one without an end by what it began to send, and the oldest are cut.
func TestTrail(t *testing.T) {
	trail := trailOf{most: 2}
	at := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for _, r := range []Record{
		{Act: "old", Step: StepBegan},
		{Act: "a", Step: StepBegan, At: at, What: ActPurge, Who: "me", Why: "a test"},
		{Act: "b", Step: StepBegan},
		{Act: "a", Step: StepBegan, Who: "a liar"},
		{Act: "old", Step: StepEnded},
		{Act: "a", Step: StepEnded, At: at.Add(time.Second), Counts: &Counts{Purged: 3}},
		sending("b", "1:1:-1:-1", "1:2:-1:-1"),
		sending("b", "1:3:-1:-1"),
		sending("b", "1:4:-1:-1", "1:5:-1:-1"),
		{Act: "b", Step: StepResolved, Letters: []Sent{{Letter: "1:4:-1:-1"}}},
		sending("b", "1:5:-1:-1"), // again, alone
		{Act: "stranger", Step: StepEnded},
	} {
		trail.add(r)
	}
	got := trail.trail
	if len(got.Acts) != 2 || got.Cut != 1 {
		t.Fatalf("%+v", got)
	}
	if a := got.Acts[0]; a.What != ActPurge || a.Who != "me" || a.Why != "a test" || !a.Began.Equal(at) || !a.Ended.Equal(at.Add(time.Second)) || a.Counts.Purged != 3 {
		t.Errorf("%+v", a)
	}
	if b := got.Acts[1]; !b.Ended.IsZero() || b.Sending != 5 {
		t.Errorf("%+v", b)
	}
}
