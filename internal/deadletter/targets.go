package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// subscriptionsMax bounds the wait for an answer about a topic's subscriptions. A network that drops requests to the
// admin API must not use up the time for reading letters.
const subscriptionsMax = 3 * time.Second

// targets asks once for each topic to which an act sends whether it has a subscription. Without one Pulsar deletes
// the messages of the topic.
type targets struct {
	broker *Broker
	silent bool              // a question was not answered in time, so no other is asked
	faults map[string]string // topic → which subscription is missing, "" if none is known to be
	unsure []string          // for people: why a topic's subscriptions are not known
}

func newTargets(b *Broker) *targets { return &targets{broker: b, faults: map[string]string{}} }

// fault returns which subscription a topic lacks, "" if each of its partitions has one, or if that is not known. A topic of the group needs the group's.
func (t *targets) fault(ctx context.Context, topic string) string {
	fault, asked := t.faults[topic]
	if asked || t.silent {
		return fault
	}
	cfg := &t.broker.cfg
	if cfg.Subscriptions == nil {
		if len(t.unsure) == 0 {
			t.unsure = append(t.unsure, "whether topics have subscriptions is not known without pulsar.admin_url: Pulsar deletes what others get")
		}
		return ""
	}
	asking, done := context.WithTimeout(ctx, subscriptionsMax)
	held, err := cfg.Subscriptions(asking, topic)
	done()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		t.silent = true
		t.unsure = append(t.unsure, fmt.Sprintf("whether %s and further topics have subscriptions is not known: pulsar.admin_url does not answer within %v", topic, subscriptionsMax))
	case err != nil:
		t.unsure = append(t.unsure, fmt.Sprintf("whether %s has a subscription is not known: %v", topic, err))
	default:
		fault = cfg.lack(topic, held)
	}
	t.faults[topic] = fault
	return fault
}

// lack returns which subscription a topic lacks by those of its partitions, "" if none. What is sent to the topic may go to each of them.
func (c *Config) lack(topic string, held map[string][]string) string {
	ours := slices.Contains(c.Topics, topic)
	for _, partition := range slices.Sorted(maps.Keys(held)) {
		switch names := held[partition]; {
		case len(names) == 0:
			return partition + " has no subscription"
		case ours && !slices.Contains(names, c.Group):
			return fmt.Sprintf("%s has no subscription %s", partition, c.Group)
		}
	}
	return ""
}

// missing returns the faults that were found.
func (t *targets) missing() (all []string) {
	for _, fault := range t.faults {
		if fault != "" {
			all = append(all, fault)
		}
	}
	slices.Sort(all)
	return all
}
