package main

import (
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Each process has clocks of its own, the same for the same seed, at rates that NTP allows.
func TestClockOf(t *testing.T) {
	extremes, seen := map[string]bool{}, map[string]bool{}
	for run := range 200 {
		env := clockOf(options{Seed: 1}, "m0 router", run)
		if !reflect.DeepEqual(env, clockOf(options{Seed: 1}, "m0 router", run)) {
			t.Fatal("the same seed drew other clocks")
		}
		if len(env) != 3 || env[0] == clockOf(options{Seed: 1}, "m1 router", run)[0] && env[1] == clockOf(options{Seed: 1}, "m1 router", run)[1] {
			t.Errorf("two processes have the clocks %v", env)
		}
		list, ok := strings.CutPrefix(env[0], "RINGFENCE_TEST_CLOCK_RATE=")
		if !ok {
			t.Fatalf("no rates in %v", env)
		}
		for text := range strings.SplitSeq(list, ",") {
			rate, err := strconv.ParseFloat(text, 64)
			if err != nil || rate < rateLeast || rate > rateMost {
				t.Errorf("a rate of %s: %v", text, err)
			}
			extremes[text] = rate == rateLeast || rate == rateMost
			seen[text] = true
		}
	}
	if !extremes["0.9170"] || !extremes["1.0830"] || len(seen) < 50 {
		t.Errorf("%d rates, the extremes among them: %v, %v", len(seen), extremes["0.9170"], extremes["1.0830"])
	}
}

func TestDraw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed, n := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 80).Draw(t, "faults")
		members := rapid.IntRange(scaleLeast, scaleMost).Draw(t, "members")
		of := rapid.SliceOfNDistinct(rapid.SampledFrom(kinds), 1, len(kinds), rapid.ID).Draw(t, "kinds")
		rounds := draw(seed, n, members, of)
		if !reflect.DeepEqual(rounds, draw(seed, n, members, of)) {
			t.Fatal("the same seed drew other faults")
		}
		count := map[kind]int{}
		total := 0
		for _, r := range rounds {
			checkRound(t, r, members)
			for _, f := range r.Faults {
				total++
				count[f.Kind]++
			}
		}
		if total != n {
			t.Errorf("%d faults, want %d", total, n)
		}
		for _, k := range of {
			if n >= len(of) && count[k] == 0 {
				t.Errorf("no %s among %d faults", k, n)
			}
			delete(count, k)
		}
		if len(count) > 0 {
			t.Errorf("kinds that were not requested: %v", count)
		}
	})
}

func checkRound(t *rapid.T, r round, members int) {
	if len(r.Faults) == 0 || len(r.Faults) > roundMax {
		t.Errorf("a round of %d faults", len(r.Faults))
	}
	victims, brokers := map[int]bool{}, 0
	for _, f := range r.Faults {
		p := profiles[f.Kind]
		if p.lone && !r.lone() {
			t.Errorf("%v is not alone", f)
		}
		if p.broker {
			brokers++
		}
		if p.lone || p.broker {
			continue
		}
		if p.holder {
			if f.Worker < 0 || f.Worker >= holdersCount || f.Length == 0 {
				t.Errorf("%v: no such holder, or no length", f)
			}
			if victims[ofHolder(f.Worker)] {
				t.Errorf("%v: the second fault of this holder", f)
			}
			victims[ofHolder(f.Worker)] = true
			continue
		}
		if victims[f.Member] {
			t.Errorf("%v: the second fault of this member", f)
		}
		victims[f.Member] = true
		if f.Member < 0 || f.Member >= members {
			t.Errorf("%v: no such member", f)
		}
		if f.Length == 0 && f.Kind != kindLeave {
			t.Errorf("%v has no length", f)
		}
	}
	if brokers > 1 {
		t.Errorf("%d faults of the broker at once", brokers)
	}
}

// TestDrawDrawsEverything: every variant of every kind comes, alone and in company.
func TestDrawDrawsEverything(t *testing.T) {
	alone, together := map[string]bool{}, map[string]bool{}
	for _, r := range draw(1, 3000, 5, kinds) {
		for _, f := range r.Faults {
			if r.lone() {
				alone[string(f.Kind)+f.Variant] = true
			} else {
				together[string(f.Kind)+f.Variant] = true
			}
		}
	}
	for _, k := range kinds {
		for _, v := range profiles[k].variants {
			if !alone[string(k)+v] || !together[string(k)+v] && !profiles[k].lone {
				t.Errorf("%s %s: alone %v, together %v", k, v, alone[string(k)+v], together[string(k)+v])
			}
		}
	}
}

