//go:build linux

package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/pipeline/schedule"
)

const (
	timerMethod   = "chaos" // the name of all timers
	longFirings   = 20      // one in so many takes longer than a lease
	failedFirings = 40      // one in so many fails at first

	sendEvery   = 100 * time.Millisecond
	sendTimeout = 5 * time.Second
)

var errFails = errors.New("this firing fails at its first attempt")

// declare returns the options that declare the schedules of the run.
func (a *application) declare(n int) ([]client.Option, error) {
	definitions, err := plannedSchedules(n)
	if err != nil {
		return nil, err
	}
	missed := map[schedule.Policy]client.MissedPolicy{schedule.Latest: client.MissedLatest, schedule.All: client.MissedAll, schedule.Skip: client.MissedSkip}
	options := make([]client.Option, 0, n)
	for _, d := range definitions {
		options = append(options, client.WithSchedule(d.Name, client.Every(d.Every), a.handleFiring,
			client.WithMissed(missed[d.Missed]), client.WithGrace(d.Grace), client.WithJitter(d.Jitter)))
	}
	return options, nil
}

// handleFiring is a client.FiringHandler.
func (a *application) handleFiring(ctx context.Context, f *client.Firing) error {
	ctx, held := a.heeding(ctx, func() bool { return ctx.Err() == nil })
	name := firingName(f.Schedule, f.Time, f.Missed)
	h, err := a.begin(ctx, name, schedule.KeyOf(f.Schedule), event.Fence(f.Fence))
	if err != nil {
		return err
	}
	err = backoff.Sleep(ctx, h.length)
	if err == nil && f.Attempt == 1 && xxhash.Sum64String(name)/longFirings%failedFirings == 0 {
		err = errFails
	}
	return a.end(ctx, h, err, held)
}

// send publishes events by way of the callers' routers until ctx ends, and returns when all have an answer. Every second one has an id, and is
// repeated until its sender knows that it is published.
func (c *callers) send(ctx context.Context, wanted bool) error {
	if !wanted || c.rate == 0 {
		return nil
	}
	var open sync.WaitGroup
	defer open.Wait()
	ticker := time.NewTicker(sendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		c.mu.Lock()
		number, key := len(c.sends), "user-"+strconv.Itoa(c.random.IntN(c.keys))
		made := sendMade{
			withID: number%2 == 0, after: time.Duration(c.random.Int64N(timerMax.Milliseconds())) * time.Millisecond, begun: clock.Now(), answer: sentMaybe,
		}
		c.sends = append(c.sends, made)
		c.mu.Unlock()
		open.Go(func() {
			c.sendOne(context.WithoutCancel(ctx), number, key, &made)
			c.mu.Lock()
			c.sends[number] = made
			c.mu.Unlock()
		})
	}
}

// sendOne publishes one event.
func (c *callers) sendOne(ctx context.Context, number int, key string, made *sendMade) {
	maybe := false // some try may have published it
	for made.tries < callTriesMax && (made.tries == 0 || made.withID && made.answer == sentMaybe) {
		made.tries++
		err := c.trySend(ctx, number, key, made)
		switch {
		case err == nil:
			made.answer = sentSafe
			return
		case errors.Is(err, client.ErrNotSent) && !maybe:
			made.answer = sentNot
		default:
			made.answer, maybe = sentMaybe, true
		}
	}
}

func (c *callers) trySend(ctx context.Context, number int, key string, made *sendMade) error {
	caller := number / 2 % callersCount // so that each sends both kinds
	l, err := c.routeOf(caller)
	if err != nil {
		_ = backoff.Sleep(ctx, 100*time.Millisecond)
		return errors.Join(client.ErrNotSent, err)
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	options := []client.SendOption{client.WithSendAfter(made.after), client.WithSendName(timerMethod)}
	if made.withID {
		options = append(options, client.WithSendID(strings.TrimPrefix(sendName(number), timerPrefix)))
	}
	if _, err = l.lane.Send(ctx, key, []byte(sendName(number)), options...); err != nil {
		c.leave(caller, l) // the router is dead, stands still, has closed the connection, or the broker is away
	}
	return err
}
