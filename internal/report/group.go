package report

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"

	"github.com/ringfence/router/internal/base/event"
	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
	"github.com/ringfence/router/ring"
)

// Local is the member that a [Group] belongs to. Its methods answer from known state; those
// with a ctx may wait for the member's next step until ctx ends, and then omit data that only a
// step provides.
type Local interface {
	Status() Status
	Partitions(ctx context.Context) Partitions
	Key(ctx context.Context, key event.Key) KeyAt
	// Keys returns the worst keys at this member. q is valid.
	Keys(ctx context.Context, q KeysQuestion) KeysAt
	// History returns what this member remembers of a key.
	History(ctx context.Context, key ring.KeyHash) HistoryAt
	// Rollout returns what this member knows of moves of partitions.
	Rollout() RolloutAt
	// Members returns all known members, itself included, by name, without their reports.
	Members() []Member
	// Owner returns the member that should act for p, and the token of that tenure; nil before
	// the first table.
	Owner(p ring.Partition) (*Member, int64)
}

// Prover takes part in proofs (router prove) for a member. ask and the answer are JSON of internal/devtools/prove; its errors are
// in the answer.
type Prover interface {
	Prove(ctx context.Context, ask []byte) (answer []byte, err error)
}

// AskTimeout is how long one member may take to answer another's question. People
// wait for it, so it is about as long as a lease: a member that is alive is quicker.
const AskTimeout = 2 * time.Second

// asksMax is how many members are asked at a time.
const asksMax = 64

// ErrUnknownMember reports a query for an unknown member.
var ErrUnknownMember = errors.New("report: unknown member")

// Group collects the reports of a group's members.
type Group struct {
	local  Local
	prover Prover // nil: none
	peers  peers
	keys   *rate.Limiter
}

// NewGroup returns the group of a member, which queries all other members under creds. prover may be nil.
func NewGroup(local Local, prover Prover, creds credentials.TransportCredentials) *Group {
	return &Group{local: local, prover: prover, peers: peers{creds: creds}, keys: rate.NewLimiter(keysPerSecond, keysPerSecond)}
}

// errNoProofs is the answer of a member that has no Prover.
var errNoProofs = errors.New("report: this member takes part in no proofs")

// Prove hands a step of a proof to a member; "" is the local one.
func (g *Group) Prove(ctx context.Context, member string, ask []byte) ([]byte, error) {
	m, err := g.find(member)
	switch {
	case err != nil:
		return nil, err
	case m.Unnamed:
		return nil, errUnnamed
	case m.Reach != ReachSelf:
		return g.peers.prove(ctx, m.Address, ask)
	case g.prover == nil:
		return nil, errNoProofs
	}
	return g.prover.Prove(ctx, ask)
}

// Status returns the word of one member about itself; "" is the local one.
func (g *Group) Status(ctx context.Context, member string) (Status, error) {
	m, err := g.find(member)
	if err != nil {
		return Status{}, err
	}
	return g.status(ctx, m)
}

func (g *Group) status(ctx context.Context, m Member) (Status, error) {
	if m.Reach == ReachSelf {
		return g.local.Status(), nil
	}
	var status Status
	err := g.ask(ctx, m, about(reportv1.Subject_SUBJECT_STATUS), &status)
	return status, err
}

// Partitions returns every partition as one member sees them; "" is the local one.
func (g *Group) Partitions(ctx context.Context, member string) (Partitions, error) {
	m, err := g.find(member)
	switch {
	case err != nil:
		return Partitions{}, err
	case m.Reach == ReachSelf:
		return g.local.Partitions(ctx), nil
	}
	var partitions Partitions
	err = g.ask(ctx, m, about(reportv1.Subject_SUBJECT_PARTITIONS), &partitions)
	return partitions, err
}

// errUnnamed is the error about a member that is not asked.
var errUnnamed = errors.New("report: not asked: only gossip knows this member, and the control log does not name it")

// ask queries a member that the control log names. Addresses from gossip alone are never
// dialed, since outsiders may have put them there.
func (g *Group) ask(ctx context.Context, m Member, request *reportv1.ReportRequest, word any) error {
	if m.Unnamed {
		return errUnnamed
	}
	return g.peers.ask(ctx, m.Address, request, word)
}

// about is the request for a report on a subject that needs no more words.
func about(subject reportv1.Subject) *reportv1.ReportRequest {
	return &reportv1.ReportRequest{Subject: subject}
}

// asked returns the members that can be asked.
func (g *Group) asked() []Member {
	return slices.DeleteFunc(g.local.Members(), func(m Member) bool { return m.Unnamed })
}

// askEach asks every process once: several of its incarnations may be listed, at the same address, while the table names one that is over.
// It returns the members that were asked, and their words, whose tellers by names.
func askEach[T any](g *Group, ask func(Member) T, by func(T) View) (members []Member, words []T) {
	all := slices.DeleteFunc(g.asked(), func(m Member) bool { return m.Over })
	heard := map[string]bool{}
	for i, word := range fromAll(all, ask) {
		teller := by(word).Incarnation // "" of a member that did not answer
		if teller != "" && heard[teller] {
			continue
		}
		heard[teller] = true
		members, words = append(members, all[i]), append(words, word)
	}
	return members, words
}

