package ownership

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// coldStart lets a machine read its own Hellos back from a log at a ledger until it asks for the log's first records,
// answers, and returns the Genesis or the reason of the exit.
func coldStart(t *testing.T, cfg Config, ledger int64, answer FirstRead) (genesis *Genesis, exit string) {
	t.Helper()
	m := New(cfg)
	now := clock.Instant(time.Hour)
	at := Position{Ledger: ledger, Entry: 50}
	inputs := []Input{AppReady{true}}
	for range 10_000 {
		var in Input = Tick{}
		if len(inputs) > 0 {
			in, inputs = inputs[0], inputs[1:]
		} else {
			now = now.Add(10 * time.Millisecond)
		}
		for _, e := range m.Step(now, in) {
			switch e := e.(type) {
			case OpenReader:
				inputs = append(inputs, ReaderOpened{Reader: e.Reader})
			case Append:
				if g, ok := e.Record.Body.(*Genesis); ok {
					return g, ""
				}
				inputs = append(inputs, RecordRead{Reader: m.tail.reader, At: at, Record: e.Record})
				at.Entry++
			case ReadFirst:
				answer.Read = e.Read
				inputs = append(inputs, answer)
			case Exit:
				return nil, e.Reason
			}
		}
	}
	t.Fatal("neither a Genesis nor an exit")
	return nil, ""
}

// TestColdStartAfterALongRead: a node whose log takes longer to read than the Hellos that it remembers begins a group by the first answer,
// unless it has read a take meanwhile.
func TestColdStartAfterALongRead(t *testing.T) {
	for name, c := range map[string]struct {
		take  bool // comes while the log is read
		reads int
	}{"nothing comes meanwhile": {false, 1}, "a take comes meanwhile": {true, 2}} {
		t.Run(name, func(t *testing.T) {
			cfg := memoryConfig()
			cfg.Timing.ReopenAfter = 25 * time.Second
			m, now, at := New(cfg), clock.Instant(time.Hour), Position{Ledger: 3, Entry: 50}
			inputs := []Input{AppReady{true}}
			var answer FirstRead
			var answerAt clock.Instant // 0: none is under way
			taken := false
			for range 6000 {
				in := Input(Tick{})
				switch {
				case len(inputs) > 0:
					in, inputs = inputs[0], inputs[1:]
				case answerAt != 0 && now >= answerAt:
					in, answerAt = answer, 0
				default:
					now = now.Add(10 * time.Millisecond)
				}
				deliver := func(r Record) {
					inputs = append(inputs, RecordRead{Reader: m.tail.reader, At: at, Record: r})
					at.Entry++
				}
				for _, e := range m.Step(now, in) {
					switch e := e.(type) {
					case OpenReader:
						inputs = append(inputs, ReaderOpened{Reader: e.Reader})
					case ReadFirst:
						answer, answerAt = FirstRead{Read: e.Read, First: Position{Ledger: 3}}, now.Add(5*time.Second)
						if c.take && !taken { // of a member that is gone, and whose record lands late
							taken = true
							deliver(Record{LogVersion: LogVersionMax, Group: "g", Inc: Incarnation{2}, Body: &Reservations{
								Seq: 1, Applied: Position{Ledger: 3}, Take: []Take{{KeyAt: KeyAt{Partition: 1, Key: 9}, ID: ReservationID{1}, TTL: TTLLeast}},
							}})
						}
					case Append:
						if _, ok := e.Record.Body.(*Genesis); ok {
							if int(answer.Read) != c.reads {
								t.Errorf("it began after %d reads of the log, want %d", answer.Read, c.reads)
							}
							return
						}
						deliver(e.Record)
					case Exit:
						t.Fatal(e.Reason)
					}
				}
			}
			t.Errorf("no Genesis in a minute, after %d reads of the log", answer.Read)
		})
	}
}

func memoryConfig() Config {
	return Config{
		Group: "g", Name: "a", Inc: Incarnation{1}, HashID: "h", Partitions: simPartitions, Timing: DefaultTiming(), LogVersion: LogVersionMax,
		Place: func(names []string) ([]uint16, error) { return make([]uint16, simPartitions), nil },
	}
}

