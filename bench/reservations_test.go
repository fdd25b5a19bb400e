package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
)

func TestReserveBringsItsComparisons(t *testing.T) {
	for _, args := range [][]string{{"--modes", "reserve"}, {"--workloads", "reservations"}} {
		o, err := parseWith(args...)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Modes) != 5 || o.Modes[0].name != modeReserve || len(o.Workloads) != 1 || o.Workloads[0] != workloadReservations {
			t.Errorf("%v: modes %v, workloads %v", args, o.Modes, o.Workloads)
		}
		if o.Waiters != 20 || o.Keys != 10_000 || o.Nodes != 3 {
			t.Errorf("%v: %d waiters, %d keys and %d nodes, want what the goals are about", args, o.Waiters, o.Keys, o.Nodes)
		}
	}
	if o, err := parseWith("--modes", "reserve,redis"); err != nil || len(o.Modes) != 2 {
		t.Errorf("modes %v, %v", o.Modes, err)
	}
	for _, args := range [][]string{
		{"--modes", "reserve,shared"},
		{"--modes", "reserve,invoke"},
		{"--modes", "reserve", "--workloads", "calls"},
		{"--modes", "reserve", "--suite", "core"},
		{"--modes", "reserve", "--waiters", "1"},
		{"--modes", "reserve", "--waiters", "101"},
	} {
		if _, err := parseWith(args...); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

// pretended locks by one mutex, and has fences.
type pretended struct {
	mutex   *sync.Mutex
	turn    *uint64
	planted string
}

func (p pretended) lock(context.Context, string) (held, error) {
	p.mutex.Lock()
	*p.turn++
	fence := client.Fence{Token: 1, Turn: *p.turn}
	if p.planted == "backward" {
		fence.Turn = 1
	}
	if p.planted == "refused" {
		p.mutex.Unlock()
		return held{}, &client.CallError{Kind: client.ErrNotReserved, Code: client.CodeTimeout}
	}
	return held{fence: fence, release: func(context.Context) error {
		p.mutex.Unlock()
		runtime.Gosched() // on a busy machine one goroutine would have all turns
		if p.planted == "lost" {
			return client.ErrKeyLost
		}
		return nil
	}}, nil
}

func holdWith(t *testing.T, keys int, all []locker) (*holders, holdsPhase, error) {
	t.Helper()
	h := newHolders(keys, keyPicker(distributionUniform, keys))
	h.begin, h.warmUp, h.count = clock.Now().Add(5*time.Millisecond), 10*time.Millisecond, 500*time.Millisecond // on a busy machine 50 ms passed without a grant
	h.run(t.Context(), all)
	path := filepath.Join(t.TempDir(), "holders")
	if err := h.write(path); err != nil {
		t.Fatal(err)
	}
	p, err := readHolds(path)
	return h, p, err
}

func TestHoldersCount(t *testing.T) {
	var mutex sync.Mutex
	var turn uint64
	one := pretended{mutex: &mutex, turn: &turn}
	h, p, err := holdWith(t, 1, []locker{one, one, one})
	if err != nil || p.grants == 0 || p.grants != turn || len(p.counted) != 3 || p.counted[0]+p.counted[1]+p.counted[2] == 0 {
		t.Fatalf("%+v, %v; %d turns", h.file, err, turn)
	}
	if n := p.handOver.TotalCount(); n == 0 || uint64(n)+p.again > p.grants || p.pair.TotalCount() == 0 {
		t.Errorf("%d hand-overs and %d again of %d grants, %d pairs", n, p.again, p.grants, p.pair.TotalCount())
	}
}

// Whatever makes a lock worthless ends a run.
func TestWorthlessLocksAreFound(t *testing.T) {
	for planted, want := range map[string]string{"backward": "fence", "refused": client.CodeTimeout, "lost": "a release"} {
		var mutex sync.Mutex
		var turn uint64
		if _, _, err := holdWith(t, 2, []locker{pretended{&mutex, &turn, planted}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", planted, err)
		}
	}
	h := newHolders(1, func() int { return 0 })
	h.file.Counted = make([]uint64, 1)
	taken := lockerFunc(func() (held, error) { // somebody else has the key as well
		h.watch[0].now.Add(1)
		return held{release: func(context.Context) error { return nil }}, nil
	})
	if err := h.hold(t.Context(), 0, taken, 0); err != nil || h.file.Twice != 1 {
		t.Errorf("two holders: %+v, %v", h.file, err)
	}
}

type lockerFunc func() (held, error)

func (f lockerFunc) lock(context.Context, string) (held, error) { return f() }

func TestReadHoldsJudges(t *testing.T) {
	for name, f := range map[string]holdsFile{
		"nothing":           {},
		"two holders":       {Grants: 2, Releases: 2, Twice: 1},
		"a missing release": {Grants: 2, Releases: 1},
		"a refusal":         {Grants: 2, Releases: 2, Failed: map[string]uint64{"timeout": 1}},
	} {
		path := filepath.Join(t.TempDir(), "holders")
		if err := writeJSON(path, f); err != nil {
			t.Fatal(err)
		}
		if _, err := readHolds(path); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := readHolds(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file was taken")
	}
}

func TestReservationsReport(t *testing.T) {
	o, err := parseWith("--modes", "reserve")
	if err != nil {
		t.Fatal(err)
	}
	r := newReport(o, "", workloadReservations)
	for i, m := range o.Modes {
		phase := func(us int64) holdsPhase {
			p := holdsPhase{pair: newHistogram(), wait: newHistogram(), handOver: newHistogram(), counted: []uint64{90, 100}, grants: 7}
			for range 100 {
				_, _, _ = p.pair.RecordValue(us*int64(i+1)), p.wait.RecordValue(us), p.handOver.RecordValue(us*int64(i+1))
			}
			return p
		}
		s := reservationsSample{alone: phase(200), full: phase(900), contended: phase(400), perSecond: 12_000 / float64(1+5*i), cpu: map[string]float64{roleRouter: 40}, verified: 21}
		r.Modes = append(r.Modes, reservationsResult(o, m, []reservationsSample{s, s}))
	}
	r.compare()
	var b bytes.Buffer
	r.print(&b)
	for _, want := range []string{
		"pair p50   0.20", "128 callers:   12000 pairs/s", "20 waiters: hand-over p50   0.40", "grants 90 … 100", "router 40.0 µs", "42 verified",
		"goals of reserve", "x redis: reached (0.33)", ">= 10000 pairs/s: reached", "p99 <= 2 ms: reached", "another one: reached", "of etcd: reached (21.0",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, b.String())
		}
	}
	if got := charts(Run{Reports: []Report{r}}); len(got) != 1 || got[0].file != "reservations" || len(got[0].parts) != 4 {
		t.Errorf("charts = %+v", got)
	}
	r.Modes = r.Modes[:1]
	r.Modes[0].Reservations = &Reservations{GrantsMax: 3}
	if text := r.goalsOfReservations(); strings.Count(text, "missed") != 3 || strings.Count(text, "not measured") != 3 {
		t.Errorf("goals: %s", text)
	}
}

// All lockers of Redis exclude one another, if there is one.
func TestLockersOfRedis(t *testing.T) {
	if _, err := findRedis(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := &cluster{dir: t.TempDir()}
	defer c.end(cancel)
	address, err := startRedis(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{modeRedis, modeRedsync} {
		all, closeAll, err := newLockers(ctx, mode, []string{address}, 2)
		if err != nil {
			t.Fatal(err)
		}
		first, err := all[0].lock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		if _, err := all[1].lock(short, "k"); err == nil {
			t.Errorf("%s: a key was given twice", mode)
		}
		stop()
		second := make(chan error, 1)
		go func() {
			got, err := all[1].lock(ctx, "k")
			second <- errors.Join(err, got.release(ctx))
		}()
		if err := errors.Join(first.release(ctx), <-second); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		closeAll()
	}
}
