package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/client"
)

const sendHelp = `Publish an event of a key, at once or for later, and print its message id.

The handler of the key's events gets it, with a timer, at the member that owns the key when it is
due (docs/timers.md). The command ends when the broker has the event. With --id it is safe to
send an event again.

The exit code is
  0   the broker has the event
  2   the command line is wrong
  75  the event was not published
  76  the event may have been published`

func sendCommand() *cobra.Command {
	var data, at, name, id string
	var after time.Duration
	var router through
	var encoded bool
	cmd := &cobra.Command{
		Use: "send KEY", Short: "Publish an event of a key, at once or for later", Long: sendHelp, Args: oneArg("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(args[0], encoded)
			if err != nil {
				return err
			}
			payload, err := payloadOf(cmd.InOrStdin(), data)
			if err != nil {
				return usageError{fmt.Errorf("--data: %w", err)}
			}
			due := client.WithSendAfter(after)
			if at != "" {
				when, err := time.Parse(time.RFC3339Nano, at)
				if err != nil || after != 0 {
					return usageError{fmt.Errorf("--at = %q, want a time such as 2026-11-27T06:00:00Z, without --after", at)}
				}
				due = client.WithSendAt(when)
			}
			sender, err := router.dial(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = sender.Close() }() // nothing is under way
			sent, err := sender.Send(cmd.Context(), key, payload, due, client.WithSendName(name), client.WithSendID(id))
			switch {
			case errors.Is(err, client.ErrUnreachable):
				return &callError{"NOT_SENT", exitNotRun, &client.CallError{Code: client.CodeUnreachable, Text: err.Error(), Err: err}}
			case errors.Is(err, client.ErrNotSent):
				return &callError{"NOT_SENT", exitNotRun, &client.CallError{Text: err.Error()}}
			case err != nil:
				return &callError{"UNKNOWN", exitUnknown, &client.CallError{Text: err.Error()}}
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), sent)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&data, "data", "d", "", "payload; @FILE: the content of a file, @-: of standard input")
	f.DurationVar(&after, "after", 0, "how long from now the event is due, up to 366 days")
	f.StringVar(&at, "at", "", "or when it is due, as 2026-11-27T06:00:00Z")
	f.StringVar(&name, "name", "", "name of the timer")
	f.StringVar(&id, "id", "", "id of the event, up to 256 bytes")
	router.addTo(cmd, "app.listen of any router of the group")
	addBase64(cmd, &encoded)
	return cmd
}
