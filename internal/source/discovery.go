package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/topicname"
)

// discovery subscribes to all partitions of the topics, and to those that are added while the source runs.
type discovery struct {
	cfg     Config
	reader  reader
	admin   *http.Client
	metrics *Metrics
	log     *slog.Logger

	lost  chan struct{} // signals topic partitions that the reader has lost
	begun *Begun

	mu      sync.Mutex          // guards the fields below
	reading map[string]struct{} // names of topic partitions
	unread  map[string]*error   // by name of a topic partition that was read, or of a topic: why it cannot be read now

	// Of the goroutine.
	holesAsked   clock.Instant // see noteHoles
	holesUnknown bool          // the newest question was not answered

	timersErr atomic.Pointer[error] // why the timer topic is not read; nil: it is

	cancel  context.CancelFunc // nil until the goroutine runs
	running sync.WaitGroup
}

// Begun holds the topic partitions to which this process has subscribed, with one source or another. Their
// subscription should exist: if it was deleted, a new one begins with the oldest entry, since otherwise the entries
// in between would be skipped. Its size is bounded by the number of topic partitions.
type Begun struct{ names sync.Map }

func (b *Begun) add(name string) { b.names.Store(name, nil) }

func (b *Begun) has(name string) bool {
	_, has := b.names.Load(name)
	return has
}

// of returns the names of the partitions of a topic that were read, or of a topic partition.
func (b *Begun) of(topic string) (names []string) {
	for name := range b.names.Range {
		if name := name.(string); isOf(name, topic) {
			names = append(names, name)
		}
	}
	return names
}

// isOf reports whether a name is that of a topic, or of one of its partitions.
func isOf(name, topic string) bool {
	base, _ := topicname.Split(name)
	return name == topic || base == topic
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
// that does not permit that topic, for one. It returns why partitions that are read cannot be looked up, nil if they can: timers continue, too.
func (d *discovery) lookForTimers(ctx context.Context) (unknown error) {
	if !d.cfg.Timers {
		d.timersErr.Store(new(errTimersOff))
		return nil
	}
	topic := d.cfg.TimerTopic()
	err := d.look(ctx, topic)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	before := d.timersErr.Load()
	if err == nil {
		d.timersErr.Store(nil)
		if before != nil && !errors.Is(*before, errNotReady) {
			d.log.Info("reading the timer topic", "topic", topic)
		}
		return nil
	}
	d.metrics.discoveryFailures.Inc()
	if before == nil && errors.Is(err, errLookUp) && !entries.Unavailable(err) {
		return err // as in an outage of the broker: the reader has the topic partitions, and reads on when it can
	}
	d.timersErr.Store(&err)
	if before == nil || errors.Is(*before, errNotReady) { // said once, until it works again
		d.log.Error("the timer topic cannot be read: timers, schedules and Send are refused until it can be read; events are not affected",
			"topic", topic, "again_in", d.cfg.DiscoverEvery, "error", err)
	}
	return nil
}

// subscribersMax bounds the concurrent subscriptions to topic partitions.
const subscribersMax = 16

// start subscribes to all topic partitions, and looks for new ones from then on. A topic that cannot be read is an
// error, since the settings or the rights must be wrong, unless this process has read the topic before: then the
// others are read without it.
func (d *discovery) start(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(subscribersMax)
	var err error
	for _, topic := range d.topics() {
		var names []string
		if names, err = d.partitions(groupCtx, topic); err != nil {
			if entries.Unavailable(err) && len(d.begun.of(topic)) > 0 {
				d.lose(topic, err)
				err = nil
				continue
			}
			break
		}
		earliest := d.cfg.FromEarliest || topic == d.cfg.RetryTopic // copies are never skipped
		for _, name := range names {
			if !d.enter(name, d.whyUnread(name)) { // the settings name a topic partition beside its topic
				continue
			}
			group.Go(func() error {
				again := d.begun.has(name)
				err := d.subscribe(groupCtx, subscription{topic: name, earliest: earliest || again, queue: d.queueFor(len(names))})
				if again && entries.Unavailable(err) {
					d.lose(name, err)
					return nil
				}
				return err
			})
		}
	}
	if err := cmp.Or(group.Wait(), err); err != nil {
		return err
	}
	d.timersErr.Store(new(errNotReady))
	runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.cancel = cancel
	looked := make(chan struct{})
	d.running.Go(func() {
		_ = d.lookForTimers(runCtx) // none of its partitions is read yet
		close(looked)
		d.run(runCtx)
	})
	patience := time.NewTimer(timersPatience)
	defer patience.Stop()
	select {
	case <-looked:
	case <-patience.C:
		d.log.Warn("the timer topic does not answer yet: timers, schedules and Send are refused until it is read; events are not affected", "topic", d.cfg.TimerTopic())
	case <-ctx.Done():
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

// errLookUp says that the names of the partitions of a topic are not known.
var errLookUp = errors.New("look up")

func (d *discovery) partitions(ctx context.Context, topic string) ([]string, error) {
	names, err := d.reader.partitions(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("source: %w %s: %w%s", errLookUp, topic, err, hint(err))
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

// lostAgainMax is the longest interval at which a topic partition that was lost is tried again.
const lostAgainMax = 15 * time.Second

// run is the goroutine: it looks for added topic partitions until ctx ends. A failed subscription is tried again at the
// next interval; the other topic partitions are read meanwhile.
func (d *discovery) run(ctx context.Context) {
	pauses := backoff.Backoff{Min: min(500*time.Millisecond, d.cfg.DiscoverEvery), Max: min(lostAgainMax, d.cfg.DiscoverEvery)}
	again := func() time.Duration {
		if d.unreadTopics() == nil {
			pauses.Reset()
			return d.cfg.DiscoverEvery
		}
		return pauses.Next()
	}
	pause := again()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-d.lost:
			pauses.Reset()
			if soon := pauses.Next(); soon < pause { // otherwise one loss after the other would put it off
				pause = soon
				timer.Reset(pause)
			}
			continue
		case <-ctx.Done():
			return
		}
		d.noteHoles(ctx)
		failed := make(map[string]error)
		for _, topic := range d.topics() {
			if err := d.look(ctx, topic); err != nil && ctx.Err() == nil {
				d.metrics.discoveryFailures.Inc()
				failed[topic] = err
			}
		}
		if err := d.lookForTimers(ctx); err != nil && ctx.Err() == nil { // last: each of its partitions may take long to answer
			failed[d.cfg.TimerTopic()] = err
		}
		pause = again()
		timer.Reset(pause)
		for topic, err := range failed {
			d.log.Warn("cannot look up new topic partitions, or cannot read one; trying again", "topic", topic, "again_in", pause, "error", err)
		}
	}
}

// enter adds a topic partition to those that are read. before is what whyUnread returned before the attempt to subscribe:
// enter reports false if the partition was lost since then, or is among them already.
func (d *discovery) enter(name string, before *error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.reading[name]; known || d.unread[name] != before {
		return false
	}
	d.reading[name] = struct{}{}
	delete(d.unread, name)
	d.metrics.topicPartitions.Set(float64(len(d.reading)))
	return true
}

// lose notes that a topic partition, or a topic, cannot be read any more, and why. The goroutine of run tries again. lose
// does not block; any goroutine may call it.
func (d *discovery) lose(name string, why error) {
	d.log.Error("a topic cannot be read any more: the other topics are read, and it is tried again", "topic", name, "error", why)
	if isOf(name, d.cfg.TimerTopic()) {
		d.timersErr.Store(&why)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.reading, name)
	d.unread[name] = &why
	d.metrics.topicPartitions.Set(float64(len(d.reading)))
	signal.Set(d.lost)
}

// whyUnread returns why a topic partition cannot be read any more, nil if it was not lost. Each loss has a pointer of its
// own, so that enter can tell a new loss from the one before the attempt.
func (d *discovery) whyUnread(name string) *error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unread[name]
}

// isRead reports whether a topic partition is read.
func (d *discovery) isRead(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, is := d.reading[name]
	return is
}

// forgetGone drops the recorded losses of partitions of a topic that no longer exist by the broker's newest answer.
// It is called when all existing partitions are read.
func (d *discovery) forgetGone(topic string, names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.unread, func(name string, _ *error) bool { return isOf(name, topic) && !slices.Contains(names, name) })
}

// unreadPartitions returns the names of the topic partitions that were read, and cannot be read any more.
func (d *discovery) unreadPartitions() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for lost := range d.unread {
		names = append(names, d.begun.of(lost)...) // it may be a topic with partitions
	}
	return names
}

