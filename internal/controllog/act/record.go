package act

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
)

// Bounds of a record.
const (
	// DurationMax is the longest duration of an act, by the format. Settings allow less.
	DurationMax = 30 * 24 * time.Hour

	recordMax     = 16 << 10 // bytes
	byMax         = 200      // bytes
	viaMax        = 400      // bytes
	reasonMax     = 500      // bytes
	formatVersion = 1
	timeMax       = int64(250_000_000_000_000) // milliseconds since 1970, in the year 9892: JSON has no later times than 9999
)

// errVersion says that a record is of a later format.
var errVersion = errors.New("act: another version")

// Kind is the kind of an act on a key.
type Kind uint8

// The kinds.
const (
	Mark     Kind = iota + 1 // nothing: a member marks the end of the log by it
	Hold                     // the key's events wait
	Release                  // a hold ends
	Skip                     // one event goes to the dead letter topic
	Skipped                  // the owner tells what became of the event of a skip
	Park                     // the key's events go to the parking topic
	Unpark                   // the key's letters come back from it
	Unparked                 // the owner tells that none is left
)

// String returns the name of the kind, as commands and logs have it.
func (k Kind) String() string {
	switch k {
	case Mark:
		return "mark"
	case Hold:
		return "hold"
	case Release:
		return "release"
	case Skip:
		return "skip"
	case Skipped:
		return "skipped"
	case Park:
		return "park"
	case Unpark:
		return "unpark"
	case Unparked:
		return "unparked"
	}
	return "unknown"
}

// ID is a random number that names an act.
type ID [16]byte

// tells reports whether records of a kind tell the end of another act.
func (k Kind) tells() bool { return k == Skipped || k == Unparked }

// lasts reports whether acts of a kind have an effect for a time.
func (k Kind) lasts() bool { return k == Hold || k == Skip || k == Park || k == Unpark }

// End is the end of a skipped event, or of an unpark.
type End uint8

// The ends.
const (
	EndDeadLetter End = iota + 1 // it goes to the dead letter topic
	EndDone                      // a handler that ran already had done it
	EndEmpty                     // of an unpark: no letter of the key is left
)

// String returns the name of the end, as commands and logs have it; "" if there is none.
func (e End) String() string {
	switch e {
	case EndDeadLetter:
		return "dead_letter"
	case EndDone:
		return "done"
	case EndEmpty:
		return "empty"
	}
	return ""
}

// Record is one record of an acts topic.
type Record struct {
	Kind   Kind
	ID     ID
	Key    event.Key // "" with Mark
	By     string    // who made it, in their own words: what is proven is only that they had the admin token
	Via    string    // the member that took the act, and where the request came from
	Reason string
	At     time.Time // by the wall clock of that member, in milliseconds
	Until  time.Time // the end of its effect; At if none lasts

	Event event.MessageID // Skip: which event
	Of    ID              // Skipped, Unparked: the skip or unpark
	End   End             // Skipped: what became of its event. Unparked: EndEmpty
}

// String returns the id in hex.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// skip returns the skip that a record orders.
func (r Record) skip() event.Skip {
	return event.Skip{Key: r.Key, Event: r.Event, Act: r.ID, Reason: fmt.Sprintf("skipped by %s: %s (act %v)", r.By, r.Reason, r.ID)}
}

// Shown is a record as pages and commands show it.
type Shown struct {
	ID        string    `json:"id"`  // of the act, in hex
	Act       string    `json:"act"` // hold, release, skip, park or unpark
	Key       string    `json:"key,omitempty"`
	KeyBase64 string    `json:"key_base64,omitempty"` // instead of key, if that is not UTF-8
	By        string    `json:"by"`
	Via       string    `json:"via"`
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
	Until     time.Time `json:"until"`
	Active    bool      `json:"active"`              // its effect lasts
	Event     string    `json:"event,omitempty"`     // skip: the message id of the event, as ledger:entry:partition:batch
	End       string    `json:"end,omitempty"`       // skip: what became of the event, dead_letter or done. unpark: empty, no letter was left. "": the owner has not told
	EndedBy   string    `json:"ended_by,omitempty"`  // the member that has told so
	EndWords  string    `json:"end_words,omitempty"` // unpark: how many letters that member has handled, in words
}

func (r Record) shown(active bool) Shown {
	s := Shown{ID: r.ID.String(), Act: r.Kind.String(), Key: string(r.Key), By: r.By, Via: r.Via, Reason: r.Reason, At: r.At.UTC(), Until: r.Until.UTC(), Active: active}
	if !utf8.ValidString(s.Key) {
		s.Key, s.KeyBase64 = "", base64.StdEncoding.EncodeToString([]byte(r.Key))
	}
	if r.Kind == Skip {
		s.Event = r.Event.String()
	}
	return s
}

