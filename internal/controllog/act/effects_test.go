package act_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog/act"
)

// told writes down the calls.
type told struct{ calls []string }

func (t *told) HoldKeys(keys []event.Key)    { t.note("hold", keys) }
func (t *told) ReleaseKeys(keys []event.Key) { t.note("release", keys) }
func (t *told) SkipEvents(s []event.Skip)    { t.note("skip", len(s)) }
func (t *told) UnskipEvents(s []event.Skip)  { t.note("unskip", len(s)) }
func (t *told) ParkKeys(parks []event.Park)  { t.note("park", parks) }
func (t *told) note(what string, of any)     { t.calls = append(t.calls, fmt.Sprint(what, " ", of)) }

func (t *told) since(t2 *testing.T, want ...string) {
	t2.Helper()
	if !slices.Equal(t.calls, want) {
		t2.Errorf("the calls are\n%s\nwant\n%s", strings.Join(t.calls, "\n"), strings.Join(want, "\n"))
	}
	t.calls = nil
}

// Each change is told once and in its order: what holds a key comes before what could let its events run.
func TestEffectsTellChanges(t *testing.T) {
	var e act.Effects
	keys := &told{}
	on := event.Park{Key: "p", Act: act.ID{1}, State: event.ParkOn}
	skip := event.Skip{Key: "s", Event: event.MessageID{Ledger: 1}, Act: act.ID{2}}
	all := act.Active{Held: []event.Key{"b", "a"}, Skips: []event.Skip{skip}, Parks: []event.Park{on}}

	e.Become(act.Active{}, keys)
	keys.since(t)
	if n := e.Become(all, keys); n != 0 || e.Held() != 2 {
		t.Errorf("%d keys are released and %d held, want 0 and 2", n, e.Held())
	}
	keys.since(t, "hold [a b]", "skip 1", fmt.Sprint("park ", []event.Park{on}))
	e.Become(all, keys)
	keys.since(t)

	// The park of a key ends while it is held, and its skip is one of another act.
	off := on
	off.State = event.NotParked
	skip.Act = act.ID{3}
	if n := e.Become(act.Active{Held: []event.Key{"p"}, Skips: []event.Skip{skip}}, keys); n != 2 {
		t.Errorf("%d keys are released, want 2", n)
	}
	keys.since(t, "hold [p]", "skip 1", fmt.Sprint("park ", []event.Park{off}), "release [a b]")
	e.Become(act.Active{}, keys)
	keys.since(t, "unskip 1", "release [p]")
}
