package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/claim"
	"github.com/ringfence/router/internal/node"
)

// claimedBy returns the resources that a router with these settings claims: the subscription on
// its topics and on its retry topic, and its control topic if it has one.
func claimedBy(cfg config.Config) ([]claim.Place, error) {
	topics, control := cfg.Topics(), cfg.ControlTopic()
	if retry := cfg.Pulsar.Resolved().RetryTopic; retry != "" {
		topics = append(topics, retry)
	}
	if modeOf(cfg) == node.Gossip {
		control = ""
	}
	return claim.Places(topics, cfg.Pulsar.Subscription, control)
}

// newClaims returns the keeper of a router's claims.
func newClaims(cfg config.Config, b broker, registry *prometheus.Registry, log *slog.Logger) (*claim.Keeper, error) {
	c := claim.DefaultConfig()
	var err error
	if c.Places, err = claimedBy(cfg); err != nil {
		return nil, err
	}
	c.Identity = cfg.Identity()
	c.Optional = modeOf(cfg) == node.Gossip
	open := func(topic string) (controllog.Transport, error) { return b.claims(topic, log) }
	return claim.New(c, open, log, claim.NewMetrics(registry)), nil
}

// topicExists reports whether there is a topic, without creating it.
func topicExists(ctx context.Context, auth *pulsarAuth, topic string, log *slog.Logger) (bool, error) {
	cfg := entries.DefaultConfig()
	cfg.URL = auth.settings.URL
	client, err := entries.New(cfg, auth.access(), entries.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		return false, err
	}
	defer client.Close()
	return client.Exists(ctx, topic)
}

// claimsAt returns the log of a claims topic.
func claimsAt(auth *pulsarAuth, topic string, log *slog.Logger) (controllog.Transport, error) {
	c := controllog.DefaultPulsarConfig()
	c.Topic, c.DeniedIsFinal = topic, true
	return controllog.NewPulsar(c, auth.options(), auth.access(), log)
}
