package entries

import (
	"crypto/rand"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Start is where a reader begins. A reader hands on an entry for each entry that the broker sends: for a chunk whose message is not whole yet, one that
// only tells how far it is (see [Delivered.Waits]). A message comes with the chunk that makes it whole.
type Start struct {
	// ID is the first entry, or the oldest one behind it if that entry is not there; or Earliest or Latest.
	ID wire.ID
	// Since makes the reader begin about at the first entry that was published then, if it is set. A broker looks for it by the times that
	// producers claim, and counts back from its own clock.
	Since time.Time
	// Log is for a topic partition of which each entry counts. A chunk of a message is handed on by itself, as a broken entry. The reader ends with [ErrReplaced]
	// if the entry that was received last is not there when it connects again; without Log it continues with the oldest entry behind that one.
	Log bool
}

// Places of no entry, with Pulsar's numbers.
var (
	Earliest = wire.ID{Ledger: -1, Entry: -1}                       // before the oldest entry
	Latest   = wire.ID{Ledger: math.MaxInt64, Entry: math.MaxInt64} // behind the last entry
)

// reading is where a reader stands: with the newest entry that was received. The next session hands on what is behind it.
type reading struct {
	start Start

	mu    sync.Mutex // guards the fields below
	begun bool
	last  wire.ID
	from  wire.ID // last, or an earlier entry that may be a part of a message behind it
}

// received notes an entry. The entries of a consumer are received in their order.
func (r *reading) received(d *Delivered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun, r.last, r.from = true, d.ID, d.resume
}

// resumption checks the first entry of a reader's session: it is that which the session was asked to begin with, unless that one was deleted. The goroutine of
// the connection uses it.
type resumption struct {
	from  wire.ID
	begun bool  // from is an entry that was received; otherwise nothing is checked
	log   bool  // see Start
	err   error // the first entry was another one
}

// resumes returns the check of a session that begins now.
func (r *reading) resumes() resumption {
	r.mu.Lock()
	defer r.mu.Unlock()
	return resumption{from: r.from, begun: r.begun, log: r.start.Log}
}

// allows takes the id of an entry of the session, of which the first one counts.
func (r *resumption) allows(id wire.ID) bool {
	if r.begun {
		r.begun = false
		if order := compare(id, r.from); order < 0 || order > 0 && r.log {
			r.err = fmt.Errorf("%w: it begins with %v in place of %v", ErrReplaced, id, r.from)
		}
	}
	return r.err == nil
}

// has reports whether an entry, or a message that is whole with it, was received.
func (r *reading) has(id wire.ID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun && compare(id, r.last) <= 0
}

// rollbackMax bounds how far a reader goes back in time, in seconds: a broker counts milliseconds.
const rollbackMax = math.MaxInt64 / int64(time.Second)

// ask makes a subscription one of a reader, with a name of its own: a broker may still have that of an earlier session, which is farther. Such a subscription
// ends with its consumer.
func (r *reading) ask(s *pulsarpb.CommandSubscribe, now time.Time) {
	s.Subscription, s.Durable, s.InitialPosition = new("reader-"+rand.Text()), new(false), pulsarpb.CommandSubscribe_LATEST.Enum()
	r.mu.Lock()
	defer r.mu.Unlock()
	from := r.start.ID
	switch {
	case r.begun:
		from = r.from
	case !r.start.Since.IsZero():
		seconds := int64(now.Sub(r.start.Since)/time.Second) + 1
		from, s.StartMessageRollbackDurationSec = Earliest, new(uint64(min(max(1, seconds), rollbackMax)))
	}
	s.StartMessageId = &pulsarpb.MessageIdData{LedgerId: new(uint64(from.Ledger)), EntryId: new(uint64(from.Entry))}
}
