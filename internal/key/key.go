// Package key decides which key an event belongs to.
//
// It is pure: no goroutine, clock, lock, log line or socket. An [Extractor] is immutable and
// safe for concurrent use. The same message gives the same key on every node, so that all
// events of one user reach one owner.
//
// # Hostile input
//
// Payloads are untrusted. [Extractor.Extract] reads a payload in one pass without recursion
// into values that the path does not name, so a document of any depth costs time linear in its
// length and no stack. It does not validate: in a broken document it finds a value at the path if
// that precedes the break, and the same one on every node.
package key

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/ringfence/router/internal/base/event"
)

// The reasons for which an event has no usable key. Their text is the reason in
// the dead letter topic, so it holds nothing of the event.
var (
	ErrMissing   = errors.New("no key")
	ErrNotScalar = errors.New("no key: the JSON path leads to an object or an array")
	ErrTooLong   = fmt.Errorf("key longer than %d bytes", event.KeyMax)
)

// Message holds the possible sources of a key. An empty string means that the producer set
// none.
type Message struct {
	MessageKey  string
	OrderingKey string
	Properties  []event.Property
	Payload     []byte
	ID          event.MessageID // of the original event; only Spread looks at it
}

// Missing is the treatment of an event without a key.
type Missing uint8

const (
	// Reject sends it to the dead letter topic.
	Reject Missing = iota + 1
	// Spread gives it a key of its own, derived from its message id: it waits for no other
	// event, and a copy of it in the retry topic gets the same key again.
	Spread
)

// ParseMissing reads "reject" or "spread".
func ParseMissing(s string) (Missing, error) {
	switch s {
	case "reject":
		return Reject, nil
	case "spread":
		return Spread, nil
	}
	return 0, fmt.Errorf("key: missing = %q, want reject or spread", s)
}

// Extractor finds the key of a message. The zero Extractor is not usable: see [Parse].
type Extractor struct {
	from    from
	name    string // the property or the path
	missing Missing
}

type from uint8

const (
	fromMessageKey from = iota + 1
	fromProperty
	fromJSON
)

const forms = "message_key, property:NAME or json:PATH"

// Parse parses the source of keys:
//
//	message_key     the message key, else the ordering key (the default, also for "")
//	property:NAME   the property called NAME
//	json:PATH       a string, number or boolean in a JSON payload; PATH is names and
//	                array indexes joined by dots, "\." is a dot inside a name;
//	                "$" alone cannot be the first name, "\$" can
//
// A number or boolean counts as it is spelled: 1 and 1.0 are two keys. Of several
// members with one name the first counts. missing is the treatment of an event
// without a key; an empty key is none.
func Parse(spec string, missing Missing) (Extractor, error) {
	x := Extractor{missing: missing}
	if missing != Reject && missing != Spread {
		return Extractor{}, fmt.Errorf("key: missing = %d, want Reject or Spread", missing)
	}
	form, name, hasName := strings.Cut(spec, ":")
	switch form {
	case "", "message_key":
		if hasName {
			return Extractor{}, fmt.Errorf("key: %q: message_key takes no name; want %s", spec, forms)
		}
		x.from = fromMessageKey
	case "property":
		if name == "" {
			return Extractor{}, fmt.Errorf("key: %q names no property; want property:NAME", spec)
		}
		x.from, x.name = fromProperty, name
	case "json":
		if err := checkPath(name); err != nil {
			return Extractor{}, fmt.Errorf("key: %q: %w", spec, err)
		}
		x.from, x.name = fromJSON, name
	default:
		return Extractor{}, fmt.Errorf("key: %q is not a place for keys; want %s", spec, forms)
	}
	return x, nil
}

// pathNamesMax bounds the one recursion that a look-up has: into the names of the path.
const pathNamesMax = 32

// checkPath admits plain paths only. Everything else that gjson reads into a path
// (queries, wildcards, modifiers) costs more than one pass, or can name two
// places at once, which is no key.
func checkPath(path string) error {
	if path == "" {
		return errors.New("empty path; want json:PATH")
	}
	if first, _, _ := strings.Cut(path, "."); first == "$" { // as JSONPath begins: no event would have a key
		return errors.New(`"$" is not the document here: write user.id for $.user.id, or \$ if it is a name`)
	}
	names, nameBytes := 1, 0
	for i := 0; i < len(path); i++ {
		switch c := path[i]; {
		case c == '\\':
			if i++; i == len(path) {
				return errors.New("the path ends in a backslash")
			}
			nameBytes++
		case c == '.':
			if nameBytes == 0 {
				return errors.New("the path has an empty name")
			}
			names, nameBytes = names+1, 0
		case strings.IndexByte("*?|#@!{}[]()=<>%", c) >= 0:
			return fmt.Errorf(`%q has a meaning of its own here; write \%c if it is part of a name`, string(c), c)
		default:
			nameBytes++
		}
	}
	if nameBytes == 0 {
		return errors.New("the path has an empty name")
	}
	if names > pathNamesMax {
		return fmt.Errorf("the path has %d names, at most %d are looked up", names, pathNamesMax)
	}
	return nil
}

// Extract returns the key of m: 1 … event.KeyMax bytes of any value. Errors are
// ErrMissing, ErrNotScalar (both only under Reject) and ErrTooLong. The key never
// aliases the payload. An event that a router has published (a timer) names its key, whatever its message and its payload say.
func (x Extractor) Extract(m *Message) (event.Key, error) {
	if m.ID.IsSent() {
		if sent, err := event.ParseSent(m.Properties); err == nil {
			return sent.Key, nil
		}
	}
	k, err := x.find(m)
	if err == nil && k == "" {
		err = ErrMissing
	}
	if err != nil {
		if x.missing == Spread {
			return spread(m.ID), nil
		}
		return "", err
	}
	if len(k) > event.KeyMax {
		return "", ErrTooLong
	}
	return event.Key(k), nil
}

func (x Extractor) find(m *Message) (string, error) {
	switch x.from {
	case fromMessageKey:
		if m.MessageKey != "" {
			return m.MessageKey, nil
		}
		return m.OrderingKey, nil
	case fromProperty:
		for i := range m.Properties {
			if m.Properties[i].Name == x.name {
				return m.Properties[i].Value, nil
			}
		}
		return "", nil
	case fromJSON:
		return findJSON(m.Payload, x.name)
	}
	return "", ErrMissing
}

func findJSON(payload []byte, path string) (string, error) {
	switch found := gjson.GetBytes(payload, path); found.Type {
	case gjson.String:
		return found.Str, nil
	case gjson.Number, gjson.True, gjson.False:
		return found.Raw, nil
	case gjson.JSON:
		return "", ErrNotScalar
	case gjson.Null: // also when there is nothing at the path
	}
	return "", ErrMissing
}

// spread makes a key from a message id. The leading zero byte keeps it apart from
// the keys that people choose.
func spread(id event.MessageID) event.Key {
	b := make([]byte, 0, 48)
	b = append(b, "\x00id:"...)
	b = strconv.AppendInt(b, id.Ledger, 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, id.Entry, 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(id.Batch), 10)
	return event.Key(b)
}
