// Package event holds the types that every stage shares: the event itself, its identifiers, and the
// verdict that is sent back.
//
// It is pure data. An [Event] is immutable once its consumer node has handed it on, with the
// exceptions that its fields name; to change a value, copy the event.
package event

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/partition"
)

// KeyMax is the longest key in bytes; a longer one goes to the dead letter topic.
const KeyMax = 4 << 10

// Key groups events: no two events of one key are handled at the same time. It may hold any
// bytes. It never appears in a log line.
type Key string

// LogValue hides the key from every slog handler.
func (Key) LogValue() slog.Value { return slog.StringValue(hiddenKey) }

// MessageID is Pulsar's name of an event, as numbers. It names the *original*
// event: copies in a retry topic carry it along. Ledger ids are unique in a Pulsar
// cluster over all topics, so it needs no topic to be unique.
type MessageID struct {
	Ledger, Entry  int64
	Batch          int32 // index in the producer's batch, -1 when there was none
	TopicPartition int32 // see PartitionNumber; plus a multiple of 1<<ClusterShift after the topic has moved to another cluster, which may use ledgers again
}

// ClusterShift leaves room below the mark of a cluster for the number of each topic partition, of at most 100,000.
const ClusterShift = 17

// PartitionNumber returns the number of the event's topic partition, -1 if the topic is not partitioned.
func (m MessageID) PartitionNumber() int32 { return (m.TopicPartition+1)&(1<<ClusterShift-1) - 1 }

// String formats the id as Pulsar's tools do: ledger:entry:partition:batch. That of a call is call: and 16 digits.
func (m MessageID) String() string {
	if m.IsCall() {
		return fmt.Sprintf("call:%016x", uint64(m.Entry))
	}
	return fmt.Sprintf("%d:%d:%d:%d", m.Ledger, m.Entry, m.TopicPartition, m.Batch)
}

// ParseMessageID reads the output of [MessageID.String].
func ParseMessageID(s string) (MessageID, error) {
	var n [4]int64
	rest := s
	for i, bits := range [4]int{64, 64, 32, 32} {
		field, tail, more := strings.Cut(rest, ":")
		v, err := strconv.ParseInt(field, 10, bits)
		if err != nil || more != (i < 3) {
			return MessageID{}, fmt.Errorf("event: %q is not a message id", s)
		}
		n[i], rest = v, tail
	}
	return MessageID{Ledger: n[0], Entry: n[1], TopicPartition: int32(n[2]), Batch: int32(n[3])}, nil
}

// Finished names an event that was done, and the partition of its key.
type Finished struct {
	Partition partition.ID
	ID        MessageID
	At        clock.Instant // by the clock of this node, to the millisecond if another one has told it
	Content   Content       // zero if the id suffices
}

// Content is a digest of the content of an event that a router has published, and whose copies are not signed: any client with the right to write such a copy can choose its id.
type Content [16]byte

// Property is one application property of an event.
type Property struct{ Name, Value string }

// Event is one event on its way from Pulsar to its owner's application.
type Event struct {
	Handle      Handle       // given by the source of the consumer node
	ID          MessageID    // of the original event, through all copies
	Topic       string       // original topic, full name
	Key         Key          // set by stage 2
	Partition   partition.ID // set by stage 3
	Payload     []byte       // never written to
	Properties  []Property   // never written to
	PublishTime int64        // Unix milliseconds, by the producer's clock
	EventTime   int64        // Unix milliseconds, 0 when the producer gave none
	Redelivery  uint32       // how often Pulsar has delivered it before
	Attempts    uint32       // how often the application has failed it, at any node; counted at the owner, and at the consumer node by the verdict Attempted
	Round       uint32       // how often it has been copied to the retry topic
	Crashes     uint32       // how often a worker crashed that had it; no failures, and told like Attempts
	FirstError  string       // the application's first failure, "" when none
	LastError   string       // the application's newest failure, "" when none

	SchemaVersion string // of the payload, as Pulsar's schema registry numbers them for the topic: any bytes, "" when the producer gave none

	Call *Call // set for a call, which no broker has; the payload is its argument
}

// eventOverhead and propertyOverhead are the approximate sizes of the Go values of an event and a property.
const (
	eventOverhead    = 256
	propertyOverhead = 32
)

// Bytes is the event's size in every memory bound: its data and approximately its Go values.
func (e *Event) Bytes() int {
	n := eventOverhead + len(e.Key) + len(e.Payload) + len(e.FirstError) + len(e.LastError) + len(e.SchemaVersion)
	for i := range e.Properties {
		n += e.Properties[i].bytes()
	}
	if e.Call != nil {
		n += e.Call.bytes()
	}
	return n
}

func (p *Property) bytes() int { return propertyOverhead + len(p.Name) + len(p.Value) }

// Clone returns a copy that shares no memory with e: otherwise a frame or a batch lives as long
// as its last event.
func (e *Event) Clone() *Event {
	c := *e
	c.Topic, c.Key = strings.Clone(e.Topic), Key(strings.Clone(string(e.Key)))
	c.FirstError, c.LastError = strings.Clone(e.FirstError), strings.Clone(e.LastError)
	c.SchemaVersion = strings.Clone(e.SchemaVersion)
	c.Payload = bytes.Clone(e.Payload)
	c.Properties = slices.Clone(e.Properties)
	for i, p := range c.Properties {
		c.Properties[i] = Property{Name: strings.Clone(p.Name), Value: strings.Clone(p.Value)}
	}
	if e.Call != nil {
		c.Call = e.Call.clone()
	}
	return &c
}

// Property returns the value of the first property called name.
func (e *Event) Property(name string) (value string, ok bool) {
	for _, p := range e.Properties {
		if p.Name == name {
			return p.Value, true
		}
	}
	return "", false
}

// Trace returns the event's W3C trace context, or "": the producer's, or that of the
// newest span that a router has made of it.
func (e *Event) Trace() string {
	c := Carrier{e.Properties}
	return c.Get("traceparent")
}
