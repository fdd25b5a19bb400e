package report

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

func member(name, epoch, table string) Member {
	return Member{Name: name, Listed: true, Status: &Status{Mode: ModeStrict, View: View{Member: name, Epoch: epoch, Table: table}}}
}

func TestDisagreements(t *testing.T) {
	gossip := member("c", "1:5", "aa")
	gossip.Status.Mode = "gossip"
	with := func(name, keyFrom string) Member {
		m := member(name, "1:5", "aa")
		m.Status.Settings = map[string]string{"key.from": keyFrom}
		return m
	}
	refused, waits := member("a", "1:5", "aa"), member("b", "1:5", "aa")
	refused.Status.OtherSettings = `x key.from is "k" here and "l" there`
	denied := member("a", "1:5", "aa")
	denied.Status.TopicsUnread = map[string]string{"orders": "denied"}
	waits.Status.TopicsNotConsumed = map[string][]string{"orders": {"a"}}
	for name, test := range map[string]struct {
		members []Member
		want    []string
	}{
		"other settings":  {[]Member{with("a", "k"), with("b", "l"), member("c", "1:5", "aa")}, []string{`not all have the same settings: a says key.from "k"; b says key.from "l"`}},
		"a refused one":   {[]Member{refused}, []string{`a refused a router with other settings: x key.from is "k" here and "l" there`}},
		"a topic waits":   {[]Member{waits}, []string{"topic orders is not consumed until it is listed by a"}},
		"a lost topic":    {[]Member{denied}, []string{"a cannot read topic orders any more: denied"}},
		"all agree":       {[]Member{member("a", "1:5", "aa"), member("b", "1:5", "aa")}, nil},
		"nobody there":    {nil, nil},
		"one is silent":   {[]Member{member("a", "1:5", "aa"), {Name: "b", Error: "it is gone"}}, []string{"b does not answer: it is gone"}},
		"one is behind":   {[]Member{member("a", "1:5", "aa"), member("b", "1:4", "bb"), member("c", "1:5", "aa")}, []string{"members differ in their epoch: a, c say epoch 1:5; b says epoch 1:4"}},
		"other tables":    {[]Member{member("a", "1:5", "aa"), member("b", "1:5", "bb")}, []string{"at epoch 1:5 not all have the same table: a says table aa; b says table bb"}},
		"other decisions": {[]Member{member("a", "1:5", "aa"), gossip}, []string{"members differ in ownership.mode: a says ownership.mode strict; c says ownership.mode gossip"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Disagreements(Members{Members: test.members})
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("got %q, want %q", got[i], want)
				}
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		status  Status
		want    Verdict
		reasons int
	}{
		"nothing has happened": {Status{Mode: ModeStrict}, Kept, 0},
		"a lease ran out":      {Status{Mode: ModeStrict, Exclusivity: Exclusivity{LeaseLapses: 3, LostTrust: 1}}, Kept, 0},
		"a handler was late":   {Status{Mode: ModeStrict, Exclusivity: Exclusivity{LateResults: 1}}, AtRisk, 1},
		"a drain was forced":   {Status{Mode: ModeStrict, Exclusivity: Exclusivity{ForcedDrains: 2, LateResults: 1}}, AtRisk, 2},
		"a bug":                {Status{Mode: ModeStrict, Exclusivity: Exclusivity{InvariantFailures: 1, LateResults: 1}}, Broken, 2},
		"gossip":               {Status{Mode: "gossip"}, NotPromised, 1},
		"gossip and a bug":     {Status{Mode: "gossip", Exclusivity: Exclusivity{InvariantFailures: 1}}, NotPromised, 2},
	} {
		if got, reasons := test.status.Verdict(); got != test.want || len(reasons) != test.reasons {
			t.Errorf("%s: %s %q, want %s with %d reasons", name, got, reasons, test.want, test.reasons)
		}
	}
}

func TestFindPrefersWhoIsInTheTable(t *testing.T) {
	g := &Group{local: fixed{members: []Member{{Name: "a", Reach: ReachSelf}, {Name: "b", Incarnation: "old"}, {Name: "b", Incarnation: "new", Listed: true}}}}
	if m, err := g.find("b"); err != nil || m.Incarnation != "new" {
		t.Errorf("b is %+v (%v)", m, err)
	}
	if m, err := g.find(""); err != nil || m.Name != "a" {
		t.Errorf("the local one is %+v (%v)", m, err)
	}
	if _, err := g.find("c"); err == nil || !strings.Contains(err.Error(), "there are a, b") {
		t.Errorf("c: %v", err)
	}
}

// TestMembersLeavesOutThePastOfThisProcess: between an undrain and the next table, the table names the incarnation that has drained.
func TestMembersLeavesOutThePastOfThisProcess(t *testing.T) {
	g := &Group{local: fixed{members: []Member{{Name: "a", Incarnation: "old", Listed: true, Over: true}, {Name: "a", Incarnation: "new", Reach: ReachSelf}}}}
	all := g.Members(t.Context())
	if len(all.Members) != 1 || all.Members[0].Incarnation != "new" || all.Members[0].Error != "" || len(all.Disagreements) > 0 {
		t.Errorf("%+v, %q; want the new one, and no disagreement", all.Members, all.Disagreements)
	}
}

// fixed is a Local of which only the members are asked.
type fixed struct {
	Local

	members []Member
}

func (f fixed) Members() []Member { return slices.Clone(f.members) }
func (f fixed) Status() Status    { return Status{} }

func TestProtections(t *testing.T) {
	with := func(name string, listeners ...Listener) Member {
		m := member(name, "1:5", "aa")
		m.Status.Listeners = listeners
		return m
	}
	app, peer := Listener{Name: "app", ProtectedBy: "loopback"}, Listener{Name: "peer", ProtectedBy: "TLS, name orders"}
	open := Listener{Name: "peer", ProtectedBy: "nothing (insecure)", Exposed: true}
	got := Protections(Members{Members: []Member{with("a", app, open), with("b", app, peer), with("c", app, peer), with("older"), {Name: "silent"}}})
	want := []Protection{
		{Members: []string{"b", "c"}, Listeners: "app: loopback | peer: TLS, name orders"},
		{Members: []string{"a"}, Listeners: "app: loopback | peer: nothing (insecure)", Exposed: []string{"peer"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
