package lane

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
	"github.com/ringfence/router/internal/netx/greet"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// Service is a Lane as the LaneService of gRPC.
type Service struct {
	lanev1.UnimplementedLaneServiceServer

	Lane *Lane

	readers sync.WaitGroup // of streams; their Recv returns only when the method of the stream has, which therefore cannot wait
}

// Invoke implements lanev1.LaneServiceServer.
func (s *Service) Invoke(ctx context.Context, r *lanev1.InvokeRequest) (*lanev1.InvokeResponse, error) {
	greet.Greeted(ctx)
	path, err := hashesOf(r.GetPath())
	if err != nil {
		return nil, err
	}
	a, err := s.Lane.Invoke(ctx, Request{
		Key: event.Key(r.GetKey()), Method: r.GetMethod(), Payload: r.GetPayload(), ID: r.GetId(),
		Timeout: milliseconds(r.GetTimeoutMs()), Path: path, Traceparent: r.GetTraceparent(),
	})
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "lane: %v", err)
	}
	return &lanev1.InvokeResponse{
		Outcome: lanev1.Outcome(a.Outcome), Reply: a.Payload, Code: a.Code, Text: a.Text,
		RetryAfterMs: millisecondsUp(a.RetryAfter),
	}, nil
}

// Send implements lanev1.LaneServiceServer.
func (s *Service) Send(ctx context.Context, r *lanev1.SendRequest) (*lanev1.SendResponse, error) {
	greet.Greeted(ctx)
	sending := Sending{
		Key: event.Key(r.GetKey()), Payload: r.GetPayload(), Name: r.GetName(), ID: r.GetId(), After: milliseconds(r.GetAfterMs()), At: r.GetAtMs(),
	}
	for name, value := range r.GetProperties() {
		sending.Properties = append(sending.Properties, event.Property{Name: name, Value: value})
	}
	sent, err := s.Lane.Send(ctx, sending)
	if err != nil {
		return nil, status.Error(codeOf(err), "lane: "+err.Error())
	}
	return &lanev1.SendResponse{MessageId: sent.ID.String(), DueMs: sent.Due}, nil
}

// codeOf returns the status of a failed Send.
func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, ErrRequest):
		return codes.InvalidArgument
	case errors.Is(err, ErrTooManySends):
		return codes.ResourceExhausted
	case errors.Is(err, ErrNotSent):
		return codes.FailedPrecondition
	}
	return codes.Unavailable
}

// Reserve implements lanev1.LaneServiceServer.
func (s *Service) Reserve(stream lanev1.LaneService_ReserveServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	ask := first.GetAsk()
	if ask == nil {
		return status.Error(codes.InvalidArgument, "lane: the first frame is not an Ask")
	}
	greet.Greeted(stream.Context())
	path, err := hashesOf(ask.GetPath())
	if err != nil {
		return err
	}
	r, err := s.Lane.Reserve(Ask{
		Key: event.Key(ask.GetKey()), ID: string(ask.GetId()), Wait: milliseconds(ask.GetWaitMs()), Resume: ask.GetResume(), Path: path,
		TTL: milliseconds(uint64(ask.GetTtlMs())),
	})
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "lane: %v", err)
	}
	defer r.Forget()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	frames := make(chan Frame)
	s.readers.Go(func() { cancel(readFrames(ctx, stream, frames)) })
	told := reservationStream{stream, ask.GetRawClock()}
	err = r.serve(ctx, frames, told.tell)
	if errors.Is(err, ErrUnreached) { // holders come back after that, as after a broken stream
		return status.Error(codes.Unavailable, "lane: "+err.Error())
	}
	return err
}

// readFrames passes on the frames of a holder, until the stream ends.
func readFrames(ctx context.Context, stream lanev1.LaneService_ReserveServer, frames chan<- Frame) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return status.Error(codes.Canceled, "lane: the holder has ended the stream")
		}
		f := Frame{Release: m.GetRelease() != nil, Renew: m.GetRenew().GetK()}
		if m.GetAsk() != nil || !f.Release && m.GetRenew() == nil {
			return status.Error(codes.InvalidArgument, "lane: after the first frame, want a Renew or a Release")
		}
		select {
		case frames <- f:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reservationStream tells a holder.
type reservationStream struct {
	stream   lanev1.LaneService_ReserveServer
	rawClock bool
}

func (t reservationStream) tell(granted *event.Grant, answered *event.Renewal, over *Answer) error {
	var frames []*lanev1.ReserveResponse
	if granted != nil {
		frames = append(frames, &lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Granted{Granted: &lanev1.Granted{
			Token: granted.Fence.Token, Turn: granted.Fence.Turn, RemainingNs: int64(onHoldersClock(granted.Remaining, t.rawClock)),
		}}})
	}
	if answered != nil {
		frames = append(frames, &lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Renewed{Renewed: &lanev1.Renewed{
			K: answered.Number, RemainingNs: int64(onHoldersClock(answered.Remaining, t.rawClock)), Covered: answered.Covered && answered.Remaining > 0,
		}}})
	}
	if over != nil {
		end := &lanev1.Over{Code: over.Code, Text: over.Text, RetryAfterMs: millisecondsUp(over.RetryAfter)}
		switch over.Outcome {
		case event.CallReplied:
			end.Code = codeReleased
		case event.CallUnknown, event.CallFailed, event.CallDoneBefore:
			end.Code = event.CodeLost
		case event.CallNotRun:
		}
		frames = append(frames, &lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Over{Over: end}})
	}
	for _, f := range frames {
		if err := t.stream.Send(f); err != nil {
			return err
		}
	}
	return nil
}

const codeReleased = "released"

// hashesOf reads the path of a request.
func hashesOf(wire []uint64) ([]partition.KeyHash, error) {
	if len(wire) > event.CallPathMax {
		return nil, status.Errorf(codes.InvalidArgument, "lane: a call behind %d others: want at most %d", len(wire), event.CallPathMax)
	}
	path := make([]partition.KeyHash, len(wire))
	for i, key := range wire {
		path[i] = partition.KeyHash(key)
	}
	return path, nil
}

// milliseconds reads a duration; more than fit are as many as fit.
func milliseconds(ms uint64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

// millisecondsUp returns a duration that is not negative in milliseconds, rounded up, so that a short one does not become
// none.
func millisecondsUp(d time.Duration) uint64 {
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}
