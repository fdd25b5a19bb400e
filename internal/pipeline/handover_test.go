package pipeline

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// teller is a node, self, with a record of its handovers.
type teller struct {
	*alone
	now  clock.Instant
	told map[forward.Peer][]event.Finished
}

type tellerHolder struct {
	holder
	t *teller
}

func (h tellerHolder) HandOver(to forward.Peer, done []event.Finished) {
	h.t.told[to] = append(h.t.told[to], done...)
}

var self, nextOwner, other = ownership.Incarnation{1}, ownership.Incarnation{2}, ownership.Incarnation{3}

func newTeller(tb testing.TB) *teller {
	t := &teller{now: clock.Instant(time.Hour), told: map[forward.Peer][]event.Finished{}}
	now := func() clock.Instant { return t.now }
	t.alone = new(alone)
	p := newPipeline(tb, Parts{Now: now}, Stages{
		Holder: tellerHolder{holder{t.alone}, t}, Peers: deaf{}, App: nobody{},
		Boxes: mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "self", now),
	})
	t.Pipeline = p
	p.SetSource(settler{t.alone})
	p.SetSelf(self)
	p.SetLease(ownership.Lease{Until: clock.Forever - 1})
	p.WorkerUp(1)
	t.move(1, self, self, nextOwner, other)
	t.setGates(ownership.Open)
	return t
}

type deaf struct{}

func (deaf) Answer(forward.StreamID, []event.Verdict) {}
func (deaf) Credit(forward.StreamID, *event.Key, int) {}
func (deaf) SetEpoch(event.Position)                  {}

// move publishes a table in which everything belongs to one owner.
func (t *teller) move(epoch int64, owner ownership.Incarnation, members ...ownership.Incarnation) {
	table := &ownership.Table{Cur: event.Position{Ledger: 1, Entry: epoch}}
	for _, inc := range members {
		table.Members = append(table.Members, ownership.Node{Inc: inc})
	}
	table.Owners = slices.Repeat([]uint16{uint16(slices.Index(members, owner))}, ring.Partitions)
	t.SetTable(table)
}

func (t *teller) setGates(gate ownership.Gate) {
	changes := make([]ownership.GateChange, ring.Partitions)
	for q := range changes {
		changes[q] = ownership.GateChange{Partition: ring.Partition(q), Gate: gate, Token: 1}
	}
	t.SetGates(changes)
}

// did makes n events done, and returns their ids.
func (t *teller) did(first, n int) (ids []event.MessageID) {
	done := make([]event.Finished, n)
	for i := range done {
		id := event.MessageID{Ledger: 7, Entry: int64(first + i)}
		done[i] = event.Finished{Partition: ring.Partition((first + i) % ring.Partitions), ID: id, At: t.now}
		ids = append(ids, id)
	}
	t.with(func(out *mailbox.Output) { t.Boxes.LearnDone(done, out) })
	return ids
}

// A node tells nothing in the step that moves its partitions, and a bounded part at a
// time after it: the youngest part first, in the end all of it.
func TestWindowsAreToldInParts(t *testing.T) {
	for name, test := range map[string]struct {
		members []ownership.Incarnation
		most    int
	}{
		"to who joins":  {[]ownership.Incarnation{self, nextOwner, other}, handoverMax},
		"by who leaves": {[]ownership.Incarnation{nextOwner, other}, handoverMax * 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTeller(t)
			old := n.did(0, 20_000)
			n.now = n.now.Add(time.Minute)
			young := n.did(20_000, 300)
			n.setGates(ownership.Closed)
			n.HandOver()
			if len(n.told) != 0 {
				t.Fatalf("told %d ids before there was a table", len(n.told[forward.Peer(nextOwner)]))
			}
			n.move(2, nextOwner, test.members...)
			if len(n.told) != 0 {
				t.Fatal("told in the step that moves")
			}
			heard := func() []event.Finished { return n.told[forward.Peer(nextOwner)] }
			calls := 0
			for more := true; more; calls++ {
				before := len(heard())
				more = n.HandOver()
				if got := len(heard()) - before; got > test.most {
					t.Fatalf("told %d ids at once, want %d at most", got, test.most)
				}
			}
			if len(n.told) != 1 || len(heard()) != len(old)+len(young) {
				t.Fatalf("told %d ids to %d members, want %d to one", len(heard()), len(n.told), len(old)+len(young))
			}
			if least := len(heard()) / test.most; calls < least {
				t.Errorf("all in %d calls, want %d at least", calls, least)
			}
			for i, d := range heard() {
				if isYoung := slices.Contains(young, d.ID); isYoung != (i < len(young)) {
					t.Fatalf("id %d of %d is young: %t", i, len(heard()), isYoung)
				}
			}
		})
	}
}

