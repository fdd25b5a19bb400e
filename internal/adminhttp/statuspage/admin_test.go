package statuspage

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/report"
)

// group holds the reports of a group's members in a test.
type group struct {
	members report.Members
	parts   map[string][]report.Partition // "" is the asked member's
	asked   []string                      // whose partitions
	keys    map[string]report.Keys        // by selection
}

func (g *group) Keys(_ context.Context, q report.KeysQuestion) report.Keys {
	k := g.keys[q.Which]
	k.Named = q.Named
	return k
}

// tileOf returns the tile of a title.
func tileOf(t *testing.T, v snapshot, title string) tile {
	t.Helper()
	for _, one := range v.Tiles {
		if one.Title == title {
			return one
		}
	}
	t.Fatalf("no tile %q", title)
	return tile{}
}

// rowOfMember returns the row of a member.
func rowOfMember(t *testing.T, v snapshot, name string) memberView {
	t.Helper()
	for _, one := range v.Members.Rows {
		if one.Name == name {
			return one
		}
	}
	t.Fatalf("no member %q", name)
	return memberView{}
}

func (g *group) Members(context.Context) report.Members { return g.members }

func (g *group) Partitions(_ context.Context, member string) (report.Partitions, error) {
	g.asked = append(g.asked, member)
	parts, ok := g.parts[member]
	if !ok {
		return report.Partitions{}, errors.New("gone")
	}
	return report.Partitions{Partitions: parts}, nil
}

// owned returns partitions of the owners, in turn.
func owned(n int, gate string, owners ...string) []report.Partition {
	parts := make([]report.Partition, n)
	for i := range parts {
		parts[i] = report.Partition{Number: uint16(i), Owner: owners[i%len(owners)], Gate: gate}
	}
	return parts
}

// healthy returns a member without problems.
func healthy(name string, open int) report.Member {
	return report.Member{
		Name: name, Listed: true, Reach: "alive", Partitions: open,
		Status: &report.Status{
			Group: "orders", Mode: report.ModeStrict, Phase: "current", Listed: true, LeaseSeconds: 1.5, Workers: 1,
			Gates: report.Gates{Open: open}, Checks: []report.Check{{Name: "member"}},
		},
	}
}

// but returns a member with a changed status.
func but(m report.Member, change func(*report.Status)) report.Member {
	status := *m.Status
	change(&status)
	m.Status = &status
	return m
}

