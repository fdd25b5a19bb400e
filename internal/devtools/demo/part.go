package demo

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/journal"
)

// part is one of the two halves of a demo while it runs: some applications and a load.
type part struct {
	*demo
	title      string
	duration   time.Duration
	apps       []*application
	against    int                             // overlaps of the other part, 0 before it
	addMembers func(context.Context, *picture) // adds the members' figures; nil: none

	sent     publication
	began    atomic.Int64 // clock.Instant of the load, 0 before it
	overlaps atomic.Int64
}

// publish runs the load, and returns when everything is safe at the broker.
func (p *part) publish(ctx context.Context, topic string) error {
	p.began.Store(int64(clock.Now()))
	err := p.sent.run(ctx, newLoad(p.options, p.duration), p.options.Rate, p.duration, func(ctx context.Context, events []message) error {
		return p.backend.publish(ctx, topic, events)
	})
	if err != nil {
		return err
	}
	return p.backend.flush(ctx)
}

func (p *part) journals() []string {
	paths := make([]string, len(p.apps))
	for i, a := range p.apps {
		paths[i] = a.journal
	}
	return paths
}

// allHandled reports whether the journals tell the end of everything published. It
// looks into them only when the applications have counted enough.
func (p *part) allHandled() (bool, error) {
	if p.handled() < p.sent.count() {
		return false, nil
	}
	report, err := journal.Check(journal.Files(p.journals()), p.sent.names)
	return report.Lost == 0, err
}

func (p *part) handled() (n int) {
	for _, a := range p.apps {
		n += int(a.handled.Load())
	}
	return n
}

const (
	drawEvery  = 500 * time.Millisecond
	countEvery = 2 * time.Second // reading all journals costs some CPU
)

// shown runs something while the view shows how the part goes.
func (p *part) shown(ctx context.Context, run func(context.Context) error) error {
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { every(watching, drawEvery, p.draw) })
	watchers.Go(func() { every(watching, countEvery, p.count) })
	defer watchers.Wait()
	defer stop()
	return run(ctx)
}

// every calls f at intervals until ctx ends.
func every(ctx context.Context, interval time.Duration, f func(context.Context)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f(ctx)
		}
	}
}

// count counts the overlaps so far. Unreadable records are read at the end.
func (p *part) count(context.Context) {
	if report, err := journal.Check(journal.Files(p.journals()), nil); err == nil {
		p.overlaps.Store(int64(report.Overlaps))
	}
}

func (p *part) draw(ctx context.Context) {
	pic := picture{title: p.title, of: p.duration, published: p.sent.count(), overlaps: int(p.overlaps.Load()), against: p.against}
	if began := p.began.Load(); began != 0 {
		pic.elapsed = clock.Now().Sub(clock.Instant(began))
	}
	for _, a := range p.apps {
		pic.rows = append(pic.rows, row{name: a.name, state: "up", handled: int(a.handled.Load()), partitions: unknown, unsettled: unknown})
	}
	if p.addMembers != nil {
		p.addMembers(ctx, &pic)
	}
	p.view.draw(pic)
}
