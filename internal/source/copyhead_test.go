package source

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// metadataBytes is the size of the metadata with which pulsar-client-go sends a copy: it refuses the copy
// (ErrMetaTooLarge) when that is not less than the broker's largest message.
func metadataBytes(c outgoing) int {
	c.seal(nil)
	m := &pulsarpb.MessageMetadata{ProducerName: new("p"), SequenceId: new(uint64(1)), PublishTime: new(uint64(1)), PartitionKey: &c.key}
	for name, value := range c.properties {
		m.Properties = append(m.Properties, &pulsarpb.KeyValue{Key: &name, Value: &value})
	}
	return proto.Size(m)
}

const messageMax = 5 << 20 // a default broker's

// A schema version is any bytes of the producer's: no broker checks it. Copies carry it in hex.
func TestACopyWithALongSchemaVersionCanBeSent(t *testing.T) {
	inMemory(t, nil, func(r *rig) {
		m := fakebroker.Metadata()
		m.PartitionKey, m.SchemaVersion = new("k"), []byte(strings.Repeat("s", 3<<20))
		r.cluster.Publish(r.topic, r.entry(m, []byte("payload")), 1)
		got := r.take(1)[0]
		s := &Source{cfg: r.cfg, retries: newCopier(""), letters: newCopier("")}
		for _, kind := range []event.VerdictKind{event.Failed, event.Rejected} {
			out := outgoingEvent{message: got.Message, verdict: event.Verdict{Kind: kind, Detail: &event.Detail{Reason: "no"}}}
			if n := metadataBytes(s.copyOf(&out)); n >= messageMax {
				t.Errorf("verdict %v: the copy's metadata have %d bytes, no broker takes %d: it is tried for ever (dead letter: %v)", kind, n, messageMax, s.kindOf(&out) == copyLetter)
			}
		}
	})
}

// Without keys anybody may write a message into the retry topic that counts as a copy.
func TestAMessageWithLongErrorsIsNoCopy(t *testing.T) {
	properties := []event.Property{
		{Name: PropertyMessageID, Value: "1:2:-1:-1"},
		{Name: PropertyRound, Value: "1"},
		{Name: PropertyFirstError, Value: strings.Repeat("e", 5<<20-1<<10)}, // which a broker takes
	}
	m := event.Message{Key: "k", Event: &event.Event{Payload: []byte("p"), Properties: properties}}
	if why := refusalReason(&m, nil, false); why != copyAltered {
		t.Errorf("it is refused as %q", why) // taken for a copy, its own copies could not be sent
	}
}

// A producer of the retry topic can write any round into a copy. Parked, that is a letter all the same: at round 0 it would never come back.
func TestAParkedCopyOfTheLastRoundIsALetter(t *testing.T) {
	mark := event.Mark{Act: [16]byte{1}, Fence: event.Fence{Token: 1, Turn: 1}}
	m := event.Message{Key: "k", Event: &event.Event{ID: event.MessageID{Ledger: 1, Batch: -1, TopicPartition: -1}, Topic: "t", Payload: []byte("p"), Round: math.MaxUint32}}
	c := parkedCopy("parked", m, &event.Detail{Reason: mark.String()})
	c.seal(nil)
	letter := event.Message{Key: c.key, Event: &event.Event{Payload: c.payload}}
	for name, value := range c.properties {
		letter.Event.Properties = append(letter.Event.Properties, event.Property{Name: name, Value: value})
	}
	if why := refusalReason(&letter, nil, false); why != "" {
		t.Errorf("it is refused as %q", why)
	}
}

// What routers have added to a copy is bounded, and neither what they added to an event that they have published nor
// the producer's own properties count.
func TestBytesOfRoutersPropertiesAreBounded(t *testing.T) {
	long := func(name string, bytes int) event.Property {
		return event.Property{Name: name, Value: strings.Repeat("e", bytes)}
	}
	base := []event.Property{{Name: PropertyMessageID, Value: "1:2:-1:-1"}, {Name: PropertyRound, Value: "1"}}
	said := len("1:2:-1:-1") + len("1")
	for name, test := range map[string]struct {
		more []event.Property
		want string
	}{
		"as many as may be":           {[]event.Property{long(PropertyFirstError, headMax), long(PropertyReason, headMax-said)}, ""},
		"one byte more":               {[]event.Property{long(PropertyFirstError, headMax), long(PropertyReason, headMax-said+1)}, copyAltered},
		"of a published event":        {[]event.Property{long(PropertyFirstError, headMax), long(PropertyReason, headMax-said), long("ringfence-sent-key", 99)}, ""},
		"the producer's, of a length": {[]event.Property{long("mine", 2*headMax+1)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := event.Message{Key: "k", Event: &event.Event{Payload: []byte("p"), Properties: append(base[:2:2], test.more...)}}
			if got := refusalReason(&m, nil, false); got != test.want {
				t.Errorf("refused as %q, want %q", got, test.want)
			}
		})
	}
}

// A producer's own ringfence-broken: key and properties must still be in the dead letter.
func TestADeadLetterKeepsKeyAndProperties(t *testing.T) {
	m := event.Message{Key: "the-key", Event: &event.Event{Payload: []byte("p"), Properties: []event.Property{
		{Name: PropertyBroken, Value: "x"}, {Name: "big", Value: "BEGIN" + strings.Repeat("v", headMax)},
	}}}
	c := deadLetterCopy("dlq", m, &event.Detail{}, "no")
	all := c.key + string(c.payload)
	for name, value := range c.properties {
		all += name + value
	}
	if !strings.Contains(all, "the-key") || !strings.Contains(all, "BEGIN") {
		t.Errorf("the dead letter has lost key and properties: payload %q, key %q, %d properties", c.payload, c.key, len(c.properties))
	}
}
