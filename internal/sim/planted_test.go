//go:build planted

package sim

import (
	"runtime/debug"
	"testing"
	"time"

	"github.com/ringfence/router/internal/planted"
)

// hunt is how a planted bug is looked for.
type hunt struct {
	seeds  int           // within which it must be found
	length time.Duration // of each run
	scene  scene         // what the runs are like; nil: like all others
	why    string        // why there is nothing to look for
}

// TestPlanted shows that the simulator sees what it is there to see: each planted bug
// turns it red within its number of seeds.
func TestPlanted(t *testing.T) {
	debug.SetGCPercent(400)
	defer planted.Plant(planted.None)
	for bug := range planted.All {
		t.Run(bug.String(), func(t *testing.T) {
			h := huntFor(bug)
			if h.why != "" {
				t.Skip(h.why)
			}
			planted.Plant(bug)
			began := time.Now()
			for seed := range uint64(h.seeds) {
				if r := runScene(seed+1, h.length, false, h.scene); r.Failure != "" {
					t.Logf("seed %d, %.1fs: %s", seed+1, time.Since(began).Seconds(), r.Failure)
					return
				}
			}
			t.Errorf("not found in %d seeds, %.1fs", h.seeds, time.Since(began).Seconds())
		})
	}
}

func huntFor(bug planted.Bug) hunt {
	h, ok := hunts[bug]
	if !ok {
		return hunt{seeds: 60, length: 3 * time.Minute}
	}
	return h
}

var hunts = map[planted.Bug]hunt{}
