//go:build unix

package sink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// scratch is a directory whose path is short, and that other users may enter.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ringfence-sink-") //nolint:usetesting // the path of t.TempDir is too long for a socket, and root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start starts a server for the test, or skips it where there is none; but not in CI.
func start(t *testing.T, start func(context.Context, string) (*Server, error)) string {
	t.Helper()
	server, err := start(t.Context(), scratch(t))
	if errors.Is(err, ErrNotInstalled) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server.URL
}

func postgres(t *testing.T) *Postgres {
	t.Helper()
	p, err := OpenPostgres(t.Context(), start(t, StartPostgres), 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if err := errors.Join(p.Create(t.Context()), p.Create(t.Context()), p.Watch(t.Context())); err != nil {
		t.Fatal(err)
	}
	return p
}

func redisServer(t *testing.T) *Redis {
	t.Helper()
	r, err := OpenRedis(start(t, StartRedis), 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// sink is what both databases do.
type sink interface {
	Write(ctx context.Context, key string, token int64, event string) (bool, error)
	Audit(ctx context.Context) (Audit, error)
}

func TestPostgres(t *testing.T) {
	p := postgres(t)
	refusesStaleTokens(t, p)
	if accepted, err := p.Claim(t.Context(), "claimed", 5); err != nil || !accepted {
		t.Fatalf("claim = %v, %v", accepted, err)
	}
	if accepted, err := p.Claim(t.Context(), "claimed", 4); err != nil || accepted {
		t.Errorf("an older claim = %v, %v", accepted, err)
	}
	if accepted, err := p.Write(t.Context(), "claimed", 4, "late"); err != nil || accepted {
		t.Errorf("a write after a newer claim = %v, %v", accepted, err)
	}
	raceOfOwners(t, p)
}

func TestRedis(t *testing.T) {
	r := redisServer(t)
	refusesStaleTokens(t, r)
	raceOfOwners(t, r)
}

func refusesStaleTokens(t *testing.T, s sink) {
	t.Helper()
	const exact = 1 << 53 // beyond it, a float cannot tell a number from the next
	accepted := uint64(0)
	for i, w := range []struct {
		key   string
		token int64
		want  bool
	}{
		{"a", 9, true},
		{"a", 9, true},
		{"a", 10, true},
		{"a", 9, false},
		{"b", 9, true},
		{"a", 100, true},
		{"a", 99, false},
		{"c", exact + 1, true},
		{"c", exact, false},
		{"c", exact + 1, true},
		{"c", math.MaxInt64, true},
		{"c", math.MaxInt64 - 1, false},
	} {
		got, err := s.Write(t.Context(), w.key, w.token, fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if got != w.want {
			t.Errorf("write %d of key %s with token %d: accepted = %v", i, w.key, w.token, got)
		}
		if got {
			accepted++
		}
	}
	a, err := s.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a.Stale != 0 || a.Accepted < accepted {
		t.Errorf("the audit tells %d accepted and %d stale writes, want at least %d and 0", a.Accepted, a.Stale, accepted)
	}
}

// raceOfOwners writes from many owners of the same keys at once.
func raceOfOwners(t *testing.T, s sink) {
	t.Helper()
	const owners, writes, keys = 8, 200, 3
	var refused atomic.Int64
	var all sync.WaitGroup
	for range owners {
		all.Go(func() {
			for i := range writes {
				token := int64(i) + rand.Int64N(5)
				accepted, err := s.Write(t.Context(), fmt.Sprint("raced-", i%keys), token, "x")
				if err != nil {
					t.Error(err)
				}
				if !accepted {
					refused.Add(1)
				}
			}
		})
	}
	all.Wait()
	a, err := s.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a.Stale != 0 {
		t.Errorf("%d of %d accepted writes are stale", a.Stale, a.Accepted)
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused: this race proved nothing")
	}
}

// TestAuditSeesABrokenFence: without the condition, and without the fence, stale
// writes are accepted, and the audits say so.
func TestAuditSeesABrokenFence(t *testing.T) {
	p := postgres(t)
	open, _, _ := strings.Cut(PostgresClaim, "WHERE")
	for _, token := range []int64{7, 6} {
		if _, err := p.pool.Exec(t.Context(), open, "k", token); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Claim(t.Context(), "l", 7); err != nil {
		t.Fatal(err)
	}
	if _, err := p.pool.Exec(t.Context(), "INSERT INTO effects (key, token, event) VALUES ('l', 6, 'x')"); err != nil {
		t.Fatal(err)
	}
	if a, err := p.Audit(t.Context()); err != nil || a.Stale != 2 {
		t.Errorf("postgres: %d stale, %v; want 2", a.Stale, err)
	}
	r := redisServer(t)
	r.client.RPush(t.Context(), effectsOf("k"), "7 x", "6 y", "7 z")
	if a, err := r.Audit(t.Context()); err != nil || a.Stale != 1 || a.Accepted != 3 {
		t.Errorf("redis: %+v, %v; want 1 stale of 3", a, err)
	}
}

// TestDocsShowTheRecipes: what users copy is what is tested here.
func TestDocsShowTheRecipes(t *testing.T) {
	page, err := os.ReadFile("../../docs/sinks.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, recipe := range map[string]string{
		"postgres.sql": PostgresTables, "claim.sql": PostgresClaim, "write.sql": PostgresWrite, "write.lua": RedisWrite,
	} {
		if !strings.Contains(string(page), recipe) {
			t.Errorf("docs/sinks.md does not show %s as it is", name)
		}
	}
}
