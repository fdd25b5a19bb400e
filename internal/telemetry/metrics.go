package telemetry

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// NewRegistry returns the registry that all packages of a process share. It knows
// the Go runtime, the process, and which build this is.
func NewRegistry(version string) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
		Name: "ringfence_build_info",
		Help: "Always 1; its labels hold the version, the revision of its source and the Go version.",
	}, []string{"version", "revision", "goversion"}).
		WithLabelValues(version, Revision(), runtime.Version()).Set(1)
	return reg
}

// Revision returns the commit that the binary was built from, or "unknown".
func Revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return "unknown"
}
