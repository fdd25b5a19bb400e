package main

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/source"
)

// uses tells how routers use a topic.
type uses struct {
	subscription string // of the routers, or the one that keeps what is in the topic
	from         string // where it begins
	lack         string // what does not work without the topic; "": another check reports that
	optional     bool   // routers go on without it

	// What policies may forbid.
	types                               []string // of subscriptions
	producers, consumers, subscriptions int      // of two members, as there are in a rolling update; 0: none of its own
	sent                                bool     // routers send to it while they run
}

// usesOf returns how the routers of the settings use their topics.
func usesOf(cfg config.Config) map[string]uses {
	const earliest, anchor = "earliest", "__anchor"
	pulsar := cfg.Pulsar.Resolved()
	read := uses{subscription: pulsar.Subscription, from: earliest, types: []string{"Shared"}, consumers: 2}
	copied, events := read, read
	copied.producers, copied.sent = 2, true
	if !pulsar.FromEarliest {
		events.from = "latest"
	}
	kept := uses{subscription: pulsar.DeadLetterSubscription, from: earliest, types: []string{"Exclusive"}, producers: 2, sent: true}
	logged := uses{ // consumers: the anchor, a reader of each, and one that looks for the end
		subscription: anchor, from: earliest, types: []string{"Exclusive", "Failover"}, producers: 2, consumers: 4, subscriptions: 4, sent: true,
	}
	without := func(u uses, lack string) uses {
		u.lack = lack
		return u
	}
	all := map[string]uses{
		pulsar.RetryTopic:      without(copied, "nothing is consumed"),
		pulsar.DeadLetterTopic: without(kept, "events that are to be dead letters stay unsettled"),
		pulsar.ParkingTopic():  without(kept, "events of parked keys stay unsettled"),
	}
	for _, topic := range pulsar.Topics {
		all[source.FullTopicName(topic)] = events
	}
	if pulsar.Timers {
		all[pulsar.TimerTopic()] = copied
	}
	gossip := modeOf(cfg) == node.Gossip
	if !gossip {
		all[cfg.ControlTopic()] = without(logged, "no member starts")
		if cfg.Acts.Enabled {
			all[cfg.ActsTopic()] = logged
		}
	}
	if places, err := claimedBy(cfg); err == nil { // else claimsTopics tells
		for _, p := range places {
			claims := without(logged, "no member starts")
			claims.optional = gossip
			all[p.Topic] = claims
		}
	}
	return all
}

// usable checks that routers can use their topics: that these and their subscriptions are there, or are created, and that no policy forbids the rest.
func (d *doctor) usable(ctx context.Context, admin pulsaradmin.Client, settings map[string]string) {
	all := usesOf(d.cfg)
	for _, topic := range slices.Sorted(maps.Keys(all)) {
		use := all[topic]
		partitions, err := admin.Partitions(ctx, topic)
		if use.lack != "" && pulsaradmin.IsNotFound(err) && !makesTopics(ctx, admin, topic, settings) {
			d.missingTopic(topic, use)
		}
		d.missingSubscription(ctx, admin, topic, partitions, err == nil, use, settings)
		d.forbidden(ctx, admin, topic, partitions, err == nil, use, settings)
	}
}

// forbidden checks that no policy forbids what routers do with a topic. What the broker does not tell counts as permitted.
func (d *doctor) forbidden(ctx context.Context, admin pulsaradmin.Client, topic string, partitions int, there bool, use uses, settings map[string]string) {
	if there {
		d.schema(ctx, admin, topic, use)
	}
	if there && use.sent {
		d.sizes(ctx, admin, topic, settings)
	}
	d.types(ctx, admin, topic, there, use, settings)
	for _, l := range []struct {
		ofTopic, ofNamespace string
		need                 int
	}{
		{"maxProducers", "maxProducersPerTopic", use.producers},
		{"maxConsumers", "maxConsumersPerTopic", use.consumers},
		{"maxConsumersPerSubscription", "maxConsumersPerSubscription", min(2, use.consumers)},
		{"maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", use.subscriptions},
	} {
		var most int
		if !policyOf(ctx, admin, topic, there, l.ofTopic, l.ofNamespace, &most) {
			most, _ = strconv.Atoi(settings[l.ofNamespace])
		}
		if most > 0 && most < l.need {
			d.fail("limits", "raise it for each router of the group: pulsar-admin namespaces, "+l.ofNamespace,
				"%s permits %d on %s (%s): two routers need %d, and the second one waits", l.ofNamespace, most, topic, partitioned(partitions), l.need)
		}
	}
}

