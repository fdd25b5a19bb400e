package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/report"
)

// noActs explains why a router takes no acts.
const noActs = "this router takes no acts on keys: acts.enabled is false, or ownership.mode is gossip"

// newActs returns the keeper of operators' acts on a router, nil if the router takes no acts.
func newActs(cfg config.Config, b broker, registry *prometheus.Registry, log *slog.Logger) *act.Keeper {
	metrics := act.NewMetrics(registry)
	if !cfg.Acts.Enabled || modeOf(cfg) == node.Gossip {
		return nil
	}
	if most := holdMax(cfg); most < cfg.Acts.HoldForMax {
		log.Warn("holds cannot last as long as acts.hold_for_max", "most", most, "reason", "pulsar.spill.rounds_max: a held event that is copied to the retry topic too often becomes a dead letter")
		cfg.Acts.HoldForMax = most
	}
	open := func() (controllog.Transport, error) { return b.acts(cfg.ActsTopic(), log) }
	keeper := act.New(cfg.Acts, cfg.Node.Name, open, time.Now, log, metrics)
	if b.acts == nil {
		return nil
	}
	return keeper
}

// holdMax returns half of the shortest time in which a held event can use up its copies to the retry topic. The other
// half is for the time before and after the hold.
func holdMax(cfg config.Config) time.Duration {
	spill := cfg.Pulsar.Spill
	return time.Duration(min(float64(spill.RoundsMax)*float64(spill.DelayMax)/2, float64(act.DurationMax)))
}

// actsReconnectMax is the longest pause between two attempts to reach the broker: each is a line in the log.
const actsReconnectMax = 10 * time.Second

// actsAt returns the log of an acts topic.
func actsAt(auth *pulsarAuth, topic string, log *slog.Logger) (controllog.Transport, error) {
	c := controllog.DefaultPulsarConfig()
	c.Topic, c.DeniedIsFinal, c.ReconnectMax = topic, true, actsReconnectMax
	return controllog.NewPulsar(c, auth.options(), auth.access(), log)
}

// actCommands act on single keys.
func actCommands() []*cobra.Command {
	return []*cobra.Command{holdCommand(), releaseCommand(), skipCommand(), parkCommand(), unparkCommand(), actsCommand()}
}

// order is an act that the command line asks for.
type order struct {
	reason, by string
	encoded    bool
}

func (o *order) addTo(cmd *cobra.Command) {
	addBase64(cmd, &o.encoded)
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for the audit trail (required)")
	cmd.Flags().StringVar(&o.by, "by", "", "who you are, for the audit trail (default: the name of your account and host)")
}

// send asks the router for an act on the key of an argument. more is added to the request.
func (o *order) send(ctx context.Context, a *asker, what, argument string, more url.Values) (key string, done act.Done, err error) {
	if o.reason == "" {
		return "", act.Done{}, usageError{errors.New("--reason is missing: say why, for everyone who reads the list of acts")}
	}
	if key, err = keyOf(argument, o.encoded); err != nil {
		return "", act.Done{}, err
	}
	more.Set("key", key)
	more.Set("reason", o.reason)
	more.Set("by", cmp.Or(o.by, account()))
	_, text, err := a.call(ctx, http.MethodPost, "/v1/acts/"+what+"?"+more.Encode(), askTimeout)
	if err != nil {
		return "", act.Done{}, err
	}
	if err := json.Unmarshal(text, &done); err != nil {
		return "", act.Done{}, fmt.Errorf("unexpected answer, perhaps from another version of the router: %w", err)
	}
	return key, done, nil
}

// showActed shows the result of an act that is in the acts topic. known says whether the owner of the key has read
// the act; err is the reason why the owner could not be asked.
func showActed(cmd *cobra.Command, form *outputForm, done act.Done, known bool, err error, answer any, words func(*page)) error {
	if err != nil {
		return fmt.Errorf("the %s is recorded and in effect until %s (act %s, see router acts), but the state of the key is not known: %w",
			done.Act.Act, report.TimeWords(done.Act.Until), done.Act.ID, err)
	}
	if err := form.show(cmd.OutOrStdout(), answer, words); err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("the %s is recorded, but the owner of the key has not read it yet: see above", done.Act.Act)
	}
	return nil
}

