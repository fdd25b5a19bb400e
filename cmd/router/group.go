package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/claim"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

const (
	groupTimeout = 60 * time.Second // of a whole command, without the wait for Beats
	aliveTimeout = 5 * time.Second  // every live member writes a Beat within it, for any ownership.profile
)

func groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "Show which group a subscription belongs to, or release the subscription",
		Args:  requireSubcommand, RunE: requireSubcommand,
	}
	cmd.AddCommand(groupShowCommand(), groupReleaseCommand())
	return cmd
}

func groupShowCommand() *cobra.Command {
	var file string
	var o outputForm
	var w watchFlag
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show which group holds the subscription, the retry topic and the control topic of these settings",
		Long: `Show which group holds the subscription on each topic, and the control topic, of these
settings; with which settings, and which of them differ; and up to which generation fencing
tokens were given out. It reads the claims topics of the namespaces; where there is none, no
group has claimed anything yet.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := load(cmd, file)
			if err != nil {
				return err
			}
			return w.run(cmd, func() error {
				ctx, cancel := context.WithTimeout(cmd.Context(), groupTimeout)
				defer cancel()
				logs, err := openGroupLogs(ctx, loaded.Config)
				if err != nil {
					return err
				}
				claims, err := logs.show(ctx, loaded.Config)
				if err != nil {
					return err
				}
				return o.show(cmd.OutOrStdout(), claims, func(p *page) { showClaims(p, claims) })
			})
		},
	}
	w.addTo(cmd)
	cmd.Flags().StringVar(&file, "config", "", "file with settings, in YAML")
	config.AddFlags(cmd.Flags())
	o.addTo(cmd)
	return cmd
}

func groupReleaseCommand() *cobra.Command {
	var file string
	var force bool
	var topics []string
	cmd := &cobra.Command{
		Use:   "release",
		Short: "End the claim of a group that was stopped, so that one with other settings can take its place",
		Long: `End the claim of a group that was stopped, so that one with other settings can take its
place. It refuses while members write to the control topic, and if the settings of the group
that holds the claim differ from these.

Routers that still run end with exit code 5 when their claim is released by force. The
claims topic remembers which fencing tokens were given out: a new control topic needs a
higher ownership.generation.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := load(cmd, file)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), groupTimeout+aliveTimeout)
			defer cancel()
			logs, err := openGroupLogs(ctx, loaded.Config)
			if err != nil {
				return err
			}
			return logs.release(ctx, loaded.Config, releaseOptions{force: force, topics: topics}, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "file with settings, in YAML: those with which the group ran")
	cmd.Flags().BoolVar(&force, "force", false, "release the claims of any holder, also while its members live: they end")
	cmd.Flags().StringSliceVar(&topics, "topic", nil, "release only the subscription on this topic, as after it was taken out of pulsar.topics; repeatable")
	config.AddFlags(cmd.Flags())
	return cmd
}

// groupLogs opens the logs that tell about groups.
type groupLogs struct {
	open   func(topic string) (controllog.Transport, error)
	alive  time.Duration
	exists func(ctx context.Context, topic string) (bool, error) // nil: they all do. To open a log creates its topic
}

// openGroupLogs first checks that the broker accepts the router's credentials.
func openGroupLogs(ctx context.Context, cfg config.Config) (groupLogs, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	auth, err := commandAuth(ctx, cfg.Pulsar, log)
	if err != nil {
		return groupLogs{}, err
	}
	open := func(topic string) (controllog.Transport, error) { return claimsAt(auth, topic, log) }
	exists := func(ctx context.Context, topic string) (bool, error) { return topicExists(ctx, auth, topic, log) }
	return groupLogs{open: open, alive: aliveTimeout, exists: exists}, nil
}

// missing reports whether the topic of a log is not there.
func (g groupLogs) missing(ctx context.Context, topic string) (bool, error) {
	if g.exists == nil {
		return false, nil
	}
	there, err := g.exists(ctx, topic)
	if err != nil {
		return false, fmt.Errorf("cannot tell whether there is a topic %s: %w", topic, err)
	}
	return !there, nil
}

