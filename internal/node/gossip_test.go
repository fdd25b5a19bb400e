package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// hearer is a gossipMachine of four partitions; the test sets its members.
type hearer struct {
	*gossipMachine
	gossipView

	t    *testing.T
	now  clock.Instant
	said []string // the effects of the last step

	moved int // partitions in the newest table
}

func memberNamed(name string, inc byte) membership.Member {
	return membership.Member{Name: name, Inc: ownership.Incarnation{inc}, GRPCAddr: name + ":1", GossipAddr: name + ":2"}
}

func newHearer(t *testing.T, name string) *hearer {
	h := &hearer{t: t, now: clock.Instant(time.Hour)}
	h.gossipMachine = newGossipMachine(ownership.Config{
		Name: name, Inc: ownership.Incarnation{1}, Timing: ownership.DefaultTiming(), Partitions: 4,
		Place: func(names []string) ([]uint16, error) { // by turns
			if len(names) > 3 {
				return nil, errors.New("too many")
			}
			table := make([]uint16, 4)
			for p := range table {
				table[p] = uint16(p % len(names))
			}
			return table, nil
		},
	}, h.gossipView.members)
	return h
}

func (h *hearer) hear(kind membership.Kind, m membership.Member) {
	h.heard(membership.Evidence{Kind: kind, Member: m})
}

// step lets time pass and returns the effects of the machine.
func (h *hearer) step(after time.Duration, in ownership.Input) []string {
	h.t.Helper()
	h.now = h.now.Add(after)
	h.said = nil
	for _, effect := range h.Step(h.now, in) {
		switch e := effect.(type) {
		case ownership.SetGates:
			for _, c := range e.Gates {
				if c.Token != 0 {
					h.t.Errorf("partition %d has token %v, want none", c.Partition, c.Token)
				}
				h.said = append(h.said, fmt.Sprintf("%d %v", c.Partition, c.Gate))
			}
		case ownership.Revoke:
			h.said = append(h.said, fmt.Sprintf("revoke %v", slices.Collect(e.Partitions.All())))
		case ownership.ForceDrain:
			h.said = append(h.said, fmt.Sprintf("force %v", slices.Collect(e.Partitions.All())))
		case ownership.PublishTable:
			if !e.Table.Cur.IsZero() || slices.Max(e.Table.Tokens) != 0 {
				h.t.Errorf("a table at %v with tokens %v, want none", e.Table.Cur, e.Table.Tokens)
			}
			owners := "table"
			for p := range ring.Partition(4) {
				owners += " " + e.Table.Owner(p).Name
			}
			h.said = append(h.said, owners)
		case ownership.SetLease:
			h.said = append(h.said, fmt.Sprintf("lease %v, extending %v", e.Lease.Until.Sub(h.now), slices.Collect(e.Lease.Draining.All())))
		case ownership.Note:
			if e.Kind == ownership.NoteEpoch {
				h.moved = e.Count
			}
		default:
			h.said = append(h.said, fmt.Sprintf("%T", e))
		}
	}
	return h.said
}

func (h *hearer) want(want ...string) {
	h.t.Helper()
	if !slices.Equal(h.said, want) {
		h.t.Errorf("got  %q\nwant %q", h.said, want)
	}
}

// settled brings h to where it has its table and its lease.
func (h *hearer) settled() {
	h.t.Helper()
	h.step(0, ownership.Tick{})
	h.want("lease 2s, extending []")
	h.step(h.timing.JoinSettle, ownership.Tick{})
}

func TestGossipListensBeforeItOpens(t *testing.T) {
	h := newHearer(t, "a")
	h.step(0, ownership.Tick{})
	h.want("lease 2s, extending []")
	if s := h.Status(h.now); s.Phase != ownership.Joining || s.Member {
		t.Errorf("status is %+v", s)
	}
	h.hear(membership.Alive, memberNamed("b", 2))
	h.step(299*time.Millisecond, ownership.Tick{})
	h.want()
	if next := h.Next(); next != h.now.Add(time.Millisecond) {
		t.Errorf("next is in %v", next.Sub(h.now))
	}
	h.step(time.Millisecond, ownership.Tick{})
	h.want("0 open", "2 open", "table a b a b")
	if s := h.Status(h.now); s.Phase != ownership.Current || !s.Member || s.Open != 2 {
		t.Errorf("status is %+v", s)
	}
}

