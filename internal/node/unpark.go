package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/pipeline/schedule"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/ring"
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
	park   event.Park
	calm   clock.Instant                // the instant since which every member has complied; 0: one does not
	busy   bool                         // letters are being handled
	late   bool                         // the slice of the busy one has ended, and its newest letter still waits or runs
	ahead  []*source.ParkedLetter       // letters to handle in this slice
	weight int                          // bytes of the letter that is being handled
	ended  bool                         // no letter was left
	count  uint64                       // letters that were handled
	waits  string                       // the reason why no letter comes; "": one does
	unsaid map[event.MessageID]struct{} // letters that were handled and are not acked yet
}

func newUnparks(n *Node) *unparks {
	return &unparks{
		node: n, changed: make(chan struct{}, 1), slice: unparkSlice, keys: map[event.Key]*comeback{}, waiting: map[event.Handle]chan event.Verdict{},
		read: func(ctx context.Context, each func(*source.ParkedLetter)) (parkingReading, error) {
			return n.parts.Parking.Read(ctx, each)
		},
	}
}

// actKeys applies acts to the mailboxes of this member and to its unparks.
type actKeys struct {
	*pipeline.Pipeline

	unparks   *unparks
	schedules *schedules
}

// HoldKeys implements act.Keys.
func (k actKeys) HoldKeys(keys []event.Key) {
	k.Pipeline.HoldKeys(keys)
	k.schedules.stop(keys, schedule.OnHold, true)
}

// ReleaseKeys implements act.Keys.
func (k actKeys) ReleaseKeys(keys []event.Key) {
	k.Pipeline.ReleaseKeys(keys)
	k.schedules.stop(keys, schedule.OnHold, false)
}

// ParkKeys implements act.Keys.
func (k actKeys) ParkKeys(parks []event.Park) {
	k.Pipeline.ParkKeys(parks) // first: its other events wait before a letter comes
	k.unparks.set(parks)
	for i := range parks {
		k.schedules.stop([]event.Key{parks[i].Key}, schedule.Parked, parks[i].State != event.NotParked)
	}
}

func (u *unparks) set(parks []event.Park) {
	u.mu.Lock()
	for _, p := range parks {
		delete(u.keys, p.Key)
		if p.State == event.ParkEnds {
			u.keys[p.Key] = &comeback{park: p, unsaid: map[event.MessageID]struct{}{}}
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
		case u.isOnHold(c.park.Key):
			c.calm, c.waits = 0, waitsForHold
		case len(mine)+busy >= unparkKeysMax:
			c.waits = fmt.Sprintf("the letters of %d other keys come first", unparkKeysMax)
		default:
			mine = append(mine, c)
		}
	}
	return mine, len(u.keys) > 0
}

// isOnHold reports whether a key waits for its release.
func (u *unparks) isOnHold(key event.Key) bool {
	if u.node.parts.Acts == nil {
		return false
	}
	_, is := u.node.parts.Acts.Held(key)
	return is
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

// parkingReading is a [source.ParkingReading].
type parkingReading interface {
	Ack(l *source.ParkedLetter) error
	Close()
}

// reading is a reading of the parking topic that several goroutines use.
type reading struct {
	parkingReading

	mu      sync.Mutex
	closed  bool
	removed int   // letters
	failed  error // of the newest ack that failed, nil if none did
}

// ack reports whether the letter is removed.
func (r *reading) ack(l *source.ParkedLetter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	if err := r.Ack(l); err != nil {
		r.failed = err
		return false
	}
	r.removed++
	return true
}

// outcome returns the number of removed letters, and the error that kept others from being removed.
func (r *reading) outcome() (removed int, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removed, r.failed
}

func (r *reading) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.Close()
}

