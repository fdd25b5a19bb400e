package main

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/controllog/claim"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/source"
)

// makesTopics reports whether the broker creates a topic at its first use, by the policy of its namespace or else by its own setting. It does if it does not tell.
func makesTopics(ctx context.Context, admin pulsaradmin.Client, topic string, settings map[string]string) bool {
	var policy struct{ AllowAutoTopicCreation *bool }
	if err := admin.Call(ctx, http.MethodGet, namespaceOf(topic)+"/autoTopicCreation", nil, &policy); err == nil && policy.AllowAutoTopicCreation != nil {
		return *policy.AllowAutoTopicCreation
	}
	return settings["allowAutoTopicCreation"] != "false"
}

// missingTopics checks that routers get the topics without which events cannot be settled. The doctor speaks elsewhere of those of timers and acts.
func (d *doctor) missingTopics(ctx context.Context, admin pulsaradmin.Client, settings map[string]string) {
	cfg := d.cfg.Pulsar.Resolved()
	lacks := map[string]string{
		cfg.RetryTopic:      "nothing is consumed",
		cfg.DeadLetterTopic: "events that are to be dead letters stay unsettled",
		cfg.ParkingTopic():  "events of parked keys stay unsettled",
	}
	if modeOf(d.cfg) != node.Gossip {
		lacks[d.cfg.ControlTopic()] = "no member starts"
	}
	if places, err := claimedBy(d.cfg); err == nil { // else claimsTopics tells
		for _, p := range places {
			lacks[p.Topic] = "no member starts"
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(lacks)) {
		if _, err := partitionsOfTopic(ctx, admin, pulsaradmin.TopicPath(topic)); pulsaradmin.IsNotFound(err) && !makesTopics(ctx, admin, topic, settings) {
			const check, says = "missing topic", "%s is not there, and the broker creates no topics: %s"
			advice := "pulsar-admin topics create " + topic
			if d.canDoWithout(topic) {
				d.warn(check, advice, says, topic, goesOn)
				continue
			}
			d.fail(check, advice, says, topic, lacks[topic])
		}
	}
}

// goesOn is what routers do that cannot use a topic of claims that are optional.
const goesOn = "routers start late, and without claims"

// canDoWithout reports whether a topic is one of claims, and these are optional.
func (d *doctor) canDoWithout(topic string) bool {
	places, err := claimedBy(d.cfg)
	return err == nil && modeOf(d.cfg) == node.Gossip && slices.ContainsFunc(places, func(p claim.Place) bool { return p.Topic == topic })
}

// missingSubscriptions checks that routers get their subscriptions, of logs the one that keeps their records.
func (d *doctor) missingSubscriptions(ctx context.Context, admin pulsaradmin.Client, settings map[string]string) {
	const anchor = "__anchor"
	cfg := d.cfg.Pulsar.Resolved()
	needs := map[string]string{
		cfg.RetryTopic: cfg.Subscription, cfg.DeadLetterTopic: cfg.DeadLetterSubscription, cfg.ParkingTopic(): cfg.DeadLetterSubscription,
	}
	var events []string
	for _, topic := range cfg.Topics {
		events = append(events, source.FullTopicName(topic))
		needs[source.FullTopicName(topic)] = cfg.Subscription
	}
	if cfg.Timers {
		needs[cfg.TimerTopic()] = cfg.Subscription
	}
	if modeOf(d.cfg) != node.Gossip {
		needs[d.cfg.ControlTopic()] = anchor
		if d.cfg.Acts.Enabled {
			needs[d.cfg.ActsTopic()] = anchor
		}
	}
	if places, err := claimedBy(d.cfg); err == nil { // else claimsTopics tells
		for _, p := range places {
			needs[p.Topic] = anchor
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(needs)) {
		path := pulsaradmin.TopicPath(topic)
		partitions, err := partitionsOfTopic(ctx, admin, path)
		var policy struct{ AllowAutoSubscriptionCreation *bool }
		if err := admin.Call(ctx, http.MethodGet, policiesOf(topic, err == nil)+"/autoSubscriptionCreation?applied=true", nil, &policy); err != nil || policy.AllowAutoSubscriptionCreation == nil {
			policy.AllowAutoSubscriptionCreation = new(settings["allowAutoSubscriptionCreation"] != "false")
		}
		if *policy.AllowAutoSubscriptionCreation {
			continue
		}
		call := path + "/stats"
		if partitions > 0 {
			call = path + "/partitioned-stats?perPartition=false"
		}
		var stats topicStats
		if err := admin.Call(ctx, http.MethodGet, call, nil, &stats); err != nil && !pulsaradmin.IsNotFound(err) {
			continue // what a role may not see is no fault; topic tells of it
		}
		if _, there := stats.Subscriptions[needs[topic]]; !there {
			from := "earliest"
			if slices.Contains(events, topic) && !cfg.FromEarliest {
				from = "latest"
			}
			const check, says = "missing subscription", "%s has no subscription %s, and the broker creates none: %s"
			advice := "pulsar-admin topics create-subscription -s " + needs[topic] + " -m " + from + " " + topic
			if d.canDoWithout(topic) {
				d.warn(check, advice, says, topic, needs[topic], goesOn)
				continue
			}
			d.fail(check, advice, says, topic, needs[topic], "routers cannot use the topic")
		}
	}
}
