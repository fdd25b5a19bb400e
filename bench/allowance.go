package main

import (
	"context"

	"github.com/ringfence/router/internal/broker/topicname"
)

// allowance is a subscription's use of the broker's limit of unacked events, on one topic
// partition.
type allowance struct {
	Consumer     int // the maximum over all consumers
	Subscription int // of all consumers
	Blocked      bool
}

// max returns the maximum of both, field by field.
func (a allowance) max(b allowance) allowance {
	return allowance{max(a.Consumer, b.Consumer), max(a.Subscription, b.Subscription), a.Blocked || b.Blocked}
}

// allowanceOf asks for a topic, or for all its partitions, of which the worst counts.
func (a admin) allowanceOf(ctx context.Context, topic string, partitions int) (worst allowance, err error) {
	for _, name := range partitionNames(topic, partitions) {
		var stats struct {
			Subscriptions map[string]struct {
				Unacked   int  `json:"unackedMessages"`
				Blocked   bool `json:"blockedSubscriptionOnUnackedMsgs"`
				Consumers []struct {
					Unacked int  `json:"unackedMessages"`
					Blocked bool `json:"blockedConsumerOnUnackedMsgs"`
				} `json:"consumers"`
			} `json:"subscriptions"`
		}
		if err := a.get(ctx, ownTopics+"/"+name+"/stats", &stats); err != nil {
			return worst, err
		}
		s := stats.Subscriptions[subscription]
		worst = worst.max(allowance{Subscription: s.Unacked, Blocked: s.Blocked})
		for _, c := range s.Consumers {
			worst = worst.max(allowance{Consumer: c.Unacked, Blocked: c.Blocked})
		}
	}
	return worst, nil
}

// partitionNames are the local names of a topic's partitions, or of the topic if it
// has none.
func partitionNames(topic string, partitions int) []string {
	if partitions == 0 {
		return []string{localName(topic)}
	}
	names := make([]string, partitions)
	for i := range names {
		names[i] = topicname.Partition(localName(topic), i)
	}
	return names
}

// acksSingleEvents reports whether the broker counts acks of single events in a batch.
func (a admin) acksSingleEvents(ctx context.Context) (bool, error) {
	settings := map[string]any{}
	if err := a.get(ctx, "brokers/configuration/runtime", &settings); err != nil {
		return false, err
	}
	return settings["acknowledgmentAtBatchIndexLevelEnabled"] == "true", nil
}
