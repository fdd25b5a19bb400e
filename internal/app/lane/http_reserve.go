package lane

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
)

// Reservations by HTTP always have a ttl, so that they need renewals every few seconds, not several times a second.
//
//	POST   /v1/keys/KEY/reservations?ttl=30s&wait=10s   201 {"id","token","turn","valid_ms"}, or 423
//	PUT    /v1/keys/KEY/reservations/ID                 200 the same, or 410
//	DELETE /v1/keys/KEY/reservations/ID                 204, or 410
//
// Ringfence-Outcome is RESERVED, RENEWED or RELEASED; NOT_RUN if the request has done nothing; UNKNOWN with 504.
// valid_ms counts from the sending of the request, by the holder's clock. Between two requests no router keeps anything: the owner of the key
// does, and the control log.

const (
	httpWait   = 10 * time.Second     // for an owner that answers
	renewFirst = 4 * time.Millisecond // the first interval of renewals while the control log is waited for; each further one is twice as long
	renewMost  = 50 * time.Millisecond
)

// reservationTarget is the reservation that a path names.
type reservationTarget struct {
	key string
	id  string        // 16 bytes, "" for a new one
	ttl time.Duration // of one that is not new
}

// reservationOf reads what follows behind the key in a path.
func reservationOf(key, rest string) (t reservationTarget, found bool) {
	t.key = key
	if rest == "reservations" {
		return t, true
	}
	name, ok := strings.CutPrefix(rest, "reservations/")
	id, ms, is := strings.Cut(name, "-")
	secret, err := hex.DecodeString(id)
	n, errTTL := strconv.ParseUint(ms, 10, 32)
	if !ok || !is || err != nil || errTTL != nil || len(secret) != reservationID {
		return t, false
	}
	t.id, t.ttl = string(secret), time.Duration(n)*time.Millisecond
	return t, true
}

// name is the id of a reservation, as its holder keeps it: with it alone the reservation can be found again at any owner.
func (t *reservationTarget) name() string {
	return fmt.Sprintf("%x-%d", t.id, t.ttl/time.Millisecond)
}

// reservation is the answer to a holder.
type reservation struct {
	ID      string `json:"id"`
	Token   int64  `json:"token"`
	Turn    uint64 `json:"turn"`
	ValidMS int64  `json:"valid_ms"`
}

