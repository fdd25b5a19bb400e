package source

import (
	"bytes"
	"encoding/base64"
	"maps"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/base/event"
)

// sealedCopy returns a retry copy as it comes back from the broker.
func sealedCopy(keys [][]byte, change func(*outgoing)) *event.Message {
	original := event.Event{
		ID: event.MessageID{Ledger: 1, Entry: 2, Batch: -1, TopicPartition: 3}, Topic: "persistent://a/b/c", Payload: []byte("pay"),
		Properties: []event.Property{{Name: "kind", Value: "refund"}}, EventTime: 7, PublishTime: 8, Attempts: 1,
	}
	c := retryCopy("retry", event.Message{Event: &original, Key: "k", OrderingKey: "o"}, &event.Detail{Attempts: 2, Reason: "r"})
	c.seal(keys)
	if change != nil {
		change(&c)
	}
	back := &event.Event{ID: event.MessageID{Ledger: 9}, Topic: "retry", Payload: c.payload, EventTime: c.eventTime}
	for name, value := range maps.All(c.properties) {
		back.Properties = append(back.Properties, event.Property{Name: name, Value: value})
	}
	return &event.Message{Event: back, Key: c.key, OrderingKey: c.orderingKey}
}

// A copy counts if nothing in it was changed since it was sealed, and, with keys, if one of
// them has sealed it.
func TestCopiesThatCount(t *testing.T) {
	key, next, stolen := bytes.Repeat([]byte{1}, 16), bytes.Repeat([]byte{2}, 16), bytes.Repeat([]byte{3}, 16)
	noSeal := func(c *outgoing) { delete(c.properties, PropertySeal) }
	for name, test := range map[string]struct {
		sealed, known [][]byte
		unsigned      bool
		change        func(*outgoing)
		want          string
	}{
		"as it was":                  {},
		"signed":                     {sealed: [][]byte{key}, known: [][]byte{key}},
		"signed with the key before": {sealed: [][]byte{key}, known: [][]byte{next, key}},
		"signed with a key that only others know": {sealed: [][]byte{stolen}, known: [][]byte{key}, want: copyAltered},
		"the same, and unsigned ones count":       {sealed: [][]byte{stolen}, known: [][]byte{key}, unsigned: true, want: copyAltered},
		"signed, where nobody knows keys yet":     {sealed: [][]byte{key}},
		"not signed":                              {known: [][]byte{key}, want: copyUnsigned},
		"not signed, and unsigned ones count":     {known: [][]byte{key}, unsigned: true},
		"by an older release":                     {change: noSeal},
		"by an older release, with keys":          {known: [][]byte{key}, change: noSeal, want: copyUnsigned},
		"another key":                             {change: func(c *outgoing) { c.key = "x" }, want: copyAltered},
		"another ordering key":                    {change: func(c *outgoing) { c.orderingKey = "x" }, want: copyAltered},
		"another payload":                         {change: func(c *outgoing) { c.payload = []byte("x") }, want: copyAltered},
		"another event time":                      {change: func(c *outgoing) { c.eventTime = 1 }, want: copyAltered},
		"of another event":                        {change: func(c *outgoing) { c.properties[PropertyMessageID] = "9:9:9:9" }, want: copyAltered},
		"of another topic":                        {change: func(c *outgoing) { c.properties[PropertyTopic] = "x" }, want: copyAltered},
		"another property":                        {change: func(c *outgoing) { c.properties["kind"] = "x" }, want: copyAltered},
		"one property more":                       {change: func(c *outgoing) { c.properties["more"] = "x" }, want: copyAltered},
		"more attempts":                           {change: func(c *outgoing) { c.properties[PropertyAttempts] = "9" }, want: copyAltered},
		"a seal that is none":                     {change: func(c *outgoing) { c.properties[PropertySeal] = sealPlain + "zz" }, want: copyAltered},
		"a seal with something behind it":         {change: func(c *outgoing) { c.properties[PropertySeal] += "zz" }, want: copyAltered},
		"a plain seal where one was signed":       {sealed: [][]byte{key}, known: [][]byte{key}, change: func(c *outgoing) { c.seal(nil) }, want: copyUnsigned},
		"no id":                                   {change: func(c *outgoing) { delete(c.properties, PropertyMessageID); c.seal(nil) }, want: copyNoID},
		"the id of a call": {change: func(c *outgoing) {
			c.properties[PropertyMessageID] = event.CallMessageID("k", "order-8", 0).String()
			c.seal(nil)
		}, want: copyNoID},
		"copied no times":                          {change: func(c *outgoing) { c.properties[PropertyRound] = "0"; c.seal(nil) }, want: copyNoID},
		"a large property with a router's name":    {change: func(c *outgoing) { c.properties[propertyPrefix+"x"] = strings.Repeat("x", headMax); c.seal(nil) }},
		"one that is too large for the next copy":  {change: func(c *outgoing) { c.properties[propertyPrefix+"x"] = strings.Repeat("x", 2*headMax); c.seal(nil) }, want: copyAltered},
		"a large property of the sender":           {change: func(c *outgoing) { c.properties["ringfence-sent-key"] = strings.Repeat("x", 2*headMax); c.seal(nil) }},
		"sealed again":                             {sealed: [][]byte{key}, known: [][]byte{key}, change: func(c *outgoing) { c.seal([][]byte{key, stolen}) }},
		"altered and signed, where a key is known": {sealed: [][]byte{key}, known: [][]byte{key}, change: func(c *outgoing) { c.key = "x" }, want: copyAltered},
	} {
		t.Run(name, func(t *testing.T) {
			if got := refusalReason(sealedCopy(test.sealed, test.change), test.known, test.unsigned); got != test.want {
				t.Errorf("refusalReason %q, want %q", got, test.want)
			}
		})
	}
}

