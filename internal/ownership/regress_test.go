package ownership

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// Executions that the simulator of whole clusters has found, each provoked on purpose.

// TestBeatsThatAnOutageHeldBackCountOnce: own Beats that were sent at intervals and are read together
// must not count at one moment, or the Beats of other members would look too old.
func TestBeatsThatAnOutageHeldBackCountOnce(t *testing.T) {
	m := quietWorld(t, 1, DefaultTiming(), 1).procs[0].m
	r := m.cfg.Timing.BeatEvery
	for name, c := range map[string]struct {
		apart time.Duration
		want  int
	}{
		"together":             {0, 1},
		"at half their pace":   {r / 2, 5},
		"at their own pace":    {r, 5},
		"each after a silence": {4 * r, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m.counted = nil
			for i := range 5 {
				sent := clock.Instant(time.Hour) + clock.Instant(i)*clock.Instant(r)
				m.count(counted{sent: sent, read: clock.Instant(2*time.Hour) + clock.Instant(i)*clock.Instant(c.apart)})
			}
			if len(m.counted) != c.want {
				t.Errorf("%d of 5 Beats count, want %d", len(m.counted), c.want)
			}
		})
	}
}

// TestBeatOfBeforeARemovalAsksForNothing: a Beat that lands after its sender was
// removed, and was sent before, does not make the dead a member again.
func TestBeatOfBeforeARemovalAsksForNothing(t *testing.T) {
	w := quietWorld(t, 3, DefaultTiming(), 1)
	w.brief = true
	m := w.procs[0].m
	dead := Incarnation{0xF}
	w.hear(dead, &Hello{Node: Node{Name: "dead", Inc: dead, Lease: time.Second}, HashID: "h", Partitions: simPartitions})
	beat := &Beat{Applied: m.tail.last, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: true}
	w.hear(dead, beat)
	w.runUntil(w.now + time.Second)
	if !m.state.IsMember(dead) {
		t.Fatal("it never became a member: this proves nothing")
	}
	w.runUntil(w.now + 10*time.Second)
	if m.state.IsMember(dead) {
		t.Fatal("it is silent, and still a member")
	}
	w.hear(dead, beat)
	w.runUntil(w.now + 2*time.Second)
	if m.state.IsMember(dead) {
		t.Error("a late Beat has made it a member again")
	}
	w.hear(dead, &Beat{Applied: m.tail.last, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: true})
	w.runUntil(w.now + time.Second)
	if !m.state.IsMember(dead) {
		t.Error("a Beat of after the removal has not made it a member")
	}
}

// TestOwnLeaveIsNoRemoval: the epoch by which a member gives up its partitions, for want of an
// application, may land after the application is back. It was not voted off, so it does not wait
// before it joins again.
func TestOwnLeaveIsNoRemoval(t *testing.T) {
	for name, c := range map[string]struct {
		app, own, asked, want bool
	}{
		"others' epoch":                       {app: true, want: true},
		"its own, the application is back":    {app: true, own: true},
		"its own, the application is missing": {own: true},
		"others' epoch, it wants out":         {},
		"others' epoch, it had asked":         {app: true, asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := quietWorld(t, 2, DefaultTiming(), 1).procs[0].m
			m.app, m.appGone = c.app, 0
			by := Incarnation{0xF}
			if c.own {
				by = m.cfg.Inc
			}
			if c.asked {
				m.peer(m.cfg.Inc).asked = m.state.Cur
			}
			m.removed(read{at: m.state.Cur, rec: Record{Inc: by}, when: m.now})
			if m.votedOff != c.want {
				t.Errorf("it takes itself for removed by others: %t, want %t", m.votedOff, c.want)
			}
		})
	}
}

