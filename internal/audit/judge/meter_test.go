package judge

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

func delivery(key string, entry int64, change func(*event.Event)) event.Delivery {
	e := &event.Event{Key: event.Key(key), Topic: "orders", ID: event.MessageID{Ledger: 7, Entry: entry, Batch: -1}}
	change(e)
	return event.Delivery{Ref: event.RefTo(e), Key: partition.HashOf(key), Token: 1, Attempt: 1}
}

// Workers of several processes begin events at the same time, and each total is in the metric of its name.
func TestMeter(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMeter(reg)
	plain, again := func(*event.Event) {}, func(e *event.Event) { e.Redelivery = 1 }
	begun := clock.Instant(time.Hour)
	m.Began(begun, []event.Delivery{delivery("a", 9, plain), delivery("b", 9, plain)})
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 500 {
				m.Began(begun.Add(time.Minute), []event.Delivery{delivery("a", 2, plain), delivery("b", 2, again), delivery("b", 3, again)})
			}
		})
	}
	workers.Wait()
	want := map[string]float64{
		"ringfence_order_first_handlings_total":     2 + 8*500*3,
		"ringfence_order_inversions_total received": 8 * 500, "ringfence_order_inversions_total retry": 2 * 8 * 500,
	}
	if got := samples(t, reg); !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
	if keys := m.Keys(); len(keys) != 2 || keys[0].Sum() != 2*8*500 {
		t.Errorf("%+v", keys)
	}
}
