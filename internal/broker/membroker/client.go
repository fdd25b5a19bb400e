package membroker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/signal"
	demov1 "github.com/ringfence/router/proto/ringfence/demo/v1"
)

// Client reaches a broker of another process over gRPC. Its methods are those of
// [Broker] and safe for concurrent use.
type Client struct{ rpc demov1.BrokerServiceClient }

// NewClient returns a client over conn, which stays the caller's.
func NewClient(conn grpc.ClientConnInterface) *Client {
	return &Client{demov1.NewBrokerServiceClient(conn)}
}

// Publish is Broker.Publish.
func (c *Client) Publish(ctx context.Context, topic string, messages []Message) (EntryID, error) {
	out, err := c.rpc.Publish(ctx, &demov1.PublishRequest{Topic: topic, Messages: messagesOut(messages)})
	if err != nil {
		return EntryID{}, errorOf(err)
	}
	return EntryID{out.GetLedgerId(), out.GetEntryId()}, nil
}

// SubscriptionStats is Broker.SubscriptionStats.
func (c *Client) SubscriptionStats(ctx context.Context, subscription string, except ...string) (Stats, error) {
	out, err := c.rpc.Stats(ctx, &demov1.StatsRequest{Subscription: subscription, Except: except})
	if err != nil {
		return Stats{}, errorOf(err)
	}
	return Stats{
		Backlog: int(out.GetBacklog()), Unacked: int(out.GetUnacked()), Published: int(out.GetPublished()),
		Acked: int(out.GetAcked()), Consumers: int(out.GetConsumers()),
	}, nil
}

// Subscribe is Broker.Subscribe; FromLatest is not carried over. The consumer ends
// with its Close or with its connection.
func (c *Client) Subscribe(ctx context.Context, o SubscribeOptions) (Consumer, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stream, err := c.rpc.Consume(ctx)
	if err == nil {
		err = stream.Send(&demov1.ConsumeRequest{Subscription: o.Subscription, SubscriptionType: o.Type, Topics: o.Topics})
	}
	if err == nil || errors.Is(err, io.EOF) { // EOF: the stream has ended, and reading it tells why
		err = subscribed(stream)
	}
	if err != nil {
		cancel()
		return nil, errorOf(err)
	}
	r := &remoteConsumer{stream: stream, cancel: cancel, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	r.reader.Go(r.read)
	return r, nil
}

// subscribed waits for the header, by which the server confirms the subscription.
func subscribed(stream grpc.BidiStreamingClient[demov1.ConsumeRequest, demov1.ConsumeResponse]) error {
	header, err := stream.Header()
	if err == nil && header == nil { // the stream ended without one
		_, err = stream.Recv()
	}
	return err
}

// remoteConsumer is a Consumer on the other side of a stream. Its permits bound its prefetch.
type remoteConsumer struct {
	stream grpc.BidiStreamingClient[demov1.ConsumeRequest, demov1.ConsumeResponse]
	cancel context.CancelFunc
	reader sync.WaitGroup
	wake   chan struct{} // capacity 1: the inbox has changed
	ended  chan struct{} // closed when the stream has ended

	mu    sync.Mutex // guards inbox and err
	inbox []Entry
	err   error

	sending sync.Mutex // gRPC allows one Send at a time
}

// closeTimeout bounds the time for sending the last frames.
const closeTimeout = time.Second

func (c *remoteConsumer) read() {
	defer close(c.ended)
	for {
		in, err := c.stream.Recv()
		c.mu.Lock()
		if err != nil {
			c.err = errorOf(err)
		} else {
			c.inbox = append(c.inbox, entryIn(in))
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
		signal.Set(c.wake)
	}
}

// Receive is Consumer.Receive. When the stream breaks it returns why.
func (c *remoteConsumer) Receive(ctx context.Context) ([]Entry, error) {
	for {
		c.mu.Lock()
		inbox, err := c.inbox, c.err
		c.inbox = nil
		c.mu.Unlock()
		switch {
		case err != nil:
			return nil, err
		case len(inbox) > 0:
			return inbox, nil
		}
		select {
		case <-c.wake:
		case <-c.ended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Permit is Consumer.Permit.
func (c *remoteConsumer) Permit(n int) { c.send(&demov1.ConsumeRequest{Permits: uint32(max(0, n))}) }

// Ack is Consumer.Ack.
func (c *remoteConsumer) Ack(acks ...Ack) { c.send(&demov1.ConsumeRequest{Acks: acksOut(acks)}) }

func (c *remoteConsumer) send(frame *demov1.ConsumeRequest) {
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.stream.Send(frame) // Receive reports a broken stream, and the broker has taken everything back
}

// Close is Consumer.Close: earlier acks arrive before it, if the broker processes it within a
// second.
func (c *remoteConsumer) Close() {
	c.sending.Lock()
	_ = c.stream.CloseSend() // it never fails
	c.sending.Unlock()
	select {
	case <-c.ended:
	case <-time.After(closeTimeout):
	}
	c.cancel()
	c.reader.Wait()
}

func errorOf(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrClosed
	}
	switch s := status.Convert(err); s.Code() {
	case codes.FailedPrecondition:
		return fmt.Errorf("%w (%s)", ErrSubscriptionType, s.Message())
	case codes.InvalidArgument:
		return fmt.Errorf("%w (%s)", ErrInvalid, s.Message())
	case codes.Canceled:
		return ErrClosed
	default:
		return fmt.Errorf("membroker: %w", err)
	}
}
