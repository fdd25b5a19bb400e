package forward

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// fixedRoute is a Route that names an owner for each partition modulo its length.
type fixedRoute struct {
	owners []Peer
	none   map[int]bool // these have no owner
	epoch  event.Position
}

func (r fixedRoute) Locate(p ring.Partition) (Peer, bool) {
	i := int(p) % len(r.owners)
	return r.owners[i], !r.none[i]
}

func (r fixedRoute) Owners() iter.Seq[Peer] {
	var owners []Peer
	for i, owner := range r.owners {
		if !r.none[i] && !slices.Contains(owners, owner) {
			owners = append(owners, owner)
		}
	}
	return slices.Values(owners)
}

func (r fixedRoute) Epoch() event.Position { return r.epoch }

func peerNumber(n int) Peer { return Peer{0: 'p', 15: byte(n)} }

// model drives a Table with random calls, and independently tracks the held events and the peers
// that have them.
type model struct {
	table    *Table
	now      clock.Instant
	self     Peer
	peers    []Peer
	up       map[Peer]bool
	relayed  map[event.Handle]bool
	open     map[event.Handle]bool          // held, according to the calls and their results
	with     map[Peer]map[event.Handle]bool // sent on the live stream and unanswered, according to the results of Take
	ever     map[event.Handle]map[Peer]bool
	settled  map[event.Handle]int
	handles  []event.Handle // all that were given, in their order
	keys     map[event.Handle]event.Key
	waited   map[event.Handle]bool // before the last call, or held by it
	handed   []event.Handle        // sent by the last call, in their order
	epoch    int64
	out      Moves
	sent     int
	viaThird int
	refusals int
}

func newModel() *model {
	m := &model{
		table: NewTable(modelConfig()), now: 1, self: peerNumber(0), up: map[Peer]bool{Local: true},
		relayed: map[event.Handle]bool{}, open: map[event.Handle]bool{}, with: map[Peer]map[event.Handle]bool{Local: {}},
		ever: map[event.Handle]map[Peer]bool{}, settled: map[event.Handle]int{},
		keys: map[event.Handle]event.Key{}, waited: map[event.Handle]bool{},
	}
	for n := range 4 {
		m.peers = append(m.peers, peerNumber(n))
		m.with[peerNumber(n)] = map[event.Handle]bool{}
	}
	return m
}

func modelConfig() Config {
	c := DefaultConfig()
	c.FrameEventsMax = 8
	c.FrameBytesMax = 2000
	c.FullBurstMin = 2
	c.UnreachableHoldMax = 500 * time.Millisecond
	return c
}

// perform performs the table's effects, and checks that each is allowed.
func (m *model) perform(t fataler) {
	for _, ev := range m.out.Local {
		m.give(t, Local, ev.Handle)
	}
	for _, peer := range m.out.Wake {
		if !m.up[peer] {
			t.Fatalf("woke %s, which has no stream", peer)
		}
	}
	for i, v := range m.out.Verdicts {
		h := m.out.Settled[i].Handle
		if v.Handle != h || !v.Kind.Final() && !m.relayed[h] {
			t.Fatalf("event %d settled by %s on %d", h, v.Kind, v.Handle)
		}
		if m.settled[h]++; m.settled[h] > 1 {
			t.Fatalf("event %d settled twice", h)
		}
		delete(m.open, h)
		for _, with := range m.with {
			delete(with, h)
		}
	}
	m.out.Reset()
	m.check(t)
	m.checkOrder(t)
}

// checkOrder fails if the last call sent an event while an earlier one of its key waited. Relayed events
// are of other consumer nodes, so that no order binds them.
func (m *model) checkOrder(t fataler) {
	for i, h := range m.handed {
		if m.relayed[h] {
			continue
		}
		for _, earlier := range m.handles[:slices.Index(m.handles, h)] {
			if m.keys[earlier] != m.keys[h] || !m.open[earlier] || m.relayed[earlier] {
				continue
			}
			place, _ := m.table.Has(earlier)
			if place != Sent && m.waited[earlier] || slices.Index(m.handed, earlier) > i {
				t.Fatalf("event %d was sent before event %d of its key, which is %s", h, earlier, place)
			}
		}
	}
	m.handed = m.handed[:0]
	clear(m.waited)
	for h := range m.open {
		if place, _ := m.table.Has(h); place != Sent {
			m.waited[h] = true
		}
	}
}

func (m *model) give(t fataler, peer Peer, h event.Handle) {
	m.sent++
	m.handed = append(m.handed, h)
	if m.with[peer][h] {
		t.Fatalf("event %d is given to %s twice", h, peer)
	}
	for other, with := range m.with {
		if with[h] && m.up[other] {
			t.Fatalf("event %d is given to %s while %s has it", h, peer, other)
		}
	}
	m.with[peer][h] = true
	if m.ever[h] == nil {
		m.ever[h] = map[Peer]bool{}
	}
	m.ever[h][peer] = true
}

