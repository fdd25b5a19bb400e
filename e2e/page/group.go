package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

// The keys that somebody has to find among all others.
const (
	stuckKey   = "user-04711"
	failingKey = "user-00815"
	hotKey     = "user-00042"

	reservedKey = "user-00100" // two calls and a reservation wait for it
	calledKey   = "user-00101" // a call runs
)

// hostileKeys are names that producers may give, and that must stay texts.
var hostileKeys = []string{
	`<img src=x onerror="document.title='broken'">`, "\u202eright to left\u202c", "line\nbreak\ttab\x1b[2J", "\xff\xfe binary \x00", strings.Repeat("long-", 800), "</script><script>document.title='broken'</script>",
}

// group is an invented group.
type group struct {
	begun   time.Time
	members []*member
	keys    []string

	mu     sync.Mutex
	healed bool
	held   map[event.Key]time.Time // since when
}

// member is one of its members.
type member struct {
	group    *group
	index    int
	name     string
	keys     []string // of its partitions
	listener net.Listener
	server   *grpc.Server
}

func newGroup(members, keys int) *group {
	g := &group{begun: time.Now(), held: map[event.Key]time.Time{}, keys: slices.Clone(hostileKeys)}
	for i := range keys - len(g.keys) {
		g.keys = append(g.keys, fmt.Sprintf("user-%05d", i))
	}
	for i := range members {
		g.members = append(g.members, &member{group: g, index: i, name: fmt.Sprintf("orders-%d", i)})
	}
	for _, key := range g.keys {
		m := g.owner(ring.PartitionOf(key))
		m.keys = append(m.keys, key)
	}
	return g
}

func (g *group) owner(p ring.Partition) *member { return g.members[int(p)%len(g.members)] }

// HoldKeys implements act.Keys.
func (g *group) HoldKeys(keys []event.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range keys {
		g.held[key] = time.Now()
	}
}

// ReleaseKeys implements act.Keys.
func (g *group) ReleaseKeys(keys []event.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range keys {
		delete(g.held, key)
	}
}

// SkipEvents implements act.Keys.
func (g *group) SkipEvents([]event.Skip) {}

// UnskipEvents implements act.Keys.
func (g *group) UnskipEvents([]event.Skip) {}

// ParkKeys implements act.Keys.
func (g *group) ParkKeys([]event.Park) {}

// state returns whether the group is well, since when a key is held, and how many keys are.
func (g *group) state(key string) (healed bool, since time.Time, held int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.healed, g.held[event.Key(key)], len(g.held)
}

func (m *member) view() report.View {
	return report.View{Member: m.name, Incarnation: fmt.Sprintf("%08x", 0x47b62950+m.index), Position: "7:4412", Epoch: "7:162", Table: "f00d"}
}

// Status implements report.Local.
func (m *member) Status() report.Status {
	healed, _, held := m.group.state("")
	age := time.Since(m.group.begun).Seconds()
	oldest := 2.1
	if !healed {
		oldest = 124 + age
	}
	return report.Status{
		View: m.view(), Group: "orders", Version: "v1.0.0", Mode: report.ModeStrict, Phase: "current", Listed: true, LeaseSeconds: 1.4, Workers: 2,
		Acts:      &report.Acts{HeldKeys: held},
		Listeners: []report.Listener{{Name: "app", ProtectedBy: "loopback"}, {Name: "peer", ProtectedBy: "TLS, name orders-router"}, {Name: "gossip", ProtectedBy: "keys"}, {Name: "admin", ProtectedBy: "loopback; token"}},
		Checks:    []report.Check{{Name: "member"}}, Gates: report.Gates{Open: m.partitions()},
		Events: report.Events{Unsettled: 2 * len(m.keys), OldestSeconds: oldest, Mailboxes: 2 * len(m.keys), Running: 8, Keys: len(m.keys)},
		Visits: m.visits(), Schedules: m.schedules(),
		Rates: report.Rates{Accepted: 41.5, Done: 40, Retried: 0.2, Rejected: 0.01},
		Exclusivity: report.Exclusivity{Seconds: 61_200 + age, LeaseLapses: uint64(m.index % 3), Audit: &report.Audit{
			Handlings: 2_400_000, Order: report.Order{FirstHandlings: 2_391_000, Inversions: map[string]uint64{"received": uint64(17 * m.index), "retry": 3}},
		}},
	}
}

// visits are the calls and reservations of a member. One of them is near a bound, until the group is well.
func (m *member) visits() *report.Visits {
	v := &report.Visits{Bounds: []report.Bound{{Setting: "mailbox.calls_max", Max: 10_000}, {Setting: "lane.calls_max", Max: 10_000}}}
	for _, key := range m.keys {
		switch key {
		case reservedKey:
			v.Waiting, v.Reserved = v.Waiting+3, v.Reserved+1
		case calledKey:
			v.Running++
		}
	}
	v.Bounds[0].Used = v.Waiting + v.Running + v.Reserved
	if healed, _, _ := m.group.state(""); m.index == 7 && !healed {
		v.Bounds[1].Used, v.Refused = 9_120, 31
	}
	return v
}

