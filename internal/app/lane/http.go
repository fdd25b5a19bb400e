package lane

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// The headers of calls by HTTP. Values of the answer have %XX for bytes that are not printable ASCII, and for the percent sign.
const (
	headerID          = "Idempotency-Key"   // the caller's id of the call
	headerTimeout     = "Ringfence-Timeout" // how long the caller waits: seconds, or a duration such as 500ms
	headerTraceparent = "Traceparent"
	headerOutcome     = "Ringfence-Outcome" // of every answer
	headerCode        = "Ringfence-Code"
	headerMessageID   = "Ringfence-Message-Id" // of an event that was published
)

// Bounds for a listener that answers by a [Handler].
const (
	// BodyPath is the path below which a POST has a body, of at most event.CallPayloadMax bytes.
	BodyPath = keysPath
	// AnswerMax is how long an answer may take.
	AnswerMax = TimeoutMax + OwnerGrace + time.Second
)

const keysPath = "/v1/keys/"

// Refused returns the headers of an answer that comes from in front of a [Handler]: the call has not run.
func Refused() map[string]string { return map[string]string{headerOutcome: "NOT_RUN"} }

// Handler is a Lane by HTTP/1.1: POST /v1/keys/KEY/calls/METHOD and POST /v1/keys/KEY/events, with the payload as the body, and
// reservations. It bounds the bytes of the bodies that it
// reads, but neither connections nor times: the listener does.
type Handler struct {
	Lane *Lane
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, rest, found := pathOf(r.URL.EscapedPath())
	if found && rest == "events" && r.Method == http.MethodPost {
		h.send(w, r, key)
		return
	}
	if target, is := reservationOf(key, rest); found && is {
		h.reserve(w, r, target)
		return
	}
	method, is := methodOf(rest)
	switch {
	case !found || !is:
		h.refuse(w, http.StatusNotFound, "", "there are only POST /v1/keys/KEY/calls/METHOD, POST /v1/keys/KEY/events and /v1/keys/KEY/reservations, with the key and the method percent-encoded")
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		h.refuse(w, http.StatusMethodNotAllowed, "", "POST a call")
		return
	}
	call, err := requestOf(r, key, method)
	if err != nil {
		h.refuse(w, http.StatusBadRequest, "", err.Error())
		return
	}
	call.Payload, err = h.payload(r)
	switch {
	case errors.Is(err, errNoRoom):
		a := refused(event.CodeOverloaded, tooManyHere)
		h.Lane.metrics.answered(a.Outcome, 0)
		answer(w, a)
		return
	case err != nil:
		h.refusePayload(w, err)
		return
	}
	a, err := h.Lane.Invoke(r.Context(), call)
	if err != nil {
		answerRefusal(w, http.StatusBadRequest, "", err.Error())
		return
	}
	// It answers even if the context has ended: a caller that has closed only its side of the connection still reads,
	// and without an answer net/http writes one of its own.
	answer(w, a)
}

var errNoRoom = errors.New(tooManyHere)

// payload reads the body, if there is room for it.
func (h *Handler) payload(r *http.Request) ([]byte, error) {
	room := event.CallPayloadMax
	if r.ContentLength >= 0 {
		room = int(min(r.ContentLength, event.CallPayloadMax))
	}
	if !h.Lane.takeRoom(room) {
		return nil, errNoRoom
	}
	defer h.Lane.freeRoom(room) // the call or the event takes it again
	return payloadOf(r.Body, r.ContentLength)
}

// refusePayload answers a request whose body cannot be read.
func (h *Handler) refusePayload(w http.ResponseWriter, err error) {
	if errors.Is(err, errTooLarge) {
		h.refuse(w, http.StatusRequestEntityTooLarge, event.CodeTooLarge, err.Error())
		return
	}
	h.refuse(w, http.StatusBadRequest, "", "the body did not arrive in time, or not whole")
}

