package mailbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// modelConfig has bounds that a few dozen events reach.
var modelConfig = Config{
	Shards:          1,
	DepthMax:        4,
	BytesMax:        12 * (400 + placeBytes),
	FramesBytesMax:  64 << 20,
	KeyCallsMax:     3,
	CallsMax:        6,
	RepliesBytesMax: 3 * (replyBytes + 8),
	JoinsMax:        3,
	WindowBytesMax:  8 * recordBytes,
	WindowAgeMax:    10 * time.Second,
	OverloadedDelay: time.Second,
	NotYetDelay:     time.Millisecond,
}

var modelRetry = outcome.Config{
	AttemptsMax:  4,
	CrashesMax:   3,
	BackoffMin:   100 * time.Millisecond,
	BackoffMax:   time.Second,
	AfterMax:     time.Hour,
	RetryHoldMax: 2 * time.Second,
}

// reference computes the correct behaviour of Boxes by the simplest means: slices, and a search
// through everything for every question.
type reference struct {
	crowded uint64 // calls that were refused because of a bound
	epoch   event.Position
	gates   map[ring.Partition]ownership.GateChange
	onHold  map[event.Key]bool
	events  []*refEvent // in the order in which they came; a key's order is theirs
	window  []refDone
	gone    map[Sender]bool
	workers []event.WorkerID

	leased   bool
	skips    map[refSkip]event.Skip
	takeBack []event.DeliveryID // that the newest call should name
	ended    []event.Skipped    // likewise

	calls   []*refCall // a key's order is theirs
	replies []refReply // the oldest first
	inTurn  map[event.Key]int

	parks  map[event.Key]event.Park
	parked []refParked // that the newest call should send to the parking topic, in their order
}

// refParked is an event that leaves for the parking topic.
type refParked struct {
	key   event.Key
	to    []address
	act   [16]byte
	token ownership.Token
}

type refSkip struct {
	key event.Key
	id  event.MessageID
}

type refEvent struct {
	event     event.Event
	to        []address
	running   event.DeliveryID
	heldUntil clock.Instant
	takenBack *event.Skip // it runs, and is to be skipped
}

type refDone struct {
	id      event.MessageID
	p       ring.Partition
	at      clock.Instant
	late    bool // its partition was not ours, and no handover has been taken since
	leaves  bool // its partition was not ours afterwards
	dropped bool // it still counts
}

// lets reports whether a key may run: the gate of its partition lets it through, and no operator holds or parks it.
func (r *reference) lets(key event.Key) bool {
	return r.gateLets(key) && !r.onHold[key] && !r.parkStops(key)
}

// parkStops reports whether a key that does not run waits because of a park.
func (r *reference) parkStops(key event.Key) bool {
	letters := r.count(func(e *refEvent) bool { return e.event.Key == key && e.isLetter() })
	return r.parks[key].State == event.ParkOn || r.parks[key].State == event.ParkEnds && letters == 0
}

func (e *refEvent) isLetter() bool {
	return slices.ContainsFunc(e.to, func(to address) bool { return to.sender == Letters })
}

// park changes parks.
func (r *reference) park(parks []event.Park) []addressed {
	var said []addressed
	for _, p := range parks {
		r.parks[p.Key] = p
		for _, c := range slices.Clone(r.calls) {
			if c.event.Key == p.Key && c.running == 0 && p.State != event.NotParked {
				said = append(said, r.endCall(c, notRun(*answerParked))...)
			}
		}
	}
	return append(said, r.leaveParked()...)
}

// leaveParked settles the waiting events of parked keys in their order, and puts a letter of an unparked key before its other events.
func (r *reference) leaveParked() (said []addressed) {
	for _, e := range slices.Clone(r.events) {
		key := e.event.Key
		if p := r.parks[key]; p.State == event.ParkOn && r.leased && r.gateLets(key) && r.runningOf(key) == 0 {
			r.remove(e)
			r.parked = append(r.parked, refParked{key, e.to, p.Act, r.gates[e.event.Partition].Token})
			said = append(said, r.say(e, verdict{event.Parked, event.Detail{
				Delay: time.Second, Attempts: e.event.Attempts, Crashes: e.event.Crashes, Reason: fmt.Sprint(p.Act) + e.event.LastError, FirstError: e.event.FirstError, Owner: "me",
			}})...)
		}
	}
	for key, p := range r.parks {
		if p.State != event.ParkEnds || !r.gateLets(key) || r.onHold[key] {
			continue
		}
		first := r.head(key)
		i := slices.IndexFunc(r.events, func(e *refEvent) bool { return e.event.Key == key && e.isLetter() })
		if first != nil && i >= 0 && r.events[i] != first {
			letter := r.events[i]
			first.heldUntil = 0
			r.remove(letter)
			r.events = slices.Insert(r.events, slices.Index(r.events, first), letter)
		}
	}
	return said
}

// gateLets reports whether the gate of a key's partition lets it through.
func (r *reference) gateLets(key event.Key) bool {
	c := r.gates[ring.PartitionOf(string(key))]
	return c.Gate == ownership.Open && !slices.Contains(c.Withheld, ring.HashOf(string(key)))
}

func (r *reference) ours(p ring.Partition) bool {
	return r.gates[p].Gate == ownership.Open || r.gates[p].Gate == ownership.Waiting
}

// count returns how many events match.
func (r *reference) count(match func(*refEvent) bool) (n int) {
	for _, e := range r.events {
		if match(e) {
			n++
		}
	}
	return n
}

func (r *reference) runningOn(p ring.Partition) int {
	return r.count(func(e *refEvent) bool { return e.running != 0 && e.event.Partition == p }) +
		r.countCalls(func(c *refCall) bool { return c.running != 0 && c.event.Partition == p })
}

func (r *reference) runningOf(key event.Key) int {
	return r.count(func(e *refEvent) bool { return e.running != 0 && e.event.Key == key }) +
		r.countCalls(func(c *refCall) bool { return c.running != 0 && c.event.Key == key })
}

func (r *reference) depth(key event.Key) int {
	return r.count(func(e *refEvent) bool { return e.running == 0 && e.event.Key == key })
}

func (r *reference) bytes() (n int) {
	for _, e := range r.events {
		n += e.event.Bytes() + placeBytes
	}
	for _, c := range r.calls {
		n += c.event.Bytes() + placeBytes
	}
	return n
}

// head returns the event of a key that may run next: none while one runs.
func (r *reference) head(key event.Key) *refEvent {
	if r.runningOf(key) > 0 {
		return nil
	}
	for _, e := range r.events {
		if e.event.Key == key {
			return e
		}
	}
	return nil
}

