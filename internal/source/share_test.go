package source

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// A group of four grows to sixteen. The four hold their former shares for a while; the others leave room for that.
func TestShareGrowsFromAnEighth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, broker, _ := runFake(t, 1, func(*event.Event) {}, func(*Config) {})
		bounds := func() []int {
			broker.mu.Lock()
			defer broker.mu.Unlock()
			return slices.Compact(slices.Clone(broker.bounds))
		}
		synctest.Wait()
		src.SetMembers(4)
		src.SetMembers(16)
		time.Sleep(time.Second)
		synctest.Wait()
		src.SetMembers(4)
		time.Sleep(time.Minute)
		src.SetMembers(16)
		want := []int{5625, 1406, 2812, 11250, 22500, 45000, 11250}
		if got := bounds(); !slices.Equal(got, want) {
			t.Errorf("bounds of unacked events: %v, want %v", got, want)
		}
		former := DefaultConfig().unackedMax(4, rampSteps)
		beginning := DefaultConfig().unackedMax(16, 0)
		if sum, most := 4*former+12*beginning, DefaultConfig().UnackedSubscriptionMax; sum > most {
			t.Errorf("four former members and twelve new ones take %d of %d", sum, most)
		}
	})
}