// valuesFor returns the values of a request with --for. Without the flag the router uses its default; 0s would not
// mean that.
func valuesFor(cmd *cobra.Command, duration time.Duration) (url.Values, error) {
	if !cmd.Flags().Changed("for") {
		return url.Values{}, nil
	}
	if duration <= 0 {
		return nil, usageError{fmt.Errorf("--for = %v, want a duration such as 30m", duration)}
	}
	return url.Values{"for": {duration.String()}}, nil
}

// account names the person at the terminal, as far as the system knows.
func account() string {
	name, host := "unknown", "unknown host"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}

func holdCommand() *cobra.Command {
	var o order
	var duration time.Duration
	cmd := asking(&cobra.Command{
		Use:   "hold KEY",
		Short: "Keep the events of a key waiting, in their order, until a release or for a time",
		Long: `Keep the events of a key waiting, in their order, until a release or for a time.

A delivery that already runs finishes, and its result counts. Further events of the key, and
retries of that one, wait at the owner. The hold outlasts moves of the key and the death of its
owner. It ends by itself after --for. The act is written to the group's acts topic, with who,
when and why: see router acts.

The command prints the state of the key at its owner, and which members do not know the hold.
The exit code is 1 if the owner does not know it.`,
		Args: oneArg("KEY"),
	}, func(cmd *cobra.Command, args []string, a *asker, form *outputForm) error {
		more, err := valuesFor(cmd, duration)
		if err != nil {
			return err
		}
		key, done, err := o.send(cmd.Context(), a, "hold", args[0], more)
		if err != nil {
			return err
		}
		held := heldKey{Done: done}
		if done.Result == act.Full {
			return errors.New("not held: the group holds as many keys as the acts topic allows; release some")
		}
		known, err := held.find(cmd.Context(), a, key)
		return showActed(cmd, form, done, known, err, held, func(p *page) { heldPage(p, held) })
	})
	cmd.Flags().DurationVar(&duration, "for", 0, "when the hold ends by itself (default acts.hold_for of the router; at most acts.hold_for_max)")
	o.addTo(cmd)
	return cmd
}

// heldKey is a hold, and what has become of it.
type heldKey struct {
	act.Done
	State   report.Key `json:"state"`   // of the key, at its owner and elsewhere
	Without []string   `json:"without"` // members that do not know it, in sentences
}

// actKnownWithin is how long the owner may take to read a hold, or to tell the end of a skip.
const actKnownWithin = 5 * time.Second

// isKnown reports whether a member that reports the hold told has read ours: members report the newest hold that they
// have read.
func (h *heldKey) isKnown(told *report.Hold) bool { return told != nil && !told.Since.Before(h.Act.At) }

// find waits until the owner of the key knows the hold, and reports whether it does.
func (h *heldKey) find(ctx context.Context, a *asker, key string) (known bool, err error) {
	h.State, err = askKey(ctx, a, key, func(at []report.KeyAt) (bool, error) {
		known = len(at) > 0 && at[0].Error == "" && h.isKnown(at[0].Hold)
		return known, nil
	})
	if err != nil {
		return false, err
	}
	var m report.Members
	if err := a.get(ctx, "/v1/members", &m); err != nil {
		return known, err
	}
	h.Without = withoutActs(m)
	return known, nil
}

// askKey asks for the state of a key until it is enough, for actKnownWithin at most, and returns the last answer.
func askKey(ctx context.Context, a *asker, key string, enough func([]report.KeyAt) (bool, error)) (last report.Key, err error) {
	deadline, cancel := context.WithTimeout(ctx, actKnownWithin)
	defer cancel()
	pauses := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for {
		last = report.Key{}
		if err := a.get(ctx, "/v1/keys?key="+url.QueryEscape(key), &last); err != nil {
			return last, err
		}
		if is, err := enough(last.At); is || err != nil || backoff.Sleep(deadline, pauses.Next()) != nil {
			return last, err
		}
	}
}

// withoutActs names the members that do not know all acts.
func withoutActs(m report.Members) []string {
	all := []string{}
	asked, newer := m.Cut()
	if len(newer) > 0 {
		all = append(all, fmt.Sprintf("%s is of an earlier version, and does not pass on whether these take acts: %s; ask one of them", asked, strings.Join(newer, ", ")))
	}
	for _, one := range m.Members {
		switch {
		case slices.Contains(newer, one.Name):
		case one.Unnamed || one.Status != nil && one.Status.Mode != report.ModeStrict:
		case one.Status == nil:
			all = append(all, one.Name+" does not answer: it is not known whether it keeps keys on hold")
		case one.Status.Acts == nil:
			all = append(all, one.Name+" takes no acts (acts.enabled is false, or an older version): keys that are held would run there")
		case one.Status.Acts.Error != "":
			all = append(all, one.Name+" cannot use the acts topic now, keys that are held later would run there: "+one.Status.Acts.Error)
		}
	}
	return all
}