// send publishes an event: POST /v1/keys/KEY/events?after=15m, or at=2026-11-27T06:00:00Z, and name=NAME.
func (h *Handler) send(w http.ResponseWriter, r *http.Request, key string) {
	s, err := sendingOf(r, key)
	if err != nil {
		h.refuse(w, http.StatusBadRequest, "", err.Error())
		return
	}
	if s.Payload, err = h.payload(r); errors.Is(err, errNoRoom) {
		h.Lane.metrics.sends.WithLabelValues(sendRefused).Inc()
		answerRefusal(w, http.StatusServiceUnavailable, event.CodeOverloaded, err.Error())
		return
	} else if err != nil {
		h.refusePayload(w, err)
		return
	}
	sent, err := h.Lane.Send(r.Context(), s)
	switch {
	case err == nil:
		w.Header().Set(headerMessageID, sent.ID.String())
		w.Header().Set(headerOutcome, "SENT")
		w.WriteHeader(http.StatusAccepted)
	case errors.Is(err, ErrRequest):
		h.refuse(w, http.StatusBadRequest, "", err.Error())
	case errors.Is(err, ErrTooManySends): // counted
		answerRefusal(w, http.StatusServiceUnavailable, event.CodeOverloaded, err.Error())
	case errors.Is(err, ErrNotSent): // counted
		answerRefusal(w, http.StatusServiceUnavailable, "", err.Error())
	default:
		w.Header().Set(headerOutcome, "UNKNOWN")
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	}
}

// sendingOf returns the event of a request, without its payload.
func sendingOf(r *http.Request, key string) (s Sending, err error) {
	s.Key = event.Key(key)
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return s, errors.New("the query is not percent-encoded correctly")
	}
	for name, values := range query {
		if len(values) != 1 {
			return s, errors.New("after, at and name may each be set once at most")
		}
		switch value := values[0]; name {
		case "name":
			s.Name = value
		case "after":
			if s.After, err = time.ParseDuration(value); err != nil || s.After < 0 {
				return s, errors.New("after: want a duration such as 15m")
			}
		case "at":
			at, err := time.Parse(time.RFC3339, value)
			if err != nil {
				return s, errors.New("at: want a time such as 2026-11-27T06:00:00Z")
			}
			s.At = at.UnixMilli()
		default:
			return s, errors.New("the query has only after, at and name")
		}
	}
	var has bool
	if s.ID, has, err = headerOf(r.Header, headerID); err == nil && has && s.ID == "" {
		err = errors.New(headerID + " is empty: leave it out for an event without an id")
	}
	if trace := r.Header.Get(headerTraceparent); trace != "" && len(trace) <= traceparentMax {
		s.Properties = []event.Property{{Name: "traceparent", Value: trace}}
	}
	return s, err
}

// pathOf returns the key of an escaped path, and what follows behind it.
func pathOf(path string) (key, rest string, found bool) {
	below, ok := strings.CutPrefix(path, keysPath)
	escaped, rest, _ := strings.Cut(below, "/")
	key, err := url.PathUnescape(escaped)
	return key, rest, ok && err == nil
}

// methodOf returns the method of a call, from what follows behind its key.
func methodOf(rest string) (method string, found bool) {
	escaped, ok := strings.CutPrefix(rest, "calls/")
	method, err := url.PathUnescape(escaped)
	return method, ok && err == nil && !strings.Contains(escaped, "/")
}

// requestOf returns the call of a request, without its payload.
func requestOf(r *http.Request, key, method string) (Request, error) {
	id, hasID, err := headerOf(r.Header, headerID)
	if err != nil {
		return Request{}, err
	}
	if hasID && id == "" {
		return Request{}, errors.New(headerID + " is empty: leave it out for a call without an id")
	}
	timeout, hasTimeout, err := headerOf(r.Header, headerTimeout)
	if err != nil {
		return Request{}, err
	}
	call := Request{Key: event.Key(key), Method: method, ID: id, Traceparent: r.Header.Get(headerTraceparent)}
	if hasTimeout {
		if call.Timeout, err = timeoutOf(timeout); err != nil {
			return Request{}, err
		}
	}
	return call, call.check()
}