func (r *reference) find(id event.MessageID) *refEvent {
	for _, e := range r.events {
		if e.event.ID == id {
			return e
		}
	}
	return nil
}

func (r *reference) remove(e *refEvent) {
	r.events = slices.DeleteFunc(r.events, func(x *refEvent) bool { return x == e })
}

func (r *reference) say(e *refEvent, v verdict) (said []addressed) {
	for _, to := range e.to {
		if !r.gone[to.sender] {
			said = append(said, addressed{to.sender, to.handle, v})
		}
	}
	return said
}

func (r *reference) accept(from Sender, senderEpoch event.Position, e *event.Event) []addressed {
	to := address{from, e.Handle}
	reply := func(v verdict) []addressed { return r.say(&refEvent{to: []address{to}}, v) }
	if here := r.find(e.ID); here != nil {
		if slices.Contains(here.to, to) {
			return nil
		}
		if len(here.to) >= modelConfig.JoinsMax && from != Letters {
			here.to = append(here.to[:1], slices.DeleteFunc(here.to[1:], func(a address) bool { return r.gone[a.sender] })...)
		}
		if len(here.to) >= modelConfig.JoinsMax && from != Letters {
			return reply(verdict{event.Overloaded, event.Detail{Delay: modelConfig.OverloadedDelay}})
		}
		here.to = append(here.to, to)
		if e.Attempts > here.event.Attempts || e.Crashes > here.event.Crashes {
			attempts, crashes := max(e.Attempts, here.event.Attempts), max(e.Crashes, here.event.Crashes)
			here.event = *e
			here.event.Attempts, here.event.Crashes = attempts, crashes
		}
		return r.leaveParked() // none, but a letter may have joined
	}
	if r.remembers(e.ID) {
		return reply(verdict{Kind: event.Done})
	}
	if !r.ours(e.Partition) {
		if r.epoch.Before(senderEpoch) {
			return reply(verdict{event.NotYet, event.Detail{Delay: modelConfig.NotYetDelay}})
		}
		return reply(verdict{event.NotOwner, event.Detail{Epoch: r.epoch}})
	}
	tooMuch := r.bytes() > 0 && r.bytes()+e.Bytes()+placeBytes > modelConfig.BytesMax
	if from != Letters && (tooMuch || r.depth(e.Key) >= modelConfig.DepthMax) {
		return reply(verdict{event.Overloaded, event.Detail{Delay: modelConfig.OverloadedDelay}})
	}
	r.events = append(r.events, &refEvent{event: *e, to: []address{to}})
	return append(r.leaveSkipped(), r.leaveParked()...)
}

// skip notes skips, or their end.
func (r *reference) skip(skips []event.Skip, ends bool) (said []addressed) {
	for _, s := range skips {
		if ends {
			delete(r.skips, refSkip{s.Key, s.Event})
			continue
		}
		r.skips[refSkip{s.Key, s.Event}] = s
		for _, e := range r.events {
			if e.running != 0 && e.event.Key == s.Key && e.event.ID == s.Event && e.takenBack == nil {
				e.takenBack = &s
				r.takeBack = append(r.takeBack, e.running)
			}
		}
		said = append(append(said, r.leaveSkipped()...), r.leaveParked()...)
	}
	return said
}

// leaveSkipped settles all waiting events that are to be skipped and whose gate lets them through.
func (r *reference) leaveSkipped() (said []addressed) {
	for _, e := range slices.Clone(r.events) {
		if s, is := r.skips[refSkip{e.event.Key, e.event.ID}]; is && e.running == 0 && r.leased && r.gateLets(e.event.Key) {
			said = append(said, r.sayLetter(e, s)...)
		}
	}
	return said
}

// sayLetter sends an event to the dead letter topic because of a skip.
func (r *reference) sayLetter(e *refEvent, s event.Skip) []addressed {
	r.remove(e)
	r.ended = append(r.ended, event.Skipped{Skip: s})
	return r.say(e, verdict{event.Rejected, event.Detail{Attempts: e.event.Attempts, Crashes: e.event.Crashes, Reason: s.Reason, FirstError: e.event.FirstError, Owner: "me"}})
}

func (r *reference) finish(now clock.Instant, result event.Result) (said []addressed, ended bool) {
	i := slices.IndexFunc(r.events, func(e *refEvent) bool { return e.running == result.Delivery })
	if result.Delivery == 0 || i < 0 {
		return nil, false
	}
	e := r.events[i]
	p := e.event.Partition
	e.running = 0
	ended = r.gates[p].Gate != ownership.Open
	o := outcome.Of(modelRetry, e.event.ID, e.event.Attempts, e.event.Crashes, result)
	final := verdict{Detail: event.Detail{Attempts: o.Attempts, Crashes: o.Crashes, Reason: o.Reason, FirstError: e.event.FirstError, Owner: "me"}}
	if final.FirstError == "" {
		final.FirstError = o.Reason
	}
	if o.Kind == outcome.Retry && !r.leased {
		e.takenBack = nil
	}
	if o.Kind != outcome.Ack && e.takenBack != nil {
		if o.Attempts > e.event.Attempts || o.Crashes > e.event.Crashes {
			e.event.Attempts, e.event.Crashes, e.event.FirstError = o.Attempts, o.Crashes, final.FirstError
		}
		return r.sayLetter(e, *e.takenBack), ended
	}
	switch {
	case o.Kind == outcome.Ack:
		if e.takenBack != nil {
			r.ended = append(r.ended, event.Skipped{Skip: *e.takenBack, Done: true})
		}
		r.remove(e)
		r.window = append(r.window, refDone{id: e.event.ID, p: p, at: now, late: !r.ours(p)})
		r.takeHandover(p)
		r.forget()
		return r.say(e, verdict{Kind: event.Done}), ended
	case o.Kind == outcome.DeadLetter:
		r.remove(e)
		final.Kind = event.Rejected
		return r.say(e, final), ended
	case !o.Hold:
		r.remove(e)
		final.Kind, final.Delay = event.Failed, o.Delay
		return r.say(e, final), ended
	}
	if o.Attempts > e.event.Attempts || o.Crashes > e.event.Crashes {
		said = r.say(e, verdict{event.Attempted, event.Detail{Attempts: o.Attempts, Crashes: o.Crashes, Reason: o.Reason}})
		e.event.Crashes = o.Crashes
		e.event.Attempts, e.event.FirstError, e.event.LastError = o.Attempts, final.FirstError, o.Reason
	}
	if !r.ours(p) {
		r.remove(e)
		return append(said, r.say(e, verdict{event.NotOwner, event.Detail{Epoch: r.epoch}})...), ended
	}
	others := slices.ContainsFunc(r.events, func(other *refEvent) bool { return other != e && other.event.Key == e.event.Key })
	if !o.Behind || !others || e.isLetter() && r.parks[e.event.Key].State == event.ParkEnds {
		e.heldUntil = now.Add(o.Delay)
		return said, ended
	}
	r.remove(e)
	r.events, e.heldUntil = append(r.events, e), 0
	r.head(e.event.Key).heldUntil = now.Add(o.Delay / time.Duration(r.depth(e.event.Key)))
	return said, ended
}

