package app

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// timeOut looks n times and returns the names that are taken back.
func (d *Outstanding) timeOut(n int) (names []uint64) {
	for range n {
		names = d.TimeOut(3, names)
	}
	return names
}

func TestTimeOutTakesBackWhatMakesNoProgress(t *testing.T) {
	d := busy(t, 1, 2, 3)
	d.Pong(10*second, leaseUntil(12*second), margin, nil)
	if names := d.timeOut(3); len(names) > 0 {
		t.Fatalf("%v are taken back before their time", names)
	}
	d.Progress([]uint64{uint64(d.name(10)), 777})
	if names := d.timeOut(1); !slices.Equal(names, d.names(20, 30)) {
		t.Fatalf("%v are taken back, want the two without Progress", names)
	}
	d.Pong(11*second, leaseUntil(20*second), margin, nil)
	if _, draining := d.Pong(11*second, leaseUntil(20*second, 2, 3), margin, nil); len(draining) > 0 {
		t.Errorf("%v continue", draining)
	}
	wantResults(t, "cut before its deadline", d.Answer([]event.Result{{Delivery: d.name(20), Kind: event.ResultCancelled}}, nil), "20:retry ")
	wantResults(t, "before its deadline", d.Expire(12*second-1, nil), "")
	wantResults(t, "at its deadline", d.Expire(12*second, nil), "30:retry ")
	wantResults(t, "too late", d.Answer([]event.Result{{Delivery: d.name(30), Kind: event.ResultDone}}, nil), "")
	if names := d.timeOut(2); len(names) > 0 {
		t.Errorf("%v are taken back: Progress began the time anew", names)
	}
	if s := d.Stats(); s.TimedOut != 2 || s.Late != 1 {
		t.Errorf("stats = %+v, want 2 timed out, 1 late", s)
	}
}

// The worker's answer about an event that was taken back counts if it is in time: done is done, and
// an event that it has not started did not fail.
func TestAnswersToWhatTimedOut(t *testing.T) {
	for kind, want := range map[event.ResultKind]string{
		event.ResultDone: "10:done ", event.ResultReject: "10:reject ", event.ResultNotStarted: "10:not_started ", event.ResultCancelled: "10:retry ",
	} {
		d := busy(t, 1)
		d.Pong(10*second, leaseUntil(12*second), margin, nil)
		d.timeOut(4)
		wantResults(t, kind.String(), d.Answer([]event.Result{{Delivery: d.name(10), Kind: kind}}, nil), want)
	}
}

// The drain bounds deliveries that were revoked with their partition; they do not count as
// failures.
func TestRevokedDeliveriesDoNotTimeOut(t *testing.T) {
	d := busy(t, 1)
	d.Pong(10*second, leaseUntil(12*second), margin, nil)
	d.Revoke(ownership.SetOf(1), true, nil)
	if names := d.timeOut(10); len(names) > 0 {
		t.Errorf("%v are taken back twice", names)
	}
	wantResults(t, "at its deadline", d.Expire(12*second, nil), "10:lost ")
}

// The worker is told to end single deliveries, and no other.
func TestTakeBackTellsTheWorker(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	w.ping(1)
	w.recv()
	r.fill(delivery(1, 0), delivery(2, 0))
	w.recv()
	r.server.TakeBack([]event.DeliveryID{20})
	revoke := w.recv().GetRevoke()
	if len(revoke.GetDeliveryIds()) != 1 || revoke.GetDeliveryIds()[0] != w.names[20] || len(revoke.GetPartitions()) > 0 || revoke.GetAll() || !strings.Contains(revoke.GetReason(), "an operator has skipped") {
		t.Fatalf("revoke = %v, want the delivery alone", revoke)
	}
	r.wantNothingFinished() // it may run until its deadline
	w.results(1, 1, &appv1.Result{DeliveryId: 20, Kind: appv1.ResultKind_RESULT_KIND_CANCELLED})
	r.wantFinished("20:cancelled")
}

func TestHandlerTimeout(t *testing.T) {
	r := newRig(t, func(c *Config) { c.HandlerTimeout = 100 * time.Millisecond })
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	w.ping(1)
	w.recv()
	r.fill(delivery(1, 0))
	w.recv()
	revoke := w.recv().GetRevoke()
	if len(revoke.GetDeliveryIds()) != 1 || revoke.GetDeliveryIds()[0] != w.names[10] || len(revoke.GetPartitions()) > 0 || revoke.GetAll() {
		t.Fatalf("revoke = %v, want the delivery alone", revoke)
	}
	r.wantNothingFinished() // it may run until its deadline
	w.results(1, 1, &appv1.Result{DeliveryId: 10, Kind: appv1.ResultKind_RESULT_KIND_CANCELLED})
	r.wantFinished("10:retry")
	if got := testutil.ToFloat64(r.metrics.timedOut); got != 1 {
		t.Errorf("timed out = %v, want 1", got)
	}
}
