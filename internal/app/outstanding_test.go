package app

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

const (
	second = clock.Instant(time.Second)
	margin = 200 * time.Millisecond
)

// delivery of partition p with id p*10+i.
func delivery(p, i int) event.Delivery {
	return sized(event.Delivery{ID: event.DeliveryID(p*10 + i), Partition: ring.Partition(p), Ref: event.RefTo(&event.Event{Payload: make([]byte, 100)})})
}

// sized returns a delivery with the size of its event, as mailboxes give it.
func sized(d event.Delivery) event.Delivery {
	d.Size = uint32(d.Weight())
	return d
}

// busy returns an Outstanding that has sent one delivery for each partition.
func busy(t *testing.T, partitions ...int) *Outstanding {
	t.Helper()
	d := NewOutstanding(100)
	d.StartTake()
	var ds []event.Delivery
	for _, p := range partitions {
		ds = append(ds, delivery(p, 0))
	}
	if back := d.Give(ds, nil); len(back) > 0 {
		t.Fatalf("Give returned %v", back)
	}
	d.Frame(100, 1<<20, 1<<20, nil, nil)
	return d
}

func leaseUntil(i clock.Instant, draining ...ring.Partition) ownership.Lease {
	return ownership.Lease{Until: i, Draining: ownership.SetOf(draining...)}
}

// name returns the worker's name of the delivery with an id, 0 if it has not been sent.
func (d *Outstanding) name(id event.DeliveryID) event.DeliveryID {
	for s := range d.sent.all() {
		if s.id == id {
			return s.name
		}
	}
	return 0
}

// names is name for several, as a Pong lists them.
func (d *Outstanding) names(ids ...event.DeliveryID) (names []uint64) {
	for _, id := range ids {
		names = append(names, uint64(d.name(id)))
	}
	return names
}

func show(results []event.Result) string {
	s := ""
	for _, r := range results {
		s += fmt.Sprintf("%d:%v ", r.Delivery, r.Kind)
	}
	return s
}

func wantResults(t *testing.T, what string, got []event.Result, want string) {
	t.Helper()
	if show(got) != want {
		t.Errorf("%s: results = %q, want %q", what, show(got), want)
	}
}

func TestCredit(t *testing.T) {
	d := NewOutstanding(3)
	if got := d.StartTake(); got != 3 {
		t.Fatalf("room = %d, want 3", got)
	}
	d.Give([]event.Delivery{delivery(1, 0), delivery(1, 1)}, nil)
	if got := d.StartTake(); got != 1 {
		t.Errorf("room with 2 unanswered = %d, want 1", got)
	}
	d.Give([]event.Delivery{delivery(1, 2)}, nil)
	if got := d.StartTake(); got != 0 {
		t.Errorf("room of a full worker = %d, want 0", got)
	}
	d.Frame(100, 1<<20, 1<<20, nil, nil)
	d.Answer([]event.Result{{Delivery: d.name(11), Kind: event.ResultDone}}, nil)
	if got := d.StartTake(); got != 1 {
		t.Errorf("room after an answer = %d, want 1", got)
	}
}

func TestFrameBounds(t *testing.T) {
	d := NewOutstanding(100)
	d.StartTake()
	large := sized(event.Delivery{ID: 99, Ref: event.RefTo(&event.Event{Payload: make([]byte, 5000)})})
	huge := sized(event.Delivery{ID: 98, Ref: event.RefTo(&event.Event{Payload: make([]byte, 20_000)})})
	d.Give([]event.Delivery{delivery(1, 0), delivery(1, 1), delivery(1, 2), large, huge, delivery(1, 3)}, nil)
	var frames []int
	var rejected []event.Result
	for d.Unsent() {
		var frame []event.Delivery
		frame, rejected = d.Frame(2, 1000, 10_000, nil, rejected)
		frames = append(frames, len(frame))
	}
	if !slices.Equal(frames, []int{2, 1, 1, 1}) {
		t.Errorf("frames of %v, want 2 (count), 1 and 1 (the large one goes alone), 1", frames)
	}
	wantResults(t, "an event that no frame can hold", rejected, "98:reject ")
	if d.Len() != 5 {
		t.Errorf("%d unanswered, want 5", d.Len())
	}
}