// TestColdStartOnAnEmptyLog: a process that remembers tokens begins a group on an empty log only if the log follows the
// one that it has read. Others may have read on: on the same ledger, or on one between, their tokens are greater.
func TestColdStartOnAnEmptyLog(t *testing.T) {
	floor := TokenOf(0, Position{Ledger: 3, Entry: 20})
	for name, c := range map[string]struct {
		memory Memory
		gen    uint32
		answer FirstRead
		ledger int64
		exit   string
	}{
		"the first group of all":            {answer: FirstRead{Virgin: true, First: Position{Ledger: 3}}, ledger: 3},
		"another process had a group":       {answer: FirstRead{Virgin: true, HadGroup: true, First: Position{Ledger: 3}}, ledger: 3, exit: "ownership.generation to 1"},
		"only records of a later version":   {answer: FirstRead{Virgin: true, HadGroup: true, First: Position{Ledger: 3}, Later: 4}, ledger: 3, exit: "no record of a group but those in log version 4, and this router reads up to 3,"},
		"the topic was deleted":             {memory: Memory{Floor: floor, Seen: Position{Ledger: 3, Entry: 80}}, answer: FirstRead{Virgin: true, HadGroup: true, First: Position{Ledger: 4}}, ledger: 4},
		"its metadata was lost":             {memory: Memory{Floor: floor, Seen: Position{Ledger: 3, Entry: 30}}, answer: FirstRead{Virgin: true, First: Position{Ledger: 3}}, ledger: 3, exit: "ownership.generation to 1"},
		"the same, and the ledger rolled":   {memory: Memory{Floor: floor, Seen: Position{Ledger: 5, Entry: 1}}, answer: FirstRead{Virgin: true, First: Position{Ledger: 4}}, ledger: 6, exit: "ownership.generation to 1"},
		"the same, and a higher generation": {memory: Memory{Floor: floor, Seen: Position{Ledger: 3, Entry: 30}}, gen: 1, answer: FirstRead{Virgin: true, First: Position{Ledger: 3}}, ledger: 3},
		"a higher generation that is not":   {memory: Memory{Floor: TokenOf(1, Position{Ledger: 3}), Seen: Position{Ledger: 3, Entry: 30}}, gen: 1, answer: FirstRead{Virgin: true, First: Position{Ledger: 3}}, ledger: 3, exit: "ownership.generation to 2"},
		"the group's records are there":     {memory: Memory{Floor: floor, Seen: Position{Ledger: 3, Entry: 30}}, answer: FirstRead{HadGroup: true, First: Position{Ledger: 3}}, ledger: 3},
		"another router has read on":        {memory: Memory{Floor: floor, Seen: Position{Ledger: 3, Entry: 30}}, answer: FirstRead{Virgin: true, First: Position{Ledger: 4}, Told: TokenOf(0, Position{Ledger: 4, Entry: 900})}, ledger: 4, exit: "would go backward"},
		"a fresh process is told of tokens": {answer: FirstRead{Virgin: true, First: Position{Ledger: 3}, Told: TokenOf(0, Position{Ledger: 2})}, ledger: 3, exit: "ownership.generation to 1"},
		"a log of lower ledgers":            {memory: Memory{Floor: floor, Seen: Position{Ledger: 3, Entry: 30}}, answer: FirstRead{First: Position{Ledger: 2}}, ledger: 2, exit: "would go backward"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := memoryConfig()
			cfg.Memory, cfg.Gen = c.memory, c.gen
			genesis, exit := coldStart(t, cfg, c.ledger, c.answer)
			if c.exit == "" {
				if genesis == nil {
					t.Errorf("exit: %s; want a Genesis", exit)
				}
				return
			}
			if !strings.Contains(exit, c.exit) {
				t.Errorf("exit %q, Genesis %v; want an exit with %q", exit, genesis, c.exit)
			}
		})
	}
}

