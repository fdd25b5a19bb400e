//go:build planted

package schedule

import (
	"testing"

	"github.com/ringfence/router/internal/testing/planted"
)

// TestPlantedSchedules: the histories of the model test show each bug of schedules, and show nothing without one.
func TestPlantedSchedules(t *testing.T) {
	parsePacks(t)
	if broken, seed := hunt(t); broken != "" {
		t.Fatalf("without a bug, seed %d: %s", seed, broken)
	}
	defer planted.Plant(planted.None)
	for _, bug := range []planted.Bug{planted.ArmedAfterHandler, planted.FiredEarly, planted.RearmedAnew, planted.FiringForgotten} {
		planted.Plant(bug)
		broken, seed := hunt(t)
		if broken == "" {
			t.Errorf("%v: not found in %d histories", bug, *histories)
			continue
		}
		t.Logf("%v: history %d: %s", bug, seed+1, broken)
	}
}

// found ends a history that shows something wrong.
type found string

// hunt plays histories until one shows something wrong.
func hunt(t *testing.T) (broken string, seed uint64) {
	for seed = range uint64(*histories) {
		if broken = playOne(t, seed); broken != "" {
			return broken, seed
		}
	}
	return "", 0
}

func playOne(t *testing.T, seed uint64) (broken string) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case found:
			broken = string(e)
		default:
			panic(e)
		}
	}()
	w := newWorld(t, seed, &rare{})
	w.caught = func(what string) { panic(found(what)) }
	w.play()
	return ""
}
