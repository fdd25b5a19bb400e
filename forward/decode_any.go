package forward

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// The functions below decode frames by the generated code: those that are not hot, and hot ones
// that another encoder has written, or a later version of ours. They alone say what is wrong with
// a frame.

// parseAny decodes any frame.
func (f *eventsFrame) parseAny(b []byte, propertiesMax int) error {
	if err := boundEvents(b, propertiesMax); err != nil {
		return err
	}
	m := new(peerv1.ForwardRequest)
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	f.receipt = m.GetReceipt()
	frame, ok := m.GetFrame().(*peerv1.ForwardRequest_Events)
	if !ok {
		f.other = m
		return nil
	}
	events := frame.Events
	if events.GetNumber() == 0 {
		return fmt.Errorf("%w: events without a number", errFrame)
	}
	f.number, f.epoch, f.relay = events.GetNumber(), positionOf(events.GetEpoch()), events.GetRelay()
	for _, m := range events.GetEvents() {
		ev, err := eventOf(events, m, f.now)
		if err != nil {
			return err
		}
		f.events = append(f.events, event.RefTo(ev))
	}
	return nil
}

// boundEvents counts the items of a frame before memory is allocated for them: a property of two
// bytes takes a hundred in memory. It stops at the first malformed field, where the generated code
// fails too.
func boundEvents(frame []byte, propertiesMax int) error {
	var events, topics, schemas, names, properties, hello int
	for num, hot := range hotframe.Fields(frame) {
		if num == fieldHello {
			hello += countHello(hot)
		}
		if num != fieldHot {
			continue
		}
		for num, content := range hotframe.Fields(hot) {
			switch num {
			case eventsEvents:
				events++
				properties += hotframe.Count(content, eventProperties)
			case eventsTopics:
				topics++
			case eventsSchema:
				schemas++
			case eventsNames:
				names++
			}
		}
	}
	switch {
	case max(events, topics, schemas) > frameItemsMax:
		return fmt.Errorf("%w: %d events, %d topics and %d schema versions, want at most %d of each", errFrame, events, topics, schemas, frameItemsMax)
	case max(names, properties) > propertiesMax:
		return fmt.Errorf("%w: %d properties with %d names, want at most %d of each", errFrame, properties, names, propertiesMax)
	case hello > frameItemsMax:
		return fmt.Errorf("%w: a Hello of %d capabilities and settings, want at most %d", errFrame, hello, frameItemsMax)
	}
	return nil
}

// countHello counts what repeats in a Hello.
func countHello(hello []byte) int {
	return hotframe.Count(hello, helloCapabilities) + hotframe.Count(hello, helloIdentity)
}

// eventOf returns m with its indexes resolved through the frame's tables.
func eventOf(all *peerv1.Events, m *peerv1.Event, now func() clock.Instant) (*event.Event, error) {
	topics, names, schemas := all.GetTopics(), all.GetNames(), all.GetSchemaVersions()
	switch topic, schema := m.GetTopic(), m.GetSchemaVersion(); {
	case uint64(topic) >= uint64(len(topics)):
		return nil, fmt.Errorf("%w: topic %d of %d", errFrame, topic, len(topics))
	case uint64(schema) > uint64(len(schemas)):
		return nil, fmt.Errorf("%w: schema version %d of %d", errFrame, schema, len(schemas))
	}
	ev := &event.Event{
		Handle: event.Handle(m.GetHandle()), Partition: partitionOf(m.GetPartition()), Key: event.Key(event.Alias(m.GetKey())), Payload: m.GetPayload(),
		ID: event.MessageID{
			Ledger: m.GetLedgerId(), Entry: m.GetEntryId(), Batch: m.GetBatchIndex(), TopicPartition: m.GetTopicPartition(),
		},
		Topic: topics[m.GetTopic()], Attempts: m.GetAttempts(), PublishTime: m.GetPublishTimeMs(), EventTime: m.GetEventTimeMs(),
		Redelivery: m.GetRedeliveryCount(), Round: m.GetRound(), Crashes: m.GetCrashes(), FirstError: m.GetFirstError(), LastError: m.GetLastError(),
	}
	if i := m.GetSchemaVersion(); i > 0 {
		ev.SchemaVersion = string(schemas[i-1])
	}
	if c := m.GetCall(); c != nil {
		ev.Call = &event.Call{Method: c.GetMethod(), ID: c.GetId(), Deadline: hotframe.CallDeadline(now(), c.GetTimeoutMs()), Path: hotframe.KeyHashes(c.GetPath()), Reservation: c.GetReservation(), Resume: c.GetResume(), TTL: hotframe.CallTTL(c.GetTtlMs())}
	}
	for _, p := range m.GetProperties() {
		if uint64(p.GetName()) >= uint64(len(names)) {
			return nil, fmt.Errorf("%w: name %d of %d", errFrame, p.GetName(), len(names))
		}
		ev.Properties = append(ev.Properties, event.Property{Name: names[p.GetName()], Value: p.GetValue()})
	}
	return ev, checkEvent(ev)
}

