package node

import (
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/ownership"
)

// Ignored records of the control log, which come as fast as their writer likes, write few log lines.
func TestIgnoredRecordsWriteFewLines(t *testing.T) {
	lines, registry := 0, prometheus.NewRegistry()
	log := slog.New(handlerFunc(func(slog.Record) { lines++ }))
	n := &Node{log: log, metrics: newMetrics(registry), badRecords: newBadRecords(log, registry)}
	n.rollout = newRollout(n)
	const records = 1000
	for range records {
		n.noted(ownership.Note{Kind: ownership.NoteBadRecord, Reason: "of group other"})
	}
	if lines == 0 || lines > 100 {
		t.Errorf("%d records wrote %d lines", records, lines)
	}
	if got := testutil.ToFloat64(n.metrics.notes.WithLabelValues(string(ownership.NoteBadRecord))); got != records {
		t.Errorf("%v are counted, want %d", got, records)
	}
	n.noted(ownership.Note{Kind: ownership.NoteLostTrust})
	if lines > 101 {
		t.Errorf("%d lines", lines)
	}
}
