//go:build unix

package forward

import (
	"log/slog"
	"slices"
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
			entry := bytesEntryOf(0, benchEvents(contention.Batch, 100)...)
			set, serial := event.Set{Events: event.AllBits(contention.Batch)}, uint64(worker)<<32
			return func() {
				serial++
				entry.SetFirst(event.NewHandle(serial, 0))
				set.First = entry.First
				p.Hold(entry)
				p.Settle(Local, []event.Set{set}, nil)
			}
		})
		if n := p.Stats().Events; n != 0 {
			b.Errorf("%d events are held, want none", n)
		}
	})
}

// The failures of relayed events that a table passes on reach the sink.
func TestFailuresOfRelayedEventsReachTheSink(t *testing.T) {
	var sink attemptedSink
	failures := []event.Verdict{{Handle: event.NewRelayedHandle(1, 0), Kind: event.Attempted}}
	(&Pool{sink: &sink}).perform(&Moves{Attempted: failures}, false)
	if !slices.Equal(sink.got, failures) {
		t.Errorf("it gets %+v, want %+v", sink.got, failures)
	}
}

type attemptedSink struct {
	noSink
	got []event.Verdict
}

func (s *attemptedSink) Attempted(verdicts []event.Verdict) { s.got = append(s.got, verdicts...) }

type noSink struct{}

func (noSink) Deliver([]event.Ref)                              {}
func (noSink) Settle([]event.Set, []event.Verdict, []event.Ref) {}
func (noSink) Cancel([]event.Handle) []event.Handle             { return nil }

func (noSink) Granted([]event.Verdict)   {}
func (noSink) Attempted([]event.Verdict) {}
func (noSink) Renew([]event.Renewal)     {}
func (noSink) Renewed([]event.Renewal)   {}
