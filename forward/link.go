package forward

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
)

// Reasons for which a stream ends.
var (
	errSilent       = errors.New("forward: the peer is silent")
	errNoConnection = errors.New("forward: no connection in time")
	errNoHello      = errors.New("forward: no Hello in time")
	errGone         = errors.New("forward: the peer has left and has no unanswered events")
	errStopping     = errors.New("forward: this member is stopping")
)

// end is one end of a stream, as its sending goroutine sees it. Every frame carries
// a receipt: the number of the newest hot frame that this end has processed.
type end interface {
	// sendSmall sends the waiting frames that have no number: they need no receipt, and carry one that was sent before.
	sendSmall(receipt uint64) error
	// sendHot sends the ready events or verdicts as the number-th hot frame, and reports false
	// when there are none.
	sendHot(number, receipt uint64) (sent bool, err error)
	// sendReceipt sends a frame with only a receipt.
	sendReceipt(receipt uint64) error
	// receiptDelay returns how long a receipt may wait for a hot frame to carry it, if the frame that it is for came gap after the one
	// before.
	receiptDelay(gap time.Duration) time.Duration
	// sendAside sends one frame that needs no receipt and can wait, if there is one. It
	// returns how many ids of finished events the frame carried, also if err is not nil,
	// and whether more wait.
	sendAside(receipt uint64) (ids int, more bool, err error)
	// asideTaken releases that many ids that sendAside sent: the other end has taken them
	// in, or the stream has ended.
	asideTaken(ids int)
	// sendPing sends a Ping, or the Pong that answers one.
	sendPing(k, receipt uint64) error
}

// role is the part of an end in a stream.
type role bool

const (
	callerEnd role = true  // has opened the stream, and sends the Pings
	calleeEnd role = false // answers them
)

// link is the part that both ends of a stream share. The sending goroutine runs
// [link.run]; the receiving one calls heard and took.
type link struct {
	config  Config
	now     func() clock.Instant
	metrics *Metrics
	cancel  context.CancelCauseFunc
	wakeup  chan struct{} // of capacity one
	silence *time.Timer   // ends the stream if nothing is heard
	role    role

	receiptIn  atomic.Uint64 // newest hot frame of ours that the other end has receipted
	sent       atomic.Uint64 // newest hot frame that we have sent
	takenIn    atomic.Uint64 // newest hot frame of the other end that we have processed
	takenAt    atomic.Int64  // when that one came, as a clock.Instant
	takenGap   atomic.Int64  // how long that was after the one before, as a time.Duration
	receiptOut atomic.Uint64 // newest receipt that we have sent
	heardAt    atomic.Int64  // when the other end's newest frame came, as a clock.Instant
	asked      atomic.Uint64 // newest Ping of the other end
	answered   atomic.Uint64 // our newest Ping that has a Pong
}

func newLink(config Config, now func() clock.Instant, metrics *Metrics, cancel context.CancelCauseFunc, as role) *link {
	l := &link{config: config, now: now, metrics: metrics, cancel: cancel, wakeup: make(chan struct{}, 1), role: as}
	l.heardAt.Store(int64(now()))
	l.silence = time.AfterFunc(config.HelloTimeout, func() { cancel(errNoHello) })
	return l
}

// wake wakes the sending goroutine.
func (l *link) wake() {
	signal.Set(l.wakeup)
}

// open starts the DeadAfter timeout. It is called when the Hellos are exchanged.
func (l *link) open() {
	l.silence.Stop()
	l.silence = time.AfterFunc(l.config.DeadAfter, func() { l.cancel(errSilent) })
}

// heard notes a frame of the other end and its receipt.
func (l *link) heard(receipt uint64) error {
	l.heardAt.Store(int64(l.now()))
	l.silence.Reset(l.config.DeadAfter)
	switch before := l.receiptIn.Load(); {
	case receipt > l.sent.Load():
		return fmt.Errorf("%w: a receipt for frame %d, which was not sent", errFrame, receipt)
	case receipt > before:
		l.receiptIn.Store(receipt)
		l.wake()
	}
	return nil
}

// arrived checks the number of a hot frame before it is taken in: they count from
// one, and the next one may come only after the receipt for the one before.
func (l *link) arrived(number uint64) error {
	if want := l.takenIn.Load() + 1; number != want {
		return fmt.Errorf("%w: frame %d, want %d", errFrame, number, want)
	}
	if receipted := l.receiptOut.Load(); number > receipted+1 {
		return fmt.Errorf("%w: frame %d came before the receipt for frame %d", errFrame, number, number-1)
	}
	return nil
}

// took notes that a hot frame was processed, so that its receipt is sent.
func (l *link) took(number uint64) {
	now := l.heardAt.Load()
	l.takenGap.Store(now - l.takenAt.Swap(now))
	l.takenIn.Store(number)
	l.wake()
}

// ping notes a Ping, which the sending goroutine answers.
func (l *link) ping(k uint64) {
	l.asked.Store(k)
	l.wake()
}

// pong notes the answer to a Ping of ours.
func (l *link) pong(k uint64) {
	if k > l.answered.Load() {
		l.answered.Store(k)
		l.wake()
	}
}

