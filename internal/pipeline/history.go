package pipeline

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/history"
)

// Journeys returns what is remembered of the events that this node has received.
func (p *Pipeline) Journeys() *history.Journeys { return p.journeys }

// Metrics exports the times of journeys to Prometheus, and reads them at each scrape.
type Metrics struct {
	pipeline *Pipeline
	settle   *prometheus.Desc
}

// NewMetrics registers the metrics of a pipeline.
func NewMetrics(reg prometheus.Registerer, p *Pipeline) *Metrics {
	m := &Metrics{p, prometheus.NewDesc("ringfence_pipeline_settle_seconds",
		"Time from the receipt of an event to the verdict that ends its journey.", nil, nil)}
	reg.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) { out <- m.settle }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	times := m.pipeline.journeys.Times()
	n, sum, buckets := times.Histogram()
	histogram := prometheus.MustNewConstHistogram(m.settle, n, sum, buckets)
	if t := m.pipeline.observer.traces; t != nil {
		histogram = withExemplars(histogram, &t.settled)
	}
	out <- histogram
}

// TracedHandlers adds exemplars to a histogram of handler times, if events are traced.
func (p *Pipeline) TracedHandlers(m prometheus.Metric) prometheus.Metric {
	if t := p.observer.traces; t != nil {
		return withExemplars(m, &t.handled)
	}
	return m
}

func withExemplars(m prometheus.Metric, all *history.Exemplars) prometheus.Metric {
	var exemplars []prometheus.Exemplar
	for _, e := range all.All() {
		exemplars = append(exemplars, prometheus.Exemplar{Value: e.Took.Seconds(), Labels: prometheus.Labels{"trace_id": e.Trace}, Timestamp: e.At})
	}
	with, err := prometheus.NewMetricWithExemplars(m, exemplars...)
	if err != nil { // there are none yet
		return m
	}
	return with
}
