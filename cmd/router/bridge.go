package main

import (
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/bridge"
)

const bridgeHelp = `Hand events to an application by HTTP: for applications in a language without an SDK.

The command is the worker beside a router. It sends each event as a CloudEvent in binary
mode (POST; the payload is the body), one at a time for each key, and reads the verdict
from the status of the response:
  2xx               done
  422               rejected: the body is the reason, and the event goes to the dead letter topic
  429, 503          failed; tried again after the header Retry-After if there is one
  any other, none   failed; tried again after the router's back-off
While the application accepts no connections its events wait, and after --absence-max its
keys go to other members; neither counts as a failure.

Headers: ce-id, ce-source (the topic), ce-time, ce-partitionkey (the key), ce-fence,
ce-attempt, ce-deadline, traceparent, and ringfence-properties (JSON). Values have %XX for
bytes that are not printable ASCII.

When the key moves and its deadline passes, the request is cut: the connection closes. The
bridge cannot stop what the application does after that. Pass ce-fence to your database
with every write, and refuse older ones (docs/sinks.md). docs/bridge.md has the details.`

func bridgeCommand() *cobra.Command {
	cfg := bridge.DefaultConfig()
	var name string
	var router through
	grace := 30 * time.Second
	cmd := &cobra.Command{
		Use:   "bridge --to URL",
		Short: "Hand events to an application by HTTP, as CloudEvents",
		Long:  bridgeHelp,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			b, err := bridge.New(cfg, log)
			if err != nil {
				return usageError{err}
			}
			options, err := router.options(cmd)
			if err != nil {
				return err
			}
			err = b.Run(cmd.Context(), router.endpoint, append(options, client.WithLogger(log), client.WithDrainGrace(grace), client.WithName(name))...)
			if errors.Is(err, client.ErrArgument) {
				return usageError{err}
			}
			return err //nolint:wrapcheck // it says which part failed
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.To, "to", "", "URL of the application, such as http://127.0.0.1:8080/events")
	f.StringVar(&cfg.Type, "type", cfg.Type, "attribute type of the CloudEvents")
	f.IntVar(&cfg.InFlight, "max-in-flight", cfg.InFlight, "requests at once, 1 to 100000; the router may have a lower bound")
	f.DurationVar(&cfg.AbsenceMax, "absence-max", cfg.AbsenceMax, "how long the application may accept no connection before its keys go to other members")
	router.addTo(cmd, "the router's app.listen")
	f.StringVar(&name, "name", "bridge", "name of the worker in the router's logs")
	f.DurationVar(&grace, "drain-grace", grace, "how long running requests may continue after SIGTERM")
	return cmd
}