func TestStateOfAMember(t *testing.T) {
	fine := healthy("a", 100)
	for name, test := range map[string]struct {
		member report.Member
		state  string
		why    string // must be in the sentence
		class  string
	}{
		"all is well":             {fine, "ready", "", classGood},
		"killed, evidence":        {report.Member{Listed: true, Reach: "dead", Partitions: 7}, "dead", "its 7 partitions wait", classBad},
		"cut off, no evidence":    {report.Member{Listed: true, Reach: "unknown", Partitions: 7, Error: "no route"}, "silent", "may still work on its 7 partitions, or it may be gone", classBad},
		"killed, table without":   {report.Member{Reach: "dead"}, "gone", "Gossip will forget it", classBusy},
		"drains":                  {but(fine, func(s *report.Status) { s.Draining, s.Events.Running = true, 3 }), "draining", "3 deliveries are running", classBusy},
		"has drained":             {but(fine, func(s *report.Status) { s.Draining, s.Drained, s.Listed = true, true, false }), "drained", "may be stopped", classBusy},
		"joins":                   {but(fine, func(s *report.Status) { s.Phase, s.Listed = "joining", false }), "joining", "state of the group", classBusy},
		"was paused":              {but(fine, func(s *report.Status) { s.Phase, s.LeaseSeconds = "stale", -1 }), "no lease", "dispatches nothing", classBad},
		"no application":          {but(fine, func(s *report.Status) { s.Listed, s.Workers = false, 0 }), "idle", "No application", classBusy},
		"before its epoch":        {but(fine, func(s *report.Status) { s.Listed = false }), "outside", "not in the table", classBusy},
		"waits for a dead one":    {but(fine, func(s *report.Status) { s.Gates.Waiting = 5 }), "taking over", "5 of its partitions wait for the end of every earlier owner's tenure", classBusy},
		"its handlers still run":  {but(fine, func(s *report.Status) { s.Gates.Draining = 5 }), "handing over", "handlers still run", classBusy},
		"cannot consume":          {but(fine, func(s *report.Status) { s.Checks = []report.Check{{Name: "source", Error: "busy"}} }), "not ready", "source: busy", classBad},
		"a joiner that is silent": {report.Member{Reach: "unknown"}, "gone", "", classBusy},
		"lost its broker": {but(fine, func(s *report.Status) {
			s.Phase, s.LeaseSeconds = "stale", -9
			s.Checks = []report.Check{{Name: "drain"}, {Name: "broker", Error: "pulsar://broker:6650 does not answer"}, {Name: "lease", Error: "no lease"}}
		}), "no lease", "control log. broker: pulsar://broker:6650 does not answer", classBad},
		"begins without a broker": {but(fine, func(s *report.Status) {
			s.Phase, s.Listed = "joining", false
			s.Checks = []report.Check{{Name: "member", Error: "waiting for the state of the group"}, {Name: "lease", Error: "no lease yet: connection refused"}}
		}), "joining", "lease: no lease yet: connection refused", classBusy},
	} {
		state, why, class := stateOf(test.member, 0)
		if state != test.state || !strings.Contains(why, test.why) || class != test.class {
			t.Errorf("%s: %q (%s), %q; want %q (%s), with %q", name, state, class, why, test.state, test.class, test.why)
		}
	}
}

// counts returns how many partitions of an owner the map shows in each state.
func counts(r ringView, owner string) map[gateState]int {
	all := make(map[gateState]int)
	for _, a := range r.Areas {
		if a.Owner == owner {
			all[a.State] += a.Count
		}
	}
	return all
}

// The way of the partitions of a member that is killed, as the map shows it: with a
// silent member, waiting at their new owners, open.
func TestTheMapDuringAKill(t *testing.T) {
	g := &group{parts: map[string][]report.Partition{"": owned(90, "closed", "a", "b", "c")}}
	dead := report.Member{Name: "b", Listed: true, Reach: "dead", Partitions: 30, Error: "refused"}
	g.members = report.Members{Members: []report.Member{healthy("a", 30), dead, healthy("c", 30)}}
	v := newSnapshot(look(t.Context(), g, false, nil))
	if got := counts(v.Ring, "b"); got[silent] != 30 || counts(v.Ring, "a")[open] != 30 {
		t.Errorf("before the new table: b %v, a %v; want 30 silent and 30 open", got, counts(v.Ring, "a"))
	}
	if !slices.Equal(g.asked, []string{""}) {
		t.Errorf("asked %q for their partitions, want only the asked member: all gates are open", g.asked)
	}

	g.parts[""] = owned(90, "closed", "a", "a", "c") // a has the partitions that b had
	g.parts["a"] = owned(90, "open", "a")
	for i := 1; i < 90; i += 3 {
		g.parts["a"][i].Gate = "waiting"
		g.parts["a"][i].Blockers = []report.Blocker{{Member: "b", Start: "1:2", Seconds: float64(i) / 89}}
	}
	taking := but(healthy("a", 60), func(s *report.Status) { s.Gates = report.Gates{Open: 30, Waiting: 30} })
	dead.Listed = false
	g.members.Members = []report.Member{taking, dead, healthy("c", 30)}
	v = newSnapshot(look(t.Context(), g, false, nil))
	if got := counts(v.Ring, "a"); got[open] != 30 || got[waiting] != 30 || len(counts(v.Ring, "b")) > 0 {
		t.Errorf("under the new table: a %v, b %v; want 30 open and 30 waiting, and nothing of b", got, counts(v.Ring, "b"))
	}
	if tile := tileOf(t, v, "Partitions open"); tile.Value != "60 of 90" || tile.Note != "30 waiting for an earlier owner" || tile.Class != classBusy {
		t.Errorf("tile %+v", tile)
	}

	if tile := tileOf(t, v, "Members ready"); tile.Value != "2 of 2" {
		t.Errorf("a member that takes over must count as ready: tile %+v", tile)
	}
	if why := rowOfMember(t, v, "b").Why; !strings.Contains(why, "30 partitions still wait") {
		t.Errorf("the sentence is %q", why)
	}
	if len(v.Waits) != 1 || v.Waits[0].Owner != "a" || v.Waits[0].Count != 30 || v.Waits[0].For != "b" || !strings.HasSuffix(v.Waits[0].Until, "silent for another 1.0 s") {
		t.Errorf("waits %+v, want 30 of a for b, the longest for 1 s", v.Waits)
	}

	g.members.Members = []report.Member{healthy("a", 60), dead, healthy("c", 30)}
	v = newSnapshot(look(t.Context(), g, false, nil))
	if why := rowOfMember(t, v, "b").Why; strings.Contains(why, "wait for it") || len(v.Waits) > 0 {
		t.Errorf("want no waits: %q, %+v", why, v.Waits)
	}
	if tile := tileOf(t, v, "Partitions open"); tile.Value != "90 of 90" || tile.Class != classGood {
		t.Errorf("afterwards: tile %+v", tile)
	}
}

