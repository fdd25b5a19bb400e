package claim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/broker/topicname"
)

// topicName is the local name of the claims topic of a namespace.
const topicName = "__ringfence-claims"

// Place is one claims topic, and this group's resources there.
type Place struct {
	Topic     string   // persistent://tenant/namespace/__ringfence-claims
	Resources []string // ascending, each once
}

// Subscription names the subscription on a topic as a resource. The partitions of a topic are
// one resource with the topic: a router that consumes only one of them still shares the
// subscription with routers that consume all.
func Subscription(topic, name string) string {
	whole, _ := topicname.Split(topic)
	return "subscription " + whole + " " + name
}

// Control names a control topic as a resource.
func Control(topic string) string { return "control " + topic }

// Places returns the claims topics of a group in ascending order, with the group's resources in
// each: the subscription on each topic, and the control topic unless it is empty. Names of
// topics are full.
func Places(topics []string, subscription, control string) ([]Place, error) {
	claims := map[string][]string{}
	add := func(topic, resource string) error {
		at, err := Topic(topic)
		if err != nil {
			return err
		}
		if !slices.Contains(claims[at], resource) {
			claims[at] = append(claims[at], resource)
		}
		return nil
	}
	for _, topic := range topics {
		if err := add(topic, Subscription(topic, subscription)); err != nil {
			return nil, err
		}
	}
	if control != "" {
		if err := add(control, Control(control)); err != nil {
			return nil, err
		}
	}
	var places []Place
	for _, topic := range slices.Sorted(maps.Keys(claims)) {
		places = append(places, Place{Topic: topic, Resources: slices.Sorted(slices.Values(claims[topic]))})
	}
	return places, nil
}

// Topic returns the claims topic of the namespace of a topic.
func Topic(topic string) (string, error) {
	_, path, ok := strings.Cut(topic, "://")
	if parts := strings.Split(path, "/"); !ok || len(parts) != 3 || slices.Contains(parts, "") {
		return "", fmt.Errorf("claim: topic %q, want persistent://TENANT/NAMESPACE/NAME", topic)
	}
	return "persistent://" + path[:strings.LastIndex(path, "/")+1] + topicName, nil
}
