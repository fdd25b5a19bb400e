package main

import (
	"slices"
	"strings"
	"time"
)

// regrouping is one setting in which a joining router differs from the group. The members must
// agree on it, so the joining router must name it and end.
type regrouping struct {
	name         string   // of the setting on which members agree
	ours, theirs string   // the value of the group and of the joining router
	flags        []string // that set it
}

// The group's own values: the router's defaults, or the group's settings.
var joinerSettings = []regrouping{
	{"key.from", "message_key", "property:user", []string{"--key.from=property:user"}},
	{"key.missing", "reject", "spread", []string{"--key.missing=spread"}},
	{"pulsar.subscription", subscription, "another", []string{"--pulsar.subscription=another"}},
	{"pulsar.dead_letter_topic", deadLetterTopic, "persistent://public/default/another-DLQ", []string{"--pulsar.dead_letter_topic=another-DLQ"}},
	{ // some topics may differ, but not all
		"pulsar.topics", eventsTopic, "persistent://public/default/another",
		[]string{"--pulsar.topics=another", "--pulsar.retry_topic=" + retryTopic, "--pulsar.dead_letter_topic=" + deadLetterTopic},
	},
	{"control_log.topic", controlTopic, "persistent://" + anotherNamespace + "/__ring-" + groupName, []string{"--control_log.namespace=" + anotherNamespace}},
	{"node.group", groupName, "another", []string{"--node.group=another", "--gossip.seeds="}},
	{"ownership.mode", "strict", "gossip", []string{"--ownership.mode=gossip"}},
	{"ring.load", "1.05", "1.5", []string{"--ring.load=1.5"}},
}

// The names that the group's topics for copies have by default.
const (
	retryTopic      = eventsTopic + "-" + subscription + "-RETRY"
	deadLetterTopic = eventsTopic + "-" + subscription + "-DLQ"
)

// anotherNamespace is a namespace of the broker without a control log.
const anotherNamespace = "public/another"

func regroupings() []string {
	names := make([]string, len(joinerSettings))
	for i, s := range joinerSettings {
		names[i] = s.name
	}
	return names
}

func regroupingOf(name string) regrouping {
	return joinerSettings[slices.IndexFunc(joinerSettings, func(s regrouping) bool { return s.name == name })]
}

// refusedCode is the exit code of a router that differs from its group.
const refusedCode = 5

// joiner is the outcome of starting a router with other settings.
type joiner struct {
	Setting string        `json:"setting"`
	Code    int           `json:"code"`    // its exit code, -1 if it had to be killed
	Took    time.Duration `json:"took_ns"` // until it ended
	Named   bool          `json:"named"`   // it named the setting and both values
	Lost    int           `json:"lost"`    // members that gave up their incarnation meanwhile
}

// refused reports whether the joining router ended by itself, named the setting, and disturbed no
// member.
func (n joiner) refused() bool { return n.Code == refusedCode && n.Named && n.Lost == 0 }

// names reports whether its output names the setting and both values.
func (s regrouping) names(said string) bool {
	return slices.ContainsFunc(strings.Split(said, "\n"), func(line string) bool {
		return strings.Contains(line, s.name) && strings.Contains(line, s.ours) && strings.Contains(line, s.theirs)
	})
}