func (r *reference) forget() {
	if len(r.window) > modelConfig.WindowBytesMax/recordBytes {
		r.window = r.window[1:]
	}
}

func (r *reference) takeOver(d event.Finished) (said []addressed) {
	here, p := r.find(d.ID), d.Partition
	if c := r.findCall(d.ID); c != nil {
		return r.takeCallOver(d, c)
	}
	switch {
	case here != nil && here.running != 0, r.remembers(d.ID):
		return nil
	case here != nil:
		r.remove(here)
		said, p = r.say(here, verdict{Kind: event.Done}), here.event.Partition
	}
	r.window = append(r.window, refDone{id: d.ID, p: p, at: d.At})
	r.forget()
	return said
}

func (r *reference) remembers(id event.MessageID) bool {
	return slices.ContainsFunc(r.window, func(d refDone) bool { return d.id == id && !d.dropped })
}

func (r *reference) setGate(c ownership.GateChange, epoch event.Position) (said []addressed) {
	if r.epoch.Before(epoch) {
		r.epoch = epoch
	}
	r.gates[c.Partition] = c
	if !r.ours(c.Partition) {
		for _, e := range slices.Clone(r.events) {
			if e.event.Partition == c.Partition && e.running == 0 {
				r.remove(e)
				said = append(said, r.say(e, verdict{event.NotOwner, event.Detail{Epoch: r.epoch}})...)
			}
		}
		for _, call := range slices.Clone(r.calls) {
			if call.event.Partition == c.Partition && call.running == 0 {
				said = append(said, r.endCall(call, verdict{event.NotOwner, event.Detail{Epoch: r.epoch}})...)
			}
		}
	}
	r.takeHandover(c.Partition)
	said = append(said, r.leaveSkipped()...)
	return append(said, r.leaveParked()...)
}

func (r *reference) takeHandover(p ring.Partition) {
	for i := range r.window {
		if r.window[i].p == p && !r.ours(p) {
			r.window[i].leaves = true
		}
	}
}

// leaving takes ids out of the window that are for others: all that came late, and up
// to idsMax more, the newest first, those that are not young after all that are.
func (r *reference) leaving(now clock.Instant, idsMax int) (done []event.Finished) {
	take := func(d *refDone) {
		if d.leaves && !d.dropped && !r.ours(d.p) {
			d.dropped = true
			done = append(done, event.Finished{Partition: d.p, ID: d.id, At: d.at})
		}
	}
	for i := range r.window {
		if r.window[i].late {
			r.window[i].late = false
			take(&r.window[i])
		}
	}
	idsMax += len(done)
	for _, since := range []clock.Instant{now.Add(-youngMax), ever} {
		for i := len(r.window) - 1; i >= 0 && len(done) < idsMax; i-- {
			if d := &r.window[i]; !d.at.Before(since) {
				take(d)
			}
		}
	}
	return done
}

func (r *reference) windowIDs() (n int) {
	for _, d := range r.window {
		if !d.dropped {
			n++
		}
	}
	return n
}

// model drives Boxes and the reference with the same calls and compares them.
type model struct {
	*rapid.T
	boxes *Boxes
	ref   reference
	now   clock.Instant
	out   Output

	keys           []event.Key
	partitions     []ring.Partition
	known          []*event.Event // every event that was ever sent
	open           map[address]bool
	deliveries     []event.Delivery // running
	over           []event.DeliveryID
	tenure         ownership.Token
	nextHandle     event.Handle
	nextEntry      int64
	nextWorker     event.WorkerID
	senders        []Sender
	nextSender     Sender
	mayTake        map[event.WorkerID]bool // was woken, and has not found its queue empty since
	stuckTo        map[event.Key]event.WorkerID
	fences         map[event.Key]event.Fence // of the newest delivery
	knownCalls     []*event.Event            // every call with an id that was ever made
	calls          map[string]int            // what became of calls, and how
	passed         bool                      // time, since the newest Tick
	changes        map[ring.Partition]int    // how often it was opened, or a key of it reserved
	workersChanged int
	held           uint64 // looks at a key that waited on hold
	onPark         uint64 // looks at a key that waited because of a park
	letters        uint64 // deliveries of letters
}

// modelKeys returns six keys, two on each of three partitions.
var modelKeys = func() (keys []event.Key) {
	count := map[ring.Partition]int{}
	for i := 0; len(keys) < 6; i++ {
		key := event.Key(fmt.Sprintf("key-%d", i))
		if p := ring.PartitionOf(string(key)); p < 200 && (count[p] == 1 || count[p] == 0 && len(count) < 3) {
			count[p]++
			keys = append(keys, key)
		}
	}
	return keys
}()

func newModel(t *rapid.T) *model {
	m := &model{
		T: t, boxes: New(modelConfig, modelRetry, "me"), keys: modelKeys,
		now:     clock.Instant(rapid.SampledFrom([]time.Duration{time.Second, time.Hour}).Draw(t, "since the machine started")),
		ref:     reference{parks: map[event.Key]event.Park{}, gates: map[ring.Partition]ownership.GateChange{}, onHold: map[event.Key]bool{}, inTurn: map[event.Key]int{}, skips: map[refSkip]event.Skip{}, gone: map[Sender]bool{}},
		open:    map[address]bool{},
		senders: []Sender{Local},
		mayTake: map[event.WorkerID]bool{}, stuckTo: map[event.Key]event.WorkerID{}, fences: map[event.Key]event.Fence{}, changes: map[ring.Partition]int{}, calls: map[string]int{},
	}
	for _, key := range m.keys {
		if p := ring.PartitionOf(string(key)); !slices.Contains(m.partitions, p) {
			m.partitions = append(m.partitions, p)
		}
	}
	return m
}

