package entries

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/broker/entries/wire"
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

// TestFirstBrokenEntryIsAnIncrease: alerts ask for the increase of a count, which begins when the count is there.
func TestFirstBrokenEntryIsAnIncrease(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	if n := testutil.CollectAndCount(m.broken); n != len(wire.Reasons) {
		t.Errorf("%d counts of broken entries at the start, want one for each of %d reasons", n, len(wire.Reasons))
	}
}

// Only a position that moves back within a cluster counts.
func TestAPositionThatMovesBackIsCounted(t *testing.T) {
	at := func(cluster uint64, ledger, entry int64) positionAt {
		return positionAt{cluster: cluster, id: wire.ID{Ledger: ledger, Entry: entry}, known: true}
	}
	c := &Consumer{client: &Client{metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler)}}
	for _, step := range []struct {
		what string
		now  positionAt
		want float64
	}{
		{"the first answer", at(1, 5, 7), 0},
		{"forward", at(1, 6, 0), 0},
		{"the same", at(1, 6, 0), 0},
		{"back to an earlier ledger", at(1, 5, 9), 1},
		{"back within it", at(1, 5, 8), 2},
		{"another cluster", at(2, 1, 1), 2},
	} {
		c.stands(step.now)
		if got := testutil.ToFloat64(c.client.metrics.setBack); got != step.want {
			t.Errorf("%s: counted %v, want %v", step.what, got, step.want)
		}
	}
}
