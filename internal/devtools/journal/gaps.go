package journal

import (
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
)

// MeasureGaps reads the journals of all processes and measures, from since on, how long keys stood
// still: for each key the longest time in which an event of it was published and not over, and no
// event of it was being handled. A key that never had to wait counts with zero. sentAt returns the
// time at which an event was published; an unknown event counts as published before everything.
//
// Memory grows with the number of keys and events.
func MeasureGaps(files []File, since clock.Instant, sentAt func(event string) (clock.Instant, bool)) (Spread, error) {
	g := &gaps{
		since: since, sentAt: sentAt,
		keys: make(map[uint64]*standing), over: make(map[uint64]bool), running: make(map[runningIn]runningEvent),
	}
	if err := merge(files, g); err != nil {
		return Spread{}, err
	}
	var h histogram
	for _, k := range g.keys {
		if k.seen {
			h.add(k.longest)
		}
	}
	return h.spread(), nil
}

// gaps tracks the time in which each key stands still.
type gaps struct {
	since  clock.Instant
	sentAt func(event string) (clock.Instant, bool)

	keys    map[uint64]*standing
	over    map[uint64]bool // events that were done or rejected
	running map[runningIn]runningEvent
}

// standing is the state of one key: it stands still from lastEnd on while running is 0.
type standing struct {
	running int
	lastEnd clock.Instant
	longest time.Duration
	seen    bool // there was a handling after since
}

type runningEvent struct {
	key     *standing
	eventID uint64
}

func (g *gaps) start(file int, r record) error {
	at := runningIn{file, r.handling}
	if g.running[at].key != nil {
		return fmt.Errorf("handling %d starts twice", r.handling)
	}
	hash := xxhash.Sum64String(string(r.key))
	k := g.keys[hash]
	if k == nil {
		k = &standing{}
		g.keys[hash] = k
	}
	id := xxhash.Sum64String(r.event)
	if !r.at.Before(g.since) {
		k.seen = true
		if k.running == 0 && !g.over[id] { // a repeat has not delayed the key
			sent, _ := g.sentAt(r.event)
			k.longest = max(k.longest, r.at.Sub(max(k.lastEnd, sent)))
		}
	}
	k.running++
	g.running[at] = runningEvent{k, id}
	return nil
}

func (g *gaps) end(file int, r record) error {
	at := runningIn{file, r.handling}
	in := g.running[at]
	if in.key == nil {
		return fmt.Errorf("handling %d ends without a start", r.handling)
	}
	if r.outcome.over() {
		g.over[in.eventID] = true
	}
	g.stop(at, r.at)
	return nil
}

// endOfFile ends at instant the handlings that the process left running.
func (g *gaps) endOfFile(file int, at clock.Instant, _ bool) {
	for in := range g.running {
		if in.file == file {
			g.stop(in, at)
		}
	}
}

func (g *gaps) stop(at runningIn, now clock.Instant) {
	k := g.running[at].key
	k.running--
	k.lastEnd = now
	delete(g.running, at)
}
