package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/devtools/demo"
	"github.com/ringfence/router/internal/devtools/ends"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/devtools/prove"
	"github.com/ringfence/router/internal/source"
	demov1 "github.com/ringfence/router/proto/ringfence/demo/v1"
)

const demoHelp = `Show what Ringfence does, with nothing but this binary: events of users go first
to three plain consumers of one SHARED subscription, and then through three routers,
of which one is killed and started again. Everything is a process of its own.

The verdict comes from what the applications themselves wrote down, never from the
routers:

  overlaps            pairs of handlings of one key that ran at the same time
  lost                events that were published and never done
  duplicates          handlings of an event that was done before (a kill may cause some)
  stale_token_writes  handlings that began, or ended as done, after a greater fence of
                      their key had been seen; stale_same_token are those of them that
                      differ in their turn only
  repeated_fences     handlings that began with the fence of an earlier one of their key
  takeover_ms         from the SIGKILL to the next handling of a key of the dead member:
                      the 99th percentile over its keys that had an event to wait with
  handoff_p99_ms      the wait of a key that moves between living members: from the end
                      of its last handling, or from the publication of its next event if
                      that is later, to the start of the next handling

The exit code is 1 if a promise broke, or if the run proved nothing.`

func demoCommand() *cobra.Command {
	o := demo.DefaultOptions()
	output := "table"
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show plain SHARED overlapping, and Ringfence not, through a kill",
		Long:  demoHelp,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("--output = %q, want table or json", output)}
			}
			o.JSON = output == "json"
			if err := o.Validate(); err != nil {
				return usageError{err}
			}
			executable, err := os.Executable()
			if err != nil {
				return err
			}
			return demo.Run(cmd.Context(), o, demo.Environment{Executable: executable, Stdout: os.Stdout, Stderr: os.Stderr})
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Nodes, "nodes", o.Nodes, "members, each with an application")
	f.IntVar(&o.Keys, "keys", o.Keys, "distinct keys; one in a hundred is hot")
	f.IntVar(&o.Rate, "rate", o.Rate, "events per second")
	f.DurationVar(&o.Duration, "duration", o.Duration, "how long Ringfence is under load")
	f.DurationVar(&o.KillAt, "kill-at", o.KillAt, "when a member is killed; 0s: never")
	f.DurationVar(&o.RestartAt, "restart-at", o.RestartAt, "when it is started again; 0s: never")
	f.StringVar(&o.Pulsar, "pulsar", o.Pulsar, "URL of a Pulsar to use instead of a broker in memory")
	f.StringVar(&output, "output", output, "table, or json: one object on the last line")
	cmd.AddCommand(demoChildren()...)
	return cmd
}

// demoChildren are the commands that a demo starts.
func demoChildren() []*cobra.Command {
	var file string
	var parentDrains bool
	var a demo.AppOptions
	broker := child(demo.RoleBroker, func(cmd *cobra.Command) error {
		leaveSignals(cmd)
		return demo.ServeBroker(cmd.Context(), os.Stdout)
	})
	member := child(demo.RoleMember, func(cmd *cobra.Command) error {
		if parentDrains {
			leaveSignals(cmd)
		}
		loaded, err := load(cmd, file)
		if err != nil {
			return err
		}
		through := throughPulsar(loaded.Config)
		if a.Broker != "" {
			if through, err = throughMemory(loaded.Config, a.Broker); err != nil {
				return err
			}
		}
		through.watch = ends.NewWriter(os.Stdout, loaded.Retry)
		return runAlone(cmd.Context(), loaded.Config, through)
	})
	app := child(demo.RoleApp, func(cmd *cobra.Command) error { return demo.RunApp(cmd.Context(), a, os.Stdout) })
	plain := child(demo.RolePlain, func(cmd *cobra.Command) error { return demo.RunPlain(cmd.Context(), a, os.Stdout) })

	member.Flags().StringVar(&file, "config", "", "")
	member.Flags().BoolVar(&parentDrains, demo.ParentDrains, false, "")
	config.AddFlags(member.Flags())
	app.Flags().StringVar(&a.Endpoint, "endpoint", "", "")
	plain.Flags().StringVar(&a.Topic, "topic", "", "")
	plain.Flags().StringVar(&a.Subscription, "subscription", "", "")
	for _, cmd := range []*cobra.Command{app, plain} {
		cmd.Flags().StringVar(&a.Journal, "journal", "", "")
	}
	for _, cmd := range []*cobra.Command{member, plain} {
		cmd.Flags().StringVar(&a.Broker, "broker", "", "")
		cmd.Flags().StringVar(&a.Pulsar, "pulsar", "", "")
	}
	return []*cobra.Command{broker, member, app, plain}
}

// child is a hidden command of the demo or of a proof. It leaves Ctrl-C, which reaches the whole foreground group, to its parent, and
// ends when that does.
func child(role string, run func(*cobra.Command) error) *cobra.Command {
	return &cobra.Command{
		Use:    role,
		Hidden: true,
		Args:   noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(os.Interrupt)
			procgroup.FollowParent(os.Stdin, os.Exit)
			return run(cmd)
		},
	}
}

// leaveSignals has a command go on after Ctrl-C, and after a SIGTERM to the group, as of timeout(1) or systemd: the parent
// drains the members, and that needs them and the broker.
func leaveSignals(cmd *cobra.Command) {
	signal.Ignore(os.Interrupt)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) // not ignored: what a child starts would inherit that
	cmd.SetContext(context.WithoutCancel(cmd.Context()))
}

// throughMemory reads events and the control log from a broker in the memory of
// another process, over a connection for each.
func throughMemory(cfg config.Config, address string) (broker, error) {
	credentials := grpc.WithTransportCredentials(insecure.NewCredentials())
	events, err := grpc.NewClient(address, credentials)
	if err != nil {
		return broker{}, usageError{err}
	}
	log, err := grpc.NewClient(address, credentials)
	if err != nil {
		return broker{}, usageError{err}
	}
	topicLog := func(topic string, _ *slog.Logger) (controllog.Transport, error) {
		c := controllog.DefaultRemoteConfig()
		c.Topic = topic
		return controllog.NewRemote(c, demov1.NewBrokerServiceClient(log))
	}
	return broker{
		source: func(from source.Config, metrics *source.Metrics, log *slog.Logger) *source.Source {
			return source.NewMem(from, membroker.NewClient(events), metrics, log)
		},
		parking: func(from source.Config, metrics *source.Metrics, log *slog.Logger) *source.Parking {
			return source.NewMemParking(from, membroker.NewClient(events), metrics, log)
		},
		controlLog: func(*slog.Logger) (controllog.Transport, error) {
			c := controllog.DefaultRemoteConfig()
			c.Topic, c.SendTimeout = cfg.Node.Group, cfg.Ownership.Lease
			return controllog.NewRemote(c, demov1.NewBrokerServiceClient(log))
		},
		claims: topicLog, acts: topicLog,
		publisher: func(topic string) (prove.Publisher, error) { return newMemoryPublisher(address, topic) },
		clean:     func(context.Context, prove.Topics) []string { return nil }, // it ends with its process
		memory:    address,
	}, nil
}
