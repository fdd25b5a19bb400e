package claim

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
)

var (
	orders  = identity.Of(identity.Setting{Name: "node.group", Value: "orders"}, identity.Setting{Name: "key.from", Value: "message_key"})
	billing = identity.Of(identity.Setting{Name: "node.group", Value: "billing"}, identity.Setting{Name: "key.from", Value: "message_key"})
	newer   = identity.Of(append(slices.Clone(orders), identity.Setting{Name: "zone", Value: "a"})...)
	newest  = identity.Of(append(slices.Clone(orders), identity.Setting{Name: "zone", Value: "b"})...)
)

const (
	subA = "subscription persistent://t/n/a s"
	subB = "subscription persistent://t/n/b s"
)

func claimBy(who identity.Identity, resources ...string) Record {
	return Record{Identity: who, Resources: resources}
}

func began(gen uint32, r Record) Record { r.Began, r.Gen = true, gen; return r }
func release(r Record) Record           { r.Release = true; return r }
func force(r Record) Record             { r.Release, r.Force = true, true; return r }

// holders lists each resource with its holder, in short as orders(began 3).
func holders(f *Fold) string {
	var out []string
	for _, name := range f.Resources() {
		s := f.State(name)
		who, _ := s.Holder.Value("node.group")
		if s.Holder == nil {
			who = "-"
		}
		if zone, ok := s.Holder.Value("zone"); ok {
			who += "/" + zone
		}
		if s.Began {
			who += fmt.Sprintf(" began %d", s.Gen)
		}
		out = append(out, name[len(name)-3:len(name)-2]+"="+who)
	}
	return strings.Join(out, ", ")
}

func TestFold(t *testing.T) {
	for name, test := range map[string]struct {
		records []Record
		results string
		want    string
	}{
		"the first wins": {
			[]Record{claimBy(orders, subA), claimBy(billing, subA)}, "claimed refused", "a=orders",
		},
		"an equal one confirms": {
			[]Record{claimBy(orders, subA), claimBy(orders, subA)}, "claimed confirmed", "a=orders",
		},
		"an equal one claims more": {
			[]Record{claimBy(orders, subA), claimBy(orders, subA, subB)}, "claimed claimed", "a=orders, b=orders",
		},
		"all or nothing": {
			[]Record{claimBy(orders, subA), claimBy(billing, subB, subA)}, "claimed refused", "a=orders",
		},
		"a later version adds its settings, and then they count": {
			[]Record{claimBy(orders, subA), claimBy(newer, subA), claimBy(newest, subA), claimBy(orders, subA)},
			"claimed confirmed refused confirmed", "a=orders/a",
		},
		"released by its holder": {
			[]Record{claimBy(orders, subA, subB), release(claimBy(orders, subA)), claimBy(billing, subA)},
			"claimed released claimed", "a=billing, b=orders",
		},
		"not by another": {
			[]Record{claimBy(orders, subA), release(claimBy(billing, subA)), claimBy(billing, subA)},
			"claimed refused refused", "a=orders",
		},
		"but by force": {
			[]Record{claimBy(orders, subA), force(claimBy(billing, subA)), claimBy(billing, subA)},
			"claimed released claimed", "a=billing",
		},
		"by force without an identity": {
			[]Record{claimBy(orders, subA), force(claimBy(nil, subA))}, "claimed released", "a=-",
		},
		"nothing to release": {
			[]Record{release(claimBy(orders, subA))}, "refused", "",
		},
		"the generation rises, and outlasts the claim": {
			[]Record{
				began(3, claimBy(orders, subA)), began(2, claimBy(orders, subA)), release(claimBy(orders, subA)),
				claimBy(billing, subA), began(1, claimBy(billing, subA)),
			},
			"claimed confirmed released claimed confirmed", "a=billing began 3",
		},
		"a refused claim raises no generation": {
			[]Record{claimBy(orders, subA), began(9, claimBy(billing, subA))}, "claimed refused", "a=orders",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var f Fold
			var results []string
			for i, r := range test.records {
				data, err := Encode(r)
				if err != nil {
					t.Fatal(err)
				}
				_, result := f.Apply(event.Position{Ledger: 1, Entry: int64(i)}, data)
				results = append(results, string(result))
				if _, again := f.Apply(event.Position{Ledger: 1, Entry: int64(i)}, data); again != Repeated {
					t.Errorf("record %d read twice: %s", i, again)
				}
			}
			if got := strings.Join(results, " "); got != test.results {
				t.Errorf("results %s, want %s", got, test.results)
			}
			if got := holders(&f); got != test.want {
				t.Errorf("holders %s, want %s", got, test.want)
			}
		})
	}
}

// Records that are not claims change nothing, and are counted by kind.
func TestFoldIgnores(t *testing.T) {
	good, err := Encode(claimBy(orders, subA))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		data []byte
		want Result
	}{
		"noise":     {[]byte("\xff\xff noise"), Malformed},
		"nothing":   {nil, Later}, // format 0
		"oversized": {make([]byte, recordMax+1), Malformed},
		"cut":       {good[:len(good)-3], Malformed},
		"a version": {slices.Concat(good, []byte{1 << 3, 2}), Later},                        // version: 2
		"a kind":    {slices.Concat(good, []byte{2<<3 | 2, 5}, []byte("x y z")), Malformed}, // resources: "x y z"
		"twice":     {slices.Concat(good, []byte{2<<3 | 2, byte(len(subA))}, []byte(subA)), Malformed},
		"gen 200":   {slices.Concat(good, []byte{5 << 3, 200, 1}), Malformed},
		"writer":    {slices.Concat(good, []byte{3<<3 | 2, 1, 7}), Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			var f Fold
			if _, got := f.Apply(event.Position{Ledger: 1}, test.data); got != test.want || holders(&f) != "" {
				t.Errorf("%s, want %s; holders %q", got, test.want, holders(&f))
			}
		})
	}
	if _, err := Encode(Record{Resources: []string{subA}}); err == nil {
		t.Error("a claim without an identity was encoded, though it would match every group")
	}
}

