package schedule

import (
	"fmt"
	"math"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Sent returns the event that is published for the firing.
func (a *Arm) Sent() event.Sent {
	return event.Sent{
		Key: event.Key(KeyOf(a.Definition.Name)), Due: a.Due.UnixMilli(), Name: a.Definition.Name,
		Firing: &event.Firing{Definition: a.Definition.ID(), Time: a.Time.UnixMilli(), Missed: uint32(min(a.Missed, math.MaxUint32))},
	}
}

// MessageID returns what all copies of a firing have in common, by the schedule's name and [Arm.ID].
func MessageID(name string, id uint64) event.MessageID {
	return event.SentMessageID(event.Key(KeyOf(name)), "schedule", fmt.Sprintf("%016x", id))
}

// FiringOf returns the firing that has come as a published event, which must have one.
func FiringOf(sent *event.Sent) Firing {
	return Firing{Name: sent.Name, DefinitionID: sent.Firing.Definition, Time: time.UnixMilli(sent.Firing.Time), Missed: int(sent.Firing.Missed)}
}
