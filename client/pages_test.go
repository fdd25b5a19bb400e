package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/client"
)

// The functions below are the Go of the documents, word for word, so that the compiler sees it. TestPagesCompile compares the two.

var (
	onEvent    client.Handler
	sweep      client.FiringHandler
	errNoFunds = errors.New("no funds")
	errStale   = errors.New("a later delivery of this key has written")
)

type user struct {
	store interface {
		Apply(ctx context.Context, key string, fence client.Fence, payload []byte) error
		Charge(ctx context.Context, key string, fence client.Fence, payload []byte) ([]byte, error)
	}
	db interface {
		Exec(ctx context.Context, statement string, arguments ...any) (interface{ RowsAffected() int64 }, error)
	}
	lane    *client.Lane
	repeat  func() error
	reserve func(ctx context.Context, e *client.Event) error
	cancel  func(ctx context.Context, key string, fence client.Fence) error
	report  func(ctx context.Context, at time.Time, fence client.Fence) error
	migrate func(ctx context.Context, key string, fence client.Fence) error
	handle  func(ctx context.Context, key string) error
	release func(key string) (expired bool)
}

// docs/lane.md
func (u *user) pageOfCalls(ctx context.Context) error {
	store := u.store
	err := client.Run(ctx, "", onEvent, client.WithCall("charge", func(ctx context.Context, c *client.Call) ([]byte, error) {
		balance, err := store.Charge(ctx, c.Key, c.Fence, c.Payload)
		if errors.Is(err, errNoFunds) {
			return nil, client.FailCall("no_funds", err) // FAILED, with a code for the caller
		}
		return balance, err
	}))
	return err
}

func (u *user) pageOfCallers(ctx context.Context) error {
	repeat := u.repeat
	lane, err := client.Dial("") // RINGFENCE_APP_ENDPOINT, or 127.0.0.1:16650
	if err != nil {
		return err
	}
	defer lane.Close()
	reply, err := lane.Invoke(ctx, "user-1", "charge", []byte("5"), client.WithCallID("order-7"), client.WithCallTimeout(2*time.Second))
	if errors.Is(err, client.ErrNotRun) {
		return repeat() // it has not run, and never will
	}
	_ = reply
	return err
}

func (u *user) pageOfReservations(ctx context.Context) error {
	lane, migrate := u.lane, u.migrate
	r, err := lane.Reserve(ctx, "user-1", client.WithWait(30*time.Second))
	if err != nil {
		return err // client.ErrNotReserved: nothing is held
	}
	defer r.Release()
	return migrate(r.Context(), "user-1", r.Fence()) // stop when the context ends: the key is lost
}

// docs/timers.md
func (u *user) pageOfTimers(ctx context.Context) error {
	cancelIfUnpaid, reserve := u.cancel, u.reserve
	err := client.Run(ctx, "", func(ctx context.Context, e *client.Event) error {
		if e.Timer != nil { // e.Timer.Name is "expire"
			return cancelIfUnpaid(ctx, e.Key, e.Fence)
		}
		e.After(15*time.Minute, "expire", nil)
		return reserve(ctx, e)
	})
	return err
}

func (u *user) pageOfSend(ctx context.Context, body []byte) error {
	lane, err := client.Dial("") // RINGFENCE_APP_ENDPOINT, or 127.0.0.1:16650
	if err != nil {
		return err
	}
	defer lane.Close()
	id, err := lane.Send(ctx, "order-7", body, client.WithSendAfter(15*time.Minute), client.WithSendName("expire"), client.WithSendID("order-7/expire"))
	_ = id
	return err
}

// docs/schedules.md
func (u *user) pageOfSchedules(ctx context.Context) error {
	report := u.report
	err := client.Run(ctx, "", onEvent,
		client.WithSchedule("report", client.Cron("0 6 * * 1-5", "Europe/Berlin"), func(ctx context.Context, f *client.Firing) error {
			return report(ctx, f.Time, f.Fence) // f.Missed earlier times did not run: this run is for them, too
		}),
		client.WithSchedule("sweep", client.Every(30*time.Second), sweep, client.WithMissed(client.MissedSkip)))
	return err
}

// docs/sinks.md
func (u *user) pageOfSinks(ctx context.Context, write string) error {
	db := u.db
	err := client.Run(ctx, "", func(ctx context.Context, e *client.Event) error {
		tag, err := db.Exec(ctx, write, e.Key, e.Fence.String(), string(e.Payload))
		if err == nil && tag.RowsAffected() == 0 {
			err = errStale // a later delivery of the key has begun; this event is handled by it or redelivered
		}
		return err
	})
	return err
}

// docs/audit.md
func (u *user) pageOfAudit(ctx context.Context, userID string, waited time.Duration) error {
	handle, release := u.handle, u.release
	audit, err := client.NewAudit(client.AuditOptions{Collector: "collector:16655", Application: "orders", TokenFile: "/secrets/token"})
	if err != nil {
		return err
	}
	defer audit.Close()

	h := audit.Begin(userID) // while the lock is held, or in the consumer's callback
	h.Waited(waited)         // optional: how long the lock took
	err = handle(ctx, userID)
	h.End() // before the lock is released
	if expired := release(userID); expired {
		h.Expired() // optional: the lock was no longer held
	}
	return err
}

// docs/migration-from-redlock.md, and the documentation of package client
func (u *user) pageOfMigration(ctx context.Context) error {
	store := u.store
	err := client.Run(ctx, "", func(ctx context.Context, e *client.Event) error {
		return store.Apply(ctx, e.Key, e.Fence, e.Payload)
	})
	return err
}

// README.md
func (u *user) readme(ctx context.Context) error {
	store := u.store
	return client.Run(ctx, "", func(ctx context.Context, e *client.Event) error { return store.Apply(ctx, e.Key, e.Fence, e.Payload) })
}

// TestPagesCompile: the documents print Go that compiles.
func TestPagesCompile(t *testing.T) {
	u := new(user)
	_ = []any{
		u.pageOfCalls, u.pageOfCallers, u.pageOfReservations, u.pageOfTimers, u.pageOfSend, u.pageOfSchedules, u.pageOfSinks, u.pageOfAudit, u.pageOfMigration, u.readme,
	}
	compiled := plainGo(readPage(t, "pages_test.go") + readPage(t, "../bench/page_test.go")) // the second has modules that this one has not
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	printed := 0
	see := func(page, text string) {
		printed++
		if !strings.Contains(compiled, plainGo(text)) {
			t.Errorf("%s prints Go that this test does not compile: add it here, word for word\n%s", page, text)
		}
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```")
	for _, page := range append(pages, "../README.md") {
		for _, match := range block.FindAllStringSubmatch(readPage(t, page), -1) {
			see(page, match[1])
		}
	}
	line := regexp.MustCompile("\\| \\[Go\\]\\(client\\) \\| `(.*)` \\|")
	if match := line.FindStringSubmatch(readPage(t, "../README.md")); match != nil {
		see("../README.md", match[1])
	}
	if printed < 10 {
		t.Errorf("only %d pieces of Go are in the documents: this test does not see all of them", printed)
	}
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// plainGo returns Go on one line, with one space between words, and without directives for the linter.
func plainGo(text string) string {
	return strings.Join(strings.Fields(regexp.MustCompile(`//nolint.*`).ReplaceAllString(text, "")), " ")
}
