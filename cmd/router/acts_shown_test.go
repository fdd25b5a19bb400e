package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/controllog/act"
)

// TestParksThatWereEndedAreNotExpired: router acts calls expired only the parks of which letters may be left, as the alert counts them.
func TestParksThatWereEndedAreNotExpired(t *testing.T) {
	now := time.Now()
	begin := now.Add(-30 * time.Hour).Truncate(time.Millisecond)
	var fold act.Fold
	entry := int64(0)
	apply := func(kind act.Kind, id byte, key event.Key, after, lasts time.Duration, of byte) {
		t.Helper()
		at := begin.Add(after)
		r := act.Record{Kind: kind, ID: act.ID{id}, Key: key, By: "alice", Via: "router-0", Reason: "r", At: at, Until: at.Add(lasts)}
		if of > 0 {
			r.Of, r.End = act.ID{of}, act.EndEmpty
		}
		data, err := act.Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		entry++
		fold.Apply(event.Position{Ledger: 1, Entry: entry}, data)
	}
	apply(act.Park, 1, "ended", 0, time.Hour, 0)                    // parked for an hour,
	apply(act.Unpark, 2, "ended", 10*time.Minute, time.Hour, 0)     // brought back after ten minutes,
	apply(act.Unparked, 3, "ended", 11*time.Minute, 0, 2)           // to the last letter
	apply(act.Park, 4, "renewed", 0, time.Hour, 0)                  // parked for an hour, and meanwhile
	apply(act.Park, 5, "renewed", 30*time.Minute, 100*time.Hour, 0) // for days: it is parked now
	apply(act.Park, 6, "lapsed", 0, time.Hour, 0)
	if n := fold.LapsedParks(now); n != 1 {
		t.Fatalf("ringfence_act_lapsed_parks is %d, want 1", n)
	}
	var out strings.Builder
	actsTable(&page{out: &out}, act.Acts{Member: "router-0", Acts: fold.List(now)})
	if n := strings.Count(out.String(), "expired"); n != 1 {
		t.Errorf("%d parks are shown as expired, want that of the key lapsed alone:\n%s", n, out.String())
	}
}

// TestActsThatAreRecordedAreSaid: a command whose act stands in the acts topic says so, also if the state of the key cannot be asked for afterwards.
func TestActsThatAreRecordedAreSaid(t *testing.T) {
	for verb, result := range map[string]act.Result{"hold": act.Held, "skip": act.Skipping, "park": act.Parking, "unpark": act.Unparking} {
		written := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost { // as report.Handlers answers when many ask about keys
				http.Error(w, "too many requests: try again in a moment", http.StatusTooManyRequests)
				return
			}
			written++
			at := time.Now()
			_ = json.NewEncoder(w).Encode(act.Done{Result: result, Act: act.Shown{ID: "6f1d", Act: verb, Key: "user-2", By: "alice", Reason: "r", At: at, Until: at.Add(time.Hour)}})
		}))
		out, says, code := cli(t, verb, "user-2", "--reason", "r", "--by", "alice", "--admin="+server.URL)
		server.Close()
		if written != 1 {
			t.Fatalf("%s: %d acts", verb, written)
		}
		if all := out + says; !strings.Contains(all, "recorded") && !strings.Contains(all, "by alice") {
			t.Errorf("router %s has written its act, exits with %d, and says only: %q", verb, code, all)
		}
	}
}

// TestAKeyIsNotTakenForABinaryOne: a key whose name reads like a binary one in the table has acts of its own.
func TestAKeyIsNotTakenForABinaryOne(t *testing.T) {
	now := time.Now()
	expired := act.Shown{ID: "1", Act: act.Park.String(), KeyBase64: "/w==", By: "alice", At: now.Add(-3 * time.Hour), Until: now.Add(-time.Hour)}
	other := act.Shown{ID: "2", Act: act.Park.String(), Key: "base64 /w==", By: "mallory", At: now.Add(-2 * time.Hour), Until: now.Add(time.Hour), Active: true}
	var out strings.Builder
	actsTable(&page{out: &out}, act.Acts{Member: "router-0", Acts: []act.Shown{other, expired}})
	if shown := out.String(); strings.Contains(shown, "replaced") || !strings.Contains(shown, "expired") {
		t.Errorf("the expired park of a binary key is hidden by that of another key:\n%s", shown)
	}
}
