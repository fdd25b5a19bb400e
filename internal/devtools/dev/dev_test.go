package dev

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestDrainOfAMemberThatDoesNot: such a drain is not called done, and is an error.
func TestDrainOfAMemberThatDoesNot(t *testing.T) {
	for status, want := range map[int]error{http.StatusOK: nil, http.StatusServiceUnavailable: ErrNotDrained} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		defer server.Close()
		var shown bytes.Buffer
		s := &session{out: &output{w: &shown}, members: []*member{{node: "node-1", admin: strings.TrimPrefix(server.URL, "http://")}}}
		if err := s.drain(t.Context()); !errors.Is(err, want) {
			t.Errorf("status %d: %v, want %v", status, err, want)
		}
		if said := strings.Contains(shown.String(), "| drained\n"); said != (want == nil) {
			t.Errorf("status %d: it says\n%s", status, shown.String())
		}
	}
}
