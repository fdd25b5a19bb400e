package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// Bounds for bringing letters back from the parking topic.
const (
	unparkKeysMax    = 8                      // keys at a time; further keys wait, but not for late ones
	unparkLettersMax = 1000                   // letters that are read ahead, for all keys together
	unparkBytesMax   = 32 << 20               // bytes of these letters; the newest letter may exceed it
	unparkSlice      = 20 * time.Second       // the time for which a member keeps others from reading the parking topic
	unparkLook       = 200 * time.Millisecond // the interval between checks of a group that is not calm
	unparkCalm       = time.Second            // the time for which the group must be calm: verdicts that were in flight have arrived by then
	unparkPauseMax   = 5 * time.Second        // the longest interval between attempts to read the topic
)

// waitsForHold is the reason why no letter of a held key comes back: the letter would only take the place of another
// key's letter.
const waitsForHold = "the key is on hold"

// unparks brings back the letters of unparked keys that this member owns, one letter of a key at a time, in the order
// of their fences. A letter remains in the parking topic until its event has ended, so if this member dies, the next
// owner continues.
type unparks struct {
	node    *Node
	read    func(ctx context.Context, each func(*source.ParkedLetter)) (parkingReading, error)
	changed chan struct{} // cap 1
	slice   time.Duration // unparkSlice

	mu      sync.Mutex
	keys    map[event.Key]*comeback // of all unparked keys
	waiting map[event.Handle]chan event.Verdict
	newest  event.Handle
}

// comeback is an unpark at this member. The fields are under the mutex of unparks, but those of its letters, which are of the
// goroutine that handles them, and of the reader while there is none.
type comeback struct {
	park    event.Park
	calm    clock.Instant                // the instant since which every member has complied; 0: one does not
	busy    bool                         // letters are being handled
	late    bool                         // the slice of the busy one has ended, and its newest letter still waits or runs
	ahead   []*source.ParkedLetter       // letters to handle in this slice
	weight  int                          // bytes of the letter that is being handled
	ended   bool                         // no letter was left
	count   uint64                       // letters that were handled
	waits   string                       // the reason why no letter comes; "": one does
	unacked map[event.MessageID]struct{} // letters that were handled and are not acked yet
}

func newUnparks(n *Node) *unparks {
	return &unparks{
		node: n, changed: make(chan struct{}, 1), slice: unparkSlice, keys: map[event.Key]*comeback{}, waiting: map[event.Handle]chan event.Verdict{},
		read: func(ctx context.Context, each func(*source.ParkedLetter)) (parkingReading, error) {
			return n.parts.Parking.Read(ctx, each)
		},
	}
}

func (u *unparks) set(parks []event.Park) {
	u.mu.Lock()
	for _, p := range parks {
		delete(u.keys, p.Key)
		if p.State == event.ParkEnds {
			u.keys[p.Key] = &comeback{park: p, unacked: map[event.MessageID]struct{}{}}
		}
	}
	u.mu.Unlock()
	signal.Set(u.changed)
}

// settled takes verdicts on letters.
func (u *unparks) settled(verdicts []event.Verdict) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, v := range verdicts {
		to := u.waiting[v.Handle]
		if to == nil || v.Kind == event.Attempted && len(to) > cap(to)/2 { // the mailbox counts the failures, too
			continue
		}
		to <- v // there is room, since an event ends once
	}
}

