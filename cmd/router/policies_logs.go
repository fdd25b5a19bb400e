package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/source"
)

// rates checks that the broker does not hold back the records of the control topic.
func (d *doctor) rates(ctx context.Context, admin pulsaradmin.Client, path, topic string) {
	for _, name := range []string{"dispatchRate", "subscriptionDispatchRate", "publishRate"} {
		var rate struct {
			DispatchThrottlingRateInMsg, DispatchThrottlingRateInByte int64
			PublishThrottlingRateInMsg, PublishThrottlingRateInByte   int64
		}
		if err := admin.Call(ctx, http.MethodGet, path+"/"+name+"?applied=true", nil, &rate); err != nil {
			continue
		}
		messages, bytes := max(rate.DispatchThrottlingRateInMsg, rate.PublishThrottlingRateInMsg), max(rate.DispatchThrottlingRateInByte, rate.PublishThrottlingRateInByte)
		if messages > 0 || bytes > 0 {
			d.warn("control topic", "exempt "+topic+": each member sends several records a second, and reads those of all",
				"the policy %s limits it to %d records and %d bytes a second (0 or less: any): members whose records come late lose their leases, or never join", name, messages, bytes)
		}
	}
}

// controlTopic checks that the broker keeps every record for as long as members may need it.
func (d *doctor) controlTopic(ctx context.Context, admin pulsaradmin.Client) {
	topic := d.cfg.ControlTopic()
	there, usable := d.logTopic(ctx, admin, "control topic", topic)
	if !usable {
		return
	}
	path := policiesOf(topic, there)
	d.retention(ctx, admin, path)
	d.expiry(ctx, admin, path)
	d.rates(ctx, admin, path, topic)
}

// inactive checks that the broker does not delete topics while the group is stopped and has nothing left to read: it
// would delete the subscriptions with them.
func (d *doctor) inactive(ctx context.Context, admin pulsaradmin.Client, settings map[string]string) {
	const harmless = "delete_when_no_subscriptions"
	var affected []string
	for _, topic := range append([]string{d.cfg.ControlTopic()}, d.cfg.Pulsar.Topics...) {
		topic = source.FullTopicName(topic)
		_, err := admin.Partitions(ctx, topic)
		policy := struct {
			InactiveTopicDeleteMode string
			DeleteWhileInactive     bool
		}{settings["brokerDeleteInactiveTopicsMode"], settings["brokerDeleteInactiveTopicsEnabled"] == "true"}
		_ = admin.Call(ctx, http.MethodGet, policiesOf(topic, err == nil)+"/inactiveTopicPolicies?applied=true", nil, &policy) // else the broker's setting counts
		if policy.DeleteWhileInactive && policy.InactiveTopicDeleteMode != harmless {
			affected = append(affected, topic)
		}
	}
	if len(affected) > 0 {
		d.warn("inactive topics", "set the delete mode to "+harmless+" (brokerDeleteInactiveTopicsMode, or pulsar-admin namespaces set-inactive-topic-policies), or turn the deletion off",
			"the broker deletes topics whose consumers are gone (%s): the group would begin anew, and wait; and events that are published while it is stopped would have no subscription, and may be lost", strings.Join(affected, ", "))
	}
}

// logTopic checks that the records of a topic have one order. It reports whether the topic is there, and whether routers
// can use it, or create it.
func (d *doctor) logTopic(ctx context.Context, admin pulsaradmin.Client, check, topic string) (there, usable bool) {
	partitions, err := admin.Partitions(ctx, topic)
	switch {
	case pulsaradmin.IsNotFound(err):
		d.ok(check, "%s does not exist yet; the first router creates it, unless brokers may not create topics", topic)
		return false, true
	case err != nil:
		d.warn(check, "grant the router's role access", "%s: %v", topic, err)
		return false, false
	case partitions > 0:
		d.fail(check, "create it as a topic that is not partitioned; a broker that creates topics by itself needs allowAutoTopicCreationType=non-partitioned",
			"%s has %d partitions: its records would have no order", topic, partitions)
		return true, false
	}
	d.ok(check, "%s, not partitioned", topic)
	return true, true
}