// bring reads the letters of keys once, and handles them until its slice ends. A key without letters is unparked. It reports
// whether any key made progress.
func (u *unparks) bring(ctx context.Context, keys []*comeback, running *sync.WaitGroup) (further bool, err error) {
	chosen := newChoice(keys)
	var handled []*source.ParkedLetter
	still := map[*comeback]map[event.MessageID]struct{}{} // letters that were handled before
	r, err := u.read(ctx, func(l *source.ParkedLetter) {
		c := chosen.of(u.node.parts.Key, l)
		if c == nil {
			return
		}
		u.mu.Lock()
		_, before := c.unsaid[l.ID]
		u.mu.Unlock()
		if before {
			l.Event.Payload, l.Event.Properties = nil, nil // only its position is needed: the number of these letters is not bounded
			handled = append(handled, l)
			if still[c] == nil {
				still[c] = map[event.MessageID]struct{}{}
			}
			still[c][l.ID] = struct{}{}
			return
		}
		chosen.add(c, l)
	})
	if err != nil {
		return false, fmt.Errorf("the parking topic cannot be read: %w", err)
	}
	from := &reading{parkingReading: r}
	defer from.close()
	u.mu.Lock()
	for _, c := range keys { // the missing ones were removed, although the answer was lost
		maps.DeleteFunc(c.unsaid, func(id event.MessageID, _ struct{}) bool { _, is := still[c][id]; return !is })
	}
	u.mu.Unlock()
	for _, l := range handled {
		u.acked(chosen.byKey[l.Event.Key], l, from.ack(l))
	}
	slice := time.NewTimer(u.slice)
	defer slice.Stop()
	until := clock.Now().Add(u.slice)
	var now sync.WaitGroup
	for _, c := range keys {
		letters := chosen.letters[c]
		if len(letters) == 0 && !chosen.cut[c] {
			further = u.end(c, len(handled) > 0) || further
			continue
		}
		u.mu.Lock()
		c.busy, c.ahead = true, letters
		u.mu.Unlock()
		running.Add(1)
		now.Go(func() {
			defer running.Done()
			u.handle(ctx, c, from, until)
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

// end ends an unpark without letters, unless it has lost its calm, and reports whether it has. again says that acks may have failed: the next look is
// the last.
func (u *unparks) end(c *comeback, again bool) bool {
	u.mu.Lock()
	left := again || u.keys[c.park.Key] != c || len(c.unsaid) > 0
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
		delete(c.unsaid, l.ID)
	} else {
		c.unsaid[l.ID] = struct{}{}
	}
}

// handle handles the letters of a key that were read, one after the other. Letters of one event are handled once: those
// of one id and one content, since a producer of the retry topic can give a copy the id of any event.
func (u *unparks) handle(ctx context.Context, c *comeback, from *reading, until clock.Instant) {
	defer func() {
		u.mu.Lock()
		c.busy, c.late, c.ahead, c.weight = false, false, nil, 0
		u.mu.Unlock()
		signal.Set(u.changed)
	}()
	type name struct {
		id   event.MessageID
		what event.Content
	}
	done := map[name]bool{}
	for l := u.next(c); l != nil; l = u.next(c) {
		id := name{l.Event.ID, mailbox.ContentOf(l.Event)}
		if !done[id] {
			u.mu.Lock()
			stop := u.keys[c.park.Key] != c
			u.mu.Unlock()
			if stop || ctx.Err() != nil || clock.Now().After(until) || !u.one(ctx, c, l) {
				return
			}
			done[id] = true
			u.mu.Lock()
			c.count++
			u.mu.Unlock()
		}
		u.acked(c, l, from.ack(l))
	}
}

// one handles a letter, and reports whether its event has ended.
func (u *unparks) one(ctx context.Context, c *comeback, l *source.ParkedLetter) bool {
	verdicts := make(chan event.Verdict, 8)
	u.mu.Lock()
	u.newest++
	handle := u.newest
	u.waiting[handle] = verdicts
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		delete(u.waiting, handle)
		u.mu.Unlock()
	}()
	e := *l.Event
	e.Handle = handle
	again := true
	for {
		if again {
			sent := e
			u.node.pipeline.BringBack(&sent) //nolint:contextcheck // a span of an event comes from the event
			again = false
		}
		var v event.Verdict
		select {
		case v = <-verdicts:
		case <-ctx.Done():
			return false
		}
		d := v.DetailOrZero()
		switch v.Kind {
		case event.Done:
			u.node.metrics.unparkedLetters.WithLabelValues(v.Kind.String()).Inc()
			return true
		case event.Failed, event.Rejected:
			if !u.copy(ctx, c, l, &e, v) {
				return false
			}
			u.node.metrics.unparkedLetters.WithLabelValues(v.Kind.String()).Inc()
			return true
		case event.Attempted:
			e.Attempts, e.Crashes, e.LastError = d.Attempts, d.Crashes, d.Reason
			e.FirstError = cmp.Or(e.FirstError, d.Reason)
		case event.NotYet, event.Overloaded:
			if backoff.Sleep(ctx, max(d.Delay, time.Millisecond)) != nil {
				return false
			}
			again = true
		case event.NotOwner, event.Parked: // it remains in the topic
			return false
		}
	}
}

// copyAgain is the time that the copy of a letter may take before this member checks whether its source still runs.
const copyAgain = time.Second

// copy brings a letter whose event has failed to the retry topic or the dead letter topic. A member that has lost
// the key meanwhile makes no copy: the letter is still in the parking topic, and another member may have handled it.
func (u *unparks) copy(ctx context.Context, c *comeback, l *source.ParkedLetter, e *event.Event, v event.Verdict) bool {
	done := make(chan struct{})
	safe := sync.OnceFunc(func() { close(done) })
	look := time.NewTicker(copyAgain)
	defer look.Stop()
	var at *source.Source
	for {
		if s := u.node.source.Load(); s != nil && s != at {
			if !u.isMine(c) {
				return false
			}
			at = s
			m := l.Message
			m.Event = e
			s.Copy(m, v, safe)
		}
		select {
		case <-done:
			return true
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// isMine reports whether an unpark is in effect and this member owns its key.
func (u *unparks) isMine(c *comeback) bool {
	u.mu.Lock()
	is := u.keys[c.park.Key] == c
	u.mu.Unlock()
	return is && u.node.boxes.Inspect(c.park.Key).Gate == ownership.Open
}

// choice holds the letters of some keys that were read ahead: for each key those with the least fences.
type choice struct {
	byKey   map[event.Key]*comeback
	letters map[*comeback][]*source.ParkedLetter // ascending by fence
	bytes   map[*comeback]int
	cut     map[*comeback]bool // there are further letters
	keys    int
}

func newChoice(keys []*comeback) *choice {
	c := &choice{
		byKey: map[event.Key]*comeback{}, letters: map[*comeback][]*source.ParkedLetter{}, bytes: map[*comeback]int{}, cut: map[*comeback]bool{},
		keys: len(keys),
	}
	for _, one := range keys {
		c.byKey[one.park.Key] = one
	}
	return c
}

// of returns the unpark that a letter belongs to, nil if there is none, and gives the letter its key.
func (c *choice) of(extractor key.Extractor, l *source.ParkedLetter) *comeback {
	k, err := extractor.Extract(&key.Message{
		MessageKey: l.Key, OrderingKey: l.OrderingKey, Properties: l.Event.Properties, Payload: l.Event.Payload, ID: l.Event.ID,
	})
	if err != nil {
		return nil
	}
	l.Event.Key, l.Event.Partition = k, ring.PartitionOf(string(k))
	return c.byKey[k]
}

// add takes a letter, and drops the letters with the greatest fences if there are too many.
func (c *choice) add(of *comeback, l *source.ParkedLetter) {
	at, _ := slices.BinarySearchFunc(c.letters[of], l, func(a, b *source.ParkedLetter) int { return a.Mark.Fence.Compare(b.Mark.Fence) })
	c.letters[of] = slices.Insert(c.letters[of], at, l)
	c.bytes[of] += l.Event.Bytes()
	for n := len(c.letters[of]); n > 1 && (n > unparkLettersMax/c.keys || c.bytes[of] > unparkBytesMax/c.keys); n = len(c.letters[of]) {
		c.bytes[of] -= c.letters[of][n-1].Event.Bytes()
		c.letters[of], c.cut[of] = c.letters[of][:n-1], true
	}
}

// parkOf returns the park or unpark of a key, as this member has read it; nil: none.
func (n *Node) parkOf(key event.Key) *report.Park {
	if n.parts.Acts == nil {
		return nil
	}
	r, is := n.parts.Acts.ParkOf(key)
	if !is {
		return nil
	}
	p := &report.Park{
		ID:   r.ID.String(),
		Hold: report.Hold{By: r.By, Via: r.Via, Reason: r.Reason, Since: r.At.UTC(), Until: r.Until.UTC()}, Unparking: r.Kind == act.Unpark,
	}
	n.unparks.mu.Lock()
	defer n.unparks.mu.Unlock()
	if c := n.unparks.keys[key]; c != nil && p.Unparking {
		p.Letters, p.Waits = c.count, c.waits
	}
	return p
}

// parking returns the number of events of a key that this member is copying to the parking topic.
func (n *Node) parking(key event.Key) int {
	if s := n.source.Load(); s != nil {
		return s.Parking(key)
	}
	return 0
}

// Parkable returns the reason why no key can be parked now: a member of the group would not send events to the parking
// topic, or would handle them. The error is [act.ErrRefused].
func Parkable(ctx context.Context, group *report.Group) error {
	members := group.Members(ctx)
	for _, m := range members.Members {
		switch {
		case m.Unnamed:
		case m.Status == nil && m.Listed:
			return fmt.Errorf("%w: %s does not answer, so it is unknown whether it can park events (%s)", act.ErrRefused, m.Name, m.Error)
		case m.Status == nil:
		case m.Status.Acts == nil || m.Status.Acts.Parks == nil:
			return fmt.Errorf("%w: %s takes no acts (acts.enabled is false), or is of a version that does not park keys: it would handle the events", act.ErrRefused, m.Name)
		case m.Status.Acts.Error != "":
			return fmt.Errorf("%w: %s cannot use the acts topic now, and would handle the events: %s", act.ErrRefused, m.Name, m.Status.Acts.Error)
		}
	}
	return nil
}
