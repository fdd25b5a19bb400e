package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/pipeline/schedule"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

const schedulesDocument = "../../docs/schedules.md"

// TestSchedulesPage: docs/schedules.md shows the table as it is printed, and the times of expressions where the clocks change.
func TestSchedulesPage(t *testing.T) {
	view := report.View{Member: "node-1", Epoch: "1:162", Position: "1:201"}
	of := func(name string, schedules ...report.Schedule) report.Member {
		return report.Member{Name: name, Status: &report.Status{Workers: 1, Schedules: schedules}}
	}
	backup := report.Schedule{Name: "backup", Times: "0 2 * * *", Missed: "latest", Workers: 1}
	daily := report.Schedule{Name: "report", Times: "0 6 * * 1-5 Europe/Berlin", Missed: "latest", Workers: 1}
	sweep := report.Schedule{Name: "sweep", Times: "every 30s", Missed: "skip", Workers: 1}
	owned := func(s report.Schedule, last, running, next string, covered uint64, dropped map[string]uint64) report.Schedule {
		s.Owned, s.Armed, s.LastRun, s.Running, s.Next, s.Covered, s.Dropped = true, true, last, running, next, covered, dropped
		return s
	}
	all := report.SchedulesOf(report.Members{View: view, Members: []report.Member{
		of("node-1", owned(backup, "2026-11-26T02:00:00Z", "", "2026-11-27T02:00:00Z", 0, nil), daily, sweep),
		of("node-2", backup, owned(daily, "2026-11-26T05:00:00Z", "", "2026-11-27T05:00:00Z", 3, map[string]uint64{"superseded": 3}),
			owned(sweep, "2026-11-26T11:59:30Z", "2026-11-26T12:00:00Z", "2026-11-26T12:00:30Z", 0, map[string]uint64{"skipped": 2})),
		of("node-3", backup, sweep),
	}})
	var shown bytes.Buffer
	schedulesTable(&page{out: &shown}, all, time.Date(2026, 11, 26, 12, 0, 25, 0, time.UTC))
	if text := read(t, schedulesDocument); !strings.Contains(text, "$ router schedules\n"+shown.String()+"```\n") {
		t.Errorf("%s does not show what is printed:\n%s", schedulesDocument, shown.String())
	}

	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*) \\| (.*) \\|$").FindAllStringSubmatch(read(t, schedulesDocument), -1)
	checked := 0
	for _, row := range rows {
		d, err := schedule.Definition{Name: "n", Cron: row[1], Zone: "Europe/Berlin"}.Parse()
		if err != nil {
			continue // another table
		}
		for i, day := range []time.Time{time.Date(2026, 3, 29, 1, 0, 0, 0, berlin), time.Date(2026, 10, 25, 1, 0, 0, 0, berlin)} {
			var fires []string
			for next, ok := d.Next(day.Add(-1)); ok && next.In(berlin).Day() == day.Day() && next.In(berlin).Hour() < 5; next, ok = d.Next(next) {
				fires = append(fires, next.In(berlin).Format("15:04-07:00"))
			}
			if got := strings.Join(fires, ", "); got != row[2+i] {
				t.Errorf("%s on %s fires at %s; the page says %s", row[1], day.Format(time.DateOnly), got, row[2+i])
			}
			checked++
		}
	}
	if checked != 10 {
		t.Errorf("%d cells of the table of changes of the clocks: this test does not see all of them", checked)
	}
}

// TestTheMostSchedules: a worker may declare as many schedules as there may be, with texts as long as they may be. Longer ones never leave the SDK.
func TestTheMostSchedules(t *testing.T) {
	t.Parallel()
	g := startLane(t, func() []string { return nil }, "pod-0")
	ctx, stop := context.WithTimeout(t.Context(), eventually.Most)
	defer stop()
	connected := false
	nothing := func(context.Context, *client.Firing) error { return nil }
	times := client.Cron(strings.Repeat("0,", (schedule.CronMax-10)/2)+"0 16 * * *", "America/Argentina/ComodRivadavia")
	options := []client.Option{
		client.WithLogger(slog.New(slog.DiscardHandler)), client.WithDrainGrace(0),
		client.WithHooks(client.Hooks{
			Connected: func(client.Session) {
				connected = true
				stop()
			},
			Disconnected: func(err error) {
				if !connected {
					t.Log(err)
				}
			},
		}),
	}
	for i := range schedule.SchedulesMax {
		options = append(options, client.WithSchedule(fmt.Sprintf("%0*d", schedule.NameMax, i), times, nothing))
	}
	handler := func(context.Context, *client.Event) error { return nil }
	if err := client.Run(ctx, g.apps[0], handler, options...); !connected {
		t.Errorf("there is no session: %v", err)
	}
	for _, times := range []client.Times{client.Cron(strings.Repeat(" ", schedule.CronMax+1), ""), client.Cron("0 0 * * *", strings.Repeat("z", schedule.ZoneMax+1))} {
		if err := client.Run(t.Context(), g.apps[0], handler, client.WithSchedule("long", times, nothing)); !errors.Is(err, client.ErrArgument) {
			t.Errorf("with a longer text: %v", err)
		}
	}
}

// TestSchedulesCommand: router schedules, asked at any member, tells the owner of a schedule, its next time, and that workers disagree.
func TestSchedulesCommand(t *testing.T) {
	t.Parallel()
	g := startLane(t, func() []string { return nil }, "router-0", "router-1")
	g.serves(t)
	at := "--admin=" + g.members["router-0"].admin
	if out, says, code := cli(t, "schedules", at); code != exitOK || !strings.Contains(out, "no application of the group declares a schedule") {
		t.Errorf("exit code %d: %s%s", code, out, says)
	}
	ctx, stop := context.WithCancel(t.Context())
	var applications sync.WaitGroup
	defer applications.Wait()
	defer stop()
	ran := make(chan time.Time, 1)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	hour := time.Now().In(berlin).Hour() + 8 // it must not run meanwhile
	for i, app := range g.apps {
		applications.Go(func() {
			err := client.Run(ctx, app, func(context.Context, *client.Event) error { return nil }, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithDrainGrace(0),
				client.WithSchedule("report", client.Cron(fmt.Sprintf("0 %d * * *", (hour+i)%24), "Europe/Berlin"), func(_ context.Context, f *client.Firing) error {
					ran <- f.Time
					return nil
				}))
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("application %d: %v", i, err)
			}
		})
	}
	for _, m := range g.members {
		eventually.NoError(t, eventually.Most, "both members tell of it", func() error {
			out, says, code := cli(t, "schedules", "-o", "json", "--admin="+m.admin)
			var all report.Schedules
			if err := json.Unmarshal([]byte(out), &all); err != nil {
				return fmt.Errorf("exit code %d: %w: %s%s", code, err, out, says)
			}
			if len(all.Schedules) != 1 || all.Schedules[0].Owner == "" || !all.Schedules[0].Armed || len(all.Schedules[0].Disagree) != 1 {
				return errors.New(out)
			}
			return nil
		})
	}
	out, says, code := cli(t, "schedules", at)
	for _, want := range []string{"report", " * * * Europe/Berlin", "router-", "report: declared differently by router-", "as router-0 has it, at epoch "} {
		if !strings.Contains(out, want) {
			t.Errorf("exit code %d, without %q: %s%s", code, want, out, says)
		}
	}
	select {
	case f := <-ran:
		t.Errorf("it ran for %v", f)
	default:
	}
}
