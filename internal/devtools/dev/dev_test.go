package dev

import (
	"bytes"
	"errors"
	"fmt"
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

// TestLostLeasesAreNamed: a member whose lease ran out is named at the end, since its events may have run twice.
func TestLostLeasesAreNamed(t *testing.T) {
	var shown bytes.Buffer
	s := &session{out: &output{w: &shown}}
	for i, lapses := range []string{"0", "2"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "# HELP x\nringfence_ownership_notes_total{kind=\"epoch\"} 7\nringfence_ownership_notes_total{kind=\"lease_lapsed\"} %s\n", lapses)
		}))
		defer server.Close()
		s.members = append(s.members, &member{node: fmt.Sprintf("node-%d", i+1), admin: strings.TrimPrefix(server.URL, "http://")})
	}
	s.noteLapses(t.Context())
	if want := "dev | node-2 lost its lease (lapses: 2), as on a busy machine: events that it had then may have run twice\n"; shown.String() != want {
		t.Errorf("it says %q, want %q", shown.String(), want)
	}
}

// TestTheGroupIsNamed: one member is not "1 members".
func TestTheGroupIsNamed(t *testing.T) {
	for members, want := range map[int]string{1: "1 member, with: run me", 3: "3 members, each with: run me"} {
		s := &session{members: make([]*member, members), options: Options{Command: []string{"run", "me"}}}
		if got := s.group(); got != want {
			t.Errorf("of %d: %q, want %q", members, got, want)
		}
	}
}