// shownClaim is the status of one resource.
type shownClaim struct {
	Topic       string            `json:"topic"`                   // the claims topic
	Missing     bool              `json:"topic_missing,omitempty"` // there is no such claims topic, so no group of its namespace has claimed anything
	Resource    string            `json:"resource"`
	Held        string            `json:"held"` // no holder, this group, or another group
	Released    bool              `json:"released,omitempty"`
	Forced      bool              `json:"forced,omitempty"`
	Since       string            `json:"since,omitempty"` // position in the claims topic
	Began       bool              `json:"began"`           // fencing tokens were given out
	Generation  uint32            `json:"generation"`      // of them, at most
	Settings    []shownSetting    `json:"settings,omitempty"`
	Differences []shownDifference `json:"differences,omitempty"`

	holder identity.Identity // nil: no holder
}

type shownSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type shownDifference struct {
	Name   string `json:"name"`
	Ours   string `json:"ours"`
	Theirs string `json:"theirs"`
}

// The words for a holder.
const (
	heldByNobody  = "nobody"
	heldByUs      = "this group"
	heldByAnother = "another group"
)

// show reads the claims topics for the resources of these settings.
func (g groupLogs) show(ctx context.Context, cfg config.Config) ([]shownClaim, error) {
	places, err := claimedBy(cfg)
	if err != nil {
		return nil, usageError{err}
	}
	return g.showPlaces(ctx, places, cfg.Identity())
}

func (g groupLogs) showPlaces(ctx context.Context, places []claim.Place, ours identity.Identity) ([]shownClaim, error) {
	var all []shownClaim
	for _, p := range places {
		missing, err := g.missing(ctx, p.Topic)
		if err != nil {
			return nil, err
		}
		fold := new(claim.Fold)
		if !missing {
			if fold, err = g.look(ctx, p.Topic, func(*claim.Fold) (*claim.Record, error) { return nil, nil }); err != nil {
				return nil, err
			}
		}
		for _, resource := range p.Resources {
			c := shownClaimOf(p, resource, fold.State(resource), ours)
			c.Missing = missing
			all = append(all, c)
		}
	}
	return all, nil
}

func (g groupLogs) look(ctx context.Context, topic string, change func(*claim.Fold) (*claim.Record, error)) (*claim.Fold, error) {
	log, err := g.open(topic)
	if err != nil {
		return nil, err
	}
	fold, err := claim.Look(ctx, log, change)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", topic, err)
	}
	return fold, nil
}

func shownClaimOf(p claim.Place, resource string, s claim.State, ours identity.Identity) shownClaim {
	c := shownClaim{
		Topic: p.Topic, Resource: resource, Held: heldByNobody, Released: s.Released, Forced: s.Forced,
		Began: s.Began, Generation: s.Gen, holder: s.Holder,
	}
	if s.Since != (event.Position{}) {
		c.Since = s.Since.String()
	}
	if s.Holder == nil {
		return c
	}
	c.Held = heldByUs
	for _, setting := range s.Holder {
		c.Settings = append(c.Settings, shownSetting(setting))
	}
	for _, d := range ours.Against(s.Holder) {
		c.Held = heldByAnother
		c.Differences = append(c.Differences, shownDifference(d))
	}
	return c
}

func showClaims(p *page, claims []shownClaim) {
	var rows [][]string
	for _, c := range claims {
		tokens := "none given out"
		if c.Began {
			tokens = fmt.Sprintf("up to generation %d", c.Generation)
		}
		held := c.Held
		if held == heldByAnother { // its name may be that of this group, before a change of its settings
			held = "a group with other settings"
		}
		if c.Released {
			held += ", released"
		}
		rows = append(rows, []string{c.Resource, held, tokens})
	}
	p.table([]string{"RESOURCE", "HELD BY", "FENCING TOKENS"}, rows)
	missing := ""
	var differ identity.Differences
	for _, c := range claims {
		if c.Missing && c.Topic != missing { // claims are listed by their topics
			missing = c.Topic
			p.alarm("there is no topic %s: no router has started with claims in that namespace; are pulsar.topics and node.group as the group has them?", c.Topic)
		}
		for _, d := range c.Differences {
			p.alarm("%s: %s", c.Resource, identity.Difference(d))
			differ = append(differ, identity.Difference(d))
		}
	}
	if len(differ) == 0 {
		return
	}
	if remark := differ.Remark(); remark != "" {
		p.line("%s", remark)
	}
	p.line("to free what a stopped group holds, run `router group release` with the settings there")
}

