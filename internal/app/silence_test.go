package app

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// A worker with an open stream that sends no Pings is cut off after SilenceMax. Its deliveries are
// over when its last deadline has passed: neither before that, nor never.
func TestSilentWorkerIsCut(t *testing.T) {
	z := newFuzzed(t)
	z.boxes.ready = 1
	z.step(1, 50, nil) // Hello
	z.step(2, 1, nil)  // Ping
	for range 3 {      // Welcome, Pong, a delivery
		z.give()
	}
	if len(z.names) != 1 {
		t.Fatalf("%d deliveries were given, want 1", len(z.names))
	}
	most := z.server.cfg.SilenceMax
	wait := func(d time.Duration) {
		for end := z.now.Add(d); z.now.Before(end); {
			z.now = min(end, max(z.now.Add(time.Millisecond), z.server.Expire()))
			z.lease.Until = z.now.Add(2 * time.Second)
		}
		z.server.Expire()
	}
	wait(most - 100*time.Millisecond)
	z.step(2, 2, nil) // it is alive
	z.give()          // the Revoke of the delivery, which takes too long
	z.give()          // the Pong
	wait(most - 100*time.Millisecond)
	if testutil.ToFloat64(z.server.Metrics.silent) != 0 {
		t.Fatal("a worker was cut that sends Pings, though few")
	}
	z.step(2, 3, nil)
	z.give() // the Pong: the last deadline is that of the lease
	last := z.lease.Until
	z.now = z.now.Add(100 * most) // the router is paused, and the worker with it
	z.server.Expire()
	if testutil.ToFloat64(z.server.Metrics.silent) != 0 {
		t.Fatal("the router's own pause was taken for the worker's")
	}
	z.lease.Until = z.now.Add(2 * time.Second)
	z.step(2, 4, nil)
	z.give()
	last = max(last, z.lease.Until)

	wait(most + most/4 + time.Millisecond)
	if testutil.ToFloat64(z.server.Metrics.silent) != 1 {
		t.Fatal("a silent worker was not cut")
	}
	for ended := false; !ended; {
		_, ended = z.stream.Give()
	}
	if err := z.stream.session.status(); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "no Ping for 10s") {
		t.Errorf("the stream ended with %v", err)
	}
	z.stream.Close()
	z.server.Expire()
	if z.now.Before(last) || z.boxes.ended[event.DeliveryID(1)] != 1 {
		t.Errorf("at %v, with a last deadline of %v, the delivery ended %d times, want once", z.now, last, z.boxes.ended[1])
	}
	if n := len(z.server.snapshot()); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// Its deliveries are not over before their last deadline, however long it was silent.
func TestSilentWorkerKeepsItsDeadline(t *testing.T) {
	z := newFuzzed(t)
	z.boxes.ready = 1
	z.step(1, 50, nil)
	z.step(2, 1, nil)
	z.lease.Until = z.now.Add(time.Hour)
	for range 3 {
		z.give()
	}
	for range 10 * looksMax {
		z.now = z.now.Add(time.Second)
		z.server.Expire()
	}
	z.stream.Close()
	z.server.Expire()
	if n := z.boxes.ended[1]; n != 0 {
		t.Errorf("the delivery ended %d times before its deadline", n)
	}
	z.now = z.lease.Until
	z.server.Expire()
	if n := z.boxes.ended[1]; n != 1 {
		t.Errorf("the delivery ended %d times, want once at its deadline", n)
	}
}

// newRigWithDelivery returns a rig with a short patience, and its worker, which is about to get a delivery of so many
// bytes, and has had nothing else but a Pong.
func newRigWithDelivery(t *testing.T, payload int) (*rig, *worker) {
	t.Helper()
	r := newRig(t, func(c *Config) { c.SilenceMax = time.Second })
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	r.wantWorkers(1)
	w.ping(1)
	w.recv() // Pong
	e := &event.Event{Key: "k", Topic: "t", Payload: make([]byte, payload)}
	r.fill(event.Delivery{ID: 10, Partition: 1, Key: 1, Token: 1, Turn: 1, Ref: event.RefTo(e), Size: uint32(payload + 100)})
	return r, w
}

// TestAWorkerThatReadsNothingIsCut: Pings alone are no sign of life. A worker whose reader hangs takes nothing, and its
// keys would wait for it for ever.
func TestAWorkerThatReadsNothingIsCut(t *testing.T) {
	for name, payload := range map[string]int{"a frame within its window": 100, "a frame beyond its window": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w := newRigWithDelivery(t, payload)
			for k, end := uint64(2), time.Now().Add(time.Minute); len(r.workers) == 0; k++ { // it reads nothing from here on
				if time.Now().After(end) {
					t.Fatal("the worker still counts as one, and nobody knows that it takes nothing")
				}
				w.ping(k)
				time.Sleep(50 * time.Millisecond) // real: the time of the silence
			}
			r.wantWorkers(0)
			if s := w.status(); s.Code() != codes.DeadlineExceeded || !strings.Contains(s.Message(), "taken nothing in for 1s") {
				t.Errorf("status = %v", s)
			}
		})
	}
}

// TestAPongThatHangs: a worker is cut too if nothing but a Pong hangs on its way, however many Pings follow.
func TestAPongThatHangs(t *testing.T) {
	z := newFuzzed(t)
	z.step(1, 50, nil)
	z.give() // Welcome
	z.step(2, 1, nil)
	z.give() // the writer hangs with it from here on
	for k := byte(2); k < 100; k++ {
		z.step(2, k, nil)
		z.now = z.now.Add(200 * time.Millisecond)
		z.server.Expire()
	}
	if err := z.stream.session.status(); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "taken nothing in for 10s") {
		t.Errorf("status = %v", err)
	}
}
