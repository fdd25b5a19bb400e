package controllog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	pulsarbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/pulsarlog"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// anchorName is the durable subscription that keeps the broker from trimming the
// log under a slow reader. With readers alone it trims closed ledgers without an error.
const anchorName = "__anchor"

// recordBytesMax bounds a record after decompression, with room to spare: brokers take 5 MiB at most unless they are told otherwise. A longer one, of another
// program, is unreadable.
const recordBytesMax = 16 << 20

// PulsarConfig of a [Pulsar].
type PulsarConfig struct {
	Topic string // full name, persistent://tenant/namespace/name

	SendTimeout      time.Duration // a lease: a Beat is worth nothing later
	PendingMax       int           // records that the client holds unacknowledged
	ReconnectMax     time.Duration // the longest pause between two attempts to reach the broker
	OperationTimeout time.Duration // of one look-up, subscription or producer
	KeepAlive        time.Duration // a connection that is silent for twice this is dropped, a new one that is silent for this

	// DeniedIsFinal makes Run return [ErrDenied] if the broker refuses the topic before
	// the transport is ready. Otherwise it tries until an administrator has granted it.
	DeniedIsFinal bool
}

// DefaultPulsarConfig returns the protocol's defaults, without a topic.
func DefaultPulsarConfig() PulsarConfig {
	return PulsarConfig{
		SendTimeout:      2 * time.Second,
		PendingMax:       64,
		ReconnectMax:     500 * time.Millisecond,
		OperationTimeout: 5 * time.Second,
		KeepAlive:        5 * time.Second,
	}
}

// Validate reports every bad field, not just the first.
func (c PulsarConfig) Validate() error {
	var errs []error
	if !strings.HasPrefix(c.Topic, "persistent://") || strings.Count(c.Topic, "/") != 4 {
		errs = append(errs, fmt.Errorf("controllog: pulsar: Topic = %q, want persistent://tenant/namespace/name", c.Topic))
	}
	if c.PendingMax < 1 {
		errs = append(errs, fmt.Errorf("controllog: pulsar: PendingMax = %d, want >= 1", c.PendingMax))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"SendTimeout", c.SendTimeout},
		{"ReconnectMax", c.ReconnectMax},
		{"OperationTimeout", c.OperationTimeout},
		{"KeepAlive", c.KeepAlive},
	} {
		if f.d <= 0 {
			errs = append(errs, fmt.Errorf("controllog: pulsar: %s = %v, want > 0", f.name, f.d))
		}
	}
	return errors.Join(errs...)
}

// Pulsar is a control log on one non-partitioned persistent topic. It has its own clients: the
// backpressure of events must not delay Beats.
//
// Within one Tail the reader reconnects by itself, and misses and repeats nothing. It ends with [ErrReplaced]
// if the topic no longer has the record that it has read last.
type Pulsar struct {
	cfg     PulsarConfig
	options pulsar.ClientOptions
	reader  *entries.Client
	log     *slog.Logger

	ready  chan struct{} // closed when there is a producer
	broken chan error    // cap 1: why the producer is unusable

	client pulsar.Client // for producers; of Run

	mu       sync.Mutex
	producer *pulsarsend.Sender // nil: none at present
	why      error              // there is no producer; nil: not known
}

var _ Transport = (*Pulsar)(nil)

// NewPulsar returns a transport over a topic. options describe the connection to the broker
// (URL, authentication, TLS, metrics) for producers, and access is the same for readers; timing and logging are set here. It does no I/O. Run ends what it has made.
func NewPulsar(cfg PulsarConfig, options pulsar.ClientOptions, access entries.Access, log *slog.Logger) (*Pulsar, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log = log.With("component", "controllog")
	options.OperationTimeout = cfg.OperationTimeout
	options.ConnectionTimeout = cfg.OperationTimeout
	options.KeepAliveInterval = cfg.KeepAlive
	options.Logger = pulsarlog.New(slog.New(demote{log.Handler()}))
	reader, err := entries.New(cfg.reader(options.URL), access, entries.NewMetrics(prometheus.NewRegistry()), log)
	if err != nil {
		return nil, fmt.Errorf("controllog: %w", err)
	}
	return &Pulsar{cfg: cfg, options: options, reader: reader, log: log, ready: make(chan struct{}), broken: make(chan error, 1)}, nil
}

// reader returns the configuration of the client that reads. Its pauses are as short as those of producers.
func (c PulsarConfig) reader(url string) entries.Config {
	r := entries.DefaultConfig()
	r.URL = url
	r.ConnectTimeout, r.OperationTimeout, r.KeepAlive = c.OperationTimeout, c.OperationTimeout, c.KeepAlive
	r.BackoffMin, r.BackoffMax, r.ReconnectMax = backoffFirst, c.ReconnectMax, c.ReconnectMax
	r.PayloadBytesMax = recordBytesMax
	return r
}

