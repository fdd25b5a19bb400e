package source

import (
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/setting"
	"github.com/ringfence/router/internal/broker/topicname"
)

// Config selects what a source reads, and bounds its open events.
type Config struct {
	// Topics are the topics to read, at least one; partitioned or not. Short names are completed
	// as in Pulsar.
	Topics []string `needed:"true"`
	// Subscription is the name of the SHARED subscription. It is created if it does not exist.
	Subscription string `needed:"true" agree:"true"`
	// FromEarliest makes a new subscription begin with the oldest message of the topic;
	// otherwise it begins with the next one.
	FromEarliest bool
	// ConsumerName names the consumer in the broker's statistics; "": the broker chooses a name.
	ConsumerName string

	// RetryTopic receives events whose retry delay is too long for their owner to hold them,
	// and is read as well; "": TOPIC-SUBSCRIPTION-RETRY, after the alphabetically first topic.
	RetryTopic string `agree:"true"`
	// DeadLetterTopic receives events that are not retried; "": TOPIC-SUBSCRIPTION-DLQ, after the
	// alphabetically first topic.
	DeadLetterTopic string `agree:"true"`
	// Timers makes this router read the timer topic, which is named after the retry topic, and lets its applications set timers, send events and
	// declare schedules; otherwise these are refused. If the topic cannot be read, events are not affected.
	Timers bool
	// DeadLetterSubscription is the name of a subscription that is created on the dead letter
	// topic before the first copy, because a topic without a subscription deletes messages at
	// once, and checked once a minute while copies are sent.
	DeadLetterSubscription string `needed:"true"`

	// DiscoverEvery is the interval at which the broker is asked for added topic partitions. A
	// new one is read from its beginning.
	DiscoverEvery time.Duration `min:"100ms"`

	// BatchMax is the number of events that are handed on at once. Entries are handed on whole, so the last one may
	// exceed it.
	BatchMax int `min:"1"`
	// ReceiverQueueMax is the number of events that are prefetched, over all partitions of a topic
	// together.
	ReceiverQueueMax int `min:"1"`
	// ChunkedBytesMax is the size of the incomplete chunked messages that are held for a topic partition. For lack of room
	// the messages that began last return to the broker; the chunks of a message that is larger on its own go to the dead letter topic.
	// A retry of a large event that came compressed is such a message: set no less than peer.frame_max.
	ChunkedBytesMax int `unit:"bytes" min:"5MiB"`
	// PayloadBytesMax is the size of the largest entry or chunked message, after decompression; a larger one goes to the dead letter
	// topic as a broken entry. Producers compare the size before decompression with the broker's limit.
	PayloadBytesMax int `unit:"bytes" min:"5MiB"`
	// BrokerConnectionsMax is the number of connections to a broker over which its topic partitions are spread evenly. One goroutine
	// reads and decompresses the entries of a connection, which keeps the rest of about four cores busy. Each connection counts in
	// the memory bound.
	BrokerConnectionsMax int `min:"1" max:"64"`
	// ChunkedTimeout is the time after which the chunks of a message with missing chunks return to the broker, and the second time go to the
	// dead letter topic as a broken entry. Chunks wait at the broker while reading stops, so it must be longer than any pause of the
	// application.
	ChunkedTimeout time.Duration `above:"0"`
	// EventBytesTypical is the average size of an event. Events are prefetched by number, not by
	// bytes, so this bounds nothing; but the memory bound is computed with it, and a warning is
	// logged if events are larger.
	EventBytesTypical int `unit:"bytes" min:"1"`
	// UnsettledMax is the number of open events at which reading stops; the last batch may exceed it.
	UnsettledMax int `min:"1"`
	// UnsettledBytesMax is the number of bytes of open entries at which reading stops.
	UnsettledBytesMax int `unit:"bytes" min:"1"`
	// Counting is the way in which the broker counts unacked events. CountEvents needs
	// acknowledgmentAtBatchIndexLevelEnabled at the broker, and the same value at
	// all members: a member with CountEntries cannot finish an entry of which
	// another one has acked single events.
	Counting Counting `from:"pulsar.batch_index_acks"`
	// Properties are set on the subscription if this source creates it. Brokers do not enforce them: they
	// tell operators, and `router doctor`, which group uses it.
	Properties map[string]string `from:"node.group"`
	// AdminURL is the root of the broker's admin API, from which the router reads the two limits
	// below and checks pulsar.batch_index_acks, and a replay of dead letters the subscriptions of its topics; "" skips all.
	AdminURL string
	// UnackedConsumerMax is the broker's maxUnackedMessagesPerConsumer: the most unacked events
	// of a topic partition that a consumer may have. Set a large number if there is no limit.
	UnackedConsumerMax int `min:"2"`
	// UnackedSubscriptionMax is the broker's maxUnackedMessagesPerSubscription: the most unacked
	// events of a topic partition that all members together may have.
	UnackedSubscriptionMax int `min:"2"`
	// Spill configures the spilling that keeps these limits from being reached.
	Spill Spill

	// CopyKeysFile names a file with keys in base64, of 16 bytes or more, one per line, which
	// is reloaded when it changes. Copies are signed with the first key, and a message in the
	// retry topic counts as a copy only if one of the keys has signed it; otherwise it is an
	// event of its own. All members need the same keys. "": copies are not signed.
	CopyKeysFile string
	// CopyUnsigned accepts unsigned copies although CopyKeysFile is set: use it while keys are
	// introduced, as long as earlier copies are waiting.
	CopyUnsigned bool

	// CopiesMax is the greatest number of unconfirmed copies to one topic; they are fewer if
	// they reach 32 MiB together. The retry topic and the dead letter topic do not wait for each
	// other.
	CopiesMax int `min:"1" max:"100000"`
	// CopyTimeout is the time after which a copy that the broker did not confirm counts as failed.
	CopyTimeout time.Duration `min:"100ms"`
	// CopyBackoffMin and CopyBackoffMax bound the wait before failed copies are
	// sent again; it doubles from one to the other.
	CopyBackoffMin time.Duration `min:"10ms"`
	CopyBackoffMax time.Duration `above:"0"`
	// CloseTimeout is how long the last acks may take when the router stops reading.
	CloseTimeout time.Duration `above:"0" max:"4s"`
}

