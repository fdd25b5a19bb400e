package deadletter

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// The acts.
const (
	ActReplayLetters = "replay of dead letters"
	ActPurge         = "purge of dead letters"
	ActReplayEvents  = "replay of events"
)

// The steps of an act.
const (
	StepBegan    = "began"
	StepSending  = "sending"  // a batch is about to be sent; with the letters of the batch, the batch before was sent
	StepResolved = "resolved" // the letters of an act's last batch that were found in their topics, after the act was interrupted or got no answers
	StepEnded    = "ended"
)

// Record is one record of the replays topic. Who and Why are the claims of the command.
type Record struct {
	Act       string     `json:"act"` // 16 hex digits, random
	Step      string     `json:"step"`
	At        time.Time  `json:"at"`
	What      string     `json:"what,omitempty"`
	Who       string     `json:"who,omitempty"`
	Why       string     `json:"why,omitempty"`
	Selection *Selection `json:"selection,omitempty"`

	From    map[string]Place `json:"from,omitempty"`    // by topic partition, full name: the last message before the batch
	Letters []Sent           `json:"letters,omitempty"` // of the batch
	Counts  *Counts          `json:"counts,omitempty"`  // at the end
	Ends    map[string]Place `json:"ends,omitempty"`    // by topic partition of the dead letter topic, full name: its last letter, at the end of the act and before each batch
}

// Place is the place of an entry in a topic partition. An Entry of -1 is the place before the first one.
type Place struct {
	Ledger int64 `json:"ledger"`
	Entry  int64 `json:"entry"`
}

// Sent names a letter, by its place in the dead letter topic and by its event.
type Sent struct {
	Letter   string   `json:"letter"`
	Identity Identity `json:"identity"`
	Topic    string   `json:"topic,omitempty"` // mark of the topic that the letter claims; "" in records of older releases: any
}

// copied names a letter as its copy in a topic does, which does not say what topic the letter claimed.
type copied struct {
	letter   string
	identity Identity
}

// claimed names an event of a topic: a letter that claims another topic is no copy of it.
type claimed struct {
	identity Identity
	topic    string // its mark; "": any
}

// recordBytesMax bounds a record that is read.
const recordBytesMax = 4 << 20

// decodeRecord reads a record that anybody may have written.
func decodeRecord(data []byte) (r Record, err error) {
	if len(data) > recordBytesMax {
		return r, fmt.Errorf("a record of %d bytes, at most %d are read", len(data), recordBytesMax)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Act == "" || !slices.Contains([]string{StepBegan, StepSending, StepResolved, StepEnded}, r.Step) {
		return r, errors.New("a record without an act or a known step")
	}
	for _, s := range r.Letters {
		if _, err := event.ParseMessageID(s.Letter); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Memory is what the records of the replays topic say. The zero Memory is not usable.
type Memory struct {
	letters map[string]bool    // that were sent
	events  map[claimed]string // their events → act
	foreign int                // records that no command of ours wrote
	open    map[string]Record  // act → its last batch, or its beginning, while it has not ended
	ends    map[string]actEnd  // act → its end, or its newest record
}

// actEnd is the end of an act, or of what is known of it.
type actEnd struct {
	at     time.Time       // by the clock of its command
	places map[int32]Place // by number of the topic partition: the last letter; nil: an act that was interrupted before its first batch, or of an older release
}

func newMemory() *Memory {
	return &Memory{letters: map[string]bool{}, events: map[claimed]string{}, open: map[string]Record{}, ends: map[string]actEnd{}}
}

// apply adds a record. A batch counts as sent when a later record of its act says so.
func (m *Memory) apply(r Record) {
	last := m.open[r.Act]
	if r.Step != StepResolved { // which another act may write, much later
		m.ends[r.Act] = endOfAct(r)
	}
	switch r.Step {
	case StepBegan:
		m.open[r.Act] = r
	case StepSending:
		m.noteSent(last)
		m.open[r.Act] = r
	case StepEnded:
		m.noteSent(last)
		delete(m.open, r.Act)
	case StepResolved:
		m.noteSent(r)
		delete(m.open, r.Act)
	}
}

func endOfAct(r Record) actEnd {
	end := actEnd{at: r.At}
	if len(r.Ends) > 0 {
		end.places = map[int32]Place{}
	}
	for topic, place := range r.Ends {
		end.places[partitionOf(topic)] = place
	}
	return end
}

func (m *Memory) noteSent(r Record) {
	for _, s := range r.Letters {
		m.letters[s.Letter] = true
		m.events[claimed{s.Identity, s.Topic}] = r.Act
	}
}

// repeats reports whether a letter is one more of an event that an act has sent. A letter that came after that act is not: the event has
// run again, under its own id after a reset of the cursor, and has failed again.
func (m *Memory) repeats(l *Letter, s Sent) bool {
	for _, topic := range []string{s.Topic, ""} {
		if act, sent := m.events[claimed{s.Identity, topic}]; sent && m.ends[act].isAfter(l) {
			return true
		}
	}
	return false
}

// isAfter reports whether the act ended after the letter came. It compares places if there are some, since these do
// not depend on the clocks of routers and commands, and otherwise times.
func (e actEnd) isAfter(l *Letter) bool {
	if e.places == nil {
		return l.Published.Before(e.at.Truncate(time.Millisecond)) // which is the precision of Published
	}
	place, existed := e.places[l.ID.TopicPartition]
	return existed && !place.before(Place{l.ID.Ledger, l.ID.Entry})
}

// interrupted returns the records of the acts that have not ended, with their last batches, the oldest first.
func (m *Memory) interrupted() []Record {
	return slices.SortedFunc(maps.Values(m.open), func(a, b Record) int { return a.At.Compare(b.At) })
}

// Counts are what an act did, or would do. Each letter that was read counts once, except in Schema.
type Counts struct {
	Read       int            `json:"read"`                // letters or events that were looked at
	Selected   int            `json:"selected"`            // of these
	Sent       int            `json:"sent"`                // again, confirmed by the broker; in a dry run: would be
	Purged     int            `json:"purged"`              // in a dry run: would be
	SentBefore int            `json:"sent_before"`         // by an act before; letters are removed, not sent
	Repeated   int            `json:"repeated"`            // the same event as a letter that was sent, and published before that; removed, not sent
	Shared     int            `json:"shared,omitempty"`    // selected by a purge, and not removed: others of their entries were not selected, or are beyond the limit
	Left       int            `json:"left"`                // selected, beyond the limit
	Foreign    int            `json:"foreign,omitempty"`   // messages of the replays topic that are no records; ignored
	Doubt      int            `json:"doubt"`               // in a dry run: of an interrupted act, perhaps sent; the next act finds out
	Obstacles  map[string]int `json:"obstacles,omitempty"` // selected letters that cannot be sent, by reason; they remain
	Schema     int            `json:"schema"`              // sent without the schema version that the original has
	Refused    []string       `json:"refused,omitempty"`   // letters or events that their topics have not taken, the first of them
	Missing    []string       `json:"missing,omitempty"`   // subscriptions without which nothing is sent to a topic
	Unsure     []string       `json:"unsure,omitempty"`    // what is not known: topic partitions of which a replay of events may have missed some, topics that may have no subscription
	Reach      string         `json:"reach,omitempty"`     // why reading ended, when not at the end of the topic
}

func (c *Counts) obstacle(reason string) {
	if c.Obstacles == nil {
		c.Obstacles = map[string]int{}
	}
	c.Obstacles[reason]++
}