func (m *model) chance(percent int, label string) bool {
	return rapid.IntRange(0, 99).Draw(m.T, label) < percent
}

func pick[T any](m *model, from []T, label string) T {
	return from[rapid.IntRange(0, len(from)-1).Draw(m.T, label)]
}

// accept sends a few events: new ones, and such that were sent before, by the same
// sender again or by another one.
func (m *model) accept() {
	if m.chance(30, "new sender") {
		m.nextSender++
		m.senders = append(m.senders, m.nextSender)
	}
	from := pick(m, m.senders, "from")
	if m.chance(25, "letters") {
		from = Letters
	}
	senderEpoch := event.Position{Ledger: 1, Entry: rapid.Int64Range(0, 3).Draw(m.T, "ahead") + m.ref.epoch.Entry - 1}
	var events []*event.Event
	var want []addressed
	for range rapid.IntRange(1, 4).Draw(m.T, "events") {
		e := m.newEvent()
		if slices.ContainsFunc(events, func(other *event.Event) bool { return other.Handle == e.Handle }) {
			continue
		}
		m.known = append(m.known, e)
		events = append(events, e)
		m.open[address{from, e.Handle}] = true
		want = append(want, m.ref.accept(from, senderEpoch, e)...)
	}
	m.boxes.Accept(m.now, from, senderEpoch, refsTo(events), &m.out)
	m.expect("Accept", want)
}

// refsTo names events: those that can be bytes are.
func refsTo(events []*event.Event) []event.Ref {
	refs := event.RefsTo(events...)
	for i, ev := range events {
		part := *ev
		part.ID.Batch = int32(ev.Handle.Index()) // those outside of a batch can be bytes, too
		if (ev.ID.Batch < 0 || ev.ID == part.ID) && event.Together(&part, &part) {
			e := event.PartOf(&part, 1)
			e.Batched = ev.ID.Batch >= 0
			e.AddPartOf(ev)
			refs[i] = event.Ref{Entry: e}
		}
	}
	return refs
}

func (m *model) newEvent() *event.Event {
	if len(m.known) > 0 && m.chance(40, "again") {
		again := *m.known[max(0, len(m.known)-1-rapid.IntRange(0, 12).Draw(m.T, "back"))]
		if m.chance(60, "redelivered") {
			m.nextHandle++
			again.Handle = m.nextHandle
		}
		again.Attempts = rapid.Uint32Range(0, 2).Draw(m.T, "attempts")
		if m.chance(10, "other key") { // as a node with other settings takes it from the event
			again.Key = pick(m, m.keys, "key again")
			again.Partition = ring.PartitionOf(string(again.Key))
		}
		if slices.ContainsFunc(m.known, func(e *event.Event) bool { return e.ID == again.ID && e.Key != again.Key }) {
			again.Attempts = 0 // it replaces none of another key
		}
		return &again
	}
	m.nextHandle++
	key := pick(m, m.keys, "key")
	if m.chance(40, "hot") {
		key = m.keys[0]
	}
	return &event.Event{
		Handle: m.nextHandle, ID: m.newID(),
		Key: key, Partition: ring.PartitionOf(string(key)),
		Payload: make([]byte, rapid.IntRange(0, 300).Draw(m.T, "size")),
	}
}

// newID returns a new id: without a batch, in a batch near or far from other indexes, or
// different from another id only in its topic partition.
func (m *model) newID() event.MessageID {
	m.nextEntry++
	n := m.nextEntry
	switch rapid.IntRange(0, 3).Draw(m.T, "id") {
	case 0:
		return event.MessageID{Ledger: 7, Entry: n, Batch: -1, TopicPartition: -1}
	case 1:
		if len(m.known) > 0 {
			id := m.known[len(m.known)-1].ID
			id.TopicPartition = int32(n)
			return id
		}
	}
	return event.MessageID{Ledger: 8, Entry: n / 16, Batch: int32(n%16) * 17, TopicPartition: -1}
}

// takeOver brings ids of earlier owners: of events that are here, that were, or that
// never came.
func (m *model) takeOver() {
	for _, c := range m.ref.calls {
		if !c.event.Call.Once() && !c.isReservation() && m.chance(20, "a call") { // the id of any other is in no window
			d := event.Finished{Partition: c.event.Partition, ID: c.event.ID, At: m.now}
			if c.running == 0 {
				m.calls["handed over"]++
			}
			want := m.ref.takeOver(d)
			m.boxes.LearnDone(m.now, []event.Finished{d}, &m.out)
			m.expect("LearnDone", want)
			return
		}
	}
	done := []event.Finished{{Partition: pick(m, m.partitions, "partition"), ID: m.newID(), At: m.now}}
	for range rapid.IntRange(0, 3).Draw(m.T, "ids") {
		if len(m.known) > 0 {
			e := m.known[max(0, len(m.known)-1-rapid.IntRange(0, 12).Draw(m.T, "back"))]
			done = append(done, event.Finished{Partition: e.Partition, ID: e.ID, At: m.now})
		}
	}
	var want []addressed
	for _, d := range done {
		want = append(want, m.ref.takeOver(d)...)
		want = append(want, m.ref.leaveParked()...) // none, but a further letter may be the first event now
	}
	m.boxes.LearnDone(m.now, done, &m.out)
	m.expect("LearnDone", want)
}

// take lets a worker take, under a lease that is sometimes over.
func (m *model) take() {
	workers := append([]event.WorkerID{99_999, event.Keeper}, m.ref.workers...)
	m.takeFor(pick(m, workers, "worker"), rapid.IntRange(0, 3).Draw(m.T, "limit"), !m.chance(10, "lapsed"))
}

func (m *model) takeFor(w event.WorkerID, limit int, leased bool) {
	leased = leased && m.ref.leased
	lease := ownership.Lease{Until: m.now.Add(100), Guard: 99}
	if !leased {
		lease.Guard = 100
	}
	got := m.boxes.Take(m.now, lease, w, limit, nil)
	if len(got) > limit || len(got) > 0 && (!leased || w != event.Keeper && !slices.Contains(m.ref.workers, w)) {
		m.Fatalf("Take(worker %d of %v, limit %d, leased %v) = %d deliveries", w, m.ref.workers, limit, leased, len(got))
	}
	m.mayTake[w] = m.mayTake[w] && (len(got) == limit || !leased)
	for _, d := range got {
		m.started(w, d)
		if w == event.Keeper && m.chance(60, "grant at once") {
			m.grantOne(&d)
		}
	}
}

