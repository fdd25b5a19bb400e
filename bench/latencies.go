package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/ringfence/router/internal/base/clock"
)

// The histograms hold microseconds, to three digits.
const (
	latencyMax    = 10 * time.Minute // longer ones count as this
	latencyDigits = 3
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, latencyMax.Microseconds(), latencyDigits)
}

// latencies are those of one application process, from the publication of an event
// to the start of its handler, and to when the application was finished with it. Safe
// for concurrent use.
type latencies struct {
	from int // events with lower numbers warm up

	mu         sync.Mutex
	start, end *hdrhistogram.Histogram
}

func newLatencies(from int) *latencies {
	return &latencies{from: from, start: newHistogram(), end: newHistogram()}
}

func (l *latencies) started(payload []byte, now clock.Instant)  { l.add(l.start, payload, now) }
func (l *latencies) finished(payload []byte, now clock.Instant) { l.add(l.end, payload, now) }

func (l *latencies) add(h *hdrhistogram.Histogram, payload []byte, now clock.Instant) {
	n, at, err := readStamp(payload)
	if err != nil || n < l.from {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	recordLatency(h, now.Sub(at))
}

func recordLatency(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(d, latencyMax).Microseconds()) // within bounds it never fails
}

// latencyFile is a worker's output: histograms in HdrHistogram's own encoding.
type latencyFile struct {
	Start []byte `json:"start"`
	End   []byte `json:"end"`
}

func (l *latencies) write(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return writeJSON(path, latencyFile{Start: encoded(l.start), End: encoded(l.end)})
}

// encoded returns a histogram as the files of processes have it.
func encoded(h *hdrhistogram.Histogram) []byte {
	b, _ := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase) // it fails only for another encoding
	return b
}

// addEncoded adds a histogram of a file to another one.
func addEncoded(to *hdrhistogram.Histogram, b []byte) error {
	h, err := hdrhistogram.Decode(b)
	if err == nil {
		to.Merge(h)
	}
	return err
}

// mergeLatencies adds the file of a worker to start and end.
func mergeLatencies(path string, start, end *hdrhistogram.Histogram) error {
	var file latencyFile
	if err := readJSON(path, &file); err != nil {
		return fmt.Errorf("the latencies of an application: %w", err)
	}
	return errors.Join(addEncoded(start, file.Start), addEncoded(end, file.End))
}

// Quantiles are of a latency, in milliseconds.
type Quantiles struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

func quantilesOf(h *hdrhistogram.Histogram) Quantiles {
	ms := func(q float64) float64 { return float64(h.ValueAtPercentile(q)) / 1000 }
	return Quantiles{Count: h.TotalCount(), P50: ms(50), P90: ms(90), P99: ms(99), P999: ms(99.9), Max: float64(h.Max()) / 1000}
}
