package config

import (
	"slices"
	"strconv"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/source"
)

// ControlTopic returns the full name of the topic on which ownership is decided.
func (c Config) ControlTopic() string {
	return "persistent://" + c.ControlLog.Namespace + "/__ring-" + c.Node.Group
}

// The properties of a subscription that mirror its claim (ADR 0029).
const (
	PropertyGroup        = "ringfence-group"
	PropertyControlTopic = "ringfence-control-topic"
)

func (c Config) subscriptionProperties() map[string]string {
	properties := map[string]string{PropertyGroup: c.Node.Group}
	if c.Ownership.Mode == ModeStrict {
		properties[PropertyControlTopic] = c.ControlTopic()
	}
	return properties
}

// Identity returns the settings on which all members of a group must agree. Members that differ in one of
// them would give one key to two applications (key.*, the control topic), read or settle the events of
// others (the subscription and the topics for copies, batch_index_acks), or undo each other's placement (ring.*).
//
// pulsar.topics is none of them: it may change in a rolling deploy. A topic is consumed once all members
// list it, so no application is handed events that its settings do not know.
func (c Config) Identity() identity.Identity {
	source := c.Pulsar.Resolved()
	return identity.Of(
		identity.Setting{Name: "node.group", Value: c.Node.Group},
		identity.Setting{Name: "control_log.topic", Value: c.ControlTopic()},
		identity.Setting{Name: "ownership.mode", Value: c.Ownership.Mode},
		identity.Setting{Name: "pulsar.subscription", Value: source.Subscription},
		identity.Setting{Name: "pulsar.retry_topic", Value: source.RetryTopic},
		identity.Setting{Name: "pulsar.dead_letter_topic", Value: source.DeadLetterTopic},
		identity.Setting{Name: "pulsar.batch_index_acks", Value: strconv.FormatBool(c.Pulsar.BatchIndexAcks)},
		identity.Setting{Name: "key.from", Value: c.Key.From},
		identity.Setting{Name: "key.missing", Value: c.Key.Missing},
		identity.Setting{Name: "ring.virtual_nodes", Value: strconv.Itoa(c.Ring.VirtualNodes)},
		identity.Setting{Name: "ring.load", Value: strconv.FormatFloat(c.Ring.Load, 'g', -1, 64)},
	)
}

// Topics returns the full names of the topics to consume, ascending and each once.
func (c Config) Topics() []string {
	topics := make([]string, 0, len(c.Pulsar.Topics))
	for _, t := range c.Pulsar.Topics {
		topics = append(topics, source.FullTopicName(t))
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}
