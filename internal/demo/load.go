package demo

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ringfence/router/internal/clock"
)

// message is one event of the load. Its payload is its name.
type message struct{ name, key string }

const (
	publishEvery = 5 * time.Millisecond
	entryMax     = 500 // events in one entry

	hotShareMax = 0.2 // of all events go to the hot keys, at most
	hotRateMax  = 80  // events per second of one hot key, which is then busy a quarter of the time
)

// load makes the events: most keys are alike, one in a hundred is hot.
type load struct {
	keys, hot int
	hotShare  float64
	random    *rand.Rand
}

func newLoad(o Options) *load {
	hot := max(1, o.Keys/100)
	return &load{
		keys: o.Keys, hot: hot,
		hotShare: min(hotShareMax, float64(hot*hotRateMax)/float64(o.Rate)),
		random:   rand.New(rand.NewPCG(1, 1)), // the same load in every run
	}
}

func (l *load) key() string {
	n := l.random.IntN(l.keys)
	if l.random.Float64() < l.hotShare {
		n = l.random.IntN(l.hot)
	}
	return "user-" + strconv.Itoa(n)
}

// publication is the publisher's list: what it has sent, and when. It is safe for
// concurrent use.
type publication struct {
	mu   sync.Mutex
	sent []clock.Instant // by number, which is the event's name
}

// run publishes at rate events per second until duration is over.
func (p *publication) run(ctx context.Context, l *load, rate int, duration time.Duration, publish func(context.Context, []message) error) error {
	ticker := time.NewTicker(publishEvery)
	defer ticker.Stop()
	begin := clock.Now()
	for {
		elapsed := min(clock.Now().Sub(begin), duration)
		due := int(elapsed.Seconds() * float64(rate))
		for p.count() < due {
			if err := publish(ctx, p.next(l, min(due-p.count(), entryMax))); err != nil {
				return err
			}
		}
		if elapsed == duration {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// next makes n messages and enters them as sent now: before they are.
func (p *publication) next(l *load, n int) []message {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := clock.Now()
	messages := make([]message, n)
	for i := range messages {
		messages[i] = message{name: strconv.Itoa(len(p.sent)), key: l.key()}
		p.sent = append(p.sent, now)
	}
	return messages
}

func (p *publication) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

// sentAt tells when an event was published.
func (p *publication) sentAt(name string) (clock.Instant, bool) {
	n, err := strconv.Atoi(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || n < 0 || n >= len(p.sent) {
		return 0, false
	}
	return p.sent[n], true
}

// names yields the names of all events.
func (p *publication) names(yield func(string) bool) {
	for n := range p.count() {
		if !yield(strconv.Itoa(n)) {
			return
		}
	}
}
