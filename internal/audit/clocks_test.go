package audit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// machine is a machine's clocks by the time that passes for all: their values at time 0, and their rates.
type machine struct {
	boot, lease         time.Duration
	bootRate, leaseRate float64
}

func (m *machine) bootAt(t time.Duration) time.Duration {
	return m.boot + time.Duration(float64(t)*m.bootRate)
}

func (m *machine) leaseAt(t time.Duration) time.Duration {
	return m.lease + time.Duration(float64(t)*m.leaseRate)
}

// clockAt returns the machine's word about its clocks, with a sample a second.
func (m *machine) clockAt(id byte, now time.Duration) Clock {
	var w Wander
	for t := max(0, now-40*time.Second); t < now; t += time.Second {
		w.Note(m.bootAt(t), m.leaseAt(t))
	}
	return w.Clock(Clock{ID: ClockID{id}, Boot: m.bootAt(now), Lease: m.leaseAt(now)})
}

// TestMapCoversTheTruth: whatever the clocks of two machines show and however they drift within the bounds, the truth lies within the
// uncertainty.
func TestMapCoversTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) machine {
			return machine{
				boot: time.Duration(rapid.Int64Range(0, int64(1e6*time.Second)).Draw(t, name+" boot")), lease: time.Duration(rapid.Int64Range(0, int64(1e6*time.Second)).Draw(t, name+" lease")),
				leaseRate: 1 + float64(rapid.IntRange(-100, 100).Draw(t, name+" drift"))/10_000, bootRate: 1 + float64(rapid.IntRange(-500, 500).Draw(t, name+" slew"))/10_000,
			}
		}
		sender, receiver := draw("sender"), draw("receiver")
		const minute = time.Minute
		var trips []Trip
		for range rapid.IntRange(1, 4).Draw(t, "trips") {
			sent := minute + time.Duration(rapid.IntRange(0, 5000).Draw(t, "sent"))*time.Millisecond
			there := sent + time.Duration(rapid.IntRange(0, 20_000).Draw(t, "out"))*time.Microsecond
			back := there + time.Duration(rapid.IntRange(0, 20_000).Draw(t, "back"))*time.Microsecond
			trips = append(trips, Trip{Sent: sender.leaseAt(sent), Back: sender.leaseAt(back), There: receiver.leaseAt(there)})
		}
		now := minute + 6*time.Second
		r := Remote{Sender: sender.clockAt(1, now), Receiver: receiver.clockAt(2, now), Trips: trips}
		end := now - time.Duration(rapid.IntRange(0, 50_000).Draw(t, "ago"))*time.Millisecond
		start := max(0, end-time.Duration(rapid.IntRange(0, 20_000).Draw(t, "length"))*time.Millisecond)
		h := Handling{Start: sender.bootAt(start), End: sender.bootAt(end)}
		m, ok := r.Map(&h)
		if !ok {
			t.Fatal("consistent trips are said to contradict each other")
		}
		const rounding = 2 * time.Microsecond
		if off := (h.Start + m.Shift - receiver.bootAt(start)).Abs(); off > m.StartSlack+rounding {
			t.Fatalf("the start is off by %v, more than %v", off, m.StartSlack)
		}
		if off := (h.End + m.Shift - receiver.bootAt(end)).Abs(); off > m.EndSlack+rounding {
			t.Fatalf("the end is off by %v, more than %v", off, m.EndSlack)
		}
	})
}

func TestSameClock(t *testing.T) {
	here := Clock{ID: ClockID{1}, Boot: time.Hour, Lease: time.Hour}
	trip := Trip{Sent: time.Minute, Back: time.Minute + time.Millisecond, There: time.Minute}
	h := &Handling{Start: time.Second, End: time.Minute}
	for name, test := range map[string]struct {
		remote   Remote
		same, ok bool
	}{
		"one machine":                   {Remote{Sender: here, Receiver: here, Trips: []Trip{trip}}, true, true},
		"another one":                   {Remote{Sender: Clock{ID: ClockID{2}, Boot: time.Hour, Lease: time.Hour}, Receiver: here, Trips: []Trip{trip}}, false, true},
		"without a trip":                {Remote{Sender: Clock{ID: ClockID{2}}, Receiver: here}, false, false},
		"no id":                         {Remote{Sender: Clock{}, Receiver: Clock{}}, false, false},
		"a clone":                       {Remote{Sender: here, Receiver: here, Trips: []Trip{{Sent: time.Minute, Back: time.Minute, There: 2 * time.Minute}}}, false, true},
		"trips that contradict another": {Remote{Sender: Clock{ID: ClockID{2}}, Receiver: here, Trips: []Trip{trip, {Sent: time.Minute, Back: time.Minute, There: 2 * time.Minute}}}, false, false},
	} {
		m, ok := test.remote.Map(h)
		if same := test.remote.SameClock(); same != test.same || ok != test.ok || same && m != (Mapping{}) {
			t.Errorf("%s: same %v, ok %v, mapping %+v", name, same, ok, m)
		}
	}
}