// TestGossipWaitsForNobody shows that the mode is not exclusive: gates open without waiting for the old owner.
func TestGossipWaitsForNobody(t *testing.T) {
	a, b := newHearer(t, "a"), newHearer(t, "b")
	a.self.Inc, b.self.Inc = ownership.Incarnation{1}, ownership.Incarnation{2}
	a.settled()
	a.want("0 open", "1 open", "2 open", "3 open", "table a a a a")
	b.hear(membership.Alive, memberNamed("a", 1))
	b.settled()
	b.want("1 open", "3 open", "table a b a b") // both have them open
	a.hear(membership.Alive, memberNamed("b", 2))
	a.step(time.Millisecond, ownership.Tick{})
	a.want("1 draining", "3 draining", "revoke [1 3]", "table a b a b", "lease 1.699s, extending [1 3]")
	if a.moved != 2 {
		a.t.Errorf("%d partitions have moved", a.moved)
	}
}

func TestGossipWaitsForItsOwn(t *testing.T) {
	h := newHearer(t, "a")
	h.settled()
	b := memberNamed("b", 2)
	h.hear(membership.Alive, b)
	h.step(time.Millisecond, ownership.Tick{})
	h.step(0, ownership.Drained{Seq: 1, Partitions: ownership.SetOf(3)})
	h.want("3 closed", "lease 1.699s, extending [1]")
	h.hear(membership.Dead, b)
	h.step(0, ownership.Tick{})
	h.want("1 waiting", "3 open", "table a a a a")
	if s := h.Status(h.now); s.Waiting != 1 || s.Open != 3 || s.Draining != 1 {
		t.Errorf("status is %+v", s)
	}
	h.step(0, ownership.Drained{Seq: 1, Partitions: ownership.SetOf(1)})
	h.want("1 open", "lease 1.699s, extending []")
}

func TestGossipForcesWhatOutlastsItsPartition(t *testing.T) {
	h := newHearer(t, "a")
	h.settled()
	h.hear(membership.Alive, memberNamed("b", 2))
	h.step(time.Millisecond, ownership.Tick{})
	for h.now.Before(h.forceAt) {
		h.step(h.Next().Sub(h.now), ownership.Tick{})
	}
	if took := h.timing.DrainTimeout; !slices.Contains(h.said, "force [1 3]") || h.forceAt.Sub(h.now) != 0 {
		t.Errorf("after %v effects %q", took, h.said)
	}
	h.step(h.Next().Sub(h.now), ownership.Tick{})
	h.want("lease 2s, extending []")
}

func TestGossipRenewsTheLeaseByItself(t *testing.T) {
	h := newHearer(t, "a")
	h.settled()
	h.step(h.Next().Sub(h.now), ownership.Tick{})
	h.want("lease 2s, extending []")
	if after := h.Next().Sub(h.now); after != h.timing.BeatEvery {
		t.Errorf("the next one comes after %v", after)
	}
	if s := h.Status(h.now.Add(3 * time.Second)); s.Phase != ownership.Stale {
		t.Errorf("after a pause of 3 s the status is %+v", s)
	}
	h.step(time.Minute, ownership.Tick{})
	h.want("lease 2s, extending []")
}

func TestGossipRestartUnderOneName(t *testing.T) {
	h := newHearer(t, "a")
	h.hear(membership.Alive, memberNamed("b", 2))
	h.settled()
	for _, gone := range []byte{2, 4} { // the one before, and one that came and went
		h.hear(membership.Alive, memberNamed("b", 3))
		h.hear(membership.Alive, memberNamed("b", gone))
		h.hear(membership.Dead, memberNamed("b", gone))
		h.step(0, ownership.Tick{})
		if inc := h.table.Owner(1).Inc; inc != (ownership.Incarnation{3}) {
			t.Errorf("b is incarnation %v", inc)
		}
	}
	h.hear(membership.Suspect, memberNamed("b", 3))
	h.step(0, ownership.Tick{})
	h.want() // it may object
}

func TestGossipWithoutATable(t *testing.T) {
	h := newHearer(t, "a")
	h.settled()
	for inc, name := range []string{"b", "c", "d"} {
		h.hear(membership.Alive, memberNamed(name, byte(inc+2)))
	}
	h.step(0, ownership.Tick{})
	h.want() // the one before stands
	if h.table.Owner(3).Name != "a" {
		t.Error("the table has changed")
	}
}

