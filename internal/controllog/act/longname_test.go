package act

import (
	"strings"
	"testing"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/testing/eventually"
)

// TestEndsOfAMemberWithALongName: what a member with the longest name that settings allow tells is taken.
func TestEndsOfAMemberWithALongName(t *testing.T) {
	name := strings.Repeat("n", 253)
	if err := untrusted.Name(name); err != nil {
		t.Fatal(err)
	}
	log := controllog.NewMem()
	a := startKeeper(t, name, func() (controllog.Transport, error) { return log, nil }, nil)
	a.ready(t)
	if _, result, err := a.Unpark(t.Context(), order("k")); err != nil || result != Unparking {
		t.Fatalf("unpark: %s %v", result, err)
	}
	skip := order("other")
	skip.Event = event.MessageID{Ledger: 7, Entry: 1}
	if _, result, err := a.Skip(t.Context(), skip); err != nil || result != Skipping {
		t.Fatalf("skip: %s %v", result, err)
	}
	a.Unparked(a.boxes.park("k"), 7)
	a.Ended([]event.Skipped{{Skip: a.boxes.skipping()[0], Done: true}})
	eventually.True(t, "the unpark has ended, and the key's newer events run", func() bool { return a.boxes.park("k") == event.Park{} })
	eventually.True(t, "the skip has an end", func() bool {
		for _, s := range a.List() {
			if s.Act == "skip" && s.End == "done" && strings.HasPrefix(name, s.EndedBy) {
				return true
			}
		}
		return false
	})
}
