package pulsaradmin

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/broker/topicname"
)

// atOnce is the number of calls that [Client.Subscriptions] has under way at once.
const atOnce = 8

// Subscriptions returns the names of the durable subscriptions of each topic partition of a topic, from its full name: the others, those of readers, hold nothing.
// A topic or a topic partition that is not there has none. The broker's own list of a topic's subscriptions has those of readers, and those that any partition has.
func (c Client) Subscriptions(ctx context.Context, topic string) (map[string][]string, error) {
	partitions, err := c.Partitions(ctx, topic)
	if err != nil && !IsNotFound(err) {
		return nil, err
	}
	topics := []string{topic}
	if partitions > 0 {
		topics = make([]string, partitions)
		for i := range topics {
			topics[i] = topicname.Partition(topic, i)
		}
	}
	names := make([][]string, len(topics))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, one := range topics {
		group.Go(func() error {
			var stats struct {
				Subscriptions map[string]struct{ IsDurable, Durable *bool } // by version; nil: it does not tell
			}
			if err := c.Call(ctx, http.MethodGet, TopicPath(one)+"/stats?subscriptionBacklogSize=false", nil, &stats); err != nil && !IsNotFound(err) {
				return err
			}
			for name, s := range stats.Subscriptions {
				if durable := cmp.Or(s.IsDurable, s.Durable); durable == nil || *durable {
					names[i] = append(names[i], name)
				}
			}
			slices.Sort(names[i])
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	all := make(map[string][]string, len(topics))
	for i, one := range topics {
		all[one] = names[i]
	}
	return all, nil
}