// TestErrorsDoNotMakeAnEventTooLarge: an event that fits is not rejected at its next attempt because of the texts of
// its failures, which no frame carries.
func TestErrorsDoNotMakeAnEventTooLarge(t *testing.T) {
	e := &event.Event{Payload: make([]byte, 5000)}
	most := e.Bytes()
	for range 2 {
		d := NewOutstanding(100)
		d.StartTake()
		d.Give([]event.Delivery{sized(event.Delivery{ID: 99, Ref: event.RefTo(e)})}, nil)
		frame, rejected := d.Frame(1, 1000, most, nil, nil)
		if len(frame) != 1 {
			t.Errorf("after %q: %d in the frame, rejected %+v", e.LastError, len(frame), rejected)
		}
		e.FirstError, e.LastError = "the first failure", "the last one"
	}
	e.Payload = make([]byte, 5001)
	d := NewOutstanding(100)
	d.StartTake()
	d.Give([]event.Delivery{sized(event.Delivery{ID: 99, Ref: event.RefTo(e)})}, nil)
	_, rejected := d.Frame(1, 1000, most, nil, nil)
	wantResults(t, "an event that is larger without them", rejected, "99:reject ")
}

// Frames are made of some events at a time, and end anywhere in them.
func TestFramesGiveAllInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const eventMax = 1000
		d := NewOutstanding(1000)
		d.StartTake()
		var given []event.Delivery
		var want, got []event.DeliveryID
		large := 0
		for i := range rapid.IntRange(0, 300).Draw(t, "given") {
			size := rapid.IntRange(0, eventMax-200).Draw(t, "bytes") // an event weighs 256 more
			given = append(given, sized(event.Delivery{ID: event.DeliveryID(i), Ref: event.RefTo(&event.Event{Payload: make([]byte, size)})}))
			if given[i].Object.Bytes() > eventMax {
				large++
			} else {
				want = append(want, given[i].ID)
			}
		}
		d.Give(given, nil)
		var rejected []event.Result
		for d.Unsent() {
			events, bytes := rapid.IntRange(1, 200).Draw(t, "events"), rapid.IntRange(1, 100_000).Draw(t, "bytes of frame")
			var frame []event.Delivery
			frame, rejected = d.Frame(events, bytes, eventMax, nil, rejected)
			sum := 0
			for _, x := range frame {
				got = append(got, d.sent.of(x.ID).id)
				sum += x.Object.Bytes()
			}
			if len(frame) > events || sum > bytes && len(frame) > 1 {
				t.Fatalf("a frame of %d events and %d bytes, want at most %d and %d", len(frame), sum, events, bytes)
			}
			if len(frame) == 0 && d.Unsent() {
				t.Fatal("an empty frame")
			}
		}
		if !slices.Equal(got, want) || len(rejected) != large {
			t.Fatalf("sent %v and rejected %d, want %v and %d", got, len(rejected), want, large)
		}
	})
}

func TestAnswersInTheirOwnMemory(t *testing.T) {
	d := busy(t, 1, 2)
	results := []event.Result{
		{Delivery: 777, Kind: event.ResultDone},
		{Delivery: d.name(20), Kind: event.ResultRetry, Reason: "later"},
		{Delivery: 778, Kind: event.ResultDone},
		{Delivery: d.name(10), Kind: event.ResultDone},
	}
	wantResults(t, "those that are known", d.Answer(results, results[:0]), "20:retry 10:done ")
}

func TestAnswers(t *testing.T) {
	d := busy(t, 1, 2)
	d.StartTake()
	d.Give([]event.Delivery{delivery(3, 0)}, nil) // not sent, so it cannot have been answered
	name := d.name(10)
	got := d.Answer([]event.Result{
		{Delivery: name, Kind: event.ResultDone},
		{Delivery: name, Kind: event.ResultRetry},
		{Delivery: 30, Kind: event.ResultDone},
		{Delivery: d.name(20) + 1<<slotBits, Kind: event.ResultDone}, // the slot's next use
		{Delivery: 777, Kind: event.ResultDone},
	}, nil)
	wantResults(t, "once each, and only what was sent", got, "10:done ")
	if s := d.Stats(); s.Unknown != 4 {
		t.Errorf("unknown = %d, want 4", s.Unknown)
	}
}

