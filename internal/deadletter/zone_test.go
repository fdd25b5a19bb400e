package deadletter

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/ringfence/router/internal/base/event"
)

// selectionAsked is the selection of a request, as Broker.answer has it in the process that answers.
func selectionAsked(t *testing.T, since, until string) Selection {
	t.Helper()
	form := url.Values{"key": {"alice"}, "since": {since}, "until": {until}, "yes": {"true"}, "by": {"me"}, "reason": {"r"}}
	q, err := eventsQuestion(httptest.NewRequest("POST", "/v1/replay?"+form.Encode(), nil))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(q) // askProcess
	if err != nil {
		t.Fatal(err)
	}
	var asked Question
	if err := json.Unmarshal(text, &asked); err != nil {
		t.Fatal(err)
	}
	sel := Selection{Keys: []string{string(asked.Key)}, Since: asked.Since, Until: asked.Until}
	return sel.Named()
}

// TestReplayOfOneTimeIsOneReplay: the same key and the same instants are one replay, in whatever time zone they are
// written, so that no event is sent twice.
func TestReplayOfOneTimeIsOneReplay(t *testing.T) {
	utc := selectionAsked(t, "2026-11-25T14:00:00Z", "2026-11-25T15:00:00Z")
	paris := selectionAsked(t, "2026-11-25T15:00:00+01:00", "2026-11-25T16:00:00+01:00")
	if !utc.Since.Equal(paris.Since) || !utc.Until.Equal(paris.Until) {
		t.Fatal("they are not the same times")
	}
	if utc.Run != paris.Run {
		t.Errorf("one selection is two replays, %s and %s", utc.Run, paris.Run)
	}
	later := selectionAsked(t, "2026-11-25T14:00:00Z", "2026-11-25T15:00:01Z")
	if utc.Run == "" || utc.Run == later.Run {
		t.Errorf("two selections are one replay, %q and %q", utc.Run, later.Run)
	}
	if named := (Selection{Run: "a name"}).Named(); named.Run != "a name" {
		t.Errorf("a replay with a name is called %q", named.Run)
	}
	// The topic as the first replay has left it: the event, and the copy that was sent.
	original := message{ID: event.MessageID{Ledger: 1, Entry: 2, Batch: -1, TopicPartition: -1}, MessageKey: "alice", Payload: []byte("{}"), Published: utc.Since}
	copied := set(set(original, PropertyReplayOf, original.ID.String()), PropertyReplayRun, utc.Run)
	copied.ID.Entry, copied.Published = 3, utc.Until.AddDate(0, 0, 1)
	b := &Broker{cfg: Config{Key: extractor(t)}}
	for zone, sel := range map[string]Selection{"UTC": utc, "Paris": paris} {
		chosen, copies := map[Identity]bool{}, map[Identity]bool{}
		for _, m := range []message{original, copied} {
			if err := b.choose(&sel, Options{Max: 9}, &Counts{}, &m, chosen, copies); err != nil {
				t.Fatal(err)
			}
		}
		for id := range copies { // as plan does
			delete(chosen, id)
		}
		if len(chosen) != 0 {
			t.Errorf("repeated with times of %s, it sends %d event again", zone, len(chosen))
		}
	}
}