// A fold is bounded, and keeps its knowledge at the bound.
func TestFoldIsBounded(t *testing.T) {
	var f Fold
	at := event.Position{Ledger: 1}
	apply := func(r Record) Result {
		data, err := Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		at.Entry++
		_, result := f.Apply(at, data)
		return result
	}
	for i := 0; i < allResourcesMax; i += resourcesMax {
		r := Record{Identity: orders}
		for n := range resourcesMax {
			r.Resources = append(r.Resources, fmt.Sprintf("subscription %d s", i+n))
		}
		if got := apply(r); got != Claimed {
			t.Fatal(got)
		}
	}
	if got := apply(claimBy(orders, subA)); got != Malformed || len(f.states) != allResourcesMax {
		t.Errorf("one more: %s, %d known", got, len(f.states))
	}
	if got := apply(began(1, claimBy(orders, "subscription 7 s"))); got != Confirmed {
		t.Errorf("a known one: %s", got)
	}
}

// TestFoldRules: for any records in any order, a holder changes only after a release, a generation never falls, and a
// router that is judged to hold all resources is the holder of each.
func TestFoldRules(t *testing.T) {
	everybody := []identity.Identity{orders, billing, newer, newest}
	all := []string{subA, subB, Control("persistent://t/n/__ring-orders")}
	rapid.Check(t, func(t *rapid.T) {
		var f, again Fold
		for i := range rapid.IntRange(1, 40).Draw(t, "records") {
			r := Record{
				Identity:  rapid.SampledFrom(everybody).Draw(t, "who"),
				Resources: rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 3, rapid.ID[string]).Draw(t, "what"),
				Began:     rapid.Bool().Draw(t, "began"),
				Gen:       rapid.Uint32Range(0, 3).Draw(t, "gen"),
				Release:   rapid.IntRange(0, 4).Draw(t, "release") == 0,
				Force:     rapid.Bool().Draw(t, "force"),
			}
			data, err := Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			before := map[string]State{}
			for _, name := range all {
				before[name] = f.State(name)
			}
			at := event.Position{Ledger: 1, Entry: int64(i)}
			_, result := f.Apply(at, data)
			if _, other := again.Apply(at, data); other != result || holders(&f) != holders(&again) {
				t.Fatalf("two readers of one log: %s and %s", result, other)
			}
			for _, name := range all {
				was, is := before[name], f.State(name)
				if was.Holder != nil && is.Holder != nil && len(was.Holder.Against(is.Holder)) > 0 {
					t.Fatalf("%s went from %v to %v by %s", name, was.Holder, is.Holder, result)
				}
				if was.Holder != nil && is.Holder == nil && !r.Release {
					t.Fatalf("%s was lost by a %s", name, result)
				}
				if is.Gen < was.Gen || was.Began && !is.Began {
					t.Fatalf("%s: generation %d (%v) after %d (%v)", name, is.Gen, is.Began, was.Gen, was.Began)
				}
			}
			// Two that differ never hold the same.
			for _, one := range everybody {
				for _, other := range everybody {
					if len(one.Against(other)) > 0 && holds(&f, one, all[0]) && holds(&f, other, all[0]) {
						t.Fatalf("%v and %v both hold %s", one, other, all[0])
					}
				}
			}
		}
	})
}

func TestPlaces(t *testing.T) {
	places, err := Places([]string{"persistent://t/events/a", "persistent://t/events/a-partition-3", "non-persistent://t/more/c"},
		"s", "persistent://t/control/__ring-orders")
	if err != nil {
		t.Fatal(err)
	}
	want := []Place{
		{"persistent://t/control/__ringfence-claims", []string{"control persistent://t/control/__ring-orders"}},
		{"persistent://t/events/__ringfence-claims", []string{"subscription persistent://t/events/a s"}},
		{"persistent://t/more/__ringfence-claims", []string{"subscription non-persistent://t/more/c s"}},
	}
	if fmt.Sprint(places) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", places, want)
	}
	if _, err := Places([]string{"orders"}, "s", ""); err == nil {
		t.Error("a topic without a namespace was taken")
	}
}

// holds reports whether a Keeper of this identity would let its router begin.
func holds(f *Fold, who identity.Identity, resource string) bool {
	v := f.Judge(who, []string{resource})
	return v.Held() && !v.Extends
}

// TestCrowdedRecord: a record full of empty settings or resources takes no more memory than its bytes.
func TestCrowdedRecord(t *testing.T) {
	for name, item := range map[string]string{"settings": "\x22\x00", "resources": "\x12\x00"} {
		data := []byte(strings.Repeat(item, recordMax/2))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Decode(data)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; err == nil || took > recordMax {
			t.Errorf("%s: %v, and %d KB for a record of %d", name, err, took>>10, len(data)>>10)
		}
	}
}
