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
	"github.com/ringfence/router/internal/source"
)

// admitted guards the machine that decides what is taken in from other members.
type admitted struct {
	asked  chan struct{} // of capacity one: the broker is to be asked where its topic partitions end
	judged func(admission.Judged)

	mu      sync.Mutex
	machine *admission.Admission
	newest  uint64        // number of the newest Ask
	next    clock.Instant // when the machine's Tick is due
}

func (a *admitted) init() {
	a.asked, a.machine, a.next = make(chan struct{}, 1), admission.New(), clock.Forever
	a.judged = func(admission.Judged) {}
}

// OnJudged sets what is told, for each sender, what became of the ids that it handed over.
// To be called before anything runs; f must not block.
func (p *Pipeline) OnJudged(f func(admission.Judged)) { p.admitted.judged = f }

// judge makes a call to the machine and passes on what it admits.
func (p *Pipeline) judge(call func(m *admission.Admission, out *admission.Output)) {
	var out admission.Output
	p.admitted.mu.Lock()
	call(p.admitted.machine, &out)
	p.admitted.next = p.admitted.machine.Next()
	p.admitted.mu.Unlock()
	if len(out.Admitted) > 0 {
		p.with(func(o *mailbox.Output) { p.Boxes.TakeOver(out.Admitted, o) })
	}
	for _, j := range out.Judged {
		p.admitted.judged(j)
	}
}

// TakeOver implements forward.Acceptor: what was done on partitions before they are ours,
// as far as the sender may say so.
func (p *Pipeline) TakeOver(from forward.Peer, proven bool, done []event.Finished) {
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
	next := p.admitted.next
	p.admitted.mu.Unlock()
	if next != clock.Forever && next <= p.now() {
		p.judge(func(m *admission.Admission, out *admission.Output) { m.Tick(p.now(), out) })
	}
}

// ForgetDone forgets the ids of events that were done lately, here and elsewhere, and
// returns how many: what the broker delivers again of them runs again. What other members
// have not handed over yet is theirs to forget.
func (p *Pipeline) ForgetDone() (ids int) {
	p.admitted.mu.Lock()
	ids = p.admitted.machine.Forget()
	p.admitted.mu.Unlock()
	return ids + p.Boxes.Forget()
}

// see notes the entries that the broker has delivered. A copy says that it is of another
// one, which proves nothing about that.
func (p *Pipeline) see(messages []source.Message) {
	p.admitted.mu.Lock()
	defer p.admitted.mu.Unlock()
	for i := range messages {
		if e := messages[i].Event; e.Round == 0 {
			p.admitted.machine.Seen(e.Topic, e.ID.TopicPartition, event.Position{Ledger: e.ID.Ledger, Entry: e.ID.Entry})
		}
	}
}

// AskEnds says that the broker is to be asked where its topic partitions end. The node
// calls it when a subscription stands; SetTable does when partitions become ours.
func (p *Pipeline) AskEnds() {
	p.admitted.mu.Lock()
	p.admitted.newest = p.admitted.machine.Ask()
	p.admitted.mu.Unlock()
	signal.Set(p.admitted.asked)
}

// EndsAsked is told when AskEnds was called. Whoever reads it asks the broker and gives the
// answer to LearnEnds with the number that NewestAsk gave before.
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

// knowOwners notes who owns what by a new table, and has the broker asked if more of it
// became ours than before: what was done there is about to be handed over.
func (p *Pipeline) knowOwners(t *ownership.Table) {
	table := admission.Table{Keyless: t.Version < 2, Owners: t.Owners} // where members of an older release have none
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
