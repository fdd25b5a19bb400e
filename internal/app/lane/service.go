package lane

import (
	"context"
	"math"
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
}

// Invoke implements lanev1.LaneServiceServer.
func (s *Service) Invoke(ctx context.Context, r *lanev1.InvokeRequest) (*lanev1.InvokeResponse, error) {
	greet.Greeted(ctx)
	if len(r.GetPath()) > event.CallPathMax {
		return nil, status.Errorf(codes.InvalidArgument, "lane: a call behind %d others: want at most %d", len(r.GetPath()), event.CallPathMax)
	}
	path := make([]partition.KeyHash, len(r.GetPath()))
	for i, key := range r.GetPath() {
		path[i] = partition.KeyHash(key)
	}
	a, err := s.Lane.Invoke(ctx, Request{
		Key: event.Key(r.GetKey()), Method: r.GetMethod(), Payload: r.GetPayload(), ID: r.GetId(),
		Timeout: time.Duration(min(r.GetTimeoutMs(), math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond, Path: path, Traceparent: r.GetTraceparent(),
	})
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "lane: %v", err)
	}
	return &lanev1.InvokeResponse{
		Outcome: lanev1.Outcome(a.Outcome), Reply: a.Payload, Code: a.Code, Text: a.Text,
		RetryAfterMs: uint64((a.RetryAfter + time.Millisecond - 1) / time.Millisecond),
	}, nil
}
