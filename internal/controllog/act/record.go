package act

import (
	"encoding/base64"
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

// Kind is what an operator did to a key.
type Kind uint8

// The kinds.
const (
	Mark    Kind = iota + 1 // nothing: a member marks the end of the log by it
	Hold                    // the key's events wait
	Release                 // a hold ends
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
	}
	return "unknown"
}

// ID is a random number that names an act.
type ID [16]byte

// Record is one record of an acts topic.
type Record struct {
	Kind   Kind
	ID     ID
	Key    event.Key // "" with Mark
	By     string    // who, in their own words: what is proven is only that they had the admin token
	Via    string    // the member that took the act, and where the request came from
	Reason string
	At     time.Time // by the wall clock of that member, in milliseconds
	Until  time.Time // the end of its effect; At if none lasts
}

// Shown is a record as pages and commands show it.
type Shown struct {
	Act       string    `json:"act"` // hold or release
	Key       string    `json:"key,omitempty"`
	KeyBase64 string    `json:"key_base64,omitempty"` // instead of key, if that is not UTF-8
	By        string    `json:"by"`
	Via       string    `json:"via"`
	Reason    string    `json:"reason"`
	At        time.Time `json:"at"`
	Until     time.Time `json:"until"`
	Active    bool      `json:"active"` // its effect lasts
}

func (r Record) shown(active bool) Shown {
	s := Shown{Act: r.Kind.String(), Key: string(r.Key), By: r.By, Via: r.Via, Reason: r.Reason, At: r.At.UTC(), Until: r.Until.UTC(), Active: active}
	if !utf8.ValidString(s.Key) {
		s.Key, s.KeyBase64 = "", base64.StdEncoding.EncodeToString([]byte(r.Key))
	}
	return s
}

// Encode returns the bytes of a record. It fails if a reader would not accept them.
func Encode(r Record) ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	return proto.Marshal(&controllogv1.Act{
		Version: formatVersion, Kind: controllogv1.ActKind(r.Kind), Id: r.ID[:], Key: []byte(r.Key),
		By: r.By, Via: r.Via, Reason: r.Reason, AtMs: r.At.UnixMilli(), UntilMs: r.Until.UnixMilli(),
	})
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
	if in.GetVersion() != formatVersion || in.GetKind() > controllogv1.ActKind(Release) {
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
	return r, r.validate()
}

func (r Record) validate() error {
	duration := r.Until.Sub(r.At)
	switch {
	case r.Kind < Mark || r.Kind > Release:
		return fmt.Errorf("act: kind %d is not known", r.Kind)
	case len(r.Key) > event.KeyMax:
		return fmt.Errorf("act: key of %d bytes, want at most %d", len(r.Key), event.KeyMax)
	case duration < 0 || duration > DurationMax || r.Kind == Hold && duration == 0 || r.Kind != Hold && duration != 0:
		return fmt.Errorf("act: %v for %v, want at most %v", r.Kind, duration, DurationMax)
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
