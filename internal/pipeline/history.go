package pipeline

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/history"
)

// Journeys returns what is remembered of the events that this node has received.
func (p *Pipeline) Journeys() *history.Journeys { return p.journeys }

// Metrics exports the times of journeys to Prometheus, and reads them at each scrape.
type Metrics struct {
	journeys *history.Journeys
	settle   *prometheus.Desc
}

// NewMetrics registers the metrics of a pipeline.
func NewMetrics(reg prometheus.Registerer, p *Pipeline) *Metrics {
	m := &Metrics{p.journeys, prometheus.NewDesc("ringfence_pipeline_settle_seconds",
		"Time from the receipt of an event to the verdict that ends its journey.", nil, nil)}
	reg.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { out <- m.settle }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	times := m.journeys.Times()
	n, sum, buckets := times.Histogram()
	out <- prometheus.MustNewConstHistogram(m.settle, n, sum, buckets)
}
