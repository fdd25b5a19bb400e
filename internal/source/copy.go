package source

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// Properties that a copy carries beside the event's own. Those of the retry topic
// are taken off again when it is read, so the application sees the original's only.
const (
	PropertyMessageID   = "ringfence-message-id"     // of the original: ledger:entry:partition:batch
	PropertyTopic       = "ringfence-topic"          // of the original, full name
	PropertyPublishTime = "ringfence-publish-time"   // of the original, Unix milliseconds
	PropertyEventTime   = "ringfence-event-time"     // of the original, Unix milliseconds; absent when the message has it
	PropertySchema      = "ringfence-schema-version" // of the original, in hex; absent when it had none
	PropertyAttempts    = "ringfence-attempts"       // how often the application failed it
	PropertyCrashes     = "ringfence-crashes"        // how often a worker crashed that had it; absent when none did
	PropertyRound       = "ringfence-round"          // how often it was copied to the retry topic
	PropertyFirstError  = "ringfence-first-error"    // absent when there was none
	PropertyLastError   = "ringfence-last-error"     // absent when there was none
	PropertyReason      = "ringfence-reason"         // dead letters: why
	PropertyEncryption  = "ringfence-encryption"     // dead letters: JSON, the data needed to decrypt the payload; absent when it is not encrypted
	PropertyBroken      = "ringfence-broken"         // dead letters: the payload is an entry that cannot be read, and why, in one word; absent when it is an event's
	PropertyOwner       = "ringfence-owner"          // dead letters: the member that gave the verdict; absent when no member did
	PropertyParked      = "ringfence-parked"         // letters of the parking topic: the text of an event.Mark
)

// PropertySeal binds a copy to the rest of its content: "hmac-sha256:HEX" with a key of the
// group, "sha256:HEX" without.
const PropertySeal = "ringfence-seal"

const propertyPrefix = "ringfence-"

// outgoing is a copy on its way to the retry, dead letter, parking or timer topic.
type outgoing struct {
	topic       string
	key         string
	orderingKey string
	payload     []byte
	properties  map[string]string
	eventTime   int64 // Unix milliseconds, 0 when there is none
	delay       time.Duration
	after       *pulsarsend.Sender // as in outgoingEvent
	producer    int                // as in outgoingEvent
	awaited     bool               // a caller of Send waits for it: it is given up after sendTimeout
}

// retryCopy makes the copy that comes back after d.Delay.
func retryCopy(topic string, m event.Message, d *event.Detail) outgoing {
	c := newCopy(topic, m, d, m.Event.Round+1, d.Reason)
	c.delay = d.Delay
	return c
}

// parkedCopy makes the copy that waits in the parking topic until an operator brings it back.
func parkedCopy(topic string, m event.Message, d *event.Detail) outgoing {
	mark, lastError := event.CutMark(d.Reason)
	round := max(m.Event.Round, m.Event.Round+1) // the number saturates: a copy of round 0 is not a copy, and parking has no other bound on rounds
	c := newCopy(topic, m, d, round, cmp.Or(lastError, m.Event.LastError))
	c.properties[PropertyParked] = mark
	return c
}

// tooManyRounds is the reason for giving up an event that was copied too often.
func tooManyRounds(rounds uint32) string {
	return fmt.Sprintf("copied to the retry topic %d times without coming to an end", rounds)
}

// headMax bounds the key, ordering key and properties of a copy together, in bytes. They are in each chunk of a large
// copy, and Pulsar's client cannot send them at all if they exceed what the broker takes (5 MiB): the copy would be
// retried forever, and its event would never end.
const headMax = 1 << 20

// headBytes is the size of what headMax bounds.
func headBytes(m *event.Message) int {
	n := len(m.Key) + len(m.OrderingKey)
	for _, p := range m.Event.Properties {
		n += len(p.Name) + len(p.Value)
	}
	return n
}

// reasonHead is the reason for giving up an event whose head is too large for a copy.
func reasonHead(m *event.Message) string {
	return fmt.Sprintf("key and properties have %d bytes, a copy carries %d", headBytes(m), headMax)
}

// brokenHead is the PropertyBroken of a dead letter that has its key and properties in the payload.
const brokenHead = "head"

// inPayload returns m with its keys and properties in front of its payload, as Pulsar's batches have them.
// PropertyBroken is among them, of an entry that cannot be read or of a producer.
func inPayload(m event.Message) event.Message {
	ev := *m.Event
	meta := &pulsarpb.SingleMessageMetadata{PayloadSize: new(int32(len(ev.Payload)))}
	if m.Key != "" {
		meta.PartitionKey = new(strings.ToValidUTF8(m.Key, "\uFFFD"))
	}
	if m.OrderingKey != "" {
		meta.OrderingKey = []byte(m.OrderingKey)
	}
	if ev.Payload == nil {
		meta.NullValue = new(true)
	}
	if ev.EventTime != 0 {
		meta.EventTime = new(uint64(ev.EventTime))
	}
	for _, p := range ev.Properties {
		meta.Properties = append(meta.Properties, &pulsarpb.KeyValue{Key: new(strings.ToValidUTF8(p.Name, "\uFFFD")), Value: new(strings.ToValidUTF8(p.Value, "\uFFFD"))})
	}
	head, _ := proto.Marshal(meta) // its required fields are set, its text is valid
	ev.Payload = slices.Concat(binary.BigEndian.AppendUint32(nil, uint32(len(head))), head, ev.Payload)
	ev.Properties = []event.Property{{Name: PropertyBroken, Value: brokenHead}}
	return event.Message{Event: &ev}
}

