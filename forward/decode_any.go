package forward

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/wire/hotframe"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// The functions below decode frames by the generated code: those that are not hot, and hot ones
// that another encoder has written, or a later version of ours. They alone say what is wrong with
// a frame. The content of hot ones is encoded again in the order of our writer, and then read as if it came from it.

// parseAny decodes any frame.
func (f *eventsFrame) parseAny(b []byte, propertiesMax int) error {
	if err := boundEvents(b, propertiesMax); err != nil {
		return err
	}
	m := new(peerv1.ForwardRequest)
	if err := unmarshal(b, m); err != nil {
		return err
	}
	f.receipt = m.GetReceipt()
	all := m.GetEvents()
	if all == nil {
		f.other = m
		return nil
	}
	ours, err := marshal(
		&peerv1.Events{Number: all.GetNumber(), Epoch: all.GetEpoch(), Relay: all.GetRelay()},
		&peerv1.Events{Topics: all.GetTopics(), Names: all.GetNames()},
		&peerv1.Events{SchemaVersions: all.GetSchemaVersions()},
		&peerv1.Events{Events: all.GetEvents()},
	)
	if err != nil {
		return err
	}
	return f.parseHot(ours, propertiesMax)
}

// unmarshal decodes a message without the fields of later versions.
func unmarshal(b []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}

// marshal encodes parts of a message, one behind the other; the fields of each come in the order of their numbers.
func marshal(parts ...proto.Message) (b []byte, err error) {
	for _, part := range parts {
		if b, err = (proto.MarshalOptions{}).MarshalAppend(b, part); err != nil {
			return nil, fmt.Errorf("%w: %w", errFrame, err)
		}
	}
	return b, nil
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

// parseAny decodes any frame.
func (f *verdictsFrame) parseAny(b []byte) error {
	if err := boundVerdicts(b); err != nil {
		return err
	}
	m := new(peerv1.ForwardResponse)
	if err := unmarshal(b, m); err != nil {
		return err
	}
	f.receipt = m.GetReceipt()
	all := m.GetVerdicts()
	if all == nil {
		f.other = m
		return nil
	}
	ours, err := marshal(&peerv1.Verdicts{Number: all.GetNumber(), Epoch: all.GetEpoch()}, &peerv1.Verdicts{Verdicts: all.GetVerdicts(), Done: all.GetDone()})
	if err != nil {
		return err
	}
	return f.parseHot(ours)
}

// boundVerdicts is [boundEvents] for verdicts.
func boundVerdicts(frame []byte) error {
	n, sets, hello, keys := 0, 0, 0, 0
	for num, content := range hotframe.Fields(frame) {
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
	return nil
}