func heldPage(p *page, h heldKey) {
	p.line("held until %s by %s because %q\n", report.TimeWords(h.Act.Until), h.Act.By, h.Act.Reason)
	keyPage(p, h.State)
	for _, says := range h.Without {
		p.alarm("%s", says)
	}
}

func releaseCommand() *cobra.Command {
	var o order
	cmd := asking(&cobra.Command{
		Use:   "release KEY",
		Short: "End the hold of a key: its events run in their order",
		Args:  oneArg("KEY"),
	}, func(cmd *cobra.Command, args []string, a *asker, form *outputForm) error {
		_, done, err := o.send(cmd.Context(), a, "release", args[0], url.Values{})
		if err != nil {
			return err
		}
		return form.show(cmd.OutOrStdout(), done, func(p *page) {
			if done.Result == act.NotHeld {
				p.line("the key was not held; nothing has changed")
				return
			}
			p.line("released by %s because %q", done.Act.By, done.Act.Reason)
		})
	})
	o.addTo(cmd)
	return cmd
}

func parkCommand() *cobra.Command {
	var o order
	var duration time.Duration
	cmd := asking(&cobra.Command{
		Use:   "park KEY",
		Short: "Send the events of a key to the parking topic, in their order, until an unpark or for a time",
		Long: `Send the events of a key to the parking topic, in their order, until an unpark or for a time.

A delivery that already runs finishes, and its result counts. All other events of the key, and
retries of that one, go to the parking topic, and so do later events: they no longer count as open,
however long it takes to fix the bug. Other keys do not wait. router unpark brings them
back. The park outlasts moves of the key and the death of its owner. If it ends by itself, after
--for, the events stay in the parking topic, and later ones run before them. The act is written to
the group's acts topic, with who, when and why: see router acts.

The command is refused while a member of the group does not know parks. It prints the state of the
key at its owner. The exit code is 1 if the owner does not know the park.`,
		Args: oneArg("KEY"),
	}, func(cmd *cobra.Command, args []string, a *asker, form *outputForm) error {
		more, err := valuesFor(cmd, duration)
		if err != nil {
			return err
		}
		p, key, err := o.park(cmd.Context(), a, "park", args[0], more)
		if err != nil {
			return err
		}
		known, err := p.find(cmd.Context(), a, key, func(at report.KeyAt) bool { return at.Park != nil && at.Park.ID == p.Act.ID })
		return p.show(cmd, form, known, err)
	})
	cmd.Flags().DurationVar(&duration, "for", 0, "when the park ends by itself (default acts.park_for of the router; at most 720h)")
	o.addTo(cmd)
	return cmd
}

func unparkCommand() *cobra.Command {
	var o order
	var duration time.Duration
	cmd := asking(&cobra.Command{
		Use:   "unpark KEY",
		Short: "Bring the events of a key back from the parking topic, before all its other events",
		Long: `Bring the events of a key back from the parking topic, before all its other events.

The owner of the key reads them, and handles one after the other in the order in which they would
have run without the park. Other events of the key wait behind them, as on hold. A letter leaves the
parking topic when its event has ended, so the next owner continues where a killed one stopped.
The unpark ends when no letter of the key is left, and by itself after --for: then letters stay in
the parking topic, and later events run before them. It also brings back the letters of an expired
park. The act is written to the group's acts topic, with who, when and why, and with its end: see
router acts.

The command prints the state of the key at its owner, which tells what the letters wait for. The
exit code is 1 if the owner does not know the unpark.`,
		Args: oneArg("KEY"),
	}, func(cmd *cobra.Command, args []string, a *asker, form *outputForm) error {
		more, err := valuesFor(cmd, duration)
		if err != nil {
			return err
		}
		p, key, err := o.park(cmd.Context(), a, "unpark", args[0], more)
		if err != nil {
			return err
		}
		known, err := p.find(cmd.Context(), a, key, func(at report.KeyAt) bool {
			return at.Park != nil && at.Park.ID == p.Act.ID && (at.Park.Letters > 0 || at.Park.Waits != "")
		})
		return p.show(cmd, form, known, err)
	})
	cmd.Flags().DurationVar(&duration, "for", 0, "when the unpark ends by itself (default and most: acts.hold_for_max of the router)")
	o.addTo(cmd)
	return cmd
}