type releaseOptions struct {
	force  bool
	topics []string // the subscription on these alone
}

// release ends the claims, or returns an error if a confirmation is needed first.
func (g groupLogs) release(ctx context.Context, cfg config.Config, o releaseOptions, out io.Writer) error {
	if len(o.topics) > 0 {
		cfg.Pulsar.Topics = o.topics
	}
	said := bufio.NewWriter(out)        // which keeps the first error
	defer func() { _ = said.Flush() }() // what was released before an error
	claims, err := g.show(ctx, cfg)
	if err != nil {
		return err
	}
	claims = slices.DeleteFunc(claims, func(c shownClaim) bool { return c.holder == nil || !o.takes(c, cfg) })
	if len(claims) == 0 {
		fmt.Fprintln(said, "nothing to release: no group holds the claims of these settings")
		return said.Flush()
	}
	if !o.force {
		for _, c := range claims {
			if c.Held == heldByAnother {
				return fmt.Errorf("%w: %s is held with other settings: %s. "+
					"Run this command with the settings there, in the file or as flags such as --pulsar.topics, or with --force if they are not known",
					node.ErrIdentity, c.Resource, cfg.Identity().Against(c.holder))
			}
		}
		if err := g.nobodyLives(ctx, cfg); err != nil {
			return err
		}
	}
	done := map[string]bool{}
	for _, c := range claims {
		if done[c.Topic] {
			continue
		}
		done[c.Topic] = true
		r := &claim.Record{Identity: cfg.Identity(), Release: true, Force: o.force}
		for _, other := range claims {
			if other.Topic == c.Topic {
				r.Resources = append(r.Resources, other.Resource)
			}
		}
		fold, err := g.look(ctx, c.Topic, func(*claim.Fold) (*claim.Record, error) { return r, nil })
		if err != nil {
			return err
		}
		for _, resource := range r.Resources {
			if fold.State(resource).Holder != nil {
				return fmt.Errorf("%w: %s was claimed by another group meanwhile", node.ErrIdentity, resource)
			}
			fmt.Fprintf(said, "released: %s\n", untrusted.Print(resource))
		}
	}
	return said.Flush()
}

// takes reports whether a resource is one of those that are to be released.
func (o releaseOptions) takes(c shownClaim, cfg config.Config) bool {
	if len(o.topics) == 0 {
		return true
	}
	return slices.ContainsFunc(o.topics, func(topic string) bool {
		return c.Resource == claim.Subscription(source.FullTopicName(topic), cfg.Pulsar.Subscription)
	})
}

// The reasons that end the wait for Beats.
var (
	errAlive = errors.New("members of the group are running")
	errQuiet = errors.New("no Beat came")
)

// nobodyLives returns an error if a member of the group writes a Beat to the control topic while it listens there, or
// if it cannot find out.
func (g groupLogs) nobodyLives(ctx context.Context, cfg config.Config) error {
	if modeOf(cfg) == node.Gossip {
		return usageError{errors.New("with ownership.mode gossip the log does not show running members: stop them, and use --force")}
	}
	topic := cfg.ControlTopic()
	log, err := g.open(topic)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() { end(log.Run(ctx)) })
	running.Go(func() {
		var quiet *time.Timer
		err := log.Tail(ctx, event.Position{}, 1000, func() {
			quiet = time.AfterFunc(g.alive, func() { end(errQuiet) })
		}, func(e controllog.Entry) {
			r, err := controllog.Decode(cfg.Node.Group, e.Data)
			if _, beats := r.Body.(*ownership.Beat); err == nil && beats {
				end(errAlive)
			}
		})
		if quiet != nil {
			quiet.Stop()
		}
		end(err)
	})
	running.Wait()
	switch err := context.Cause(ctx); {
	case errors.Is(err, errQuiet):
		return nil
	case errors.Is(err, errAlive):
		return fmt.Errorf("%w: they write Beats to %s. Stop them first; --force makes them exit, and their handlers run until their deadlines", errAlive, topic)
	default:
		return fmt.Errorf("cannot tell whether members are running: %w; --force skips this check", err)
	}
}
