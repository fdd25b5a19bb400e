package app

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// TestHungWorkers: deliveries of a worker that reads nothing end at their last deadline when its stream is over, also
// while a frame to it is under way.
func TestHungWorkers(t *testing.T) {
	for name, over := range map[string]func(*testing.T, *worker){
		"silent": func(*testing.T, *worker) {},
		"against the rules": func(_ *testing.T, w *worker) { // on a slow machine the stream is over before that, since it reads nothing
			_ = w.stream.Send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{}}})
		},
		"sends nothing more": func(t *testing.T, w *worker) {
			if err := w.stream.CloseSend(); err != nil {
				t.Error(err)
			}
		},
	} {
		for size, payload := range map[string]int{"a small frame": 100, "a frame beyond its window": 2 << 20} {
			t.Run(name+", "+size, func(t *testing.T) {
				t.Parallel()
				r, w := newRigWithDelivery(t, payload)
				time.Sleep(200 * time.Millisecond) // real: the frame is under way, and the worker reads nothing from here on
				w.ping(2)
				time.Sleep(200 * time.Millisecond) // real: its Pong, too
				until := r.now().Add(time.Second)
				r.lease.Store(&ownership.Lease{Until: until})
				over(t, w)
				r.ahead.Store(int64(2 * time.Hour)) // the last deadline of the worker has passed
				select {
				case f := <-r.boxes.finished:
					if f.Delivery != 10 {
						t.Errorf("delivery %d ended", f.Delivery)
					}
				case <-time.After(time.Minute):
					t.Errorf("the worker still has its delivery; %d workers", r.server.Workers())
				}
				w.cancel()
			})
		}
	}
}

// TestStopDoesNotWaitForTheDeaf: neither a worker that reads nothing nor a stream without a Hello holds up the stop of the router.
func TestStopDoesNotWaitForTheDeaf(t *testing.T) {
	for name, connect := range map[string]func(*rig){
		"no Hello": func(r *rig) {
			w := r.dial()
			w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1}}})
			w.recv() // the router has taken streams up
			r.dial()
			eventually.True(r.t, "both streams are open", func() bool { return r.server.streams.Load() == 2 })
		},
		"reads nothing": func(r *rig) {
			r.connect(&appv1.Hello{MaxInFlight: 10}).ping(1)
			e := &event.Event{Key: "k", Topic: "t", Payload: make([]byte, 2<<20)}
			r.fill(event.Delivery{ID: 10, Partition: 1, Key: 1, Token: 1, Turn: 1, Ref: event.RefTo(e), Size: 2<<20 + 100})
			time.Sleep(200 * time.Millisecond) // real: the frame is under way
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(c *Config) { c.HelloTimeout = time.Minute })
			connect(r)
			r.stop()
			select {
			case <-r.ended:
			case <-time.After(8 * time.Second): // less than the stages of a node have to stop
				t.Error("the server has not stopped")
			}
		})
	}
}

// TestEventBehindRefusedCalls: an event does not wait for a Ping after each window of calls that its worker refuses.
func TestEventBehindRefusedCalls(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 1})
	r.wantWorkers(1)
	w.ping(1)
	w.recv() // Pong
	var ready []event.Delivery
	for id := range event.DeliveryID(100) {
		e := &event.Event{Key: "other", Call: &event.Call{Method: "m"}}
		ready = append(ready, event.Delivery{ID: 1000 + id, Partition: 2, Key: 2, Token: 1, Turn: 1, Ref: event.RefTo(e), Size: 100})
	}
	r.fill(append(ready, delivery(1, 0))...) // one wake for all
	for {                                    // without another Ping
		if f := w.recv(); f.GetDeliveries() != nil {
			return
		}
	}
}
