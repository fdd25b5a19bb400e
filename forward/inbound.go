package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/greet"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// inbound is one stream that another member has opened.
type inbound struct {
	server *Server
	stream grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]
	link   *link
	opened chan struct{} // closed when the Hello was good: id and peer are set
	id     StreamID
	peer   Peer
	self   Identity      // this member, as its Hello on this stream says
	sets   bool          // the peer reads sets of events that are done
	frame  verdictsFrame // used by the sending goroutine alone

	// Used by the receiving goroutine alone, except nonce, which does not change.
	nonce  [nonceSize]byte // for the peer's Proof to sign
	proof  []byte          // its signature, nil before it comes
	proven bool            // it was found to be that of the peer's key

	stopping atomic.Bool // the stream ends when no verdict waits

	mu      sync.Mutex     // guards the fields below
	queued  []verdictBatch // the last one may grow
	taken   uint64         // number of batches that were taken out of queued
	owed    uint64         // number of the peer's frame whose receipt waits until fewer batches are queued; 0: none
	credits []*peerv1.Credit
	renewed []renewed
}

// renewed is the answer to a renewal.
type renewed struct {
	event.Renewal
	behind uint64 // it is sent when so many batches were taken
}

// creditsMax is the number of credits that may wait for one stream; more are dropped.
const creditsMax = 1024

// sendSmall implements end: it sends the credits that wait, and the answers to renewals.
func (in *inbound) sendSmall(receipt uint64) error {
	in.mu.Lock()
	credits := in.credits
	in.credits = nil
	var due []event.Renewal
	in.renewed = slices.DeleteFunc(in.renewed, func(r renewed) bool {
		if r.behind > in.taken {
			return false // the receipt of the next frame of verdicts wakes the stream for it
		}
		due = append(due, r.Renewal)
		return true
	})
	if len(in.renewed) == 0 {
		in.renewed = nil
	}
	in.mu.Unlock()
	for answers := range slices.Chunk(due, in.server.config.smallMax(renewedBytesMax)) {
		if err := in.stream.SendMsg(&peerv1.ForwardResponse{Receipt: receipt, Frame: &peerv1.ForwardResponse_Renewed{Renewed: renewedOf(answers)}}); err != nil {
			return sendError(err)
		}
	}
	for _, c := range credits {
		f := &peerv1.ForwardResponse{Receipt: receipt, Frame: &peerv1.ForwardResponse_Credit{Credit: c}}
		if err := in.stream.SendMsg(f); err != nil {
			return sendError(err)
		}
		in.server.metrics.creditsOut.Inc()
	}
	return nil
}

// receive is the receiving goroutine of an inbound stream. It returns why it ended.
func (in *inbound) receive() error {
	s := in.server
	if err := in.hello(); err != nil {
		return err
	}
	defer s.acceptor.Gone(in.id)
	defer s.remove(in)
	var f eventsFrame
	for {
		if err := in.recv(&f); err != nil {
			return err
		}
		if err := in.link.heard(f.receipt); err != nil {
			return err
		}
		if err := in.handle(&f); err != nil {
			return err
		}
	}
}

// hello takes the first frame.
func (in *inbound) hello() (err error) {
	f := eventsFrame{bytesMax: helloBytesMax}
	if err := in.recv(&f); err != nil {
		return err
	}
	hello := f.other.GetHello()
	if hello == nil {
		return fmt.Errorf("%w: the first frame is not a Hello", errFrame)
	}
	self := in.server.identity()
	if in.peer, err = self.check(hello); err != nil {
		return err
	}
	in.self, in.sets = self, slices.Contains(hello.GetCapabilities(), capabilitySets)
	if err := in.server.add(in); err != nil {
		return err
	}
	in.link.open()
	close(in.opened)
	greet.Greeted(in.stream.Context())
	return nil
}

// recv receives one frame. It tells malformed frames from broken streams.
func (in *inbound) recv(f *eventsFrame) error {
	err := in.stream.RecvMsg(f)
	switch {
	case err == nil:
		return f.err
	case errors.Is(err, io.EOF):
		return err
	}
	return fmt.Errorf("forward: receive: %s", status.Convert(err).Message())
}

func (in *inbound) handle(f *eventsFrame) error {
	s := in.server
	if f.number > 0 {
		if err := in.link.arrived(f.number); err != nil {
			return err
		}
		if in.stopping.Load() {
			return nil // ignored: the peer sends the events to another member
		}
		received := s.metrics.receivedPeer
		if f.relay {
			received = s.metrics.receivedRelay
		}
		received.Add(float64(len(f.events)))
		s.metrics.framesIn.Inc()
		s.acceptor.Accept(Arrival{From: in.id, Peer: in.peer, Epoch: f.epoch, Relay: f.relay, Events: f.events})
		in.took(f.number)
		return nil
	}
	switch frame := f.other.GetFrame().(type) {
	case nil: // a receipt
	case *peerv1.ForwardRequest_Ping:
		in.link.ping(frame.Ping.GetK())
	case *peerv1.ForwardRequest_Window:
		done, err := decodeWindow(s.now(), frame.Window)
		if err != nil {
			return err
		}
		s.metrics.windowReceived.Add(float64(len(done)))
		s.acceptor.LearnDone(in.peer, in.isProven(), done)
	case *peerv1.ForwardRequest_Proof:
		if in.proof != nil {
			return fmt.Errorf("%w: a second Proof", errFrame)
		}
		in.proof = append([]byte{}, frame.Proof.GetSignature()...)
	case *peerv1.ForwardRequest_Renewals:
		asked, err := renewalsOf(frame.Renewals.GetHandles(), frame.Renewals.GetNumbers(), nil, nil)
		if err != nil {
			return err
		}
		s.acceptor.RenewFor(in.id, asked)
	case *peerv1.ForwardRequest_Cancel:
		if n := len(frame.Cancel.GetHandles()); n > cancelledMax {
			return fmt.Errorf("%w: a Cancel of %d calls, want at most %d", errFrame, n, cancelledMax)
		}
		calls := make([]event.Handle, len(frame.Cancel.GetHandles()))
		for i, h := range frame.Cancel.GetHandles() {
			calls[i] = event.Handle(h)
		}
		s.acceptor.CancelFor(in.id, calls)
	default:
		return fmt.Errorf("%w: a %T in the middle of a stream", errFrame, frame)
	}
	return nil
}

