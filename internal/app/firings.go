package app

import (
	"errors"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// Schedules decides what becomes of the firings of schedules. Its methods are safe for concurrent use.
type Schedules interface {
	// Declare takes the schedules of a worker, before it gets its first delivery. The error says what is wrong with them.
	Declare(w event.WorkerID, schedules []*appv1.Schedule) error
	// Forget takes them back.
	Forget(w event.WorkerID)
	// Arrive decides about a firing that a worker is to run now.
	Arrive(w event.WorkerID, id event.DeliveryID, s *event.Sent) Firing
	// Ended reports the end of a delivery, before its mailbox knows of it. It returns whether the delivery was one
	// that Arrive has let run.
	Ended(r event.Result) bool
}

// Firing is the decision about a firing.
type Firing struct {
	Run    bool
	Missed uint32         // Run: earlier times for which it runs, too
	To     event.WorkerID // not Run: the worker that runs it, since this one does not declare its schedule; 0: none does, or it does not run now
	After  time.Duration  // not Run, without To: ask again; 0: it is dropped
}

// undeclaredPause is how long a firing waits at a router that takes no schedules, since its key may move to another, or after its worker has gone.
const undeclaredPause = time.Second

// judgeFiring returns the result of a published event that is a firing and must not run now, nil for all others. A firing that runs is changed to say
// what it runs for.
func (w *session) judgeFiring(d *event.Delivery) *event.Result {
	sent, err := event.ParseSent(d.Event().Properties)
	if err != nil || sent.Firing == nil {
		return nil
	}
	s := w.server
	f := Firing{After: undeclaredPause}
	if s.Schedules != nil {
		f = s.Schedules.Arrive(w.id, d.ID, &sent)
	}
	switch {
	case f.Run:
	case f.To != 0:
		return &event.Result{Delivery: d.ID, Kind: event.ResultPutOff, After: undeclaredPause, To: f.To}
	case f.After > 0: // behind other firings of the schedule: it may be waiting for one of them
		return &event.Result{Delivery: d.ID, Kind: event.ResultPutOff, After: f.After, Behind: true}
	default:
		return &event.Result{Delivery: d.ID, Kind: event.ResultDone}
	}
	s.firing.Add(1)
	if f.Missed != sent.Firing.Missed {
		own := *d.Event()
		properties := slices.DeleteFunc(slices.Clone(own.Properties), func(p event.Property) bool { return event.IsOfSent(p.Name) })
		sent.Firing.Missed = f.Missed
		own.Properties = sent.Properties(properties)
		d.Ref = event.RefTo(&own)
	}
	return nil
}

var errNoSchedules = errors.New("this router takes no schedules")

// declare takes the schedules that a worker declares in its Hello.
func (s *Server) declare(w *session, schedules []*appv1.Schedule) error {
	if len(schedules) == 0 {
		return nil
	}
	if s.Schedules == nil {
		return errNoSchedules
	}
	w.declares = true
	return s.Schedules.Declare(w.id, schedules)
}

// undeclare takes them back, which has no effect a second time.
func (s *Server) undeclare(w *session) {
	if w.declares {
		s.Schedules.Forget(w.id)
	}
}

// endFirings tells the schedules of the firings that are over.
func (s *Server) endFirings(results []event.Result) {
	for i := range results {
		if s.Schedules.Ended(results[i]) {
			s.firing.Add(-1)
		}
	}
}
