package app

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ringfence/router/internal/base/event"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// Many events are delivered together, and one of them always kills the application. Only that event
// reaches five crashes, and all other events are handled.
func TestOneEventThatKillsTakesNoOthersAlong(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const crashesMax, events, killer = 5, 1000, event.DeliveryID(1)
		crashes := make(map[event.DeliveryID]uint32)
		for id := range event.DeliveryID(events) {
			crashes[id+1] = 0
		}
		var w suspects
		var dead []event.DeliveryID
		rounds := 0
		for ; len(crashes) > 0; rounds++ {
			var taken []event.Delivery
			for id, n := range crashes {
				taken = append(taken, event.Delivery{ID: id, Crashes: n})
			}
			rng.Shuffle(len(taken), func(i, j int) { taken[i], taken[j] = taken[j], taken[i] })
			running := slices.DeleteFunc(taken, func(d event.Delivery) bool { return d.Crashes > 0 && !w.admit(&d) })
			killed := slices.ContainsFunc(running, func(d event.Delivery) bool { return d.ID == killer })
			for _, d := range running {
				w.discharge([]event.Result{{Delivery: d.ID}})
				switch {
				case !killed:
					delete(crashes, d.ID)
				case d.Crashes+1 == crashesMax:
					delete(crashes, d.ID)
					dead = append(dead, d.ID)
				default:
					crashes[d.ID]++
				}
			}
		}
		if !slices.Equal(dead, []event.DeliveryID{killer}) {
			t.Errorf("seed %d: %v went to the dead letter topic, want the one that kills alone", seed, dead)
		}
		if len(w.in) != 0 || w.each != [crashLevels]int{} {
			t.Errorf("seed %d: %d suspects are left, by level %v", seed, len(w.in), w.each)
		}
	}
}

// Through the stream: the running events of a crash are redelivered in small numbers.
func TestSuspectsAreGivenOutApart(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	var suspects []event.Delivery
	for p := range 5 {
		d := delivery(p, 0)
		d.Crashes = 4
		suspects = append(suspects, d)
	}
	r.fill(append(suspects, delivery(9, 0))...)
	frame := w.recv().GetDeliveries()
	if n := len(frame.GetDeliveries()); n != 2 {
		t.Fatalf("%d deliveries, want one suspect and the one that is none", n)
	}
	for range 4 {
		if got := <-r.boxes.finished; got.Kind != event.ResultPutOff || got.After != suspectPause {
			t.Errorf("result = %+v, want to be put off", got)
		}
	}
}