// run is the sending goroutine of a stream. It returns why the stream ended.
//
// At most one hot frame is without a receipt. Meanwhile events collect in their queue, so
// that frames grow with the load. A receipt without a hot frame to carry it waits for one,
// see [end.receiptDelay].
func (l *link) run(ctx context.Context, e end) error {
	defer l.silence.Stop()
	sender := sender{link: l, sentAt: l.now()}
	defer func() { e.asideTaken(sender.probed + sender.unprobed) }()
	timer := time.NewTimer(l.config.PingAfter)
	defer timer.Stop()
	for {
		due := false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.wakeup:
		case <-timer.C:
			due = true
		}
		held := sender.heldUntil
		if err := sender.send(e); err != nil {
			return err
		}
		if due || sender.heldUntil != held {
			timer.Reset(sender.untilDue())
		}
		more, err := sender.sendAside(e)
		if err != nil {
			return err
		}
		if more {
			l.wake() // hot frames that have become ready go first
		}
	}
}

// sender is the state of the sending goroutine.
type sender struct {
	*link
	sentAt     clock.Instant // when our newest frame was sent
	waiting    bool          // a hot frame has no receipt yet
	pingNumber uint64        // newest Ping that was sent, or answered by a callee
	pingAt     clock.Instant // when that was
	hotSince   clock.Instant // when the newest hot frame was sent

	heldUntil clock.Instant // a receipt waits until then for a hot frame; 0: none waits

	probe    uint64 // the newest Ping that was sent behind ids, to learn from its Pong that they were taken in
	probed   int    // ids sent aside before it; 0 when it is answered
	unprobed int    // ids sent aside since
}

// send sends one frame, the most useful one, if any. Its receipt wakes the goroutine for
// the next one.
func (p *sender) send(e end) error {
	now := p.now()
	if p.waiting && p.receiptIn.Load() >= p.sent.Load() {
		p.waiting = false
		if p.role == callerEnd {
			p.metrics.receiptWait.Observe(now.Sub(p.hotSince).Seconds())
		}
	}
	receipt := p.takenIn.Load()
	if !p.waiting {
		runtime.Gosched() // the waker may add more: let it finish, so that frames fill
		if err := e.sendSmall(p.receiptOut.Load()); err != nil {
			return err
		}
		number := p.sent.Load() + 1
		p.sent.Store(number) // before it is sent: its receipt may come before sendHot returns
		before := p.receiptOut.Swap(receipt)
		sent, err := e.sendHot(number, receipt)
		if err != nil {
			return err
		}
		if sent {
			p.waiting, p.hotSince, p.sentAt, p.heldUntil = true, now, now, 0
			return p.sendPingIfDue(now, e)
		}
		p.sent.Store(number - 1)
		p.receiptOut.Store(before)
	}
	if receipt > p.receiptOut.Load() && !p.holds(now, e) {
		p.receiptOut.Store(receipt)
		p.sentAt, p.heldUntil = now, 0
		if err := e.sendReceipt(receipt); err != nil {
			return err
		}
	}
	return p.sendPingIfDue(now, e)
}

// holds reports whether the due receipt waits for a hot frame to carry it: a frame of its own costs both ends a wake-up.
func (p *sender) holds(now clock.Instant, e end) bool {
	delay := e.receiptDelay(time.Duration(p.takenGap.Load()))
	if delay == 0 {
		return false
	}
	if p.heldUntil == 0 {
		p.heldUntil = now.Add(delay)
	}
	return now.Before(p.heldUntil)
}

// sendAside sends one frame aside, and a Ping behind the last one: frames are handled in
// their order, so its Pong shows that the other end has taken them in. A frame that is
// only sent may be lost when this member leaves and ends the stream.
func (p *sender) sendAside(e end) (more bool, err error) {
	if p.probed > 0 && p.answered.Load() >= p.probe {
		e.asideTaken(p.probed)
		p.probed = 0
	}
	ids, more, err := e.sendAside(p.receiptOut.Load())
	p.unprobed += ids
	if err != nil || more || p.unprobed == 0 || p.probed > 0 {
		return more, err
	}
	now := p.now()
	p.pingNumber, p.pingAt, p.sentAt = p.pingNumber+1, now, now
	p.probe, p.probed, p.unprobed = p.pingNumber, p.unprobed, 0
	return false, e.sendPing(p.pingNumber, p.receiptOut.Load())
}

func (p *sender) sendPingIfDue(now clock.Instant, e end) error {
	k := p.asked.Load()
	if p.role == callerEnd {
		if now.Before(p.pingDue()) {
			return nil
		}
		k = p.pingNumber + 1
	} else if k == p.pingNumber {
		return nil
	}
	p.pingNumber, p.pingAt, p.sentAt = k, now, now
	return e.sendPing(k, p.receiptOut.Load())
}

// pingDue returns when the caller's next Ping is due, if nothing moves meanwhile.
func (p *sender) pingDue() clock.Instant {
	quietSince := min(p.sentAt, clock.Instant(p.heardAt.Load()))
	return max(quietSince, p.pingAt).Add(p.config.PingAfter)
}

// untilDue returns the time until a held receipt or the next Ping is due if the stream stays idle. Frames
// only make the time until the Ping longer, so they need not reset the timer.
func (p *sender) untilDue() time.Duration {
	until := time.Hour // a callee only answers Pings, and they wake it
	if p.role == callerEnd {
		until = max(p.pingDue().Sub(p.now()), time.Millisecond)
	}
	if p.heldUntil != 0 {
		until = max(0, min(p.heldUntil.Sub(p.now()), until))
	}
	return until
}