// partitionOf reads a partition. checkEvent notices one that is too high.
func partitionOf(n uint32) ring.Partition { return ring.Partition(min(n, ring.Partitions)) }

// checkEvent returns what is wrong with an event. One that is no call may have the id of a call: it is a copy with a false id, which a member
// of an earlier release passes on, and for which its stream must not end. Its mailbox gives it another id.
func checkEvent(ev *event.Event) error {
	switch {
	case ev.Handle == 0:
		return fmt.Errorf("%w: an event without a handle", errFrame)
	case ev.Partition >= ring.Partitions:
		return fmt.Errorf("%w: partition %d of %d", errFrame, ev.Partition, ring.Partitions)
	case len(ev.Key) > event.KeyMax:
		return fmt.Errorf("%w: a key of %d bytes, at most %d", errFrame, len(ev.Key), event.KeyMax)
	case ev.Call != nil && !ev.ID.IsCall():
		return fmt.Errorf("%w: a call with the id %s of an event", errFrame, ev.ID)
	}
	return nil
}

// parseAny decodes any frame.
func (f *verdictsFrame) parseAny(b []byte) error {
	n, sets, hello, keys := 0, 0, 0, 0
	for num, content := range hotframe.Fields(b) {
		switch num {
		case fieldHot:
			n += hotframe.Count(content, verdictsVerdicts)
			sets += hotframe.Count(content, verdictsDone)
		case fieldHello:
			hello += countHello(content)
		case fieldCredit:
			keys += hotframe.Count(content, creditKeys)
		}
	}
	switch {
	case max(n, sets) > frameItemsMax:
		return fmt.Errorf("%w: %d verdicts and %d sets, want at most %d of each", errFrame, n, sets, frameItemsMax)
	case max(hello, keys) > frameItemsMax:
		return fmt.Errorf("%w: a Hello of %d capabilities and settings, or a Credit of %d keys, want at most %d", errFrame, hello, keys, frameItemsMax)
	}
	m := new(peerv1.ForwardResponse)
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	f.receipt = m.GetReceipt()
	frame, ok := m.GetFrame().(*peerv1.ForwardResponse_Verdicts)
	if !ok {
		f.other = m
		return nil
	}
	verdicts := frame.Verdicts
	if verdicts.GetNumber() == 0 {
		return fmt.Errorf("%w: verdicts without a number", errFrame)
	}
	f.number, f.epoch = verdicts.GetNumber(), positionOf(verdicts.GetEpoch())
	for _, m := range verdicts.GetVerdicts() {
		f.verdicts = append(f.verdicts, verdictOf(m))
	}
	for _, m := range verdicts.GetDone() {
		if err := f.addDone(event.Handle(m.GetHandle()), m.GetEvents()); err != nil {
			return err
		}
	}
	return nil
}

func verdictOf(m *peerv1.Verdict) event.Verdict {
	return event.Verdict{
		Handle: event.Handle(m.GetHandle()), Kind: kindOf(uint64(m.GetKind())),
		Detail: detailOrNil(event.Detail{
			Delay: duration(m.GetDelayMs()), Attempts: m.GetAttempts(), Crashes: m.GetCrashes(),
			Reason: m.GetReason(), FirstError: m.GetFirstError(), Epoch: positionOf(m.GetEpoch()), Owner: m.GetOwner(),
			Reply: replyOf(uint64(m.GetOutcome()), m.GetReply(), m.GetCode()), Grant: grantOf(m.GetToken(), m.GetTurn(), m.GetRemainingNs()),
		}),
	}
}

// grantOf returns the beginning of a reservation, nil if all its fields are zero.
func grantOf(token int64, turn, remaining uint64) *event.Grant {
	if token == 0 && turn == 0 && remaining == 0 {
		return nil
	}
	return &event.Grant{Fence: event.Fence{Token: token, Turn: turn}, Remaining: nanoseconds(remaining)}
}

// nanoseconds reads a duration; one that is longer than any permission counts as none.
func nanoseconds(ns uint64) time.Duration {
	if ns > uint64(time.Hour) {
		return 0
	}
	return time.Duration(ns)
}

// replyOf returns the answer to a call, nil if all its fields are zero.
func replyOf(outcome uint64, payload []byte, code string) *event.Reply {
	if outcome == 0 && len(payload) == 0 && code == "" {
		return nil
	}
	r := &event.Reply{Outcome: event.CallUnknown, Payload: payload, Code: code}
	if o := uint32(outcome); o > 0 && o <= uint32(event.CallUnknown) { // protobuf cuts excess bits of an outcome off
		r.Outcome = event.CallOutcome(o)
	}
	return r
}

func positionOf(m *peerv1.Position) event.Position {
	return event.Position{Ledger: m.GetLedgerId(), Entry: m.GetEntryId()}
}
