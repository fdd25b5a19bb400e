package node

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/ring"
)

// standing is a node that owns all partitions and waits for all of them, and whose driver takes
// no step: a query to the driver would never be answered.
func standing(t *testing.T) (*reporter, *incarnation) {
	t.Helper()
	extractor, err := key.Parse("message_key", key.Reject)
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{
		Group: "orders", Name: "a", App: app.DefaultConfig(), Forward: forward.DefaultConfig(), Mailbox: mailbox.DefaultConfig(),
		Retry: outcome.DefaultConfig(), Ring: ring.DefaultConfig(), Timing: ownership.CalmTiming(),
		ControlLog: controllog.DefaultConfig(), Membership: membership.DefaultConfig(),
	}, Parts{
		Key: extractor, AppCreds: insecure.NewCredentials(), ServerCreds: insecure.NewCredentials(), ClientCreds: insecure.NewCredentials(),
		Source:   func([]string) *source.Source { return nil },
		Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	inc := newIncarnation()
	l := &incarnation{node: n, inc: inc}
	l.drive(ownership.New(ownership.Config{
		Group: "orders", Name: "a", Inc: inc, HashID: ring.HashID, Partitions: ring.Partitions, Timing: ownership.CalmTiming(), Place: ring.DefaultConfig().Place,
	}), nil)
	n.self.Store(&ownIncarnation{inc: inc})
	n.pipeline.SetSelf(inc)
	n.pipeline.SetTable(&ownership.Table{
		Members: []ownership.Node{{Name: "a", Inc: inc}}, Owners: make([]uint16, ring.Partitions), Tokens: make([]ownership.Token, ring.Partitions),
	})
	var closed []ownership.GateChange
	for p := range ring.Partition(ring.Partitions) {
		closed = append(closed, ownership.GateChange{Partition: p, Gate: ownership.Waiting})
	}
	n.pipeline.SetGates(closed)
	n.incarnation.Store(l)
	return newReporter(n), l
}

// TestQuestionsNeverReachTheDriver: 60 clients ask repeatedly why the gates wait. The goroutine that renews the lease
// is never involved, and each client gets an answer.
func TestQuestionsNeverReachTheDriver(t *testing.T) {
	t.Parallel()
	s, l := standing(t)
	var asking sync.WaitGroup
	for range 60 {
		asking.Go(func() {
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				if all := s.Partitions(ctx); len(all.Partitions) != ring.Partitions || all.Partitions[7].Gate != "waiting" {
					t.Errorf("%d partitions are reported", len(all.Partitions))
				}
				if at := s.Status(); at.Member != "a" {
					t.Errorf("the member is %q", at.Member)
				}
				cancel()
			}
		})
	}
	asking.Wait()
	if len(l.driver.wake) > 0 || len(l.driver.inputs) > 0 {
		t.Error("a question has woken the driver")
	}
}

// TestStatusWaitsForNobody: no probe waits for a driver that holds its lock, as while it processes finished deliveries.
func TestStatusWaitsForNobody(t *testing.T) {
	t.Parallel()
	s, l := standing(t)
	l.driver.mu.Lock()
	defer l.driver.mu.Unlock()
	told := make(chan report.Status, 1)
	go func() { told <- s.Status() }()
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Error("the status waits for the driver")
	}
}

// TestWaitsArePublishedSeldom: a machine publishes the reasons of its gates' waits only after a reader has looked, and
// twice a second at most, however many readers there are and however often it steps.
func TestWaitsArePublishedSeldom(t *testing.T) {
	t.Parallel()
	_, l := standing(t)
	s, now := l.shown, clock.Now()
	publications, before := 0, s.newest.Load()
	step := func() {
		s.Step(now, ownership.Tick{})
		if newest := s.newest.Load(); newest != before {
			publications, before = publications+1, newest
		}
	}
	for range 100 {
		now = now.Add(10 * time.Millisecond)
		step()
	}
	if publications != 0 {
		t.Errorf("%d publications without a reader", publications)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 {
		now = now.Add(10 * time.Millisecond)
		for range 60 {
			s.look(gone)
		}
		step()
	}
	if publications < 1 || publications > 5 {
		t.Errorf("%d publications in two seconds", publications)
	}
	s.wanted.Store(false)
	old := s.newest.Load()
	old.at = 0 // long ago
	now = now.Add(time.Second)
	looked := make(chan *gateWaits)
	go func() { looked <- s.look(t.Context()) }()
	for !s.wanted.Load() {
		time.Sleep(time.Millisecond)
	}
	step()
	if newest := <-looked; newest == old || newest.at != now {
		t.Error("a waiting reader gets an old picture")
	}
}

// Callers that never give up must not keep all others from lists of keys: each waits for its turn as long as for other questions.
func TestListsOfKeysDoNotQueueWithoutEnd(t *testing.T) {
	t.Parallel()
	s, _ := standing(t)
	for range 10 {
		s.lists.ReserveN(time.Now(), listsPerSecond) // callers before it
	}
	began := clock.Now()
	if at := s.Keys(t.Context(), report.KeysQuestion{Limit: 1}); at.Error != tooMany {
		t.Errorf("it waited for %v and got %q, want %q", clock.Now().Sub(began), at.Error, tooMany)
	}
}

// TestMembersTellsThePastOfThisProcess: the table names the incarnation that has drained until the next one is in it.
func TestMembersTellsThePastOfThisProcess(t *testing.T) {
	r, l := standing(t)
	r.node.incarnation.Store(nil) // whom gossip knows does not matter
	for range 2 * earlierMax {
		r.node.self.Store(r.node.self.Load().next(newIncarnation(), nil))
	}
	r.node.self.Store(r.node.self.Load().next(l.inc, nil)) // the one in the table
	if members := r.Members(); len(members) != 1 || members[0].Over || members[0].Reach != report.ReachSelf {
		t.Errorf("%+v, want this node alone", members)
	}
	self := newIncarnation()
	r.node.self.Store(r.node.self.Load().next(self, nil))
	for _, m := range r.Members() {
		if past := m.Incarnation != self.String(); m.Over != past || past && !m.Listed {
			t.Errorf("%+v, now that this node is %v", m, self)
		}
	}
	if told := r.Status().Earlier; len(told) != earlierMax || told[earlierMax-1] != l.inc.String() {
		t.Errorf("it says that it was %v, want the last to be %v", told, l.inc)
	}
	if owner, _ := r.Owner(0); !owner.Over || owner.Incarnation != l.inc.String() {
		t.Errorf("the owner is %+v, want the past of this node", owner)
	}
	if known := len(r.node.self.Load().earlier); known != earlierMax {
		t.Errorf("%d earlier incarnations are known, want %d", known, earlierMax)
	}
}
