package clienttest

import (
	"fmt"
	"sync"
	"time"

	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/event"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// Fire queues a firing for the handler of a schedule: the run for a time, and for so many earlier ones that were missed. The
// times of the schedule do not matter: nothing fires by itself. A firing of a schedule that the worker does not declare has the
// outcome Retry.
func (r *Router) Fire(schedule string, at time.Time, missed int) *Delivery {
	key := event.ScheduleKeys + schedule
	sent := event.Sent{Key: event.Key(key), Due: at.UnixMilli(), Name: schedule, Firing: &event.Firing{Time: at.UnixMilli(), Missed: uint32(missed)}}
	r.mu.Lock()
	r.fired++
	id := event.SentMessageID(sent.Key, "firing", fmt.Sprint(r.fired))
	r.mu.Unlock()
	d := &Delivery{router: r, attempt: 1, over: make(chan struct{}), event: event.Event{
		ID: id, Topic: timerTopic, Key: sent.Key, Partition: ring.PartitionOf(key), Properties: sent.Properties(nil),
	}}
	r.boxes.add(d)
	return d
}

// schedules implements app.Schedules: every declaration is accepted, and every firing runs.
type schedules struct {
	mu      sync.Mutex
	running map[event.DeliveryID]struct{}
}

func (*schedules) Declare(event.WorkerID, []*appv1.Schedule) error { return nil }

func (*schedules) Forget(event.WorkerID) {}

func (s *schedules) Arrive(_ event.WorkerID, id event.DeliveryID, sent *event.Sent) app.Firing {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[id] = struct{}{}
	return app.Firing{Run: true, Missed: sent.Firing.Missed}
}

func (s *schedules) Ended(r event.Result) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ran := s.running[r.Delivery]
	delete(s.running, r.Delivery)
	return ran
}