// Encode returns the bytes of a record. It fails if a reader would not accept them.
func Encode(r Record) ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	out := &controllogv1.Act{
		Version: formatVersion, Kind: controllogv1.ActKind(r.Kind), Id: r.ID[:], Key: []byte(r.Key),
		By: r.By, Via: r.Via, Reason: r.Reason, AtMs: r.At.UnixMilli(), UntilMs: r.Until.UnixMilli(),
	}
	switch r.Kind {
	case Skip:
		out.Event = r.Event.String()
	case Skipped, Unparked:
		out.Of, out.End = r.Of[:], controllogv1.ActEnd(r.End)
	case Mark, Hold, Release, Park, Unpark:
	}
	return proto.Marshal(out)
}

// Decode reads a record.
func Decode(data []byte) (Record, error) {
	if len(data) > recordMax {
		return Record{}, fmt.Errorf("act: record of %d bytes, want at most %d", len(data), recordMax)
	}
	var in controllogv1.Act
	if err := proto.Unmarshal(data, &in); err != nil {
		return Record{}, fmt.Errorf("act: %w", err)
	}
	if in.GetVersion() != formatVersion || in.GetKind() > controllogv1.ActKind(Unparked) {
		return Record{}, fmt.Errorf("%w: %d, kind %d", errVersion, in.GetVersion(), in.GetKind())
	}
	if in.GetKind() < 0 || in.GetAtMs() < 0 || in.GetAtMs() > timeMax {
		return Record{}, fmt.Errorf("act: kind %d at %d ms", in.GetKind(), in.GetAtMs())
	}
	r := Record{
		Kind: Kind(in.GetKind()), Key: event.Key(in.GetKey()), By: in.GetBy(), Via: in.GetVia(), Reason: in.GetReason(),
		At: time.UnixMilli(in.GetAtMs()), Until: time.UnixMilli(in.GetUntilMs()),
	}
	if len(in.GetId()) != len(r.ID) {
		return Record{}, fmt.Errorf("act: id of %d bytes, want %d", len(in.GetId()), len(r.ID))
	}
	copy(r.ID[:], in.GetId())
	switch r.Kind {
	case Skip:
		var err error
		if r.Event, err = event.ParseMessageID(in.GetEvent()); err != nil {
			return Record{}, fmt.Errorf("act: %w", err)
		}
	case Skipped, Unparked:
		if len(in.GetOf()) != len(r.Of) || in.GetEnd() < 0 || in.GetEnd() > controllogv1.ActEnd(EndEmpty) {
			return Record{}, fmt.Errorf("act: end %d of an act with an id of %d bytes, want %d", in.GetEnd(), len(in.GetOf()), len(r.Of))
		}
		copy(r.Of[:], in.GetOf())
		r.End = End(in.GetEnd())
	case Mark, Hold, Release, Park, Unpark:
	}
	return r, r.validate()
}

func (r Record) validate() error {
	duration, lasts := r.Until.Sub(r.At), r.Kind.lasts()
	switch {
	case r.Kind < Mark || r.Kind > Unparked:
		return fmt.Errorf("act: kind %d is not known", r.Kind)
	case len(r.Key) > event.KeyMax:
		return fmt.Errorf("act: key of %d bytes, want at most %d", len(r.Key), event.KeyMax)
	case duration < 0 || duration > DurationMax || lasts != (duration != 0):
		return fmt.Errorf("act: %v for %v, want at most %v", r.Kind, duration, DurationMax)
	case r.Kind == Skipped && (r.End < EndDeadLetter || r.End > EndDone):
		return fmt.Errorf("act: end %d of a skip is not known", r.End)
	case r.Kind == Unparked && r.End != EndEmpty:
		return fmt.Errorf("act: end %d of an unpark is not known", r.End)
	case r.Kind == Mark:
		return nil
	}
	return errors.Join(checkText("by", r.By, byMax), checkText("via", r.Via, viaMax), checkText("reason", r.Reason, reasonMax))
}

// checkText reports the fault of a text that people will read.
func checkText(name, text string, bytesMax int) error {
	switch {
	case text == "":
		return fmt.Errorf("%s is missing", name)
	case len(text) > bytesMax:
		return fmt.Errorf("%s has %d bytes, want at most %d", name, len(text), bytesMax)
	case !utf8.ValidString(text):
		return fmt.Errorf("%s is not UTF-8", name)
	}
	for _, c := range text {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("%s has the unprintable character %U", name, c)
		}
	}
	return nil
}