// headerOf returns the value of a header that may be there once.
func headerOf(h http.Header, name string) (value string, found bool, err error) {
	switch values := h.Values(name); len(values) {
	case 0:
		return "", false, nil
	case 1:
		return values[0], true, nil
	}
	return "", false, errors.New(name + " is set twice")
}

// timeoutOf reads a number of seconds, or a duration with its unit.
func timeoutOf(text string) (time.Duration, error) {
	if strings.Trim(text, "0123456789.") == "" { // a number alone
		text += "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > TimeoutMax {
		return 0, errors.New(headerTimeout + ": want seconds, or a duration such as 500ms, of more than 0 and at most " + TimeoutMax.String())
	}
	return d, nil
}

var errTooLarge = errors.New("the payload has more than " + strconv.Itoa(event.CallPayloadMax) + " bytes")

// payloadOf reads a body of at most event.CallPayloadMax bytes; length is less than 0 if it is not known.
func payloadOf(body io.Reader, length int64) ([]byte, error) {
	if length > event.CallPayloadMax {
		return nil, errTooLarge
	}
	if length >= 0 {
		payload := make([]byte, length)
		_, err := io.ReadFull(body, payload)
		return payload, err //nolint:wrapcheck // the caller does not see it
	}
	payload, err := io.ReadAll(io.LimitReader(body, event.CallPayloadMax+1))
	var tooLarge *http.MaxBytesError
	if len(payload) > event.CallPayloadMax || errors.As(err, &tooLarge) {
		return nil, errTooLarge
	}
	return payload, err //nolint:wrapcheck // the caller does not see it
}

// refuse answers a request that no call can be made of, and counts it.
func (h *Handler) refuse(w http.ResponseWriter, status int, code, why string) {
	h.Lane.metrics.refused.WithLabelValues(badRequest).Inc()
	answerRefusal(w, status, code, why)
}

// answerRefusal answers a request that no call was made of.
func answerRefusal(w http.ResponseWriter, status int, code, why string) {
	w.Header().Set(headerOutcome, "NOT_RUN")
	if code != "" {
		w.Header().Set(headerCode, code)
	}
	http.Error(w, why, status)
}

// answer answers a call.
func answer(w http.ResponseWriter, a Answer) {
	h := w.Header()
	h.Set(headerOutcome, strings.ToUpper(a.Outcome.String()))
	h.Set("Cache-Control", "no-store")
	if a.Outcome == event.CallReplied {
		h.Set("Content-Type", "application/octet-stream")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Length", strconv.Itoa(len(a.Payload)))
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(a.Payload) // an error: the caller has gone
		return
	}
	if a.Code != "" {
		h.Set(headerCode, encoded(a.Code))
	}
	setRetryAfter(w, &a)
	http.Error(w, a.Text, statusOf(a))
}

func setRetryAfter(w http.ResponseWriter, a *Answer) {
	if a.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((a.RetryAfter+time.Second-1)/time.Second), 10))
	}
}

// statusOf returns the status of an answer without a reply.
func statusOf(a Answer) int {
	switch a.Outcome {
	case event.CallReplied:
		return http.StatusOK
	case event.CallFailed:
		return http.StatusUnprocessableEntity
	case event.CallDoneBefore:
		return http.StatusConflict
	case event.CallNotRun:
		switch a.Code {
		case event.CodeNoHandler:
			return http.StatusNotFound
		case event.CodeCycle:
			return http.StatusLoopDetected
		case event.CodeTooLarge:
			return http.StatusRequestEntityTooLarge
		}
		return http.StatusServiceUnavailable
	case event.CallUnknown:
	}
	return http.StatusGatewayTimeout
}

// encoded returns an application's text as the value of a header.
func encoded(text string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c > ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}
