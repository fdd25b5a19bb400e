package source

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/broker/topicname"
)

// reader reads topic partitions, and acks their entries. The source's reader calls receive, its acker ack; several goroutines
// may subscribe at once. Close makes all other calls return.
type reader interface {
	// partitions returns the names of a topic's partitions; that of the topic if it has none.
	partitions(ctx context.Context, topic string) ([]string, error)
	// subscribe begins to read a topic partition. Its error is wrapped by the caller.
	subscribe(ctx context.Context, s subscription) error
	// fetchAhead changes how many events are fetched ahead of a topic partition, if it is read. It does not block.
	fetchAhead(name string, queue int)
	// receive is as in connection. It also returns errLost for each consumer that has ended by itself, and continues with the others.
	receive(ctx context.Context, batch []Receipt) ([]Receipt, error)
	// ack, bound and ends are as in connection.
	ack(a Ack) error
	bound(unacked int)
	ends(ctx context.Context) ([]End, error)
	close()
}

// subscription tells a reader which topic partition to read, and how.
type subscription struct {
	topic    string // full name with the partition
	earliest bool   // a new subscription begins with the oldest entry
	queue    int    // events that are fetched ahead
}

// origin is a topic partition that events come from.
type origin struct {
	number    int32  // see Receipt.Origin
	base      string // full name of the topic, without the partition
	partition int32  // -1 when the topic is not partitioned
	copies    bool   // it is of the retry or timer topic
	schema    string // see version
}

// origins are the origins that a connection has met, by the name of the topic partition.
type origins map[string]*origin

// of returns the origin of a topic partition. A later subscription to the same one gets the same origin.
func (all origins) of(topic string, cfg *Config) *origin {
	if o := all[topic]; o != nil {
		return o
	}
	base, partition := topicname.Split(topic)
	o := &origin{number: int32(len(all)), base: base, partition: partition, copies: isOf(topic, cfg.RetryTopic) || isOf(topic, cfg.TimerTopic())}
	all[topic] = o
	return o
}

// version returns a schema version as text. Most events have that of the event before, whose text it returns again, so
// that one string serves them all.
func (o *origin) version(of []byte) string {
	if len(of) == 0 {
		return ""
	}
	if o.schema != string(of) {
		o.schema = string(of)
	}
	return o.schema
}

// hint explains an answer of the broker that is only one word.
func hint(err error) string {
	switch said := err.Error(); {
	case strings.Contains(said, "TopicNotFound"): // of a namespace that does not exist, too
		return "; is there such a tenant and namespace, and may topics be created in it?"
	case strings.Contains(said, "AuthorizationError"):
		return "; grant the router's role produce and consume on the topic, or on its namespace if the topic is not there"
	case strings.Contains(said, "TopicTerminated"):
		return "; nothing can be written to a terminated topic: when all of its messages are handled, delete it (pulsar-admin topics delete --force), and the router begins it anew"
	}
	return ""
}

// subscribeError identifies an error by the broker's text. The broker's code for it,
// ConsumerBusy, is not available as a value from pulsar-client-go.
func subscribeError(topic, subscription string, err error) error {
	if strings.Contains(err.Error(), "max consumers") { // ConsumerBusy as well; it passes when another member stops
		return fmt.Errorf("source: subscription %q on %s: the broker permits no more consumers; raise maxConsumersPerSubscription and maxConsumersPerTopic, of the topic, its namespace and the broker, "+
			"to at least the number of routers (%w)", subscription, topic, err)
	}
	if pulsarread.IsTaken(err) {
		return fmt.Errorf("source: subscription %q on %s: %w; give the router a subscription of its own, or stop those consumers first (%w)",
			subscription, topic, ErrSubscriptionType, err)
	}
	return fmt.Errorf("source: subscribe %q on %s: %w%s", subscription, topic, err, hint(err))
}

// errLost says that a topic partition is no longer read. It wraps an [entries.LostError]. Nothing else shows it: the broker
// has no consumer to report, and to the source the topic looks idle.
var errLost = errors.New("the reader has given up on a consumer")
