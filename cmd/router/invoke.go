package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/event"
)

// The exit codes of calls without a reply, beside exitFailed of one whose handler returned an error.
const (
	exitNotRun  = 75 // it has not run, and can be repeated: EX_TEMPFAIL of sysexits.h
	exitUnknown = 76 // it may have run, or was done before: look before you repeat it
)

const invokeHelp = `Call a handler of a key, and print its reply.

The handler is the one that the worker of the key has registered for METHOD. It runs at the
owner of the key, while no event and no other call of the key runs (docs/lane.md). The reply
goes to standard output unchanged; without a reply the reason goes to standard error.

Without --id the call runs at most once. With --id it runs at least once within its timeout,
and a repeat with the same key and id gets the reply of the first one.

The exit code is
  0   REPLIED      the handler has returned the reply
  1   FAILED       the handler has returned an error
  2                the command line is wrong
  75  NOT_RUN      it has not run, and never will: it can be repeated
  76  UNKNOWN      it may have run, and may still run until its timeout
      DONE_BEFORE  a call with this id was answered before; its reply is no longer known
      REPLIED      the handler has returned a reply, which could not be written`

func invokeCommand() *cobra.Command {
	var data, id string
	var router through
	var encoded bool
	timeout := 10 * time.Second
	cmd := &cobra.Command{
		Use:   "invoke KEY METHOD",
		Short: "Call a handler of a key, and print its reply",
		Long:  invokeHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError{fmt.Errorf("router invoke takes two arguments, KEY and METHOD, and was given %d: see `router invoke --help`", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(args[0], encoded)
			if err != nil {
				return err
			}
			payload, err := payloadOf(cmd.InOrStdin(), data)
			if err != nil {
				return usageError{fmt.Errorf("--data: %w", err)}
			}
			if err := checkCall(event.Call{Method: args[1], ID: id}, payload, timeout); err != nil {
				return usageError{err}
			}
			caller, err := router.dial(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = caller.Close() }() // all calls have ended
			reply, err := caller.Invoke(cmd.Context(), key, args[1], payload, client.WithCallID(id), client.WithCallTimeout(timeout))
			if err != nil {
				return callOf(err)
			}
			if _, err := cmd.OutOrStdout().Write(reply); err != nil { // exitFailed would say that the handler failed
				return &callError{"REPLIED", exitUnknown, &client.CallError{Text: "the reply cannot be written: " + err.Error()}}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&data, "data", "d", "", "payload; @FILE: the content of a file, @-: of standard input")
	f.StringVar(&id, "id", "", fmt.Sprintf("id of the call, up to %d bytes", event.CallIDMax))
	f.DurationVar(&timeout, "timeout", timeout, "how long the call may take, 1ms to 10m")
	router.addTo(cmd, "app.listen of any router of the group")
	addBase64(cmd, &encoded)
	return cmd
}

// payloadOf returns the payload that --data stands for.
func payloadOf(stdin io.Reader, data string) ([]byte, error) {
	path, isFile := strings.CutPrefix(data, "@")
	if !isFile {
		return []byte(data), nil
	}
	if path != "-" {
		file, err := os.Open(path) //nolint:gosec // the user names it
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		stdin = file
	}
	return io.ReadAll(io.LimitReader(stdin, event.CallPayloadMax+1))
}

// checkCall returns what is wrong with a call that no router would take.
func checkCall(call event.Call, payload []byte, timeout time.Duration) error {
	if timeout < time.Millisecond || timeout > lane.TimeoutMax {
		return fmt.Errorf("--timeout = %v, want 1ms to %v", timeout, lane.TimeoutMax)
	}
	return call.Check(len(payload))
}

// callError is the end of a call without a reply.
type callError struct {
	outcome string
	code    int // of the exit
	*client.CallError
}

// callOf returns the error of a call, as its outcome.
func callOf(err error) error {
	var failed *client.CallError
	switch {
	case !errors.As(err, &failed):
		return err
	case errors.Is(err, client.ErrCallFailed):
		return &callError{"FAILED", exitFailed, failed}
	case errors.Is(err, client.ErrNotRun):
		return &callError{"NOT_RUN", exitNotRun, failed}
	case errors.Is(err, client.ErrDoneBefore):
		return &callError{"DONE_BEFORE", exitUnknown, failed}
	}
	return &callError{"UNKNOWN", exitUnknown, failed}
}

// Error returns the outcome, the code and the text.
func (e *callError) Error() string { return callText(e.outcome, e.CallError, "call again") }
