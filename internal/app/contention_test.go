package app

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/contention"
	"github.com/ringfence/router/internal/wire/appwire"
)

// BenchmarkContention has a worker on each core: its session takes deliveries, frames them and takes the results in. Sessions share the lock
// of the server, which finds a session that has to look, and counters, which "metrics counters" counts alone, as often.
func BenchmarkContention(b *testing.B) {
	b.Run("app sessions", func(b *testing.B) {
		mailboxes := endless{given: new(atomic.Uint64), event: &event.Event{Key: "k", Payload: make([]byte, 100)}}
		metrics := NewMetrics(prometheus.NewRegistry())
		server, err := New(DefaultConfig(), Identity{Node: "n", Group: "g"}, Parts{
			Boxes: mailboxes, Lease: func() ownership.Lease { return ownership.Lease{Until: clock.Now().Add(time.Hour)} },
			Workers: func(int) {}, Drain: func(string) {}, Now: clock.Now, Log: slog.New(slog.DiscardHandler), Metrics: metrics,
		})
		if err != nil {
			b.Fatal(err)
		}
		contention.Run(b, func(int) func() {
			w := newSession(server)
			w.outstanding, w.greeted = NewOutstanding(contention.Batch), true
			if err := server.admit(w, ""); err != nil {
				b.Error(err)
			}
			var f appwire.FromWorker
			return func() {
				server.Wake(w.id)
				<-w.awake
				if !w.fill() {
					b.Error("no deliveries")
				}
				for {
					msg, _ := w.next()
					frame, more := msg.(*appwire.ToWorker)
					if !more {
						break
					}
					f.Receipt, f.Number, f.Results = w.sent, f.Number+1, f.Results[:0]
					for _, d := range frame.Deliveries {
						f.Results = append(f.Results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
					}
					if err := w.handle(&f); err != nil {
						b.Error(err)
					}
				}
				select {
				case <-w.awake:
				default:
				}
			}
		})
		if n := mailboxes.given.Load(); n != uint64(b.N*contention.Batch) {
			b.Errorf("%d deliveries in %d operations", n, b.N)
		}
	})
	b.Run("metrics counters", func(b *testing.B) {
		metrics := NewMetrics(prometheus.NewRegistry())
		contention.Run(b, func(int) func() {
			return func() {
				metrics.frames.Inc()
				metrics.deliveries.Add(contention.Batch)
				metrics.results.WithLabelValues(event.ResultDone.String()).Add(contention.Batch)
			}
		})
	})
}

// endless is mailboxes that always have events.
type endless struct {
	given *atomic.Uint64
	event *event.Event
}

func (endless) WorkerUp(event.WorkerID)   {}
func (endless) WorkerGone(event.WorkerID) {}
func (endless) Finish([]event.Result)     {}

func (e endless) Take(_ event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	last := e.given.Add(uint64(limit))
	for id := last - uint64(limit) + 1; id <= last; id++ {
		dst = append(dst, event.Delivery{ID: event.DeliveryID(id), Ref: event.RefTo(e.event), Partition: 1, Attempt: 1})
	}
	return dst
}

// Grant implements Boxes.
func (endless) Grant(event.DeliveryID, event.Grant) {}