func TestGossipLeave(t *testing.T) {
	for name, test := range map[string]struct {
		others []membership.Member
		want   []string
	}{
		"alone":             {nil, []string{"0 draining", "1 draining", "2 draining", "3 draining", "revoke [0 1 2 3]", "lease 1.7s, extending [0 1 2 3]"}},
		"to the next owner": {[]membership.Member{memberNamed("b", 2)}, []string{"0 draining", "2 draining", "revoke [0 2]", "table b b b b", "lease 1.7s, extending [0 2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHearer(t, "a")
			for _, m := range test.others {
				h.hear(membership.Alive, m)
			}
			h.settled()
			h.step(0, ownership.Leave{})
			h.want(test.want...)
			h.step(0, ownership.Drained{Seq: 1, Partitions: ownership.SetOf(0, 1, 2, 3)})
			if !slices.Contains(h.said, "ownership.Left") || h.Status(h.now).Phase != ownership.Ended || h.Next() != clock.Forever {
				t.Errorf("effects %q", h.said)
			}
			h.step(time.Hour, ownership.Tick{})
			h.want()
		})
	}
}

func TestGossipViewRemembersSome(t *testing.T) {
	var h gossipView
	for i := range goneMax + 10 {
		m := membership.Member{Name: "x", Inc: ownership.Incarnation{1: byte(i)}, GossipAddr: fmt.Sprint(i)}
		h.heard(membership.Evidence{Kind: membership.Alive, Member: m})
		h.heard(membership.Evidence{Kind: membership.Suspect, Member: m})
		h.heard(membership.Evidence{Kind: membership.Dead, Member: m})
		h.heard(membership.Evidence{Kind: membership.Dead, Member: m})
	}
	if lost := h.lost(); len(lost) != goneMax || lost[0].GossipAddr != "10" || len(h.members()) != 0 {
		t.Errorf("%d are remembered, from %s on", len(lost), lost[0].GossipAddr)
	}
	h.heard(membership.Evidence{Kind: membership.Alive, Member: membership.Member{Inc: ownership.Incarnation{1: 10}}})
	if lost := h.lost(); len(lost) != goneMax-1 {
		t.Errorf("a member that is back is still missed: %d", len(lost))
	}
}

// TestGossipIsNotExclusive: with ownership.mode gossip nothing is lost when a member
// joins, leaves or is there alone, but handlers of one key overlap, and the same load
// with the control log shows that it is the mode that lets them.
func TestGossipIsNotExclusive(t *testing.T) {
	for name, mode := range map[string]Mode{"gossip": Gossip, "strict": Strict} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t)
			moved := make(chan struct{}) // the handlers of a run until b has had its keys
			handler := func(w *journal.Writer) client.Handler {
				return func(_ context.Context, e *client.Event) error {
					h, err := w.Start(string(e.Payload), event.Key(e.Key), event.Fence(e.Fence))
					if err != nil {
						return err
					}
					<-moved
					time.Sleep(time.Second)
					return w.End(h, journal.Done)
				}
			}
			seeds := []string{}
			start := func(name string) *member {
				m := g.start(name, func(c *Config) { c.Mode, c.Membership.Seeds = mode, seeds })
				g.startJournaled(m, handler)
				g.ready(m)
				seeds = append(seeds, m.incarnation.Load().gossip.Addr())
				return m
			}
			a := start("a")
			letMove := sync.OnceFunc(func() { close(moved) })
			t.Cleanup(letMove)
			const keys = 40
			g.publish(5*keys, keys)
			g.eventually("handlers of all keys run", func() error {
				if n := a.boxes.Stats().Running; n != keys {
					return fmt.Errorf("%d run", n)
				}
				return nil
			})
			b := start("b")
			if mode == Gossip {
				g.eventually("b runs events of keys whose handlers run at a", func() error {
					if b.boxes.Stats().Running == 0 {
						return errors.New("none")
					}
					return nil
				})
			} else {
				time.Sleep(time.Second) // in which it would
			}
			letMove()
			start("c")
			b.stop()
			<-b.ended
			if b.err != nil {
				t.Errorf("b left with %v", b.err)
			}
			g.settled()
			report, err := journal.Check(g.files, slices.Values(g.published))
			if err != nil {
				t.Fatal(err)
			}
			if report.Lost != 0 || report.Unknown != 0 || report.StaleTokens != 0 || report.Published == 0 {
				t.Errorf("a promise broke: %+v", report)
			}
			if overlaps := report.Overlaps > 0; overlaps != (mode == Gossip) {
				t.Errorf("%d overlaps", report.Overlaps)
			}
			if notice := a.Notice() != ""; notice != (mode == Gossip) {
				t.Errorf("notice is %q", a.Notice())
			}
		})
	}
}