// DefaultConfig returns all but Topics and Subscription.
func DefaultConfig() Config {
	return Config{
		FromEarliest:           true,
		Timers:                 true,
		DeadLetterSubscription: "ringfence",
		DiscoverEvery:          30 * time.Second,
		BatchMax:               256,
		ReceiverQueueMax:       5000,
		ChunkedBytesMax:        32 << 20,
		PayloadBytesMax:        64 << 20,
		BrokerConnectionsMax:   1,
		ChunkedTimeout:         time.Hour,
		EventBytesTypical:      4 << 10,
		UnsettledMax:           20_000,
		UnsettledBytesMax:      256 << 20,
		Counting:               CountEntries,
		UnackedConsumerMax:     50_000,
		UnackedSubscriptionMax: 200_000,
		Spill:                  DefaultSpill(),
		CopiesMax:              256,
		CopyTimeout:            30 * time.Second,
		CopyBackoffMin:         100 * time.Millisecond,
		CopyBackoffMax:         10 * time.Second,
		CloseTimeout:           2 * time.Second,
	}
}

// Validate reports every field that is out of the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }

// bounds returns the ledger's spill bounds in a group of that many members. Members share
// the allowance of a subscription equally, since their needs are not known.
//
// A broker starts a consumer that it has stopped with the ack that brings it to half of the allowance, and Pulsar 3.0 with
// the one after that. So spilling does not end at half, but below.
func (c Config) bounds(members int) Bounds {
	b := Bounds{Spill: c.Spill, UnsettledMax: c.UnsettledMax, BytesMax: c.UnsettledBytesMax}
	b.PinnedMax = max(1, min(b.PinnedMax, c.allowance(members)*9/20))
	return b
}

// allowance returns the number of unacked events of one topic partition that the broker
// allows this node.
func (c Config) allowance(members int) int {
	return min(c.UnackedConsumerMax, c.UnackedSubscriptionMax/max(1, members))
}

// unackedMax returns the number of unacked events of one topic partition that this node takes of its allowance, those in the reader's queue
// included, after the share has doubled ramp times. The rest is a margin for a broker that sends some entries beyond its permits.
func (c Config) unackedMax(members, ramp int) int {
	return max(1, c.allowance(members)/10*9>>(rampSteps-ramp))
}

// A source begins with an eighth of its share, which doubles every second. When a group grows, its earlier members
// still hold their former, larger shares of the broker's allowance until they have settled enough. If a new member
// took its whole share at once, the broker could stop the whole subscription.
const (
	rampSteps = 3
	rampEvery = time.Second
)

// Resolved returns c with full topic names, and with the topics for copies that are used.
func (c Config) Resolved() Config {
	topics := make([]string, len(c.Topics))
	for i, topic := range c.Topics {
		topics[i] = FullTopicName(topic)
	}
	c.Topics = topics
	if c.RetryTopic == "" {
		c.RetryTopic = RetryTopicName(topics, c.Subscription)
	}
	if c.DeadLetterTopic == "" {
		c.DeadLetterTopic = DeadLetterTopicName(topics, c.Subscription)
	}
	c.RetryTopic, c.DeadLetterTopic = FullTopicName(c.RetryTopic), FullTopicName(c.DeadLetterTopic)
	return c
}

// RetryTopicName returns the default retry topic, as Pulsar's clients name it: one
// for all topics, called after the first by name, so that their order in the
// configuration of a member does not matter. topics holds at least one name.
func RetryTopicName(topics []string, subscription string) string {
	return copyTopicName(topics, subscription) + "-RETRY"
}

// DeadLetterTopicName returns the default dead letter topic, see [RetryTopicName].
func DeadLetterTopicName(topics []string, subscription string) string {
	return copyTopicName(topics, subscription) + "-DLQ"
}

// ParkingTopic returns the topic of parked events. It is named after the dead letter topic, so that all members with
// the same dead letter topic use the same one.
func (c Config) ParkingTopic() string {
	letters := c.Resolved().DeadLetterTopic
	return strings.TrimSuffix(letters, "-DLQ") + "-PARKED"
}

// TimerTopic returns the topic of events that wait for their time. It is named after the retry topic, so that all
// members with the same retry topic use the same one.
func (c Config) TimerTopic() string {
	return strings.TrimSuffix(c.Resolved().RetryTopic, "-RETRY") + "-TIMER"
}

// all returns the topics that a source reads. c is a resolved configuration.
func (c Config) all() []string {
	topics := append([]string{c.RetryTopic}, c.Topics...)
	if c.Timers {
		topics = append(topics, c.TimerTopic())
	}
	return topics
}

func copyTopicName(topics []string, subscription string) string {
	base, _ := topicname.Split(FullTopicName(slices.MinFunc(topics, func(a, b string) int {
		return strings.Compare(FullTopicName(a), FullTopicName(b))
	})))
	return base + "-" + subscription
}

// FullTopicName completes a topic name as Pulsar does it: "orders" is
// persistent://public/default/orders, "a/b/orders" is persistent://a/b/orders.
func FullTopicName(topic string) string {
	switch {
	case strings.Contains(topic, "://"):
		return topic
	case strings.Contains(topic, "/"):
		return "persistent://" + topic
	default:
		return "persistent://public/default/" + topic
	}
}
