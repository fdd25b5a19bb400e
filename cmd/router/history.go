package main

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/report"
)

func historyCommand() *cobra.Command {
	var encoded, hashed bool
	var id string
	cmd := watched(&cobra.Command{
		Use:   "history KEY",
		Short: "Show what happened to the events of a key, at all members",
		Long: `Show what happened to the events of a key, at all members, by time:
  received   its consumer node got the event from the broker
  moved      the partition of the key got another owner, or its owner sent the event on
  queued     the owner's mailbox took the event
  delivered  a worker got it
  started    its handler began, if the SDK says so
  answered   the worker gave its result, or none in time
  retried    it failed, and stays in its mailbox for the next attempt
  settled    its consumer node acked it, or ended it with a copy in another topic

Members remember the newest events, and those of keys that failed longest, up to
history.bytes_max. The memory of a member that was killed is lost. Times are those of each
member's machine.`,
		Args: oneArg("KEY"),
	}, func(cmd *cobra.Command, args []string, a *asker, o *outputForm) error {
		query, err := keyQuery(args[0], encoded)
		if err != nil {
			return err
		}
		if _, err := event.ParseMessageID(id); err != nil && id != "" && !strings.HasPrefix(id, "call:") {
			return usageError{fmt.Errorf("--event: %w", err)}
		}
		if hashed {
			if _, err := partition.ParseKeyHash(args[0]); err != nil {
				return usageError{fmt.Errorf("KEY: %w", err)}
			}
			query = url.Values{"hash": {args[0]}}
		}
		var h report.History
		if err := a.get(cmd.Context(), "/v1/history?"+query.Encode(), &h); err != nil {
			return err
		}
		h.Only(id)
		return o.show(cmd.OutOrStdout(), h, func(p *page) { historyPage(p, h, id) })
	})
	f := cmd.Flags()
	addBase64(cmd, &encoded)
	f.BoolVar(&hashed, "hash", false, "KEY is the hash of the key, as router keys shows it")
	f.StringVar(&id, "event", "", "only the steps of the event with this message id, as ledger:entry:partition:batch, and the moves of its partition")
	cmd.MarkFlagsMutuallyExclusive("base64", "hash")
	return cmd
}

// historyPage shows a history, of the event with this id alone unless that is "".
func historyPage(p *page, h report.History, id string) {
	var rows [][]string
	for i := range h.Steps {
		s := &h.Steps[i]
		attempt := ""
		if s.Attempt > 0 {
			attempt = strconv.Itoa(s.Attempt)
		}
		rows = append(rows, []string{s.At.Format("15:04:05.000"), s.Member, s.Kind, s.Event, attempt, shortFence(s.Fence), stepWords(s)})
	}
	p.line("partition  %d", h.Partition)
	p.line("owner      %s, fencing token %d\n", cmp.Or(h.Owner, "none"), h.Token)
	if !slices.ContainsFunc(h.Steps, func(s report.Step) bool { return s.Event != "" }) {
		if id != "" {
			p.line("no member remembers event %s of this key", id)
		} else {
			p.line("no member remembers an event of this key")
		}
		if len(rows) > 0 {
			p.line("")
		}
	}
	if len(rows) > 0 {
		p.table([]string{"TIME (UTC)", "MEMBER", "STEP", "EVENT", "ATTEMPT", "FENCE", ""}, rows)
	}
	var reach []string
	for _, r := range h.Reach {
		reach = append(reach, r.Member+" since "+r.Since.Format(time.DateTime))
	}
	p.line("\nremembered: %s", strings.Join(reach, ", "))
	if h.Cut > 0 {
		p.line("%d older steps are not listed", h.Cut)
	}
	p.line("%s", toldBy(h.View))
	for _, silent := range h.Silent {
		p.alarm("no history of %s", silent)
	}
}

// shortFence is a fence without its leading zeros.
func shortFence(text string) string {
	f, err := event.ParseFence(text)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", f.Token, f.Turn)
}

func stepWords(s *report.Step) string {
	switch {
	case s.Kind == report.StepReceived && s.To != "":
		return "for " + s.To
	case s.Kind == report.StepMoved && s.Event == "":
		return fmt.Sprintf("from %s to %s, token %d", cmp.Or(s.From, "nobody"), s.To, s.Token)
	case s.Kind == report.StepMoved:
		return "to the next owner"
	case s.Result == event.ResultRetry.String(): // "retry after 4ms" would read as the pause before the next attempt
		return "failed after " + report.Seconds(s.Seconds)
	case s.Result != "":
		return fmt.Sprintf("%s after %s", s.Result, report.Seconds(s.Seconds))
	}
	return ""
}