// actsTopic checks that acts of operators reach all members, and stay until they end.
func (d *doctor) actsTopic(ctx context.Context, admin pulsaradmin.Client, settings map[string]string) {
	const check = "acts topic"
	topic := d.cfg.ActsTopic()
	if !d.cfg.Acts.Enabled || modeOf(d.cfg) == node.Gossip {
		d.ok(check, "no acts: acts.enabled is false, or ownership.mode is gossip")
		return
	}
	there, usable := d.logTopic(ctx, admin, check, topic)
	switch {
	case !usable:
	case !there && !makesTopics(ctx, admin, topic, settings):
		d.warn(check, "pulsar-admin topics create "+topic+", or set acts.enabled to false", "%s does not exist, and the broker creates no topics: router hold will not work", topic)
	default:
		if seconds, _ := d.ttl(ctx, admin, policiesOf(topic, there)); seconds > 0 {
			d.warn(check, "exempt it: pulsar-admin topics set-message-ttl "+topic+" -t 0",
				"records of %s expire after %d s: a router that starts later does not know older holds", topic, seconds)
		}
		if there {
			d.evicts(ctx, admin, check, pulsaradmin.TopicPath(topic), topic, "a router that starts later would not know older holds")
		}
	}
}

// claimsTopics checks that the broker keeps claims until they are released.
func (d *doctor) claimsTopics(ctx context.Context, admin pulsaradmin.Client) {
	const check = "claims topic"
	places, err := claimedBy(d.cfg)
	if err != nil {
		d.fail(check, "write pulsar.topics as persistent://TENANT/NAMESPACE/NAME", "%v", err)
		return
	}
	for _, p := range places {
		namespace := namespaceOf(p.Topic)
		there, usable := d.logTopic(ctx, admin, check, p.Topic)
		if !usable {
			continue
		}
		if there {
			d.claims = append(d.claims, p)
			d.evicts(ctx, admin, check, pulsaradmin.TopicPath(p.Topic), p.Topic, "a group would lose its subscription, and another might take it")
		}
		if seconds, _ := d.ttl(ctx, admin, policiesOf(p.Topic, there)); seconds > 0 {
			d.fail(check, "exempt it: pulsar-admin topics set-message-ttl "+p.Topic+" -t 0",
				"records of %s expire after %d s: a group that is stopped for longer loses its subscription", p.Topic, seconds)
		}
		var expiration *int
		if err := admin.Call(ctx, http.MethodGet, namespace+"/subscriptionExpirationTime", nil, &expiration); err == nil && expiration != nil && *expiration > 0 {
			d.fail(check, "remove it: pulsar-admin namespaces remove-subscription-expiration-time "+strings.TrimPrefix(namespace, "namespaces/"),
				"the namespace deletes subscriptions that are unused for %d minutes; without __anchor the broker deletes the records of %s", *expiration, p.Topic)
		}
	}
}

func (d *doctor) retention(ctx context.Context, admin pulsaradmin.Client, path string) {
	var r *struct{ RetentionTimeInMinutes, RetentionSizeInMB int }
	if !d.policy(ctx, admin, path, "retention", &r) {
		return
	}
	const advice = "set the retention of the control topic's namespace to a day and no limit of size: pulsar-admin namespaces set-retention NAMESPACE --time 24h --size -1"
	need := d.cfg.Ownership.AnchorBehind
	switch {
	case r == nil || r.RetentionTimeInMinutes == 0 || r.RetentionSizeInMB == 0:
		d.warn("retention", advice, "none: only the anchor subscription keeps the records that members may still need")
	case r.RetentionTimeInMinutes > 0 && float64(r.RetentionTimeInMinutes) < need.Minutes():
		d.warn("retention", advice, "%d minutes, less than ownership.anchor_behind (%v)", r.RetentionTimeInMinutes, need)
	default:
		d.ok("retention", "%d minutes, %d MB (-1: no limit)", r.RetentionTimeInMinutes, r.RetentionSizeInMB)
	}
}

// expiry checks that records are deleted only when the anchor has moved past them.
func (d *doctor) expiry(ctx context.Context, admin pulsaradmin.Client, path string) {
	switch seconds, known := d.ttl(ctx, admin, path); {
	case seconds > 0:
		d.fail("message TTL", "remove the TTL of the control topic's namespace: pulsar-admin namespaces remove-message-ttl NAMESPACE",
			"records expire after %d s: a member that was away could not follow the log", seconds)
	case known:
		d.ok("message TTL", "none")
	}
	d.evicts(ctx, admin, "backlog quota", path, d.cfg.ControlTopic(), "a member that was away could not follow the log")
	var compaction *int64
	if d.policy(ctx, admin, path, "compactionThreshold", &compaction) {
		if compaction != nil && *compaction > 0 {
			d.warn("compaction", "turn compaction of the control topic off: it costs the broker, and its result is never read", "after %d bytes", *compaction)
		} else {
			d.ok("compaction", "off")
		}
	}
}