// TestLostProposalToLeaveIsARequest: whose proposal to leave was lost is taken along by others, unless it wants partitions again, or had asked
// in an earlier membership.
func TestLostProposalToLeaveIsARequest(t *testing.T) {
	node := Incarnation{0xF}
	for name, c := range map[string]struct {
		ready, ask, old, back, remains bool
		left                           bool
	}{
		"it asked":                           {ask: true, left: true},
		"it only lacks an application":       {},
		"it asked, and its Beat is ready":    {ask: true, ready: true},
		"it asked before it was a member":    {ask: true, old: true},
		"it asked, and its application came": {ask: true, back: true},
		"it lost a proposal to remain":       {ask: true, remains: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := quietWorld(t, 3, DefaultTiming(), 1)
			w.brief = true
			m := w.procs[0].m
			beat := func(ready bool) {
				w.hear(node, &Beat{Applied: m.tail.last, Cur: m.state.Cur, ViewHash: m.state.ViewHash, Ready: ready})
			}
			before := m.state.Cur
			w.hear(node, &Hello{Node: Node{Name: "node", Inc: node, Lease: 2 * time.Second}, HashID: "h", Partitions: simPartitions})
			for range 4 {
				beat(true)
			}
			if !m.state.IsMember(node) {
				t.Fatal("it never became a member: this proves nothing")
			}
			lost := &Epoch{Prev: m.state.Cur, Members: []Incarnation{m.cfg.Inc}, Table: make([]uint16, simPartitions+1)}
			if c.old {
				lost.Prev = before
			}
			if c.remains {
				lost.Members = append(lost.Members, node)
			}
			if c.ask {
				w.hear(node, lost)
			}
			if c.back {
				beat(true)
			}
			for range 5 {
				beat(c.ready)
			}
			if left := !m.state.IsMember(node); left != c.left {
				t.Errorf("it was taken out: %t, want %t", left, c.left)
			}
		})
	}
}

// TestDeadPredecessorTakesNobodysName: an epoch that brings our own dead predecessor
// back is not for us to obey; one that brings a successor is.
func TestDeadPredecessorTakesNobodysName(t *testing.T) {
	own, other := Incarnation{1}, Incarnation{2}
	for name, c := range map[string]struct {
		nodes []Incarnation // in the order of their coming
		want  bool
	}{
		"a predecessor": {[]Incarnation{other, own}, false},
		"a successor":   {[]Incarnation{own, other}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &State{Members: []Incarnation{other}}
			for _, inc := range c.nodes {
				s.Nodes = append(s.Nodes, Node{Name: "n", Inc: inc})
			}
			s.index()
			m := &Machine{cfg: Config{Name: "n", Inc: own}, state: s}
			if got := m.nameTaken([]Incarnation{own}); got != c.want {
				t.Errorf("nameTaken = %t, want %t", got, c.want)
			}
		})
	}
}

// A broker that takes longer than the timeout of a contiguity check answers one in the end: all members check at the
// same time, and checks that give up after the same short time would keep it busy for good.
func TestContiguityChecksWaitLonger(t *testing.T) {
	cfg := Config{Partitions: 1, Timing: DefaultTiming()}
	cfg.Timing.HelloLostAfter = time.Hour // its reader is not replaced
	m := New(cfg)
	now := clock.Instant(time.Hour)
	m.Step(now, Tick{})
	m.Step(now, ReaderOpened{Reader: m.tail.reader})
	first, second := Position{Ledger: 1, Entry: 4}, Position{Ledger: 2}
	m.tail.last = first
	var timeouts []time.Duration
	var newest uint64
	var asked clock.Instant
	note := func(effects []Effect) {
		for _, e := range effects {
			if c, ok := e.(CheckContiguity); ok {
				timeouts, newest, asked = append(timeouts, c.Timeout), c.Check, now
			}
		}
	}
	note(m.Step(now, RecordRead{Reader: m.tail.reader, At: second}))
	const took = 2 * time.Second // an answer
	for end := now.Add(time.Minute); m.tail.checking; now = now.Add(10 * time.Millisecond) {
		if now.After(end) {
			t.Fatalf("no check is answered within %v: %v", took, timeouts)
		}
		note(m.Step(now, Tick{}))
		if now.Sub(asked) >= took {
			note(m.Step(now, CheckAnswer{Check: newest, First: first, Second: second}))
		}
	}
	base := cfg.Timing.CheckTimeout
	if want := []time.Duration{base, 2 * base, 4 * base, 8 * base}; !slices.Equal(timeouts, want) {
		t.Errorf("checks with the timeouts %v, want %v", timeouts, want)
	}
	m.tail.last = second
	note(m.Step(now, RecordRead{Reader: m.tail.reader, At: Position{Ledger: 3}}))
	if got := timeouts[len(timeouts)-1]; got != base {
		t.Errorf("the next one has the timeout %v, want %v", got, base)
	}
	began := now
	note(m.Step(now, CheckAnswer{Check: newest, Failed: true})) // at once
	for asked <= began && now.Sub(began) < time.Minute {
		now = now.Add(10 * time.Millisecond)
		note(m.Step(now, Tick{}))
	}
	if again := asked.Sub(began); again > base+10*time.Millisecond {
		t.Errorf("a check that failed at once is repeated after %v, want %v", again, base)
	}
}