// parkedKey is a park or an unpark, and what has become of it.
type parkedKey struct {
	act.Done
	State report.Key `json:"state"` // of the key, at its owner and elsewhere
}

func (o *order) park(ctx context.Context, a *asker, what, argument string, more url.Values) (p parkedKey, key string, err error) {
	if key, p.Done, err = o.send(ctx, a, what, argument, more); err == nil && p.Result == act.Full {
		err = errors.New("refused: as many keys are parked as the acts topic allows")
	}
	return p, key, err
}

// find waits until the owner of the key is as wanted, or the act has ended, and reports whether the owner knows the act.
func (p *parkedKey) find(ctx context.Context, a *asker, key string, wanted func(report.KeyAt) bool) (known bool, err error) {
	p.State, err = askKey(ctx, a, key, func(at []report.KeyAt) (bool, error) {
		known = len(at) > 0 && at[0].Park != nil && at[0].Park.ID == p.Act.ID
		if known || p.Act.Act != act.Unpark.String() {
			return known && wanted(at[0]), nil
		}
		var acts act.Acts
		if err := a.get(ctx, "/v1/acts", &acts); err != nil {
			return false, err
		}
		for _, one := range acts.Acts {
			if one.ID == p.Act.ID && one.End != "" {
				p.Act, known = one, true
			}
		}
		return known, nil
	})
	return known, err
}

func (p *parkedKey) show(cmd *cobra.Command, form *outputForm, known bool, err error) error {
	return showActed(cmd, form, p.Done, known, err, *p, func(out *page) { parkedPage(out, *p) })
}

func parkedPage(p *page, k parkedKey) {
	if k.Result == act.Already {
		p.line("the letters of this key come back already; nothing was done")
	}
	if k.Act.End != "" {
		p.line("unparked by %s because %q: %s\n", k.Act.By, k.Act.Reason, k.Act.EndWords)
	} else {
		p.line("%s\n", report.ParkWords(report.Park{
			ID: k.Act.ID, Hold: report.Hold{By: k.Act.By, Reason: k.Act.Reason, Since: k.Act.At, Until: k.Act.Until}, Unparking: k.Act.Act == act.Unpark.String(),
		}))
	}
	keyPage(p, k.State)
}

func skipCommand() *cobra.Command {
	var o order
	var id string
	cmd := asking(&cobra.Command{
		Use:   "skip KEY",
		Short: "Send one event of a key to the dead letter topic: the one that runs, or is first",
		Long: `Send one event of a key to the dead letter topic: the one that runs, or is first.

If the event runs, its handler is cancelled, and the key waits for the handler's answer or for the
deadline. If the handler still succeeds, the event is done and does not become a dead letter. An
event that waits leaves immediately, even if the key is on hold.

The router selects the event, unless --event names it by its message id, as router
locate and router history show it. A skip concerns this one event, and stays in effect for
acts.skip_for, even if the owner changes. During that time the command without --event skips no
second event of the key. The act is written to the group's acts topic, with who, when and why, and
with the end of the event: see router acts.

The exit code is 1 if nothing was there to skip, or the owner does not know the skip.`,
		Args: oneArg("KEY"),
	}, func(cmd *cobra.Command, args []string, a *asker, form *outputForm) error {
		more := url.Values{}
		if id != "" {
			if _, err := event.ParseMessageID(id); err != nil {
				return usageError{fmt.Errorf("--event: %w", err)}
			}
			more.Set("event", id)
		}
		key, done, err := o.send(cmd.Context(), a, "skip", args[0], more)
		if err != nil {
			return err
		}
		if done.Result == act.Full {
			return errors.New("not skipped: the acts topic has as many skips in effect as it allows")
		}
		s := skippedEvent{Done: done}
		known, err := s.find(cmd.Context(), a, key)
		return showActed(cmd, form, done, known, err, s, func(p *page) { skippedPage(p, s) })
	})
	cmd.Flags().StringVar(&id, "event", "", "the message id of the event, as ledger:entry:partition:batch (default: the one that runs, or is first)")
	o.addTo(cmd)
	return cmd
}

// skippedEvent is a skip, and what has become of it.
type skippedEvent struct {
	act.Done
	State   report.Key `json:"state"`   // of the key, at its owner and elsewhere
	Without []string   `json:"without"` // members that do not know it, in sentences
}

