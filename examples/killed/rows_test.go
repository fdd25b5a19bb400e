package killed

import (
	"errors"
	"testing"

	"github.com/ringfence/router/client"
)

// TestRows: a statement with an older fence than the key has seen is refused, a claim's too; a note is not.
func TestRows(t *testing.T) {
	t.Parallel()
	var wrote, noted []string
	r := &Rows{
		Wrote: func(key string, _ client.Fence, before, after []byte) {
			wrote = append(wrote, key+" "+string(before)+">"+string(after))
		},
		Noted: func(key string, _ client.Fence, text string) { noted = append(noted, key+" "+text) },
	}
	address, stop, err := r.Serve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	db := Database(address)
	at := func(token int64, turn uint64) client.Fence { return client.Fence{Token: token, Turn: turn} }
	r.Set("b", []byte("0"))
	for i, step := range []struct {
		key   string
		fence client.Fence
		write string // "": a claim
		want  string // of a claim
		stale bool
	}{
		{"a", at(7, 1), "", "", false},
		{"a", at(7, 1), "1", "", false},
		{"a", at(7, 2), "", "1", false},
		{"a", at(7, 1), "2", "", true},
		{"a", at(7, 1), "", "", true},
		{"a", at(9, 1), "3", "", false},
		{"a", at(9, 1), "", "3", false},
		{"a", at(7, 3), "4", "", true},
		{"b", at(1, 1), "", "0", false},
		{"b", at(1, 1), "1", "", false},
	} {
		var row []byte
		if step.write == "" {
			row, err = db.Claim(t.Context(), step.key, step.fence)
		} else {
			err = db.Write(t.Context(), step.key, step.fence, []byte(step.write))
		}
		if errors.Is(err, ErrStale) != step.stale || err != nil && !step.stale || string(row) != step.want {
			t.Errorf("step %d: %q, %v; want %q, refused: %v", i, row, err, step.want, step.stale)
		}
	}
	if err := db.Note(t.Context(), "a", at(1, 1), "old"); err != nil {
		t.Error(err)
	}
	if r.Refused() != 3 || len(wrote) != 3 || wrote[1] != "a 1>3" || len(noted) != 1 || noted[0] != "a old" || string(r.All()["a"]) != "3" || string(r.Get("b")) != "1" {
		t.Errorf("%d refused, wrote %q, noted %q, %q", r.Refused(), wrote, noted, r.All())
	}
	if _, err := db.Claim(t.Context(), "", at(1, 1)); err == nil || errors.Is(err, ErrStale) {
		t.Errorf("no key: %v", err)
	}
}
