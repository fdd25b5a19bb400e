package main

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/client/clienttest"
)

// TestSend: the events that router send publishes, its exit codes and its messages.
func TestSend(t *testing.T) {
	t.Parallel()
	router := clienttest.NewRouter(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	router.Serve(l)
	at := "--endpoint=" + l.Addr().String()
	small := write(t, filepath.Join(t.TempDir(), "small"), "6")

	begun := time.Now().Truncate(time.Millisecond)
	id, says, code := cli(t, "send", "user-1", "-d", "@"+small, "--after", "15m", "--name", "expire", "--id", "order-7/expire", at)
	again, _, _ := cli(t, "send", "user-1", "-d", "6", "--after", "15m", "--name", "expire", "--id", "order-7/expire", at)
	if code != exitOK || strings.Count(id, ":") != 3 || !strings.HasSuffix(id, "\n") || again != id {
		t.Fatalf("exit code %d, %q, %q; again %q", code, id, says, again)
	}
	if _, says, code := cli(t, "send", "--base64", "/wA=", "--at", "2999-01-01T00:00:00Z", at); code != exitNotRun || !strings.Contains(says, "NOT_SENT: ") {
		t.Errorf("too far ahead: exit code %d, %q", code, says)
	}
	soon := begun.Add(time.Hour)
	if _, says, code := cli(t, "send", "--base64", "/wA=", "--at", soon.Format(time.RFC3339Nano), at); code != exitOK {
		t.Errorf("at a time: exit code %d, %q", code, says)
	}
	sent := router.Sent()
	if len(sent) != 2 {
		t.Fatalf("%d events: %+v", len(sent), sent)
	}
	if s := sent[0]; s.Key != "user-1" || s.Name != "expire" || string(s.Payload) != "6" || s.Due.Before(begun.Add(15*time.Minute)) || s.Due.After(time.Now().Add(15*time.Minute)) {
		t.Errorf("the first event: %+v", s)
	}
	if s := sent[1]; s.Key != "\xff\x00" || !s.Due.Equal(soon) {
		t.Errorf("the second event: %+v, want it due at %v", s, soon)
	}

	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no key":        {[]string{"send", at}, exitUsage, "router send takes one argument, KEY, and was given 0"},
		"two times":     {[]string{"send", "k", "--after", "1m", "--at", "2026-11-27T06:00:00Z", at}, exitUsage, "without --after"},
		"no time":       {[]string{"send", "k", "--at", "noon", at}, exitUsage, `--at = "noon", want a time such as`},
		"nothing there": {[]string{"send", "k", "-d", "@/nowhere", at}, exitUsage, "--data: open /nowhere"},
		"no router":     {[]string{"send", "k", "--endpoint=127.0.0.1:1"}, exitNotRun, "NOT_SENT (unreachable): "},
	} {
		t.Run(name, func(t *testing.T) {
			if _, says, code := cli(t, test.args...); code != test.code || !strings.Contains(says, test.says) {
				t.Errorf("exit code %d, %q; want %d, %q", code, says, test.code, test.says)
			}
		})
	}
	router.RefuseSends(errors.New("the broker has gone"))
	if _, says, code := cli(t, "send", "k", at); code != exitNotRun && code != exitUnknown || !strings.Contains(says, "the broker has gone") {
		t.Errorf("without a broker: exit code %d, %q", code, says)
	}
}
