package judge

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// orderBytes is for the 32,768 keys that began last.
const orderBytes = 1 << 20

// MeterBytes is the memory of a Meter.
const MeterBytes = orderBytes + audit.InvertedBytes

// Meter runs an [audit.Inversions], and counts what it finds in metrics. It is safe for concurrent use.
type Meter struct {
	mu         sync.Mutex
	inversions *audit.Inversions
}

// NewMeter returns a Meter.
func NewMeter(reg prometheus.Registerer) *Meter {
	m := &Meter{inversions: audit.NewInversions(orderBytes)}
	f := promauto.With(reg)
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "ringfence_order_first_handlings_total",
		Help: "Events that were handed to a worker for the first time.",
	}, func() float64 { return float64(m.Counts().First) })
	for _, cause := range audit.Causes() {
		f.NewCounterFunc(prometheus.CounterOpts{
			Name:        "ringfence_order_inversions_total",
			Help:        "Of these, events that began after a later one of their key and topic partition, by cause: at least so many.",
			ConstLabels: prometheus.Labels{"cause": cause.String()},
		}, func() float64 { return float64(m.Counts().Inversions[cause]) })
	}
	f.NewCounterFunc(prometheus.CounterOpts{
		Name: "ringfence_order_keys_forgotten_total",
		Help: "Keys that made room for others: inversions with their earlier events are not seen.",
	}, func() float64 { return float64(m.Counts().Forgotten) })
	return m
}

// Began notes deliveries that were handed to a worker. It does not keep the slice.
func (m *Meter) Began(now clock.Instant, deliveries []event.Delivery) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inversions.Began(now, deliveries)
}

// Counts returns the totals.
func (m *Meter) Counts() audit.OrderCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inversions.Counts()
}

// Keys returns the keys with the most inversions, the greatest first.
func (m *Meter) Keys() []audit.InvertedKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inversions.Keys()
}
