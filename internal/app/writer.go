package app

import (
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// write sends frames until the stream ends, and returns its status.
func (w *session) write(stream grpc.ServerStream) error {
	hello := time.NewTimer(w.server.cfg.HelloTimeout)
	defer hello.Stop()
	for {
		msg, end := w.round()
		switch {
		case msg != nil:
			if err := stream.SendMsg(msg); err != nil {
				return err
			}
			continue
		case end:
			return w.status()
		}
		select {
		case <-w.awake:
		case <-hello.C:
			if !w.hasGreeted() {
				return status.Errorf(codes.DeadlineExceeded, "app: no Hello within %v", w.server.cfg.HelloTimeout)
			}
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// round finds the next frame to send, nil when there is nothing to say for now. With
// end there never will be.
func (w *session) round() (msg any, end bool) {
	for {
		msg, end = w.next()
		w.flush()
		switch {
		case msg != nil || end:
			return msg, end
		case !w.fill():
			return w.onlyReceipt(), false
		}
	}
}

// next returns the next frame to send, nil when there is none. It defines the order of the
// stream: revocations first, then deadlines, then the end of the stream, and deliveries last.
// end: no frame follows.
func (w *session) next() (msg any, end bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || !w.greeted {
		return nil, w.ended
	}
	if f := w.nextControl(); f != nil {
		f.Receipt, w.receiptOut = w.takenIn, w.takenIn
		return f, false
	}
	if w.outstanding.Unsent() && w.receiptIn == w.sent {
		return w.deliveries(), false
	}
	return nil, false
}

func (w *session) nextControl() *appv1.WorkResponse {
	switch {
	case w.welcome != nil:
		f := &appv1.WorkResponse{Frame: &appv1.WorkResponse_Welcome{Welcome: w.welcome}}
		w.welcome = nil
		return f
	case w.revokedAll || len(w.revoked)+len(w.skipped) > 0:
		return &appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: w.takeRevoke()}}
	case len(w.timedOut) > 0:
		r := &appv1.Revoke{DeliveryIds: w.timedOut, TimedOut: true, Reason: "the handlers took longer than their timeout"}
		w.timedOut = nil
		return &appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: r}}
	case w.pinged:
		// The lease is read under the lock under which Revoke marks: a lease that came
		// after a deposition is read only when its Revoke has gone out.
		return &appv1.WorkResponse{Frame: &appv1.WorkResponse_Pong{Pong: w.pong()}}
	case w.goodbye != "":
		w.finish(status.Error(codes.Unavailable, "app: "+w.goodbye))
		return &appv1.WorkResponse{Frame: &appv1.WorkResponse_GoAway{GoAway: &appv1.GoAway{Reason: w.goodbye}}}
	}
	return nil
}

func (w *session) takeRevoke() *appv1.Revoke {
	r := &appv1.Revoke{All: w.revokedAll, DeliveryIds: w.skipped, Reason: "the partitions have moved"}
	if !w.revokedAll && len(w.revoked) == 0 {
		r.Reason = "an operator has skipped the events, or the callers of the calls wait no longer"
	}
	for p := range w.revoked {
		r.Partitions = append(r.Partitions, uint32(p))
	}
	clear(w.revoked)
	w.revokedAll, w.skipped = false, nil
	return r
}

func (w *session) pong() *appv1.Pong {
	w.pinged, w.quiet = false, 0
	s := w.server
	p := &appv1.Pong{K: w.ping}
	remaining, draining := w.outstanding.Pong(s.Now(), s.Lease(), s.cfg.DeadlineMargin, nil)
	p.RemainingNs, p.Draining = onWorkersClock(remaining, w.rawClock).Nanoseconds(), draining
	return p
}

// onWorkersClock returns how far a worker's clock may advance while our lease advances by d. The worker may run on another
// machine, whose counter is slow by 1 % where ours is fast by 1 % (A2); and unless the clock is raw, NTP may make it
// slower still. If its clock errs the other way, its deadlines come early by the same amounts, since the errors are
// unknown.
func onWorkersClock(d time.Duration, raw bool) time.Duration {
	d = d * 99 / 101
	if raw {
		return d
	}
	return time.Duration(float64(d) * (1 - clock.SlewMax))
}