// schedules are those that the member's workers declare: one that waits, one that runs, and one whose times one member has not got yet.
func (m *member) schedules() []report.Schedule {
	n := len(m.group.members)
	daily := report.Schedule{Name: "report", Times: "0 0 * * * UTC", Missed: "latest", Workers: 1, Owned: m.index == 0}
	cleanup := report.Schedule{Name: "cleanup", Times: "every 10m0s", Missed: "skip", Workers: 1, Owned: m.index == 1%n}
	day, tenMinutes := m.group.begun.UTC().Truncate(24*time.Hour), m.group.begun.UTC().Truncate(10*time.Minute)
	if daily.Owned {
		daily.Next, daily.Armed, daily.LastRun, daily.Covered = day.AddDate(0, 0, 1).Format(time.RFC3339), true, day.Format(time.RFC3339), 2
	}
	if cleanup.Owned {
		cleanup.Next, cleanup.Armed, cleanup.Dropped = tenMinutes.Add(10*time.Minute).Format(time.RFC3339), true, map[string]uint64{"skipped": 3}
		cleanup.Running = tenMinutes.Format(time.RFC3339)
	}
	if m.index == 2 {
		daily.Times = "0 1 * * * UTC"
	}
	return []report.Schedule{daily, cleanup}
}

// partitions returns how many partitions a member has.
func (m *member) partitions() int {
	n := len(m.group.members)
	return (ring.Partitions-m.index-1)/n + 1
}

// Partitions implements report.Local.
func (m *member) Partitions(context.Context) report.Partitions {
	all := report.Partitions{View: m.view()}
	for p := range ring.Partitions {
		one := report.Partition{Number: uint16(p), Owner: m.group.owner(ring.Partition(p)).name, Token: 4194304 + int64(p), Gate: "closed"}
		if one.Owner == m.name {
			one.Gate = "open"
		}
		all.Partitions = append(all.Partitions, one)
	}
	return all
}

// Rollout implements report.Local: a member left and came back before the group of this test began.
func (m *member) Rollout() report.RolloutAt {
	at := report.RolloutAt{View: m.view(), Since: m.group.begun}
	if m.index > 1 {
		return at
	}
	leave := report.MoveWord{
		Member: m.name, Incarnation: m.view().Incarnation, At: "7:150", Time: m.group.begun.Add(-time.Minute).UTC(), Reason: "leave <b>orders-2</b>",
		Partitions: 82, From: []string{"orders-2"}, Gained: 41, Waited: 0.031,
	}
	join := leave
	join.At, join.Time, join.Reason, join.From = "7:162", leave.Time.Add(20*time.Second), "join orders-2", []string{"orders-0", "orders-1"}
	join.Gained, join.Waited, join.Lost, join.Answered, join.Cut = 0, 0, 41, 3, uint64(m.index)
	at.Words = report.MoveWords{leave, join}
	return at
}

// Members implements report.Local.
func (m *member) Members() (all []report.Member) {
	for _, one := range m.group.members {
		reach := "alive"
		if one == m {
			reach = report.ReachSelf
		}
		all = append(all, report.Member{
			Name: one.name, Incarnation: one.view().Incarnation, Address: one.listener.Addr().String(), Listed: true, Partitions: one.partitions(), Reach: reach,
		})
	}
	return all
}

// Owner implements report.Local.
func (m *member) Owner(p ring.Partition) (*report.Member, int64) {
	one := m.group.owner(p)
	return &report.Member{Name: one.name, Incarnation: one.view().Incarnation, Address: one.listener.Addr().String()}, 4194304 + int64(p)
}

// listed is a member's entry for one of its keys.
func (m *member) listed(i int) report.ListedKey {
	key := m.keys[i]
	healed, held, _ := m.group.state(key)
	since := time.Since(m.group.begun).Seconds()
	k := report.ListedKey{
		Hash: ring.HashOf(key).String(), Partition: uint16(ring.PartitionOf(key)), Owner: m.name, At: m.name,
		Wait: "slot", Seconds: 0.1 * float64(i%20), Age: 0.1 * float64(i%20), Behind: i % 3, Event: "7:4412:-1:-1",
	}
	if i < 8 {
		k.Wait, k.Worker = "handler", uint64(1+i%2)
	}
	switch {
	case key == reservedKey:
		k.Wait, k.Worker, k.Call, k.Calls, k.Seconds, k.Age, k.Behind, k.Event = "handler", 0, true, 3, 47+since, 48+since, 1, ""
	case key == calledKey:
		k.Wait, k.Worker, k.Call, k.Method, k.Calls, k.Seconds, k.Age, k.Behind, k.Event = "handler", 2, true, "charge", 0, 0.9, 1.1, 0, ""
	case !held.IsZero():
		k.Wait, k.Seconds, k.Age = "hold", time.Since(held).Seconds(), time.Since(held).Seconds()
	case healed:
	case key == stuckKey:
		k.Wait, k.Worker, k.Seconds, k.Age, k.Behind = "handler", 1, 124+since, 124+since, 3
	case key == failingKey:
		k.Wait, k.RetryIn, k.Seconds, k.Age, k.Failures, k.Behind = "retry", 7.9, 0.4, 62+since, 5, 2
	case key == hotKey:
		k.Wait, k.Worker, k.Seconds, k.Age, k.Behind = "handler", 2, 0.08, 31.2, 412
	}
	k.EventSeconds = k.Age * float64(1+k.Behind)
	return k
}

