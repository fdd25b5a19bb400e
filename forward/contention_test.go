//go:build unix

package forward

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/testing/contention"
)

// BenchmarkContention holds events that this member owns, and settles them, on all cores. A router has one goroutine that holds the events of
// the source; verdicts come from all goroutines that read streams of peers and workers.
func BenchmarkContention(b *testing.B) {
	b.Run("forward table", func(b *testing.B) {
		metrics := NewMetrics(prometheus.NewRegistry())
		p := NewPool(DefaultConfig(), func() Identity { return Identity{} }, insecure.NewCredentials(), noSink{}, nil, clock.Now, metrics, slog.New(slog.DiscardHandler))
		self := peerNumber(1)
		p.SetRoute(self, fixedRoute{owners: []Peer{self}})
		contention.Run(b, func(worker int) func() {
			events, done := benchEvents(contention.Batch, 100), make([]event.Verdict, contention.Batch)
			return func() {
				for i, ev := range events {
					ev.Handle = event.NewHandle(ev.Handle.Generation()+1, int32(worker*contention.Batch+i))
					done[i] = event.Verdict{Handle: ev.Handle, Kind: event.Done}
				}
				p.Hold(events)
				p.Settle(Local, done)
			}
		})
		if n := p.Stats().Events; n != 0 {
			b.Errorf("%d events are held, want none", n)
		}
	})
}

type noSink struct{}

func (noSink) Deliver([]*event.Event)                 {}
func (noSink) Settle([]event.Verdict, []*event.Event) {}
