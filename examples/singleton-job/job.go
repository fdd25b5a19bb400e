package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/examples/killed"
)

// jobs are the schedules that every process declares. Real ones have times of their own, such as client.Cron("0 6 * * *", "Europe/Berlin").
var jobs = []string{"report", "invoices", "sweep"}

const (
	every = 10 * time.Second
	takes = 2500 * time.Millisecond // the work
)

// row holds the newest run of a job in the database.
type row struct {
	Time   time.Time // of the schedule
	Missed int       // earlier times for which it runs, too
	At     string    // the router of the process that runs it
	Ended  bool
}

// worker is the application.
type worker struct {
	db       killed.Database
	endpoint string
}

// run is one run of a job. The job's row has the newest time that was done, and is written with the fence: so a run whose process was killed between its
// end and its ack is found to be done, and one that has lost its key writes no more.
func (w *worker) run(ctx context.Context, f *client.Firing) error {
	var last row
	stored, err := w.db.Claim(ctx, f.Schedule, f.Fence)
	if err != nil {
		return err
	}
	if len(stored) > 0 {
		if err := json.Unmarshal(stored, &last); err != nil {
			return err
		}
	}
	if last.Ended && !last.Time.Before(f.Time) {
		return w.db.Note(ctx, f.Schedule, f.Fence, doneBefore)
	}
	now := row{Time: f.Time, Missed: f.Missed, At: w.endpoint}
	if err := w.write(ctx, f, now); err != nil {
		return err
	}
	select { // the work
	case <-time.After(takes):
	case <-ctx.Done():
		cause := context.Cause(ctx)
		// The key is lost, so this run ends here. Nothing would have to know; this example checks that it has ended before the next one begins.
		telling, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = w.db.Note(telling, f.Schedule, f.Fence, stopped)
		return cause
	}
	now.Ended = true
	return w.write(ctx, f, now)
}

// What is noted of a run.
const (
	stopped    = "stopped"
	doneBefore = "done before"
)

func (w *worker) write(ctx context.Context, f *client.Firing, r row) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return w.db.Write(ctx, f.Schedule, f.Fence, text)
}
