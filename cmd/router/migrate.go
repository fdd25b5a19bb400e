package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/report"
)

const migrateHelp = `Print what to change to move a subscription to Ringfence, in which order, and what can go
wrong, from the subscription's settings and statistics at the broker. It changes nothing.

  redlock      consumers of a SHARED subscription, with a Redis lock on the key
  key_shared   consumers of a KEY_SHARED subscription
  failover     consumers of a FAILOVER or EXCLUSIVE subscription

The settings are those of the future routers: pulsar.topics, pulsar.subscription (that of
the present consumers) and pulsar.admin_url, which it reads. The exit code is 1 if
something has to be changed before the first step.`

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Plan the move of a subscription to Ringfence", Args: requireSubcommand, RunE: requireSubcommand}
	cmd.AddCommand(migratePlanCommand())
	return cmd
}

// errBlocked says that a plan cannot be begun as things are.
var errBlocked = errors.New("the plan cannot begin yet: see its obstacles")

func migratePlanCommand() *cobra.Command {
	var o outputForm
	var from string
	cmd := withSettings(&cobra.Command{
		Use:   "plan --from redlock|key_shared|failover",
		Short: "Print the steps and the risks of a move, from the live subscription",
		Long:  migrateHelp,
	}, func(cmd *cobra.Command, loaded *config.Loaded) error {
		if loaded.Pulsar.AdminURL == "" {
			return usageError{errors.New("pulsar.admin_url is not set: the plan is made from the subscription's settings and statistics, which only the admin API has")}
		}
		auth, err := newPulsarAuth(loaded.Pulsar, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		if err != nil {
			return usageError{err}
		}
		found, err := subscriptionsOf(cmd.Context(), auth.admin(), loaded.Config)
		if err != nil {
			return err
		}
		plan := planOf(from, loaded.Config, found)
		if err := o.show(cmd.OutOrStdout(), plan, func(p *page) { planPage(p, plan) }); err != nil {
			return err
		}
		if len(plan.Blockers) > 0 {
			return errBlocked
		}
		return nil
	})
	cmd.PreRunE = func(*cobra.Command, []string) error { // before the settings are read
		if !slices.Contains(migrateFrom, from) {
			return usageError{fmt.Errorf("--from = %q, want %s", from, strings.Join(migrateFrom, ", "))}
		}
		return nil
	}
	cmd.Flags().StringVar(&from, "from", "", "how keys are kept apart today: redlock, key_shared or failover")
	o.addTo(cmd)
	cmd.Flags().BoolFunc("json", "the same as -o json", func(string) error { o.form = "json"; return nil })
	return cmd
}

// liveSubscription is the present subscription on one topic, as the broker describes it.
type liveSubscription struct {
	Topic        string         `json:"topic"`
	Partitions   int            `json:"partitions"`  // 0: not partitioned
	Retry        bool           `json:"retry_topic"` // it is the topic for retries, not one of pulsar.topics
	There        bool           `json:"there"`       // the subscription is; nothing below counts otherwise
	Type         string         `json:"type"`        // of its consumers, as Pulsar names it: Shared, Key_Shared, Failover, Exclusive; "": never used
	Consumers    []liveConsumer `json:"consumers"`
	Backlog      int64          `json:"backlog"` // events that are not acked
	Unacked      int64          `json:"unacked"` // of those, sent to a consumer
	Delayed      int64          `json:"delayed"` // of the backlog, not due yet
	RateOut      float64        `json:"rate_out"`
	RateRedeliv  float64        `json:"rate_redelivered"`
	OutOfOrder   bool           `json:"allow_out_of_order"` // Key_Shared: an order is not promised already
	KeyMode      string         `json:"key_shared_mode,omitempty"`
	Replicated   bool           `json:"replicated"`
	TypesAllowed []string       `json:"types_allowed,omitempty"` // none: all
}

// liveConsumer is one consumer of a subscription.
type liveConsumer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Client  string `json:"client"` // library and version
}

// isRouter reports whether a consumer is a router of Ringfence.
func (c liveConsumer) isRouter() bool { return c.Client == entries.ClientVersion }

// migrationStats are the fields of a topic's statistics that a plan is made from.
type migrationStats struct {
	Partitions    map[string]migrationStats
	Subscriptions map[string]struct {
		Type             string
		MsgBacklog       int64
		UnackedMessages  int64
		MsgDelayed       int64
		MsgRateOut       float64
		MsgRateRedeliver float64
		KeySharedMode    string
		AllowOutOfOrder  bool `json:"allowOutOfOrderDelivery"`
		IsReplicated     bool `json:"replicated"`
		Consumers        []struct{ ConsumerName, Address, ClientVersion string }
	}
}

