package entries

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestMetricsAreInTheReference: every metric has a row in docs/reference.md, whichever reader a router uses.
func TestMetricsAreInTheReference(t *testing.T) {
	page, err := os.ReadFile("../../../docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	NewMetrics(registry)
	descs := make(chan *prometheus.Desc, 100)
	registry.Describe(descs)
	close(descs)
	found := 0
	for d := range descs {
		_, rest, _ := strings.Cut(d.String(), `fqName: "`)
		if name, _, _ := strings.Cut(rest, `"`); !strings.Contains(string(page), "\n| `"+name+"`") {
			t.Errorf("docs/reference.md has no row of %s", name)
		}
		found++
	}
	if found < 8 {
		t.Errorf("found only %d metrics, want at least 8", found)
	}
}
