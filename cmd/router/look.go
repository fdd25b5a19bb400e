package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/report"
)

// lookCommands show the activity of a group.
func lookCommands() []*cobra.Command {
	return []*cobra.Command{membersCommand(), schedulesCommand(), keysCommand(), locateCommand(), historyCommand(), rolloutCommand(), exclusivityCommand(), ringCommand()}
}

// asking is a command that asks a router and shows the answer.
func asking(cmd *cobra.Command, run func(cmd *cobra.Command, args []string, a *asker, o *outputForm) error) *cobra.Command {
	a, o := &asker{}, &outputForm{}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return run(cmd, args, a, o) }
	a.addTo(cmd)
	o.addTo(cmd)
	return cmd
}

func membersCommand() *cobra.Command {
	return watched(&cobra.Command{
		Use:   "members",
		Short: "Show the members of the group, the state of each, and where they disagree",
		Args:  noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		var m report.Members
		if err := a.get(cmd.Context(), "/v1/members", &m); err != nil {
			return err
		}
		return o.show(cmd.OutOrStdout(), m, func(p *page) { membersTable(p, m) })
	})
}

func membersTable(p *page, m report.Members) {
	var rows [][]string
	for _, one := range m.Members {
		row := []string{one.Name, one.Incarnation, one.Address, one.Reach}
		if s := one.Status; s != nil {
			row = append(row, s.Phase, ready(s), fmt.Sprintf("%d/%d", s.Gates.Open, one.Partitions), report.Seconds(s.LeaseSeconds),
				strconv.Itoa(s.Events.Unsettled), report.Seconds(s.Events.OldestSeconds), s.Epoch, s.Position, s.Version)
		} else if one.Unnamed {
			row = append(row, "not asked")
		} else {
			row = append(row, "no answer")
		}
		rows = append(rows, row)
	}
	p.table([]string{"NAME", "INCARNATION", "ADDRESS", "REACH", "PHASE", "READY", "OPEN/OWNED", "LEASE", "UNSETTLED", "OLDEST", "EPOCH", "POSITION", "VERSION"}, rows)
	p.line("\n%s", toldBy(m.View))
	for _, one := range m.Members {
		if one.Status == nil {
			continue
		}
		for _, check := range one.Status.Checks {
			if check.Error != "" {
				p.line("%s is not ready: %s: %s", one.Name, check.Name, check.Error)
			}
		}
	}
	for _, says := range withoutActs(m) {
		p.alarm("%s", says)
	}
	for _, one := range m.Members {
		if one.Status == nil {
			continue
		}
		for _, worker := range one.Status.UncheckedWorkers {
			p.alarm("%s: %s", one.Name, worker.Unchecked())
		}
	}
	for _, one := range report.Protections(m) {
		p.line("%s: %s", strings.Join(one.Members, ", "), one.Listeners)
		if len(one.Exposed) > 0 {
			p.alarm("%s: only the network keeps strangers from %s", strings.Join(one.Members, ", "), strings.Join(one.Exposed, ", "))
		}
	}
	for _, d := range m.Disagreements {
		p.alarm("%s", d)
	}
}

func ready(s *report.Status) string {
	if s.Failing() != nil {
		return "no"
	}
	return "yes"
}

// toldBy says whose word an answer is.
func toldBy(s report.View) string {
	return fmt.Sprintf("as %s has it, at epoch %s, having read the control log up to %s", s.Member, s.Epoch, s.Position)
}

func locateCommand() *cobra.Command {
	var encoded bool
	cmd := watched(&cobra.Command{
		Use:        "locate KEY",
		SuggestFor: []string{"owner", "where", "find"},
		Short:      "Show the owner of a key, and its waiting events, calls and reservations",
		Long: `Show the owner of a key, and its waiting events, calls and reservations.

The owner says what runs and what waits in the key's mailbox: events, calls, and the
reservation that holds the key; every other member says which events of the key it has
received and holds until their verdict. What a key can wait for, in words and in JSON:
  the handler                       handler  its event or call runs, or it is reserved
  its next attempt                  retry    its event has failed
  its gate                          gate     an earlier owner may still work on it
  an application                    worker   none is connected to the owner
  room at its worker, or the lease  slot     its worker has no room, or the owner's lease is over
  its release                       hold     an operator holds the key (router hold)
  its park, or the letters          park     an operator has parked the key, or brings its
                                             letters back (router park)`,
		Args: oneArg("KEY"),
	}, func(cmd *cobra.Command, args []string, a *asker, o *outputForm) error {
		query, err := keyQuery(args[0], encoded)
		if err != nil {
			return err
		}
		var k report.Key
		if err := a.get(cmd.Context(), "/v1/keys?"+query.Encode(), &k); err != nil {
			return err
		}
		return o.show(cmd.OutOrStdout(), k, func(p *page) { keyPage(p, k) })
	})
	addBase64(cmd, &encoded)
	return cmd
}

func addBase64(cmd *cobra.Command, encoded *bool) {
	cmd.Flags().BoolVar(encoded, "base64", false, "KEY is in base64, for binary keys")
}

// keyQuery is the query for a key, as the command line has it.
func keyQuery(argument string, encoded bool) (url.Values, error) {
	key, err := keyOf(argument, encoded)
	if err != nil {
		return nil, err
	}
	return url.Values{"key": {key}}, nil
}

// keyOf returns the key of an argument. No event has an empty key: it comes from a variable of a script that is not set.
func keyOf(argument string, encoded bool) (string, error) {
	key := argument
	if encoded {
		raw, err := base64.StdEncoding.DecodeString(argument)
		if err != nil {
			return "", usageError{fmt.Errorf("KEY is not base64: %w", err)}
		}
		key = string(raw)
	}
	if key == "" || len(key) > event.KeyMax {
		return "", usageError{fmt.Errorf("KEY has %d bytes, want 1 to %d", len(key), event.KeyMax)}
	}
	return key, nil
}

