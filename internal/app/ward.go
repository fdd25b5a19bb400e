package app

import (
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// ward keeps apart the events that a worker had when it crashed. Any of them may have
// killed it, most have not, and together they would be lost together again, until all
// of them went to the dead letter topic. So the more often an event was there, the
// fewer of its like run at a time: when the next worker crashes, fewer are suspected.
// One event that kills is alone from its third crash on.
//
// It is pure, and not safe for concurrent use.
type ward struct {
	in   map[event.DeliveryID]uint32 // deliveries of suspects that are not over → crashes
	each [wardLevels]int             // how many of them, by level
}

// wardMax is how many events with 1, 2, and more crashes run at a time.
var wardMax = [wardLevels]int{64, 8, 1}

const wardLevels = 3

// wardPause is when an event that found no room tries again.
const wardPause = 50 * time.Millisecond

func wardLevel(crashes uint32) int { return int(min(crashes, wardLevels)) - 1 }

// admit takes the suspects among the deliveries in, as far as there is room. Those for
// which there is none it removes from taken, and appends a result for them to dst that
// puts them off.
func (w *ward) admit(taken []event.Delivery, dst []event.Result) (admitted []event.Delivery, _ []event.Result) {
	admitted = taken[:0]
	for i := range taken {
		d := &taken[i]
		if d.Crashes > 0 {
			level := wardLevel(d.Crashes)
			if w.each[level] >= wardMax[level] {
				dst = append(dst, event.Result{Delivery: d.ID, Kind: event.ResultPutOff, After: wardPause})
				continue
			}
			if w.in == nil {
				w.in = make(map[event.DeliveryID]uint32)
			}
			w.in[d.ID] = d.Crashes
			w.each[level]++
		}
		admitted = append(admitted, *d)
	}
	clear(taken[len(admitted):])
	return admitted, dst
}

// discharge lets go of deliveries that are over.
func (w *ward) discharge(results []event.Result) {
	for i := range results {
		if crashes, ok := w.in[results[i].Delivery]; ok {
			delete(w.in, results[i].Delivery)
			w.each[wardLevel(crashes)]--
		}
	}
}

func suspicious(taken []event.Delivery) bool {
	for i := range taken {
		if taken[i].Crashes > 0 {
			return true
		}
	}
	return false
}
