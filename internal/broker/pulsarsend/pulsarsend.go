// Package pulsarsend interprets the answers of Pulsar producers, and implements a send timeout,
// because the client's own timeout is unsafe.
//
// With a SendTimeout, a goroutine of the client (v0.21.0) removes messages from its list of
// pending messages. On a receipt from the broker, the connection's goroutine first looks at the
// oldest message of that list and then removes the oldest, which may be a different message by then.
// In this case one message is finished twice, which is a nil dereference in the client and ends
// the process, and the other message is never answered. A stall about as long as the timeout is enough.
package pulsarsend

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/clock"
)

// NoTimeout is the SendTimeout of all producers: the client starts no such goroutine.
const NoTimeout time.Duration = -1

// ErrTimeout says that no answer came in time. The message may still be in its topic, or
// reach it later: the client keeps trying.
var ErrTimeout = errors.New("pulsar: the broker has not answered in time")

// Within adds a timeout to done: done is called once, with the answer that the client
// passes to the returned function, or with [ErrTimeout] after d. The function reports whether
// the answer was in time; otherwise done has returned from its call with ErrTimeout.
func Within(d time.Duration, done func(error)) (answer func(error) (inTime bool)) {
	var once sync.Once
	finish := func(err error) (first bool) {
		once.Do(func() {
			first = true
			done(err)
		})
		return first
	}
	timer := time.AfterFunc(d, func() { finish(ErrTimeout) })
	return func(err error) bool {
		timer.Stop()
		return finish(err)
	}
}

// Send sends one message and waits for the broker's answer, for d at most.
func Send(ctx context.Context, producer pulsar.Producer, message *pulsar.ProducerMessage, d time.Duration) error {
	answer := make(chan error, 1)
	done := Within(d, func(err error) { answer <- err })
	producer.SendAsync(ctx, message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { done(err) })
	return <-answer
}

// GaveUp reports whether the producer that answered with err will not come back: the
// client (v0.21.0) closes it for good when its topic is not there as it reconnects, or is
// terminated, or another producer has fenced it. It must be closed and replaced.
func GaveUp(err error) bool {
	return errors.Is(err, pulsar.ErrProducerClosed) || errors.Is(err, pulsar.ErrTopicNotfound) ||
		errors.Is(err, pulsar.ErrTopicTerminated) || errors.Is(err, pulsar.ErrProducerFenced)
}

// Sender is a producer with the times of its newest receipts.
//
// The client (v0.21.0) forgets a producer whose message the broker has refused, such as one with a delay or a size that a policy forbids: its messages
// still arrive, but no receipt reaches it, not even when the broker permits them again. [GaveUp] cannot see that. It must be closed and replaced, too.
// Of a topic with partitions it forgets only the producer of the one.
type Sender struct {
	pulsar.Producer

	made   clock.Instant
	mu     sync.Mutex
	newest map[int32]clock.Instant // by topic partition
}

// NewSender returns the sender of a producer that was made now.
func NewSender(p pulsar.Producer) *Sender {
	return &Sender{Producer: p, made: clock.Now()}
}

// Received notes a receipt of a topic partition. It may be called concurrently.
func (s *Sender) Received(partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		s.newest = make(map[int32]clock.Instant)
	}
	s.newest[partition] = clock.Now()
}

// Silent reports whether there was no receipt for d. It may be called concurrently.
func (s *Sender) Silent(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := s.made
	for _, at := range s.newest {
		newest = max(newest, at)
	}
	return clock.Now().Sub(newest) >= d
}

// SilentIn is Silent for one topic partition.
func (s *Sender) SilentIn(partition int32, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return clock.Now().Sub(max(s.made, s.newest[partition])) >= d
}

// Await makes a call of the client that takes no context and may hang, for as long as the
// client's OperationTimeout and longer. start runs it on a goroutine of its own, or returns an
// error. If ctx ends first, the call continues in the background, and its result is undone.
func Await[T any](ctx context.Context, start func(func()) error, call func() (T, error), undo func(T)) (made T, err error) {
	type result struct {
		made T
		err  error
	}
	results := make(chan result) // unbuffered: without a receiver the call undoes its result
	err = start(func() {
		var r result
		r.made, r.err = call()
		select {
		case results <- r:
		case <-ctx.Done():
			if r.err == nil {
				undo(r.made)
			}
		}
	})
	if err != nil {
		return made, err
	}
	select {
	case r := <-results:
		return r.made, r.err
	case <-ctx.Done():
		return made, ctx.Err()
	}
}