// TestMemoryOutlivesAnIncarnation: the knowledge that a process has read about a group passes to its next incarnation.
// Hellos of routers that look for a group do not count.
func TestMemoryOutlivesAnIncarnation(t *testing.T) {
	w := quietWorld(t, 3, DefaultTiming(), 1)
	p := w.procs[0]
	group := p.m.Memory()
	if group.Floor != TokenOf(0, p.m.state.Cur) || group.Seen != p.m.tail.last {
		t.Errorf("it remembers %+v, with the epoch at %v and all read up to %v", group, p.m.state.Cur, p.m.tail.last)
	}
	cfg := p.m.cfg
	cfg.Memory, cfg.Inc = group, Incarnation{0xE}
	m := New(cfg)
	if !reflect.DeepEqual(m.Memory(), group) {
		t.Errorf("the next incarnation remembers %+v, want %+v", m.Memory(), group)
	}
	m.joiningRead(read{at: Position{Ledger: 9}, rec: Record{LogVersion: LogVersionMin, Group: cfg.Group, Inc: Incarnation{9}, Body: &Hello{Floor: group.Floor + 1}}})
	if group.Told = group.Floor + 1; !reflect.DeepEqual(m.Memory(), group) {
		t.Errorf("a Hello told of a greater token, and it remembers %+v", m.Memory())
	}
	m.seeGroup(read{at: Position{Ledger: group.Seen.Ledger + 1}, rec: Record{Body: &Hello{}}})
	if !reflect.DeepEqual(m.Memory(), group) {
		t.Errorf("a Hello changed the memory to %+v", m.Memory())
	}
}

// TestMemoryGrowsWithEpochs: the tokens of each epoch are remembered, too.
func TestMemoryGrowsWithEpochs(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 2).procs[0].m
	if m.state.Cur == m.state.Genesis {
		t.Fatal("there was no epoch: this proves nothing")
	}
	if got, want := m.Memory().Floor, TokenOf(0, m.state.Cur); got != want {
		t.Errorf("it remembers the token %v, want %v", got, want)
	}
}

// TestSnapOfLowerTokens: a router does not join a group whose next tokens are lower than those that it knows.
func TestSnapOfLowerTokens(t *testing.T) {
	for name, c := range map[string]struct {
		floor Token
		want  bool
	}{
		"as far as the log": {TokenOf(0, Position{Ledger: 3, Entry: 50}), true},
		"a higher ledger":   {TokenOf(0, Position{Ledger: 4}), false},
		"a generation more": {TokenOf(1, Position{Ledger: 1}), false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := memoryConfig()
			cfg.Memory.Floor = c.floor
			m := New(cfg)
			exit := ""
			at := Position{Ledger: 3, Entry: 60}
			take := func(in Input) (hello *Hello) {
				for _, e := range m.Step(clock.Instant(time.Hour), in) {
					switch e := e.(type) {
					case OpenReader:
						m.Step(clock.Instant(time.Hour), ReaderOpened{Reader: e.Reader})
					case Append:
						hello, _ = e.Record.Body.(*Hello)
					case Exit:
						exit = e.Reason
					}
				}
				return hello
			}
			take(AppReady{true})
			h := take(Tick{})
			if h == nil {
				h = &Hello{Node: m.self(), HashID: "h", Partitions: simPartitions, NeedState: true}
			}
			group := newGenesisState(Position{Ledger: 3, Entry: 40}, LogVersionMax, &Genesis{
				HashID: "h", Partitions: simPartitions, Table: make([]uint16, simPartitions), After: Position{Ledger: 3, Entry: 39},
				Members: []Node{{Name: "b", Inc: Incarnation{2}, Lease: time.Second, LogVersion: LogVersionMax}},
			})
			take(RecordRead{Reader: m.tail.reader, At: at, Record: Record{LogVersion: LogVersionMin, Group: "g", Inc: cfg.Inc, Body: h}})
			if err := group.applyHello(at, h); err != nil {
				t.Fatal(err)
			}
			take(RecordRead{Reader: m.tail.reader, At: Position{Ledger: 3, Entry: 61}, Record: Record{
				LogVersion: LogVersionMax, Group: "g", Inc: Incarnation{2}, Body: &Snap{ForHello: at, State: group},
			}})
			if (m.state != nil) != c.want || (exit == "") != c.want {
				t.Errorf("joined: %t, exit %q; want joined: %t", m.state != nil, exit, c.want)
			}
			if !c.want && !strings.Contains(exit, "would go backward") {
				t.Errorf("exit %q does not say why", exit)
			}
		})
	}
}