// find returns the member of a name: of several incarnations the one in the table.
func (g *Group) find(name string) (Member, error) {
	members := g.local.Members()
	match := func(m Member) bool { return m.Name == name || name == "" && m.Reach == ReachSelf }
	var names []string
	for _, m := range members {
		if match(m) && (m.Listed || m.Reach == ReachSelf) {
			return m, nil
		}
		names = append(names, m.Name)
	}
	for _, unnamed := range []bool{false, true} {
		if i := slices.IndexFunc(members, func(m Member) bool { return match(m) && m.Unnamed == unnamed }); i >= 0 {
			return members[i], nil
		}
	}
	return Member{}, fmt.Errorf("%w %q: there are %s", ErrUnknownMember, name, strings.Join(slices.Compact(names), ", "))
}

// Members queries all members. A member that does not answer within [AskTimeout], or at whose address another incarnation answers, is listed
// with the reason. Earlier incarnations of a living process are left out: the table may name one until the process is back in it, and
// the process answers for them.
func (g *Group) Members(ctx context.Context) Members {
	all := Members{View: g.local.Status().View, Members: g.local.Members()}
	all.Members = slices.DeleteFunc(all.Members, func(m Member) bool { return m.Over })
	each(all.Members, func(i int) {
		m := &all.Members[i]
		status, err := g.status(ctx, *m)
		if err == nil && status.Incarnation != m.Incarnation && m.Reach != ReachSelf {
			if m.Over = status.Member == m.Name && slices.Contains(status.Earlier, m.Incarnation); m.Over {
				m.Status = &status
				return
			}
			err = fmt.Errorf("report: at its address answers %s of incarnation %s", status.Member, status.Incarnation)
		}
		if err != nil {
			m.Error = err.Error()
			return
		}
		m.Status = &status
	})
	all.Members = withoutPast(all.Members)
	all.Disagreements = Disagreements(all)
	return all
}

// withoutPast replaces incarnations that are over, and whose process has answered, by the present one of that process. Gossip alone may
// know that one yet, but its address is the one that the control log has of the process.
func withoutPast(members []Member) []Member {
	for i := range members {
		past := &members[i]
		if !past.Over {
			continue
		}
		now := past.Status.Incarnation
		at := slices.IndexFunc(members, func(m Member) bool { return m.Name == past.Name && m.Incarnation == now })
		switch {
		case at < 0:
			*past = Member{Name: past.Name, Incarnation: now, Address: past.Address, Reach: ReachUnknown, Status: past.Status}
		case members[at].Status == nil:
			members[at].Address, members[at].Status = past.Address, past.Status
			members[at].Unnamed, members[at].Error = false, ""
		}
	}
	return slices.DeleteFunc(members, func(m Member) bool { return m.Over })
}

// Key queries all members about a key, and returns the reports of the owner and of all others
// that hold events of it or did not answer.
func (g *Group) Key(ctx context.Context, key event.Key) Key {
	answer := Key{View: g.local.Status().View, Partition: uint16(ring.PartitionOf(string(key)))}
	var owner string
	if m, token := g.local.Owner(ring.Partition(answer.Partition)); m != nil {
		answer.Owner, answer.OwnerAddress, answer.Token, owner = m.Name, m.Address, token, m.Incarnation
		if m.Over {
			owner = answer.Incarnation
		}
	}
	members, words := askEach(g, func(m Member) KeyAt { return g.key(ctx, m, key) }, func(word KeyAt) View { return word.View })
	for i, word := range words {
		word.Says = word.Words()
		switch {
		case members[i].Incarnation == owner:
			answer.At = slices.Insert(answer.At, 0, word)
		case word.Error != "" || word.Wait != WaitsForNothing || len(word.Held) > 0 || word.Parking > 0:
			answer.At = append(answer.At, word)
		}
	}
	return answer
}

// Words queries all members about a key, and returns the report of each, in the order of their names. listed says of each whether
// the asked member's table has it.
func (g *Group) Words(ctx context.Context, key event.Key) (words []KeyAt, listed []bool) {
	members := g.asked()
	words = fromAll(members, func(m Member) KeyAt { return g.key(ctx, m, key) })
	for _, m := range members {
		listed = append(listed, m.Listed)
	}
	return words, listed
}

func (g *Group) key(ctx context.Context, m Member, key event.Key) KeyAt {
	if m.Reach == ReachSelf {
		return g.local.Key(ctx, key)
	}
	var word KeyAt
	if err := g.ask(ctx, m, &reportv1.ReportRequest{Subject: reportv1.Subject_SUBJECT_KEY, Key: []byte(key)}, &word); err != nil {
		return KeyAt{View: View{Member: m.Name, Incarnation: m.Incarnation}, Error: err.Error()}
	}
	return word
}

// fromAll asks members, and returns their words in the order of members.
func fromAll[T any](members []Member, ask func(Member) T) []T {
	words := make([]T, len(members))
	each(members, func(i int) { words[i] = ask(members[i]) })
	return words
}

func doubt(m Member) int {
	if m.Reach == ReachSelf || m.Reach == ReachAlive {
		return 0
	}
	return 1
}

// each calls f for the places of members, asksMax at a time and those first that seem alive, and returns when all calls have. Each of the
// others may occupy its turn for [AskTimeout], and many of them, as after a partition of the network, would use up the time of a whole
// answer.
func each(members []Member, f func(i int)) {
	places := make([]int, len(members))
	for i := range places {
		places[i] = i
	}
	slices.SortStableFunc(places, func(i, j int) int { return doubt(members[i]) - doubt(members[j]) })
	var calls sync.WaitGroup
	slots := make(chan struct{}, asksMax)
	for _, i := range places {
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	calls.Wait()
}
