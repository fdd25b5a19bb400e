package controllog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	demov1 "github.com/ringfence/router/proto/ringfence/demo/v1"
)

// RemoteConfig of a [Remote].
type RemoteConfig struct {
	Topic       string        // which log of the broker
	QueueMax    int           // records that wait to be sent
	SendTimeout time.Duration // for one record, from the append on: a lease, since a Beat is worth nothing later
}

// DefaultRemoteConfig returns the usual limits, without a topic.
func DefaultRemoteConfig() RemoteConfig {
	return RemoteConfig{QueueMax: 64, SendTimeout: 2 * time.Second}
}

// Validate reports every bad field, not just the first.
func (c RemoteConfig) Validate() error {
	var errs []error
	if c.Topic == "" {
		errs = append(errs, errors.New("controllog: remote: Topic is empty"))
	}
	if c.QueueMax < 1 {
		errs = append(errs, fmt.Errorf("controllog: remote: QueueMax = %d, want >= 1", c.QueueMax))
	}
	if c.SendTimeout <= 0 {
		errs = append(errs, fmt.Errorf("controllog: remote: SendTimeout = %v, want > 0", c.SendTimeout))
	}
	return errors.Join(errs...)
}

// Remote is a control log that a BrokerService serves from another process. It is meant for one
// machine: the demo, and tests with several processes.
//
// The server must send the header of a TailRecords stream as soon as that tail is open, before
// there is a record: the header tells the reader that it is open.
type Remote struct {
	cfg    RemoteConfig
	broker demov1.BrokerServiceClient
	queue  chan pendingAppend
}

var _ Transport = (*Remote)(nil)

// pendingAppend is a record on its way.
type pendingAppend struct {
	data  []byte
	until clock.Instant // given up then
	done  func(error)
}

// NewRemote returns a transport over a client of the broker, which should have a
// connection of its own: events must not delay Beats. It does no I/O.
func NewRemote(cfg RemoteConfig, broker demov1.BrokerServiceClient) (*Remote, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Remote{cfg: cfg, broker: broker, queue: make(chan pendingAppend, cfg.QueueMax)}, nil
}

// Run sends the queued records one after the other: a member's records stand in the
// log in the order in which it appended them.
func (r *Remote) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			r.failQueued(ctx.Err())
			return nil
		case p := <-r.queue:
			p.done(r.send(ctx, p))
		}
	}
}

// Append implements [Transport].
func (r *Remote) Append(data []byte, done func(error)) {
	select {
	case r.queue <- pendingAppend{data: data, until: clock.Now().Add(r.cfg.SendTimeout), done: done}:
	default:
		done(errBusy)
	}
}

func (r *Remote) send(ctx context.Context, p pendingAppend) error {
	ctx, cancel := context.WithTimeout(ctx, p.until.Sub(clock.Now()))
	defer cancel()
	_, err := r.broker.AppendRecord(ctx, &demov1.AppendRecordRequest{Topic: r.cfg.Topic, Record: p.data})
	if err != nil {
		return fmt.Errorf("controllog: remote append: %w", err)
	}
	return nil
}

func (r *Remote) failQueued(err error) {
	for {
		select {
		case p := <-r.queue:
			p.done(err)
		default:
			return
		}
	}
}

// Tail implements [Transport]. Flow control of the stream bounds the records in flight to
// record.
func (r *Remote) Tail(ctx context.Context, from event.Position, _ int, opened func(), record func(Entry)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when we leave
	err := r.tail(ctx, from, opened, record)
	if ctx.Err() != nil {
		return ctx.Err() // rather than the status that it became
	}
	return fmt.Errorf("%w: %w", ErrReaderLost, err)
}

func (r *Remote) tail(ctx context.Context, from event.Position, opened func(), record func(Entry)) error {
	if from == Anchored { // as Mem
		from = First
	}
	stream, err := r.broker.TailRecords(ctx, &demov1.TailRecordsRequest{
		Topic: r.cfg.Topic, Latest: from.IsZero(), LedgerId: from.Ledger, EntryId: from.Entry,
	})
	if err != nil {
		return err
	}
	if header, err := stream.Header(); err != nil {
		return err
	} else if header != nil { // without one the stream has ended, and Recv has the reason
		opened()
	}
	for {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		record(Entry{At: event.Position{Ledger: in.GetLedgerId(), Entry: in.GetEntryId()}, Data: in.GetRecord()})
	}
}

// End is never known: the in-memory broker has no such call.
func (r *Remote) End(context.Context) (event.Position, error) { return endUnknown, nil }

// MoveAnchor does nothing: the broker's memory is bounded by the number of records.
func (r *Remote) MoveAnchor(context.Context, event.Position) error { return nil }