// policyOf asks for the policy of a topic, or else of its namespace. It reports false if neither has it, or the broker does not tell.
func policyOf(ctx context.Context, admin pulsaradmin.Client, topic string, there bool, ofTopic, ofNamespace string, answer any) bool {
	paths := []string{namespaceOf(topic) + "/" + ofNamespace}
	if there {
		paths = append([]string{pulsaradmin.TopicPath(topic) + "/" + ofTopic}, paths...)
	}
	for _, path := range paths {
		var said json.RawMessage
		if err := admin.Call(ctx, http.MethodGet, path, nil, &said); err != nil || len(said) == 0 {
			continue
		}
		switch string(said) {
		case "null", "[]", "{}": // not set
			continue
		}
		return json.Unmarshal(said, answer) == nil
	}
	return false
}

// types checks that the broker permits the subscriptions that routers make.
func (d *doctor) types(ctx context.Context, admin pulsaradmin.Client, topic string, there bool, use uses, settings map[string]string) {
	var permitted []string
	if !policyOf(ctx, admin, topic, there, "subscriptionTypesEnabled", "subscriptionTypesEnabled", &permitted) {
		if permitted = strings.FieldsFunc(settings["subscriptionTypesEnabled"], func(c rune) bool { return strings.ContainsRune("[], ", c) }); len(permitted) == 0 {
			return
		}
	}
	for _, needed := range use.types {
		if !slices.Contains(permitted, needed) {
			d.fail("subscription types", "permit them: pulsar-admin topics set-subscription-types-enabled "+topic+" --types Exclusive,Shared,Failover",
				"%s permits no subscriptions of the type %s (only %s), which routers need", topic, needed, strings.Join(permitted, ", "))
		}
	}
}

// schema checks that a topic accepts messages without a schema, as all are that routers send.
func (d *doctor) schema(ctx context.Context, admin pulsaradmin.Client, topic string, use uses) {
	var enforced bool
	if err := admin.Call(ctx, http.MethodGet, pulsaradmin.TopicPath(topic)+"/schemaValidationEnforced?applied=true", nil, &enforced); err != nil || !enforced {
		return
	}
	if err := admin.Call(ctx, http.MethodGet, strings.Replace(topic, "persistent://", "schemas/", 1)+"/schema", nil, nil); err != nil {
		return // a topic without a schema accepts them
	}
	const advice = "pulsar-admin topics set-schema-validation-enforce --disable "
	if use.sent {
		d.fail("schema", advice+topic+", or delete its schema", "%s has a schema that is enforced, and what routers send has none: it is refused", topic)
	} else {
		d.warn("schema", advice+topic+" before router replay or router deadletters send", "%s has a schema that is enforced, and dead letters that are sent again have none: they are refused", topic)
	}
}

// sizes checks that a topic accepts what its broker accepts: copies are cut into chunks of that size.
func (d *doctor) sizes(ctx context.Context, admin pulsaradmin.Client, topic string, settings map[string]string) {
	var most int
	usual, err := strconv.Atoi(settings["maxMessageSize"])
	if err != nil {
		usual = 5 << 20
	}
	if policyOf(ctx, admin, topic, true, "maxMessageSize", "maxMessageSize", &most) && most > 0 && most < usual {
		d.fail("message size", "pulsar-admin topics remove-max-message-size "+topic,
			"%s refuses messages of more than %d bytes, and routers send up to the %d of the broker: a larger one would never be accepted", topic, most, usual)
	}
}