// deadLetterCopy makes the copy for the dead letter topic.
func deadLetterCopy(topic string, m event.Message, d *event.Detail, reason string) outgoing {
	if headBytes(&m) > headMax {
		m = inPayload(m)
	}
	lastError := m.Event.LastError
	if attempts(m.Event, d) > m.Event.Attempts {
		lastError = d.Reason // this failure was the last one
	}
	c := newCopy(topic, m, d, m.Event.Round, lastError)
	c.properties[PropertyReason] = reason
	if d.Owner != "" {
		c.properties[PropertyOwner] = d.Owner
	}
	return c
}

func newCopy(topic string, m event.Message, d *event.Detail, round uint32, lastError string) outgoing {
	ev := m.Event
	properties := make(map[string]string, len(ev.Properties)+10)
	for _, p := range ev.Properties {
		properties[p.Name] = p.Value
	}
	properties[PropertyMessageID] = ev.ID.String()
	properties[PropertyTopic] = ev.Topic
	properties[PropertyPublishTime] = strconv.FormatInt(ev.PublishTime, 10)
	properties[PropertyAttempts] = formatUint(attempts(ev, d))
	if ev.SchemaVersion != "" {
		properties[PropertySchema] = hex.EncodeToString([]byte(ev.SchemaVersion))
	}
	if crashes := max(ev.Crashes, d.Crashes); crashes > 0 {
		properties[PropertyCrashes] = formatUint(crashes)
	}
	properties[PropertyRound] = formatUint(round)
	if firstError := cmp.Or(ev.FirstError, d.FirstError, lastError); firstError != "" {
		properties[PropertyFirstError] = firstError
	}
	if lastError != "" {
		properties[PropertyLastError] = lastError
	}
	eventTime := ev.EventTime
	if eventTime < 0 || eventTime > EventTimeMax {
		properties[PropertyEventTime], eventTime = strconv.FormatInt(eventTime, 10), 0
	}
	return outgoing{
		topic: topic, key: m.Key, orderingKey: m.OrderingKey, payload: ev.Payload,
		properties: properties, eventTime: eventTime,
	}
}

// EventTimeMax is the latest event time that Pulsar's client sends unchanged, in the year 2262: it counts nanoseconds
// on the way. A producer that gives microseconds exceeds it, and a copy that came back with a different time would
// count as altered.
const EventTimeMax = math.MaxInt64 / int64(time.Millisecond)

// attempts never lowers the count: the verdict's count is newer than the event's,
// unless the owner that counted is gone.
func attempts(ev *event.Event, d *event.Detail) uint32 { return max(ev.Attempts, d.Attempts) }

func formatUint(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// restore turns a copy without a refusalReason back into the original event with its history.
func restore(ev *event.Event) {
	id, err := event.ParseMessageID(property(ev, PropertyMessageID))
	if err != nil {
		stripCopy(ev)
		return
	}
	ev.ID = id
	if topic := property(ev, PropertyTopic); topic != "" {
		ev.Topic = topic
	}
	if ms, err := strconv.ParseInt(property(ev, PropertyPublishTime), 10, 64); err == nil {
		ev.PublishTime = ms
	}
	if ms, err := strconv.ParseInt(property(ev, PropertyEventTime), 10, 64); err == nil {
		ev.EventTime = ms
	}
	if version, err := hex.DecodeString(property(ev, PropertySchema)); err == nil {
		ev.SchemaVersion = string(version)
	}
	ev.Attempts = parseUint(property(ev, PropertyAttempts))
	ev.Crashes = parseUint(property(ev, PropertyCrashes))
	ev.Round = parseUint(property(ev, PropertyRound))
	ev.FirstError = property(ev, PropertyFirstError)
	ev.LastError = property(ev, PropertyLastError)
	stripCopy(ev)
}

// stripCopy removes a copy's additional properties, but not those of an event that a router has published.
func stripCopy(ev *event.Event) {
	own := ev.Properties[:0:0]
	for _, p := range ev.Properties {
		if !strings.HasPrefix(p.Name, propertyPrefix) || ev.ID.IsSent() && event.IsOfSent(p.Name) {
			own = append(own, p)
		}
	}
	ev.Properties = own
}

func property(ev *event.Event, name string) string {
	value, _ := ev.Property(name)
	return value
}

func parseUint(s string) uint32 {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}