// Run implements [Transport]. It returns [ErrPartitioned] if the topic has
// partitions. While no broker answers it may take an OperationTimeout or KeepAlive
// to end: the client's calls cannot be cancelled. It may be called once.
func (p *Pulsar) Run(ctx context.Context) error {
	defer p.reader.Close()
	client, err := pulsar.NewClient(p.options)
	if err != nil {
		return fmt.Errorf("controllog: pulsar client: %w", err)
	}
	p.client = client
	defer client.Close()
	if err := p.checkTopic(ctx); err != nil {
		return err
	}
	return p.keepProducer(ctx)
}

// checkTopic waits until the broker has said that the topic has no partitions.
func (p *Pulsar) checkTopic(ctx context.Context) error {
	return p.insist(ctx, "look-up", func() error {
		names, err := p.client.TopicPartitions(p.cfg.Topic)
		if err != nil {
			return err
		}
		if !slices.Equal(names, []string{p.cfg.Topic}) {
			return fatalError{fmt.Errorf("%w: %s has %d partitions", ErrPartitioned, p.cfg.Topic, len(names))}
		}
		return nil
	})
}

// keepProducer makes a producer, and a new one whenever the client has given up on it (it does
// when a topic is deleted). Only with the first one is the transport ready: a node with a
// reader can append.
func (p *Pulsar) keepProducer(ctx context.Context) error {
	ready := sync.OnceFunc(func() { close(p.ready) })
	for ctx.Err() == nil {
		var producer pulsar.Producer
		err := p.insist(ctx, "producer", func() error {
			made, err := p.client.CreateProducer(p.producerOptions())
			if err == nil { // else made is a nil pointer of the client's type, which is no nil
				producer = made
			}
			return err
		})
		if err != nil {
			return err
		}
		if producer == nil {
			break // ctx has ended
		}
		p.setProducer(pulsarsend.NewSender(producer))
		ready()
		select {
		case <-ctx.Done():
		case err := <-p.broken:
			p.log.Warn("producer lost", "topic", p.cfg.Topic, "error", err)
		}
		p.setProducer(nil)
		producer.Close()
	}
	return nil
}

// producerOptions: no batching, so that a record is an entry and positions have no
// holes; no name, since a name would make two members exclude each other.
func (p *Pulsar) producerOptions() pulsar.ProducerOptions {
	return pulsar.ProducerOptions{
		Topic:                   p.cfg.Topic,
		SendTimeout:             pulsarsend.NoTimeout, // see Append
		DisableBatching:         true,
		DisableBlockIfQueueFull: true,
		MaxPendingMessages:      p.cfg.PendingMax,
		BackOffPolicyFunc:       p.backoff,
	}
}

func (p *Pulsar) setProducer(producer *pulsarsend.Sender) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.producer = producer; producer != nil {
		p.why = nil
	}
}

func (p *Pulsar) noteWhy(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why = err
}

// Append implements [Transport]. Without a producer the record fails at once. A record that
// fails without an answer may still land, at most PendingMax of them when the broker is back:
// they are old by then, and every reader can tell.
func (p *Pulsar) Append(data []byte, done func(error)) {
	p.mu.Lock()
	producer, why := p.producer, p.why
	p.mu.Unlock()
	if producer == nil {
		err := errNotConnected
		if why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		done(err)
		return
	}
	answer := pulsarsend.Within(p.cfg.SendTimeout, func(err error) {
		if errors.Is(err, pulsarsend.ErrTimeout) && producer.Silent(silentTimeouts*p.cfg.SendTimeout) {
			p.giveUp(producer, errSilent)
		}
		done(err)
	})
	// Another cluster has an order of its own: a record that is replicated there would stand at another place.
	message := &pulsar.ProducerMessage{Payload: data, DisableReplication: true}
	producer.SendAsync(context.Background(), message,
		func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err == nil {
				producer.Received(0) // the topic has no other
			}
			if pulsarsend.GaveUp(err) {
				p.giveUp(producer, err)
			}
			answer(err)
		})
}

// silentTimeouts is the number of send timeouts that may pass without a receipt before a producer is replaced. It
// is more than one, because mostly the broker is just unreachable, and the client reconnects by itself.
const silentTimeouts = 4

var errSilent = errors.New("no receipts: the broker is away, or has refused a record, as by a policy of maxMessageSize")

