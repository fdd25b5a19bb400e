package pipeline

import (
	"crypto/ed25519"
	"slices"
	"sync"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/ownership"
)

// admitted guards the machine that decides which ids from other members are accepted.
type admitted struct {
	asked chan struct{} // of capacity one: the broker is to be asked where its topic partitions end

	mu      sync.Mutex
	machine *admission.Admission
	newest  uint64 // number of the newest Ask
}

// judge makes a call to the machine and passes on the admitted ids.
func (p *Pipeline) judge(call func(m *admission.Admission, out *admission.Output)) {
	var out admission.Output
	p.admitted.mu.Lock()
	call(p.admitted.machine, &out)
	p.admitted.mu.Unlock()
	if len(out.Admitted) > 0 {
		p.with(func(o *mailbox.Output) { p.Boxes.LearnDone(out.Admitted, o) })
	}
	for _, j := range out.Judged {
		if p.parts.Judged != nil {
			p.parts.Judged(j)
		}
	}
}

// LearnDone implements forward.Acceptor: it takes in ids of events that finished on partitions before these were ours, as far
// as package admission lets the sender name them.
func (p *Pipeline) LearnDone(from forward.Peer, proven bool, done []event.Finished) {
	p.judge(func(m *admission.Admission, out *admission.Output) {
		m.Offer(p.now(), admission.Incarnation(from), proven, done, out)
	})
}

// KeyOf implements forward.Acceptor.
func (p *Pipeline) KeyOf(peer forward.Peer) ed25519.PublicKey {
	p.admitted.mu.Lock()
	defer p.admitted.mu.Unlock()
	return ed25519.PublicKey(p.admitted.machine.KeyOf(admission.Incarnation(peer)))
}

// refuseLate ends the waiting of ids that have waited for too long.
func (p *Pipeline) refuseLate() {
	p.admitted.mu.Lock()
	next := p.admitted.machine.Next()
	p.admitted.mu.Unlock()
	if next != clock.Forever && next <= p.now() {
		p.judge(func(m *admission.Admission, out *admission.Output) { m.Tick(p.now(), out) })
	}
}

// ForgetDone forgets the ids of recently finished events, here and elsewhere, and returns their
// number: redelivered events run again. Ids that other members have not handed over yet must be
// forgotten there.
func (p *Pipeline) ForgetDone() (ids int) {
	p.admitted.mu.Lock()
	ids = p.admitted.machine.Forget()
	p.admitted.mu.Unlock()
	return ids + p.Boxes.Forget()
}

// see notes the entries that the broker has delivered. A copy says that it is of another
// one, which proves nothing about that.
func (p *Pipeline) see(entries []*event.Entry) {
	p.admitted.mu.Lock()
	defer p.admitted.mu.Unlock()
	for _, e := range entries {
		if !e.Objects() {
			p.admitted.machine.Seen(e.Topic, e.TopicPartition, event.Position{Ledger: e.Ledger, Entry: e.Entry})
			continue
		}
		for i := range e.Fresh.All() {
			if ev := e.Event(i); ev.Round == 0 {
				p.admitted.machine.Seen(ev.Topic, ev.ID.TopicPartition, event.Position{Ledger: ev.ID.Ledger, Entry: ev.ID.Entry})
			}
		}
	}
}

// AskEnds requests a query to the broker for the ends of its topic partitions. The node calls
// it when a subscription opens; SetTable does when partitions become ours.
func (p *Pipeline) AskEnds() {
	p.admitted.mu.Lock()
	p.admitted.newest = p.admitted.machine.Ask()
	p.admitted.mu.Unlock()
	signal.Set(p.admitted.asked)
}

// EndsAsked signals a call of AskEnds. The receiver queries the broker and passes the answer to
// LearnEnds with the number that NewestAsk gave before.
func (p *Pipeline) EndsAsked() <-chan struct{} { return p.admitted.asked }

// NewestAsk returns the number of the newest AskEnds.
func (p *Pipeline) NewestAsk() uint64 {
	p.admitted.mu.Lock()
	defer p.admitted.mu.Unlock()
	return p.admitted.newest
}

// LearnEnds takes in the broker's answer, see [admission.Admission.Learn].
func (p *Pipeline) LearnEnds(number uint64, ends []admission.End, known bool) {
	p.judge(func(m *admission.Admission, out *admission.Output) { m.Learn(number, ends, known, out) })
}

// knowOwners notes the owners in a new table. If partitions became ours, it also asks for the ends of the broker's topic
// partitions, by which the ids that are about to be handed over are judged.
func (p *Pipeline) knowOwners(t *ownership.Table) {
	table := admission.Table{Keyless: t.Version < 2, Owners: t.Owners} // in log version 1 members have no keys
	for _, n := range t.Members {
		table.Members = append(table.Members, memberOf(n))
	}
	for _, f := range t.Formers {
		table.Formers = append(table.Formers, admission.Former{Member: memberOf(f.Node), Partitions: slices.Collect(f.Partitions.All())})
	}
	before, self, gained := p.table.Load(), *p.self.Load(), false
	for q, i := range t.Owners {
		if t.Members[i].Inc == self && (before == nil || before.Members[before.Owners[q]].Inc != self) {
			gained = true
			break
		}
	}
	p.judge(func(m *admission.Admission, _ *admission.Output) { m.SetTable(table) })
	if gained {
		p.AskEnds()
	}
}

func memberOf(n ownership.Node) admission.Member {
	return admission.Member{Inc: admission.Incarnation(n.Inc), Name: n.Name, Key: n.PublicKey}
}