// started checks that a delivery is the one that the reference would allow.
func (m *model) started(w event.WorkerID, d event.Delivery) {
	key := d.Ref.Key()
	if d.Call() != nil {
		m.startedCall(w, d)
		return
	}
	head := m.ref.head(key)
	switch {
	case m.ref.nextCall(m.now, key) != nil && !m.passed:
		m.Fatalf("delivery of event %v before call %v", d.MessageID(), m.ref.nextCall(m.now, key).event.ID)
	case head == nil:
		m.Fatalf("delivery %d of a key that has none to run", d.ID)
	case head.event.ID != d.MessageID():
		m.Fatalf("delivery of event %v, want %v, which is first in its key", d.MessageID(), head.event.ID)
	case head.heldUntil.After(m.now):
		m.Fatalf("delivery of event %v at %d, held until %d", d.MessageID(), m.now, head.heldUntil)
	case !m.ref.lets(key):
		m.Fatalf("delivery of key %q with gate %+v, on hold: %v", key, m.ref.gates[d.Partition], m.ref.onHold[key])
	case d.Key != ring.HashOf(string(key)): // by it the auditor compares handlings
		m.Fatalf("delivery %d has the hash of another key", d.ID)
	case d.Partition != head.event.Partition || d.Token != int64(m.ref.gates[d.Partition].Token):
		m.Fatalf("delivery %+v, want partition %d and token %d", d, head.event.Partition, m.ref.gates[d.Partition].Token)
	case d.Turn == 0 || !m.fences[key].Before(d.Fence()):
		m.Fatalf("delivery of key %q with fence %v after %v", key, d.Fence(), m.fences[key])
	case d.Attempt != head.event.Attempts+1 || d.Event().LastError != head.event.LastError:
		m.Fatalf("attempt %d after %q, want %d after %q", d.Attempt, d.Event().LastError, head.event.Attempts+1, head.event.LastError)
	}
	m.checkGeneration(&d)
	if before, ok := m.stuckTo[key]; ok && before != w {
		m.Fatalf("key moved from worker %d to %d though none came or went", before, w)
	}
	if m.ref.parks[key].State == event.ParkEnds {
		if !head.isLetter() {
			m.Fatalf("delivery of event %v, which is no letter, while the letters of key %q come back", d.MessageID(), key)
		}
		m.letters++
	}
	m.stuckTo[key], m.fences[key] = w, d.Fence()
	if len(m.ref.waitingCalls(key)) > 0 && m.ref.inTurn[key] >= 8 {
		m.calls["event in turn"]++
	}
	head.running, head.heldUntil = d.ID, 0
	m.ref.inTurn[key] = 0
	m.deliveries = append(m.deliveries, d)
}

// finish ends some deliveries in any way, and some that are over or never were.
func (m *model) finish() {
	var results []event.Result
	for range rapid.IntRange(1, 3).Draw(m.T, "results") {
		switch {
		case len(m.over) > 0 && m.chance(5, "twice"):
			results = append(results, event.Result{Delivery: pick(m, m.over, "over"), Kind: event.ResultDone})
		case m.chance(3, "unknown"):
			results = append(results, event.Result{Delivery: 1 << 40, Kind: event.ResultDone})
		case len(m.deliveries) > 0:
			i := rapid.IntRange(0, len(m.deliveries)-1).Draw(m.T, "delivery")
			r := event.Result{Delivery: m.deliveries[i].ID, Reason: "no"}
			r.Kind = pick(m, []event.ResultKind{
				event.ResultDone, event.ResultDone, event.ResultRetry, event.ResultRetry, event.ResultReject,
				event.ResultNotStarted, event.ResultCancelled, event.ResultLost, event.ResultCrashed, event.ResultPutOff,
			}, "kind")
			r.Behind = r.Kind == event.ResultPutOff && m.chance(50, "behind")
			r.After = pick(m, []time.Duration{0, 0, 2 * time.Second, time.Minute}, "after")
			if m.deliveries[i].Call() != nil {
				r = m.callResult(r)
			}
			m.deliveries = slices.Delete(m.deliveries, i, i+1)
			m.over = append(m.over, r.Delivery)
			results = append(results, r)
		}
	}
	m.finishAll(results)
}

func (m *model) finishAll(results []event.Result) {
	var want []addressed
	var wantEnded []ring.Partition
	wantIgnored := 0
	for _, r := range results {
		if c := m.ref.runningCall(r.Delivery); c != nil {
			if len(c.to) > 0 || r.Kind == event.ResultDone {
				delete(m.open, c.left) // which gets no verdict
			}
			said, ended := m.ref.finishCall(m.now, c, r)
			m.noteCalls(said)
			want = append(append(want, said...), m.ref.leaveParked()...)
			if ended {
				wantEnded = append(wantEnded, c.event.Partition)
			}
			continue
		}
		i := slices.IndexFunc(m.ref.events, func(e *refEvent) bool { return e.running == r.Delivery })
		if i < 0 {
			wantIgnored++
			continue
		}
		p := m.ref.events[i].event.Partition
		said, ended := m.ref.finish(m.now, r)
		want = append(append(want, said...), m.ref.leaveParked()...)
		if ended {
			wantEnded = append(wantEnded, p)
		}
	}
	m.boxes.Finish(m.now, results, &m.out)
	if !slices.Equal(m.out.Ended, wantEnded) {
		m.Fatalf("ended on %v, want %v", m.out.Ended, wantEnded)
	}
	if m.out.Ignored != wantIgnored {
		m.Fatalf("%d results ignored, want %d", m.out.Ignored, wantIgnored)
	}
	m.expect("Finish", want)
}

// finishDone ends all deliveries as done.
func (m *model) finishDone() {
	var results []event.Result
	for _, d := range m.deliveries {
		results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
		m.over = append(m.over, d.ID)
	}
	m.deliveries = nil
	m.finishAll(results)
}

// gate moves a gate. Like rule 5, it opens none while something runs.
func (m *model) gate() {
	p := pick(m, m.partitions, "partition")
	gate := pick(m, []ownership.Gate{
		ownership.Open, ownership.Open, ownership.Open, ownership.Waiting, ownership.Draining, ownership.Closed,
	}, "gate")
	if gate == ownership.Open && m.ref.runningOn(p) > 0 {
		gate = ownership.Waiting
	}
	if gate == ownership.Open && rapid.Bool().Draw(m.T, "withhold") {
		key := pick(m, m.keys, "withheld") // of any partition: a key that is not here does not matter
		m.setGate(p, gate, ring.HashOf(string(key)))
		return
	}
	m.setGate(p, gate)
}

