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
	// Declarer returns the worker that declared a schedule last, of those whose schedules were not taken back; 0: there is none.
	Declarer(schedule string) event.WorkerID
	// Arrive decides about a firing that a worker is to run now.
	Arrive(id event.DeliveryID, s *event.Sent) Firing
	// Undeclared decides about one at a worker that does not declare its schedule: it waits or is dropped, and does not run.
	Undeclared(s *event.Sent) Firing
	// Ended reports the end of a delivery, before its mailbox knows of it. It returns whether the delivery was one
	// that Arrive has let run.
	Ended(r event.Result) bool
}

// Firing is the decision about a firing.
type Firing struct {
	Run    bool
	Missed uint32        // Run: earlier times for which it runs, too
	After  time.Duration // not Run: ask again; 0: it is dropped
}

// undeclaredPause is how long a firing waits at a router that takes no schedules, since its key may move to another, or after its worker has gone.
const undeclaredPause = time.Second

// judgeFirings removes the firings from taken that must not run now, and appends a result for each to dst. The others are changed to say what
// they run for.
func (w *session) judgeFirings(taken []event.Delivery, dst []event.Result) ([]event.Delivery, []event.Result) {
	kept := taken[:0]
	for i := range taken {
		d := taken[i]
		if d.MessageID().IsSent() {
			if sent, err := event.ParseSent(d.Event().Properties); err == nil && sent.Firing != nil {
				result, run := w.judge(&d, sent)
				if !run {
					dst = append(dst, result)
					continue
				}
			}
		}
		kept = append(kept, d)
	}
	clear(taken[len(kept):])
	return kept, dst
}

// isSent reports whether one of the deliveries is of an event that a router has published.
func isSent(taken []event.Delivery) bool {
	return slices.ContainsFunc(taken, func(d event.Delivery) bool { return d.MessageID().IsSent() })
}

// judge decides about one firing.
func (w *session) judge(d *event.Delivery, sent event.Sent) (result event.Result, run bool) {
	s := w.server
	f := Firing{After: undeclaredPause}
	switch {
	case s.Schedules == nil:
	case slices.Contains(w.schedules, sent.Name):
		f = s.Schedules.Arrive(d.ID, &sent)
	default:
		if other := s.Schedules.Declarer(sent.Name); other != 0 {
			return event.Result{Delivery: d.ID, Kind: event.ResultPutOff, After: undeclaredPause, To: other}, false
		}
		f = s.Schedules.Undeclared(&sent) // it may have waited long enough, or its policy drops it
	}
	switch {
	case !f.Run && f.After > 0: // behind other firings of the schedule: it may be waiting for one of them
		return event.Result{Delivery: d.ID, Kind: event.ResultPutOff, After: f.After, Behind: true}, false
	case !f.Run:
		return event.Result{Delivery: d.ID, Kind: event.ResultDone}, false
	}
	s.firing.Add(1)
	if f.Missed != sent.Firing.Missed {
		own := *d.Event()
		properties := slices.DeleteFunc(slices.Clone(own.Properties), func(p event.Property) bool { return event.IsOfSent(p.Name) })
		sent.Firing.Missed = f.Missed
		own.Properties = sent.Properties(properties)
		d.Ref = event.RefTo(&own)
	}
	return event.Result{}, true
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
	if err := s.Schedules.Declare(w.id, schedules); err != nil {
		return err
	}
	for _, one := range schedules {
		w.schedules = append(w.schedules, one.GetName())
	}
	return nil
}

// endFirings tells the schedules of the firings that are over.
func (s *Server) endFirings(results []event.Result) {
	for i := range results {
		if s.Schedules.Ended(results[i]) {
			s.firing.Add(-1)
		}
	}
}