// consumers returns the consumers of a subscription. Those of a partitioned topic are in the statistics of its partitions: the broker's sum of these has neither their
// addresses nor their clients.
func (m migrationStats) consumers(subscription string) []liveConsumer {
	all := []liveConsumer{}
	if len(m.Partitions) == 0 {
		for _, c := range m.Subscriptions[subscription].Consumers {
			all = append(all, liveConsumer{c.ConsumerName, c.Address, c.ClientVersion})
		}
		return all
	}
	hostOf := func(c liveConsumer) string { return c.Address[:max(0, strings.LastIndex(c.Address, ":"))] } // it has a connection to each broker
	for _, partition := range slices.Sorted(maps.Keys(m.Partitions)) {
		for _, one := range m.Partitions[partition].consumers(subscription) {
			known := slices.ContainsFunc(all, func(c liveConsumer) bool {
				return c.Name == one.Name && c.Client == one.Client && hostOf(c) == hostOf(one)
			})
			if !known {
				all = append(all, one)
			}
		}
	}
	return all
}

// subscriptionsOf reads the subscription of the settings on each topic, the retry topic last if
// there is one.
func subscriptionsOf(ctx context.Context, admin pulsaradmin.Client, cfg config.Config) (all []liveSubscription, err error) {
	for _, topic := range cfg.Topics() {
		one, err := subscriptionOf(ctx, admin, topic, cfg.Pulsar.Subscription)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", topic, err)
		}
		all = append(all, one)
	}
	retry := cfg.Pulsar.Resolved().RetryTopic
	switch one, err := subscriptionOf(ctx, admin, retry, cfg.Pulsar.Subscription); {
	case pulsaradmin.IsNotFound(err): // most have none
	case err != nil:
		return nil, fmt.Errorf("%s: %w", retry, err)
	case one.There:
		one.Retry = true
		all = append(all, one)
	}
	return all, nil
}

func subscriptionOf(ctx context.Context, admin pulsaradmin.Client, topic, name string) (liveSubscription, error) {
	live := liveSubscription{Topic: topic, Consumers: []liveConsumer{}}
	path := pulsaradmin.TopicPath(topic)
	var err error
	if live.Partitions, err = admin.Partitions(ctx, topic); err != nil {
		return live, err
	}
	var stats migrationStats
	if err := admin.Call(ctx, http.MethodGet, pulsaradmin.StatsPath(topic, live.Partitions > 0, true), nil, &stats); err != nil {
		return live, err
	}
	_ = admin.Call(ctx, http.MethodGet, path+"/subscriptionTypesEnabled", nil, &live.TypesAllowed) // without an answer all are
	s, there := stats.Subscriptions[name]
	live.There, live.Type, live.Replicated = there, s.Type, s.IsReplicated
	live.Backlog, live.Unacked, live.Delayed = s.MsgBacklog, s.UnackedMessages, s.MsgDelayed
	live.RateOut, live.RateRedeliv = s.MsgRateOut, s.MsgRateRedeliver
	live.KeyMode, live.OutOfOrder = s.KeySharedMode, s.AllowOutOfOrder
	live.Consumers = stats.consumers(name)
	return live, nil
}

// countOf returns the number of consumers, and how many of them are routers, if any is.
func countOf(consumers []liveConsumer) string {
	routers := 0
	for _, c := range consumers {
		if c.isRouter() {
			routers++
		}
	}
	if routers == 0 {
		return strconv.Itoa(len(consumers))
	}
	return fmt.Sprintf("%d (%s)", len(consumers), report.Plural(routers, "router"))
}

func planPage(p *page, m migration) {
	p.line("Move subscription %s from %s to Ringfence.\n", m.Subscription, m.From)
	var rows [][]string
	for _, s := range m.Found {
		kind := s.Type
		if !s.There {
			kind = "not there"
		}
		rows = append(rows, []string{
			s.Topic, partitioned(s.Partitions), kind, countOf(s.Consumers), fmt.Sprint(s.Backlog), fmt.Sprint(s.Unacked),
			fmt.Sprintf("%.1f/s", s.RateOut), fmt.Sprintf("%.1f/s", s.RateRedeliv),
		})
	}
	p.table([]string{"TOPIC", "PARTITIONS", "TYPE", "CONSUMERS", "BACKLOG", "UNACKED", "OUT", "REDELIVERED"}, rows)
	for _, b := range m.Blockers {
		p.alarm("\nIN THE WAY: %s\n  → %s", b.What, b.Remedy)
	}
	p.line("\nSteps, in this order:")
	for i, s := range m.Steps {
		p.line("\n%d. %s", i+1, s.Do)
		p.line("   Why: %s", s.Why)
		if s.Check != "" {
			p.line("   Then check: %s", s.Check)
		}
	}
	p.line("\nWhat can go wrong:")
	for _, r := range m.Risks {
		p.line("\n- %s\n  → %s", r.What, r.Remedy)
	}
	p.line("\nTo go back: %s\nMore: %s", m.Back, m.Page)
}