// The reasons why partitions wait, in words: each reason counts a partition once.
func TestWhatPartitionsWaitFor(t *testing.T) {
	parts := owned(4, "waiting", "a")
	parts[0].Blockers = []report.Blocker{{Member: "a"}, {Member: "b", Start: "1:2", Seconds: 0.2}, {Member: "b", Start: "1:3", Seconds: 0.7}}
	parts[1].Blockers = []report.Blocker{{Start: "1:1", Seconds: 2}}
	parts[2].Blockers = []report.Blocker{{Member: "a", Start: "1:4"}}
	parts[3].Gate, parts[3].Blockers = "open", []report.Blocker{{Member: "c", Start: "1:5", Seconds: 0.5}}
	waits := waitsOf(seen{ring: report.Partitions{Partitions: parts}, gates: map[string]map[uint16]report.Partition{
		"a": {0: parts[0], 1: parts[1], 2: parts[2], 3: parts[3]},
	}}, nil)
	var got []string
	for _, w := range waits {
		got = append(got, w.For+": "+w.Until)
		if w.Count != 1 {
			t.Errorf("%d partitions wait for %s, want 1", w.Count, w.For)
		}
	}
	for i, want := range []string{
		"a, in its previous incarnation: .* any moment", "b: .* silent for another 0.7 s", "c: only the keys that it still works on: .* another 0.5 s", "its own application: it has finished",
		"leases of the group's earlier log: .* for another 2.0 s",
	} {
		if len(got) != 5 || !regexp.MustCompile("^"+want).MatchString(got[i]) {
			t.Fatalf("%q, want %q there", got, want)
		}
	}
}

// A sum over only some of the members must not look like the total.
func TestSumsTellWhoIsMissing(t *testing.T) {
	members := report.Members{Members: []report.Member{
		but(healthy("a", 1), func(s *report.Status) { s.Events.Unsettled, s.Events.OldestSeconds = 5, 75 }),
		{Name: "b", Listed: true, Error: "refused"},
	}}
	v := newSnapshot(seen{members: members})
	if tile := tileOf(t, v, "Unsettled events"); tile.Value != "5" || !strings.Contains(tile.Note, "without 1 silent member") {
		t.Errorf("unsettled: %+v", tile)
	}
	if tile := tileOf(t, v, "Oldest event"); tile.Value != "1m15s" {
		t.Errorf("oldest: %+v", tile)
	}
	if tile := tileOf(t, v, "Members ready"); tile.Value != "1 of 2" {
		t.Errorf("members: %+v", tile)
	}
}

