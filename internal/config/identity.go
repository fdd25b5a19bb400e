package config

import (
	"slices"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/source"
)

// ControlTopic returns the full name of the topic on which ownership is decided.
func (c Config) ControlTopic() string {
	return "persistent://" + c.ControlLog.Namespace + "/__ring-" + c.Node.Group
}

// ActsTopic returns the full name of the topic that has the acts of operators on single keys of the group.
func (c Config) ActsTopic() string {
	return "persistent://" + c.ControlLog.Namespace + "/__acts-" + c.Node.Group
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
// them would give one key to two applications (key.*, the control topic), read or settle each other's events
// (the subscription and the topics for copies, batch_index_acks), or undo each other's placement (ring.*).
//
// pulsar.topics is not among them: it may change in a rolling deploy. A topic is consumed once all members
// list it, so no application gets events of a topic that is not in its settings.
func (c Config) Identity() identity.Identity {
	c.Pulsar.Config = c.Pulsar.Resolved()
	settings := []identity.Setting{{Name: "control_log.topic", Value: c.ControlTopic()}}
	for _, f := range table(&c) {
		if f.Tag.Get("agree") == "true" {
			settings = append(settings, identity.Setting{Name: f.Key, Value: f.String()})
		}
	}
	return identity.Of(settings...)
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