// giveUp makes Run replace a producer, once. Answers of an earlier one must not end the one that has taken its place.
func (p *Pulsar) giveUp(given *pulsarsend.Sender, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.producer == given {
		p.producer, p.why = nil, why
		p.broken <- why // there is room: Run takes it before it makes the next producer
	}
}

// Tail implements [Transport].
func (p *Pulsar) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error {
	if err := p.connected(ctx); err != nil {
		return err
	}
	if from.IsZero() || from == First {
		// Before the first read: from here on the broker keeps everything.
		if err := p.ensureAnchor(ctx, from); err != nil {
			return fmt.Errorf("%w: %w", ErrReaderLost, err)
		}
	}
	if from == Anchored {
		var err error
		if from, err = p.anchored(ctx); err != nil {
			return fmt.Errorf("%w: %w", ErrReaderLost, err)
		}
	}
	start := entries.Start{ID: entries.Latest, Log: true}
	switch {
	case from == First:
		start.ID = entries.Earliest
	case !from.IsZero():
		start.ID = wire.ID(from)
	}
	queue := entries.NewQueue()
	reader, err := p.open(ctx, start, prefetch, queue)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReaderLost, err)
	}
	defer reader.Close()
	opened()
	var parser wire.Parser
	for {
		got, err := queue.Receive(ctx, nil, 1)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, entries.ErrReplaced):
			return fmt.Errorf("%w: %w", ErrReplaced, err)
		case err != nil:
			return fmt.Errorf("%w: %w", ErrReaderLost, err)
		}
		record(recordOf(got[0], &parser))
		entries.Take(got...)
	}
}

// recordOf returns an entry as a record. What no router has written, such as a batch or a part of a message, is unreadable bytes.
func recordOf(d *entries.Delivered, parser *wire.Parser) Entry {
	d.Open(parser)
	e := Entry{At: event.Position(d.ID), Data: d.Entry.Payload}
	if d.Broken != nil {
		e.Data = d.Raw
	}
	return e
}

// open opens a reader of the topic.
func (p *Pulsar) open(ctx context.Context, start entries.Start, prefetch int, queue *entries.Queue) (*entries.Consumer, error) {
	reader, err := p.reader.Subscribe(ctx, entries.Subscription{Topic: p.cfg.Topic, Type: entries.Exclusive, Start: &start, Permits: prefetch, Queue: queue})
	if err != nil {
		return nil, p.named(err)
	}
	return reader, nil
}

// End implements [Transport]. It opens a reader, since a broker tells the newest position only to one.
func (p *Pulsar) End(ctx context.Context) (event.Position, error) {
	if err := p.connected(ctx); err != nil {
		return endUnknown, err
	}
	reader, err := p.open(ctx, entries.Start{ID: entries.Latest}, 1, entries.NewQueue())
	if err != nil {
		return endUnknown, fmt.Errorf("controllog: end: %w", err)
	}
	defer reader.Close()
	last, err := reader.End(ctx)
	if err != nil {
		return endUnknown, fmt.Errorf("controllog: end: %w", err)
	}
	return event.Position(last), nil
}

// ensureAnchor makes the durable subscription, if it is missing. For a log that is read from
// [First] it also keeps the existing records.
func (p *Pulsar) ensureAnchor(ctx context.Context, from event.Position) error {
	anchor, err := p.attachAnchor(ctx, from == First, entries.NewQueue())
	if err != nil {
		return err
	}
	anchor.Close()
	return nil
}

// anchored returns the position of the first record behind the anchor. Of members that ask at the same time the broker answers one after the
// other.
func (p *Pulsar) anchored(ctx context.Context) (event.Position, error) {
	queue := entries.NewQueue()
	anchor, err := p.attachAnchor(ctx, false, queue)
	if err != nil {
		return event.Position{}, err
	}
	defer anchor.Close()
	got, err := queue.Receive(ctx, nil, 1)
	if err != nil {
		return event.Position{}, fmt.Errorf("controllog: anchor: %w", err)
	}
	return event.Position(got[0].ID), nil
}

// MoveAnchor implements [Transport].
func (p *Pulsar) MoveAnchor(ctx context.Context, to event.Position) error {
	if err := p.connected(ctx); err != nil {
		return err
	}
	anchor, err := p.attachAnchor(ctx, false, entries.NewQueue())
	if err != nil {
		return err
	}
	defer anchor.Close()
	if err := anchor.AckUpTo(ctx, wire.ID(to)); err != nil {
		return fmt.Errorf("controllog: anchor to %v: %w", to, err)
	}
	return nil
}

