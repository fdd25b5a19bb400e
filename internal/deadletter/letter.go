package deadletter

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/source"
)

// Properties of an event that was sent again. Their prefix is not that of the properties of copies,
// which a router takes off: a replayed event keeps these through the retry topic.
const (
	PropertyReplayOf     = "x-ringfence-replay-of"     // id of the original
	PropertyReplayLetter = "x-ringfence-replay-letter" // id of the dead letter; absent if an event of a topic was sent again
	PropertyReplayAct    = "x-ringfence-replay-act"    // the act, as the replays topic names it
	PropertyReplayRun    = "x-ringfence-replay-run"    // name of a replay of events; absent on a dead letter
)

const (
	replayPrefix = "x-ringfence-replay-"
	copyPrefix   = "ringfence-"
)

// message is one message as a topic holds it.
type message struct {
	ID          event.MessageID
	Batched     bool // it shares its entry with others
	Encrypted   bool
	MessageKey  string
	OrderingKey string
	Payload     []byte
	Null        bool             // a null value
	Properties  []event.Property // ascending by name
	EventTime   int64            // Unix milliseconds, 0 when there is none
	Published   time.Time        // by the producer's clock; zero if that cannot be read
	Schema      bool             // it has a schema version
	Unreadable  string           // why Payload is the whole entry, which cannot be read; "" if it is the message's
	Void        bool             // no message: what a message was, a mark of the broker, or a chunk whose message is not whole yet

	index, of  int32              // its number in its entry, and how many that has had
	shared     int                // messages of its entry, itself included, without those that are acked or removed already
	first      Place              // of the first chunk
	unfinished int                // messages of which chunks have come, and not all
	entry      *entries.Delivered // nil in tests
}

func (m *message) place() Place { return Place{m.ID.Ledger, m.ID.Entry} }

// isLast reports whether it is the last message of the entry at end, or later.
func (m *message) isLast(end Place) bool {
	at := m.place()
	return end.before(at) || at == end && m.index >= m.of-1
}

