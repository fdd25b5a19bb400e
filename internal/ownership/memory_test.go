package ownership

import (
	"reflect"
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
	type begun struct{ at, after int64 }
	for name, c := range map[string]struct {
		read []begun
		want int64 // the Genesis that is adopted
	}{
		"its author has read our Hello":              {[]begun{{62, 60}}, 62},
		"its author has not":                         {[]begun{{62, 59}}, 0},
		"it crossed one that was passed over":        {[]begun{{62, 59}, {63, 60}}, 0},
		"its author has read the one passed over":    {[]begun{{62, 59}, {64, 63}}, 64},
		"the third crossed the second":               {[]begun{{62, 59}, {63, 60}, {64, 62}}, 0},
		"of the former release, which names nothing": {[]begun{{62, -1}}, 62},
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
			read := func(entry int64, inc Incarnation, b Body) {
				m.Step(now, RecordRead{Reader: m.tail.reader, At: at(entry), Record: Record{LogVersion: LogVersionMax, Group: "g", Inc: inc, Body: b}})
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
				read(g.at, inc, genesis)
				next = g.at + 1
			}
			var adopted int64
			if m.state != nil {
				adopted = m.state.Genesis.Entry
			}
			if adopted != c.want {
				t.Errorf("it adopted the Genesis at %d, want %d", adopted, c.want)
			}
		})
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
