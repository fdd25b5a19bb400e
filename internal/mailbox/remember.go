package mailbox

import (
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/history/hotkeys"
	"github.com/ringfence/router/ring"
)

// Remember makes the mailboxes keep a history of their deliveries and find hot keys. It must be
// called before any other method.
func (m *Mailboxes) Remember(c history.Config) {
	m.hot.since = m.now()
	m.each(func(b *Boxes) {
		b.records = &records{
			attempts: c.NewAttempts(len(m.shards)), hot: new(hotkeys.Sketch), hotSince: m.hot.since, fences: make(map[event.DeliveryID]event.Fence),
		}
	})
}

// History returns the attempts of a key, those that are open last, and from when on all of them
// are remembered, 0 if none was forgotten.
func (m *Mailboxes) History(key ring.KeyHash) (attempts []history.Attempt, oldest clock.Instant) {
	search := history.AttemptSearch{Key: key}
	for more := true; more; {
		m.of(key.Partition(), func(b *Boxes) {
			if more = b.records != nil && b.records.attempts.Step(&search); !more {
				search.Found = b.open(key, search.Found)
			}
		})
	}
	return search.Found, search.Oldest
}

// Remembered returns from when on all attempts are remembered, 0 if none was forgotten.
func (m *Mailboxes) Remembered() (since clock.Instant) {
	m.each(func(b *Boxes) {
		if b.records != nil {
			since = max(since, b.records.attempts.Oldest())
		}
	})
	return since
}

// Times returns how long all deliveries have taken.
func (m *Mailboxes) Times() (sum Times) {
	m.each(func(b *Boxes) {
		if b.records != nil {
			sum.Queued, sum.Handled = sum.Queued.Plus(b.records.times.Queued), sum.Handled.Plus(b.records.times.Handled)
		}
	})
	return sum
}

// HotEvery is the length of the windows in which hot keys are counted.
const HotEvery = 10 * time.Second

// HotKey is a key with many events, or with a busy handler.
type HotKey struct {
	hotkeys.Key

	Name event.Key // "" unless it had events here at the end of a window since it became hot
}

// hot are the hot keys of all shards.
type hot struct {
	mu      sync.Mutex
	since   clock.Instant // when the window began
	windows hotkeys.Windows
	names   map[ring.KeyHash]event.Key
	before  Counters // at the end of the last window
	rates   Rates
}

// Rates are events a second in the last window.
type Rates struct{ Accepted, Done, Retried, Copied, Rejected float64 }

// CountHotKeys ends a window if it is time to. It is to be called a few times in each.
func (m *Mailboxes) CountHotKeys() {
	h := &m.hot
	h.mu.Lock()
	defer h.mu.Unlock()
	begin, end := h.since, m.now()
	length := end.Sub(begin)
	if length < HotEvery {
		return
	}
	var counts []hotkeys.Count
	names := make(map[ring.KeyHash]event.Key)
	var counters Counters
	for i := range m.shards {
		sketch := new(hotkeys.Sketch)
		m.shards[i].with(func(b *Boxes) {
			counters = counters.add(b.counters)
			if b.records != nil {
				sketch, b.records.hot = b.records.hot, sketch
				b.records.hotSince = end
			}
		})
		m.shards[i].walk(func(b *Boxes, a *actor) { // handlers that still run count with their time in the window
			if b.records != nil && a.running != nil && a.since < end {
				sketch.AddTime(a.id, end.Sub(max(a.since, begin)))
			}
		})
		top := sketch.Top(hotkeys.TopMax) // not behind the lock: it sorts
		m.shards[i].with(func(b *Boxes) { b.nameAll(top, names) })
		counts = append(counts, top...)
	}
	h.windows.Add(length, counts)
	for _, k := range h.windows.Keys() { // a key that just now has no event keeps the name that it had
		if name, had := h.names[k.Hash]; had {
			names[k.Hash] = name
		}
	}
	h.rates, h.before = counters.since(h.before, length), counters
	h.since, h.names = end, names
}

// since returns the rates in a window at whose begin there were other counters.
func (c Counters) since(before Counters, length time.Duration) Rates {
	rate := func(now, before uint64) float64 { return float64(now-before) / length.Seconds() }
	return Rates{
		Accepted: rate(c.Accepted, before.Accepted), Done: rate(c.Done, before.Done),
		Retried: rate(c.Retried+c.Crashed, before.Retried+before.Crashed),
		Copied:  rate(c.Failed, before.Failed), Rejected: rate(c.Rejected+c.Skipped, before.Rejected+before.Skipped),
	}
}

// HotKeys returns the hot keys of the last window, the busiest first.
func (m *Mailboxes) HotKeys() []HotKey {
	m.hot.mu.Lock()
	defer m.hot.mu.Unlock()
	keys := m.hot.windows.Keys()
	all := make([]HotKey, len(keys))
	for i, k := range keys {
		all[i] = HotKey{Key: k, Name: m.hot.names[k.Hash]}
	}
	return all
}

// Rates returns the rates of the last window.
func (m *Mailboxes) Rates() Rates {
	m.hot.mu.Lock()
	defer m.hot.mu.Unlock()
	return m.hot.rates
}