// reserve answers a request about a reservation.
func (h *Handler) reserve(w http.ResponseWriter, r *http.Request, t reservationTarget) {
	ask := Ask{Key: event.Key(t.key), ID: t.id, Wait: httpWait, Resume: true, TTL: t.ttl}
	allow, status, outcome := []string{http.MethodPut, http.MethodDelete}, http.StatusOK, "RENEWED"
	if t.id == "" {
		allow, status, outcome = []string{http.MethodPost}, http.StatusCreated, "RESERVED"
	}
	if !slices.Contains(allow, r.Method) {
		w.Header().Set("Allow", strings.Join(allow, ", "))
		h.refuse(w, http.StatusMethodNotAllowed, "", "POST a new reservation; PUT or DELETE one with its id")
		return
	}
	if t.id == "" {
		secret := make([]byte, reservationID)
		_, _ = rand.Read(secret) // never fails
		t.id = string(secret)
		var err error
		if t.ttl, ask.Wait, err = reservationQuery(r.URL.RawQuery); err != nil {
			h.refuse(w, http.StatusBadRequest, "", err.Error())
			return
		}
		ask.ID, ask.TTL, ask.Resume = t.id, t.ttl, false
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil { // while there is a rest of a body, net/http does not notice that the holder goes
		h.refusePayload(w, err)
		return
	}
	held, err := h.Lane.Reserve(ask)
	if err != nil { // counted
		answerRefusal(w, http.StatusBadRequest, "", err.Error())
		return
	}
	defer held.Forget()
	ctx, stop := context.WithTimeout(r.Context(), ask.Wait+httpWait)
	defer stop()
	granted, valid, over := held.cover(ctx, r.Method == http.MethodDelete)
	// A context that has ended may be that of a holder that has closed only its side of the connection, and reads on.
	switch {
	case over != nil:
		answerOver(w, over, ask.Resume, r.Method == http.MethodDelete)
	case granted == nil, !ask.Resume && r.Context().Err() != nil:
		if !ask.Resume {
			held.Release() // what there may be: without the id no holder comes back for it
		}
		answerUnreached(w)
	default:
		w.Header().Set(headerOutcome, outcome)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		answer := reservation{ID: t.name(), Token: granted.Fence.Token, Turn: granted.Fence.Turn, ValidMS: int64(onHoldersClock(valid, false) / time.Millisecond)}
		_ = json.NewEncoder(w).Encode(answer) // an error: the holder has gone
	}
}

// answerUnreached answers a request that the owner of the key has not answered, and may still.
func answerUnreached(w http.ResponseWriter) {
	w.Header().Set(headerOutcome, "UNKNOWN")
	w.Header().Set(headerCode, event.CodeTimeout)
	http.Error(w, "the owner of the key has not answered in time", http.StatusGatewayTimeout)
}

// codeTooOld is the code of a renewal that the owner refuses because the reservation is too old.
const codeTooOld = "too_old"

// cover waits until a reservation is covered, and returns the time for which it is valid, counted from the request. It
// also returns when the reservation has ended or is no longer renewed. With release it is released as soon as it was
// found.
func (r *Reservation) cover(ctx context.Context, release bool) (granted *event.Grant, valid time.Duration, over *Answer) {
	pauses := backoff.Backoff{Min: renewFirst, Max: renewMost}
	renewals := time.NewTicker(pauses.Next())
	defer renewals.Stop()
	var grant *event.Grant
	for number := uint64(1); ; number++ {
		select {
		case <-ctx.Done():
			return nil, 0, nil
		case <-renewals.C:
			if grant != nil && !release {
				r.Renew(number)
				renewals.Reset(pauses.Next())
			}
		case <-r.news:
			g, answered, over := r.Next()
			if over != nil {
				return nil, 0, over
			}
			if g != nil {
				if grant == nil && release {
					r.Release()
				}
				grant = g
			}
			switch {
			case grant == nil || answered == nil || !answered.Covered:
			case answered.Remaining > 0:
				return grant, answered.Remaining, nil
			default:
				return nil, 0, &Answer{Reply: event.Reply{Outcome: event.CallNotRun, Code: codeTooOld}, Text: "the reservation has lasted an hour at one owner, and is renewed no more: it ends with its last valid_ms"}
			}
		}
	}
}

// answerOver answers about a reservation that does not exist, or no longer exists.
func answerOver(w http.ResponseWriter, over *Answer, resume, release bool) {
	switch {
	case over.Outcome == event.CallReplied && release:
		w.Header().Set(headerOutcome, "RELEASED")
		w.WriteHeader(http.StatusNoContent)
	case over.isUnconfirmed():
		answerUnreached(w)
	case slices.Contains([]string{event.CodeUnreachable, event.CodeOverloaded, event.CodeLeaving, event.CodeNotCovered, event.CodeNotExclusive}, over.Code):
		setRetryAfter(w, over)
		answerRefusal(w, http.StatusServiceUnavailable, over.Code, over.Text)
	case resume && over.Code == event.CodeTimeout:
		answerUnreached(w)
	case resume && over.Code == codeTooOld:
		answerRefusal(w, http.StatusGone, over.Code, over.Text)
	case resume:
		answerRefusal(w, http.StatusGone, event.CodeLost, "the reservation is over")
	default:
		code := over.Code
		if over.Outcome != event.CallNotRun {
			code = event.CodeLost
		}
		answerRefusal(w, http.StatusLocked, code, over.Text)
	}
}

// reservationQuery reads ttl and wait.
func reservationQuery(query string) (ttl, wait time.Duration, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return 0, 0, errors.New("the query is not percent-encoded correctly")
	}
	for name, all := range values {
		d, err := time.ParseDuration(all[0])
		if err != nil || len(all) != 1 {
			return 0, 0, errors.New(name + ": want one duration such as 30s")
		}
		switch name {
		case "ttl":
			ttl = d
		case "wait":
			wait = d
		default:
			return 0, 0, errors.New("the query has only ttl and wait")
		}
	}
	switch {
	case !event.IsTTL(ttl):
		return 0, 0, fmt.Errorf("ttl: want %v to %v", event.TTLLeast, event.TTLMost)
	case wait < 0 || wait > TimeoutMax-httpWait:
		return 0, 0, fmt.Errorf("wait: want 0 to %v", TimeoutMax-httpWait)
	}
	return ttl.Truncate(time.Millisecond), wait, nil
}
