package act

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Keys are the mailboxes of a member, for which [Effects] hold and park keys and skip events. The calls come from one goroutine, one at a time.
type Keys interface {
	HoldKeys(keys []event.Key)
	ReleaseKeys(keys []event.Key)
	SkipEvents(skips []event.Skip)
	UnskipEvents(skips []event.Skip)
	// ParkKeys changes whether the events of keys are parked, wait for their letters, or run; NotParked means that a
	// park or an unpark has ended.
	ParkKeys(parks []event.Park)
}

// Active are the acts that have an effect at an instant, in any order.
type Active struct {
	Held  []event.Key
	Skips []event.Skip
	Parks []event.Park
}

// Active returns the acts that have an effect at an instant.
func (f *Fold) Active(now time.Time) Active {
	return Active{f.Keys(now), f.Skips(now), f.Parks(now)}
}

// Effects holds the acts that are in effect at a member's mailboxes. The zero value belongs to new mailboxes, at
// which none are. It is not safe for concurrent use.
type Effects struct {
	held  map[event.Key]event.Key
	skips map[skipped]event.Skip
	parks map[event.Key]event.Park
}

// Held returns how many keys are held.
func (e *Effects) Held() int { return len(e.held) }

// Become puts exactly these acts into effect at the mailboxes. It calls keys only for what has changed, in a fixed
// order, and returns the number of keys that are no longer held.
func (e *Effects) Become(active Active, keys Keys) (released int) {
	held, free := change(&e.held, active.Held, func(k event.Key) event.Key { return k }, cmp.Compare)
	if len(held) > 0 {
		keys.HoldKeys(held) // holds come before the ends of parks, and releases after their beginnings, so that no event runs in between
	}
	skips, ended := change(&e.skips, active.Skips, func(s event.Skip) skipped { return skipped{s.Key, s.Event} }, compareSkips)
	if len(ended) > 0 {
		keys.UnskipEvents(ended)
	}
	if len(skips) > 0 {
		keys.SkipEvents(skips)
	}
	parks, over := change(&e.parks, active.Parks, func(p event.Park) event.Key { return p.Key }, compareParks)
	for _, p := range over {
		p.State = event.NotParked
		parks = append(parks, p)
	}
	if len(parks) > 0 {
		keys.ParkKeys(parks)
	}
	if len(free) > 0 {
		keys.ReleaseKeys(free)
	}
	return len(free)
}

// change replaces the content of known, by name, with what is wanted. It returns what is new or has changed, and what
// was removed.
func change[N, V comparable](known *map[N]V, wanted []V, name func(V) N, compare func(a, b V) int) (added, gone []V) {
	before := *known
	*known = make(map[N]V, len(wanted))
	for _, v := range wanted {
		n := name(v)
		(*known)[n] = v
		if old, is := before[n]; !is || old != v {
			added = append(added, v)
		}
		delete(before, n)
	}
	gone = slices.SortedFunc(maps.Values(before), compare)
	slices.SortFunc(added, compare)
	return added, gone
}

func compareSkips(a, b event.Skip) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), strings.Compare(a.Event.String(), b.Event.String()))
}

func compareParks(a, b event.Park) int { return cmp.Compare(a.Key, b.Key) }
