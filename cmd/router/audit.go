package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/ownership"
)

// errViolated makes the command fail if the log contradicts itself.
var errViolated = errors.New("the control log contradicts itself: see above")

// errUnjudged makes the command fail if the log has nothing to check records against.
var errUnjudged = errors.New("the control log has no record from which its state follows: nothing was checked")

// errNoGroup makes the exit code tell of a group that has no control log.
var errNoGroup = errors.New("no router of this group has ever run here")

// errLater makes the command fail if the log continues in a format that this build cannot read.
var errLater = errors.New("the control log continues in a later version: see above")

func auditCommand() *cobra.Command {
	var file string
	var o outputForm
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Replay the control log of a group and check its tokens, tenures and releases",
		Long: `Replay the control log of a group, as far as the broker still has it, and check what
members wrote against it: fencing tokens only grow; each Beat knows the epochs and the
records before it; a Beat acquires only partitions that its sender owned, and does not
drain again what it had released; a Snap is the state at its Hello.

It only reads, with the settings of a router of the group, also while the group runs. How
long a member waited for another one cannot be checked: the log has no time. Whether
handlers have overlapped is checked by the members themselves: router exclusivity.

The exit code is 1 after a violation, when there was nothing to check, and when the log
goes on in a version that this build cannot read.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := load(cmd, file)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), groupTimeout)
			defer cancel()
			logs, err := openGroupLogs(ctx, loaded.Config)
			if err != nil {
				return err
			}
			audited, err := logs.audit(ctx, loaded.Config)
			if err != nil {
				return err
			}
			if err := o.show(cmd.OutOrStdout(), audited, audited.show); err != nil {
				return err
			}
			return audited.err()
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "file with settings, in YAML: those of a router of the group")
	config.AddFlags(cmd.Flags())
	o.addTo(cmd)
	cmd.AddCommand(collectCommand())
	return cmd
}

// violationsMax is how many violations are kept: each may follow from the first.
const violationsMax = 10

// auditedLog is the result of an audit.
type auditedLog struct {
	Group      string                `json:"group"`
	Judged     bool                  `json:"judged"` // there was a state to check records against
	Checked    ownership.Checked     `json:"checked"`
	Violations int                   `json:"violations"`
	First      []ownership.Violation `json:"first_violations"` // at most 10
}

// audit replays the control log of the group of these settings.
func (g groupLogs) audit(ctx context.Context, cfg config.Config) (auditedLog, error) {
	topic := cfg.ControlTopic()
	if missing, err := g.missing(ctx, topic); err != nil {
		return auditedLog{}, err
	} else if missing {
		return auditedLog{}, fmt.Errorf("%w: there is no topic %s; is node.group = %q the name of the group?", errNoGroup, topic, cfg.Node.Group)
	}
	transport, err := g.open(topic)
	if err != nil {
		return auditedLog{}, err
	}
	return auditLog(ctx, transport, cfg.Node.Group)
}

// auditLog replays a control log.
func auditLog(ctx context.Context, transport controllog.Transport, group string) (auditedLog, error) {
	replay := ownership.NewReplay(group)
	a := auditedLog{Group: group, First: []ownership.Violation{}}
	err := controllog.Replay(ctx, transport, group, func(at event.Position, r ownership.Record, sum uint64) {
		if v := replay.Read(at, r, sum); v != nil {
			if a.Violations++; len(a.First) < violationsMax {
				a.First = append(a.First, *v)
			}
		}
	})
	a.Judged, a.Checked = replay.Judges(), replay.Checked()
	return a, err
}

func (a *auditedLog) err() error {
	switch {
	case a.Violations > 0:
		return errViolated
	case a.Checked.Later > 0:
		return errLater
	case !a.Judged:
		return errUnjudged
	}
	return nil
}

func (a *auditedLog) show(p *page) {
	c := a.Checked
	count := func(n int) string { return fmt.Sprint(n) }
	p.table([]string{"CHECKED", "", "OF GROUP " + a.Group}, [][]string{
		{"records", count(c.Records), fmt.Sprintf("%v to %v", c.First, c.Last)},
		{"  not judged", count(c.Unjudged), "from before the first record that holds a state"},
		{"  skipped", count(c.Foreign), "of other groups, unreadable, or refused by every member"},
		{"geneses, epochs", fmt.Sprintf("%d, %d", c.Geneses, c.Epochs), "the tokens of each new tenure"},
		{"tenures", count(c.Tenures), ""},
		{"Beats", count(c.Beats), fmt.Sprintf("%d of them with the hash of all records before", c.Prefixes)},
		{"tenures acquired", count(c.Acquired), "each of them the Beat's sender's"},
		{"tenures released", count(c.Released), "by their owner, or proven over by the next one; a Genesis ends the others before it"},
		{"Snaps", count(c.Snaps), "each against the state at its Hello"},
	})
	if c.Later > 0 {
		p.alarm("the group decides in log version %d from record %v on, this router reads up to %d: %d records were not checked; use a newer build", c.LaterVersion, c.LaterFrom, ownership.LogVersionMax, c.Later)
	}
	for _, v := range a.First {
		p.alarm("%s", v.Error())
	}
	if a.Violations > len(a.First) {
		p.alarm("and %d more", a.Violations-len(a.First))
	}
}