// release lets the keys go that an open gate withholds.
func (m *model) release() {
	p := pick(m, m.partitions, "partition")
	c := m.ref.gates[p]
	c.Withheld = nil
	m.changeGate(c)
}

// hold puts some keys on hold, or releases them, whether they are already or not.
func (m *model) hold() {
	var keys []event.Key
	for range rapid.IntRange(1, 3).Draw(m.T, "keys") {
		keys = append(keys, pick(m, m.keys, "key"))
	}
	held := m.chance(30, "hold")
	for _, key := range keys {
		m.ref.onHold[key] = held
	}
	if held {
		m.boxes.Hold(m.now, keys, &m.out)
	} else {
		m.boxes.Release(m.now, keys, &m.out)
	}
	m.expect("Hold or Release", m.ref.leaveParked())
}

// park parks some keys, lets their letters come back, or ends that.
func (m *model) park() {
	var parks []event.Park
	for range rapid.IntRange(1, 3).Draw(m.T, "parks") {
		m.nextEntry++
		p := event.Park{Key: pick(m, m.keys, "key"), Act: [16]byte{byte(m.nextEntry)}}
		p.State = pick(m, []event.ParkState{event.NotParked, event.NotParked, event.ParkOn, event.ParkEnds}, "state")
		if slices.ContainsFunc(parks, func(other event.Park) bool { return other.Key == p.Key }) {
			continue
		}
		parks = append(parks, p)
	}
	want := m.ref.park(parks)
	m.boxes.Park(m.now, parks, &m.out)
	m.expect("Park", want)
}

// setLease lets the lease run out, or renews it.
func (m *model) setLease(leased bool) {
	lease := ownership.Lease{}
	if leased {
		lease.Until = clock.Forever
	}
	m.ref.leased = leased
	want := append(m.ref.leaveSkipped(), m.ref.leaveParked()...)
	m.boxes.SetLease(m.now, lease, &m.out)
	m.expect("SetLease", want)
}

// skip skips some events that are here, were or never come, or ends skips.
func (m *model) skip() {
	var skips []event.Skip
	for range rapid.IntRange(1, 3).Draw(m.T, "skips") {
		s := event.Skip{Key: pick(m, m.keys, "key"), Event: m.newID(), Reason: fmt.Sprintf("skipped by act %d", m.nextEntry)}
		if len(m.known) > 0 && m.chance(80, "known") {
			e := m.known[max(0, len(m.known)-1-rapid.IntRange(0, 12).Draw(m.T, "back"))]
			s.Event = e.ID
			if m.chance(90, "its key") {
				s.Key = e.Key
			}
		}
		if len(m.deliveries) > 0 && m.chance(60, "runs") {
			d := pick(m, m.deliveries, "running")
			e := d.Event() // perhaps a call, which cannot be skipped
			s.Key, s.Event = e.Key, e.ID
		}
		s.Act[0] = byte(m.nextEntry)
		skips = append(skips, s)
	}
	ends := m.chance(30, "ends")
	want := m.ref.skip(skips, ends)
	if ends {
		m.boxes.Unskip(skips)
	} else {
		m.boxes.Skip(m.now, skips, &m.out)
	}
	m.expect("Skip or Unskip", want)
}

func (m *model) setGate(p ring.Partition, gate ownership.Gate, withheld ...ring.KeyHash) {
	m.tenure++
	m.changeGate(ownership.GateChange{Partition: p, Gate: gate, Token: m.tenure, Withheld: withheld})
}

func (m *model) changeGate(c ownership.GateChange) {
	epoch := event.Position{Ledger: 1, Entry: m.ref.epoch.Entry + 1}
	if c.Gate == ownership.Open && m.ref.gates[c.Partition].Gate != ownership.Open {
		m.changes[c.Partition]++
	}
	want := m.ref.setGate(c, epoch)
	m.boxes.SetGates(m.now, []ownership.GateChange{c}, epoch, &m.out)
	m.expect("SetGates", want)
}

// takeHandover hands over late results and some other ids of moved partitions, in one or two
// calls.
func (m *model) takeHandover() {
	idsMax := rapid.IntRange(0, 5).Draw(m.T, "ids")
	m.boxes.RestartHandover(m.now)
	everybody := func(ring.Partition) bool { return true }
	got, more := m.boxes.TakeHandover(0, everybody, nil)
	for left := idsMax; more && left > 0; {
		before := len(got)
		got, more = m.boxes.TakeHandover(left, everybody, got)
		left -= len(got) - before
	}
	if want := m.ref.leaving(m.now, idsMax); !slices.Equal(got, want) {
		m.Fatalf("handed over %v, want %v", got, want)
	}
}

// worker lets one come or go.
func (m *model) worker() {
	clear(m.stuckTo)
	m.workersChanged++
	if i := len(m.ref.workers); i == 0 || i < 3 && m.chance(50, "up") {
		m.nextWorker++
		m.ref.workers = append(m.ref.workers, m.nextWorker)
		m.boxes.WorkerUp(m.now, m.nextWorker, &m.out)
	} else {
		i := rapid.IntRange(0, i-1).Draw(m.T, "gone")
		m.boxes.WorkerGone(m.now, m.ref.workers[i], &m.out)
		m.ref.workers = slices.Delete(m.ref.workers, i, i+1)
	}
	m.expect("WorkerUp or WorkerGone", nil)
}

func (m *model) senderGone() {
	if len(m.senders) == 1 {
		return
	}
	i := rapid.IntRange(1, len(m.senders)-1).Draw(m.T, "sender")
	m.boxes.SenderGone(m.senders[i])
	m.ref.gone[m.senders[i]] = true
	m.senders = slices.Delete(m.senders, i, i+1)
}

func (m *model) tick() {
	m.now = m.now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(m.T, "time")))
	m.tickNow()
}

func (m *model) tickNow() {
	m.ref.window = slices.DeleteFunc(m.ref.window, func(d refDone) bool { return !d.at.Add(modelConfig.WindowAgeMax).After(m.now) })
	want := m.ref.expireCalls(m.now)
	m.noteCalls(want)
	m.boxes.Tick(m.now, &m.out)
	m.passed = false
	m.expect("Tick", want)
	if next := m.boxes.Next(); !next.After(m.now) {
		m.Fatalf("after Tick at %d the next one is due at %d", m.now, next)
	}
}