// Keys implements report.Local.
func (m *member) Keys(_ context.Context, q report.KeysQuestion) report.KeysAt {
	all := report.KeysAt{View: m.view(), Counts: report.KeyCounts{Keys: len(m.keys)}}
	for i, key := range m.keys {
		k := m.listed(i)
		failing, running := k.Failures > 0, k.Wait == "handler"
		all.Counts.Failing += count(failing)
		all.Counts.Running += count(running)
		all.Counts.Waiting += count(!running)
		now := 0.0
		if q.Which == report.KeysHot {
			switch healed, _, _ := m.group.state(key); {
			case key == hotKey && !healed:
				k.Rate, k.Busy, k.OutgrowsIn = 12.4, 1, &now
			case i < 2:
				k.Rate, k.Busy = 2.5, 0.21
			default:
				continue
			}
		}
		if q.Which == report.KeysFailing && !failing || q.Which == report.KeysRunning && !running || q.Which == report.KeysWaiting && running {
			continue
		}
		all.Counts.Selected++
		if q.Named {
			k.SetKey(key)
		}
		all.Keys = append(all.Keys, k)
	}
	all.Bound(q)
	return all
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Key implements report.Local.
func (m *member) Key(_ context.Context, key event.Key) report.KeyAt {
	at := report.KeyAt{View: m.view(), Gate: "open", Wait: report.WaitsForNothing}
	if i := slices.Index(m.keys, string(key)); i >= 0 {
		k := m.listed(i)
		at.Wait, at.Seconds, at.Age, at.Queued, at.Event, at.Failures, at.RetryIn, at.Worker = k.Wait, k.Seconds, k.Age, k.Behind, k.Event, k.Failures, k.RetryIn, k.Worker
		at.Call, at.Calls, at.Method = k.Call, k.Calls, k.Method
	}
	switch key {
	case reservedKey:
		if at.Call {
			at.Via, at.Reservation = "orders-3", &report.Reservation{Token: 4194404, Turn: 7, Left: 1.4}
			at.Waiting = []report.Waiting{
				{Method: "charge", Via: "orders-1", Seconds: 4.2, Left: 5.8, Callers: 2}, {Via: "orders-2", Seconds: 3, Left: 27, Callers: 1}, {Method: "refund", Via: "orders-3", Seconds: 1, Left: 9, Callers: 1},
			}
		}
	case calledKey:
		if at.Call {
			at.Via, at.CallerWaits = "orders-4", 8.9
		}
	}
	return at
}

// History implements report.Local.
func (m *member) History(_ context.Context, key ring.KeyHash) report.HistoryAt {
	at := report.HistoryAt{View: m.view(), Since: m.group.begun.Add(-17 * time.Hour)}
	if m.group.owner(key.Partition()) != m || !slices.ContainsFunc(m.keys, func(k string) bool { return ring.HashOf(k) == key }) {
		return at
	}
	begin := m.group.begun.Add(-2 * time.Minute).UTC()
	for i := range 60 {
		fence, id := event.Fence{Token: 4194352, Turn: uint64(i + 1)}, fmt.Sprintf("7:%d:-1:-1", 4300+i)
		step := func(kind string, after time.Duration) report.Step {
			return report.Step{At: begin.Add(time.Duration(i)*1900*time.Millisecond + after), Member: m.name, Kind: kind, Event: id}
		}
		received, delivered, answered, settled := step(report.StepReceived, 0), step(report.StepDelivered, 3*time.Millisecond), step(report.StepAnswered, 11*time.Millisecond), step(report.StepSettled, 12*time.Millisecond)
		received.To, delivered.Attempt, delivered.Fence, answered.Attempt, answered.Fence = m.name, 1, fence.String(), 1, fence.String()
		answered.Result, answered.Seconds, settled.Result, settled.Seconds = "done", 0.008, "acked", 0.012
		at.Steps = append(at.Steps, received, step(report.StepQueued, time.Millisecond), delivered, answered, settled)
	}
	return at
}
