package event

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of events that routers publish themselves.
const (
	SentAfterMax      = 366 * 24 * time.Hour // from the sending until the event is due
	SentPayloadMax    = 1 << 20              // bytes
	SentNameMax       = 128                  // bytes of a timer's or a schedule's name
	SentIDMax         = 256                  // bytes of the sender's id
	SentPropertiesMax = 64
	SentPropertyMax   = 4 << 10 // bytes of a property's name and value
)

// FiringDueMax is the latest instant at which a firing of a schedule can be due, in Unix milliseconds: the times of schedules end with the year 2199, and a delay of at
// most an hour is added.
var FiringDueMax = time.Date(2200, 1, 1, 1, 0, 0, 0, time.UTC).UnixMilli()

// The properties of an event that a router has published. No application sees them.
const (
	propertySent    = "ringfence-sent-" // begins all of them
	propertySentKey = propertySent + "key"
	propertySentDue = propertySent + "due"
	propertyTimer   = propertySent + "timer"
	propertyFiring  = propertySent + "firing"
)

// Sent holds the additional data of an event that a router published for an application: a timer, a firing of a
// schedule, or an event of Send.
type Sent struct {
	Key    Key
	Due    int64   // Unix milliseconds: not handled earlier, by the clocks of the routers; 0: at once
	Name   string  // of the timer, or of the schedule; "" for an event of Send without a name
	Firing *Firing // nil: it is no firing of a schedule
}

// ScheduleKeys is what the keys of firings begin with, before the name of the schedule.
const ScheduleKeys = "schedule/"

// Firing is one run of a schedule.
type Firing struct {
	Definition uint64 // hash of the definition that it follows
	Time       int64  // of the occurrence, before jitter, Unix milliseconds
	Missed     uint32 // earlier occurrences that did not run, for which this one runs, too
}

// sentLedger is the least ledger in the id of an event that a router has published, and greater than any ledger of a
// broker.
const sentLedger = 1 << 61

// IsSent reports whether m is the id of an event that a router has published.
func (m MessageID) IsSent() bool { return m.Ledger >= sentLedger && m.Ledger < callLedger }

// SentMessageID returns the id that all copies of a published event have in common: those of one key, one kind, and one id of the sender. No
// broker gives such an id to a message.
func SentMessageID(key Key, kind, id string) MessageID {
	h := sha256.New()
	var n [8]byte
	for _, part := range []string{"sent", kind, string(key), id} {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	sum := h.Sum(nil)
	high, low := binary.BigEndian.Uint64(sum), binary.BigEndian.Uint64(sum[8:])
	return MessageID{Ledger: int64(sentLedger | high>>3), Entry: int64(low >> 1), Batch: -1, TopicPartition: -1}
}

// Check returns what is wrong with an event that an outsider wants to be published, at an instant in Unix milliseconds.
func (s *Sent) Check(now int64, payload int, properties []Property) error {
	most := SentPropertiesMax
	if slices.ContainsFunc(properties, func(p Property) bool { return p.Name == "traceparent" }) {
		most++ // SDKs add it, and not the sender
	}
	switch {
	case s.Key == "" || len(s.Key) > KeyMax:
		return fmt.Errorf("a key of %d bytes: want 1 to %d", len(s.Key), KeyMax)
	case len(s.Name) > SentNameMax || !isPrintable(s.Name):
		return fmt.Errorf("name %.80q: want at most %d bytes of printable text", s.Name, SentNameMax)
	case s.Due < 0 || s.Due > now+SentAfterMax.Milliseconds():
		return fmt.Errorf("due more than %d days from now", SentAfterMax/(24*time.Hour))
	case payload > SentPayloadMax:
		return fmt.Errorf("a payload of %d bytes: want at most %d", payload, SentPayloadMax)
	case len(properties) > most:
		return fmt.Errorf("%d properties: want at most %d", len(properties), SentPropertiesMax)
	}
	for _, p := range properties {
		switch {
		case p.Name == "" || len(p.Name)+len(p.Value) > SentPropertyMax:
			return fmt.Errorf("property %.80q: want a name, and at most %d bytes with the value", p.Name, SentPropertyMax)
		case strings.HasPrefix(strings.ToLower(p.Name), "ringfence-"):
			return fmt.Errorf("property %.80q: names that begin with ringfence- are the router's", p.Name)
		}
	}
	return nil
}

// isPrintable reports whether a name has neither control characters nor broken UTF-8.
func isPrintable(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == '\uFFFD' })
}

// Properties returns the properties of the published event: own ones and those that [ParseSent] reads.
func (s *Sent) Properties(own []Property) []Property {
	all := append(slices.Clone(own), Property{propertySentKey, base64.RawURLEncoding.EncodeToString([]byte(s.Key))})
	if s.Due != 0 {
		all = append(all, Property{propertySentDue, strconv.FormatInt(s.Due, 10)})
	}
	if s.Name != "" {
		all = append(all, Property{propertyTimer, s.Name})
	}
	if f := s.Firing; f != nil {
		all = append(all, Property{propertyFiring, fmt.Sprintf("%016x:%d:%d", f.Definition, f.Time, f.Missed)})
	}
	return all
}

var errSent = errors.New("event: not an event that a router has published")

// ParseSent reads the properties of an event that a router has published: one with such an id, and with a seal that counts.
func ParseSent(properties []Property) (s Sent, err error) {
	for _, p := range properties {
		switch p.Name {
		case propertySentKey:
			var key []byte
			if key, err = base64.RawURLEncoding.DecodeString(p.Value); err == nil {
				s.Key = Key(key)
			}
		case propertySentDue:
			s.Due, err = strconv.ParseInt(p.Value, 10, 64)
		case propertyTimer:
			s.Name = p.Value
		case propertyFiring:
			s.Firing, err = parseFiring(p.Value)
		}
		if err != nil {
			return Sent{}, fmt.Errorf("%w: %s: %w", errSent, p.Name, err)
		}
	}
	if s.Key == "" || len(s.Key) > KeyMax || s.Due < 0 || len(s.Name) > SentNameMax {
		return Sent{}, errSent
	}
	return s, nil
}

func parseFiring(text string) (*Firing, error) {
	var f Firing
	definition, rest, _ := strings.Cut(text, ":")
	at, missed, _ := strings.Cut(rest, ":")
	var errs [3]error
	f.Definition, errs[0] = strconv.ParseUint(definition, 16, 64)
	f.Time, errs[1] = strconv.ParseInt(at, 10, 64)
	n, err := strconv.ParseUint(missed, 10, 32)
	f.Missed, errs[2] = uint32(n), err
	return &f, errors.Join(errs[:]...)
}

// IsOfSent reports whether a property is one of those that a router has added to an event that it has published.
func IsOfSent(name string) bool { return strings.HasPrefix(name, propertySent) }
