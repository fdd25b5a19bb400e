package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/netx/untrusted"
)

const (
	watchEvery = 2 * time.Second // unless --watch says another time
	watchLeast = 500 * time.Millisecond
)

// watchFlag is the flag --watch, with which a command shows its answer again and again.
type watchFlag struct{ every time.Duration }

func (w *watchFlag) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVar(&w.every, "watch", 0, "show the answer again and again, by default every "+watchEvery.String())
	f.Lookup("watch").NoOptDefVal = watchEvery.String()
}

// run asks once, or again and again.
func (w *watchFlag) run(cmd *cobra.Command, ask func() error) error {
	if w.every == 0 {
		return ask()
	}
	if w.every < watchLeast {
		return usageError{fmt.Errorf("--watch = %v, want %v or more", w.every, watchLeast)}
	}
	return watch(cmd, w.every, ask)
}

// watched is asking with the flag --watch.
func watched(cmd *cobra.Command, run func(cmd *cobra.Command, args []string, a *asker, o *outputForm) error) *cobra.Command {
	var w watchFlag
	cmd = asking(cmd, func(cmd *cobra.Command, args []string, a *asker, o *outputForm) error {
		return w.run(cmd, func() error { return run(cmd, args, a, o) })
	})
	w.addTo(cmd)
	return cmd
}

// round collects what a command shows in one round of a watch.
type round struct {
	bytes.Buffer

	out io.Writer // where it will be shown
}

// erase takes a terminal to its first line and erases what is there.
const erase = "\x1b[H\x1b[2J"

// watch runs a command every so often, and shows what it says, until ctx ends. An error of a
// round is shown like an answer, since the next one may succeed; only a wrong command line ends
// it.
func watch(cmd *cobra.Command, every time.Duration, ask func() error) error {
	out := cmd.OutOrStdout()
	defer cmd.SetOut(out)
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		shown := &round{out: out}
		cmd.SetOut(shown)
		err := ask()
		if usage, wrong := errors.AsType[usageError](err); wrong {
			return usage
		}
		if cmd.Context().Err() != nil {
			return nil
		}
		if err != nil {
			at := io.Writer(shown)
			if form := cmd.Flags().Lookup("output"); form != nil && form.Value.String() != "table" { // a reader of JSON or YAML would stumble over it
				at = cmd.ErrOrStderr()
			}
			fmt.Fprintln(at, "router:", untrusted.Lines(err.Error()))
		}
		if isTerminal(out) {
			fmt.Fprint(out, erase)
		}
		if _, err := shown.WriteTo(out); err != nil {
			return err
		}
		if !sleep(cmd.Context(), again.C) {
			return nil
		}
	}
}

// sleep waits for the next round, and returns false if ctx ends before it.
func sleep(ctx context.Context, next <-chan time.Time) bool {
	select {
	case <-next:
		return true
	case <-ctx.Done():
		return false
	}
}
