package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/deadletter"
	"github.com/ringfence/router/internal/source"
)

// replayCommand sends events of the group's topics again.
func replayCommand() *cobra.Command {
	var r replayFlags
	var act actFlags
	var o outputForm
	cmd := acting(&cobra.Command{
		Use:   "replay",
		Short: "Send events of the group's topics again, by key and time",
		Long: `Send events that the group's topics still hold again, to the topic of each. Without --yes it only
counts.

A replayed event is a new event behind all others: handlers see it after newer events of its key.
Several replayed events of a key keep the order of their topic partition. Replay only into handlers
that can handle old events, or stop the keys' producers meanwhile.

All replays with the same name (--run, by default derived from the selection) together send an event
once, even if a command is interrupted or run twice: see docs/deadletters.md.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, b *deadletter.Broker, cfg deadletter.Config) error {
		options, err := act.options()
		if err != nil {
			return err
		}
		if options.Rate < 1 {
			return usageError{errors.New("--rate = 0, want 1 or more")}
		}
		sel, err := r.selection(wallClock(), act.yes, cfg.Topics)
		if err != nil {
			return err
		}
		p := &page{out: cmd.ErrOrStderr()}
		p.line("the selection is --from %s --until %s --run %s", sel.Since.Format(time.RFC3339Nano), sel.Until.Format(time.RFC3339Nano), sel.Run)
		p.line("warning: replayed events are handled after newer events of their keys")
		counts, err := b.ReplayEvents(cmd.Context(), sel, options)
		return showCounts(cmd, &o, counts, options, err)
	})
	r.addTo(cmd)
	act.addTo(cmd, 100_000)
	act.addRateTo(cmd)
	o.addTo(cmd)
	return cmd
}

type replayFlags struct {
	from, until  string
	keys, topics []string
	all          bool
	run          string
}

func (r *replayFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.from, "from", "", "events published at this time or later: 2h (ago), or 2026-11-25T14:00:00Z")
	cmd.Flags().StringVar(&r.until, "until", "", "events published before this time; now without --yes, with which it is required")
	cmd.Flags().StringSliceVar(&r.keys, "keys", nil, "events of these keys, comma-separated; repeatable")
	cmd.Flags().BoolVar(&r.all, "all", false, "events of all keys")
	cmd.Flags().StringSliceVar(&r.topics, "topic", nil, "events of this topic of pulsar.topics only; repeatable")
	cmd.Flags().StringVar(&r.run, "run", "", "name of the replay: an event that a replay of this name has sent is not sent again")
}

// selection reads the flags. Both ends of the time must be fixed for an act, so that the same command is the same replay.
func (r *replayFlags) selection(now time.Time, fixed bool, topics []string) (s deadletter.Selection, err error) {
	_, relative := time.ParseDuration(r.from)
	_, relativeUntil := time.ParseDuration(r.until)
	switch {
	case r.from == "":
		return s, usageError{errors.New("--from TIME is required")}
	case r.all == (len(r.keys) > 0):
		return s, usageError{errors.New("select events with --keys, or all of them with --all")}
	case len(r.keys) > selectedKeysMax:
		return s, usageError{fmt.Errorf("at most %d keys are possible", selectedKeysMax)}
	case slices.Contains(r.keys, ""):
		return s, usageError{errors.New("--keys has an empty key: look for a comma too many. Events without a key are only selected by --all")}
	case len(r.run) > textShownMax:
		return s, usageError{fmt.Errorf("--run has %d bytes, at most %d are possible", len(r.run), textShownMax)}
	case fixed && (r.until == "" || relative == nil || relativeUntil == nil):
		return s, usageError{errors.New("--yes needs times for --from and --until, not durations: a run without --yes prints them")}
	}
	s.Keys = slices.Compact(slices.Sorted(slices.Values(r.keys))) // the name of the replay follows from them
	if s.Since, err = timeOf("from", r.from, now); err != nil {
		return s, err
	}
	if s.Until, err = timeOf("until", r.until, now); err != nil {
		return s, err
	}
	if s.Until.IsZero() {
		s.Until = now
	}
	if !s.Since.Before(s.Until) {
		return s, usageError{errors.New("--from must be before --until")}
	}
	for _, topic := range r.topics {
		full := source.FullTopicName(topic)
		if !slices.Contains(topics, full) {
			return s, usageError{fmt.Errorf("--topic %s is not in pulsar.topics", topic)}
		}
		s.Topics = append(s.Topics, full)
	}
	slices.Sort(s.Topics)
	s.Topics = slices.Compact(s.Topics)
	s.Run = r.run
	return s.Named(), nil
}