// deliveries returns the next Deliveries frame, nil when all that was left for it
// was too large.
func (w *session) deliveries() any {
	cfg := &w.server.cfg
	clear(w.frame.Deliveries)
	if w.outstanding.asks {
		w.outstanding.sending = clock.Read().Boot
	}
	w.frame.Deliveries, w.result = w.outstanding.Frame(cfg.FrameEventsMax, cfg.FrameBytesMax, cfg.EventBytesMax, w.frame.Deliveries[:0], w.result)
	if len(w.frame.Deliveries) == 0 {
		return nil
	}
	w.sent++
	w.frame.Number, w.frame.Receipt, w.frame.Now = w.sent, w.takenIn, w.server.Now()
	w.receiptOut = w.takenIn
	w.server.Metrics.frames.Inc()
	w.server.Metrics.deliveries.Add(float64(len(w.frame.Deliveries)))
	return &w.frame
}

// fill takes deliveries out of the mailboxes if the worker has room and nothing is
// under way to it, and reports whether there is something to do now.
func (w *session) fill() bool {
	s := w.server
	w.mu.Lock()
	room := 0
	if w.greeted && w.receiptIn == w.sent && !w.outstanding.Unsent() {
		room = w.outstanding.StartTake()
	}
	w.mu.Unlock()
	if room == 0 {
		return false
	}
	runtime.Gosched() // let the goroutines that fill the mailboxes run first, so that the frame is fuller
	clear(w.took)
	w.took = s.Boxes.Take(w.id, min(room, s.cfg.FrameEventsMax), w.took[:0])
	taken := len(w.took) > 0 // then others may be ready behind them, also if none of them goes to the worker
	w.took, w.result = w.screen(w.took, w.result)
	w.mu.Lock()
	w.result = w.outstanding.Give(w.took, w.result)
	w.mu.Unlock()
	w.flush()
	return taken
}

// screen removes the deliveries from taken that must not go to the worker now, and appends a result for each to dst.
func (w *session) screen(taken []event.Delivery, dst []event.Result) (kept []event.Delivery, _ []event.Result) {
	kept = taken[:0]
	for i := range taken {
		switch no := w.refusal(&taken[i]); {
		case no != nil:
			dst = append(dst, *no)
		case len(kept) == i: // nearly always: nothing is copied
			kept = taken[:i+1]
		default:
			kept = append(kept, taken[i])
		}
	}
	clear(taken[len(kept):])
	return kept, dst
}

// refusal returns the result of a delivery that must not go to the worker now, nil if it may.
func (w *session) refusal(d *event.Delivery) *event.Result {
	switch {
	case d.Crashes > 0 && !w.server.admitSuspect(d):
		return &event.Result{Delivery: d.ID, Kind: event.ResultPutOff, After: suspectPause}
	case !w.calls && d.Call() != nil: // the worker would handle it as an event
		return &event.Result{
			Delivery: d.ID, Kind: event.ResultNotStarted, Reason: "the worker of the key takes no calls", Reply: &event.CallReply{Code: event.CodeNoHandler},
		}
	case d.MessageID().IsSent():
		return w.judgeFiring(d)
	}
	return nil
}

// flush finishes the deliveries that the writer has found to be over.
func (w *session) flush() {
	w.server.finish(w.result)
	w.result = w.result[:0]
}

// onlyReceipt returns a frame that is nothing but the receipt that the worker waits
// for, nil when it does not. A worker that has answered everything does not, unless it drains:
// its next answers follow deliveries, whose frame carries the receipt.
func (w *session) onlyReceipt() any {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.receiptOut == w.takenIn || w.outstanding.Len() == 0 && !w.outstanding.draining {
		return nil
	}
	w.receiptOut = w.takenIn
	return &appv1.WorkResponse{Receipt: w.takenIn}
}
