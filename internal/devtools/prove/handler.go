package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
)

// handlersMax is how many events the built-in handler works on at a time, beside one router.
const handlersMax = 64

// The work of the built-in handler is a sleep: of a few milliseconds, and for one event in slowEvery long enough for faults to find it
// running. One in failEvery fails in its first attempt.
const (
	workLeast, workMost = 2 * time.Millisecond, 20 * time.Millisecond
	slowLeast, slowMost = 300 * time.Millisecond, 1500 * time.Millisecond
	slowEvery           = 40
	failEvery           = 50
)

// payload is the content of an event of a proof.
type payload struct {
	Run   string `json:"run"`
	Event uint64 `json:"event"`
	Key   int    `json:"key"`
}

// Handle is the built-in handler: it works on the events of the router at endpoint until ctx ends, and writes a [Record] for each start and each
// end to out, one a line. A start is written before the work and an end after it, before the router hears of the result: so an
// interval is never shorter than it was.
func Handle(ctx context.Context, endpoint string, out io.Writer, log *slog.Logger) error {
	h := &handler{out: out}
	return client.Run(ctx, endpoint, h.handle, client.WithMaxInFlight(handlersMax), client.WithName("prove"), client.WithLogger(log))
}

type handler struct {
	mu     sync.Mutex // guards the fields below: lines are in the order of their times
	out    io.Writer
	newest uint64
}

var (
	errTold    = errors.New("prove: this event fails in its first attempt")
	errForeign = errors.New("prove: not an event of a proof")
)

func (h *handler) handle(ctx context.Context, e *client.Event) error {
	var p payload
	if json.Unmarshal(e.Payload, &p) != nil || p.Event == 0 {
		return client.Reject(errForeign)
	}
	number, err := h.write(Record{Kind: HasStarted, Event: p.Event, Key: p.Key, Token: e.Fence.Token, Turn: e.Fence.Turn})
	if err != nil {
		return err // work without a record proves nothing
	}
	result := work(ctx, p.Event, e.Attempt)
	outcome := Done
	switch {
	case errors.Is(result, errTold):
		outcome = Failed
	case result != nil:
		outcome = Cancelled
	}
	if _, err := h.write(Record{Kind: HasEnded, Handling: number, Outcome: outcome}); err != nil {
		return err
	}
	return result
}

// work works on one event, for a time that is the same in each of its attempts.
func work(ctx context.Context, event uint64, attempt int) error {
	random := event * 0x9e3779b97f4a7c15 >> 16 // spreads numbers that follow on each other
	length := workLeast + time.Duration(random)%(workMost-workLeast)
	if event%slowEvery == 0 {
		length = slowLeast + time.Duration(random)%(slowMost-slowLeast)
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if event%failEvery == 1 && attempt == 1 {
		return errTold
	}
	return nil
}

// write writes a record with the present time, and with the next number if it is a start.
func (h *handler) write(r Record) (number uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Kind == HasStarted {
		h.newest++
		r.Handling = h.newest
	}
	r.At = int64(clock.Shared())
	line, err := json.Marshal(r)
	if err == nil {
		_, err = h.out.Write(append(line, '\n'))
	}
	if err != nil {
		return 0, fmt.Errorf("prove: record: %w", err)
	}
	return r.Handling, nil
}