// Results on partitions that have moved are handed over at once, any number of them, before all
// other ids.
func TestLateEndsAreToldAtOnce(t *testing.T) {
	const late = 2 * handoverMax
	n := newTeller(t)
	n.did(0, 20_000)
	want := make(map[event.MessageID]bool)
	var messages []event.Message
	for i := range late {
		k := event.Key(strconv.Itoa(i))
		e := &event.Event{Key: k, Partition: ring.PartitionOf(string(k)), ID: event.MessageID{Ledger: 8, Entry: int64(i)}}
		messages = append(messages, event.Message{Event: e})
		want[e.ID] = true
	}
	e := event.NewEntry(messages...)
	e.Fresh = event.AllBits(late)
	e.SetFirst(event.NewHandle(1, 0))
	n.Hold(e)
	running := n.Take(1, late, nil)
	if len(running) != late {
		t.Fatalf("%d deliveries", len(running))
	}
	n.setGates(ownership.Draining)
	n.move(2, nextOwner, self, nextOwner)
	n.HandOver()
	n.now = n.now.Add(time.Second)
	results := make([]event.Result, late)
	for i, d := range running {
		results[i] = event.Result{Delivery: d.ID, Kind: event.ResultDone}
	}
	n.Finish(results)
	clear(n.told)
	n.HandOverLate()
	told := n.told[forward.Peer(nextOwner)]
	for _, d := range told {
		if !want[d.ID] {
			t.Fatalf("told %v, which did not end late", d)
		}
		delete(want, d.ID)
	}
	if len(want) > 0 {
		t.Errorf("told %d of %d", len(told), late)
	}
	if !n.HandOver() {
		t.Error("nothing else was to be told")
	}
}

// A node that has become another incarnation tells nothing until a table names its
// next owners, and nothing to the earlier owner: it may get these partitions back.
func TestANewIncarnationWaitsForItsTable(t *testing.T) {
	again := ownership.Incarnation{4}
	n := newTeller(t)
	n.did(0, 10)
	n.setGates(ownership.Closed)
	n.SetSelf(again)
	if n.HandOver() || len(n.told) != 0 {
		t.Fatalf("told %v", n.told)
	}
	n.move(2, self, self, nextOwner)
	for n.HandOver() {
	}
	if len(n.told) != 0 {
		t.Fatalf("told %v, of which %v is this node itself", n.told, self)
	}
	n.move(3, nextOwner, again, nextOwner)
	for n.HandOver() {
	}
	if got := len(n.told[forward.Peer(nextOwner)]); got != 10 {
		t.Errorf("told %d ids, want 10", got)
	}
}

func (deaf) Renewed(forward.StreamID, []event.Renewal) {}

// The broker is asked for its ends when partitions come to this member, and then only: the ids that their earlier
// owners hand over are judged by these.
func TestEndsAreAskedForWhenPartitionsCome(t *testing.T) {
	self, nextOwner := ownership.Incarnation{1}, ownership.Incarnation{2}
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{
		Holder: silentRoutes{}, Peers: deaf{}, App: nobody{},
		Boxes: mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "self", clock.Now),
	})
	p.SetSelf(self)
	owned := func(owners ...uint16) *ownership.Table {
		all := slices.Repeat(owners[:1], ring.Partitions)
		copy(all, owners)
		return &ownership.Table{Members: []ownership.Node{{Inc: self}, {Inc: nextOwner}}, Owners: all}
	}
	for i, step := range []struct {
		table *ownership.Table
		asked bool
	}{{owned(0), true}, {owned(0), false}, {owned(1), false}, {owned(1, 1, 0), true}, {owned(1, 1, 0), false}, {owned(1), false}} {
		before := p.NewestAsk()
		step.table.Cur = event.Position{Ledger: 1, Entry: int64(i)}
		p.SetTable(step.table)
		select {
		case <-p.EndsAsked():
			if !step.asked || p.NewestAsk() == before {
				t.Errorf("step %d: the broker is asked, newest %d after %d", i, p.NewestAsk(), before)
			}
		default:
			if step.asked {
				t.Errorf("step %d: the broker is not asked", i)
			}
		}
	}
}

// silentRoutes takes routes and ids.
type silentRoutes struct{ Holder }

func (silentRoutes) SetRoute(forward.Peer, forward.Route)              {}
func (silentRoutes) HandOver(forward.Peer, []event.Finished)           {}
func (silentRoutes) Settle(forward.Peer, []event.Set, []event.Verdict) {}

// A node that has become another incarnation tells nothing until a table has named that one: the owners by an earlier table, as after a
// Genesis, cannot verify whose ids these are, and would refuse them as forged. Then it tells all, also after it has left.
func TestAnIncarnationThatNoTableHasNamedTellsNothing(t *testing.T) {
	again := ownership.Incarnation{4}
	n := newTeller(t)
	ids := n.did(0, 10)
	n.setGates(ownership.Closed)
	n.SetSelf(again)
	n.move(2, nextOwner, nextOwner)
	if n.HandOver() || len(n.told) != 0 {
		t.Fatalf("told %v before a table has named it", n.told)
	}
	n.move(3, nextOwner, nextOwner, again)
	n.move(4, nextOwner, nextOwner)
	for n.HandOver() {
	}
	if told := n.told[forward.Peer(nextOwner)]; len(told) != len(ids) {
		t.Errorf("told %d ids of %d", len(told), len(ids))
	}
}
