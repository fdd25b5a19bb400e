package main

import (
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/source"
)

// noteMemoryBound says in the log and in a gauge how much memory events may take.
func noteMemoryBound(cfg node.Config, from source.Config, registry prometheus.Registerer, log *slog.Logger) {
	parts := memoryBound(cfg, from)
	sum := node.MemorySum(parts)
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "ringfence_memory_bound_bytes",
		Help: "The most live memory that events take under any load, as computed from the settings.",
	}).Set(float64(sum))
	attrs := make([]any, 0, len(parts))
	for _, p := range parts {
		attrs = append(attrs, slog.Int(p.Name, p.Bytes))
	}
	log.Info("memory bound", "bytes", sum, slog.Group("parts", attrs...))
	if limit := debug.SetMemoryLimit(-1); int64(sum) > limit {
		log.Warn("the memory bound exceeds GOMEMLIMIT: raise GOMEMLIMIT, or lower the settings of the largest parts", "bytes", sum, "limit", limit)
	}
}

// memoryBound is the bound of a node plus the memory that callers of its gRPC listeners can
// occupy before their Hello.
func memoryBound(cfg node.Config, from source.Config) []node.MemoryPart {
	strangers := listen.AppStrangers().Memory(cfg.App.ListenerBytes()) + listen.PeerStrangers().Memory(cfg.Forward.ListenerBytes())
	return append(node.MemoryBound(cfg, from), node.MemoryPart{Name: "strangers", Bytes: strangers})
}

// eventBytesWorst is the largest message that a stock broker takes.
const eventBytesWorst = 5 << 20

// printMemoryBound shows the bound by parts, as comments below the settings.
func printMemoryBound(w io.Writer, cfg config.Config) {
	parts := memoryBound(nodeConfigOf(cfg), cfg.Pulsar.Config)
	worst := cfg.Pulsar.Config
	worst.EventBytesTypical = max(worst.EventBytesTypical, eventBytesWorst)
	fmt.Fprintf(w, "# memory bound, live: %s; %s if every event had %s\n", mebibytes(node.MemorySum(parts)),
		mebibytes(node.MemorySum(memoryBound(nodeConfigOf(cfg), worst))), mebibytes(worst.EventBytesTypical))
	for _, p := range parts {
		fmt.Fprintf(w, "#   %-12s %s\n", p.Name, mebibytes(p.Bytes))
	}
}

func mebibytes(n int) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
