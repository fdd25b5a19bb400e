package report

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/ring"
)

// A list is cut to the question's limit, and to the bytes that a member may send; what is cut is
// counted.
func TestListsOfKeysAreBounded(t *testing.T) {
	k := KeysAt{Counts: KeyCounts{Selected: 900}}
	for i := range 600 {
		k.Keys = append(k.Keys, ListedKey{Hash: ring.KeyHash(i).String(), Key: strings.Repeat("k", 4<<10), EventSeconds: float64(i)})
	}
	k.Bound(KeysQuestion{Limit: KeysLimitMax})
	if len(k.Keys) != KeysBytesMax/(4<<10) || k.Cut != 900-len(k.Keys) || k.Keys[0].EventSeconds != 599 {
		t.Errorf("%d keys, %d cut, the first has %v", len(k.Keys), k.Cut, k.Keys[0].EventSeconds)
	}
	k.Bound(KeysQuestion{Limit: 7})
	if len(k.Keys) != 7 || k.Cut != 893 {
		t.Errorf("%d keys, %d cut", len(k.Keys), k.Cut)
	}
	if text, err := json.Marshal(k); err != nil || len(text) > reportBytesMax {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

// A binary key is shown in base64.
func TestSetKey(t *testing.T) {
	var text, binary ListedKey
	text.SetKey("ä key")
	binary.SetKey("\xff\x00")
	if text.Key != "ä key" || text.KeyBase64 != "" || binary.Key != "" || binary.KeyBase64 != "/wA=" {
		t.Errorf("%+v, %+v", text, binary)
	}
}

// listing is a member with two keys.
type listing struct{ aLocal }

func (listing) Keys(_ context.Context, q KeysQuestion) KeysAt {
	k := KeysAt{NoApplication: true, Counts: KeyCounts{Keys: 2, Waiting: 2, Selected: 2}, Keys: []ListedKey{{Hash: ring.KeyHash(1).String(), EventSeconds: 1}, {Hash: ring.KeyHash(2).String(), EventSeconds: 2}}}
	if q.Named {
		for i := range k.Keys {
			k.Keys[i].SetKey("secret")
		}
	}
	k.Bound(q)
	return k
}

// A list has names only for callers who may know them, names the members that do not answer, and
// refuses what it does not know.
func TestKeysPage(t *testing.T) {
	local := listing{aLocal{[]Member{{Name: "silent", Incarnation: "22", Address: "127.0.0.1:1"}, {Name: "fake", Unnamed: true}}}}
	page := Handlers(NewGroup(local, nil, insecure.NewCredentials()), func(r *http.Request) bool { return r.Header.Get("Authorization") != "" })["GET /v1/keys"]
	ask := func(query, token string) (int, string) {
		r, w := httptest.NewRequest("GET", "/v1/keys"+query, nil), httptest.NewRecorder()
		if token != "" {
			r.Header.Set("Authorization", token)
		}
		page.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	var k Keys
	code, text := ask("?limit=1", "")
	if err := json.Unmarshal([]byte(text), &k); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s %v", code, text, err)
	}
	if len(k.Keys) != 1 || k.Keys[0].Hash != ring.KeyHash(2).String() || k.Cut != 1 || k.Named || strings.Contains(text, "secret") {
		t.Errorf("without a token: %s", text)
	}
	if len(k.Silent) != 1 || !strings.HasPrefix(k.Silent[0], "silent: ") {
		t.Errorf("silent members: %q", k.Silent)
	}
	if len(k.WithoutApplication) != 1 || k.WithoutApplication[0] == "" {
		t.Errorf("members without an application: %q", k.WithoutApplication)
	}
	if _, text := ask("?limit=1", "Bearer token"); !strings.Contains(text, `"key":"secret"`) {
		t.Errorf("with a token: %s", text)
	}
	for _, query := range []string{"?limit=0", "?limit=1001", "?limit=x", "?which=best"} {
		if code, text := ask(query, ""); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, code, text)
		}
	}
}

// A list of keys that JSON escapes fits into a report, too.
func TestListsOfKeysThatAreEscapedAreBounded(t *testing.T) {
	for _, hostile := range []string{"<", "\x01", "\u2028", "\xff"} {
		k := KeysAt{Counts: KeyCounts{Selected: 600}}
		for i := range 600 {
			one := ListedKey{Hash: ring.KeyHash(i).String(), EventSeconds: float64(i)}
			one.SetKey(strings.Repeat(hostile, (4<<10)/len(hostile)))
			k.Keys = append(k.Keys, one)
		}
		k.Bound(KeysQuestion{Limit: KeysLimitMax})
		if text, err := json.Marshal(k); err != nil || len(text) > reportBytesMax || len(k.Keys) == 0 || k.Cut != 600-len(k.Keys) {
			t.Errorf("%q: %d keys in %d bytes, want %d at most: %v", hostile, len(k.Keys), len(text), reportBytesMax, err)
		}
	}
}

// An empty hash is not the hash of the empty key.
func TestAnEmptyHashIsRefused(t *testing.T) {
	page := Handlers(NewGroup(aLocal{}, nil, insecure.NewCredentials()), func(*http.Request) bool { return false })["GET /v1/history"]
	for query, want := range map[string]int{"?hash=": http.StatusBadRequest, "?key=": http.StatusOK} {
		w := httptest.NewRecorder()
		if page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/history"+query, nil)); w.Code != want {
			t.Errorf("%s: %d %s, want %d", query, w.Code, w.Body, want)
		}
	}
}