func (m *message) property(name string) string {
	for _, p := range m.Properties {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}

// own returns the properties that the original's producer has set.
func (m *message) own() []event.Property {
	var own []event.Property
	for _, p := range m.Properties {
		if !strings.HasPrefix(p.Name, copyPrefix) && !strings.HasPrefix(p.Name, replayPrefix) {
			own = append(own, p)
		}
	}
	return own
}

// headMax bounds the keys and properties of an event that is sent again, in bytes. Pulsar's client cannot send them beyond what the broker takes (5 MiB, with the marks
// of the replay), so that one such message would end each replay before those behind it.
const headMax = 4 << 20

func (m *message) headBytes() int {
	n := len(m.MessageKey) + len(m.OrderingKey)
	for _, p := range m.own() {
		n += len(p.Name) + len(p.Value)
	}
	return n
}

// key returns the key of the event, "" if it has none.
func (m *message) key(x key.Extractor) event.Key {
	k, err := x.Extract(&key.Message{MessageKey: m.MessageKey, OrderingKey: m.OrderingKey, Properties: m.own(), Payload: m.Payload, ID: m.ID})
	if err != nil {
		return ""
	}
	return k
}

// Identity names an event by its original's id and its content, in hex.
type Identity string

// identity returns the identity of a message that claims to be a copy of original. The trace is not
// part of the content: it changes with each span.
func (m *message) identity(original string) Identity {
	own := slices.DeleteFunc(m.own(), func(p event.Property) bool {
		return strings.EqualFold(p.Name, "traceparent") || strings.EqualFold(p.Name, "tracestate")
	})
	parts, _ := json.Marshal([]any{ // these types have no error; a null value is the same as an empty one
		"ringfence replay v1", original, []byte(m.MessageKey), []byte(m.OrderingKey), append([]byte{}, m.Payload...), m.EventTime, bytesOf(own),
	})
	sum := sha256.Sum256(parts)
	return Identity(hex.EncodeToString(sum[:16]))
}

// bytesOf returns properties as bytes: JSON would replace invalid UTF-8 in strings, so that different properties
// could become equal.
func bytesOf(properties []event.Property) (all [][2][]byte) {
	for _, p := range properties {
		all = append(all, [2][]byte{[]byte(p.Name), []byte(p.Value)})
	}
	return all
}

// Letter is a message of the dead letter topic. All but ID and Published are the claims of
// its producer.
type Letter struct {
	message

	Key               event.Key // "" if it has none
	Original          string    // message id, "" if it names none
	Topic             string    // of the original, without a topic partition; "" if it names none
	OriginalPublished time.Time // zero if it names none
	Attempts, Crashes uint64
	FirstError        string
	LastError         string
	Reason            string
	Owner             string
	Timer             bool   // a router has published it: a timer, an event of Send, or a firing of a schedule
	Broken            string // why the payload is an entry that cannot be read, be it that of the letter or of its original; "" if it is an event's
}

// newLetter reads a message of the dead letter topic.
func newLetter(m message, x key.Extractor) Letter {
	l := Letter{
		message: m, Key: m.key(x),
		FirstError: m.property(source.PropertyFirstError), LastError: m.property(source.PropertyLastError),
		Reason: m.property(source.PropertyReason), Owner: m.property(source.PropertyOwner), Broken: m.property(source.PropertyBroken),
		Topic: m.property(source.PropertyTopic),
	}
	if m.Unreadable != "" {
		l.Broken, l.Reason = m.Unreadable, cmp.Or(l.Reason, "the letter cannot be read: "+m.Unreadable)
	}
	if id, err := event.ParseMessageID(m.property(source.PropertyMessageID)); err == nil {
		l.Original = id.String()
		original := m
		original.ID = id
		l.Key = original.key(x) // with key.missing: spread the key is made of the event's id
		if sent, err := event.ParseSent(m.Properties); err == nil && id.IsSent() {
			l.Key, l.Timer = sent.Key, true
		}
	}
	l.Attempts, _ = strconv.ParseUint(m.property(source.PropertyAttempts), 10, 32) // 0 if it is no number
	l.Crashes, _ = strconv.ParseUint(m.property(source.PropertyCrashes), 10, 32)
	if ms, err := strconv.ParseInt(m.property(source.PropertyPublishTime), 10, 64); err == nil {
		if at := time.UnixMilli(ms).UTC(); at.Year() >= 1 && at.Year() <= 9999 { // a producer may claim any time, and JSON has no others
			l.OriginalPublished = at
		}
	}
	l.Encrypted = l.Encrypted || m.property(source.PropertyEncryption) != ""
	l.Schema = l.Schema || m.property(source.PropertySchema) != ""
	return l
}

// origin returns the id of the original. A letter that names none is an original itself.
func (l *Letter) origin() string { return cmp.Or(l.Original, l.ID.String()) }

// sent returns the names of the letter in a record.
func (l *Letter) sent() Sent {
	mark := sha256.Sum256([]byte(l.Topic)) // a stranger may claim a topic of any length
	return Sent{Letter: l.ID.String(), Identity: l.identity(l.origin()), Topic: hex.EncodeToString(mark[:8])}
}

// Reasons for which a letter cannot be sent again.
const (
	ObstacleBatched   = "shares an entry with other messages, so no router wrote it"
	ObstacleEncrypted = "is encrypted"
	ObstacleBroken    = "is an entry that cannot be read"
	ObstacleHead      = "its key and properties have more than 4 MiB"
	ObstacleTimer     = "is a timer, an event of Send, or a firing of a schedule: --to sends it to a topic, as an event without a timer"
	ObstacleTopic     = "its topic is not in pulsar.topics: --to names another"
	ObstacleNotOpened = "its topic cannot be opened"
	ObstacleUnheld    = "its topic has no subscription, so Pulsar would delete it"
	ObstacleRefused   = "its topic has not taken it, or one that is no larger: a policy, such as maxMessageSize, may refuse it"
)

// obstacle returns why the letter cannot be sent again, "" if it can: to the topic to, or to its
// own if to is "" and it is one of topics (full names).
func (l *Letter) obstacle(topics []string, to string) string {
	switch {
	case l.Batched:
		return ObstacleBatched
	case l.Encrypted:
		return ObstacleEncrypted
	case l.Broken != "":
		return ObstacleBroken
	case l.headBytes() > headMax:
		return ObstacleHead
	case to == "" && l.Timer:
		return ObstacleTimer
	case to == "" && !slices.Contains(topics, l.Topic):
		return ObstacleTopic
	}
	return ""
}

// Selection selects letters or events. The zero Selection selects all.
type Selection struct {
	Keys         []string  `json:"keys,omitempty"`          // any of them; none: all
	Match        string    `json:"match,omitempty"`         // text in the reason or an error; dead letters only
	Since        time.Time `json:"since,omitzero"`          // published then or later; of letters: their own publication
	Until        time.Time `json:"until,omitzero"`          // published earlier than this
	IDs          []string  `json:"ids,omitempty"`           // of letters; none: all
	Topics       []string  `json:"topics,omitempty"`        // of events; none: all of the settings
	To           string    `json:"to,omitempty"`            // topic to which letters are sent; "": their own
	Run          string    `json:"run,omitempty"`           // name of a replay of events
	LettersTopic string    `json:"letters_topic,omitempty"` // the dead letter topic
}

// Named returns the selection with a name of its replay: that of Run, or one derived from the selection, so that equal selections are
// one replay.
func (s Selection) Named() Selection {
	s.Since, s.Until = s.Since.UTC(), s.Until.UTC() // equal times are equal in JSON
	if s.Run == "" {
		text, _ := json.Marshal(s) // cannot fail
		sum := sha256.Sum256(text)
		s.Run = hex.EncodeToString(sum[:8])
	}
	return s
}

// Empty reports whether the selection selects everything.
func (s *Selection) Empty() bool {
	return len(s.Keys) == 0 && s.Match == "" && s.Since.IsZero() && s.Until.IsZero() && len(s.IDs) == 0
}

func (s *Selection) hasKey(k event.Key) bool {
	return len(s.Keys) == 0 || slices.Contains(s.Keys, string(k))
}

func (s *Selection) hasTime(t time.Time) bool {
	return !t.Before(s.Since) && (s.Until.IsZero() || t.Before(s.Until))
}

func (s *Selection) has(l *Letter) bool {
	return s.hasKey(l.Key) && s.hasTime(l.Published) &&
		(len(s.IDs) == 0 || slices.Contains(s.IDs, l.ID.String())) &&
		(s.Match == "" || strings.Contains(l.Reason, s.Match) || strings.Contains(l.FirstError, s.Match) || strings.Contains(l.LastError, s.Match))
}

// outgoing is an event that is sent again.
type outgoing struct {
	topic      string
	message    *message
	properties map[string]string
}

// again returns the event of a message with the marks of a replay.
func (m *message) again(topic, original string, marks map[string]string) outgoing {
	o := outgoing{topic: topic, message: m, properties: map[string]string{PropertyReplayOf: original}}
	for _, p := range m.own() {
		o.properties[p.Name] = p.Value
	}
	maps.Copy(o.properties, marks)
	return o
}
