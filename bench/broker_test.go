package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// fakeAdmin answers like Pulsar's admin API, and records the changes that it was asked to make.
type fakeAdmin struct {
	mu      sync.Mutex
	changes []string
}

func (f *fakeAdmin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answers := map[string]string{
		"/admin/v2/brokers/version":                                       "4.0.8\n",
		"/admin/v2/persistent/public/default/partitioned":                 `["persistent://public/default/bench-a-1","persistent://public/default/orders"]`,
		"/admin/v2/persistent/public/default":                             `["persistent://public/default/bench-a-1-partition-0","persistent://public/default/__ring-bench-a-1","persistent://public/default/bench-b-1"]`,
		"/admin/v2/persistent/public/default/t/internalStats":             `{"entriesAddedCounter":10,"cursors":{"bench":{"messagesConsumedCounter":7}}}`,
		"/admin/v2/persistent/public/default/t-partition-0/internalStats": `{"entriesAddedCounter":10,"cursors":{"bench":{"messagesConsumedCounter":7}}}`,
		"/admin/v2/persistent/public/default/t-partition-1/internalStats": `{"entriesAddedCounter":5,"cursors":{"bench":{"messagesConsumedCounter":5}}}`,
	}
	if r.Method != http.MethodGet {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.changes = append(f.changes, r.Method+" "+r.URL.String())
		return
	}
	answer, ok := answers[r.URL.Path]
	if !ok {
		http.Error(w, "Topic not found", http.StatusNotFound)
		return
	}
	_, _ = w.Write([]byte(answer))
}

func startFake(t *testing.T) (admin, *fakeAdmin) {
	t.Helper()
	fake := &fakeAdmin{}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	return admin{pulsaradmin.Client{URL: server.URL}}, fake
}

func TestRoundDeletesWhatIsItsOwn(t *testing.T) {
	a, fake := startFake(t)
	var warned bytes.Buffer
	r := round{mode: mode{partitioned: true}, options: Options{Nodes: 3}, topic: "persistent://public/default/bench-a-1", admin: a, warn: &warned}
	if err := r.run(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PUT /admin/v2/persistent/public/default/bench-a-1/partitions",
		"DELETE /admin/v2/persistent/public/default/bench-a-1/partitions?force=true",
		"DELETE /admin/v2/persistent/public/default/bench-a-1-partition-0?force=true",
		"DELETE /admin/v2/persistent/public/default/__ring-bench-a-1?force=true",
	}
	if !slices.Equal(fake.changes, want) || warned.Len() > 0 {
		t.Errorf("changes = %q, want %q; warned %q", fake.changes, want, warned.String())
	}
}

func TestRoundWithoutAdmin(t *testing.T) {
	r := round{topic: "persistent://public/default/x", warn: os.Stderr}
	if err := r.run(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if v := (admin{}).version(t.Context()); v != "" {
		t.Errorf("version = %q without an admin API", v)
	}
}

func TestAdminAnswers(t *testing.T) {
	a, _ := startFake(t)
	if v := a.version(t.Context()); v != "4.0.8" {
		t.Errorf("version = %q", v)
	}
	for partitions, want := range map[int]entries{0: {added: 10, open: 3}, 2: {added: 15, open: 3}} {
		got, err := a.entriesOf(t.Context(), "persistent://public/default/t", partitions)
		if err != nil || got.added != want.added || got.open != want.open {
			t.Errorf("%d partitions: %+v, %v, want %+v", partitions, got, err, want)
		}
	}
	if _, err := a.entriesOf(t.Context(), "persistent://public/default/gone", 0); err == nil {
		t.Error("a topic that is not there has entries")
	}
}

func TestMeanOpen(t *testing.T) {
	samples := []entries{{after(0), 100, 30}, {after(1), 150, 50}, {after(2), 300, 40}}
	if got := meanOpen(samples); got != 400*time.Millisecond { // 40 open, 100 a second
		t.Errorf("an entry stays open for %v, want 400ms", got)
	}
	for _, nothing := range [][]entries{nil, samples[:1], {{after(0), 5, 1}, {after(1), 5, 1}}} {
		if got := meanOpen(nothing); got != 0 {
			t.Errorf("%v: %v, want 0", nothing, got)
		}
	}
}

func TestBrokerPID(t *testing.T) {
	handle := t.TempDir()
	if err := os.WriteFile(filepath.Join(handle, "pid"), []byte("4711\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]int{handle: 4711, "": 0, "none": 0, t.TempDir(): 0} {
		if got := brokerPID(folder); got != want {
			t.Errorf("process of %q = %d, want %d", folder, got, want)
		}
	}
}