func keyPage(p *page, k report.Key) {
	owner := "none: the group has no table yet"
	if k.Owner != "" {
		owner = fmt.Sprintf("%s (%s), fencing token %d", k.Owner, k.OwnerAddress, k.Token)
	}
	p.line("partition  %d", k.Partition)
	p.line("owner      %s", owner)
	for _, at := range k.At {
		says := at.Says
		if says == nil && at.Error == "" { // of a router of an earlier release
			says = at.Words()
		}
		for _, line := range says {
			p.line("at         %s: %s", at.Member, line)
		}
		if at.Error != "" {
			p.alarm("at         %s: does not answer: %s", at.Member, at.Error)
		}
	}
	p.line("\n%s", toldBy(k.View))
}

// errNotKept says that exclusivity cannot be confirmed.
var errNotKept = errors.New("exclusivity cannot be confirmed: see above")

// errNobodyJudged makes the exit code tell of an answer without members.
var errNobodyJudged = errors.New("no member was judged: the answer names none; check that --admin is that of a router")

func exclusivityCommand() *cobra.Command {
	return watched(&cobra.Command{
		Use:   "exclusivity",
		Short: "Show whether anything has happened that breaks the promise of one handler per key",
		Long: `Show whether anything has happened that breaks the promise of one handler per key,
since each member was started. The verdict on a member is
  kept          nothing has
  at risk       a handler may have outlived its permission, which the router cannot see:
                the fence lets the sink refuse its writes (docs/sinks.md)
  broken        the live auditor has found handlers of one key that ran at the same time,
                or an assertion of the router did not hold: a bug
  not promised  ownership.mode is gossip

OVERLAPS counts the pairs of handlings that overlapped, the handlings that were compared, and
those that could not be compared (docs/audit.md).

The output names workers whose SDK does not declare that it passes router conformance.
They do not change the verdict.

The exit code is 1 if the verdict on any member is not kept, a member does not answer, or
nobody was judged.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		var m report.Members
		if err := a.get(cmd.Context(), "/v1/members", &m); err != nil {
			return err
		}
		judged := judge(m)
		if err := o.show(cmd.OutOrStdout(), judged, func(p *page) { judgedTable(p, judged) }); err != nil {
			return err
		}
		for _, one := range judged {
			if one.Verdict != report.Kept {
				return errNotKept
			}
		}
		if len(judged) == 0 {
			return errNobodyJudged
		}
		return nil
	})
}

// judged is one member's exclusivity.
type judged struct {
	Member  string         `json:"member"`
	Verdict report.Verdict `json:"verdict"`
	Reasons []string       `json:"reasons"`
	report.Exclusivity
	UncheckedWorkers []report.Worker `json:"unchecked_workers,omitempty"`
}

// unknown is the verdict on a member that does not answer.
const unknown report.Verdict = "unknown"

func judge(m report.Members) []judged {
	all := []judged{}
	asked, newer := m.Cut()
	for _, one := range m.Members {
		if one.Unnamed { // it owns nothing
			continue
		}
		j := judged{Member: one.Name, Verdict: unknown, Reasons: []string{"it does not answer: " + one.Error}}
		if one.Status != nil {
			verdict, reasons := one.Status.Verdict()
			j.Verdict, j.Reasons = verdict, append([]string{}, reasons...) // in JSON a list, not null
			j.Exclusivity, j.UncheckedWorkers = one.Status.Exclusivity, one.Status.UncheckedWorkers
			if verdict == report.Kept && slices.Contains(newer, one.Name) {
				j.Verdict, j.Reasons = unknown, []string{asked + ", which was asked, is of an earlier version, and does not pass on what the auditor of this member has found: ask this member"}
			}
		}
		all = append(all, j)
	}
	return all
}

func judgedTable(p *page, all []judged) {
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	var rows [][]string
	for _, j := range all {
		rows = append(rows, []string{
			j.Member, strings.ToUpper(string(j.Verdict)), report.Seconds(j.Seconds), count(j.InvariantFailures), count(j.ForcedDrains),
			count(j.LateResults), count(j.LostTrust), count(j.LeaseLapses), overlapsOf(j.Audit),
		})
	}
	p.table([]string{"MEMBER", "EXCLUSIVITY", "SINCE", "FAILED ASSERTIONS", "FORCED DRAINS", "LATE RESULTS", "LOST TRUST", "LEASE LAPSES", "OVERLAPS"}, rows)
	for _, j := range all {
		for _, reason := range j.Reasons {
			p.alarm("%s: %s", j.Member, reason)
		}
		if j.Audit != nil {
			for _, overlap := range j.Audit.Newest {
				p.alarm("%s: %s", j.Member, untrusted.Print(overlap.String()))
			}
		}
		for _, worker := range j.UncheckedWorkers {
			p.alarm("%s: %s", j.Member, worker.Unchecked())
		}
	}
}

// overlapsOf tells what the live auditor of a member has found.
func overlapsOf(a *report.Audit) string {
	if a == nil {
		return "not audited"
	}
	undecided := a.Unheard
	for _, n := range a.Undecided {
		undecided += n
	}
	if undecided == 0 {
		return fmt.Sprintf("%d of %d", a.Overlaps, a.Handlings)
	}
	return fmt.Sprintf("%d of %d (%d undecided)", a.Overlaps, a.Handlings, undecided)
}
