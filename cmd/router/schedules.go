package main

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/report"
)

func schedulesCommand() *cobra.Command {
	return watched(&cobra.Command{
		Use:   "schedules",
		Short: "Show the schedules that the group's applications declare: when each ran last and runs next, and what it missed",
		Long: `Show the schedules that the group's applications declare: when each ran last and runs
next, who owns it, and what it missed. Times are UTC.

LAST is the newest time whose run has ended since the current owner took over the
schedule, and RUNNING the time that runs now. COVERED counts earlier times for which a
later one ran (missed: latest), and NOT RUN the firings that did not run, by reason:
  superseded    a newer time came, and ran for it
  skipped       it was more than a minute late (missed: skip)
  too_late      it was later than its grace
  too_many      one of more than 100 that were missed (missed: all)
  redefined     the schedule has other times now
  undeclared    no worker of the owner declares the schedule any more
  duplicate     a copy of one that ran
  not_scheduled it is at no time of the schedule`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		var m report.Members
		if err := a.get(cmd.Context(), "/v1/members", &m); err != nil {
			return err
		}
		all := report.SchedulesOf(m)
		return o.show(cmd.OutOrStdout(), all, func(p *page) { schedulesTable(p, all, time.Now()) })
	})
}

func schedulesTable(p *page, all report.Schedules, now time.Time) {
	var rows [][]string
	for i := range all.Schedules {
		s := &all.Schedules[i]
		next := report.Ahead(s.Next, now)
		if s.Next != "" && !s.Armed {
			next += " (being published)"
		}
		rows = append(rows, []string{
			s.Name, s.Times, cmp.Or(s.Owner, "-"), cmp.Or(s.LastRun, "-"), cmp.Or(s.Running, "-"), cmp.Or(s.Next, "-"), next, s.Missed, strconv.FormatUint(s.Covered, 10), s.DroppedWords(),
		})
	}
	switch {
	case len(rows) == 0 && len(all.Cut) > 0: // see below
	case len(rows) == 0:
		p.line("no application of the group declares a schedule")
	default:
		p.table([]string{"NAME", "TIMES", "OWNER", "LAST", "RUNNING", "NEXT", "", "MISSED", "COVERED", "NOT RUN"}, rows)
	}
	p.line("\n%s", toldBy(all.View))
	for i := range all.Schedules {
		for _, problem := range all.Schedules[i].Problems() {
			p.alarm("%s: %s", all.Schedules[i].Name, problem)
		}
	}
	if len(all.Silent) > 0 {
		p.alarm("no answer from %s: schedules may be missing above", strings.Join(all.Silent, ", "))
	}
	if len(all.Cut) > 0 {
		p.alarm("%s is of an earlier version, and does not pass on the schedules of %s: ask one of them", all.Member, strings.Join(all.Cut, ", "))
	}
	if all.Unshown > 0 {
		p.alarm("%s not shown: a member lists %d at most", report.Plural(all.Unshown, "schedule"), report.SchedulesMax)
	}
}
