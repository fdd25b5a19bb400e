// Command router is Ringfence: a sidecar that delivers the events of every key of a Pulsar
// SHARED subscription to one application at a time.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/timerslack"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/devtools/demo"
	"github.com/ringfence/router/internal/devtools/dev"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/telemetry"
)

// The exit codes, which supervisors and scripts may rely on.
const (
	exitOK      = 0
	exitFailed  = 1 // it ran, and something went wrong
	exitUsage   = 2 // wrong command line or settings: trying again changes nothing
	exitUndrain = 3 // the drain was cut; the broker delivers the unacked events again

	exitIdentity = 5 // this router's settings are not those of its group; trying again changes nothing
)

// usageError is one for which the exit code is exitUsage.
type usageError struct{ error }

// Unwrap returns the cause.
func (e usageError) Unwrap() error { return e.error }

func main() {
	if isMember(os.Args[1:]) {
		if err := timerslack.Widen(); err != nil { // before signals are handled
			fmt.Fprintf(os.Stderr, "router: %v; with little load it takes more CPU\n", err)
		}
	}
	ctx, stop := signalContext()
	defer stop()
	err := rootCommand().ExecuteContext(ctx)
	if err != nil && err.Error() != "" {
		last := telemetry.NewOutput(os.Stderr)
		fmt.Fprintln(last, "router:", untrusted.Lines(err.Error()))
		last.Close(stderrPatience) // perhaps nobody reads it
	}
	os.Exit(exitCode(err))
}

// isMember reports whether a command runs a member of a group.
func isMember(arguments []string) bool {
	if len(arguments) > 0 && arguments[0] == runVerb {
		return true
	}
	if len(arguments) < 2 {
		return false
	}
	child := [2]string(arguments[:2])
	return child == [2]string{"demo", demo.RoleMember} || child == [2]string{"prove", proveRoleMember}
}

func exitCode(err error) int {
	var usage usageError
	var call *callError
	var locked *lockError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, node.ErrDrainTimeout), errors.Is(err, dev.ErrNotDrained):
		return exitUndrain
	case errors.Is(err, controllog.ErrDenied):
		return exitUsage
	case errors.Is(err, node.ErrIdentity):
		return exitIdentity
	case errors.As(err, &call):
		return call.code
	case errors.As(err, &locked):
		return locked.code
	}
	return exitFailed
}

// signalContext ends with the first SIGTERM or SIGINT. The second signal ends the process at
// once.
func signalContext() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // from here on the default action counts again
	return ctx, stop
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "router",
		Short:         "Per-key exclusive event processing over a Pulsar SHARED subscription, without locks",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(wrongFlag)
	root.Version = version()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Args, root.RunE = requireSubcommand, requireSubcommand
	root.AddCommand(runCommand(), configCommand(), versionCommand())
	root.AddCommand(lookCommands()...)
	root.AddCommand(drainCommands()...)
	root.AddCommand(actCommands()...)
	root.AddCommand(invokeCommand(), sendCommand(), lockCommand())
	root.AddCommand(lockChildren()...)
	root.AddCommand(groupCommand(), auditCommand())
	root.AddCommand(forgetCommand())
	root.AddCommand(deadLettersCommand(), replayCommand())
	root.AddCommand(doctorCommand())
	root.AddCommand(demoCommand(), devCommand())
	root.AddCommand(bridgeCommand(), conformanceCommand())
	root.AddCommand(migrateCommand(), proveCommand())
	addCompletions(root)
	requireWords(root)
	return root
}