// check compares the table's sums with the model.
func (m *model) check(t fataler) {
	s := m.table.Stats()
	if s.Events != len(m.open) || m.table.Len() != len(m.open) {
		t.Fatalf("table holds %d, want %d", s.Events, len(m.open))
	}
	var in [places]int
	for h := range m.open {
		place, ok := m.table.Has(h)
		if !ok {
			t.Fatalf("event %d is not held", h)
		}
		in[place]++
		if owner := m.table.owners.of(m.table.Newest(h).Partition); m.relayed[h] && place != Sent && !m.up[owner.peer] {
			t.Fatalf("relayed event %d waits for %s", h, owner.peer)
		}
	}
	if in != s.In {
		t.Fatalf("places %v, counted %v", s.In, in)
	}
	with := 0
	for _, w := range m.with {
		with += len(w)
	}
	if in[Sent] != with {
		t.Fatalf("%d events are sent, %d were given and not answered", in[Sent], with)
	}
	if (s.Events == 0) != (s.Bytes == 0) || (s.Events == 0) != (s.Oldest == 0) {
		t.Fatalf("stats = %+v", s)
	}
}

// nextHandle returns the handle of the source's next event. There are few slots, so many events find
// theirs taken, as after a change of sources.
func (m *model) nextHandle() event.Handle {
	const slots = 16
	n := len(m.handles)
	return event.NewHandle(uint64(1+n/slots), int32(n%slots))
}

func (m *model) event(t *rapid.T, handle event.Handle) *event.Event {
	m.handles = append(m.handles, handle)
	key := rapid.IntRange(0, 9).Draw(t, "key")
	ev := &event.Event{
		Handle: handle, Key: event.Key(fmt.Sprint("key", key)), Partition: ring.Partition(key),
		Payload: make([]byte, rapid.IntRange(0, 1500).Draw(t, "payload")), Topic: "topic",
	}
	m.open[ev.Handle], m.waited[ev.Handle], m.keys[ev.Handle] = true, true, ev.Key
	return ev
}

// anyHandle is a handle that was given, is about to be given, or is none.
func (m *model) anyHandle(t *rapid.T) event.Handle {
	return rapid.SampledFrom(append([]event.Handle{0, m.nextHandle()}, m.handles...)).Draw(t, "handle")
}

type fataler interface {
	Fatalf(format string, args ...any)
	Helper()
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"hold": func(t *rapid.T) {
			var events []*event.Event
			for range rapid.IntRange(1, 8).Draw(t, "n") {
				events = append(events, m.event(t, m.nextHandle()))
			}
			m.table.Hold(m.now, events, &m.out)
		},
		"relayed": func(t *rapid.T) {
			ev := m.event(t, event.NewRelayedHandle(uint64(len(m.handles)+1)))
			m.relayed[ev.Handle] = true
			m.table.HoldRelayed(m.now, []*event.Event{ev}, &m.out)
		},
		"take": func(t *rapid.T) {
			peer := rapid.SampledFrom(m.peers).Draw(t, "peer")
			batch, relay := m.table.Take(m.now, peer, 8, 2000, nil)
			if len(batch) > 0 && !m.up[peer] {
				t.Fatalf("took %d events for %s, which is down", len(batch), peer)
			}
			if relay {
				m.viaThird += len(batch)
			}
			bytes := 0
			for _, ev := range batch {
				bytes += weightOf(ev)
				m.give(t, peer, ev.Handle)
				owner := m.table.owners.of(ev.Partition).peer
				if relay == m.up[owner] || relay == (owner == peer) {
					t.Fatalf("event %d goes to %s, relayed: %t; the route names %s, up: %t", ev.Handle, peer, relay, owner, m.up[owner])
				}
			}
			if len(batch) > 1 && bytes > 2000 {
				t.Fatalf("took %d bytes", bytes)
			}
		},
		"answer": func(t *rapid.T) {
			from := rapid.SampledFrom(append([]Peer{Local}, m.peers...)).Draw(t, "from")
			if m.up[from] {
				m.answer(t, from)
			}
		},
		"stranger": func(t *rapid.T) { // a verdict about anything, from anybody
			from := rapid.SampledFrom(m.peers).Draw(t, "from")
			v := m.verdict(t, m.anyHandle(t))
			v.Kind = event.Done
			before := m.settled[v.Handle]
			m.table.Settle(m.now, from, []event.Verdict{v}, &m.out)
			m.perform(t)
			if m.settled[v.Handle] > before && !m.ever[v.Handle][from] {
				t.Fatalf("event %d was settled by %s, which never had it", v.Handle, from)
			}
		},
		"up": func(t *rapid.T) {
			peer := rapid.SampledFrom(m.peers[1:]).Draw(t, "peer")
			m.up[peer] = true
			m.table.PeerUp(m.now, peer, &m.out)
		},
		"down": func(t *rapid.T) {
			peer := rapid.SampledFrom(m.peers[1:]).Draw(t, "peer")
			m.down(peer)
		},
		"route": func(t *rapid.T) {
			r := fixedRoute{none: map[int]bool{}}
			for i := range 5 {
				r.owners = append(r.owners, rapid.SampledFrom(m.peers).Draw(t, "owner"))
				r.none[i] = rapid.IntRange(0, 9).Draw(t, "none") == 0
			}
			m.epoch++
			r.epoch = event.Position{Ledger: m.epoch}
			m.table.SetRoute(m.now, m.self, r, &m.out)
		},
		"credit": func(t *rapid.T) {
			peer := rapid.SampledFrom(m.peers).Draw(t, "peer")
			m.table.Credit(m.now, peer, []event.Key{"key0", "key1"}, rapid.IntRange(0, 3).Draw(t, "events"), &m.out)
		},
		"time": func(t *rapid.T) {
			m.now = m.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			m.tick(t)
		},
		"drop": func(t *rapid.T) {
			h := m.anyHandle(t)
			m.table.Drop([]event.Handle{h})
			delete(m.open, h)
			for _, with := range m.with {
				delete(with, h)
			}
		},
	}
}