func TestParseKinds(t *testing.T) {
	if got, err := parseKinds("kill, pause,kill"); err != nil || !reflect.DeepEqual(got, []kind{kindKill, kindPause}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := parseKinds(""); err != nil || len(got) != len(kinds) {
		t.Errorf("got %v, %v; want all", got, err)
	}
	if _, err := parseKinds("kill,earthquake"); err == nil {
		t.Error("an unknown kind was taken")
	}
	for _, k := range kinds {
		if p := profiles[k]; p.weight < 1 || len(p.variants) == 0 {
			t.Errorf("%s has the profile %+v", k, p)
		}
	}
	if len(profiles) != len(kinds) {
		t.Errorf("%d profiles of %d kinds", len(profiles), len(kinds))
	}
}

func TestReplayDrawsTheSame(t *testing.T) {
	o, err := parse([]string{"--seed", "7", "--faults", "9", "--members", "4", "--kinds", "kill,cut", "--app-stubborn", "--rate", "10"})
	if err != nil {
		t.Fatal(err)
	}
	want := "go run ./chaos --seed 7 --faults 9 --members 4 --rate 10 --calls 200 --reservations 40 --schedules 10 --timers 0.005 --keys 10000 --sink-share 0.05 --kinds kill,cut --app-stubborn"
	if o.replay() != want {
		t.Errorf("got  %s\nwant %s", o.replay(), want)
	}
}

// TestCutsMayShareAPair: two members without power at once have their link in common.
func TestCutsMayShareAPair(t *testing.T) {
	c := cuts{}
	if got := c.add([]string{"a", "b"}); !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("first: %v", got)
	}
	if got := c.add([]string{"b", "c"}); !reflect.DeepEqual(got, []string{"c"}) {
		t.Errorf("second: %v", got)
	}
	if got := c.remove([]string{"a", "b"}); !reflect.DeepEqual(got, []string{"a"}) {
		t.Errorf("first over: %v", got)
	}
	if got := c.remove([]string{"b", "c"}); !reflect.DeepEqual(got, []string{"b", "c"}) {
		t.Errorf("both over: %v", got)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"--faults", "0"},
		{"--members", "2"},
		{"--members", "10"},
		{"--rate", "0"},
		{"--calls", "-1"},
		{"--calls", "0", "--kinds", "kill,caller_gives_up"},
		{"--reservations", "-1"},
		{"--reservations", "401"},
		{"--reservations", "0", "--kinds", "kill,holder_stop"},
		{"--control", "gossip", "--kinds", "holder_kill"},
		{"--apps", "python", "--kinds", "caller_gives_up"},
		{"--schedules", "-1"},
		{"--schedules", "257"},
		{"--timers", "1.5"},
		{"--sink-share", "2"},
		{"--control", "none"},
		{"--kinds", "rain"},
		{"--kinds", "leave,unload", "--app-stubborn"},
		{"--output", "xml"},
		{"--kinds", "kill,slew", "--limits"},
		{"stray"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

// A run with stubborn applications has faults that leave work behind, whatever its seed.
// The first of these seeds drew none, and its run showed nothing about the sinks.
func TestStubbornRunsLeaveWorkBehind(t *testing.T) {
	for seed := uint64(644541); seed < 644541+500; seed++ {
		o := options{Seed: seed, Faults: 8, Members: 5, Kinds: []kind{kindKill, kindPower, kindPause, kindCut, kindHalfCut, kindLeave, kindCrashWorker}, Stubborn: true}
		rounds, faults := plan(o), 0
		for _, r := range rounds {
			faults += len(r.Faults)
		}
		if elsewhere, here := leftBehind(rounds); elsewhere+here < leftBehindLeast || here == 0 || faults != o.Faults {
			t.Errorf("seed %d: %d of %d faults leave work behind, and %d within one member", seed, elsewhere+here, faults, here)
		}
		o.Stubborn = false
		if !reflect.DeepEqual(plan(o), draw(seed, o.Faults, o.Members, o.Kinds)) {
			t.Errorf("seed %d: the plan differs from the drawn one, though no application is stubborn", seed)
		}
	}
}
