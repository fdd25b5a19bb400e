// Package outcome maps the result of a delivery to the outcome of its event: ack, retry after a
// delay, or dead letter.
//
// It is pure, and only [Of] and [Skipped] decide an outcome. The jitter of a delay comes from a hash of the
// message id and the number of failures, so a replay gives the same delays, and two events that
// failed together are not retried together.
//
// # Invariant
//
// Only the application's own failures count: a refusal, a broken stream or a lost answer leaves
// the event's failure count unchanged.
package outcome

import (
	"fmt"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
)

// ReasonMax bounds the bytes of an application's reason that are kept; the rest is cut off.
// Reasons travel with the event through every retry.
const ReasonMax = 1 << 10

// Kind is one of the three outcomes.
//
//exhaustive:enforce
type Kind uint8

// The three outcomes.
const (
	Ack        Kind = 1 // the event is done
	Retry      Kind = 2 // again, after Outcome.Delay
	DeadLetter Kind = 3 // never again, because of Outcome.Reason
)

// String returns the name of the kind, as metrics and logs have it.
func (k Kind) String() string {
	switch k {
	case Ack:
		return "ack"
	case Retry:
		return "retry"
	case DeadLetter:
		return "dead_letter"
	}
	return "unknown"
}

// Outcome is the consequence of a result for its event.
type Outcome struct {
	Kind     Kind
	Delay    time.Duration  // Retry: how long to wait, 0 for at once
	Hold     bool           // Retry: wait at the owner, which keeps the key's order; else by way of the retry topic
	Behind   bool           // Hold: behind the other events of the key that wait, which keeps no order
	To       event.WorkerID // Hold: without Delay to this worker, if it is live; 0: to any
	Attempts uint32         // failures of the application so far, this result included
	Crashes  uint32         // worker crashes of the event so far, this result included
	Reason   string         // valid UTF-8 of at most ReasonMax bytes. DeadLetter: why. Retry: the newest error
}

// Config bounds the retries of failed events and their delays.
type Config struct {
	// AttemptsMax is the number of failures of an event after which it goes to the dead letter
	// topic.
	AttemptsMax uint32 `min:"1"`
	// CrashesMax is the number of crashes of workers that have the event after which it goes to
	// the dead letter topic. Crashes are not failures, since the event need not be the cause.
	CrashesMax uint32 `min:"1"`
	// BackoffMin is the delay after the first failure, before jitter; it doubles with every
	// further failure.
	BackoffMin time.Duration `above:"0"`
	// BackoffMax is the longest delay that doubling leads to.
	BackoffMax time.Duration `above:"0"`
	// AfterMax is the longest delay that the application may ask for; longer ones are
	// shortened to it.
	AfterMax time.Duration `above:"0"`
	// RetryHoldMax is the longest delay during which the owner holds an event; with a longer
	// delay the event goes by way of the retry topic.
	RetryHoldMax time.Duration `min:"0s"`
}

// DefaultConfig returns ten attempts over five to nine minutes, the first half of
// them at the owner.
func DefaultConfig() Config {
	return Config{
		AttemptsMax:  10,
		CrashesMax:   5,
		BackoffMin:   time.Second,
		BackoffMax:   10 * time.Minute,
		AfterMax:     7 * 24 * time.Hour,
		RetryHoldMax: 30 * time.Second,
	}
}

// putOffMax is the longest delay of an event that the router puts off. RetryHoldMax does not bound it: it is about failures, and with one of 0 the event would be taken and put off
// again without a pause.
const putOffMax = 30 * time.Second

// IsAck reports whether Of makes an Ack of any result of that kind. It is Of for the
// results that are most, which need nothing else to be known.
func IsAck(kind event.ResultKind) bool { return kind == event.ResultDone }

// Of maps the result r of a delivery to its outcome, under a valid c. The event is
// id; the application has failed it attempts times before, and crashes workers that
// had it have crashed. An unknown kind counts as a failure: doing it again is safe,
// loss is not.
func Of(c Config, id event.MessageID, attempts, crashes uint32, r event.Result) Outcome {
	var o Outcome
	switch r.Kind {
	case event.ResultDone:
		o = Outcome{Kind: Ack, Attempts: attempts}
	case event.ResultNotStarted, event.ResultCancelled, event.ResultLost, event.ResultHandedOver:
		o = Outcome{Kind: Retry, Hold: true, Attempts: attempts}
	case event.ResultPutOff:
		o = Outcome{Kind: Retry, Delay: max(0, min(r.After, putOffMax)), Hold: true, Behind: r.Behind, To: r.To, Attempts: attempts}
	case event.ResultCrashed:
		crashes = oneMore(crashes)
		o = crashed(c, attempts, crashes)
	case event.ResultReject:
		o = Outcome{Kind: DeadLetter, Attempts: oneMore(attempts), Reason: clip(r.Reason)}
	case event.ResultRetry:
		o = failed(c, id, oneMore(attempts), r)
	default:
		o = failed(c, id, oneMore(attempts), r)
	}
	o.Crashes = crashes
	return o
}

// oneMore counts one more. A full count stays: a producer of the retry topic can write any into a copy, and at 0 the event would never end.
func oneMore(count uint32) uint32 { return max(count, count+1) }

// Skipped is the outcome, in the place of o, of an event that an operator has skipped for a reason: the dead letter topic, unless
// the application has done it.
func Skipped(o Outcome, reason string) Outcome {
	if o.Kind == Ack {
		return o
	}
	return Outcome{Kind: DeadLetter, Attempts: o.Attempts, Crashes: o.Crashes, Reason: clip(reason)}
}

// crashed is the outcome after crash number crashes (from 1). The key has waited
// until the deadline of the handler already, and waits no longer here.
func crashed(c Config, attempts, crashes uint32) Outcome {
	if crashes >= c.CrashesMax {
		reason := fmt.Sprintf("a worker crashed %d times while it had the event", crashes)
		return Outcome{Kind: DeadLetter, Attempts: attempts, Reason: reason}
	}
	return Outcome{Kind: Retry, Hold: true, Attempts: attempts, Reason: "its worker crashed"}
}

// failed is the outcome of failure number attempts (from 1), which the application
// would like to try again.
func failed(c Config, id event.MessageID, attempts uint32, r event.Result) Outcome {
	if attempts >= c.AttemptsMax {
		reason := clip(fmt.Sprintf("failed %d times: %s", attempts, r.Reason))
		return Outcome{Kind: DeadLetter, Attempts: attempts, Reason: reason}
	}
	delay := min(r.After, c.AfterMax)
	if delay <= 0 {
		delay = backoff.Jitter(backoff.Nth(c.BackoffMin, c.BackoffMax, int(attempts)), jitter(id, attempts))
	}
	return Outcome{
		Kind:     Retry,
		Delay:    delay,
		Hold:     delay <= c.RetryHoldMax,
		Attempts: attempts,
		Reason:   clip(r.Reason),
	}
}

// jitter hashes id and attempts. It needs no better quality than that ids which
// differ in one bit spread evenly.
func jitter(id event.MessageID, attempts uint32) uint64 {
	hash := mix(uint64(id.Ledger))
	hash = mix(hash ^ uint64(id.Entry))
	hash = mix(hash ^ uint64(uint32(id.Batch))<<32 ^ uint64(uint32(id.TopicPartition)))
	return mix(hash ^ uint64(attempts))
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// clip cuts a reason to ReasonMax bytes of valid UTF-8, which is all that the
// wire's strings may hold.
func clip(reason string) string {
	if len(reason) > ReasonMax {
		reason = reason[:ReasonMax]
	}
	return strings.ToValidUTF8(reason, "")
}
