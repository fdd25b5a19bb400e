package sim

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

var membersFlag = flag.Int("sim.members", 32, "how many members the large group has")

// A large group comes up, loses a member to a kill and another to a leave, and comes to rest: every partition is
// served, every event settled, and no two handlers of a key overlapped. With 256 members (-sim.members=256) it takes
// some minutes.
func TestManyMembers(t *testing.T) {
	members := *membersFlag
	if members < 3 || members > ring.MembersMax {
		t.Fatalf("-sim.members=%d, want 3 to %d", members, ring.MembersMax)
	}
	w := newWorld(uint64(members), params{partitions: members})
	w.draw()
	w.p.timing = ownership.CalmTiming()
	w.p.mixed, w.p.skew, w.p.slow, w.p.publishEvery = false, false, 0.1, 100*time.Millisecond
	w.p.late, w.p.duplicate, w.p.lostAck, w.p.checkFails, w.p.preempt = 0, 0, 0, 0, 0
	w.p.appendMin, w.p.appendMax, w.p.readMin, w.p.readMax = time.Millisecond, 10*time.Millisecond, 500*time.Microsecond, 8*time.Millisecond
	for i := range members {
		w.after(w.between(0, 3*time.Second), w.newPod(fmt.Sprintf("n%d", i)).up)
	}
	w.publishing = true
	w.after(0, w.publishOn)
	w.runUntil(20 * time.Second)
	w.pods[0].member.kill(true)
	w.after(5*time.Second, w.pods[0].up)
	w.runUntil(w.now + 8*time.Second)
	w.retire(w.pods[1])
	w.runUntil(w.now + 4*time.Second)
	w.rest()
	if w.failure != "" {
		t.Fatal(w.failure)
	}
	for _, k := range []string{"note_takeover", "left", "started"} {
		if w.stats[k] == 0 {
			t.Errorf("no %s: this run proves nothing", k)
		}
	}
	t.Logf("%d members, %v simulated, %d moves; %v", members, w.now, w.moves, Result{Stats: w.stats})
}