// TestContiguityCheckAnswers: the answer to the newest check must name both records, or the log has a hole.
func TestContiguityCheckAnswers(t *testing.T) {
	first, second, other := Position{Ledger: 1, Entry: 4}, Position{Ledger: 2}, Position{Ledger: 1, Entry: 3}
	for name, c := range map[string]struct {
		late        bool // it answers an earlier check
		one, two    Position
		waits, gone bool
	}{
		"both":                       {one: first, two: second},
		"another first one":          {one: other, two: second, gone: true},
		"another second one":         {one: first, two: Position{Ledger: 1, Entry: 5}, gone: true},
		"both, to an earlier check":  {late: true, one: first, two: second, waits: true},
		"wrong, to an earlier check": {late: true, one: other, two: second, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Config{Partitions: 1, Timing: DefaultTiming()})
			now := clock.Instant(time.Hour)
			m.Step(now, Tick{})
			m.Step(now, ReaderOpened{Reader: m.tail.reader})
			m.tail.last = first
			m.Step(now, RecordRead{Reader: m.tail.reader, At: second})
			answer := CheckAnswer{Check: m.tail.check, First: c.one, Second: c.two}
			if c.late {
				answer.Check--
			}
			reader := m.tail.reader
			m.Step(now, answer)
			if gone := m.tail.reader != reader; gone != c.gone || m.tail.checking != c.waits {
				t.Errorf("a hole: %t, want %t; the check goes on: %t, want %t", gone, c.gone, m.tail.checking, c.waits)
			}
		})
	}
}

// TestAGroupBeginsOnASlowBroker: a broker that brings a record back more slowly than Hellos are due, but in time for
// leases, lets routers begin a group, alone or together. Each Hello then comes back when the next one is due already.
func TestAGroupBeginsOnASlowBroker(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, back := range []time.Duration{450 * time.Millisecond, 600 * time.Millisecond, 900 * time.Millisecond} {
			t.Run(fmt.Sprint(n, " routers ", back), func(t *testing.T) {
				for seed := range uint64(10) {
					if took := beginsAfter(n, seed, back); took > 15*time.Second {
						t.Fatalf("seed %d: no group of all after %v", seed, took)
					}
				}
			})
		}
	}
}

// beginsAfter returns how long routers with the default times take to begin a group of all on a log that brings each record back after some time.
func beginsAfter(n int, seed uint64, back time.Duration) time.Duration {
	type due struct {
		at clock.Instant
		in Input
	}
	start := clock.Instant(time.Hour)
	now, end := start, Position{Ledger: 3, Entry: 50}
	var machines []*Machine
	inputs := make([][]due, n)
	for i := range n {
		cfg := memoryConfig()
		cfg.Seed, cfg.Name, cfg.Inc = seed*100+uint64(i), fmt.Sprint("n", i), Incarnation{byte(i + 1)}
		machines = append(machines, New(cfg))
		inputs[i] = []due{{now, AppReady{true}}}
	}
	var landing []due // RecordRead, without the reader
	step := func(i int, in Input) {
		for _, e := range machines[i].Step(now, in) {
			switch e := e.(type) {
			case OpenReader:
				inputs[i] = append(inputs[i], due{now, ReaderOpened{Reader: e.Reader}})
			case ReadFirst:
				inputs[i] = append(inputs[i], due{now.Add(back), FirstRead{Read: e.Read, Virgin: true, First: Position{Ledger: 3, Entry: 50}}})
			case Append:
				landing = append(landing, due{now.Add(back / 2), RecordRead{Record: e.Record}})
			}
		}
	}
	for ; now.Sub(start) < time.Minute; now = now.Add(5 * time.Millisecond) {
		for ; len(landing) > 0 && landing[0].at <= now; landing = landing[1:] {
			record := landing[0].in.(RecordRead)
			record.At = end
			end.Entry++
			for i, m := range machines {
				record.Reader = m.tail.reader
				inputs[i] = append(inputs[i], due{now.Add(back / 2), record})
			}
		}
		began := 0
		for i, m := range machines {
			for len(inputs[i]) > 0 && inputs[i][0].at <= now {
				in := inputs[i][0].in
				inputs[i] = inputs[i][1:]
				step(i, in)
			}
			step(i, Tick{})
			if m.state != nil && len(m.state.Members) == n {
				began++
			}
		}
		if began == n {
			break
		}
	}
	return now.Sub(start)
}
