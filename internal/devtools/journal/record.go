// Package journal holds the records that applications under test write about their own
// work, and the checker that reads them afterwards.
//
// The evidence for overlaps never comes from the router. Every application process writes the
// start and the end of each handling into a file of its own with a [Writer]; [Check] merges the
// files of all processes of one machine by time, and reports the findings: overlaps, losses,
// duplicates, stale fences, gaps.
//
// # Why the times can be trusted
//
// All instants are [clock.Shared], on which all processes of a machine agree. The start is read
// before the handler's first instruction and the end after its last one, so a written interval
// contains the true one. An application that reports a result only after [Writer.End] has
// returned never causes a false overlap. The clock is read under the lock that orders the file:
// a file is sorted by time.
//
// # After a kill
//
// Each record is one write call. Written records survive a SIGKILL of the process (not a power
// cut). A torn last line is ignored and counted; a start without an end lasts until the kill,
// or else until the end of its file.
//
// # The file
//
// Text, one record per line, so that anybody can read it with grep:
//
//	ringfence-journal 2
//	S <instant ns> <handling> <token> <turn> "<event>" "<key>"
//	E <instant ns> <handling> <outcome>
//	D <instant ns> <handling> <deadline ns>
//
// D is written by holders of reservations: unless a later D says otherwise, they do nothing after the deadline, even if their process is stopped.
//
// Journals of version 1 are read too: they have no turns, so each counts as 0.
//
// The file contains keys in clear text: journals are for tests and demonstrations.
package journal

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

const (
	header        = "ringfence-journal 2\n"
	headerNoTurns = "ringfence-journal 1\n"
)

// EventBytesMax is the longest event id in bytes.
const EventBytesMax = 1 << 10

// lineBytesMax is the longest line: quoting makes at most four bytes of one.
const lineBytesMax = 4*(event.KeyMax+EventBytesMax) + 128

// Handling numbers the handlings of one journal, from 1.
type Handling uint64

// Outcome is the end of a handling.
//
//exhaustive:enforce
type Outcome uint8

// How a handling can end. After Done and Rejected the event is over; after the
// others it is expected again.
const (
	Done      Outcome = 1 // the work was done
	Rejected  Outcome = 2 // it will never succeed: dead letter
	Failed    Outcome = 3 // it failed, to be retried
	Cancelled Outcome = 4 // the handler was cut, because its key was lost
)

// String returns the word for it in the file.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "done"
	case Rejected:
		return "rejected"
	case Failed:
		return "failed"
	case Cancelled:
		return "cancelled"
	}
	return "unknown"
}

// over reports whether the event is not expected again.
func (o Outcome) over() bool { return o == Done || o == Rejected }

func parseOutcome(s string) (Outcome, error) {
	for o := Done; o <= Cancelled; o++ {
		if o.String() == s {
			return o, nil
		}
	}
	return 0, fmt.Errorf("outcome %q", s)
}

// record is one line. A start has fence, event and key; an end has an outcome; a deadline is neither.
type record struct {
	at       clock.Instant
	handling Handling
	deadline clock.Instant // 0: this is a start or an end
	outcome  Outcome       // 0: this is a start or a deadline
	fence    event.Fence
	event    string
	key      event.Key
}

func (r record) isStart() bool    { return r.outcome == 0 && r.deadline == 0 }
func (r record) isDeadline() bool { return r.deadline != 0 }

// appendTo appends the line of r, with its newline, to b.
func (r record) appendTo(b []byte) []byte {
	switch {
	case r.isStart():
		b = append(b, 'S', ' ')
	case r.isDeadline():
		b = append(b, 'D', ' ')
	default:
		b = append(b, 'E', ' ')
	}
	b = strconv.AppendInt(b, int64(r.at), 10)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(r.handling), 10)
	b = append(b, ' ')
	if r.isDeadline() {
		b = strconv.AppendInt(b, int64(r.deadline), 10)
		return append(b, '\n')
	}
	if !r.isStart() {
		b = append(b, r.outcome.String()...)
		return append(b, '\n')
	}
	b = strconv.AppendInt(b, r.fence.Token, 10)
	b = append(b, ' ')
	b = strconv.AppendUint(b, r.fence.Turn, 10)
	b = append(b, ' ')
	b = strconv.AppendQuoteToASCII(b, r.event)
	b = append(b, ' ')
	b = strconv.AppendQuoteToASCII(b, string(r.key))
	return append(b, '\n')
}

var errMalformed = errors.New("malformed line")

// parseRecord reads one line without its newline.
func parseRecord(line string) (record, error) {
	kind, rest, _ := strings.Cut(line, " ")
	at, rest, _ := strings.Cut(rest, " ")
	handling, rest, found := strings.Cut(rest, " ")
	if !found {
		return record{}, errMalformed
	}
	var r record
	instant, errAt := strconv.ParseInt(at, 10, 64)
	number, errHandling := strconv.ParseUint(handling, 10, 64)
	if err := errors.Join(errAt, errHandling); err != nil {
		return record{}, err
	}
	r.at, r.handling = clock.Instant(instant), Handling(number)
	var err error
	switch kind {
	case "S":
		err = r.parseStart(rest)
	case "E":
		r.outcome, err = parseOutcome(rest)
	case "D":
		var until int64
		if until, err = strconv.ParseInt(rest, 10, 64); err == nil && until <= 0 {
			err = errMalformed
		}
		r.deadline = clock.Instant(until)
	default:
		err = errMalformed
	}
	return r, err
}

func (r *record) parseStart(rest string) error {
	token, rest, _ := strings.Cut(rest, " ")
	var err error
	if r.fence.Token, err = strconv.ParseInt(token, 10, 64); err != nil {
		return err
	}
	if !strings.HasPrefix(rest, `"`) { // else it is a record of version 1
		var turn string
		turn, rest, _ = strings.Cut(rest, " ")
		if r.fence.Turn, err = strconv.ParseUint(turn, 10, 64); err != nil {
			return errMalformed
		}
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return errMalformed
	}
	if r.event, err = strconv.Unquote(quoted); err != nil {
		return err
	}
	key, err := strconv.Unquote(strings.TrimPrefix(rest[len(quoted):], " "))
	r.key = event.Key(key)
	return err
}
