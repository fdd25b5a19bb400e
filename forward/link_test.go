package forward

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// The caller sleeps until its Ping is due, counted from the direction that has been quiet for
// longer; the called side sleeps until it gets a Ping.
func TestStreamsSleepUntilTheirBeat(t *testing.T) {
	config := DefaultConfig()
	begin := clock.Instant(time.Hour)
	now := begin
	for _, caller := range []bool{true, false} {
		l := newLink(config, func() clock.Instant { return now }, nil, func(error) {}, caller)
		defer l.silence.Stop()
		p := sender{link: l, sentAt: begin}
		l.heardAt.Store(int64(begin.Add(100 * time.Millisecond)))
		now = begin.Add(100 * time.Millisecond)
		want := config.PingAfter - 100*time.Millisecond
		if !caller {
			want = time.Hour
		}
		if got := p.untilPing(); got != want {
			t.Errorf("caller %v: sleeps for %v, want %v", caller, got, want)
		}
	}
}
