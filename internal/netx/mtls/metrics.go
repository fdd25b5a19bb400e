package mtls

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of all stores of a process.
type Metrics struct {
	reloads *prometheus.CounterVec

	expiry    *prometheus.Desc
	mu        sync.Mutex // guards listeners
	listeners map[string]func() time.Time
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reloads: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_tls_reloads_total",
			Help: "Changes of the files with certificates and tokens, by listener and result (ok, failed).",
		}, []string{"listener", "result"}),
		expiry: prometheus.NewDesc("ringfence_tls_certificate_expiry_timestamp_seconds",
			"When the own certificate of a listener ends, in Unix time.", []string{"listener"}, nil),
		listeners: make(map[string]func() time.Time),
	}
	reg.MustRegister(m)
	return m
}

// Seen makes the counter of failures of a listener begin at 0.
func (m *Metrics) Seen(listener string) { m.reloads.WithLabelValues(listener, "failed") }

// Reloaded counts a change of a listener's files: err is nil for one that was taken over.
func (m *Metrics) Reloaded(listener string, err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.reloads.WithLabelValues(listener, result).Inc()
}

func (m *Metrics) watch(listener string, notAfter func() time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners[listener] = notAfter
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(descs chan<- *prometheus.Desc) { descs <- m.expiry }

// Collect implements prometheus.Collector. It checks the files, so that an unusable change is
// reported before the next handshake.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for listener, notAfter := range m.listeners {
		metrics <- prometheus.MustNewConstMetric(m.expiry, prometheus.GaugeValue, float64(notAfter().Unix()), listener)
	}
}
