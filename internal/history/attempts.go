package history

import (
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// End is the last known state of an event at a mailbox.
type End uint8

// The ends.
const (
	Open     End = iota // it is there: it waits, or runs
	Done                // its handler did it
	Retried             // it failed, and stays for its next attempt
	Copied              // it failed, and leaves by way of the retry topic
	Rejected            // it goes to the dead letter topic
	Returned            // the delivery ended without a failure, and it stays
	Moved               // its partition has moved, and it is sent on to the next owner
	Parked              // it goes to the parking topic
	Answered            // it is a call, and has its answer
)

// String returns the name of the end, as reports have it.
func (e End) String() string {
	switch e {
	case Open:
		return "open"
	case Done:
		return "done"
	case Retried:
		return "retried"
	case Copied:
		return "copied"
	case Rejected:
		return "rejected"
	case Returned:
		return "returned"
	case Moved:
		return "moved"
	case Parked:
		return "parked"
	case Answered:
		return "answered"
	}
	return "unknown"
}

// Attempt is one attempt to handle an event at its owner, from the mailbox to the answer.
type Attempt struct {
	Key       ring.KeyHash
	ID        event.MessageID
	Accepted  clock.Instant    // when the mailbox took the event
	Delivered clock.Instant    // to the worker; 0: never
	Ended     clock.Instant    // when the answer came, or the event left; 0: not yet
	Fence     event.Fence      // of the delivery; zero: there was none
	Ran       event.Interval   // of the handler, see [event.Result.Ran]; zero: not known
	Number    uint16           // of the attempt, from 1
	Result    event.ResultKind // the worker's answer; 0: none
	End       End
	TimedOut  bool // the router lost patience
}

// Failed reports whether a result is a failure of the application.
func Failed(r event.ResultKind) bool {
	switch r {
	case event.ResultRetry, event.ResultReject, event.ResultLost, event.ResultCrashed:
		return true
	case event.ResultDone, event.ResultNotStarted, event.ResultCancelled, event.ResultPutOff, event.ResultHandedOver:
	}
	return false
}

// Attempts keeps the attempts of one shard.
type Attempts struct {
	newest newest[Attempt]
	failed newest[Attempt]
}

// NewAttempts returns the attempts of one of so many shards.
func (c Config) NewAttempts(shards int) *Attempts {
	bytes := c.BytesMax / parts * attemptsPart / shards
	return &Attempts{newest: newRing[Attempt](bytes - bytes/failedPart), failed: newRing[Attempt](bytes / failedPart)}
}

// Peek loads the place of a later attempt, the nth from now on, so that cache misses overlap. The
// result is of no meaning.
func (t *Attempts) Peek(n int) int { return int(t.newest.peek(n).Ended) }

// Next adds an attempt and returns it; the caller must set all of its fields. failed says that this
// attempt, an earlier attempt of its event, or an attempt of its key since the key last had no events,
// has failed.
func (t *Attempts) Next(failed bool) *Attempt {
	to := &t.newest
	if failed {
		to = &t.failed
	}
	return to.next()
}

// Oldest returns from when on all attempts are remembered, 0 if none was forgotten.
func (t *Attempts) Oldest() clock.Instant {
	if !t.newest.forgets() {
		return 0
	}
	return t.newest.at(t.newest.first()).Ended
}

// AttemptSearch is a search for the attempts of one key.
type AttemptSearch struct {
	Key    ring.KeyHash
	Found  []Attempt
	Oldest clock.Instant // all later attempts are remembered; 0: no attempt was forgotten

	rings [2]cursor
}

// Step goes on with a search, and reports whether there is more to do.
func (t *Attempts) Step(s *AttemptSearch) (more bool) {
	visit := func(a *Attempt) {
		if a.Key == s.Key {
			s.Found = append(s.Found, *a)
		}
	}
	if step(&t.failed, &s.rings[0], visit) {
		return true
	}
	s.Oldest = t.Oldest()
	return step(&t.newest, &s.rings[1], visit)
}
