package hotkeys

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"github.com/ringfence/router/ring"
)

func hashOf(n int) ring.KeyHash {
	return ring.KeyHash(xxhash.Sum64([]byte{byte(n), byte(n >> 8), byte(n >> 16), 1}))
}

// The documented bounds hold for any stream: a counter is never too small and too great by its
// error at most, and a key with more than a quarter of its set has one.
func TestCountersAreOffByTheirErrorAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sketch Sketch
		keys := rapid.IntRange(1, 40).Draw(t, "keys")
		type truth struct {
			events uint64
			busy   time.Duration
		}
		of := map[ring.KeyHash]truth{}
		var all truth
		for range rapid.IntRange(0, 400).Draw(t, "events") {
			key := ring.KeyHash(rapid.IntRange(0, keys-1).Draw(t, "key")) // all in one set
			took := time.Duration(rapid.IntRange(1, 1000).Draw(t, "took")) * time.Microsecond
			sketch.Add(key, took)
			of[key] = truth{of[key].events + 1, of[key].busy + took}
			all = truth{all.events + 1, all.busy + took}
		}
		for key, want := range of {
			c := sketch.count(key)
			_, often := sketch.byEvents.of(key).at(key)
			if often && (c.Events < want.events || c.Events-c.EventsError > want.events || c.EventsError > all.events/ways) {
				t.Fatalf("%+v, and it is %+v of %+v", c, want, all)
			}
			_, long := sketch.byTime.of(key).at(key)
			if long && (c.Busy < want.busy || c.Busy-c.BusyError > want.busy || c.BusyError > all.busy/ways) {
				t.Fatalf("%+v, and it is %+v of %+v", c, want, all)
			}
			if !often && want.events > all.events/ways || !long && want.busy > all.busy/ways {
				t.Fatalf("key %d has no counter: it is %+v of %+v", key, want, all)
			}
			if !often && c.Events > want.events {
				t.Fatalf("%+v, and it is %+v", c, want)
			}
		}
	})
}

// Among 100,000 keys, those with more than a hundredth of all events or of all time are found,
// with what they have within a tenth.
func TestHotKeysAreFoundAmongMany(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var sketch Sketch
	const events, slow, often = 300_000, 1, 2
	for i := range events {
		key, took := 10+random.IntN(100_000), time.Millisecond
		switch {
		case i%100 == 0:
			key, took = slow, 50*time.Millisecond
		case i%20 == 1:
			key = often
		}
		sketch.Add(hashOf(key), took)
	}
	found := map[ring.KeyHash]Count{}
	for _, c := range sketch.Top(TopMax) {
		found[c.Key] = c
	}
	within := func(name string, got, err, want float64) {
		t.Helper()
		if got < want || got-err > want || got > 1.1*want {
			t.Errorf("%s: %v, which may be %v too much, want %v", name, got, err, want)
		}
	}
	s, o := found[hashOf(slow)], found[hashOf(often)]
	within("time of the slow key", s.Busy.Seconds(), s.BusyError.Seconds(), events/100*0.05)
	within("events of the frequent key", float64(o.Events), float64(o.EventsError), events/20)
	if len(found) > 2*TopMax {
		t.Errorf("%d keys are found", len(found))
	}
}

// windowsOf has one key, busy as told in windows of ten seconds.
func windowsOf(busy ...float64) *Windows {
	w := &Windows{}
	for _, b := range busy {
		w.Add(10*time.Second, []Count{{Key: 1, Events: 100, Busy: time.Duration(b * float64(10*time.Second))}})
	}
	return w
}

// A key that gets busier is foreseen to outgrow its turn, when it goes on as before; one that is
// always busy has; others are not.
func TestForecast(t *testing.T) {
	for name, tt := range map[string]struct {
		busy []float64
		want time.Duration
	}{
		"rises by 0.1 in ten seconds": {[]float64{0.2, 0.3, 0.4, 0.5}, 50 * time.Second},
		"only the last minute counts": {[]float64{9, 9, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}, 30 * time.Second},
		"is always busy":              {[]float64{0.97}, 0},
		"stays":                       {[]float64{0.5, 0.5, 0.5}, NotForeseen},
		"falls":                       {[]float64{0.7, 0.6, 0.5}, NotForeseen},
		"too few windows":             {[]float64{0.2, 0.4}, NotForeseen},
		"is nearly idle":              {[]float64{0.01, 0.02, 0.03}, NotForeseen},
		"rises too slowly":            {[]float64{0.2, 0.2001, 0.2002}, NotForeseen},
	} {
		t.Run(name, func(t *testing.T) {
			keys := windowsOf(tt.busy...).Keys()
			if len(keys) != 1 || keys[0].Rate != 10 {
				t.Fatalf("%+v", keys)
			}
			if got := keys[0].Outgrows; got.Round(time.Second) != tt.want.Round(time.Second) {
				t.Errorf("in %v, want %v", got, tt.want)
			}
		})
	}
	if keys := (&Windows{}).Keys(); len(keys) != 0 {
		t.Errorf("without a window: %v", keys)
	}
}

func BenchmarkAdd(b *testing.B) {
	var sketch Sketch
	random := rand.New(rand.NewPCG(1, 2))
	keys := make([]ring.KeyHash, 1<<16)
	for i := range keys {
		keys[i] = ring.KeyHash(random.Uint64())
	}
	for i := 0; b.Loop(); i++ {
		sketch.Add(keys[i%len(keys)], time.Millisecond)
	}
}
