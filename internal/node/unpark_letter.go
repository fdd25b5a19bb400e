package node

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// handleLetters handles the letters of a key that were read, one after the other. Letters of one event are handled once: those
// of one id and one content, since a producer of the retry topic can give a copy the id of any event.
func (u *unparks) handleLetters(ctx context.Context, c *comeback, from *reading, until clock.Instant) {
	defer func() {
		u.mu.Lock()
		c.busy, c.late, c.ahead, c.weight = false, false, nil, 0
		u.mu.Unlock()
		signal.Set(u.changed)
	}()
	type name struct {
		id   event.MessageID
		what event.Content
	}
	done := map[name]bool{}
	for l := u.next(c); l != nil; l = u.next(c) {
		id := name{l.Event.ID, mailbox.ContentOf(l.Event)}
		if !done[id] {
			u.mu.Lock()
			stop := u.keys[c.park.Key] != c
			u.mu.Unlock()
			if stop || ctx.Err() != nil || clock.Now().After(until) || !u.handleLetter(ctx, c, l) {
				return
			}
			done[id] = true
			u.mu.Lock()
			c.count++
			u.mu.Unlock()
		}
		u.acked(c, l, from.ack(l))
	}
}

// handleLetter handles a letter, and reports whether its event has ended.
func (u *unparks) handleLetter(ctx context.Context, c *comeback, l *source.ParkedLetter) bool {
	verdicts := make(chan event.Verdict, 8)
	u.mu.Lock()
	u.newest++
	handle := u.newest
	u.waiting[handle] = verdicts
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		delete(u.waiting, handle)
		u.mu.Unlock()
	}()
	e := *l.Event
	e.Handle = handle
	again := true
	for {
		if again {
			sent := e
			u.node.pipeline.BringBack(&sent) //nolint:contextcheck // a span of an event comes from the event
			again = false
		}
		var v event.Verdict
		select {
		case v = <-verdicts:
		case <-ctx.Done():
			return false
		}
		d := v.DetailOrZero()
		switch v.Kind {
		case event.Done:
			u.node.metrics.unparkedLetters.WithLabelValues(v.Kind.String()).Inc()
			return true
		case event.Failed, event.Rejected:
			if !u.copy(ctx, c, l, &e, v) {
				return false
			}
			u.node.metrics.unparkedLetters.WithLabelValues(v.Kind.String()).Inc()
			return true
		case event.Attempted:
			e.Attempts, e.Crashes, e.LastError = d.Attempts, d.Crashes, d.Reason
			e.FirstError = cmp.Or(e.FirstError, d.Reason)
		case event.NotYet, event.Overloaded:
			if backoff.Sleep(ctx, max(d.Delay, time.Millisecond)) != nil {
				return false
			}
			again = true
		case event.NotOwner, event.Parked: // it remains in the topic
			return false
		}
	}
}

// copyAgain is the time that the copy of a letter may take before this member checks whether its source still runs.
const copyAgain = time.Second

// copy brings a letter whose event has failed to the retry topic or the dead letter topic. A member that has lost
// the key meanwhile makes no copy: the letter is still in the parking topic, and another member may have handled it.
func (u *unparks) copy(ctx context.Context, c *comeback, l *source.ParkedLetter, e *event.Event, v event.Verdict) bool {
	done := make(chan struct{})
	safe := sync.OnceFunc(func() { close(done) })
	look := time.NewTicker(copyAgain)
	defer look.Stop()
	var at *source.Source
	for {
		if s := u.node.source.Load(); s != nil && s != at {
			if !u.isMine(c) {
				return false
			}
			at = s
			m := l.Message
			m.Event = e
			s.Copy(m, v, safe)
		}
		select {
		case <-done:
			return true
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// isMine reports whether an unpark is in effect and this member owns its key.
func (u *unparks) isMine(c *comeback) bool {
	u.mu.Lock()
	is := u.keys[c.park.Key] == c
	u.mu.Unlock()
	return is && u.node.boxes.Inspect(c.park.Key).Gate == ownership.Open
}
