// Package fencedsink holds statements that make a database refuse the writes of a replaced
// owner: each compares the fence before it writes.
//
// Users copy the statements in this directory from docs/sinks.md. The tests of this package and
// the runs of `go run ./chaos` execute them verbatim. [Postgres] and [Redis] only send them and
// read the answer.
//
// # Invariant
//
// For one key, the fences of the claims and writes that the database accepts never
// decrease. [Audit] counts violations.
//
// # Concurrency
//
// [Postgres] and [Redis] are safe for concurrent use; an [Audit] is not.
package fencedsink

import (
	"context"
	_ "embed" // the recipes
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// The recipes, as docs/sinks.md shows them.
var (
	//go:embed postgres.sql
	PostgresTables string // the fence, and the data behind it
	//go:embed claim.sql
	PostgresClaim string // announces a later delivery, before its first read
	//go:embed write.sql
	PostgresWrite string // a write that an earlier delivery cannot make
	//go:embed write.lua
	RedisWrite string // the same in Redis
)

// The recipes for databases that hold tokens alone, from a time when nothing else was
// there.
var (
	//go:embed upgrade.sql
	PostgresUpgrade string // adds fences to a table of tokens
	//go:embed claim_both.sql
	PostgresClaimBoth string // PostgresClaim for that table, beside applications that write tokens alone
	//go:embed drop_token.sql
	PostgresDropToken string // ends the upgrade
	//go:embed write_both.lua
	RedisWriteBoth string // RedisWrite beside applications that write tokens alone
)

// Postgres is a database that refuses stale fences.
type Postgres struct{ pool *pgxpool.Pool }

// OpenPostgres connects to the database at url, with at most connections at once.
func OpenPostgres(ctx context.Context, url string, connections int) (*Postgres, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("sink: postgres: %w", err)
	}
	cfg.MaxConns = int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("sink: postgres: %w", err)
	}
	return &Postgres{pool}, nil
}

// Close waits until no connection is in use, and closes them.
func (p *Postgres) Close() { p.pool.Close() }

// Create makes the tables.
func (p *Postgres) Create(ctx context.Context) error {
	if _, err := p.pool.Exec(ctx, PostgresTables); err != nil {
		return fmt.Errorf("sink: postgres: %w", err)
	}
	return nil
}

// Claim makes the fence of the key known, so that no earlier delivery can write from
// now on. It reports false if a later one has: then the caller must stop.
func (p *Postgres) Claim(ctx context.Context, key, fence string) (accepted bool, err error) {
	return p.run(ctx, PostgresClaim, key, fence)
}

// Write writes the effect of an event's handler, and reports false if the sink has seen a later
// delivery: then nothing is written.
func (p *Postgres) Write(ctx context.Context, key, fence, event string) (accepted bool, err error) {
	return p.run(ctx, PostgresWrite, key, fence, event)
}

func (p *Postgres) run(ctx context.Context, statement string, args ...any) (bool, error) {
	tag, err := p.pool.Exec(ctx, statement, args...)
	if err != nil {
		return false, fmt.Errorf("sink: postgres: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// Redis is a database that refuses stale fences.
type Redis struct {
	client *redis.Client
	write  *redis.Script
}

// OpenRedis connects to the server at url, with at most connections at once.
func OpenRedis(url string, connections int) (*Redis, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("sink: redis: %w", err)
	}
	o.PoolSize = connections
	return &Redis{client: redis.NewClient(o), write: redis.NewScript(RedisWrite)}, nil
}

// Close closes all connections.
func (r *Redis) Close() { _ = r.client.Close() } // nothing is under way that anybody waits for

// Write appends event to the key's data, and reports false if the sink has seen a later
// delivery: then nothing is written.
func (r *Redis) Write(ctx context.Context, key, fence, event string) (accepted bool, err error) {
	written, err := r.write.Run(ctx, r.client, []string{fenceOf(key), effectsOf(key)}, fence, event).Int()
	if err != nil {
		return false, fmt.Errorf("sink: redis: %w", err)
	}
	return written == 1, nil
}

// In a cluster the braces keep both keys on one node.
func fenceOf(key string) string   { return "fence:{" + key + "}" }
func effectsOf(key string) string { return "effects:{" + key + "}" }

// Audit counts stale writes: those that were accepted after a greater fence of their
// key. Feed it by [Audit.Add] in the order in which the database accepted them.
type Audit struct {
	Accepted  uint64
	Stale     uint64
	SameToken uint64 // of Stale: under the token of the greater fence, so by the same owner

	newest map[string]string
}

// Add adds one accepted claim or write.
func (a *Audit) Add(key, fence string) {
	if a.newest == nil {
		a.newest = make(map[string]string)
	}
	a.Accepted++
	newest := a.newest[key]
	if fence < newest {
		a.Stale++
		if tokenOf(fence) == tokenOf(newest) {
			a.SameToken++
		}
	}
	a.newest[key] = max(newest, fence)
}

// tokenOf returns the part of a fence's text that is its token.
func tokenOf(fence string) string {
	token, _, _ := strings.Cut(fence, ".")
	return token
}

// auditTables make Postgres note every claim and write that it accepts, in the order
// of the locks that they hold on the fence of their key.
const auditTables = `
CREATE TABLE audit (seq bigserial PRIMARY KEY, key text NOT NULL, fence text NOT NULL);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO audit (key, fence) VALUES (NEW.key, NEW.fence);
	RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON fence FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER note AFTER INSERT OR UPDATE ON effects FOR EACH ROW EXECUTE FUNCTION note();
`

// Watch makes the database record accepted claims and writes, for Audit. Call it once, after
// Create.
func (p *Postgres) Watch(ctx context.Context) error {
	if _, err := p.pool.Exec(ctx, auditTables); err != nil {
		return fmt.Errorf("sink: postgres: %w", err)
	}
	return nil
}

// Audit reads all that the database has accepted since Watch.
func (p *Postgres) Audit(ctx context.Context) (a Audit, err error) {
	rows, err := p.pool.Query(ctx, "SELECT key, fence FROM audit ORDER BY seq")
	if err != nil {
		return a, fmt.Errorf("sink: postgres: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var key, fence string
		if err := rows.Scan(&key, &fence); err != nil {
			return a, fmt.Errorf("sink: postgres: %w", err)
		}
		a.Add(key, fence)
	}
	if err := rows.Err(); err != nil {
		return a, fmt.Errorf("sink: postgres: %w", err)
	}
	return a, nil
}

// Audit reads all that Redis has accepted.
func (r *Redis) Audit(ctx context.Context) (a Audit, err error) {
	effects := r.client.Scan(ctx, 0, effectsOf("*"), 1000).Iterator()
	for effects.Next(ctx) {
		key := effects.Val()
		written, err := r.client.LRange(ctx, key, 0, -1).Result()
		if err != nil {
			return a, fmt.Errorf("sink: redis: %w", err)
		}
		for _, line := range written {
			fence, _, found := strings.Cut(line, " ")
			if !found {
				return a, fmt.Errorf("sink: redis: %s holds %q, which has no fence", key, line)
			}
			a.Add(key, fence)
		}
	}
	if err := effects.Err(); err != nil {
		return a, fmt.Errorf("sink: redis: %w", err)
	}
	return a, nil
}