func (m *model) tick(t fataler) {
	m.table.Tick(m.now, &m.out)
	if next := m.table.Next(); !next.After(m.now) {
		t.Fatalf("Next is %v after a Tick at %v", next, m.now)
	}
}

func (m *model) down(peer Peer) {
	m.up[peer] = false
	m.table.PeerDown(m.now, peer, &m.out)
	clear(m.with[peer])
}

func (m *model) verdict(t *rapid.T, h event.Handle) event.Verdict {
	kinds := []event.VerdictKind{event.Done, event.Failed, event.Rejected, event.NotOwner, event.NotYet, event.Overloaded, event.Attempted}
	v := event.Verdict{Handle: h, Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
	if v.Kind != event.Done || rapid.Bool().Draw(t, "detail") {
		v.Detail = &event.Detail{
			Delay:    time.Duration(rapid.IntRange(0, 100).Draw(t, "delay")) * time.Millisecond,
			Attempts: 1,
			Reason:   "no luck",
			Epoch:    event.Position{Ledger: rapid.Int64Range(0, m.epoch+1).Draw(t, "epoch")},
		}
	}
	return v
}

// answer makes a peer send verdicts about some of its events, reports about an event before its end.
func (m *model) answer(t *rapid.T, from Peer) {
	var verdicts []event.Verdict
	for _, h := range m.handles {
		if !m.with[from][h] || rapid.Bool().Draw(t, "skip") {
			continue
		}
		v := m.verdict(t, h)
		verdicts = append(verdicts, v)
		for v.Kind == event.Attempted && rapid.Bool().Draw(t, "more") {
			v = m.verdict(t, h)
			verdicts = append(verdicts, v)
		}
		if v.Kind != event.Attempted {
			delete(m.with[from], h)
		}
		if v.Kind == event.Overloaded {
			m.refusals++
		}
	}
	m.table.Settle(m.now, from, verdicts, &m.out)
}

// settleAll lets everything work again and answers Done to all: after that, nothing
// may be left.
func (m *model) settleAll(t fataler) {
	m.epoch++
	m.table.SetRoute(m.now, m.self, fixedRoute{owners: m.peers, epoch: event.Position{Ledger: m.epoch}}, &m.out)
	m.perform(t)
	for round := 0; len(m.open) > 0; round++ {
		if round > 1000 {
			t.Fatalf("%d events are never settled: %+v", len(m.open), m.table.Stats())
		}
		for _, peer := range m.peers[1:] {
			m.up[peer] = true
			m.table.PeerUp(m.now, peer, &m.out)
			batch, _ := m.table.Take(m.now, peer, 8, 2000, nil)
			for _, ev := range batch {
				m.give(t, peer, ev.Handle)
			}
		}
		for _, peer := range append([]Peer{Local}, m.peers...) {
			m.table.Settle(m.now, peer, doneOf(slices.Collect(maps.Keys(m.with[peer]))...), &m.out)
			m.perform(t)
		}
		m.now = m.now.Add(20 * time.Millisecond)
		m.tick(t)
		m.perform(t)
	}
}

// Every held event is settled exactly once or dropped, whatever peers, routes and
// time do, and is never under way twice.
func TestTableModel(t *testing.T) {
	var sent, relayed, refusals int
	history := func(t *rapid.T) {
		m := newModel()
		actions := m.actions()
		names := slices.Sorted(maps.Keys(actions))
		for range rapid.IntRange(20, 200).Draw(t, "steps") { // longer than t.Repeat, which stops at about 30
			actions[rapid.SampledFrom(names).Draw(t, "action")](t)
			m.perform(t)
		}
		m.settleAll(t)
		sent, relayed, refusals = sent+m.sent, relayed+m.viaThird, refusals+m.refusals
	}
	for try := 0; try < 10 && (sent == 0 || relayed == 0 || refusals == 0) && !t.Failed(); try++ { // few histories relay anything
		rapid.Check(t, history)
	}
	if sent == 0 || relayed == 0 || refusals == 0 {
		t.Errorf("sent %d, relayed %d, refused %d: this run proved nothing", sent, relayed, refusals)
	}
}
