package event

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

func TestTextsShowNoContents(t *testing.T) {
	const key, payload = "user ü/\"7\"", `{"user":"Erika Mustermann","iban":"DE89370400440532013000"}`
	inJSON, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	e := &Event{Key: key, Payload: []byte(payload), Properties: []Property{{"address", "Heidestraße 17, Köln"}, {"short", "a"}}}
	for name, test := range map[string]struct{ text, want string }{
		"nothing of it":             {"no route to host: is the database up?", "no route to host: is the database up?"},
		"the key":                   {"user " + key + " is unknown", "user (key hidden) is unknown"},
		"the key quoted":            {"unknown: " + strconv.Quote(key), `unknown: "(key hidden)"`},
		"the key in JSON":           {"unknown: " + string(inJSON), `unknown: "(key hidden)"`},
		"the key in a URL":          {"GET /users/" + url.PathEscape(key), "GET /users/(key hidden)"},
		"the key in a query":        {"GET /users?id=" + url.QueryEscape(key), "GET /users?id=(key hidden)"},
		"the key in base64":         {"k=" + base64.StdEncoding.EncodeToString([]byte(key)), "k=(key hidden)"},
		"the key in hex":            {"k=" + hex.EncodeToString([]byte(key)), "k=(key hidden)"},
		"the payload":               {"cannot read " + payload, "cannot read (content hidden)"},
		"the payload quoted":        {fmt.Sprintf("cannot read %q", payload), `cannot read "(content hidden)"`},
		"a field of it":             {"no such account DE89370400440532013000", "no such account (content hidden)"},
		"a field between others":    {"Erika Mustermann: DE89370400440532013000?", "(content hidden): (content hidden)?"},
		"the beginning of it":       {`unexpected end: {"user":"Eri`, "unexpected end: (content hidden)"},
		"a word that anything has":  {"user: no iban", "user: no iban"},
		"a property":                {"no way to Heidestraße 17, Köln", "no way to (content hidden)"},
		"a letter that is in one":   {"a cat", "a cat"},
		"a text that is very short": {"iban", "iban"},
	} {
		if got := e.HideIn(test.text); got != test.want {
			t.Errorf("%s: %q is shown as %q, want %q", name, test.text, got, test.want)
		}
	}
}

// TestKeysInJSONAreHidden: Go's JSON escapes more than %q does.
func TestKeysInJSONAreHidden(t *testing.T) {
	const key = "<erika&max>"
	inJSON, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := Key(key).HideIn("unknown: "+string(inJSON)), `unknown: "(key hidden)"`; got != want {
		t.Errorf("%s is shown as %q, want %q", inJSON, got, want)
	}
}

// TestKeysInPayloadsHideNoLess: a payload that has the key in it is hidden to its end.
func TestKeysInPayloadsHideNoLess(t *testing.T) {
	const payload = "name=alice;id=42;pin=98765"
	e := &Event{Key: "42", Payload: []byte(payload)}
	got := e.HideIn("cannot read " + payload)
	if strings.Contains(got, "98765") || strings.Contains(got, "42") {
		t.Errorf("it is shown as %q", got)
	}
}

// TestKeysOfOtherProgramsAreHidden: other languages write base64 without padding, hex in capitals, and JSON in ASCII.
func TestKeysOfOtherProgramsAreHidden(t *testing.T) {
	const key = "jürgen"
	for _, text := range []string{
		base64.RawStdEncoding.EncodeToString([]byte(key)), fmt.Sprintf("%X", key), `j\u00fcrgen`,
	} {
		if got, want := Key(key).HideIn("k="+text), "k=(key hidden)"; got != want {
			t.Errorf("%s is shown as %q, want %q", text, got, want)
		}
	}
}

// hideRuns hides what a text has of a content alone.
func hideRuns(text, content string) string {
	marks := make([]mark, len(text))
	markRuns(text, []string{content}, marks)
	return withoutMarked(text, marks)
}

// TestWorkIsBounded: a text and a payload that have much in common, everywhere, are compared once. Otherwise this takes minutes.
func TestWorkIsBounded(t *testing.T) {
	content := strings.Repeat("a", 1<<20)
	text := strings.Repeat("aaaaaa?", 1<<13)
	if got := hideRuns(text, content); got != text {
		t.Errorf("it is shown as %.100q", got)
	}
	if got := hideRuns(content[:1<<16]+"?", content); got != hiddenContent+"?" {
		t.Errorf("it is shown as %.100q", got)
	}
}

// FuzzHideIn: whatever text and payload are, no run of excerptMin bytes of the payload is shown.
func FuzzHideIn(f *testing.F) {
	f.Add("cannot read 0123456789abcdef here", "x0123456789abcdefx")
	f.Add("0123456789ab", "0123456789ab")
	f.Add("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaa")
	f.Fuzz(func(t *testing.T, text, payload string) {
		shown := hideRuns(text, payload)
		for part := range strings.SplitSeq(shown, hiddenContent) {
			for i := 0; i+excerptMin <= len(part); i++ {
				if strings.Contains(payload, part[i:i+excerptMin]) {
					t.Errorf("%q with %q is shown as %q", text, payload, shown)
				}
			}
		}
	})
}
