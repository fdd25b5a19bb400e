package main

import (
	"context"
	"strings"
	"sync"
	"testing"
)

// TestWatchErasesATerminal, unless it is one that shows escape sequences as text.
func TestWatchErasesATerminal(t *testing.T) {
	for term, erases := range map[string]bool{"xterm": true, "dumb": false} {
		t.Run(term, func(t *testing.T) {
			t.Setenv("TERM", term)
			user, terminal := newTerminal(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			root := rootCommand()
			root.SetArgs([]string{"members", "--watch=1h", answering(t, 200, `{"member":"router-0"}`)})
			root.SetOut(terminal)
			var command sync.WaitGroup
			command.Go(func() {
				defer func() { _ = terminal.Close() }() // what it has shown is read
				if err := root.ExecuteContext(ctx); err != nil {
					t.Error(err)
				}
			})
			var shown strings.Builder
			for b := make([]byte, 1024); !strings.Contains(shown.String(), "as router-0 has it"); {
				n, err := user.Read(b)
				if err != nil {
					t.Fatalf("%v after %q", err, shown.String())
				}
				shown.Write(b[:n])
			}
			cancel()
			command.Wait()
			if strings.HasPrefix(shown.String(), erase) != erases || !erases && strings.Contains(shown.String(), "\x1b") {
				t.Errorf("TERM=%s got %q", term, shown.String())
			}
		})
	}
}
