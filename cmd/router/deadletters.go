package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/deadletter"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
)

// Bounds of these commands.
const (
	lettersShownMax  = 1000    // --limit
	selectedKeysMax  = 100     // --key and --keys
	textShownMax     = 200     // bytes of a text in a table
	propertyShownMax = 4 << 10 // bytes of a text of one letter
	rateMax          = 10_000
)

func deadLettersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletters",
		Short: "List the dead letters of the group, send them again, or remove them; list what was done",
		Args:  requireSubcommand, RunE: requireSubcommand,
	}
	cmd.AddCommand(lettersListCommand(), lettersShowCommand(), lettersReplayCommand(), lettersPurgeCommand(), lettersActsCommand(), lettersAnswerCommand())
	return cmd
}

// letterFilter holds the flags that select dead letters.
type letterFilter struct {
	keys, ids    []string
	match        string
	since, until string
}

func (f *letterFilter) addTo(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.keys, "key", nil, "only letters of this key; repeatable")
	cmd.Flags().StringArrayVar(&f.ids, "id", nil, "only the letter with this id, as list shows it; repeatable")
	cmd.Flags().StringVar(&f.match, "match", "", "only letters whose reason or error contains this text")
	cmd.Flags().StringVar(&f.since, "since", "", "only letters published at this time or later: 2h (ago), or 2026-11-25T14:00:00Z")
	cmd.Flags().StringVar(&f.until, "until", "", "only letters published before this time")
}

func (f *letterFilter) selection(now time.Time) (s deadletter.Selection, err error) {
	if len(f.keys) > selectedKeysMax || len(f.ids) > selectedKeysMax {
		return s, usageError{fmt.Errorf("at most %d values of --key and of --id are possible", selectedKeysMax)}
	}
	s.Keys, s.IDs, s.Match = f.keys, f.ids, f.match
	if s.Since, err = timeOf("since", f.since, now); err != nil {
		return s, err
	}
	s.Until, err = timeOf("until", f.until, now)
	return s, err
}

// wallClock returns the time to which relative times refer, as messages have it.
func wallClock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// timeOf reads a time, or a duration before now; "" is the zero time.
func timeOf(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, usageError{fmt.Errorf("--%s = %q, want a duration before now, as 2h, or a time, as 2026-11-25T14:00:00Z", flag, text)}
	}
	return at.UTC(), nil
}

// actFlags holds the flags of commands that change something.
type actFlags struct {
	yes        bool
	by, why    string
	rate, max  int
	duplicates bool
}

func (f *actFlags) addTo(cmd *cobra.Command, maximum int) {
	cmd.Flags().BoolVar(&f.yes, "yes", false, "do it; without this flag the command only says what it would do")
	cmd.Flags().StringVar(&f.by, "by", account(), "who, for the audit trail: what is proven is only that they had the credentials of pulsar.url")
	cmd.Flags().StringVar(&f.why, "reason", "", "why, for the audit trail; required with --yes")
	cmd.Flags().IntVar(&f.max, "max", maximum, "most events of one command")
	cmd.Flags().BoolVar(&f.duplicates, "accept-duplicates", false, "go on if it cannot be known whether the last batch of an interrupted replay was sent: its events may be sent twice")
}

func (f *actFlags) addRateTo(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.rate, "rate", 50, "events a second, at most")
}

func (f *actFlags) options() (o deadletter.Options, err error) {
	switch {
	case f.max < 1:
		return o, usageError{fmt.Errorf("--max = %d, want 1 or more", f.max)}
	case f.rate < 0 || f.rate > rateMax:
		return o, usageError{fmt.Errorf("--rate = %d, want 1 to %d", f.rate, rateMax)}
	case f.yes && strings.TrimSpace(f.why) == "":
		return o, usageError{errors.New("--yes needs --reason TEXT, which goes into the audit trail")}
	case len(f.why) > propertyShownMax || len(f.by) > propertyShownMax:
		return o, usageError{fmt.Errorf("--reason and --by have at most %d bytes", propertyShownMax)}
	}
	return deadletter.Options{Who: f.by, Why: f.why, Rate: f.rate, Max: f.max, DryRun: !f.yes, AcceptDuplicates: f.duplicates}, nil
}

// acting is a command that works on the dead letters or topics of a group.
func acting(cmd *cobra.Command, run func(cmd *cobra.Command, args []string, b *deadletter.Broker, cfg deadletter.Config) error) *cobra.Command {
	var file string
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		loaded, err := load(cmd, file)
		if err != nil {
			return err
		}
		cfg, err := letterConfig(loaded.Config)
		if err != nil {
			return err
		}
		cfg.Audit = func(r deadletter.Record) { audit(cmd, r) }
		client, closeAll, err := lettersClient(cmd.Context(), loaded.Config, &cfg)
		if err != nil {
			return err
		}
		defer closeAll()
		return run(cmd, args, deadletter.New(cfg, client), cfg)
	}
	cmd.Flags().StringVar(&file, "config", "", "file with settings, in YAML: those of the group")
	config.AddFlags(cmd.Flags())
	return cmd
}

