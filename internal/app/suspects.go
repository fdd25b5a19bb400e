package app

import (
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// suspects limits the number of events running at a time that were running when a worker crashed. Any of
// them may have crashed it, and most have not. Run together, they would share each further crash
// until all of them went to the dead letter topic. So the more crashes an event has seen, the fewer of
// that level run at a time. From its third crash on, an event runs without another suspect.
//
// It is pure, and not safe for concurrent use.
type suspects struct {
	in   map[event.DeliveryID]uint32 // unfinished deliveries of suspects → crashes
	each [crashLevels]int            // how many of them, by level
}

// suspectsMax bounds the concurrent events with 1, 2, and more crashes.
var suspectsMax = [crashLevels]int{64, 8, 1}

const crashLevels = 3

// suspectPause is the delay before an event that found no room tries again.
const suspectPause = 50 * time.Millisecond

func crashLevel(crashes uint32) int { return int(min(crashes, crashLevels)) - 1 }

// admit takes a suspect in, and reports false if there is no room for it.
func (w *suspects) admit(d *event.Delivery) bool {
	level := crashLevel(d.Crashes)
	if w.each[level] >= suspectsMax[level] {
		return false
	}
	if w.in == nil {
		w.in = make(map[event.DeliveryID]uint32)
	}
	w.in[d.ID] = d.Crashes
	w.each[level]++
	return true
}

// discharge forgets deliveries that are over.
func (w *suspects) discharge(results []event.Result) {
	for i := range results {
		if crashes, ok := w.in[results[i].Delivery]; ok {
			delete(w.in, results[i].Delivery)
			w.each[crashLevel(crashes)]--
		}
	}
}
