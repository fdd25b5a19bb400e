package main

import (
	"context"
	"net/http"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// makesTopics reports whether the broker creates a topic at its first use, by the policy of its namespace or else by
// its own setting. If the broker does not tell, the answer is true.
func makesTopics(ctx context.Context, admin pulsaradmin.Client, topic string, settings map[string]string) bool {
	var policy struct{ AllowAutoTopicCreation *bool }
	if err := admin.Call(ctx, http.MethodGet, namespaceOf(topic)+"/autoTopicCreation", nil, &policy); err == nil && policy.AllowAutoTopicCreation != nil {
		return *policy.AllowAutoTopicCreation
	}
	return settings["allowAutoTopicCreation"] != "false"
}

// missingTopic tells of a topic that is not there, and that the broker does not create.
func (d *doctor) missingTopic(topic string, use uses) {
	const check, says = "missing topic", "%s does not exist, and the broker creates no topics: %s"
	advice := "pulsar-admin topics create " + topic
	if use.optional {
		d.warn(check, advice, says, topic, goesOn)
		return
	}
	d.fail(check, advice, says, topic, use.lack)
}

// goesOn describes the behaviour of routers that cannot use an optional claims topic.
const goesOn = "routers start late, and without claims"

// missingSubscription checks that routers get their subscription, of a log the one that keeps its records.
func (d *doctor) missingSubscription(ctx context.Context, admin pulsaradmin.Client, topic string, partitions int, there bool, use uses, settings map[string]string) {
	var policy struct{ AllowAutoSubscriptionCreation *bool }
	if err := admin.Call(ctx, http.MethodGet, policiesOf(topic, there)+"/autoSubscriptionCreation?applied=true", nil, &policy); err != nil || policy.AllowAutoSubscriptionCreation == nil {
		policy.AllowAutoSubscriptionCreation = new(settings["allowAutoSubscriptionCreation"] != "false")
	}
	if *policy.AllowAutoSubscriptionCreation {
		return
	}
	var stats topicStats
	if err := admin.Call(ctx, http.MethodGet, pulsaradmin.StatsPath(topic, partitions > 0, false), nil, &stats); err != nil && !pulsaradmin.IsNotFound(err) {
		return // what a role may not see is no fault; topic tells of it
	}
	if _, has := stats.Subscriptions[use.subscription]; has {
		return
	}
	const check, says = "missing subscription", "%s has no subscription %s, and the broker creates none: %s"
	advice := "pulsar-admin topics create-subscription -s " + use.subscription + " -m " + use.from + " " + topic
	if use.optional {
		d.warn(check, advice, says, topic, use.subscription, goesOn)
		return
	}
	d.fail(check, advice, says, topic, use.subscription, "routers cannot use the topic")
}
