//go:build unix

package fencedsink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ringfence/router/internal/base/event"
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

// text returns the fence as applications have it.
func text(token int64, turn uint64) string { return event.Fence{Token: token, Turn: turn}.String() }

// sink is the interface of both databases.
type sink interface {
	Write(ctx context.Context, key, fence, event string) (bool, error)
	Audit(ctx context.Context) (Audit, error)
}

func TestPostgres(t *testing.T) {
	p := postgres(t)
	refusesStaleFences(t, p)
	if accepted, err := p.Claim(t.Context(), "claimed", text(5, 2)); err != nil || !accepted {
		t.Fatalf("claim = %v, %v", accepted, err)
	}
	for _, older := range []string{text(4, 9), text(5, 1)} {
		if accepted, err := p.Claim(t.Context(), "claimed", older); err != nil || accepted {
			t.Errorf("an older claim = %v, %v", accepted, err)
		}
		if accepted, err := p.Write(t.Context(), "claimed", older, "late"); err != nil || accepted {
			t.Errorf("a write after a newer claim = %v, %v", accepted, err)
		}
	}
	raceOfOwners(t, p)
}

func TestRedis(t *testing.T) {
	r := redisServer(t)
	refusesStaleFences(t, r)
	raceOfOwners(t, r)
}

func refusesStaleFences(t *testing.T, s sink) {
	t.Helper()
	const exact = 1 << 53 // beyond it, a float cannot tell a number from the next
	accepted := uint64(0)
	for i, w := range []struct {
		key   string
		token int64
		turn  uint64
		want  bool
	}{
		{"a", 9, 1, true},
		{"a", 9, 1, true}, // one delivery may write twice
		{"a", 9, 10, true},
		{"a", 9, 9, false}, // an earlier delivery by the same owner
		{"a", 10, 1, true},
		{"a", 9, 11, false}, // an earlier owner
		{"b", 9, 1, true},
		{"a", 100, 0, true}, // of a router that knows no turns
		{"a", 99, math.MaxUint64, false},
		{"a", 100, 1, true},
		{"a", 100, 0, false},
		{"c", exact + 1, 1, true},
		{"c", exact, 2, false},
		{"c", exact + 1, exact + 1, true},
		{"c", exact + 1, exact, false},
		{"c", math.MaxInt64, 1, true},
		{"c", math.MaxInt64 - 1, 2, false},
	} {
		got, err := s.Write(t.Context(), w.key, text(w.token, w.turn), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		if got != w.want {
			t.Errorf("write %d of key %s with fence %d.%d: accepted = %v", i, w.key, w.token, w.turn, got)
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
				fence := text(int64(i/10), uint64(i%10)+rand.Uint64N(5))
				accepted, err := s.Write(t.Context(), fmt.Sprint("raced-", i%keys), fence, "x")
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

// TestAuditSeesABrokenFence: without the condition, and without the fence, stale writes are
// accepted, and the audits report them.
func TestAuditSeesABrokenFence(t *testing.T) {
	p := postgres(t)
	open, _, _ := strings.Cut(PostgresClaim, "WHERE")
	for _, fence := range []string{text(7, 2), text(6, 3)} {
		if _, err := p.pool.Exec(t.Context(), open, "k", fence); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Claim(t.Context(), "l", text(7, 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.pool.Exec(t.Context(), "INSERT INTO effects (key, fence, event) VALUES ('l', $1, 'x')", text(7, 1)); err != nil {
		t.Fatal(err)
	}
	if a, err := p.Audit(t.Context()); err != nil || a.Stale != 2 || a.SameToken != 1 {
		t.Errorf("postgres: %d stale, %d of them under the same token, %v; want 2 and 1", a.Stale, a.SameToken, err)
	}
	r := redisServer(t)
	r.client.RPush(t.Context(), effectsOf("k"), text(7, 2)+" x", text(6, 3)+" y", text(7, 1)+" z")
	if a, err := r.Audit(t.Context()); err != nil || a.Stale != 2 || a.SameToken != 1 || a.Accepted != 3 {
		t.Errorf("redis: %+v, %v; want 2 stale of 3, 1 of them under the same token", a, err)
	}
}

// The recipes before there were turns, which users have copied.
const (
	tokenTable = "CREATE TABLE fence (key text PRIMARY KEY, token bigint NOT NULL)"
	tokenClaim = `INSERT INTO fence AS f (key, token) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET token = EXCLUDED.token WHERE f.token <= EXCLUDED.token`
	tokenWrite = `local token, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen and (#seen > #token or #seen == #token and seen > token) then
	return 0
end
redis.call('SET', KEYS[1], token)
redis.call('RPUSH', KEYS[2], token .. ' ' .. ARGV[2])
return 1`
)

// upgrade is a history of a key while some applications write tokens alone (turn 0) and
// others write both.
var upgrade = []struct {
	fence    event.Fence
	accepted bool
	what     string
}{
	{event.Fence{Token: 900}, true, "a token alone"},
	{event.Fence{Token: 899, Turn: 9}, false, "a fence under an older token"},
	{event.Fence{Token: 900, Turn: 50}, true, "a fence under that token"},
	{event.Fence{Token: 900, Turn: 49}, false, "an earlier delivery by the same owner"},
	{event.Fence{Token: 900}, true, "a token alone cannot know"},
	{event.Fence{Token: 1000}, true, "the next owner, with its token alone"},
	{event.Fence{Token: 900, Turn: 60}, false, "a fence of the owner before"},
	{event.Fence{Token: 1000, Turn: 3}, true, "a fence of the next owner, whose turns begin anew"},
	{event.Fence{Token: 999}, false, "a token alone of an owner before"},
}

func TestPostgresUpgrade(t *testing.T) {
	p, err := OpenPostgres(t.Context(), start(t, StartPostgres), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, statement := range []string{tokenTable, "INSERT INTO fence VALUES ('old', 7)", PostgresUpgrade, PostgresUpgrade} {
		if _, err := p.pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range upgrade {
		statement, args := PostgresClaimBoth, []any{"k", step.fence.String(), step.fence.Token}
		if step.fence.Turn == 0 {
			statement, args = tokenClaim, []any{"k", step.fence.Token}
		}
		if got, err := p.run(t.Context(), statement, args...); err != nil || got != step.accepted {
			t.Errorf("%s: accepted = %v, %v", step.what, got, err)
		}
	}
	if _, err := p.pool.Exec(t.Context(), "INSERT INTO fence VALUES ('new', 5, $1)", text(5, 6)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.pool.Exec(t.Context(), PostgresDropToken); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"old": text(7, 0), "k": text(1000, 3), "new": text(5, 6)} {
		var got string
		if err := p.pool.QueryRow(t.Context(), "SELECT fence FROM fence WHERE key = $1", key).Scan(&got); err != nil || got != want {
			t.Errorf("the fence of %s is %q in the end, %v; want %q", key, got, err, want)
		}
	}
	if got, err := p.Claim(t.Context(), "k", text(1000, 2)); err != nil || got {
		t.Errorf("an older fence after the upgrade: accepted = %v, %v", got, err)
	}
}

func TestRedisUpgrade(t *testing.T) {
	r := redisServer(t)
	both, alone := redis.NewScript(RedisWriteBoth), redis.NewScript(tokenWrite)
	for _, step := range upgrade {
		token := strconv.FormatInt(step.fence.Token, 10)
		run := func() *redis.Cmd {
			if step.fence.Turn == 0 {
				return alone.Run(t.Context(), r.client, []string{"token:{k}", effectsOf("k")}, token, "x")
			}
			return both.Run(t.Context(), r.client, []string{fenceOf("k"), effectsOf("k"), "token:{k}"}, step.fence.String(), "x", token)
		}
		if got, err := run().Int(); err != nil || (got == 1) != step.accepted {
			t.Errorf("%s: accepted = %v, %v", step.what, got == 1, err)
		}
	}
}

// TestDocsShowTheRecipes: the recipes in the documentation are the tested ones, and there are no others.
func TestDocsShowTheRecipes(t *testing.T) {
	page, err := os.ReadFile("../../docs/sinks.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes := map[string]string{
		"postgres.sql": PostgresTables, "claim.sql": PostgresClaim, "write.sql": PostgresWrite, "write.lua": RedisWrite,
		"upgrade.sql": PostgresUpgrade, "claim_both.sql": PostgresClaimBoth, "drop_token.sql": PostgresDropToken, "write_both.lua": RedisWriteBoth,
	}
	for name, recipe := range recipes {
		if !strings.Contains(string(page), recipe) {
			t.Errorf("docs/sinks.md does not show %s as it is", name)
		}
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shown += len(regexp.MustCompile("(?m)^```(sql|lua)$").FindAll(page, -1))
	}
	if shown != len(recipes) {
		t.Errorf("the documents show %d blocks of SQL and Lua, and this test knows %d", shown, len(recipes))
	}
}
