package act

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/ring"
)

// visit is one reader of the topic.
type visit struct {
	*Keeper

	keys     Keys
	topic    controllog.Transport
	group    *errgroup.Group // of its goroutines
	caughtUp bool            // the fold covers the topic up to the start of the visit, or later
	againAt  clock.Instant   // when this member may write acts again
}

func (v *visit) run(ctx context.Context) error {
	transport, err := v.open()
	if err != nil {
		return err
	}
	v.topic = controllog.Watched(transport) // acts that the topic has lost are written again
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	v.group, ctx = errgroup.WithContext(ctx)
	v.group.Go(func() error {
		defer stop()
		return v.topic.Run(ctx)
	})
	v.group.Go(func() error {
		defer stop()
		return v.follow(ctx)
	})
	return v.group.Wait()
}

// follow reads the topic: at first from its first record, later from the newest one that was read.
func (v *visit) follow(ctx context.Context) error {
	from := controllog.First
	if v.restart {
		v.mu.Lock()
		v.fold.Restart()
		v.mu.Unlock()
		v.restart = false
	}
	if last, some := v.fold.Last(); some { // written by this goroutine alone
		from = last
	}
	v.metrics.readers.WithLabelValues("opened").Inc()
	return controllog.Read(ctx, v.topic, from, prefetch, answerMax, func(ctx context.Context, end event.Position, entries <-chan controllog.Entry) error {
		if last, some := v.fold.Last(); some && end.Entry >= 0 && end.Before(last) {
			return controllog.ErrReplaced
		}
		v.setTransport(v.topic, errors.New("not read to its end yet"))
		return v.loop(ctx, from, end, entries)
	})
}

// mark appends a record that shows, once it is read back, that the end of the topic was reached. It returns the answer.
func (v *visit) mark(ctx context.Context) <-chan error {
	answer := make(chan error, 1)
	v.group.Go(func() error {
		marking, done := context.WithTimeout(ctx, answerMax)
		defer done()
		now := v.wall()
		_, err := v.append(marking, Record{Kind: Mark, ID: newID(), At: now, Until: now})
		answer <- err
		return nil
	})
	return answer
}

// loop takes the records, of which the first one is at from, and does the work that comes up.
func (v *visit) loop(ctx context.Context, from, end event.Position, entries <-chan controllog.Entry) error {
	var marked <-chan error
	if end.Entry < 0 { // it is empty, or does not tell
		marked = v.mark(ctx)
	}
	late := time.NewTimer(answerMax)
	defer late.Stop()
	look := time.NewTimer(lookEvery)
	defer look.Stop()
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	trimming := make(chan struct{}, 1)
	begun, _ := v.fold.Last()
	for {
		if last, some := v.fold.Last(); !v.caughtUp && end.Entry >= 0 && some && !last.Before(end) {
			v.reachedEnd()
			late.Stop()
			look.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-entries:
			if from != controllog.First && e.At != from {
				return controllog.ErrReplaced
			}
			from = controllog.First // it was there
			v.apply(e)
		case err := <-marked:
			if err != nil {
				v.restart = true // it may stand where records were read before
				return err
			}
			marked = nil
			v.reachedEnd()
			late.Stop()
		case <-look.C:
		case <-v.ended:
		case <-trim.C:
			select {
			case trimming <- struct{}{}:
				v.group.Go(func() error { // the broker may take long to answer, and acts must not wait for it
					defer func() { <-trimming }()
					v.trim(ctx)
					return nil
				})
			default: // the one before is not answered
			}
		case <-late.C:
			last, _ := v.fold.Last()
			v.restart = last == begun // and else the next visit reads on
			return fmt.Errorf("it was not read to its end within %v", answerMax)
		}
		if v.caughtUp {
			look.Reset(min(v.settle(v.keys), v.writeAgain()))
			v.tellEnds()
		}
	}
}