// TestPassedGenesis: a joining router passes over a Genesis whose author had not read its
// Hello, and then over one whose author had not read the first: members with a state from the
// first one ignore the second.
func TestPassedGenesis(t *testing.T) {
	at := func(entry int64) Position { return Position{Ledger: 3, Entry: entry} }
	type begun struct {
		at, after int64
		base      int64 // what its author has read; 0: up to its Hello
		version   uint32
	}
	for name, c := range map[string]struct {
		read []begun
		want int64 // the Genesis that is adopted
	}{
		"its author has read our Hello":               {[]begun{{at: 62, after: 60}}, 62},
		"its author has not":                          {[]begun{{at: 62, after: 59}}, 0},
		"it crossed one that was passed over":         {[]begun{{at: 62, after: 59}, {at: 63, after: 60}}, 0},
		"its author has read the one passed over":     {[]begun{{at: 62, after: 59}, {at: 64, after: 63}}, 64},
		"the third crossed the second":                {[]begun{{at: 62, after: 59}, {at: 63, after: 60}, {at: 64, after: 62}}, 0},
		"it has read our Hello, before its own":       {[]begun{{at: 62, after: 59, base: 61}}, 0},
		"its Hello is behind ours, which it missed":   {[]begun{{at: 62, after: 60, base: 59}}, 0},
		"of a version that does not say what it read": {[]begun{{at: 62, after: 60, base: -1, version: logVersionReserved - 1}}, 62},
		"the same, and its Hello is before ours":      {[]begun{{at: 62, after: 59, base: -1, version: logVersionReserved - 1}}, 0},
		"of the former release, which names nothing":  {[]begun{{at: 62, after: -1}}, 62},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(memoryConfig())
			now := clock.Instant(time.Hour)
			var hello *Hello
			for _, e := range m.Step(now, AppReady{true}) {
				o, ok := e.(OpenReader)
				if !ok {
					continue
				}
				for _, e := range m.Step(now, ReaderOpened{Reader: o.Reader}) {
					if a, ok := e.(Append); ok {
						hello, _ = a.Record.Body.(*Hello)
					}
				}
			}
			if hello == nil {
				t.Fatal("it sends no Hello")
			}
			version := uint32(LogVersionMax)
			read := func(entry int64, inc Incarnation, b Body) {
				m.Step(now, RecordRead{Reader: m.tail.reader, At: at(entry), Record: Record{LogVersion: version, Group: "g", Inc: inc, Body: b}})
			}
			read(60, m.cfg.Inc, hello)
			read(61, Incarnation{9}, &Hello{Node: Node{Name: "z", Inc: Incarnation{9}, Lease: time.Second}, HashID: "h", Partitions: simPartitions})
			next := int64(62)
			for _, g := range c.read {
				for ; next < g.at; next++ {
					read(next, Incarnation{9}, &Hello{Node: Node{Name: "z", Inc: Incarnation{9}, Lease: time.Second}, HashID: "h", Partitions: simPartitions})
				}
				inc := Incarnation{0xA, byte(g.at)}
				genesis := &Genesis{
					HashID: "h", Partitions: simPartitions, Table: make([]uint16, simPartitions),
					Members: []Node{{Name: "b", Inc: inc, Lease: time.Second, LogVersion: LogVersionMax}},
				}
				if g.after >= 0 {
					genesis.After, genesis.Base = at(g.after), at(g.after)
				}
				if g.base > 0 {
					genesis.Base = at(g.base)
				} else if g.base < 0 {
					genesis.Base = Position{}
				}
				if version = LogVersionMax; g.version > 0 {
					version = g.version
				}
				m.join.row, m.mayAt = 3, now
				read(g.at, inc, genesis)
				version = LogVersionMax
				if m.state == nil && (m.join.row != 0 || m.mayAt != 0 || m.join.group != now) {
					t.Errorf("it takes no notice of the Genesis at %d that it passes over: %d Hellos in a row", g.at, m.join.row)
				}
				next = g.at + 1
			}
			var adopted int64
			if m.state != nil && m.memory.Floor != TokenOf(0, m.state.Genesis) {
				t.Errorf("it remembers the token %v", m.memory.Floor)
			}
			if m.state != nil {
				adopted = m.state.Genesis.Entry
			}
			if adopted != c.want {
				t.Errorf("it adopted the Genesis at %d, want %d", adopted, c.want)
			}
		})
	}
}

