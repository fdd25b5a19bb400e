package clienttest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
)

// A firing reaches the handler of its schedule, and never that of events. It is retried as an event is, and its timers have its key.
func TestFire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := clienttest.NewRouter(t)
		at := time.Date(2026, 11, 30, 6, 0, 0, 0, time.UTC)
		var fail error
		var ran []client.Firing
		router.Start(func(_ context.Context, e *client.Event) error {
			if e.Timer == nil || e.Timer.Name != "later" {
				t.Errorf("the handler of events got %+v", e)
			}
			return nil
		}, client.WithSchedule("report", client.Cron("0 6 * * *", "Europe/Berlin"), func(_ context.Context, f *client.Firing) error {
			ran = append(ran, client.Firing{Schedule: f.Schedule, Time: f.Time.UTC(), Missed: f.Missed, Attempt: f.Attempt})
			f.After(time.Minute, "later", nil)
			return fail
		}))
		first := router.Fire("report", at, 2)
		if first.Outcome().Kind != clienttest.Done {
			t.Errorf("the firing: %v", first.Outcome())
		}
		fail = errors.New("no")
		second := router.Fire("report", at.Add(24*time.Hour), 0)
		if second.Outcome().Kind != clienttest.Retry {
			t.Errorf("a firing that fails: %v", second.Outcome())
		}
		fail = nil
		if again := second.Redeliver(); again.Outcome().Kind != clienttest.Done {
			t.Errorf("its next attempt: %v", again.Outcome())
		}
		want := []client.Firing{
			{Schedule: "report", Time: at, Missed: 2, Attempt: 1},
			{Schedule: "report", Time: at.Add(24 * time.Hour), Attempt: 1},
			{Schedule: "report", Time: at.Add(24 * time.Hour), Attempt: 2},
		}
		if len(ran) != len(want) || ran[0] != want[0] || ran[1] != want[1] || ran[2] != want[2] {
			t.Errorf("firings ran as %+v, want %+v", ran, want)
		}
		if undeclared := router.Fire("other", at, 0); undeclared.Outcome().Kind != clienttest.Retry {
			t.Errorf("a firing of a schedule that is not declared: %v", undeclared.Outcome())
		}
		sent := router.Sent()
		if len(sent) != 2 || sent[0].Key != "schedule/report" || sent[1].Key != "schedule/report" {
			t.Fatalf("timers: %+v", sent)
		}
		time.Sleep(2 * time.Minute)
		if sent[1].Delivery.Outcome().Kind != clienttest.Done {
			t.Errorf("the timer of a firing: %v", sent[1].Delivery.Outcome())
		}
	})
}
