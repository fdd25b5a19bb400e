package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/devtools/dev"
	"github.com/ringfence/router/internal/devtools/procgroup"
)

const devHelp = `Run a group on this machine to develop an application against: members, your own
application beside each, and events.

  router dev -- python3 app.py        your application, started beside each member;
                                      it finds its member by RINGFENCE_APP_ENDPOINT
  router dev --exec ./handle.sh       a shell command for each event: the payload on
                                      standard input, RINGFENCE_KEY, _KEY_BASE64,
                                      _MESSAGE_ID, _TOPIC, _ATTEMPT, _FENCE,
                                      _FENCING_TOKEN, _TURN in the environment;
                                      exit code 0: done, 65: reject, anything else:
                                      failed, comes again

Without --pulsar, events are generated: {"number":12,"user":"user-2","turn":2}, with
the user as the key. Each failure of an event is a line with its key, attempt and
reason, and so is each event that goes to the dead letter topic. An application that
ends is started again, unless it ends immediately five times in a row before any event was
handled: then this ends with an error. Ctrl-C drains: the members leave in order, and
what was accepted is finished; a second one ends at once.`

func devCommand() *cobra.Command {
	o := dev.DefaultOptions()
	cmd := &cobra.Command{
		Use:   "dev [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Run members with your own application beside each, and events",
		Long:  devHelp,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			o.Command = arguments
			if err := o.Validate(); err != nil {
				return usageError{err}
			}
			if err := o.CheckCommand(cmd.Context()); err != nil {
				return usageError{err}
			}
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			err = dev.Run(cmd.Context(), o, dev.Environment{
				Executable: executable, Stdout: cmd.OutOrStdout(), Colours: mayColour(cmd.OutOrStdout()),
			})
			return devError(err)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Members, "members", o.Members, "members, each with an application")
	f.StringVar(&o.Exec, "exec", o.Exec, "shell command to run for each event, instead of an application")
	f.IntVar(&o.Parallel, "parallel", o.Parallel, "with --exec: commands at once beside one member")
	f.IntVar(&o.Rate, "rate", o.Rate, "generated events per second")
	f.IntVar(&o.Keys, "keys", o.Keys, "keys that they are spread over")
	f.IntVar(&o.Events, "events", o.Events, "drain and end when this many events are handled; 0: go on")
	f.StringVar(&o.Pulsar, "pulsar", o.Pulsar, "URL of a Pulsar to use instead of a broker in memory")
	f.StringSliceVar(&o.Topics, "topic", o.Topics, "with --pulsar: topic to read events from; repeatable")
	f.StringVar(&o.Subscription, "subscription", o.Subscription, "with --pulsar: subscription to read them by")
	f.StringVar(&o.Group, "group", o.Group, "with --pulsar: the group; no other application may use it there")
	f.StringArrayVar(&o.Settings, "set", o.Settings, "setting of all members, as SECTION.KEY=VALUE; repeatable")
	f.BoolVarP(&o.Verbose, "verbose", "v", o.Verbose, "show members' log lines of level info")
	cmd.AddCommand(devChildren()...)
	return cmd
}

// devError tells a wrong command line or setting of a child from other failures.
func devError(err error) error {
	if errors.Is(err, dev.ErrUsage) {
		return usageError{err}
	}
	return err
}

// devChildren are the commands that it starts.
func devChildren() []*cobra.Command {
	var endpoint string
	var parallel int
	app := devChild(dev.RoleApp, func(ctx context.Context, arguments []string) error {
		return dev.RunCommand(ctx, arguments, endpoint, os.Stdout, os.Stderr)
	})
	bridge := devChild(dev.RoleExec, func(ctx context.Context, arguments []string) error {
		return dev.RunExec(ctx, arguments[0], endpoint, parallel, os.Stdout, os.Stderr)
	})
	for _, cmd := range []*cobra.Command{app, bridge} {
		cmd.Flags().StringVar(&endpoint, "endpoint", "", "")
	}
	bridge.Flags().IntVar(&parallel, "parallel", 1, "")
	return []*cobra.Command{app, bridge}
}

// devChild is a hidden command: the wrapper between the parent and the user's processes, which
// ends them when the parent ends.
func devChild(role string, run func(context.Context, []string) error) *cobra.Command {
	return &cobra.Command{
		Use:    role,
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			leaveSignals(cmd)
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			procgroup.FollowParent(os.Stdin, func(int) { stop() })
			return devError(run(ctx, arguments))
		},
	}
}