// takeAll shows that nothing that may run is left behind.
func (m *model) takeAll() {
	m.setLease(true)
	m.tickNow()
	m.takeFor(event.Keeper, 100, true)
	for _, w := range m.ref.workers {
		m.takeFor(w, 100, true)
	}
	for _, key := range m.keys {
		if c := m.ref.nextCall(m.now, key); c != nil && c.isReservation() && m.ref.lets(key) {
			m.Fatalf("reservation %v may run, and the keeper does not get it: %+v", c.event.ID, m.boxes.Inspect(key))
		}
	}
	if len(m.ref.workers) == 0 {
		return
	}
	for _, key := range m.keys {
		head := m.ref.head(key)
		if head != nil && !head.heldUntil.After(m.now) && m.ref.lets(key) {
			m.Fatalf("event %v may run, and no worker gets it: %+v", head.event.ID, m.boxes.Inspect(key))
		}
		if c := m.ref.nextCall(m.now, key); c != nil && m.ref.lets(key) {
			m.Fatalf("call %v may run, and no worker gets it: %+v", c.event.ID, m.boxes.Inspect(key))
		}
	}
}

// expect compares the verdicts of a call with the reference, in any order.
func (m *model) expect(call string, want []addressed) {
	count := map[addressed]int{}
	for _, v := range want {
		count[v]++
	}
	said := said(&m.out)
	for i := range said {
		said[i].verdict = plain(said[i].verdict)
	}
	m.checkParked(said)
	for _, v := range said {
		count[v]--
		to := address{v.To, v.Handle}
		if !m.open[to] {
			m.Fatalf("%s: verdict %+v that no sender waits for", call, v)
		}
		if v.Kind != event.Attempted && v.Kind != event.Granted {
			delete(m.open, to)
		}
	}
	for v, n := range count {
		if n != 0 {
			m.Fatalf("%s: %+v is missing %d times\n got %+v\nwant %+v", call, v, n, said, want)
		}
	}
	for _, w := range m.out.Wake {
		m.mayTake[w] = true
	}
	if got, want := asSet(m.out.TakeBack), asSet(m.ref.takeBack); !slices.Equal(got, want) {
		m.Fatalf("%s: deliveries %v are to be taken back, want %v", call, m.out.TakeBack, m.ref.takeBack)
	}
	ends := map[event.Skipped]int{}
	for _, e := range m.ref.ended {
		ends[e]++
	}
	for _, e := range m.out.Skipped {
		ends[e]--
	}
	for e, n := range ends {
		if n != 0 {
			m.Fatalf("%s: the end %+v of a skip is missing %d times", call, e, n)
		}
	}
	m.checkTelling(call)
	m.ref.takeBack, m.ref.ended = nil, nil
	m.out.Reset()
}

// checkParked checks that events leave for the parking topic in the order of their marks, behind all deliveries of their keys, and
// replaces the marks in the verdicts by what the reference says.
func (m *model) checkParked(said []addressed) {
	for _, p := range m.ref.parked {
		before := m.fences[p.key]
		for i, v := range said {
			if v.Kind != event.Parked || !slices.Contains(p.to, address{v.To, v.Handle}) {
				continue
			}
			text, lastError := event.CutMark(v.Reason)
			mark, err := event.ParseMark(text)
			if err != nil || mark.Act != p.act || mark.Fence.Token != int64(p.token) || !before.Before(mark.Fence) {
				m.Fatalf("an event of key %q is parked with the mark %q (%v), want act %v and a fence under token %d after %v", p.key, v.Reason, err, p.act, p.token, before)
			}
			m.fences[p.key] = mark.Fence // senders of one event have one mark
			said[i].Reason = fmt.Sprint(p.act) + lastError
		}
	}
	m.ref.parked = nil
}

// check holds after every step.
func (m *model) check() {
	want := Stats{
		Counters: m.boxes.counters,
		Events:   len(m.ref.events) + len(m.ref.calls), Visits: len(m.ref.calls), Running: len(m.deliveries), Bytes: m.ref.bytes(), WindowIDs: m.ref.windowIDs(),
		VisitsRun: m.ref.countCalls(func(c *refCall) bool { return c.running != 0 }),
		Reserves:  m.ref.countCalls((*refCall).isReservation),
		Reserved:  m.ref.countCalls(func(c *refCall) bool { return c.granted != event.Fence{} }),
		Oldest:    clock.Forever,
	}
	want.Crowded = m.ref.crowded
	for _, key := range m.keys {
		m.ref.rest(key)
		s := m.boxes.Inspect(key)
		m.checkKey(key, s)
		m.checkShown(key, s)
		switch s.Wait {
		case WaitSlot:
			want.Ready++
		case WaitRetry:
			want.Held++
		case WaitHold:
			want.OnHold++
			m.held++
		case WaitPark:
			want.OnPark++
			m.onPark++
		case WaitNothing, WaitHandler, WaitGate, WaitWorker:
		}
		if s.Wait != WaitNothing || s.Calls > 0 { // of calls whose time is up, before Tick
			want.Keys++
		}
		if busy := m.boxes.Busy(ring.PartitionOf(string(key))); slices.Contains(busy, ring.HashOf(string(key))) != (m.ref.runningOf(key) > 0) {
			m.Fatalf("busy are %v, and %d deliveries of key %q run", busy, m.ref.runningOf(key), key)
		}
		if m.ref.runningOf(key) > 1 {
			m.Fatalf("two deliveries of one key run")
		}
	}
	m.checkReserved()
	got := m.boxes.Stats()
	if (got.Oldest == clock.Forever) != (got.Events == 0) || got.Events > 0 && got.Oldest.After(m.now) {
		m.Fatalf("oldest of %d events came at %d", got.Events, got.Oldest)
	}
	got.Oldest = clock.Forever
	if got != want {
		m.Fatalf("stats %+v\nwant  %+v", got, want)
	}
	for _, p := range m.partitions {
		if got, want := m.boxes.Running(p), m.ref.runningOn(p); got != want {
			m.Fatalf("Running(%d) = %d, want %d", p, got, want)
		}
	}
}

// checkReserved: a sender can name its reservations that were granted, and nothing else.
func (m *model) checkReserved() {
	for _, c := range m.ref.calls {
		want := c.running
		if c.granted == (event.Fence{}) {
			want = 0
		}
		for _, to := range c.to {
			if got, _ := m.boxes.Renewable(to.sender, to.handle); got != want {
				m.Fatalf("the reservation of sender %d at handle %d is delivery %d, want %d", to.sender, to.handle, got, want)
			}
		}
	}
}

