package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/clock"
)

// discovery subscribes to all partitions of the topics, and to those that are added while the source runs.
type discovery struct {
	cfg     Config
	reader  reader
	admin   *http.Client
	metrics *Metrics
	log     *slog.Logger

	// Of start, and of the goroutine after it.
	reading      map[string]struct{} // names of topic partitions
	begun        *Begun
	holesAsked   clock.Instant // see noteHoles
	holesUnknown bool          // the newest question was not answered

	timersErr atomic.Pointer[error] // why the timer topic is not read; nil: it is

	cancel  context.CancelFunc // nil until the goroutine runs
	running sync.WaitGroup
}

// Begun has the topic partitions that this process has subscribed to, with one source or another. Their subscription should be there: if it was
// deleted, a new one begins with the oldest entry, since the next one would skip those in between. There are as many as topic partitions.
type Begun struct {
	mu    sync.Mutex
	names map[string]struct{}
}

func (b *Begun) add(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names == nil {
		b.names = make(map[string]struct{})
	}
	b.names[name] = struct{}{}
}

func (b *Begun) has(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, has := b.names[name]
	return has
}

// topics returns the topics that must be read.
func (d *discovery) topics() []string {
	return append([]string{d.cfg.RetryTopic}, d.cfg.Topics...)
}

// timers returns why the timer topic is not read, nil if it is.
func (d *discovery) timers() error {
	if err := d.timersErr.Load(); err != nil {
		return *err
	}
	return nil
}

// lookForTimers subscribes to the timer topic, and to its added partitions. Events continue without it, in a cluster
// that does not permit that topic, for one.
func (d *discovery) lookForTimers(ctx context.Context) {
	if !d.cfg.Timers {
		off := errTimersOff
		d.timersErr.Store(&off)
		return
	}
	topic := d.cfg.TimerTopic()
	err := d.look(ctx, topic)
	if ctx.Err() != nil {
		return
	}
	before := d.timersErr.Load()
	if err == nil {
		d.timersErr.Store(nil)
		if before != nil && !errors.Is(*before, errNotReady) {
			d.log.Info("reading the timer topic", "topic", topic)
		}
		return
	}
	d.metrics.discoveryFailures.Inc()
	d.timersErr.Store(&err)
	if before == nil || errors.Is(*before, errNotReady) { // said once, until it works again
		d.log.Error("the timer topic cannot be read: timers, schedules and Send are refused until it can be read; events are not affected",
			"topic", topic, "again_in", d.cfg.DiscoverEvery, "error", err)
	}
}

// subscribersMax bounds the concurrent subscriptions to topic partitions.
const subscribersMax = 16

// start subscribes to all topic partitions, and looks for others from then on.
func (d *discovery) start(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(subscribersMax)
	var err error
	for _, topic := range d.topics() {
		var names []string
		if names, err = d.partitions(groupCtx, topic); err != nil {
			break
		}
		earliest := d.cfg.FromEarliest || topic == d.cfg.RetryTopic // copies are never skipped
		for _, name := range names {
			if _, known := d.reading[name]; known { // the settings name a topic partition beside its topic
				continue
			}
			d.reading[name] = struct{}{}
			group.Go(func() error {
				return d.subscribe(groupCtx, subscription{topic: name, earliest: earliest || d.begun.has(name), queue: d.queueFor(len(names))})
			})
		}
	}
	if err := cmp.Or(group.Wait(), err); err != nil {
		return err
	}
	d.metrics.topicPartitions.Set(float64(len(d.reading)))
	notYet := errNotReady
	d.timersErr.Store(&notYet)
	looking, looked := ctx, make(chan struct{})
	ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	d.running.Go(func() {
		d.lookForTimers(ctx)
		close(looked)
		d.run(ctx)
	})
	patience := time.NewTimer(timersPatience)
	defer patience.Stop()
	select {
	case <-looked:
	case <-patience.C:
		d.log.Warn("the timer topic does not answer yet: timers, schedules and Send are refused until it is read; events are not affected", "topic", d.cfg.TimerTopic())
	case <-looking.Done():
	}
	return nil
}

// timersPatience is how long events wait for the timer topic, so that mostly timers can be sent as soon as events are read.
const timersPatience = 2 * time.Second

// stop waits for the goroutine, if there is one. After it returns, nothing is read, and the broker is not asked.
func (d *discovery) stop() {
	if d.cancel != nil {
		d.cancel()
		d.running.Wait()
	}
	d.metrics.topicPartitions.Set(0)
	d.metrics.ackHoles.Set(0)
	d.metrics.timersPending.Set(0)
}

func (d *discovery) partitions(ctx context.Context, topic string) ([]string, error) {
	names, err := d.reader.partitions(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("source: look up %s: %w%s", topic, err, hint(err))
	}
	return names, nil
}

func (d *discovery) subscribe(ctx context.Context, s subscription) error {
	if err := d.reader.subscribe(ctx, s); err != nil {
		return subscribeError(s.topic, d.cfg.Subscription, err)
	}
	d.begun.add(s.topic)
	return nil
}

// queueFor returns how many events are fetched ahead of each of so many topic partitions.
func (d *discovery) queueFor(partitions int) int {
	return max(1, d.cfg.ReceiverQueueMax/max(1, partitions))
}

// timersQueueShare divides the prefetch of the timer topic: few timers are due at once.
const timersQueueShare = 10

// run is the goroutine. A failed subscription is tried again at the next interval; the other topic partitions are read meanwhile.
func (d *discovery) run(ctx context.Context) {
	ticker := time.NewTicker(d.cfg.DiscoverEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		d.noteHoles(ctx)
		for _, topic := range d.topics() {
			if err := d.look(ctx, topic); err != nil && ctx.Err() == nil {
				d.metrics.discoveryFailures.Inc()
				d.log.Warn("cannot look up new topic partitions, or cannot read one; trying again",
					"topic", topic, "again_in", d.cfg.DiscoverEvery, "error", err)
			}
		}
		d.lookForTimers(ctx) // last: each of its partitions may take long to answer
	}
}

// look subscribes to the added partitions of a topic.
func (d *discovery) look(ctx context.Context, topic string) error {
	names, err := d.partitions(ctx, topic)
	if err != nil {
		return err
	}
	queue := d.queueFor(len(names))
	if topic == d.cfg.TimerTopic() {
		queue = max(1, queue/timersQueueShare)
	}
	isRead := func(name string) bool { _, is := d.reading[name]; return is }
	if added := slices.ContainsFunc(names, func(name string) bool { return !isRead(name) }); added { // all share the queue of their topic
		for _, name := range names {
			if isRead(name) {
				d.reader.fetchAhead(name, queue)
			}
		}
	}
	var errs []error
	for _, name := range names {
		if isRead(name) {
			continue
		}
		// All that it holds came after the subscription to its topic.
		if err := d.subscribe(ctx, subscription{topic: name, earliest: true, queue: queue}); err != nil {
			errs = append(errs, err)
			continue
		}
		d.reading[name] = struct{}{}
		d.metrics.topicPartitions.Inc()
		d.log.Info("reading a topic partition", "topic", name, "topic_partitions", len(names))
	}
	return errors.Join(errs...)
}
