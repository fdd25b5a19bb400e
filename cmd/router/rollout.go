package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/report"
)

func rolloutCommand() *cobra.Command {
	last := 1
	cmd := watched(&cobra.Command{
		Use:   "rollout",
		Short: "Show what the newest deploy did: moves of partitions, pauses of keys, handlers that were cut",
		Long: fmt.Sprintf(`Show what the newest deploy did: moves of partitions, pauses of keys, handlers that were cut.

A rollout is moves with less than %v between them. Of each move:
  PAUSE       no key of the moved partitions waited longer because of it; after a kill since the last sign of the owner
  ANSWERED    handlers that ran when their partition moved away, and were answered
  CUT         those that were cancelled, or gave no answer: their event is delivered a second time
  UNANSWERED  events that a killed owner had and had not answered: those whose handler had begun are delivered a second time

Each member reports what it saw, and a member that leaves hands its reports over to the others. The
reports of a killed member are lost; the output says so. Times are those of each member's machine.`, report.RolloutGap),
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		if last < 1 || last > report.RolloutsMax {
			return usageError{errors.New("--last: want 1 to " + strconv.Itoa(report.RolloutsMax))}
		}
		var r report.Rollouts
		if err := a.get(cmd.Context(), "/v1/rollouts?last="+strconv.Itoa(last), &r); err != nil {
			return err
		}
		return o.show(cmd.OutOrStdout(), r, func(p *page) { rolloutsPage(p, r) })
	})
	cmd.Flags().IntVar(&last, "last", last, fmt.Sprintf("show the newest so many rollouts, 1 to %d", report.RolloutsMax))
	return cmd
}

func rolloutsPage(p *page, r report.Rollouts) {
	for i := range r.Rollouts {
		rolloutPage(p, &r.Rollouts[i])
	}
	if len(r.Rollouts) == 0 {
		p.line("no partition has moved since the members that answer have started")
	}
	p.line("%s", toldBy(r.View))
	for _, silent := range r.Silent {
		p.alarm("no word of %s", silent)
	}
}

func rolloutPage(p *page, r *report.Rollout) {
	p.line("rollout of %s to %s UTC: %s, %s of partitions; the longest pause of a key is %s\n", r.Begin.Format(time.DateTime), r.End.Format(time.TimeOnly),
		report.Plural(len(r.Moves), "record"), report.Plural(r.Partitions, "move"), pauseWords(&r.MoveSum))
	var rows [][]string
	for i := range r.Moves {
		m := &r.Moves[i]
		rows = append(rows, append([]string{m.Time.Format("15:04:05.000"), strconv.Itoa(m.Partitions)}, append(sumCells(&m.MoveSum), m.Reason)...))
	}
	p.table([]string{"TIME (UTC)", "PARTITIONS", "PAUSE", "ANSWERED", "CUT", "UNANSWERED", ""}, rows)
	rows = nil
	for i := range r.Members {
		m := &r.Members[i]
		rows = append(rows, append(append([]string{m.Name}, sumCells(&m.MoveSum)...), strconv.Itoa(m.Gained), strconv.Itoa(m.Lost), cameAndWent(m)))
	}
	p.line("")
	p.table([]string{"MEMBER", "PAUSE", "ANSWERED", "CUT", "UNANSWERED", "GAINED", "LOST", ""}, rows)
	p.line("")
	if r.Forced > 0 {
		p.alarm("%s given up on at the drain timeout, with the handlers that ran there", report.Plural(r.Forced, "partition"))
	}
	if second := r.Cut + uint64(r.Unanswered); second > 0 {
		p.alarm("up to %s twice", report.Plural(int(second), "event"))
	}
	for _, name := range r.Unknown {
		p.alarm("what the handlers of %s did when its partitions moved is not known", name)
	}
}

// sumCells are the cells of a sum: the pause, and what became of handlers.
func sumCells(s *report.MoveSum) []string {
	return []string{pauseWords(s), strconv.FormatUint(s.Answered, 10), strconv.FormatUint(s.Cut, 10), strconv.Itoa(s.Unanswered)}
}

func pauseWords(s *report.MoveSum) string {
	words := report.Seconds(s.Pause)
	if s.Waiting > 0 {
		words += fmt.Sprintf(", %d wait", s.Waiting)
	}
	return words
}

// cameAndWent tells how often a member joined and left.
func cameAndWent(m *report.RolloutMember) string {
	var words []string
	for _, one := range []struct {
		times int
		what  string
	}{{m.Left, "left"}, {m.Gone, "was gone"}, {m.Joined, "joined"}} {
		if one.times > 1 {
			words = append(words, fmt.Sprintf("%s %d times", one.what, one.times))
		} else if one.times == 1 {
			words = append(words, one.what)
		}
	}
	return cmp.Or(strings.Join(words, ", "), "stayed")
}