// TestGenesisWithoutAHello: a Genesis that is read before our own first Hello is passed over: members with a state may ignore it.
func TestGenesisWithoutAHello(t *testing.T) {
	for name, take := range map[string]bool{"nothing else was read": false, "a take was read that its author had not": true} {
		t.Run(name, func(t *testing.T) {
			m := New(memoryConfig())
			m.now = clock.Instant(time.Hour)
			m.openReader()
			at := func(entry int64) Position { return Position{Ledger: 3, Entry: entry} }
			genesis := func(after int64) *Genesis {
				return &Genesis{
					HashID: "h", Partitions: simPartitions, Table: make([]uint16, simPartitions), After: at(after), Base: at(after),
					Members: []Node{{Name: "b", Inc: Incarnation{2}, Lease: time.Second, LogVersion: LogVersionMax}},
				}
			}
			hear := func(entry int64, inc Incarnation, b Body) {
				m.joiningRead(read{at: at(entry), rec: Record{LogVersion: LogVersionMax, Group: "g", Inc: inc, Body: b}, when: m.now})
			}
			if !take {
				hear(59, Incarnation{2}, genesis(58))
				if m.state != nil || m.join.passed != at(59) {
					t.Fatalf("it is adopted: %t", m.state != nil)
				}
				hear(60, m.cfg.Inc, &Hello{Node: m.self(), HashID: "h", Partitions: simPartitions, NeedState: true})
				hear(61, Incarnation{2}, genesis(60))
				if m.state == nil {
					t.Error("one whose author has read the Hello is not adopted")
				}
				return
			}
			hear(60, m.cfg.Inc, &Hello{Node: m.self(), HashID: "h", Partitions: simPartitions, NeedState: true})
			hear(61, Incarnation{2}, &Reservations{Seq: 1, Applied: at(59), Take: []Take{{KeyAt: KeyAt{Partition: 1, Key: 9}, ID: ReservationID{1}, TTL: TTLLeast}}})
			m.out = nil
			hear(62, Incarnation{2}, genesis(60))
			if m.state != nil || m.join.passed != at(62) {
				t.Errorf("a void Genesis is adopted: %t, and %v was passed over", m.state != nil, m.join.passed)
			}
			if !slices.ContainsFunc(m.out, func(e Effect) bool { n, ok := e.(Note); return ok && n.Kind == NoteGenesisVoid }) {
				t.Errorf("nobody says so: %+v", m.out)
			}
		})
	}
}

// TestVoidGenesis: members with a state go on in it when they read a Genesis whose author had not read the newest take.
func TestVoidGenesis(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	take := m.tail.last
	m.state.LastTake = take
	next := Position{Ledger: take.Ledger, Entry: take.Entry + 1}
	open := m.gates.open.Len()
	for _, what := range []bool{false, true} {
		c := take
		if !what {
			c.Entry--
		}
		m.applyGenesis(read{at: next, rec: Record{LogVersion: LogVersionMax, Group: "g", Inc: Incarnation{2}}, when: m.now}, &Genesis{
			HashID: "h", Partitions: simPartitions, Table: make([]uint16, simPartitions), After: c, Base: c,
			Members: []Node{{Name: "b", Inc: Incarnation{2}, Lease: time.Second, LogVersion: LogVersionMax}},
		})
		if got := m.state.Genesis == next; got != what || !what && m.gates.open.Len() != open {
			t.Errorf("its author has read the take: %t; it has begun a state: %t, %d gates are open", what, got, m.gates.open.Len())
		}
	}
}