// existing asks the broker for the names of all topic partitions, those of the timer topic only if it was read. Of a topic that the broker refuses only
// known ones can have events.
func (d *discovery) existing(ctx context.Context) (names []string, err error) {
	topics := d.topics()
	if timers := d.cfg.TimerTopic(); len(d.begun.of(timers)) > 0 {
		topics = append(topics, timers)
	}
	for _, topic := range topics {
		of, err := d.partitions(ctx, topic)
		if err != nil && !entries.Unavailable(err) {
			return nil, err
		}
		names = append(names, of...)
	}
	return names, nil
}

// unreadTopics returns the topics of which something cannot be read any more, and why; nil: none.
func (d *discovery) unreadTopics() map[string]error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.unread) == 0 {
		return nil
	}
	topics := make(map[string]error)
	for _, topic := range append(d.topics(), d.cfg.TimerTopic()) {
		for name, why := range d.unread {
			if isOf(name, topic) {
				topics[topic] = *why
			}
		}
		for name := range d.reading {
			if topics[topic] != nil && isOf(name, topic) {
				topics[topic] = fmt.Errorf("%w: %w", ErrPartlyRead, topics[topic])
				break
			}
		}
	}
	return topics
}

// look subscribes to the partitions of a topic that are not read: those that were added, and those that were lost.
func (d *discovery) look(ctx context.Context, topic string) error {
	names, err := d.partitions(ctx, topic)
	if err != nil {
		return err
	}
	queue := d.queueFor(len(names))
	if topic == d.cfg.TimerTopic() {
		queue = max(1, queue/timersQueueShare)
	}
	missing := slices.DeleteFunc(slices.Clone(names), d.isRead)
	if len(missing) > 0 { // all share the queue of their topic
		for _, name := range names {
			d.reader.fetchAhead(name, queue)
		}
	}
	var errs []error
	for _, name := range missing {
		before := d.whyUnread(name)
		// All that it holds came after the subscription to its topic.
		if err := d.subscribe(ctx, subscription{topic: name, earliest: true, queue: queue}); err != nil {
			errs = append(errs, err)
			continue
		}
		if d.enter(name, before) { // otherwise the reader has lost it already
			d.log.Info("reading a topic partition", "topic", name, "topic_partitions", len(names))
		}
	}
	if len(errs) == 0 {
		d.forgetGone(topic, names)
	}
	if len(errs) > 1 { // mostly for one reason
		return fmt.Errorf("%w (and %d more topic partitions)", errs[0], len(errs)-1)
	}
	return errors.Join(errs...)
}
