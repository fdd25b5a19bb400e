package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/event"
)

// The exit codes of router lock, beside those of its command.
const (
	exitNotLocked = 75 // the key was not obtained, and the command has not run
	exitLost      = 76 // the key was lost while the command ran
	exitNotExec   = 126
	exitNoCommand = 127
	exitSignal    = 128 // and the number of the signal that ended the command
)

const lockHelp = `Hold a key while a command runs, as flock(1) does with a file: no handler of the key runs
meanwhile, and no other reservation of it is granted (docs/lane.md).

COMMAND runs in a process group of its own, with RINGFENCE_KEY, RINGFENCE_FENCING_TOKEN,
RINGFENCE_TURN and RINGFENCE_FENCE in its environment. When the loss of the key is foreseen, the
group gets SIGTERM, and then SIGKILL before the permission ends: from this process, or from a
watchdog if this process is killed or stopped. With --ttl 30s the key is not lost with its owner:
the command continues if the next owner is found within 30 s. But if this process dies without a
release, the key is free only after 30 s. Processes that COMMAND leaves running in its group are
killed before the key is free. Signals are passed on, except that of Ctrl-Z: a COMMAND that is
stopped would hold the key.

The exit code is that of COMMAND, 128 and the number of the signal that ended it, or
  2    the command line is wrong
  75   the key was not obtained: COMMAND has not run
  76   the key was lost while COMMAND ran
  126  COMMAND cannot be run
  127  COMMAND is not there`

// lockOptions are the command line of router lock.
type lockOptions struct {
	key     string
	wait    time.Duration
	ttl     time.Duration // 0: none
	command []string
	path    string // of the command
}

func lockCommand() *cobra.Command {
	var router through
	var encoded, now bool
	o := lockOptions{wait: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "lock KEY -- COMMAND [ARGUMENT...]",
		Short: "Hold a key while a command runs",
		Long:  lockHelp,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return usageError{errors.New("router lock takes a KEY, then --, then the command to run: see `router lock --help`")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.key, err = keyOf(args[0], encoded); err != nil {
				return err
			}
			o.command = args[1:]
			switch waits := cmd.Flags().Changed("wait"); {
			case now && waits:
				return usageError{errors.New("--wait and --no-wait exclude each other")}
			case o.wait < 0 || o.wait > lane.WaitMax:
				return usageError{fmt.Errorf("--wait = %v, want 0 to %v", o.wait, lane.WaitMax)}
			case o.ttl != 0 && !event.IsTTL(o.ttl):
				return usageError{fmt.Errorf("--ttl = %v, want %v to %v", o.ttl, event.TTLLeast, event.TTLMost)}
			case now:
				o.wait = 0
			}
			if err := lockable(); err != nil {
				return usageError{err}
			}
			if o.path, err = commandPath(o.command[0]); err != nil {
				return err
			}
			by, err := router.dial(cmd)
			if err != nil {
				return err
			}
			defer func() { _ = by.Close() }() // the reservation is over
			return runLocked(cmd, by, &o)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.wait, "wait", o.wait, "how long to wait for the key, up to 1h")
	f.DurationVar(&o.ttl, "ttl", 0, "hold the key also while its owner dies or moves: for so long from each renewal on, 5s to 5m")
	f.BoolVarP(&now, "no-wait", "n", false, "do not wait for the key")
	router.addTo(cmd, "app.listen of any router of the group")
	addBase64(cmd, &encoded)
	return cmd
}

// lockError ends router lock with an exit code of its own. Without a text nothing is printed, because the command has
// reported its failure itself.
type lockError struct {
	code int
	text string
}

// Error returns the text.
func (e *lockError) Error() string { return e.text }

// notLocked is the error of a key that was not obtained.
func notLocked(err error) error {
	var failed *client.CallError
	if !errors.As(err, &failed) {
		return &lockError{exitNotLocked, "the key was not obtained: " + err.Error()}
	}
	return &lockError{exitNotLocked, callText("the key was not obtained", failed, "try again")}
}

// lockEnvironment returns variables that tell a command of its key, without those of an outer router lock. A key with a zero byte, which no
// variable can hold, has only the one in base64.
func lockEnvironment(environ []string, key, keyBase64 string, fence client.Fence) []string {
	own := []string{
		"RINGFENCE_KEY_BASE64=" + keyBase64, fmt.Sprintf("RINGFENCE_FENCING_TOKEN=%d", fence.Token),
		fmt.Sprintf("RINGFENCE_TURN=%d", fence.Turn), "RINGFENCE_FENCE=" + fence.String(),
	}
	if !strings.Contains(key, "\x00") {
		own = append(own, "RINGFENCE_KEY="+key)
	}
	all := make([]string, 0, len(environ)+len(own))
	for _, v := range environ {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "RINGFENCE_KEY", "RINGFENCE_KEY_BASE64", "RINGFENCE_FENCING_TOKEN", "RINGFENCE_TURN", "RINGFENCE_FENCE":
		default:
			all = append(all, v)
		}
	}
	return append(all, own...)
}