func letterConfig(c config.Config) (deadletter.Config, error) {
	missing, err := key.ParseMissing(c.Key.Missing)
	if err != nil {
		return deadletter.Config{}, usageError{err}
	}
	cfg := deadletter.DefaultConfig()
	cfg.Now = time.Now
	if cfg.Key, err = key.Parse(c.Key.From, missing); err != nil {
		return cfg, usageError{err}
	}
	resolved := c.Pulsar.Resolved()
	cfg.LettersTopic, cfg.Subscription, cfg.RetryTopic, cfg.Topics = resolved.DeadLetterTopic, resolved.DeadLetterSubscription, resolved.RetryTopic, c.Topics()
	cfg.Group = resolved.Subscription
	return cfg, nil
}

// lettersClient connects to the broker, and lets cfg ask its admin API if there is one.
func lettersClient(ctx context.Context, c config.Config, cfg *deadletter.Config) (_ deadletter.Client, closeAll func(), err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	auth, err := commandAuth(ctx, c.Pulsar, log)
	if err != nil {
		return nil, nil, err
	}
	if c.Pulsar.AdminURL != "" {
		cfg.Subscriptions = auth.admin().Subscriptions
	}
	options := auth.quietOptions() // closing a new consumer logs an error that is none
	options.OperationTimeout = 15 * time.Second
	client, err := pulsar.NewClient(options)
	if err != nil {
		return nil, nil, err
	}
	reading := deadletter.ReaderConfig(options.URL, c.Pulsar.PayloadBytesMax)
	reading.OperationTimeout = options.OperationTimeout
	reader, err := entries.New(reading, auth.access(), entries.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return deadletter.Connect(client, reader), func() { reader.Close(); client.Close() }, nil
}

// audit writes who did what, when and why to stderr: a line for people and one of the log. The record that stays is in
// the replays topic already. Keys are in that record only.
func audit(cmd *cobra.Command, r deadletter.Record) {
	p := page{out: cmd.ErrOrStderr()}
	p.line("act %s %s: %s by %s, because: %s", r.Act, r.Step, r.What, r.Who, r.Why)
	log := slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil))
	attrs := []any{"act", r.Act, "step", r.Step, "what", r.What, "who", untrusted.Text(r.Who), "reason", r.Why, "keys", len(r.Selection.Keys)}
	if r.Counts != nil {
		attrs = append(attrs, "sent", r.Counts.Sent, "purged", r.Counts.Purged, "sent_before", r.Counts.SentBefore, "repeated", r.Counts.Repeated)
	}
	log.Info("act", attrs...)
}

