//go:build slewclock

package clock

import (
	"testing"
	"time"
)

func TestSlewedFollowsItsRates(t *testing.T) {
	const second = time.Second
	for _, test := range []struct {
		rates []float64
		d     time.Duration
		want  time.Duration
	}{
		{[]float64{1}, 100 * second, 0},
		{[]float64{1.5}, 25 * second, 12500 * time.Millisecond},
		{[]float64{1.5, 0.5}, 4 * second, 2 * second},
		{[]float64{1.5, 0.5}, 10 * second, 5 * second},
		{[]float64{1.5, 0.5}, 14 * second, 3 * second},
		{[]float64{1.5, 0.5}, 20 * second, 0},
		{[]float64{1.5, 0.5}, 44 * second, 2 * second},
		{[]float64{1.5, 1, 0.5}, 25 * second, 2500 * time.Millisecond},
		{[]float64{1.5, 1, 0.5}, 95 * second, 2500 * time.Millisecond},
	} {
		if got := slewed(test.d, test.rates, 10*second); got != test.want {
			t.Errorf("%v at %v: ahead by %v, want %v", test.d, test.rates, got, test.want)
		}
	}
}