func TestALeaseThatIsOverOpensNothing(t *testing.T) {
	paused := but(healthy("a", 9), func(s *report.Status) { s.Phase, s.LeaseSeconds = "stale", -3 })
	g := &group{parts: map[string][]report.Partition{"": owned(9, "open", "a")}, members: report.Members{Members: []report.Member{paused}}}
	if got := counts(newSnapshot(look(t.Context(), g, false, nil)).Ring, "a"); got[lapsed] != 9 {
		t.Errorf("partitions of a member without a lease: %v", got)
	}
}

// The worst word about exclusivity is the one on top.
func TestExclusivityIsJudgedByTheWorst(t *testing.T) {
	late := but(healthy("b", 1), func(s *report.Status) { s.Exclusivity.LateResults = 2 })
	bug := but(healthy("c", 1), func(s *report.Status) { s.Exclusivity.InvariantFailures = 1 })
	gossip := but(healthy("d", 1), func(s *report.Status) { s.Mode = "gossip" })
	for _, test := range []struct {
		members []report.Member
		want    string
		gossip  bool
	}{
		{[]report.Member{healthy("a", 1)}, "kept", false},
		{[]report.Member{healthy("a", 1), late}, "at risk", false},
		{[]report.Member{gossip, late}, "not promised", true},
		{[]report.Member{bug, late, gossip}, "broken", true},
	} {
		v := newSnapshot(seen{members: report.Members{Members: test.members}})
		if got := tileOf(t, v, "Exclusivity").Value; got != test.want {
			t.Errorf("exclusivity %q, want %q", got, test.want)
		}
		loud := len(v.Problems.Rows) > 0 && v.Problems.Rows[0].Class == classBad && v.Problems.Rows[0].Title == "Not exclusive"
		if loud != test.gossip {
			t.Errorf("problems %v, want one about gossip, which is not exclusive: %v", v.Problems, test.gossip)
		}
	}
}

func TestColorsKeepTheirNames(t *testing.T) {
	names := []string{"orders-0", "orders-1", "orders-2", "orders-3", "orders-4"}
	var members []report.Member
	for _, name := range names {
		members = append(members, report.Member{Name: name})
	}
	all := colorsOf(members)
	distinct := make(map[string]bool)
	for _, c := range all {
		distinct[c] = true
	}
	if len(distinct) != len(names) {
		t.Errorf("colors %v are not different", all)
	}
	for name, c := range colorsOf(members[:4]) {
		if c != all[name] {
			t.Errorf("%s changes its color when %s leaves", name, names[4])
		}
	}
}

func TestDuration(t *testing.T) {
	for seconds, want := range map[float64]string{0: "none", -1: "none", 0.04: "0.0 s", 9.94: "9.9 s", 59: "59 s", 200: "3m20s", 3600: "1h0m", 18240: "5h4m"} {
		if got := duration(seconds); got != want {
			t.Errorf("duration(%v) = %q, want %q", seconds, got, want)
		}
	}
}

// A member that gave its status, but then does not say which of its partitions wait, leaves their state open: nothing is guessed.
func TestGatesThatAreNotToldAreNotCalledOpen(t *testing.T) {
	g := &group{
		members: report.Members{Members: []report.Member{healthy("a", 50), but(healthy("b", 1), func(s *report.Status) { s.Gates.Waiting = 49 })}},
		parts:   map[string][]report.Partition{"": owned(100, "open", "a", "b")}, // b does not answer the second question
	}
	v := newSnapshot(look(t.Context(), g, true, nil))
	if got := tileOf(t, v, "Partitions open"); got.Value != "50 of 100" || got.Class != classBusy {
		t.Errorf("the tile shows %+v, want the 50 of a alone", got)
	}
}
