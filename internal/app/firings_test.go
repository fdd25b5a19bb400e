package app

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ringfence/router/internal/base/event"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// judging decides about firings as the test says, and notes what it is told.
type judging struct {
	mu       sync.Mutex
	declared map[event.WorkerID][]string
	decide   func(s *event.Sent) Firing
	running  map[event.DeliveryID]bool
	ended    []event.ResultKind
	err      error
}

func (j *judging) Declare(w event.WorkerID, schedules []*appv1.Schedule) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range schedules {
		j.declared[w] = append(j.declared[w], s.GetName())
	}
	return j.err
}

func (j *judging) Forget(w event.WorkerID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.declared, w)
}

func (j *judging) Arrive(w event.WorkerID, id event.DeliveryID, s *event.Sent) Firing {
	j.mu.Lock()
	defer j.mu.Unlock()
	var newest event.WorkerID
	for w, names := range j.declared {
		if slices.Contains(names, s.Name) {
			newest = max(newest, w)
		}
	}
	if newest != 0 && !slices.Contains(j.declared[w], s.Name) {
		return Firing{To: newest}
	}
	f := j.decide(s)
	if f.Run {
		j.running[id] = true
	}
	return f
}

func (j *judging) Ended(r event.Result) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	known := j.running[r.Delivery]
	delete(j.running, r.Delivery)
	if known {
		j.ended = append(j.ended, r.Kind)
	}
	return known
}

// firing is a delivery of a firing.
func firing(p int, name string) event.Delivery {
	s := event.Sent{Key: event.Key("schedule/" + name), Due: 5, Name: name, Firing: &event.Firing{Definition: 1, Time: 4, Missed: 1}}
	d := delivery(p, 0)
	d.Ref = event.RefTo(&event.Event{
		ID: event.SentMessageID(s.Key, "schedule", name), Key: s.Key, Partition: ring.Partition(p), Properties: s.Properties([]event.Property{{Name: "a", Value: "1"}}),
	})
	return d
}

// A firing goes to a worker that declares its schedule, when the schedules say so, and tells what it runs for. Else it
// is put off or done, without the worker, also if the worker does not declare it.
func TestFirings(t *testing.T) {
	r := newRig(t, nil)
	r.schedules.decide = func(s *event.Sent) Firing {
		switch s.Name {
		case "run":
			return Firing{Run: true, Missed: 7}
		case "wait", "of another":
			return Firing{After: time.Minute}
		}
		return Firing{}
	}
	w := r.connect(&appv1.Hello{MaxInFlight: 10, Schedules: []*appv1.Schedule{{Name: "run"}, {Name: "wait"}, {Name: "drop"}}})
	r.fill(firing(1, "run"), firing(2, "wait"), firing(3, "drop"), firing(4, "of another"), firing(5, "gone"))
	r.wantFinished("20:put_off", "30:done", "40:put_off", "50:done")
	f := w.recv()
	for f.GetDeliveries() == nil {
		f = w.recv()
	}
	d := f.GetDeliveries().GetDeliveries()
	if len(d) != 1 || d[0].GetTimer().GetName() != "run" || d[0].GetTimer().GetFiring().GetMissed() != 7 || d[0].GetTimer().GetFiring().GetTimeMs() != 4 || len(d[0].GetProperties()) != 1 {
		t.Fatalf("deliveries %v", d)
	}
	w.results(1, 1, &appv1.Result{DeliveryId: d[0].GetDeliveryId(), Kind: appv1.ResultKind_RESULT_KIND_RETRY, Reason: "no"})
	r.wantFinished("10:retry")
	r.schedules.mu.Lock()
	defer r.schedules.mu.Unlock()
	if len(r.schedules.ended) != 1 || r.schedules.ended[0] != event.ResultRetry || r.server.firing.Load() != 0 {
		t.Errorf("ended: %v, %d run", r.schedules.ended, r.server.firing.Load())
	}
}

// A firing at a worker that does not declare its schedule goes to one that does, and waits once that has gone.
func TestFiringsGoToTheirDeclarer(t *testing.T) {
	r := newRig(t, nil)
	r.schedules.decide = func(*event.Sent) Firing { return Firing{After: time.Minute} }
	r.connect(&appv1.Hello{MaxInFlight: 10})
	second := r.connect(&appv1.Hello{MaxInFlight: 10, Schedules: []*appv1.Schedule{{Name: "report"}}})
	r.wantWorkers(2)
	first := r.server.snapshot()[0]
	judge := func() event.Result {
		d := firing(1, "report")
		_, results := first.screen([]event.Delivery{d}, nil)
		return results[0]
	}
	if got := judge(); got.Kind != event.ResultPutOff || got.To != r.server.snapshot()[1].id || got.After != undeclaredPause {
		t.Errorf("beside one that declares it: %+v", got)
	}
	third := r.connect(&appv1.Hello{MaxInFlight: 10, Schedules: []*appv1.Schedule{{Name: "report"}}})
	r.wantWorkers(3)
	third.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{}}})
	r.wantWorkers(2)
	if got := judge(); got.To != r.server.snapshot()[1].id {
		t.Errorf("beside two that declare it, of which the newer takes nothing any more: %+v", got)
	}
	second.cancel()
	r.wantWorkers(1)
	if got := judge(); got.Kind != event.ResultPutOff || got.To != 0 || got.After != time.Minute || !got.Behind {
		t.Errorf("alone: %+v", got)
	}
}

// A Hello has room for as many schedules as a worker may declare, with texts as long as they may be.
func TestTheMostSchedules(t *testing.T) {
	const most, name, cron, zone = 256, 128, 256, 64
	r := newRig(t, nil)
	hello := &appv1.Hello{MaxInFlight: 1, Worker: strings.Repeat("w", 1<<10), Sdk: strings.Repeat("s", 1<<10)}
	for range most {
		hello.Schedules = append(hello.Schedules, &appv1.Schedule{
			Name: strings.Repeat("n", name), Cron: strings.Repeat("c", cron), Zone: strings.Repeat("z", zone), JitterMs: uint64(time.Hour.Milliseconds()),
			GraceMs: uint64(24 * time.Hour.Milliseconds()), Missed: appv1.MissedPolicy_MISSED_POLICY_ALL,
		})
	}
	r.connect(hello)
	r.wantWorkers(1)
}

// A worker whose schedules are wrong is refused with the reason, and gets no deliveries; the schedules of one that has gone are taken back.
func TestSchedulesOfWorkers(t *testing.T) {
	r := newRig(t, nil)
	r.schedules.err = errors.New("a bad zone")
	refused := r.dial()
	refused.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1, Schedules: []*appv1.Schedule{{Name: "report"}}}}})
	if s := refused.status(); s.Code() != codes.InvalidArgument || s.Message() != "app: a bad zone" {
		t.Errorf("status %v", s)
	}
	r.schedules.mu.Lock()
	r.schedules.err = nil
	clear(r.schedules.declared)
	r.schedules.mu.Unlock()
	w := r.connect(&appv1.Hello{MaxInFlight: 1, Schedules: []*appv1.Schedule{{Name: "report"}}})
	r.wantWorkers(1)
	r.schedules.mu.Lock()
	if len(r.schedules.declared) != 1 {
		t.Errorf("declared: %v", r.schedules.declared)
	}
	r.schedules.mu.Unlock()
	w.cancel()
	r.wantWorkers(0)
	r.schedules.mu.Lock()
	defer r.schedules.mu.Unlock()
	if len(r.schedules.declared) != 0 {
		t.Errorf("declared after the worker has gone: %v", r.schedules.declared)
	}
}