// TestAdoptedSnap: the state of a Snap is as of the Hello that it answers. Records from before that are in it, and later ones are applied; what has
// ended by then is bounded from the instant at which that Hello was read.
func TestAdoptedSnap(t *testing.T) {
	other, third := Incarnation{2}, Incarnation{3}
	at := func(entry int64) Position { return Position{Ledger: 3, Entry: entry} }
	start := clock.Instant(time.Hour)
	begin := func() (m *Machine, hear func(entry int64, inc Incarnation, b Body)) {
		m = New(memoryConfig())
		m.now = start
		m.openReader()
		hear = func(entry int64, inc Incarnation, b Body) {
			m.now = start.Add(time.Duration(entry-60) * time.Second)
			m.deliver(read{at: at(entry), rec: Record{LogVersion: LogVersionMax, Group: "g", Inc: inc, Body: b}, sum: 1, when: m.now})
		}
		hello := &Hello{Node: m.self(), HashID: "h", Partitions: simPartitions, NeedState: true}
		hear(60, m.cfg.Inc, hello)
		hear(61, other, &Beat{Seq: 1, Applied: at(60), Cur: at(40)})
		hear(62, m.cfg.Inc, hello)
		hear(63, third, &Hello{Node: Node{Name: "c", Inc: third, Lease: time.Second, LogVersion: LogVersionMax}, HashID: "h", Partitions: simPartitions})
		return m, hear
	}
	group := func(m *Machine) *State {
		table := make([]uint16, simPartitions)
		table[5] = 1
		return newGenesisState(at(40), LogVersionMax, &Genesis{
			HashID: "h", Partitions: simPartitions, Table: table, After: at(39), Members: []Node{{Name: "b", Inc: other, Lease: time.Second, LogVersion: LogVersionMax}, m.self()},
		})
	}
	m, hear := begin()
	sent := group(m)
	digest := stateDigest(sent)
	hear(64, other, &Snap{ForHello: at(62), State: sent})
	if m.state == nil {
		t.Fatal("it is not adopted")
	}
	read := start.Add(2 * time.Second) // the Hello
	if m.memory.Floor != TokenOf(0, at(40)) {
		t.Errorf("it remembers the token %v, want that of the group's epoch", m.memory.Floor)
	}
	if m.base != at(40) || m.tail.last != at(64) || m.heardBase != read || m.peers[m.cfg.Inc].came != read || m.ownRead != start.Add(4*time.Second) {
		t.Errorf("base %v, last %v, heard of all at %v, came at %v", m.base, m.tail.last, m.heardBase, m.peers[m.cfg.Inc].came)
	}
	if got, want := m.state.Pending[0][0].deadline, read.Add(WaitFor(LeaseMax)); got != want {
		t.Errorf("earlier tenures are over at %v, want %v", got, want)
	}
	if p := m.peers[other]; p != nil && p.beat != nil {
		t.Error("a Beat from before the Hello was applied")
	}
	if _, known := m.state.Node(third); !known {
		t.Error("a Hello from behind it was not applied")
	}
	if m.Gate(5) != Waiting || m.Gate(0) != Closed {
		t.Errorf("gates %v and %v, want that its own partition waits", m.Gate(5), m.Gate(0))
	}
	if stateDigest(sent) != digest || sent.Pending[0][0].deadline != 0 {
		t.Error("the Snap was written to, which other members share in tests, and the log's reader may")
	}

	for name, spoil := range map[string]func(*State){
		"is not valid":                func(s *State) { s.Nodes[0].Lease = LeaseMax + time.Millisecond },
		"has too short a wait":        func(s *State) { s.Pending[0][0].Lease = time.Second },
		"has an owner that is nobody": func(s *State) { s.Table[3] = 9 },
	} {
		m, hear := begin()
		bad := group(m)
		spoil(bad)
		m.out = nil
		hear(64, other, &Snap{ForHello: at(62), State: bad})
		if m.state != nil || m.over || !slices.ContainsFunc(m.out, func(e Effect) bool {
			n, ok := e.(Note)
			return ok && n.Kind == NoteBadRecord && strings.HasPrefix(n.Reason, "snap: ")
		}) {
			t.Errorf("a state that %s is adopted: %t, effects %+v", name, m.state != nil, m.out)
		}
		hear(65, third, &Snap{ForHello: at(61), State: group(m)})
		hear(66, third, &Snap{ForHello: at(62)})
		if m.state != nil {
			t.Error("a Snap for no Hello of ours, or without a state, is adopted")
		}
		if hear(67, third, &Snap{ForHello: at(62), State: group(m)}); m.state == nil {
			t.Error("the next one, which is valid, is not adopted")
		}
	}

	m, hear = begin()
	foreign := group(m)
	foreign.HashID = "x"
	if hear(64, other, &Snap{ForHello: at(62), State: foreign}); m.state != nil || !m.over {
		t.Error("the state of a group that places keys otherwise is adopted")
	}
}

