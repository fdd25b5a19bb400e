package app

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
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