func TestPongArithmetic(t *testing.T) {
	tests := map[string]struct {
		lease ownership.Lease
		want  time.Duration
	}{
		"a lease":                   {lease: leaseUntil(12 * second), want: 1800 * time.Millisecond},
		"a lease within the margin": {lease: leaseUntil(10*second + clock.Instant(margin)), want: 0},
		"a lapsed lease":            {lease: leaseUntil(9 * second), want: 0},
		"no lease":                  {want: 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := busy(t, 1)
			got, _ := d.Pong(10*second, test.lease, margin, nil)
			if got != test.want {
				t.Errorf("remaining = %v, want %v", got, test.want)
			}
			moved := d.until != 0
			if moved != (test.want > 0) {
				t.Errorf("until moved: %v, want %v", moved, test.want > 0)
			}
		})
	}
}

func TestBrokenStreamIsOverOnlyAfterItsDeadline(t *testing.T) {
	d := busy(t, 1, 2)
	d.Pong(10*second, leaseUntil(12*second), margin, nil)
	d.StartTake()
	d.Give([]event.Delivery{delivery(3, 0)}, nil)
	wantResults(t, "what never went out", d.Break(nil), "30:not_started ")
	if got := d.Next(); got != 12*second {
		t.Errorf("Next = %v, want the lease of the last Pong, 12s", got)
	}
	wantResults(t, "before the deadline", d.Expire(12*second-1, nil), "")
	wantResults(t, "an answer that was on its way", d.Answer([]event.Result{{Delivery: d.name(10), Kind: event.ResultDone}}, nil), "10:done ")
	wantResults(t, "at the deadline", d.Expire(12*second, nil), "20:lost ")
	if d.Len() != 0 || d.Next() != clock.Forever {
		t.Errorf("%d left, next %v; want nothing", d.Len(), d.Next())
	}
	if d.StartTake() != 0 {
		t.Error("a broken stream takes")
	}
}

func TestWholeStreamIsNeverOverByTime(t *testing.T) {
	d := busy(t, 1)
	d.Pong(10*second, leaseUntil(12*second), margin, nil)
	wantResults(t, "long after", d.Expire(1000*second, nil), "")
}

func TestRevokeFreezesAndDrainingExtends(t *testing.T) {
	d := busy(t, 1, 2)
	d.Pong(10*second, leaseUntil(12*second), margin, nil)
	tell, _ := d.Revoke(ownership.SetOf(1), false, nil)
	if !tell {
		t.Error("a Revoke of its partition is not sent to the worker")
	}
	if _, draining := d.Pong(11*second, leaseUntil(13*second, 1), margin, nil); !slices.Equal(draining, d.names(10)) {
		t.Errorf("draining = %v, want the revoked delivery", draining)
	}
	if _, draining := d.Pong(12*second, leaseUntil(14*second), margin, nil); len(draining) > 0 {
		t.Errorf("draining = %v, though the lease does not list the partition", draining)
	}
	d.Force(ownership.SetOf(1))
	if _, draining := d.Pong(12*second, leaseUntil(15*second, 1), margin, nil); len(draining) > 0 {
		t.Errorf("draining = %v, though it is forced", draining)
	}
	wantResults(t, "forced, before the given deadline", d.Expire(13*second-1, nil), "")
	wantResults(t, "forced, at the given deadline", d.Expire(13*second, nil), "10:lost ")
	wantResults(t, "a late answer", d.Answer([]event.Result{{Delivery: d.name(10), Kind: event.ResultDone}}, nil), "")
	if s := d.Stats(); s.Late != 1 || s.Revoked != 1 {
		t.Errorf("stats = %+v, want one late, one revoked", s)
	}
	wantResults(t, "the other one still works", d.Answer([]event.Result{{Delivery: d.name(20), Kind: event.ResultDone}}, nil), "20:done ")
}

func TestPassedDrainingDeadlineIsNotExtended(t *testing.T) {
	d := busy(t, 1)
	d.Pong(10*second, leaseUntil(12*second), margin, nil)
	d.Revoke(ownership.SetOf(1), false, nil)
	if _, draining := d.Pong(12*second, leaseUntil(14*second, 1), margin, nil); len(draining) > 0 {
		t.Errorf("draining = %v, though its deadline has passed", draining)
	}
	d.Force(ownership.SetOf(1))
	wantResults(t, "forced after its deadline", d.Expire(12*second, nil), "10:lost ")
}