// attachAnchor subscribes as one of several standby consumers: members that do it at
// the same time must not exclude each other.
func (p *Pulsar) attachAnchor(ctx context.Context, fromEarliest bool, queue *entries.Queue) (*entries.Consumer, error) {
	anchor, err := p.reader.Subscribe(ctx, entries.Subscription{
		Topic: p.cfg.Topic, Name: anchorName, Type: entries.Failover, FromEarliest: fromEarliest, Permits: 1, Queue: queue,
	})
	if err != nil {
		return nil, fmt.Errorf("controllog: anchor: %w", p.named(err))
	}
	return anchor, nil
}

// connected waits for Run to have a producer.
func (p *Pulsar) connected(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-p.ready:
		return nil
	}
}

// insist tries until it works, ctx ends (then it returns nil) or the error is fatal.
func (p *Pulsar) insist(ctx context.Context, what string, try func() error) error {
	policy := p.backoff()
	var said string
	var saidAt clock.Instant
	for ctx.Err() == nil {
		err := try()
		if err == nil {
			return nil
		}
		if fatal, ok := errors.AsType[fatalError](err); ok {
			return fatal.error
		}
		if err = p.named(err); p.cfg.DeniedIsFinal && !signal.IsClosed(p.ready) && errors.Is(err, ErrDenied) {
			return err
		}
		err = p.advised(err)
		p.noteWhy(err)
		if now := clock.Now(); err.Error() != said || now.Sub(saidAt) >= sameErrorEvery {
			said, saidAt = err.Error(), now
			p.log.Warn("broker not reached", "url", p.options.URL, "step", what, "topic", p.cfg.Topic, "error", err)
		}
		_ = backoff.Sleep(ctx, policy.Next()) // ctx ends the loop
	}
	return nil
}

// sameErrorEvery is the interval at which an error is logged that stays the same.
const sameErrorEvery = 10 * time.Second

// advised adds a remedy to the error of a topic that is missing and that the broker does not create, that this role may not use, or that is
// terminated.
func (p *Pulsar) advised(err error) error {
	switch {
	case strings.Contains(err.Error(), "TopicNotFound"):
		return fmt.Errorf("%w; the broker does not create the topic: pulsar-admin topics create %s, in a namespace that exists", err, p.cfg.Topic)
	case errors.Is(err, ErrDenied):
		return fmt.Errorf("%w; grant the router's role produce and consume on it", err)
	case strings.Contains(err.Error(), "TopicTerminated"):
		return fmt.Errorf("%w; %s", err, p.terminatedAdvice())
	}
	return err
}

// terminatedAdvice is the remedy for a topic that takes no more records. Pulsar cannot reopen it, and running members write what they need into the next one.
func (p *Pulsar) terminatedAdvice() string {
	return "nothing can be written to a terminated topic: delete it while the routers run, and they begin it anew: pulsar-admin topics delete --force " + p.cfg.Topic
}

// named adds [ErrDenied] to the error of a broker that denies this role access to the topic. It
// compares the text, because not every call of a client returns an error with a code.
func (p *Pulsar) named(err error) error {
	if !strings.Contains(err.Error(), "AuthorizationError") {
		return err
	}
	return fmt.Errorf("%w %s: %w", ErrDenied, p.cfg.Topic, err)
}

// fatalError is one that trying again cannot cure.
type fatalError struct{ error }

// backoff has no jitter: a control log has few clients, and a member that reconnects late looks
// silent to its peers.
func (p *Pulsar) backoff() pulsarbackoff.Policy {
	return &backoff.Backoff{Min: backoffFirst, Max: p.cfg.ReconnectMax}
}

const backoffFirst = 20 * time.Millisecond

// demote lowers the levels of the client's log lines: errors, as the client calls each
// reconnect, become warnings, and all other lines debug. So do the two lines of each attempt to
// create a producer, whose error is returned and logged less often.
type demote struct{ slog.Handler }

func (d demote) level(l slog.Level) slog.Level {
	if l >= slog.LevelError {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (d demote) Enabled(ctx context.Context, l slog.Level) bool {
	return d.Handler.Enabled(ctx, d.level(l))
}

func (d demote) Handle(ctx context.Context, r slog.Record) error {
	r.Level = d.level(r.Level)
	if strings.HasPrefix(r.Message, "Failed to create producer") {
		r.Level = slog.LevelDebug
	}
	if !d.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return d.Handler.Handle(ctx, r)
}

func (d demote) WithAttrs(attrs []slog.Attr) slog.Handler { return demote{d.Handler.WithAttrs(attrs)} }

func (d demote) WithGroup(name string) slog.Handler { return demote{d.Handler.WithGroup(name)} }