func TestCopyKeys(t *testing.T) {
	good := base64.StdEncoding.EncodeToString(make([]byte, 16))
	for name, test := range map[string]struct {
		content string
		keys    int
	}{
		"one":           {good, 1},
		"two and space": {"  " + good + " \n\n" + good + "\n", 2},
		"none":          {"\n", 0},
		"short":         {base64.StdEncoding.EncodeToString(make([]byte, 15)), 0},
		"no base64":     {"%%%%", 0},
		"as many as go": {strings.Repeat(good+"\n", copyKeysMax), copyKeysMax},
		"too many":      {strings.Repeat(good+"\n", copyKeysMax+1), 0},
	} {
		keys, err := parseCopyKeys([]byte(test.content))
		if len(keys) != test.keys || (err == nil) != (test.keys > 0) {
			t.Errorf("%s: %d keys, %v, want %d", name, len(keys), err, test.keys)
		}
	}
}

// Copies are read by routers of later releases: what a seal covers, and how, does not change.
func TestSealsDoNotChange(t *testing.T) {
	for want, keys := range map[string][][]byte{
		"sha256:06ef5c9ab0d48a5bf83d8ec03c71aac4c6846708f9d8ca524bbc4b1fcbd889c0":      nil,
		"hmac-sha256:55ee605d36b1aa147efe76ff69c38835cd06f11c7a4c5b1467988b9392fd10b0": {bytes.Repeat([]byte{1}, 16), bytes.Repeat([]byte{2}, 16)},
	} {
		o := outgoing{
			key: "k", orderingKey: "o", payload: []byte("pay"), eventTime: 7,
			properties: map[string]string{"kind": "refund", "a": "", PropertyMessageID: "1:2:3:-1", PropertyRound: "1"},
		}
		o.seal(keys)
		if got := o.properties[PropertySeal]; got != want {
			t.Errorf("the seal is %s, want %s", got, want)
		}
	}
}