func TestFinalRevokeIsNeverListed(t *testing.T) { // a Genesis, LOST
	for name, revoke := range map[string]func(*Outstanding){
		"all":               func(d *Outstanding) { d.RevokeAll(nil) },
		"final":             func(d *Outstanding) { d.Revoke(ownership.SetOf(1), true, nil) },
		"final, the second": func(d *Outstanding) { d.Revoke(ownership.SetOf(1), false, nil); d.RevokeAll(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			d := busy(t, 1)
			d.Pong(10*second, leaseUntil(12*second), margin, nil)
			revoke(d)
			if _, draining := d.Pong(11*second, leaseUntil(13*second, 1), margin, nil); len(draining) > 0 {
				t.Errorf("draining = %v, want none", draining)
			}
			wantResults(t, "at the last deadline", d.Expire(12*second, nil), "10:lost ")
		})
	}
}

func TestRevokeTakesBackWhatHasNotGoneOut(t *testing.T) {
	d := busy(t, 4)
	d.StartTake()
	d.Give([]event.Delivery{delivery(1, 0), delivery(2, 0), delivery(1, 1)}, nil)
	tell, back := d.Revoke(ownership.SetOf(1), false, nil)
	wantResults(t, "unsent", back, "10:not_started 11:not_started ")
	if tell {
		t.Error("the Revoke names deliveries that the worker never had")
	}
	frame, _ := d.Frame(10, 1<<20, 1<<20, nil, nil)
	if len(frame) != 1 || frame[0].ID != d.name(20) {
		t.Errorf("next frame = %v, want delivery 20 alone", frame)
	}
}

// The mailboxes gave them before the gate closed, the Revoke overtook them.
func TestRevokeWhileTaking(t *testing.T) {
	tests := map[string]struct {
		revoke func(*Outstanding)
		want   string
	}{
		"one partition": {revoke: func(d *Outstanding) { d.Revoke(ownership.SetOf(1), false, nil) }, want: "10:not_started "},
		"all":           {revoke: func(d *Outstanding) { d.RevokeAll(nil) }, want: "10:not_started 20:not_started "},
		"broken":        {revoke: func(d *Outstanding) { d.Break(nil) }, want: "10:not_started 20:not_started "},
		"drained":       {revoke: func(d *Outstanding) { d.Drain(nil) }, want: "10:not_started 20:not_started "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := NewOutstanding(10)
			d.StartTake()
			test.revoke(d)
			wantResults(t, "given late", d.Give([]event.Delivery{delivery(1, 0), delivery(2, 0)}, nil), test.want)
		})
	}
	t.Run("is forgotten afterwards", func(t *testing.T) {
		d := NewOutstanding(10)
		d.Revoke(ownership.SetOf(1), false, nil)
		d.StartTake()
		wantResults(t, "a new tenure", d.Give([]event.Delivery{delivery(1, 0)}, nil), "")
	})
}

// Single deliveries are taken back wherever they are on their way to the worker.
func TestTakeBack(t *testing.T) {
	d := busy(t, 1, 2, 3)
	d.Pong(10*second, leaseUntil(12*second), margin, nil)
	d.Revoke(ownership.SetOf(3), false, nil)
	d.StartTake()
	d.Give([]event.Delivery{delivery(4, 0), delivery(4, 1)}, nil)
	d.StartTake()
	told, back := d.TakeBack([]event.DeliveryID{10, 30, 40, 50, 777}, nil, nil)
	if !slices.Equal(told, d.names(10, 30)) {
		t.Errorf("told to end %v, want those that have gone out, the revoked one too", told)
	}
	wantResults(t, "unsent", back, "40:not_started ")
	wantResults(t, "given late", d.Give([]event.Delivery{delivery(5, 0), delivery(5, 1)}, nil), "50:not_started ")
	if _, draining := d.Pong(11*second, leaseUntil(13*second, 1, 3), margin, nil); len(draining) > 0 {
		t.Errorf("%v continue", draining)
	}
	wantResults(t, "answered in time", d.Answer([]event.Result{{Delivery: d.name(10), Kind: event.ResultDone}}, nil), "10:done ")
	wantResults(t, "before its deadline", d.Expire(12*second-1, nil), "")
	wantResults(t, "at its deadline", d.Expire(12*second, nil), "30:lost ")
	if s := d.Stats(); s.Revoked != 2 {
		t.Errorf("%d are counted as revoked, want 2", s.Revoked)
	}
	d.StartTake()
	wantResults(t, "afterwards", d.Give([]event.Delivery{delivery(5, 2)}, nil), "")
}

