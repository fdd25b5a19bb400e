package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/deadletter"
)

// TestInterruptedActsAreNotSaidToHaveSentNothing: the trail tells only what its records know.
func TestInterruptedActsAreNotSaidToHaveSentNothing(t *testing.T) {
	for _, what := range []string{deadletter.ActReplayEvents, deadletter.ActPurge} {
		if says := doneWords(&deadletter.Done{What: what}); strings.Contains(says, "0 sent") {
			t.Errorf("a killed %s: %q", what, says)
		}
	}
}

// TestKeysOfAReplay: an empty key is refused, since it would select all events that have none, and a key that is named twice makes no other replay.
func TestKeysOfAReplay(t *testing.T) {
	now := time.Date(2026, 11, 25, 16, 0, 0, 0, time.UTC)
	parse := func(args ...string) (deadletter.Selection, error) {
		var r replayFlags
		cmd := &cobra.Command{}
		r.addTo(cmd)
		if err := cmd.ParseFlags(append(args, "--from=2026-11-25T14:00:00Z", "--until=2026-11-25T15:00:00Z")); err != nil {
			t.Fatal(err)
		}
		return r.selection(now, true, []string{"persistent://public/default/orders"})
	}
	if sel, err := parse("--keys=user-1,"); err == nil || !strings.Contains(err.Error(), "empty key") {
		t.Errorf("--keys user-1, selects %q: %v", sel.Keys, err)
	}
	once, err := parse("--keys=user-1,user-2", "--topic=orders")
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := parse("--keys=user-2,user-1,user-2", "--topic=orders", "--topic=orders"); err != nil || once.Run != twice.Run || len(twice.Topics) != 1 {
		t.Errorf("one selection is two replays, %+v and %+v: %v", once, twice, err)
	}
}

// TestCutTextsSaySo: router deadletters acts does not cut a reason in silence.
func TestCutTextsSaySo(t *testing.T) {
	why := strings.Repeat("x", 300)
	var out strings.Builder
	trailPage(&page{out: &out}, deadletter.Trail{Acts: []deadletter.Done{{Why: why}}}, "topic")
	if !strings.Contains(out.String(), why) && !strings.Contains(out.String(), "…") {
		t.Errorf("a reason of 300 bytes is cut to 200 and nothing says so:\n%s", out.String())
	}
}
