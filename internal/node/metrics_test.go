package node

import (
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/controllog"
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

// A quantile of a histogram is interpolated within a bucket: if a threshold lies inside of one, values below it raise the alert. A new
// group takes its first partitions after 4.1 s, and a threshold of 5 s lay between the bounds 3.8 and 5.8.
func TestThresholdsOfAlertsAreBoundsOfBuckets(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := newMetrics(registry)
	m.handoff.Observe(0)
	m.takeover.Observe(0)
	controllog.NewMetrics(registry)
	config, err := os.ReadFile("../../deploy/mixin/config.libsonnet")
	if err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	bounds := map[string]map[float64]bool{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			for _, b := range metric.GetHistogram().GetBucket() {
				if bounds[f.GetName()] == nil {
					bounds[f.GetName()] = map[float64]bool{}
				}
				bounds[f.GetName()][b.GetUpperBound()] = true
			}
		}
	}
	for threshold, name := range map[string]string{
		"handoff":  "ringfence_ownership_acquire_seconds",
		"takeover": "ringfence_ownership_takeover_seconds",
		"append":   "ringfence_controllog_append_duration_seconds",
	} {
		found := regexp.MustCompile(`(?m)^ +` + threshold + `: ([0-9.]+),`).FindSubmatch(config)
		if found == nil {
			t.Fatalf("no threshold %s", threshold)
		}
		at, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		if !bounds[name][at] {
			t.Errorf("%v, the threshold of the alert, is no bound of %s: %v", at, name, bounds[name])
		}
	}
}