// A toy worker that uses its deadlines to the last instant, as rule 7 allows it. It
// works on whatever is sent until its deadline and never answers in time, so every
// delivery is running as long as it may. Whatever happens, no delivery is over for
// the Outstanding while the worker may still run it.
func TestNothingIsOverWhileItMayRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := second
		d := NewOutstanding(50)
		newest := clock.Instant(0) // the worker's newest deadline
		own := map[event.DeliveryID]clock.Instant{}
		partition := map[event.DeliveryID]ring.Partition{}
		idOf := map[event.DeliveryID]event.DeliveryID{} // by name
		var next event.DeliveryID
		leaseEnd := clock.Instant(0)
		broken := false
		deadline := func(id event.DeliveryID) clock.Instant {
			if at, frozen := own[id]; frozen {
				return at
			}
			return newest
		}
		over := func(results []event.Result) {
			for _, r := range results {
				if at := deadline(r.Delivery); now.Before(at) {
					t.Fatalf("delivery %d is over at %v, and may run until %v", r.Delivery, now, at)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"give": func(t *rapid.T) {
				if d.StartTake() == 0 {
					return
				}
				next++
				p := ring.Partition(rapid.IntRange(0, 2).Draw(t, "p"))
				d.Give([]event.Delivery{{ID: next, Partition: p, Ref: event.RefTo(&event.Event{})}}, nil)
				sent, _ := d.Frame(10, 1<<20, 1<<20, nil, nil)
				for _, s := range sent {
					idOf[s.ID], partition[next] = next, s.Partition
				}
			},
			"ping": func(t *rapid.T) {
				if broken {
					return
				}
				a := now
				now += clock.Instant(rapid.IntRange(0, 300).Draw(t, "ms")) * clock.Instant(time.Millisecond)
				if rapid.Bool().Draw(t, "renewed") {
					leaseEnd = max(leaseEnd, now+2*second)
				}
				lease := leaseUntil(leaseEnd, ring.Partition(rapid.IntRange(0, 2).Draw(t, "draining")))
				remaining, draining := d.Pong(now, lease, margin, nil)
				if remaining <= 0 || rapid.Bool().Draw(t, "lost on its way") {
					return
				}
				for _, name := range draining {
					id := idOf[event.DeliveryID(name)]
					if at, ok := own[id]; ok && now.Before(at) {
						own[id] = max(at, a.Add(remaining))
					}
				}
				newest = max(newest, a.Add(remaining))
			},
			"revoke": func(t *rapid.T) {
				p := ring.Partition(rapid.IntRange(0, 2).Draw(t, "p"))
				d.Revoke(ownership.SetOf(p), rapid.Bool().Draw(t, "final"), nil)
				for id, of := range partition {
					if _, frozen := own[id]; of == p && !frozen && !broken {
						own[id] = newest
					}
				}
			},
			"take back": func(t *rapid.T) {
				if next == 0 {
					return
				}
				id := event.DeliveryID(rapid.Uint64Range(1, uint64(next)).Draw(t, "id"))
				d.TakeBack([]event.DeliveryID{id}, nil, nil)
				if _, frozen := own[id]; !frozen && !broken {
					own[id] = newest
				}
			},
			"force": func(t *rapid.T) { d.Force(ownership.SetOf(0, 1, 2)) },
			"wait": func(t *rapid.T) {
				now += clock.Instant(rapid.IntRange(0, 3000).Draw(t, "ms")) * clock.Instant(time.Millisecond)
			},
			"expire": func(*rapid.T) { over(d.Expire(now, nil)) },
			"break": func(t *rapid.T) {
				if rapid.IntRange(0, 20).Draw(t, "now") == 0 {
					broken = true
					d.Break(nil)
				}
			},
		})
		d.Force(ownership.SetOf(0, 1, 2))
		d.Break(nil)
		now += 10 * second
		if d.Expire(now, nil); d.Len() != 0 {
			t.Fatalf("%d deliveries are never over", d.Len())
		}
	})
}

