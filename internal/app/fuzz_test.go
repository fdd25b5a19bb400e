package app

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/mem"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// countingBoxes gives as many deliveries as requested and counts how each ends.
type countingBoxes struct {
	ready, last int
	ended       map[event.DeliveryID]int
}

func (*countingBoxes) WorkerUp(event.WorkerID)   {}
func (*countingBoxes) WorkerGone(event.WorkerID) {}

func (b *countingBoxes) Take(w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	if w == event.Keeper { // there are no reservations
		return dst
	}
	for ; b.ready > 0 && limit > 0; b.ready, limit = b.ready-1, limit-1 {
		b.last++
		dst = append(dst, event.Delivery{
			ID: event.DeliveryID(b.last), Ref: event.RefTo(&event.Event{}), Partition: ring.Partition(b.last % 4), Crashes: uint32(b.last % 5),
		})
	}
	return dst
}

func (b *countingBoxes) Finish(results []event.Result) {
	for _, r := range results {
		b.ended[r.Delivery]++
	}
}

// fuzzed is one stream that a fuzzer drives.
type fuzzed struct {
	boxes  countingBoxes
	now    clock.Instant
	lease  ownership.Lease
	server *Server
	stream *Manual
	names  []uint64 // of deliveries given to the worker, answered or not
	frame  uint64   // newest Deliveries frame
	number uint64   // newest Results frame
}

func newFuzzed(t *testing.T) *fuzzed {
	z := &fuzzed{boxes: countingBoxes{ended: map[event.DeliveryID]int{}}, now: clock.Instant(time.Hour)}
	z.lease = ownership.Lease{Until: z.now.Add(2 * time.Second)}
	cfg := DefaultConfig()
	cfg.HandlerTimeout, cfg.FrameEventsMax = time.Second, 4
	var err error
	z.server, err = New(cfg, Identity{Node: "n", Group: "g"}, Parts{
		Boxes: &z.boxes, Lease: func() ownership.Lease { return z.lease }, Workers: func(int) {}, Drain: func(string) {},
		Now: func() clock.Instant { return z.now }, Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
	z.stream = z.server.Manual()
	return z
}

// name returns the i-th name that was given, or one that never was.
func (z *fuzzed) name(i byte) uint64 {
	if int(i) < len(z.names) {
		return z.names[i]
	}
	return uint64(i) << 7
}

// step performs the action of two bytes, with the frame in raw. It reports whether the stream
// continues.
func (z *fuzzed) step(what, arg byte, raw []byte) bool {
	send := func(f *appv1.WorkRequest) bool {
		f.Receipt = z.frame
		return z.stream.Take(&appwire.FromWorker{Receipt: z.frame, Other: f}) == nil
	}
	switch what % 13 {
	case 0: // any bytes
		var f appwire.FromWorker
		if (appwire.Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, &f) != nil {
			return false
		}
		z.number = max(z.number, f.Number)
		return z.stream.Take(&f) == nil
	case 1:
		return send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: uint32(arg)}}})
	case 2:
		return send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Ping{Ping: &appv1.Ping{K: uint64(arg)}}})
	case 3:
		return send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Progress{Progress: &appv1.Progress{DeliveryIds: []uint64{z.name(arg)}}}})
	case 4:
		return send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{Node: arg%2 == 0}}})
	case 5, 6: // a result, maybe the second one, maybe too late, maybe about nothing
		z.number++
		return z.stream.Take(&appwire.FromWorker{Receipt: z.frame, Number: z.number, Results: []event.Result{
			{Delivery: event.DeliveryID(z.name(arg)), Kind: event.ResultKind(1 + arg%5)},
		}}) == nil
	case 7:
		z.now = z.now.Add(time.Duration(arg) * 10 * time.Millisecond)
		z.server.Expire()
	case 8:
		z.lease.Until = z.now.Add(time.Duration(arg) * 20 * time.Millisecond)
	case 9:
		z.server.Revoke(ownership.SetOf(ring.Partition(arg%4)), arg >= 128)
	case 10:
		z.boxes.ready += int(arg) % 8
	case 11:
		return z.give()
	case 12:
		z.server.TakeBack([]event.DeliveryID{event.DeliveryID(arg)})
	}
	return true
}

// give takes the router's next frame.
func (z *fuzzed) give() bool {
	frame, end := z.stream.Give()
	if f, ok := frame.(*appwire.ToWorker); ok {
		z.frame = f.Number
		for _, d := range f.Deliveries {
			z.names = append(z.names, uint64(d.ID))
		}
	}
	return !end
}

// For any frames of a worker, in any order, the router continues, and each delivery that was
// taken for it ends exactly once.
func FuzzWorkerStream(f *testing.F) {
	f.Add([]byte{1, 50, 2, 1, 10, 5, 11, 0, 11, 0, 11, 0, 5, 0, 5, 0, 7, 200, 5, 1})
	f.Add([]byte{1, 50, 10, 7, 11, 0, 11, 0, 9, 200, 3, 1, 8, 100, 2, 9, 11, 0, 7, 255, 7, 255, 5, 1, 6, 2})
	f.Add([]byte{1, 50, 1, 50})
	f.Add([]byte{1, 50, 2, 1, 10, 5, 11, 0, 11, 0, 11, 0, 12, 1, 12, 9, 10, 7, 11, 0, 5, 1, 7, 255, 12, 2})
	f.Add([]byte{1, 1, 10, 3, 11, 0, 11, 0, 4, 0, 5, 0, 11, 0, 11, 0})
	f.Add([]byte{0, 8, 0x12, 2, 0x10, 5, 10, 3, 11, 0, 11, 0, 0, 3, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, program []byte) {
		z := newFuzzed(t)
		for i := 0; i+1 < len(program) && i < 400; i += 2 {
			what, arg := program[i], program[i+1]
			raw := program[i+2 : min(len(program), i+2+int(arg))]
			if what%13 == 0 {
				i += len(raw)
			}
			if !z.step(what, arg, raw) {
				break
			}
		}
		z.stream.Close()
		z.now = max(z.now, z.lease.Until).Add(time.Hour)
		z.server.Expire()
		for id := range event.DeliveryID(z.boxes.last) {
			if n := z.boxes.ended[id+1]; n != 1 {
				t.Fatalf("delivery %d ended %d times", id+1, n)
			}
		}
		if len(z.boxes.ended) != z.boxes.last || len(z.server.snapshot()) != 0 || len(z.server.suspects.in) != 0 {
			t.Fatalf("%d deliveries ended of %d; %d sessions and %d suspects are left",
				len(z.boxes.ended), z.boxes.last, len(z.server.snapshot()), len(z.server.suspects.in))
		}
	})
}

func (*countingBoxes) Grant(event.DeliveryID, event.Grant) {}
