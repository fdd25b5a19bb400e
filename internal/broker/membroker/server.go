package membroker

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
	demov1 "github.com/ringfence/router/proto/ringfence/demo/v1"
)

// Register serves b on s.
func Register(s grpc.ServiceRegistrar, b *Broker) {
	demov1.RegisterBrokerServiceServer(s, &server{broker: b})
}

type server struct {
	demov1.UnimplementedBrokerServiceServer

	broker *Broker
}

// Publish appends one entry.
func (s *server) Publish(ctx context.Context, in *demov1.PublishRequest) (*demov1.PublishResponse, error) {
	messages := make([]Message, len(in.GetMessages()))
	for i, m := range in.GetMessages() {
		messages[i] = messageIn(m)
	}
	id, err := s.broker.Publish(ctx, in.GetTopic(), messages)
	if err != nil {
		return nil, statusOf(err)
	}
	return &demov1.PublishResponse{LedgerId: id.Ledger, EntryId: id.Entry}, nil
}

// Consume is one consumer, for as long as the stream lives.
func (s *server) Consume(stream grpc.BidiStreamingServer[demov1.ConsumeRequest, demov1.ConsumeResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	c, err := s.broker.Subscribe(stream.Context(), SubscribeOptions{
		Subscription: first.GetSubscription(), Type: first.GetSubscriptionType(), Topics: first.GetTopics(),
	})
	if err != nil {
		return statusOf(err)
	}
	var sender sync.WaitGroup
	defer sender.Wait()
	defer c.Close() // ends the sender
	// The header tells the client that it is subscribed, before there is anything to send.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	sender.Go(func() { sendEntries(c, stream) })
	take(c, first)
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		take(c, in)
	}
}

// take performs a frame of the client.
func take(c Consumer, in *demov1.ConsumeRequest) {
	if acks := acksIn(in.GetAcks()); len(acks) > 0 {
		c.Ack(acks...)
	}
	if n := in.GetPermits(); n > 0 {
		c.Permit(int(n))
	}
}

// sendEntries sends until the consumer or the stream ends; either way the receiving
// side of the stream knows why.
func sendEntries(c Consumer, stream grpc.BidiStreamingServer[demov1.ConsumeRequest, demov1.ConsumeResponse]) {
	for {
		entries, err := c.Receive(stream.Context())
		if err != nil {
			return
		}
		for _, e := range entries {
			if stream.Send(entryOut(e)) != nil {
				return
			}
		}
	}
}

// AppendRecord appends to a log.
func (s *server) AppendRecord(_ context.Context, in *demov1.AppendRecordRequest) (*demov1.AppendRecordResponse, error) {
	at, err := s.broker.AppendRecord(in.GetTopic(), in.GetRecord())
	if err != nil {
		return nil, statusOf(err)
	}
	return &demov1.AppendRecordResponse{LedgerId: at.Ledger, EntryId: at.Entry}, nil
}

// TailRecords reads a log. It sends its header once the position to begin at is fixed.
func (s *server) TailRecords(in *demov1.TailRecordsRequest, stream grpc.ServerStreamingServer[demov1.TailRecordsResponse]) error {
	from := event.Position{Ledger: in.GetLedgerId(), Entry: in.GetEntryId()}
	if in.GetLatest() {
		from = event.Position{}
	} else if from.IsZero() {
		from.Entry = -1 // before every record there is, which is not the same as from now on
	}
	err := s.broker.TailRecords(stream.Context(), in.GetTopic(), from,
		func() { _ = stream.SendHeader(metadata.MD{}) }, // if it fails, so does the first Send
		func(r Record) error {
			return stream.Send(&demov1.TailRecordsResponse{LedgerId: r.At.Ledger, EntryId: r.At.Entry, Record: r.Data})
		})
	return statusOf(err)
}

// Stats tells a subscription's numbers.
func (s *server) Stats(_ context.Context, in *demov1.StatsRequest) (*demov1.StatsResponse, error) {
	stats := s.broker.SubscriptionStats(in.GetSubscription(), in.GetExcept()...)
	return &demov1.StatsResponse{
		Backlog: uint64(stats.Backlog), Unacked: uint64(stats.Unacked), Published: uint64(stats.Published),
		Acked: uint64(stats.Acked), Consumers: uint32(stats.Consumers),
	}, nil
}

// statusOf gives our errors the code that tells them apart on the other side.
func statusOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrSubscriptionType):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.FromContextError(err).Err()
}

func acksIn(in []*demov1.Ack) []Ack {
	acks := make([]Ack, len(in))
	for i, a := range in {
		acks[i] = Ack{EntryID{a.GetLedgerId(), a.GetEntryId()}, a.GetBatchIndex()}
	}
	return acks
}

func acksOut(acks []Ack) []*demov1.Ack {
	out := make([]*demov1.Ack, len(acks))
	for i, a := range acks {
		out[i] = &demov1.Ack{LedgerId: a.ID.Ledger, EntryId: a.ID.Entry, BatchIndex: a.Index}
	}
	return out
}

func messageIn(m *demov1.Message) Message {
	return Message{
		Key: m.GetKey(), OrderingKey: m.GetOrderingKey(), Payload: m.GetPayload(), Properties: m.GetProperties(),
		PublishTime: m.GetPublishTimeMs(), EventTime: m.GetEventTimeMs(), DeliverAt: m.GetDeliverAtMs(),
	}
}

func messageOut(m *Message) *demov1.Message {
	return &demov1.Message{
		Key: m.Key, HasKey: m.Key != "", OrderingKey: m.OrderingKey, Payload: m.Payload, Properties: m.Properties,
		PublishTimeMs: m.PublishTime, EventTimeMs: m.EventTime, DeliverAtMs: m.DeliverAt,
	}
}

func messagesOut(messages []Message) []*demov1.Message {
	out := make([]*demov1.Message, len(messages))
	for i := range messages {
		out[i] = messageOut(&messages[i])
	}
	return out
}

func entryOut(e Entry) *demov1.ConsumeResponse {
	return &demov1.ConsumeResponse{
		LedgerId: e.ID.Ledger, EntryId: e.ID.Entry, RedeliveryCount: e.Redelivery,
		Messages: messagesOut(e.Messages), Topic: e.Topic, Batched: e.Batched,
	}
}

func entryIn(in *demov1.ConsumeResponse) Entry {
	e := Entry{
		ID: EntryID{in.GetLedgerId(), in.GetEntryId()}, Topic: in.GetTopic(), Batched: in.GetBatched(),
		Redelivery: in.GetRedeliveryCount(), Messages: make([]Message, len(in.GetMessages())),
	}
	for i, m := range in.GetMessages() {
		e.Messages[i] = messageIn(m)
	}
	return e
}