// TestGiveBeginsAnew: what was taken back while deliveries were being taken does not touch those that are taken later.
func TestGiveBeginsAnew(t *testing.T) {
	for name, back := range map[string]func(d *Outstanding){
		"all":        func(d *Outstanding) { d.RevokeAll(nil) },
		"partitions": func(d *Outstanding) { d.Revoke(ownership.SetOf(1), false, nil) },
		"one by one": func(d *Outstanding) { d.TakeBack([]event.DeliveryID{10}, nil, nil) },
	} {
		d := NewOutstanding(10)
		d.StartTake()
		back(d)
		wantResults(t, name+": meanwhile", d.Give([]event.Delivery{delivery(1, 0)}, nil), "10:not_started ")
		d.StartTake()
		wantResults(t, name+": later", d.Give([]event.Delivery{delivery(1, 0)}, nil), "")
		back(d) // nothing is being taken
		d.StartTake()
		wantResults(t, name+": after one in between", d.Give([]event.Delivery{delivery(1, 0)}, nil), "")
	}
	d := NewOutstanding(10)
	if d.Drain(nil); d.StartTake() != 0 {
		t.Error("a worker that drains is given more")
	}
}

// TestRevokeAfterAFrame: the deliveries behind those of a frame are taken back or go out, each once.
func TestRevokeAfterAFrame(t *testing.T) {
	d := NewOutstanding(10)
	d.StartTake()
	d.Give([]event.Delivery{delivery(1, 0), delivery(1, 1), delivery(2, 0), delivery(1, 2)}, nil)
	if frame, _ := d.Frame(1, 1<<20, 1<<20, nil, nil); len(frame) != 1 {
		t.Fatalf("%d in the frame, want 1", len(frame))
	}
	_, back := d.Revoke(ownership.SetOf(1), false, nil)
	wantResults(t, "taken back", back, "11:not_started 12:not_started ")
	d.Frame(10, 1<<20, 1<<20, nil, nil)
	if d.name(20) == 0 || d.Unsent() || d.Len() != 2 {
		t.Errorf("the delivery that stays has the name %d, unsent: %t, held: %d", d.name(20), d.Unsent(), d.Len())
	}
}

// TestNamesDoNotRepeat: a late answer to an earlier delivery does not settle the one that has its place.
func TestNamesDoNotRepeat(t *testing.T) {
	d := busy(t, 1)
	old := event.Result{Delivery: d.name(10), Kind: event.ResultDone}
	d.Answer([]event.Result{old}, nil)
	d.StartTake()
	d.Give([]event.Delivery{delivery(2, 0)}, nil)
	d.Frame(10, 1<<20, 1<<20, nil, nil)
	wantResults(t, "the answer comes again", d.Answer([]event.Result{old}, nil), "")
	if d.Len() != 1 || d.Stats().Unknown != 1 {
		t.Errorf("%d are held, want 1", d.Len())
	}
}

// TestPongsOnlyExtend: an earlier lease takes nothing back that a worker was promised, and what is over is forgotten.
func TestPongsOnlyExtend(t *testing.T) {
	d := busy(t, 1, 2)
	d.Pong(0, leaseUntil(5*second), 0, nil)
	d.Pong(0, leaseUntil(3*second), 0, nil)
	d.Revoke(ownership.SetOf(1), false, nil)
	d.Answer([]event.Result{{Delivery: d.name(10), Kind: event.ResultDone}}, nil)
	d.Pong(0, leaseUntil(3*second), 0, nil)
	if len(d.revoked) > 0 {
		t.Errorf("%d names of revoked deliveries are kept, want none: all are answered", len(d.revoked))
	}
	d.Break(nil)
	wantResults(t, "after the earlier lease", d.Expire(4*second, nil), "")
	wantResults(t, "after the later one", d.Expire(5*second, nil), "20:lost ")
	d = busy(t, 1)
	d.Break(nil)
	if told := d.TimeOut(0, nil); len(told) > 0 {
		t.Errorf("on a broken stream %v are taken back for their slowness", told)
	}
}

// TestRevokesComeBeforeThePong: a worker that read the Pong first would count the later deadline for what was taken
// back, whose end is counted from the earlier one here.
func TestRevokesComeBeforeThePong(t *testing.T) {
	for name, mark := range map[string]func(w *session){
		"too slow":   func(w *session) { w.timedOut = []uint64{7} },
		"skipped":    func(w *session) { w.skipped = []uint64{7} },
		"partitions": func(w *session) { w.revoked[7] = struct{}{} },
		"all":        func(w *session) { w.revokedAll = true },
	} {
		w := newSession(nil)
		w.pinged = true
		mark(w)
		if f := w.nextControl(); f.GetRevoke() == nil || !w.pinged {
			t.Errorf("%s: the first frame is %v", name, f)
		}
	}
}
