package main

import (
	"cmp"
	"errors"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/devtools/conformance"
)

const conformanceHelp = `Check whether a worker keeps the rules of the protocol between a router and its
application: for authors of SDKs. The command plays the router in scenes, each with a
process of its own on loopback, which finds it by RINGFENCE_APP_ENDPOINT and its token by
RINGFENCE_APP_TOKEN_FILE. It needs Linux.

COMMAND is a small program on the SDK under test, whose handler obeys the payload:
{"id":7,"do":"sleep","ms":500}. It writes "start ID KEY CLOCK" when it begins and
"end ID KEY CLOCK" before it returns; CLOCK is CLOCK_BOOTTIME in nanoseconds. docs/sdk-protocol.md has the
instructions, and examples/conformance and sdk/python/conformance.py obey them.

Rules about calls are absent if the worker takes no calls, and those about timers if its
SDK has none. The exit code is 0 only if every other rule passed. The rules:

`

func conformanceCommand() *cobra.Command {
	o := conformance.DefaultOptions()
	var out outputForm
	asJSON := false
	cmd := &cobra.Command{
		Use:   "conformance [flags] -- COMMAND [ARGUMENT...]",
		Short: "Check whether a worker of any SDK keeps the rules of its protocol",
		Long:  conformanceHelp + conformance.Help(),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			o.Command = arguments
			if asJSON {
				out.form = "json"
			}
			if err := o.Validate(); err != nil {
				return usageError{err}
			}
			verdicts, err := conformance.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if err := out.show(cmd.OutOrStdout(), verdicts, func(p *page) { showVerdicts(p, verdicts) }); err != nil {
				return err
			}
			if !conformance.Passed(verdicts) {
				return errors.New("the worker does not pass every rule")
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Only, "only", o.Only, "rules to check, separated by commas; all without it")
	f.DurationVar(&o.Patience, "patience", o.Patience, "how long the worker may take for each thing that it has to do")
	f.IntVar(&o.Parallel, "parallel", o.Parallel, "scenes side by side, each with a process of the worker")
	f.BoolVar(&asJSON, "json", false, "the same as --output json")
	out.addTo(cmd)
	return cmd
}

func showVerdicts(p *page, verdicts []conformance.Verdict) {
	count := map[conformance.Result]int{}
	var rows [][]string
	for _, v := range verdicts {
		count[v.Result]++
		rows = append(rows, []string{v.Name, string(v.Result), cmp.Or(v.Reason, v.Why)})
	}
	p.table([]string{"RULE", "RESULT", ""}, rows)
	p.line("\n%d passed, %d failed, %d skipped, %d absent", count[conformance.Pass], count[conformance.Fail], count[conformance.Skipped], count[conformance.Absent])
}
