package clock

import (
	"testing"
	"time"
)

func TestNowGrows(t *testing.T) {
	a := Now()
	time.Sleep(2 * time.Millisecond)
	if d := Now().Sub(a); d < 2*time.Millisecond || d > 5*time.Second {
		t.Errorf("2 ms of sleep took %v on the lease clock", d)
	}
}