// run brings letters back until ctx ends.
func (u *unparks) run(ctx context.Context) error {
	if u.node.parts.Acts == nil || u.node.parts.Parking == nil {
		<-ctx.Done()
		return nil
	}
	var letters sync.WaitGroup
	defer letters.Wait()
	pauses := backoff.Backoff{Min: unparkLook, Max: unparkPauseMax}
	for ctx.Err() == nil {
		mine, some := u.mine()
		if len(mine) == 0 {
			u.idle(ctx, some)
			continue
		}
		ready := u.calmOf(ctx, mine)
		if len(ready) == 0 {
			_ = backoff.Sleep(ctx, unparkLook) // ctx ends the loop
			continue
		}
		further, err := u.bring(ctx, ready, &letters)
		if err != nil && ctx.Err() == nil {
			u.node.metrics.unparkReadFailures.Inc()
			u.say(ready, err.Error())
			if !errors.Is(err, source.ErrParkingBusy) {
				u.node.log.Warn("letters of unparked keys cannot be read or removed; trying again", "keys", len(ready), "error", err)
			}
		}
		if further {
			pauses.Reset()
			continue
		}
		_ = backoff.Sleep(ctx, pauses.Next()) // each reading subscribes, and writes to the topic
	}
	return nil
}

// idle waits for unparked keys, or for a gate to open if there are some.
func (u *unparks) idle(ctx context.Context, some bool) {
	var look <-chan time.Time
	if some {
		look = time.After(unparkLook)
	}
	select {
	case <-ctx.Done():
	case <-u.changed:
	case <-look:
	}
}

// mine returns unparked keys that this member owns and is not working on, and whether there are unparked keys at all. Late
// keys have one letter each and do not count against unparkKeysMax, unless their letters are too large: their handlers may be stuck.
func (u *unparks) mine() (mine []*comeback, some bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	busy, late, weight := 0, 0, 0
	for _, c := range u.keys {
		switch {
		case c.late:
			late++
			weight += c.weight
		case c.busy:
			busy++
		}
	}
	if weight > unparkBytesMax {
		busy += late
	}
	for _, c := range u.keys {
		switch {
		case c.busy || c.ended:
		case u.node.boxes.Inspect(c.park.Key).Gate != ownership.Open:
			c.calm, c.waits = 0, ""
		case u.node.holdOf(c.park.Key) != nil:
			c.calm, c.waits = 0, waitsForHold
		case len(mine)+busy >= unparkKeysMax:
			c.waits = fmt.Sprintf("the letters of %d other keys come first", unparkKeysMax)
		default:
			mine = append(mine, c)
		}
	}
	return mine, len(u.keys) > 0
}

// say sets the reason why no letter comes.
func (u *unparks) say(of []*comeback, why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range of {
		c.waits = why
	}
}

// calmOf returns the keys that no member parks any longer, and that have no event in flight to the parking topic. Verdicts
// may be in flight, so this must hold for unparkCalm.
func (u *unparks) calmOf(ctx context.Context, mine []*comeback) (ready []*comeback) {
	for _, c := range mine {
		why := u.restless(ctx, c.park)
		now := clock.Now()
		u.mu.Lock()
		switch {
		case why != "":
			c.calm, c.waits = 0, why
		case c.calm == 0:
			c.calm, c.waits = now, "the last events that were parked may be under way"
		case now.Sub(c.calm) >= unparkCalm:
			c.waits = ""
			ready = append(ready, c)
		}
		u.mu.Unlock()
	}
	return ready
}

// restless returns the reason why events of a key may still be in flight to the parking topic; "": none are.
func (u *unparks) restless(ctx context.Context, p event.Park) string {
	group := u.node.group
	if group == nil {
		return "this member cannot ask its group"
	}
	words, listed := group.Words(ctx, p.Key)
	for i, w := range words {
		switch {
		case w.Error != "" && listed[i]:
			return fmt.Sprintf("%s does not answer, and may still park events: %s", w.Member, w.Error)
		case w.Error != "":
		case listed[i] && (w.Park == nil || !w.Park.Unparking || w.Park.ID != act.ID(p.Act).String()):
			return w.Member + " has not read the unpark"
		case w.Parking > 0:
			return fmt.Sprintf("%s copies %d events of the key to the parking topic", w.Member, w.Parking)
		}
	}
	return ""
}