// find waits until the owner of the key has told the end of the skip, and reports whether it knows the skip.
func (s *skippedEvent) find(ctx context.Context, a *asker, key string) (known bool, err error) {
	s.State, err = askKey(ctx, a, key, func(at []report.KeyAt) (bool, error) {
		known = false
		for i, one := range at {
			for _, told := range one.Skips {
				if told.ID == s.Act.ID {
					known = known || i == 0
					s.Act.End = cmp.Or(s.Act.End, told.End)
				}
			}
		}
		return s.Act.End != "", nil
	})
	if err != nil {
		return false, err
	}
	known = known || s.Act.End != ""
	var m report.Members
	if err := a.get(ctx, "/v1/members", &m); err != nil {
		return known, err
	}
	s.Without = withoutSkips(m)
	return known, nil
}

// withoutSkips names the members that do not know all skips.
func withoutSkips(m report.Members) []string {
	all := withoutActs(m)
	for _, one := range m.Members {
		if one.Status != nil && one.Status.Mode == report.ModeStrict && one.Status.Acts != nil && one.Status.Acts.Skips == nil {
			all = append(all, one.Name+" does not know skips (an older version): it would run the event")
		}
	}
	return all
}

func skippedPage(p *page, s skippedEvent) {
	if s.Result == act.Already {
		p.line("a skip of this key is in effect already; nothing was done, --event skips another event of it")
	}
	p.line("%s\n", report.SkipWords(report.Skip{
		ID: s.Act.ID, Event: s.Act.Event, By: s.Act.By, Reason: s.Act.Reason, Since: s.Act.At, Until: s.Act.Until, End: s.Act.End,
	}))
	keyPage(p, s.State)
	for _, says := range s.Without {
		p.alarm("%s", says)
	}
}

func actsCommand() *cobra.Command {
	return watched(&cobra.Command{
		Use:   "acts",
		Short: "List the acts of operators on single keys: what is held, parked or skipped now, and what was done, by whom and why",
		Long: `List the acts of operators on single keys: what is held, parked or skipped now, and what was done, by whom and why.

Replays and purges of dead letters and replays of events are recorded on a topic of their own,
which router deadletters acts lists.`,
		Args: noArgs,
	}, func(cmd *cobra.Command, _ []string, a *asker, o *outputForm) error {
		var acts act.Acts
		if err := a.get(cmd.Context(), "/v1/acts", &acts); err != nil {
			return err
		}
		return o.show(cmd.OutOrStdout(), acts, func(p *page) { actsTable(p, acts) })
	})
}

// endOf says what became of the event of a skip, or of a park or an unpark that nothing has replaced; "-" for other acts.
func endOf(one act.Shown) string {
	switch {
	case one.Act == act.Unpark.String() && one.End == "" && !one.Active:
		return "letters may be left"
	case one.Act == act.Park.String() && !one.Active && !wallClock().Before(one.Until):
		return "expired"
	case one.Act != act.Skip.String() && one.Act != act.Unpark.String():
		return "-"
	case one.End == "" && one.Active:
		return "open"
	case one.End == "":
		return "no effect"
	}
	return one.End
}

func actsTable(p *page, acts act.Acts) {
	var rows [][]string
	type name struct{ key, base64 string }
	newer := map[name]time.Time{} // when the next park or unpark of a key began: the list is newest first
	for _, one := range acts.Acts {
		key, until, end := one.Key, "-", endOf(one)
		switch {
		case one.KeyBase64 != "":
			key = "base64 " + one.KeyBase64
		case key == "":
			key = `""` // else the column would be blank
		}
		if one.Active {
			until = report.TimeWords(one.Until)
		}
		if one.Act == act.Park.String() || one.Act == act.Unpark.String() {
			of := name{one.Key, one.KeyBase64}
			if began, known := newer[of]; known && began.Before(one.Until) && one.End == "" {
				end = "replaced"
			}
			newer[of] = one.At
		}
		rows = append(rows, []string{report.TimeWords(one.At), one.Act, key, cmp.Or(one.Event, "-"), until, end, one.By, one.Reason, one.Via})
	}
	p.table([]string{"WHEN", "ACT", "KEY", "EVENT", "IN EFFECT UNTIL", "END", "BY", "WHY", "VIA"}, rows)
	p.line("\nas %s has read them; replays and purges are listed by router deadletters acts", acts.Member)
	if acts.Error != "" {
		p.alarm("%s cannot use the acts topic now, newer acts may be missing: %s", acts.Member, acts.Error)
	}
}
