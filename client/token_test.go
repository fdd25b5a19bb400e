package client_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/client"
)

// shown receives the token of each attempt to connect. The router refuses them all.
func shown(t *testing.T) (tokens chan []string, dial client.Option) {
	listener := bufconn.Listen(1 << 16)
	tokens = make(chan []string, 100)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		headers, _ := metadata.FromIncomingContext(stream.Context())
		tokens <- headers.Get("authorization")
		return status.Error(codes.Unauthenticated, "try again")
	}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends with Stop
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	return tokens, client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) })
}

func tokenFile(t *testing.T, token string) string {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The token comes from the option or the environment, and each connection reads it again.
func TestTokenIsShown(t *testing.T) {
	fromEnv := tokenFile(t, "of the environment\n")
	for name, c := range map[string]struct {
		env     string
		options func(path string) []client.Option
		want    string // before the file changes
		changes bool
	}{
		"none":                   {options: func(string) []client.Option { return nil }},
		"from the option":        {options: func(path string) []client.Option { return []client.Option{client.WithTokenFile(path)} }, want: "Bearer first", changes: true},
		"from the environment":   {env: fromEnv, options: func(string) []client.Option { return nil }, want: "Bearer of the environment"},
		"the option counts more": {env: fromEnv, options: func(path string) []client.Option { return []client.Option{client.WithTokenFile(path)} }, want: "Bearer first", changes: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(client.TokenFileEnv, c.env)
			path := tokenFile(t, " first\n")
			tokens, dial := shown(t)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			var running sync.WaitGroup
			running.Go(func() {
				_ = client.Run(ctx, "", done, append(c.options(path), dial, client.WithLogger(slog.New(slog.DiscardHandler)))...)
			})
			defer running.Wait()
			defer cancel()
			if got := strings.Join(<-tokens, "|"); got != c.want {
				t.Errorf("the router received %q, want %q", got, c.want)
			}
			if !c.changes {
				return
			}
			if err := os.WriteFile(path, []byte("second"), 0o600); err != nil {
				t.Fatal(err)
			}
			for got := c.want; got != "Bearer second"; got = strings.Join(<-tokens, "|") {
				if got != c.want {
					t.Fatalf("the router received %q", got)
				}
			}
		})
	}
}

// An unusable token file is logged and read again; there is no attempt without a token.
func TestTokenFileThatCannotBeUsed(t *testing.T) {
	for name, path := range map[string]string{"missing": "/none/such", "empty": tokenFile(t, "\n")} {
		t.Run(name, func(t *testing.T) {
			tokens, dial := shown(t)
			ctx, cancel := context.WithCancel(t.Context())
			said := make(lines, 100)
			var running sync.WaitGroup
			running.Go(func() {
				_ = client.Run(ctx, "", done, client.WithTokenFile(path), dial, client.WithLogger(slog.New(slog.NewTextHandler(said, nil))))
			})
			if line := <-said; !strings.Contains(line, "token file") || !strings.Contains(line, path) {
				t.Errorf("log line = %q", line)
			}
			<-said // the second attempt
			cancel()
			running.Wait()
			if len(tokens) > 0 {
				t.Errorf("an attempt was made, with the token %q", <-tokens)
			}
		})
	}
}

// lines receives a log, one line at a time.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