func lettersListCommand() *cobra.Command {
	var f letterFilter
	var o outputForm
	var w watchFlag
	limit := 50
	cmd := acting(&cobra.Command{
		Use:   "list",
		Short: "List dead letters that are neither replayed nor purged",
		Long: `List the dead letters that wait on the subscription of the dead letter topic. It consumes
nothing. All contents of a letter come from its producer, which may not be a router.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, b *deadletter.Broker, _ deadletter.Config) error {
		if limit < 0 || limit > lettersShownMax {
			return usageError{fmt.Errorf("--limit = %d, want 0 to %d", limit, lettersShownMax)}
		}
		return w.run(cmd, func() error {
			sel, err := f.selection(wallClock())
			if err != nil {
				return err
			}
			shown := deadletter.NewShownList()
			counts, err := b.List(cmd.Context(), sel, func(l *deadletter.Letter) error {
				shown.Add(l, limit)
				return nil
			})
			if err != nil {
				return err
			}
			shown.Finish(counts)
			return o.show(cmd.OutOrStdout(), shown, func(p *page) { lettersTable(p, shown) })
		})
	})
	f.addTo(cmd)
	w.addTo(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "most letters shown; all are counted")
	o.addTo(cmd)
	return cmd
}

func lettersTable(p *page, s *deadletter.ShownList) {
	rows := make([][]string, 0, len(s.Letters))
	for _, l := range s.Letters {
		rows = append(rows, []string{l.ID, l.Published.Format(time.RFC3339), l.Key, strconv.FormatUint(l.Attempts, 10), l.Owner, l.Topic, l.Reason})
	}
	if len(rows) > 0 {
		p.table([]string{"LETTER", "PUBLISHED", "KEY", "ATTEMPTS", "OWNER", "TOPIC", "REASON"}, rows)
		p.line("")
	}
	for _, r := range s.Reasons {
		p.line("%d: %s", r.Letters, r.Reason)
	}
	p.line("%d dead letters read, %d selected, %d shown", s.Read, s.Selected, len(s.Letters))
	if s.Cut > 0 {
		p.alarm("%d selected letters are not shown: --limit", s.Cut)
	}
	if s.Reach != "" {
		p.line("%s", s.Reach)
	}
}

func lettersShowCommand() *cobra.Command {
	var o outputForm
	var payload bool
	payloadMax := 4 << 10
	cmd := acting(&cobra.Command{
		Use:   "show LETTER",
		Short: "Show one dead letter with its properties, and with --payload its payload",
		Args:  oneArg("the id of a letter, as list shows it"),
	}, func(cmd *cobra.Command, args []string, b *deadletter.Broker, cfg deadletter.Config) error {
		if payloadMax < 0 {
			return usageError{fmt.Errorf("--payload-max = %d, want 0 or more", payloadMax)}
		}
		l, err := b.Find(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if l == nil {
			return fmt.Errorf("no dead letter %q waits in %s", untrusted.Text(args[0]), cfg.LettersTopic)
		}
		shown := deadletter.ShowWhole(l)
		if payload {
			shown.SetPayload(l.Payload, payloadMax, "--payload-max")
		}
		return o.show(cmd.OutOrStdout(), shown, func(p *page) { letterPage(p, shown) })
	})
	cmd.Flags().BoolVar(&payload, "payload", false, "show the payload, too")
	cmd.Flags().IntVar(&payloadMax, "payload-max", payloadMax, "most bytes of the payload shown")
	o.addTo(cmd)
	return cmd
}

func letterPage(p *page, l *deadletter.Shown) {
	originalAt := ""
	if !l.OriginalAt.IsZero() {
		originalAt = l.OriginalAt.Format(time.RFC3339Nano)
	}
	rows := [][]string{
		{"letter", l.ID},
		{"published", l.Published.Format(time.RFC3339Nano)},
		{"key", l.Key},
		{"reason", l.Reason},
		{"attempts", strconv.FormatUint(l.Attempts, 10)},
		{"crashes", strconv.FormatUint(l.Crashes, 10)},
		{"first error", l.FirstError},
		{"last error", l.LastError},
		{"owner", l.Owner},
		{"original", l.Original},
		{"original topic", l.Topic},
		{"original published", originalAt},
		{"payload bytes", strconv.Itoa(l.Bytes)},
	}
	if l.Broken != "" {
		rows = append(rows, []string{"broken", l.Broken})
	}
	p.table([]string{"FIELD", "VALUE"}, rows)
	for _, name := range slices.Sorted(maps.Keys(l.Properties)) {
		p.line("property %s = %s", name, l.Properties[name])
	}
	if l.Payload != nil {
		p.line("payload (%s):", l.PayloadIs)
		fmt.Fprintln(p.out, untrusted.Lines(*l.Payload))
	}
}

func lettersReplayCommand() *cobra.Command {
	var f letterFilter
	var act actFlags
	var all, again bool
	var to string
	var o outputForm
	cmd := acting(&cobra.Command{
		Use:   "replay",
		Short: "Send dead letters again to their topics, and remove them from the dead letters",
		Long: `Send dead letters again, each to its topic, and remove them from the dead letters. Without --yes
it only counts.

A letter becomes an event behind all events that its topic has now, so it is handled after newer
events of its key. Only the topics in pulsar.topics get letters, unless --to names another. A
command that is interrupted, or run twice, sends no letter twice: see docs/deadletters.md.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, b *deadletter.Broker, _ deadletter.Config) error {
		options, err := act.options()
		if err != nil {
			return err
		}
		sel, err := selectionOfAct(&f, all)
		if err != nil {
			return err
		}
		if options.Rate < 1 {
			return usageError{errors.New("--rate = 0, want 1 or more")}
		}
		if to != "" {
			sel.To = source.FullTopicName(to)
			if err := b.CheckTarget(sel.To); err != nil {
				return usageError{err}
			}
		}
		options.Again = again
		counts, err := b.ReplayLetters(cmd.Context(), sel, options)
		return showCounts(cmd, &o, counts, options, err)
	})
	f.addTo(cmd)
	act.addTo(cmd, 10_000)
	act.addRateTo(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all letters, if no other flag selects some")
	cmd.Flags().BoolVar(&again, "again", false, "send a letter though a replay has sent the same event before")
	cmd.Flags().StringVar(&to, "to", "", "send the letters to this topic, not to their own; of which some subscription must hold them, or Pulsar deletes them")
	o.addTo(cmd)
	return cmd
}

func selectionOfAct(f *letterFilter, all bool) (deadletter.Selection, error) {
	sel, err := f.selection(wallClock())
	if err == nil && sel.Empty() != all {
		err = usageError{errors.New("select letters with --key, --id, --match, --since or --until, or all of them with --all alone")}
	}
	return sel, err
}

func lettersPurgeCommand() *cobra.Command {
	var f letterFilter
	var act actFlags
	var all bool
	var o outputForm
	cmd := acting(&cobra.Command{
		Use:   "purge",
		Short: "Remove dead letters for good",
		Long: `Remove dead letters: acknowledge them on their subscription, after which Pulsar may delete them.
Without --yes it only counts.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, b *deadletter.Broker, _ deadletter.Config) error {
		options, err := act.options()
		if err != nil {
			return err
		}
		sel, err := selectionOfAct(&f, all)
		if err != nil {
			return err
		}
		counts, err := b.Purge(cmd.Context(), sel, options)
		return showCounts(cmd, &o, counts, options, err)
	})
	f.addTo(cmd)
	act.addTo(cmd, 10_000)
	cmd.Flags().BoolVar(&all, "all", false, "all letters, if no other flag selects some")
	o.addTo(cmd)
	return cmd
}

// shownCounts is the output of an act.
type shownCounts struct {
	DryRun bool `json:"dry_run"`
	deadletter.Counts
}

// showCounts shows what was done, also if the act failed.
func showCounts(cmd *cobra.Command, o *outputForm, c deadletter.Counts, options deadletter.Options, failed error) error {
	err := o.show(cmd.OutOrStdout(), shownCounts{options.DryRun, c}, func(p *page) { countsPage(p, c, options.DryRun) })
	if failed != nil {
		if !options.DryRun && deadletter.Continues(failed) {
			failed = fmt.Errorf("interrupted; run the same command again, and it continues after it has found out what was sent: %w", failed)
		}
		return failed
	}
	return err
}

func countsPage(p *page, c deadletter.Counts, dry bool) {
	for _, said := range c.Words(dry) {
		if said.Alarm {
			p.alarm("%s", said.Text)
		} else {
			p.line("%s", said.Text)
		}
	}
	if dry {
		p.line("nothing was changed: --yes --reason TEXT does it")
	}
}

func lettersActsCommand() *cobra.Command {
	var o outputForm
	var w watchFlag
	limit := 50
	cmd := acting(&cobra.Command{
		Use:   "acts",
		Short: "List the replays and purges of the group, the newest first: what was done, by whom and why",
		Long: `List the replays and purges of dead letters and the replays of events, the newest first, as the
replays topic has them. Author and reason are what each command claimed; every role that may produce
to that topic can write records. Holds, releases and skips are listed by router acts.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, b *deadletter.Broker, cfg deadletter.Config) error {
		if limit < 1 || limit > lettersShownMax {
			return usageError{fmt.Errorf("--limit = %d, want 1 to %d", limit, lettersShownMax)}
		}
		return w.run(cmd, func() error {
			trail, err := b.Trail(cmd.Context(), limit)
			if err != nil {
				return err
			}
			return o.show(cmd.OutOrStdout(), trail, func(p *page) { trailPage(p, trail, cfg.ReplaysTopic()) })
		})
	})
	w.addTo(cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, fmt.Sprintf("how many are shown, at most %d", lettersShownMax))
	o.addTo(cmd)
	return cmd
}

func trailPage(p *page, t deadletter.Trail, topic string) {
	var rows [][]string
	for i := range t.Acts {
		d := &t.Acts[i]
		rows = append(rows, []string{report.TimeWords(d.Began), d.Act, cutText(d.What), doneWords(d), cutText(d.Who), cutText(d.Why)})
	}
	p.table([]string{"BEGAN", "ACT", "WHAT", "RESULT", "BY", "WHY"}, rows)
	p.line("\nfrom the records of %s", topic)
	if t.Cut > 0 {
		p.line("%s not listed", report.Plural(t.Cut, "older act"))
	}
	if t.Foreign > 0 {
		p.alarm("%s of that topic are no records of these commands", report.Plural(t.Foreign, "message"))
	}
}

// cutText cuts a text for a table, and marks that it is cut.
func cutText(text string) string { return untrusted.Short(text, textShownMax) }

// doneWords tells the result of an act.
func doneWords(d *deadletter.Done) string {
	switch c := d.Counts; {
	case d.Ended.IsZero() && d.What == deadletter.ActPurge:
		return "not ended, some may be purged"
	case d.Ended.IsZero() && d.What != deadletter.ActReplayLetters: // its records do not count events
		return "not ended, some may be sent"
	case d.Ended.IsZero():
		return fmt.Sprintf("not ended, up to %d sent", d.Sending)
	case c == nil:
		return "ended"
	case c.Purged > 0:
		return fmt.Sprintf("%d purged", c.Purged)
	default:
		return fmt.Sprintf("%d sent", c.Sent)
	}
}
