package schedule

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSentFiring: a firing comes as it was sent, whatever its occurrences and however many it stands for.
func TestSentFiring(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, err := Definition{Name: rapid.StringMatching(`[a-z]{1,9}`).Draw(t, "name"), Every: time.Hour}.Parse()
		if err != nil {
			t.Fatal(err)
		}
		a := Arm{
			Definition: d, Time: time.UnixMilli(rapid.Int64Range(0, 4e12).Draw(t, "time")), Missed: rapid.IntRange(0, math.MaxUint32+1).Draw(t, "missed"),
		}
		a.Due = a.Time.Add(time.Minute)
		sent := a.Sent()
		want := Firing{Name: a.Definition.Name, DefinitionID: a.Definition.ID(), Time: a.Time, Missed: min(a.Missed, math.MaxUint32)}
		if got := FiringOf(&sent); got != want || sent.Due != a.Due.UnixMilli() || string(sent.Key) != KeyOf(want.Name) {
			t.Errorf("%+v comes as %+v", a, sent)
		}
	})
}
