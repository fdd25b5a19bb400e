package source

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/event"
)

// The kinds of seal: with a key of the group, and without.
const (
	sealKeyed = "hmac-sha256:"
	sealPlain = "sha256:"
)

// Reasons for which a message in the retry topic does not count as a copy.
const (
	copyNoID     = "no_id"    // it lacks the id of its original, or its round
	copyUnsigned = "unsigned" // no key of the group has signed it, as the settings demand
	copyAltered  = "altered"  // it was changed after it was sealed, or sealed with an unknown key
	copyUntimely = "untimely" // it has the id of an event that a router published, but no key, or a time that no router accepts
)

// sealContext begins all sealed text, so that seals made for other purposes are not valid here.
const sealContext = "ringfence copy v1"

// copied is a copy without its seal: the fields that the seal covers.
type copied struct {
	key, orderingKey string
	payload          []byte
	eventTime        int64
	properties       []event.Property // ascending by name, without the seal
}

// sum returns the hash of the parts of a copy, each with its length, under a key unless that is nil.
func (c *copied) sum(key []byte) []byte {
	h := sha256.New()
	if key != nil {
		h = hmac.New(sha256.New, key)
	}
	var n [8]byte
	number := func(v uint64) {
		binary.BigEndian.PutUint64(n[:], v)
		h.Write(n[:])
	}
	text := func(s string) {
		number(uint64(len(s)))
		h.Write([]byte(s))
	}
	text(sealContext)
	text(c.key)
	text(c.orderingKey)
	number(uint64(len(c.payload)))
	h.Write(c.payload)
	number(uint64(c.eventTime))
	number(uint64(len(c.properties)))
	for _, p := range c.properties {
		text(p.Name)
		text(p.Value)
	}
	return h.Sum(nil)
}

func byName(a, b event.Property) int { return cmp.Compare(a.Name, b.Name) }

// seal adds the seal over all fields of a copy, with the first of the keys if there are any.
func (o *outgoing) seal(keys [][]byte) {
	delete(o.properties, PropertySeal)
	c := copied{key: o.key, orderingKey: o.orderingKey, payload: o.payload, eventTime: o.eventTime, properties: properties(o.properties)}
	slices.SortFunc(c.properties, byName)
	if len(keys) > 0 {
		o.properties[PropertySeal] = sealKeyed + hex.EncodeToString(c.sum(keys[0]))
		return
	}
	o.properties[PropertySeal] = sealPlain + hex.EncodeToString(c.sum(nil))
}

// refusalReason returns the reason why m, which came from the retry topic, does not count as
// a copy of the event that it names; "" if it counts. Without keys a copy counts unless it
// was altered. With keys one of them must have signed it, unless unsigned is set.
func refusalReason(m *event.Message, keys [][]byte, unsigned bool) string {
	ev := m.Event
	// No copy is one of a call: a call with that id would be taken for it.
	if id, err := event.ParseMessageID(property(ev, PropertyMessageID)); err != nil || id.IsCall() || parseUint(property(ev, PropertyRound)) == 0 {
		return copyNoID
	}
	c := copied{key: m.Key, orderingKey: m.OrderingKey, payload: ev.Payload, eventTime: ev.EventTime}
	own := 0 // bytes of properties with routers' names
	for _, p := range ev.Properties {
		if strings.HasPrefix(p.Name, propertyPrefix) && !event.IsOfSent(p.Name) {
			own += len(p.Value)
		}
		if p.Name != PropertySeal {
			c.properties = append(c.properties, p)
		}
	}
	if own > 2*headMax { // the next copy has them again, and could not be sent; routers write less, beside what a producer may have named like theirs
		return copyAltered
	}
	slices.SortFunc(c.properties, byName)
	seal, signed := property(ev, PropertySeal), false
	if sum, ok := strings.CutPrefix(seal, sealKeyed); ok && len(keys) > 0 {
		signed = slices.ContainsFunc(keys, func(key []byte) bool { return isSum(sum, c.sum(key)) })
		if !signed {
			return copyAltered
		}
	} else if sum, ok := strings.CutPrefix(seal, sealPlain); ok && !isSum(sum, c.sum(nil)) {
		return copyAltered
	}
	if len(keys) > 0 && !signed && !unsigned {
		return copyUnsigned
	}
	return ""
}

func isSum(text string, sum []byte) bool {
	said, err := hex.DecodeString(text)
	return err == nil && hmac.Equal(said, sum)
}

// Bounds of the keys that sign copies.
const (
	copyKeyBytesMin = 16
	copyKeysMax     = 8
)

var errCopyKeys = errors.New("source: keys of copies")

// parseCopyKeys reads keys in base64, one per line: the first signs, all of them verify.
func parseCopyKeys(content []byte) (keys [][]byte, err error) {
	for i, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(key) < copyKeyBytesMin {
			return nil, fmt.Errorf("%w: line %d is not a key of at least %d bytes in base64", errCopyKeys, i+1, copyKeyBytesMin)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > copyKeysMax {
		return nil, fmt.Errorf("%w: %d of them, want 1 to %d", errCopyKeys, len(keys), copyKeysMax)
	}
	return keys, nil
}
