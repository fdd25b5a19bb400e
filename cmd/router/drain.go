package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/adminhttp"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/node"
)

// drainCommands make a router leave its group in order, and come back.
func drainCommands() []*cobra.Command {
	return []*cobra.Command{
		drainVerb("drain", "Drain a router: it finishes its events and leaves the group; the process keeps running",
			"waits for nothing by default; exit code 3 if it is not drained by then"),
		drainVerb("undrain", "Make a router that drains, or has drained, take part again",
			"waits for nothing by default; exit code 3 if its drain has not ended by then"),
	}
}

func drainVerb(verb, short, wait string) *cobra.Command {
	var a asker
	var patience time.Duration
	cmd := &cobra.Command{
		Use: verb, Short: short, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if patience < 0 {
				return usageError{fmt.Errorf("--wait = %v, want a duration such as 30s", patience)}
			}
			if patience > adminhttp.WaitMax { // the router would answer before
				return usageError{fmt.Errorf("--wait = %v, want at most %v", patience, adminhttp.WaitMax)}
			}
			path := "/" + verb + "?wait=" + url.QueryEscape(patience.String())
			code, text, err := a.call(cmd.Context(), http.MethodPost, path, patience+askTimeout)
			if err != nil {
				return err
			}
			says := strings.TrimSpace(string(text))
			_, err = fmt.Fprintln(cmd.OutOrStdout(), untrusted.Lines(says))
			if code == http.StatusAccepted && patience > 0 {
				return drainPending{fmt.Sprintf("after %v: %s; see `router members` and /readyz", patience, says)}
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&patience, "wait", 0, "how long to wait for its end; "+wait)
	a.addTo(cmd)
	return cmd
}

// forgetCommand makes a router forget recently finished events, before a replay.
func forgetCommand() *cobra.Command {
	var a asker
	cmd := &cobra.Command{
		Use:   "forget-done",
		Short: "Make a router forget recently finished events, so that a replay of them runs; ask every member, then reset the cursor",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, text, err := a.call(cmd.Context(), http.MethodPost, "/forget-done", askTimeout)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), untrusted.Lines(strings.TrimSpace(string(text))))
			return err
		},
	}
	a.addTo(cmd)
	return cmd
}

// forgetPage answers POST /forget-done.
func forgetPage(n *node.Node) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "forgot %d ids of finished events; ask every member, then reset the cursor\n", n.ForgetDone())
	})
}

// drainPending means that a drain was still in progress when --wait ended. Its exit code is exitUndrain.
type drainPending struct{ says string }

func (d drainPending) Error() string { return d.says }

// Unwrap returns the reason for the exit code.
func (drainPending) Unwrap() error { return node.ErrDrainTimeout }
