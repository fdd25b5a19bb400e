package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Handlers returns the pages of a group for the admin endpoint, by pattern of
// [http.ServeMux]. Each answers with one JSON object, of the type that it is named for.
//
//	GET /v1/status[?member=NAME]      Status of one member: the asked one, or NAME
//	GET /v1/members                   Members
//	GET /v1/partitions[?member=NAME]  Partitions, as one member sees them
//	GET /v1/keys?key=KEY              Key; KEY may have any bytes, percent-encoded
//	GET /v1/keys[?which=WHICH][&limit=N]  Keys, the worst ones
//	GET /v1/rollouts[?last=N]         Rollouts, the newest first: one without N
//	GET /v1/history?key=KEY           History; or ?hash=HASH, as Keys have it
//	POST /v1/prove?ask=JSON[&member=NAME]  a step of a proof, as internal/devtools/prove has it
//
// Lists name keys if mayNameKeys says that the caller may know them, and have their hashes
// otherwise.
func Handlers(g *Group, mayNameKeys func(*http.Request) bool) map[string]http.Handler {
	return map[string]http.Handler{
		"GET /v1/status": page(func(ctx context.Context, r *http.Request) (any, error) {
			return g.Status(ctx, r.URL.Query().Get("member"))
		}),
		"GET /v1/members": page(func(ctx context.Context, _ *http.Request) (any, error) {
			return g.Members(ctx), nil
		}),
		"GET /v1/partitions": page(func(ctx context.Context, r *http.Request) (any, error) {
			return g.Partitions(ctx, r.URL.Query().Get("member"))
		}),
		"GET /v1/keys": page(func(ctx context.Context, r *http.Request) (any, error) {
			if !r.URL.Query().Has("key") {
				return g.keysPage(ctx, r, mayNameKeys(r))
			}
			key := event.Key(r.URL.Query().Get("key"))
			if len(key) > event.KeyMax {
				return nil, badRequest(fmt.Sprintf("the key has %d bytes, want at most %d", len(key), event.KeyMax))
			}
			return takingTurns(ctx, g, func(ctx context.Context) Key { return g.Key(ctx, key) })
		}),
		"GET /v1/rollouts": page(func(ctx context.Context, r *http.Request) (any, error) {
			last := 1
			if text := r.URL.Query().Get("last"); text != "" {
				var err error
				if last, err = strconv.Atoi(text); err != nil || last < 1 || last > RolloutsMax {
					return nil, badRequest(fmt.Sprintf("last: want a number from 1 to %d", RolloutsMax))
				}
			}
			return takingTurns(ctx, g, func(ctx context.Context) Rollouts { return g.Rollouts(ctx, last) })
		}),
		"POST /v1/prove": page(func(ctx context.Context, r *http.Request) (any, error) {
			query := r.URL.Query()
			answer, err := g.Prove(ctx, query.Get("member"), []byte(query.Get("ask")))
			return json.RawMessage(answer), err
		}),
		"GET /v1/history": page(func(ctx context.Context, r *http.Request) (any, error) {
			query := r.URL.Query()
			if query.Has("key") == query.Has("hash") {
				return nil, badRequest("say which key: /v1/history?key=KEY, percent-encoded, or ?hash=HASH")
			}
			key, err := keyOf(query)
			if err != nil {
				return nil, err
			}
			return takingTurns(ctx, g, func(ctx context.Context) History { return g.History(ctx, key) })
		}),
	}
}

func (g *Group) keysPage(ctx context.Context, r *http.Request, named bool) (any, error) {
	q := KeysQuestion{Which: r.URL.Query().Get("which"), Limit: KeysLimit, Named: named}
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if q.Limit, err = strconv.Atoi(text); err != nil {
			return nil, badRequest("limit: want a number")
		}
	}
	if err := q.Check(); err != nil {
		return nil, badRequest(err.Error())
	}
	return takingTurns(ctx, g, func(ctx context.Context) Keys { return g.Keys(ctx, q) })
}

// takingTurns answers a question that goes to all members when its turn has come.
func takingTurns[T any](ctx context.Context, g *Group, answer func(context.Context) T) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, keyWaitMax)
	defer cancel()
	if g.keys.Wait(ctx) != nil {
		return nil, errTooMany
	}
	return answer(ctx), nil
}

// Of questions about keys and rollouts: each of them asks all members.
const (
	keysPerSecond = 10
	keyWaitMax    = 5 * time.Second // for a turn and the answers
)

var errTooMany = errors.New("too many requests: try again in a moment")

// badRequest is an error of the caller.
type badRequest string

// Error implements error.
func (b badRequest) Error() string { return string(b) }

func page(answer func(context.Context, *http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		word, err := answer(r.Context(), r)
		var text []byte
		if err == nil {
			text, err = json.Marshal(word)
		}
		if err != nil {
			http.Error(w, err.Error(), codeOf(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(text, '\n')) // a client that has gone does not need it
	})
}

func codeOf(err error) int {
	var bad badRequest
	switch {
	case errors.As(err, &bad):
		return http.StatusBadRequest
	case errors.Is(err, ErrUnknownMember):
		return http.StatusNotFound
	case errors.Is(err, errTooMany):
		return http.StatusTooManyRequests
	}
	return http.StatusBadGateway // the local member always answers: it was another one
}
