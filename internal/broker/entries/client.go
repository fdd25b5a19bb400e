package entries

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/topicname"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Client holds the connections to the brokers of one cluster.
type Client struct {
	cfg     Config
	access  Access
	auth    *credentials
	metrics *Metrics
	log     *slog.Logger
	trouble *loglimit.Limit // of log lines about failing subscriptions
	seeds   *seeds
	now     func() clock.Instant // of waits for chunks; clock.Now, but for tests

	ids atomic.Uint64 // of requests and consumers

	ctx  context.Context //nolint:containedctx // of goroutines that outlive the calls which start them
	stop context.CancelFunc
	work sync.WaitGroup

	mu        sync.Mutex // guards the fields below
	closed    bool
	conns     map[slot]*dialing
	shares    map[slot]int // number of topic partitions
	consumers map[*Consumer]struct{}
	topics    map[string]*known // by the name without the partition
}

// known holds a client's data about a topic.
type known struct {
	partitions int    // in the cluster of the client's URL, by its newest answer
	moved      *seeds // of the cluster that the topic has moved to; nil: it has not
}

// troubleEvery is the interval of log lines about failing subscriptions: all topic partitions of a broker fail with it.
const troubleEvery = 10 * time.Second

// New returns a client. It connects on the first request.
func New(cfg Config, access Access, metrics *Metrics, log *slog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("entries: %w", err)
	}
	service, err := parseService(cfg.URL)
	if err != nil {
		return nil, err
	}
	if access.Dial == nil {
		access.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	c := &Client{
		cfg: cfg, access: access, metrics: metrics, log: log, seeds: newSeeds(service), now: clock.Now,
		trouble: loglimit.New(log, "reader_trouble", troubleEvery, metrics.lines),
		auth:    newCredentials(access.Auth, cfg.ConnectTimeout),
		conns:   make(map[slot]*dialing), shares: make(map[slot]int), consumers: make(map[*Consumer]struct{}),
		topics: make(map[string]*known),
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c, nil
}

// retry repeats attempt until it succeeds, fails permanently, or OperationTimeout has passed.
func (c *Client) retry(ctx context.Context, attempt func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.OperationTimeout, errNoAnswer)
	defer cancel()
	delays := backoff.Backoff{Min: c.cfg.BackoffMin, Max: c.cfg.BackoffMax}
	var last error
	for {
		err := attempt(ctx)
		switch {
		case err == nil || permanent(err):
			return err
		case ctx.Err() != nil && last != nil:
			return fmt.Errorf("%w (earlier: %w)", err, last)
		}
		last = err
		if backoff.Sleep(ctx, c.jitter(delays.Next())) != nil {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// jitter spreads the retries of consumers that lost their broker together.
func (c *Client) jitter(d time.Duration) time.Duration {
	return backoff.Jitter(d, rand.Uint64()) //nolint:forbidigo,gosec // only the delay depends on it
}

// Close closes the consumers, which send their last acks, and all connections. It returns when all goroutines of the client have ended.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	consumers := make([]*Consumer, 0, len(c.consumers))
	for consumer := range c.consumers {
		consumers = append(consumers, consumer)
	}
	c.mu.Unlock()
	for _, consumer := range consumers {
		consumer.stop() // all at once
	}
	for _, consumer := range consumers {
		consumer.Close()
	}
	c.stop()
	c.endAll()
	c.work.Wait()
	if err := c.auth.close(); err != nil {
		c.log.Debug("authentication provider not closed", "error", err)
	}
}

// partitionsMax bounds the topic partitions of a topic.
const partitionsMax = 100_000

// Partitions returns the names of the topic's partitions, or the name of the topic if it has none. It retries temporary failures until the
// OperationTimeout. Of a topic that has moved to another cluster, they are those there, and those that were left behind.
func (c *Client) Partitions(ctx context.Context, topic string) ([]string, error) {
	n, before := 0, c.topic(topic)
	from := before.moved
	if from == nil {
		from = c.seeds
	}
	err := c.retry(ctx, func(ctx context.Context) (err error) {
		n, err = c.partitionsOf(ctx, from, topic)
		return err
	})
	if err != nil {
		return nil, err
	}
	left := n
	if from != c.seeds {
		once, cancel := context.WithTimeoutCause(ctx, c.cfg.OperationTimeout, errNoAnswer)
		defer cancel()
		if left, err = c.partitionsOf(once, c.seeds, topic); err != nil {
			left = before.partitions // that cluster may have ended
		}
		n = max(n, left)
	}
	c.learn(topic, func(k *known) { k.partitions = left })
	if n == 0 {
		return []string{topic}, nil
	}
	names := make([]string, n)
	for i := range names {
		names[i] = topicname.Partition(topic, i)
	}
	return names, nil
}

// topic returns what is known of a topic.
func (c *Client) topic(name string) known {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.topics[name]; k != nil {
		return *k
	}
	return known{}
}

// learn changes what is known of a topic.
func (c *Client) learn(name string, change func(*known)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.topics[name] == nil {
		c.topics[name] = new(known)
	}
	change(c.topics[name])
}

// seedsOf returns the cluster in which to look up a topic partition: the one to which its topic has moved, if the
// former cluster does not have that partition. For a partition that it has, the former cluster itself reports when
// everything has moved.
func (c *Client) seedsOf(topic string) *seeds {
	base, number := topicname.Split(topic)
	if k := c.topic(base); k.moved != nil && int(number) >= k.partitions {
		return k.moved
	}
	return c.seeds
}

func (c *Client) partitionsOf(ctx context.Context, from *seeds, topic string) (int, error) {
	k, err := from.connect(ctx, c)
	if err != nil {
		return 0, err
	}
	id, what := c.ids.Add(1), "partitions of "+topic
	answer, err := k.request(ctx, id, &pulsarpb.BaseCommand{
		Type:              pulsarpb.BaseCommand_PARTITIONED_METADATA.Enum(),
		PartitionMetadata: &pulsarpb.CommandPartitionedTopicMetadata{Topic: new(topic), RequestId: &id},
	})
	if err != nil {
		return 0, err
	}
	r := answer.GetPartitionMetadataResponse()
	if r == nil || r.GetResponse() == pulsarpb.CommandPartitionedTopicMetadataResponse_FAILED || r.Error != nil {
		return 0, k.refusal(what, answer)
	}
	if r.GetPartitions() > partitionsMax {
		return 0, fmt.Errorf("entries: %s: the broker %v reports %d, want at most %d", what, k.to, r.GetPartitions(), partitionsMax)
	}
	return int(r.GetPartitions()), nil
}

// refusal returns the error of an unsuccessful answer. It ends an unused connection to a broker that is not ready, because other brokers
// may be behind its address.
func (k *conn) refusal(request string, answer *pulsarpb.BaseCommand) error {
	e := &BrokerError{Request: request, Broker: k.to.String()}
	switch answer.GetType() {
	case pulsarpb.BaseCommand_ERROR:
		e.Code, e.Text = answer.GetError().GetError(), words(answer.GetError().GetMessage())
	case pulsarpb.BaseCommand_PARTITIONED_METADATA_RESPONSE:
		e.Code, e.Text = answer.GetPartitionMetadataResponse().GetError(), words(answer.GetPartitionMetadataResponse().GetMessage())
	case pulsarpb.BaseCommand_LOOKUP_RESPONSE:
		e.Code, e.Text = answer.GetLookupTopicResponse().GetError(), words(answer.GetLookupTopicResponse().GetMessage())
	default:
		return fmt.Errorf("entries: %s at %v: the answer is a %v", request, k.to, answer.GetType())
	}
	if e.Code == pulsarpb.ServerError_SERVICE_NOT_READY && k.spare() {
		k.end(errNotReady)
	}
	return e
}
