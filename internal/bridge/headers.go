package bridge

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/router/client"
)

// The headers beside those of CloudEvents' binary mode (HTTP protocol binding 1.0.2). Extension
// attributes have lower-case letters and digits alone.
const (
	headerKey        = "ce-partitionkey" // of CloudEvents' extension for partitioning
	headerFence      = "ce-fence"
	headerAttempt    = "ce-attempt"
	headerDeadline   = "ce-deadline"
	headerProperties = "ringfence-properties"
)

// setHeaders writes an event but for its payload.
func setHeaders(h http.Header, e *client.Event, kind string) {
	set := func(name, value string) { h[http.CanonicalHeaderKey(name)] = []string{value} }
	set("ce-specversion", "1.0")
	set("ce-id", e.ID.String())
	set("ce-source", encode(e.Topic))
	set("ce-type", encode(kind))
	set("ce-time", e.PublishTime.UTC().Format(time.RFC3339Nano))
	set(headerKey, encode(e.Key))
	set(headerFence, e.Fence.String())
	set(headerAttempt, strconv.Itoa(e.Attempt))
	if until := e.LeaseUntil(); !until.IsZero() {
		set(headerDeadline, until.UTC().Format(time.RFC3339Nano))
	}
	var contentType string
	others := make(map[string]string, len(e.Properties))
	for _, p := range e.Properties {
		switch name := strings.ToLower(p.Name); name {
		case "traceparent", "tracestate":
			set(name, printable(p.Value))
		case "content-type", "datacontenttype":
			contentType = printable(p.Value)
		default:
			if _, ok := others[p.Name]; !ok {
				others[p.Name] = p.Value
			}
		}
	}
	if contentType == "" {
		contentType = "application/octet-stream"
		if json.Valid(e.Payload) {
			contentType = "application/json"
		}
	}
	set("content-type", contentType)
	if len(others) > 0 {
		text, _ := json.Marshal(others) // strings cannot fail
		set(headerProperties, encode(string(text)))
	}
}

// printable returns a value of printable ASCII, which may have spaces, as it is, and encodes any other.
func printable(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return encode(s)
		}
	}
	return s
}

// encode writes any bytes as the value of a header, as CloudEvents does: all but printable ASCII,
// and the space, the quotation mark and the percent sign, become %XX.
func encode(s string) string {
	const hex = "0123456789ABCDEF"
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}
