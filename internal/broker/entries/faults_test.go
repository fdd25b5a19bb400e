package entries

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Despite random faults of two brokers and their connections, every entry is delivered until it is acked. In the end all entries are acked
// and the broker has all permits. A failure prints its seed.
func TestFaults(t *testing.T) {
	const permits = 7
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble(t, func(r *rig) {
				rng := rand.New(rand.NewPCG(seed, 1))
				brokers := []*fakebroker.Broker{r.cluster.Broker("a:6650"), r.cluster.Broker("b:6650")}
				var deaf atomic.Int32 // number of requests to leave unanswered
				for _, b := range brokers {
					b.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
						switch c.GetType() {
						case pulsarpb.BaseCommand_CONNECT, pulsarpb.BaseCommand_LOOKUP, pulsarpb.BaseCommand_SUBSCRIBE:
							return deaf.Add(-1) >= 0
						default:
							return false
						}
					}
				}
				r.cfg.ConnectionsPerBrokerMax = 1 + int(seed%2)
				c := r.subscribe(func(s *Subscription) {
					s.Permits = permits
					if seed%3 == 0 {
						s.Receipt = func([]wire.AckID, error) {}
					}
				})
				published, got, faults := 0, map[wire.ID]int{}, 0
				var held []*Delivered // received and not acked
				for range 300 {
					switch rng.IntN(12) {
					case 0, 1, 2:
						n := 1 + rng.IntN(10)
						r.cluster.Publish(topicName, fakebroker.Batch(strings.Split(strings.Repeat("x", n), "")...), n)
						published++
					case 3, 4, 5:
						ctx, cancel := context.WithTimeout(r.Context(), time.Duration(rng.IntN(300))*time.Millisecond)
						list, _ := r.queue.Receive(ctx, nil, 3)
						cancel()
						Take(list...)
						for _, d := range list {
							got[d.ID]++
						}
						held = append(held, list...)
					case 6, 7:
						n := rng.IntN(len(held) + 1)
						r.ack(c, held[:n]...)
						held = held[n:]
					case 8:
						time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
					case 9:
						brokers[rng.IntN(2)].Cut()
						faults++
					case 10:
						r.cluster.Move(topicName, brokers[rng.IntN(2)], rng.IntN(2) == 0)
						faults++
					case 11:
						b := brokers[rng.IntN(2)]
						if deaf.Store(int32(rng.IntN(3))); rng.IntN(2) == 0 {
							b.Kill()
							time.Sleep(time.Duration(rng.IntN(5000)) * time.Millisecond)
							b.Revive()
						}
						faults++
					}
				}
				deaf.Store(0)
				if published < 30 || faults < 30 {
					t.Fatalf("%d entries and %d faults, want at least 30 of each", published, faults)
				}
				ctx, cancel := context.WithTimeout(r.Context(), 20*time.Minute)
				defer cancel()
				for deadline, quiet := time.Now().Add(10*time.Minute), 0; quiet < 3; quiet++ {
					r.ack(c, held...)
					held = nil
					if time.Now().After(deadline) {
						t.Fatalf("after ten minutes, broker still has %v", r.cluster.Backlog(topicName))
					}
					wait, stop := context.WithTimeout(ctx, time.Minute)
					list, err := r.queue.Receive(wait, nil, 100)
					stop()
					if Take(list...); err == nil {
						quiet = 0
					}
					for _, d := range list {
						got[d.ID]++
					}
					held = append(held, list...)
				}
				synctest.Wait()
				if left, p := r.cluster.Backlog(topicName), r.cluster.Permits(topicName); len(left) != 0 || !slices.Equal(p, []int{permits}) {
					t.Errorf("in the end, broker has %v and permits %v, want nothing and %d", left, p, permits)
				}
				if len(got) != published {
					t.Errorf("%d of %d entries arrived", len(got), published)
				}
			})
		})
	}
}
