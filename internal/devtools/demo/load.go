package demo

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/testapp"
)

// message is one event of the load. Its payload is its name.
type message struct{ name, key, conduct string }

// properties of the message as a broker carries it.
func (m message) properties() map[string]string {
	if m.conduct == "" {
		return nil
	}
	return map[string]string{testapp.ConductProperty: m.conduct}
}

const (
	publishEvery = 5 * time.Millisecond
	entryMax     = 500 // events in one entry

	hotShareMax = 0.2 // of all events go to the hot keys, at most
	hotRateMax  = 80  // events per second of one hot key, which is then busy a quarter of the time

	// Until a member is killed, one in slowEvery events takes longer than a lease: so its
	// application has some running, which it must cancel before another application may start them.
	slowEvery   = 400
	slowConduct = "slow:2s"
	slowTail    = 3 * time.Second // without slow ones at the end of the load, for it to have an end
)

// load makes the events: most keys are alike, one in a hundred is hot, and the
// others have a slow event now and then.
type load struct {
	keys, hot int
	hotShare  float64
	slowLeft  int // of the events to come, how many may be slow
	random    *rand.Rand
}

func newLoad(o Options, duration time.Duration) *load {
	hot := max(1, o.Keys/100)
	slow := max(0, min(o.KillAt, duration-slowTail))
	return &load{
		keys: o.Keys, hot: hot,
		hotShare: min(hotShareMax, float64(hot*hotRateMax)/float64(o.Rate)),
		slowLeft: int(slow.Seconds() * float64(o.Rate)),
		random:   rand.New(rand.NewPCG(1, 1)), // the same load in every run
	}
}

// next makes an event without a name.
func (l *load) next() message {
	n := l.random.IntN(l.keys)
	if l.random.Float64() < l.hotShare {
		n = l.random.IntN(l.hot)
	}
	m := message{key: "user-" + strconv.Itoa(n)}
	l.slowLeft--
	if n >= l.hot && l.slowLeft >= 0 && l.random.IntN(slowEvery) == 0 {
		m.conduct = slowConduct
	}
	return m
}

// publication is the publisher's list of sent events, with their times. It is safe for
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
		messages[i] = l.next()
		messages[i].name = strconv.Itoa(len(p.sent))
		p.sent = append(p.sent, now)
	}
	return messages
}

func (p *publication) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sent)
}

// sentAt returns the time at which an event was published.
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
