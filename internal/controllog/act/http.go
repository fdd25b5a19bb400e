package act

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/ringfence/router/internal/base/event"
)

// Of orders from all callers together.
const (
	ordersPerSecond = 5
	ordersBurst     = 20
)

// errTooMany is the answer to orders beyond the rate.
var errTooMany = errors.New("too many acts: try again in a moment")

// Acts is the answer to GET /v1/acts.
type Acts struct {
	Member string  `json:"member"`
	Error  string  `json:"error,omitempty"` // why this member cannot read or write acts now: the list may be old
	Acts   []Shown `json:"acts"`            // those with an effect first, each newest first
}

// Done is the answer to an order.
type Done struct {
	Result Result `json:"result"`
	Act    Shown  `json:"act"`
}

// Handlers returns the pages of a member for the admin endpoint, by pattern of [http.ServeMux]. Each answers with one
// JSON object. nil stands for a router without acts, for the reason none: it answers 409.
//
//	GET  /v1/acts                                             Acts
//	POST /v1/acts/hold?key=KEY&by=WHO&reason=WHY[&for=1h]     Done
//	POST /v1/acts/release?key=KEY&by=WHO&reason=WHY           Done
//	POST /v1/acts/skip?key=KEY&by=WHO&reason=WHY[&event=ID]   Done
//	POST /v1/acts/park?key=KEY&by=WHO&reason=WHY[&for=168h]   Done
//	POST /v1/acts/unpark?key=KEY&by=WHO&reason=WHY[&for=24h]  Done
//
// Without event, a skip is of the event that first names: the one of the key that runs or runs next. If a skip of the key is in effect
// already, that is the answer, so that a repeated request skips no second event.
//
// KEY may have any bytes, percent-encoded. An answer 504 means that the act may or may not take effect.
//
// A park is refused while parkable returns an error: a member that knows no parks would handle the events.
func Handlers(k *Keeper, none string, first First, parkable func(context.Context) error) map[string]http.Handler {
	turns := rate.NewLimiter(ordersPerSecond, ordersBurst)
	order := func(act func(context.Context, Order) (Shown, Result, error)) http.Handler {
		return page(k, none, func(r *http.Request) (any, error) {
			o, err := orderOf(r)
			if err != nil {
				return nil, err
			}
			if !turns.Allow() {
				return nil, errTooMany
			}
			ctx, cancel := context.WithTimeout(r.Context(), orderMax)
			defer cancel()
			shown, result, err := act(ctx, o)
			if err != nil {
				return nil, err
			}
			return Done{Result: result, Act: shown}, nil
		})
	}
	holding := func(act func(context.Context, Order) (Record, Result, error)) http.Handler {
		return order(func(ctx context.Context, o Order) (Shown, Result, error) {
			record, result, err := act(ctx, o)
			return record.shown(result == Held || result == Renewed || result == Parking || result == Unparking || result == Already), result, err
		})
	}
	return map[string]http.Handler{
		"GET /v1/acts": page(k, none, func(*http.Request) (any, error) {
			acts := Acts{Member: k.member, Acts: k.List()}
			if err := k.Check(); err != nil {
				acts.Error = err.Error()
			}
			return acts, nil
		}),
		"POST /v1/acts/hold":    holding(k.Hold),
		"POST /v1/acts/release": holding(k.Release),
		"POST /v1/acts/park": holding(func(ctx context.Context, o Order) (Record, Result, error) {
			if err := parkable(ctx); err != nil {
				return Record{}, "", err
			}
			return k.Park(ctx, o)
		}),
		"POST /v1/acts/unpark": holding(k.Unpark),
		"POST /v1/acts/skip": order(func(ctx context.Context, o Order) (Shown, Result, error) {
			if !o.named {
				if skips := k.SkipsOf(o.Key); len(skips) > 0 {
					return skips[0], Already, nil
				}
				var err error
				if o.Event, err = first(ctx, o.Key); err != nil {
					return Shown{}, "", err
				}
			}
			return k.Skip(ctx, o)
		}),
	}
}

// First returns the event of a key that runs, or runs next, at its owner. The error is [ErrNothing] if there is none.
type First func(ctx context.Context, key event.Key) (event.MessageID, error)

// orderOf reads an order, but for the bounds that the Keeper checks.
func orderOf(r *http.Request) (Order, error) {
	q := r.URL.Query()
	o := Order{Key: event.Key(q.Get("key")), By: q.Get("by"), Reason: q.Get("reason"), From: r.RemoteAddr}
	if o.Key == "" {
		return Order{}, fmt.Errorf("%w: say which key: key=KEY, percent-encoded", ErrRefused)
	}
	if text := q.Get("for"); text != "" {
		var err error
		if o.For, err = time.ParseDuration(text); err != nil || o.For <= 0 {
			return Order{}, fmt.Errorf("%w: for = %.40q, want a duration such as 30m", ErrRefused, text)
		}
	}
	if text := q.Get("event"); text != "" {
		var err error
		if o.Event, err = event.ParseMessageID(text); err != nil {
			return Order{}, fmt.Errorf("%w: event = %.100q, want a message id as ledger:entry:partition:batch", ErrRefused, text)
		}
		o.named = true
	}
	return o, nil
}

func page(k *Keeper, none string, answer func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k == nil {
			http.Error(w, none, http.StatusConflict)
			return
		}
		said, err := answer(r)
		var text []byte
		if err == nil {
			text, err = json.Marshal(said)
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
	switch {
	case errors.Is(err, ErrRefused):
		return http.StatusBadRequest
	case errors.Is(err, ErrNothing):
		return http.StatusNotFound
	case errors.Is(err, errTooMany):
		return http.StatusTooManyRequests
	case errors.Is(err, ErrUnreadable):
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrUnknown):
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}