// reachedEnd notes that every record of the topic was read.
func (v *visit) reachedEnd() {
	v.caughtUp = true
	v.settle(v.keys)
	for _, answer := range v.answers {
		answer() // there is room
	}
	v.answers = nil
	v.setTransport(v.topic, nil)
	chance := newID()
	v.againAt = clock.Now().Add(time.Duration(binary.LittleEndian.Uint64(chance[:]) % uint64(againWithin)))
	if missing := len(v.fold.Missing(v.wall())); missing > 0 {
		v.log.Warn("acts topic has lost records of acts that have an effect; writing them again", "acts", missing)
	}
	if signal.IsClosed(v.read) {
		v.log.Info("acts topic readable again", "held_keys", v.effects.Held())
		return
	}
	close(v.read)
	v.log.Info("acts topic read", "held_keys", v.effects.Held())
}

// writeAgain appends the acts that a topic which was deleted, truncated or restored lacks, for members that start later. Each keeps its id: another
// record of it has no effect. It returns when to look again.
func (v *visit) writeAgain() time.Duration {
	missing := v.fold.Missing(v.wall()) // written by this goroutine alone
	if len(missing) == 0 {
		clear(v.again)
		return lookEvery
	}
	now := clock.Now()
	if now.Before(v.againAt) {
		return max(time.Millisecond, v.againAt.Sub(now))
	}
	for _, r := range missing[:min(len(missing), againMost)] {
		if at, written := v.again[r.ID]; written && now.Sub(at) < answerMax {
			continue
		}
		v.again[r.ID] = now
		data, err := Encode(r)
		if err != nil {
			v.log.Error("an act is not written again", "act", r.ID.String(), "error", err)
			continue
		}
		v.appendOnly(data)
	}
	return lookEvery
}

// appendOnly appends a record that is appended again if it is not read back.
func (v *visit) appendOnly(data []byte) {
	v.topic.Append(data, func(err error) {
		result := "ok"
		if err != nil {
			result = "failed"
		}
		v.metrics.appends.WithLabelValues(result).Inc()
	})
}

// apply takes one record, reports it, and answers the act that waits for it.
func (v *visit) apply(e controllog.Entry) {
	v.mu.Lock()
	r, result := v.fold.Apply(e.At, e.Data)
	v.mu.Unlock()
	if result == Repeated {
		return
	}
	v.metrics.records.WithLabelValues(string(result)).Inc()
	if v.caughtUp {
		v.settle(v.keys) // before the operator hears that it is done
	}
	v.mu.Lock()
	waits := v.waiting[r.ID]
	delete(v.waiting, r.ID)
	v.mu.Unlock()
	switch {
	case waits == nil:
	case v.caughtUp || r.Kind == Mark: // a mark shows that the end is reached
		waits <- result
	default:
		v.answers = append(v.answers, func() { waits <- result })
	}
	if v.caughtUp || result == Malformed || result == Later { // earlier acts were reported when they were done
		v.report(e.At, r, result)
	}
}

func (v *visit) report(at event.Position, r Record, result Result) {
	if result == Marked {
		return
	}
	log, due := v.lines.Line()
	if !due {
		return
	}
	if result == Malformed || result == Later {
		log.Warn("act record ignored", "position", at.String(), "reason", string(result))
		return
	}
	if r.Kind == Skip || r.Kind.tells() {
		log = log.With("event", r.Event.String(), "of", r.Of.String(), "end", r.End.String())
	}
	log.Info("act", "act", r.Kind.String(), "result", string(result), "key_hash", ring.HashOf(string(r.Key)).String(),
		"by", r.By, "via", r.Via, "reason", r.Reason, "until", r.Until.UTC().Format(time.RFC3339), "position", at.String())
}

// trim lets the broker delete records that nobody needs any more.
func (v *visit) trim(ctx context.Context) {
	v.mu.Lock()
	upTo, ok := v.fold.Old(v.wall(), v.cfg.KeepFor)
	v.mu.Unlock()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	if err := v.topic.MoveAnchor(ctx, upTo); err != nil && !errors.Is(err, context.Canceled) {
		v.log.Warn("old acts are not deleted", "position", upTo.String(), "error", err)
	}
}
