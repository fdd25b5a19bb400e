package journal

import (
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
)

// Kill means that the router beside the application with the journal at Path was killed, while
// the application lived on.
type Kill struct {
	Path string
	At   clock.Instant
}

// Waits holds the waits of keys that moved from one owner to another. A key has moved when it is
// handled with a higher fencing token than before.
type Waits struct {
	// Takeovers has one Spread for each Kill: for each key that was last handled under that
	// router, the time from the kill to the key's next handling. A key without a waiting event
	// shows nothing about the takeover, so a key counts only if its next event was published
	// before the first key of that router was back.
	Takeovers []Spread
	// Handoff is about all other moves: from the end of the key's last handling, or
	// from the publication of the next event if that was later, to its start.
	Handoff Spread
}

// MeasureWaits reads the journals at paths and measures their moves. sentAt tells
// when an event was published; an event that it does not know counts as published
// before everything. Memory grows with the number of keys.
func MeasureWaits(paths []string, kills []Kill, sentAt func(event string) (clock.Instant, bool)) (Waits, error) {
	s := &stopwatch{
		paths: paths, kills: kills, sentAt: sentAt,
		keys: make(map[uint64]*keyTenure), running: make(map[runningIn]*keyTenure), back: make([][]comeback, len(kills)),
	}
	if err := merge(Files(paths), s); err != nil {
		return Waits{}, err
	}
	return s.waits(), nil
}

// stopwatch follows the tenures of all keys.
type stopwatch struct {
	paths  []string
	kills  []Kill
	sentAt func(event string) (clock.Instant, bool)

	keys     map[uint64]*keyTenure
	running  map[runningIn]*keyTenure
	back     [][]comeback // by kill
	handoffs histogram
}

type runningIn struct {
	file     int
	handling Handling
}

// keyTenure is the time of a key under one token.
type keyTenure struct {
	token     int64
	file      int           // of the newest handling
	lastStart clock.Instant // of any handling
	lastEnd   clock.Instant // of any handling, 0 for none
}

// comeback is the first handling of a key after a kill.
type comeback struct{ start, sent clock.Instant }

func (s *stopwatch) start(file int, r record) error {
	at := runningIn{file, r.handling}
	if s.running[at] != nil {
		return fmt.Errorf("handling %d starts twice", r.handling)
	}
	hash := xxhash.Sum64String(string(r.key))
	k := s.keys[hash]
	if k == nil {
		k = &keyTenure{token: r.fence.Token}
		s.keys[hash] = k
	} else if r.fence.Token > k.token {
		s.moved(k, r)
	}
	k.token, k.file, k.lastStart = max(k.token, r.fence.Token), file, r.at
	s.running[at] = k
	return nil
}

func (s *stopwatch) moved(k *keyTenure, r record) {
	sent, _ := s.sentAt(r.event)
	if kill := s.killOf(k, r.at); kill >= 0 {
		s.back[kill] = append(s.back[kill], comeback{start: r.at, sent: sent})
		return
	}
	s.handoffs.add(r.at.Sub(max(k.lastEnd, sent)))
}

// killOf returns the kill that took k's router away before now, -1 for none.
func (s *stopwatch) killOf(k *keyTenure, now clock.Instant) int {
	for i, kill := range s.kills {
		if kill.Path == s.paths[k.file] && k.lastStart.Before(kill.At) && !now.Before(kill.At) {
			return i
		}
	}
	return -1
}

func (s *stopwatch) end(file int, r record) error {
	at := runningIn{file, r.handling}
	k := s.running[at]
	if k == nil {
		return fmt.Errorf("handling %d ends without a start", r.handling)
	}
	delete(s.running, at)
	k.lastEnd = r.at
	return nil
}

func (*stopwatch) endOfFile(int, clock.Instant, bool) {}

func (s *stopwatch) waits() Waits {
	w := Waits{Takeovers: make([]Spread, len(s.kills)), Handoff: s.handoffs.spread()}
	for i, back := range s.back {
		first := clock.Forever
		for _, b := range back {
			first = min(first, b.start)
		}
		var h histogram
		for _, b := range back {
			if b.sent.Before(first) {
				h.add(b.start.Sub(s.kills[i].At))
			}
		}
		w.Takeovers[i] = h.spread()
	}
	return w
}