// bring reads the letters of keys once, and handles them until its slice ends. A key without letters is unparked. It reports
// whether any key made progress.
func (u *unparks) bring(ctx context.Context, keys []*comeback, running *sync.WaitGroup) (further bool, err error) {
	chosen := newChoice(keys)
	var handled []*source.ParkedLetter
	r, err := u.read(ctx, func(l *source.ParkedLetter) {
		k := chosen.of(u.node.parts.Key, l)
		if k == nil {
			return
		}
		u.mu.Lock()
		_, before := k.of.unacked[l.ID]
		u.mu.Unlock()
		if before {
			l.Event.Payload, l.Event.Properties = nil, nil // only its position is needed: the number of these letters is not bounded
			handled = append(handled, l)
			k.still[l.ID] = struct{}{}
			return
		}
		chosen.add(k, l)
	})
	if err != nil {
		return false, fmt.Errorf("the parking topic cannot be read: %w", err)
	}
	from := &reading{parkingReading: r}
	defer from.close()
	u.mu.Lock()
	for _, k := range chosen { // the missing ones were removed, although the answer was lost
		maps.DeleteFunc(k.of.unacked, func(id event.MessageID, _ struct{}) bool { _, is := k.still[id]; return !is })
	}
	u.mu.Unlock()
	for _, l := range handled {
		u.acked(chosen[l.Event.Key].of, l, from.ack(l))
	}
	slice := time.NewTimer(u.slice)
	defer slice.Stop()
	until := clock.Now().Add(u.slice)
	var now sync.WaitGroup
	for _, c := range keys {
		k := chosen[c.park.Key]
		if len(k.letters) == 0 && !k.cut {
			further = u.end(c, len(k.still) > 0) || further
			continue
		}
		u.mu.Lock()
		c.busy, c.ahead = true, k.letters
		u.mu.Unlock()
		running.Add(1)
		now.Go(func() {
			defer running.Done()
			u.handleLetters(ctx, c, from, until)
		})
	}
	ended := make(chan struct{})
	running.Go(func() { now.Wait(); close(ended) })
	select {
	case <-ended:
	case <-slice.C: // a letter runs: it is acked later
		u.late(keys)
	case <-ctx.Done():
	}
	removed, err := from.outcome()
	if err != nil {
		err = fmt.Errorf("letters that were handled cannot be removed from the parking topic: %w", err)
	}
	return further || removed > 0, err
}

// late notes that the slice of keys has ended. Of those that are still busy only the letter that waits or runs is kept.
func (u *unparks) late(keys []*comeback) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range keys {
		c.late, c.ahead = c.busy, nil
	}
}

// next returns the next letter of a key that is to be handled, nil if there is none.
func (u *unparks) next(c *comeback) *source.ParkedLetter {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(c.ahead) == 0 {
		return nil
	}
	l := c.ahead[0]
	c.ahead[0], c.ahead = nil, c.ahead[1:]
	c.weight = l.Event.Bytes()
	return l
}

// end ends an unpark that has no further letters, and reports whether it has. It does not if the unpark is no longer
// in effect. If acks of letters of the key may have failed, as again says, or letters are not acked yet, the next
// reading decides.
func (u *unparks) end(c *comeback, again bool) bool {
	u.mu.Lock()
	left := again || u.keys[c.park.Key] != c || len(c.unacked) > 0
	count := c.count
	u.mu.Unlock()
	if left {
		return false
	}
	if !u.node.parts.Acts.Unparked(c.park, count) {
		u.say([]*comeback{c}, "no letter is left, but too many ends of acts wait for the acts topic")
		return false
	}
	u.mu.Lock()
	c.ended = true
	u.mu.Unlock()
	return true
}

// acked notes that a letter that was handled is removed, or is not.
func (u *unparks) acked(c *comeback, l *source.ParkedLetter, removed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if removed {
		delete(c.unacked, l.ID)
	} else {
		c.unacked[l.ID] = struct{}{}
	}
}