// isProven reports whether the peer has shown that it is the incarnation of its Hello. Its
// key may become known after its Proof came, when this member reads its Hello in the log.
func (in *inbound) isProven() bool {
	if !in.proven && in.proof != nil {
		key := in.server.acceptor.KeyOf(in.peer)
		in.proven = verifyProof(key, in.nonce, in.peer, in.self.Incarnation, in.proof)
	}
	return in.proven
}

// queuedMax is the number of frames of verdicts that may wait for one stream. While more wait, its peer gets no
// receipts for events, and so may send no more.
const queuedMax = 64

// took lets the receipt for a frame of events be sent, once few verdicts wait: a peer that takes no verdicts gets none.
func (in *inbound) took(number uint64) {
	in.mu.Lock()
	waits := len(in.queued) > queuedMax
	if waits {
		in.owed = number
	}
	in.mu.Unlock()
	if !waits {
		in.link.took(number)
	}
}

// answer encodes verdicts into the last frame and further ones as needed. queuedMax and the
// events that the peer has here bound the queue.
func (in *inbound) answer(verdicts []event.Verdict) {
	in.mu.Lock()
	for len(verdicts) > 0 {
		if n := len(in.queued); n > 0 {
			if verdicts = in.queued[n-1].add(verdicts, &in.server.config); len(verdicts) == 0 {
				break
			}
		}
		in.queued = append(in.queued, verdictBatch{sets: in.sets})
	}
	in.mu.Unlock()
	in.link.wake()
}

// run is the sending goroutine: the handler of the stream. It returns why it ended.
func (in *inbound) run(ctx context.Context) error {
	answer := in.self.hello(in.peer)
	answer.Nonce = in.nonce[:]
	hello := &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Hello{Hello: answer}}
	if err := in.stream.SendMsg(hello); err != nil {
		return sendError(err)
	}
	return in.link.run(ctx, in)
}

// goAway ends a stream when all its verdicts are receipted.
func (in *inbound) goAway(receipt uint64) error {
	frame := &peerv1.ForwardResponse_GoAway{GoAway: &peerv1.GoAway{Reason: "this member stops"}}
	if err := in.stream.SendMsg(&peerv1.ForwardResponse{Receipt: receipt, Frame: frame}); err != nil {
		return sendError(err)
	}
	return errStopping
}

// sendHot implements end.
func (in *inbound) sendHot(number, receipt uint64) (bool, error) {
	f := &in.frame
	stopping := in.stopping.Load() // before the queue is found empty
	f.batch = in.take()
	switch {
	case f.batch.n > 0:
	case stopping:
		return false, in.goAway(receipt)
	default:
		return false, nil
	}
	f.receipt, f.number = receipt, number
	if epoch := in.server.epoch.Load(); epoch != nil {
		f.epoch = *epoch
	}
	return true, sendError(in.stream.SendMsg(f))
}

// take removes the verdicts of one frame from the queue.
func (in *inbound) take() (batch verdictBatch) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.queued) > 0 {
		batch = in.queued[0]
		in.queued = slices.Delete(in.queued, 0, 1)
		in.taken++
	}
	if in.owed > 0 && len(in.queued) <= queuedMax {
		in.link.took(in.owed)
		in.owed = 0
	}
	return batch
}

// sendReceipt implements end.
func (in *inbound) sendReceipt(receipt uint64) error {
	in.frame.receipt, in.frame.number = receipt, 0
	return sendError(in.stream.SendMsg(&in.frame))
}

// Receipts for events wait up to acceptedDelay for verdicts, unless frames come at shorter intervals than rareAfter: then the peer may have
// more events ready.
const (
	acceptedDelay = time.Millisecond
	rareAfter     = 5 * acceptedDelay
)

// receiptDelay implements end.
func (*inbound) receiptDelay(gap time.Duration) time.Duration {
	if gap < rareAfter {
		return 0
	}
	return acceptedDelay
}

// sendAside implements end: this direction carries verdicts only.
func (*inbound) sendAside(uint64) (int, bool, error) { return 0, false, nil }

// asideTaken implements end.
func (*inbound) asideTaken(int) {}

// sendPing implements end.
func (in *inbound) sendPing(k, receipt uint64) error {
	return sendError(in.stream.SendMsg(&peerv1.ForwardResponse{
		Receipt: receipt,
		Frame:   &peerv1.ForwardResponse_Pong{Pong: &peerv1.Pong{K: k}},
	}))
}