// memLog is a control log in memory, of which a reader may lag behind.
type memLog struct{ records []Record }

func (l *memLog) append(r Record) Position {
	l.records = append(l.records, r)
	return Position{Ledger: 3, Entry: int64(len(l.records) - 1)}
}

// first answers ReadFirst.
func (l *memLog) first(e ReadFirst, hadGroup bool) FirstRead {
	answer := FirstRead{Read: e.Read, Virgin: true, First: Position{Ledger: 3}, HadGroup: hadGroup}
	for i, r := range l.records {
		if at := (Position{Ledger: 3, Entry: int64(i)}); at.Before(e.Before) && HoldsGroup(at, r) {
			answer.Virgin = false
		}
	}
	return answer
}

// TestColdStartBesideAnother: a router that starts together with another one, and learns from the claims that a group has begun before
// it reads the group's records, joins the group. If those records never come, the group was on another log, and the router ends.
func TestColdStartBesideAnother(t *testing.T) {
	for name, c := range map[string]struct {
		begins bool // the other one begins the group on this log
		passed bool // by a Genesis that the router passes over, since its author had not read the router's Hello
		beats  bool // its Beat is read before the answer
	}{
		"its Genesis is adopted":        {begins: true},
		"its Genesis is passed over":    {begins: true, passed: true},
		"its Beat comes first":          {begins: true, passed: true, beats: true},
		"it has begun on another topic": {},
	} {
		t.Run(name, func(t *testing.T) {
			var log memLog
			other := Node{Name: "b", Inc: Incarnation{2}, Lease: time.Second, LogVersion: LogVersionMax}
			log.append(Record{LogVersion: LogVersionMin, Group: "g", Inc: other.Inc, Body: &Hello{Node: other, HashID: "h", Partitions: simPartitions, NeedState: true}})
			m := New(memoryConfig())
			now := clock.Instant(time.Hour)
			read, began, exit := 1, false, "" // how far the router has read the log
			queue := []Input{AppReady{true}}
			readAll := func() {
				for ; read < len(log.records); read++ {
					queue = append(queue, RecordRead{Reader: m.tail.reader, At: Position{Ledger: 3, Entry: int64(read)}, Record: log.records[read]})
				}
			}
			var genesis Position
			beat := func() {
				log.append(Record{LogVersion: LogVersionMax, Group: "g", Inc: other.Inc, Body: &Beat{Seq: 1, Applied: genesis, Cur: genesis}})
			}
			begin := func() {
				if began = true; !c.begins {
					return
				}
				after := m.join.newestHello()
				if c.passed {
					after = Position{Ledger: 3}
				}
				genesis = log.append(Record{LogVersion: LogVersionMax, Group: "g", Inc: other.Inc, Body: &Genesis{
					HashID: "h", Partitions: simPartitions, Members: []Node{other}, Table: make([]uint16, simPartitions), After: after, Base: after,
				}})
				beat()
			}
			for step := range 1_000 {
				if step%50 == 0 && began && c.begins {
					beat()
					readAll()
				}
				var in Input = Tick{}
				if len(queue) > 0 {
					in, queue = queue[0], queue[1:]
				} else {
					now = now.Add(10 * time.Millisecond)
				}
				for _, e := range m.Step(now, in) {
					switch e := e.(type) {
					case OpenReader:
						queue = append(queue, ReaderOpened{Reader: e.Reader})
					case Append:
						if _, ok := e.Record.Body.(*Genesis); ok {
							t.Fatal("it begins a group of its own")
						}
						log.append(e.Record)
						readAll()
					case ReadFirst:
						answer := log.first(e, true)
						if !began {
							begin() // right after the log was read, and before the claims are
						}
						if c.beats {
							readAll()
						}
						queue = append(queue, answer)
						readAll()
					case Exit:
						exit = e.Reason
					}
				}
			}
			if c.begins && (exit != "" || c.passed != (m.state == nil)) {
				t.Errorf("exit %q, joined %t", exit, m.state != nil)
			}
			if !c.begins && !strings.Contains(exit, "ownership.generation to 1") {
				t.Errorf("exit %q, want one: the topic holds no group", exit)
			}
			if !began {
				t.Error("it did not try to begin a group")
			}
		})
	}
}
