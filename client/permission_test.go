package client

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// TestHoldersPermission: which frames of a router move the end of a reservation, and which let its holder begin.
func TestHoldersPermission(t *testing.T) {
	const second = clock.Instant(time.Second)
	granted := func(d time.Duration, token int64) *lanev1.ReserveResponse {
		return &lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Granted{Granted: &lanev1.Granted{RemainingNs: d.Nanoseconds(), Token: token, Turn: 1}}}
	}
	renewed := func(k uint64, d time.Duration) *lanev1.ReserveResponse {
		return &lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Renewed{Renewed: &lanev1.Renewed{K: k, RemainingNs: d.Nanoseconds()}}}
	}
	for name, c := range map[string]struct {
		until  clock.Instant // before
		now    clock.Instant
		frames []*lanev1.ReserveResponse
		begins bool
		want   clock.Instant
	}{
		"granted":                             {0, 11 * second, []*lanev1.ReserveResponse{granted(4*time.Second, 9)}, true, 14 * second},
		"granted, and most of it has passed":  {0, 13 * second, []*lanev1.ReserveResponse{granted(4*time.Second, 9)}, false, 0},
		"renewed":                             {12 * second, 11 * second, []*lanev1.ReserveResponse{renewed(1, 3*time.Second)}, true, 13 * second},
		"renewed for less":                    {14 * second, 11 * second, []*lanev1.ReserveResponse{renewed(1, 3*time.Second)}, true, 14 * second},
		"renewed for a time that has passed":  {0, 14 * second, []*lanev1.ReserveResponse{renewed(1, 3*time.Second)}, false, 0},
		"renewed when it was over":            {12 * second, 12 * second, []*lanev1.ReserveResponse{renewed(1, 3*time.Second)}, false, 12 * second},
		"the answer to a renewal never asked": {12 * second, 11 * second, []*lanev1.ReserveResponse{renewed(9, time.Hour)}, true, 12 * second},
		"an answer that comes twice":          {12 * second, 11 * second, []*lanev1.ReserveResponse{renewed(1, 3*time.Second), renewed(1, time.Hour)}, true, 13 * second},
	} {
		at := still(c.now)
		r := &Reservation{lane: &Lane{options: options{clock: at}}, until: c.until, fence: Fence{Token: 5}, pings: map[uint64]clock.Instant{1: 10 * second}}
		s := &holderStream{Reservation: r, asked: 10 * second}
		begins := false
		for _, f := range c.frames {
			begins = s.extend(f)
		}
		if begins != c.begins || r.until != c.want {
			t.Errorf("%s: begins %t until %v, want %t until %v", name, begins, r.until, c.begins, c.want)
		}
		if s.extend(granted(0, 4)); r.fence.Token < 5 {
			t.Errorf("%s: the fence of a former owner, %v, replaces a greater one", name, r.fence)
		}
	}
	r := &Reservation{lane: &Lane{options: options{clock: still(12 * second)}}, until: 12 * second}
	if !r.overdue() {
		t.Error("a reservation lasts beyond its end")
	}
}

// still is a clock that stands still.
type still clock.Instant

func (s still) Now() clock.Instant  { return clock.Instant(s) }
func (still) Renewed(clock.Instant) {}
func (still) Ended()                {}