// checkKey compares the reported wait of a key with the reference.
func (m *model) checkKey(key event.Key, s KeyState) {
	head := m.ref.head(key)
	p := ring.PartitionOf(string(key))
	calls := m.ref.waitingCalls(key)
	live := slices.ContainsFunc(calls, func(c *refCall) bool { return c.event.Call.Deadline.After(m.now) })
	waits := head != nil || len(calls) > 0 && m.ref.runningOf(key) == 0
	var ok bool
	switch s.Wait {
	case WaitNothing:
		// The keeper's key, or a worker's, that has no visit any more whose time is not up, waits for Tick.
		ended := slices.ContainsFunc(calls, func(c *refCall) bool { return !c.event.Call.Deadline.After(m.now) })
		ok = m.ref.runningOf(key) == 0 && (ended || m.ref.depth(key) == 0 && !live)
	case WaitHandler:
		ok = m.ref.runningOf(key) == 1
	case WaitGate:
		ok = waits && m.ref.ours(p) && !m.ref.gateLets(key)
	case WaitHold:
		ok = waits && m.ref.gateLets(key) && m.ref.onHold[key]
	case WaitPark:
		ok = head != nil && m.ref.gateLets(key) && !m.ref.onHold[key] && m.ref.parkStops(key)
	case WaitRetry:
		ok = head != nil && !live && m.ref.lets(key) && head.heldUntil == s.HeldUntil && m.boxes.Next() <= s.HeldUntil
	case WaitWorker:
		ok = waits && m.ref.lets(key) && len(m.ref.workers) == 0
	case WaitSlot:
		ok = waits && m.ref.lets(key) && m.mayTake[s.Worker]
	}
	if !ok || s.Calls != len(calls) || s.Depth != m.ref.depth(key) || s.Gate != m.ref.gates[p].Gate {
		m.Fatalf("key waits for %v with %d events behind gate %v (may take: %v); the reference has %d waiting, %d running, gate %v, head %+v",
			s.Wait, s.Depth, s.Gate, m.mayTake, m.ref.depth(key), m.ref.runningOf(key), m.ref.gates[p].Gate, head)
	}
}

// comeToRest lets everything run to its end, and nothing may be left.
func (m *model) comeToRest() {
	for len(m.ref.workers) == 0 {
		m.worker()
	}
	m.boxes.Release(m.now, m.keys, &m.out)
	clear(m.ref.onHold)
	m.expect("Release", m.ref.leaveParked())
	var parks []event.Park
	for _, key := range m.keys {
		parks = append(parks, event.Park{Key: key})
	}
	want := m.ref.park(parks)
	m.boxes.Park(m.now, parks, &m.out)
	m.expect("Park", want)
	for range 100 {
		m.finishDone()
		for _, p := range m.partitions {
			m.setGate(p, ownership.Open)
		}
		m.now = m.now.Add(time.Hour)
		m.takeAll()
		m.check()
		if len(m.deliveries) == 0 {
			break
		}
	}
	if n := len(m.boxes.skips.running); n != 0 {
		m.Fatalf("%d deliveries that have ended are still to be skipped", n)
	}
	s := m.boxes.Stats()
	if s.Events+s.Running+s.Keys+s.Ready+s.Held+s.OnHold+s.Bytes+s.WindowIDs != 0 || m.boxes.ages.oldest != nil || m.boxes.ages.youngest != nil || m.boxes.spans.table.len()+m.boxes.actors.len() != 0 {
		m.Fatalf("something is left: %+v, %+v, %d ids, %d keys", s, m.boxes.ages, m.boxes.spans.table.len(), m.boxes.actors.len())
	}
	if v := &m.boxes.visits; len(v.state)+len(v.of)+len(v.by)+v.granted+len(v.telling) != 0 {
		m.Fatalf("calls are left: %+v", v)
	}
	for p := range m.boxes.parts {
		if m.boxes.parts[p].actors != nil {
			m.Fatalf("an actor is left on partition %d", p)
		}
	}
	for to := range m.open {
		if !m.ref.gone[to.sender] {
			m.Fatalf("handle %d of sender %d never got a verdict", to.handle, to.sender)
		}
	}
}

// TestBoxesMatchTheReference plays random histories on Boxes and on a reference.
func TestBoxesMatchTheReference(t *testing.T) {
	var total Counters
	var held, onPark, letters uint64
	calls := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		actions := []func(){
			func() {}, // first, for a failing history to shrink to
			m.accept, m.accept, m.accept, m.call, m.call, m.grant, m.cancel, m.cancel, m.serve, m.serve, m.rush, m.pass, m.take, m.take, m.take, m.finish, m.finish, m.finish,
			m.tick, m.gate, m.release, func() { m.setLease(m.chance(60, "leased")) }, m.hold, m.skip, m.skip, m.park, m.park, m.takeHandover, m.takeOver, m.worker, m.senderGone, m.takeAll,
		}
		m.worker()
		m.setLease(true)
		for _, p := range m.partitions {
			m.setGate(p, ownership.Open)
		}
		for range 500 {
			pick(m, actions, "action")()
			m.check()
		}
		m.comeToRest()
		total = total.add(m.boxes.counters)
		held += m.held
		onPark += m.onPark
		letters += m.letters
		for what, n := range m.calls {
			calls[what] += n
		}
	})
	for _, what := range []string{
		"replied", "failed", "unknown", "done before", "timeout", "overloaded", "no_handler", "cycle", "parked", "reply again", "joined", "joined one that began",
		"cancelled while it waits", "cancelled while it runs", "unknown, after a cut", "handed over", "not owner", "event in turn", "before a retry",
		"granted", "resumed", "resumed before the grant", "asked from elsewhere", "lost",
	} {
		if calls[what] < 1 { // the rarest happen about ten times
			t.Errorf("%d calls %s: these histories proved little (%v)", calls[what], what, calls)
		}
	}
	for what, n := range map[string]uint64{
		"accepted": total.Accepted, "joined": total.Joined, "duplicates": total.Duplicates,
		"overloaded": total.Overloaded, "not owner": total.NotOwner, "not yet": total.NotYet, "moved": total.Moved,
		"done": total.Done, "failed": total.Failed, "retried": total.Retried, "rejected": total.Rejected,
		"returned": total.Returned, "ignored": total.Ignored, "seen on hold": held,
		"parked": total.Parked, "seen on park": onPark, "letters while a key is unparked": letters,
		"skipped": total.Skipped, "skipped when done": total.SkippedDone,
	} {
		if n < 10 { // the rarest happens 57 times on average, with a standard deviation of 8
			t.Errorf("%d times %s: these histories proved little", n, what)
		}
	}
}
