package app

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// The alert on late results asks for the increase of a count, which begins when the count is there.
func TestFirstLateResultIsAnIncrease(t *testing.T) {
	if n := testutil.CollectAndCount(NewMetrics(prometheus.NewRegistry()).ignored); n != 1 {
		t.Errorf("%d counts of ignored results at the start, want that of the late ones", n)
	}
}
