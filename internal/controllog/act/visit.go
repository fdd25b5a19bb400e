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
	caughtUp bool          // the fold covers the topic up to the start of the visit, or later
	againAt  clock.Instant // when this member may write acts again
}

func (v *visit) run(ctx context.Context) error {
	transport, err := v.open()
	if err != nil {
		return err
	}
	transport = controllog.Whole(transport, v.log) // a hold or a release that is missed has no later record that repairs it
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer stop()
		return transport.Run(ctx)
	})
	group.Go(func() error {
		defer stop()
		return v.follow(ctx, group, transport)
	})
	return group.Wait()
}

// follow reads the topic: at first from its first record, later from the newest one that was read.
func (v *visit) follow(ctx context.Context, group *errgroup.Group, transport controllog.Transport) error {
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
	return controllog.Read(ctx, transport, from, prefetch, answerMax, func(ctx context.Context, end event.Position, entries <-chan controllog.Entry) error {
		return v.begin(ctx, loopInputs{from: from, entries: entries, end: end, transport: transport, group: group})
	})
}

// begin prepares the loop.
func (v *visit) begin(ctx context.Context, in loopInputs) error {
	if last, some := v.fold.Last(); some && in.end.Entry >= 0 && in.end.Before(last) {
		return controllog.ErrReplaced
	}
	v.setTransport(in.transport, errors.New("not read to its end yet"))
	if in.end.Entry < 0 { // it is empty, or does not tell: a record that is read back shows that the end was reached
		mark := make(chan error, 1)
		in.mark = mark
		in.group.Go(func() error {
			marking, done := context.WithTimeout(ctx, answerMax)
			defer done()
			now := v.wall()
			_, err := v.append(marking, Record{Kind: Mark, ID: newID(), At: now, Until: now})
			mark <- err
			return nil
		})
	}
	return v.loop(ctx, in)
}

type loopInputs struct {
	from      event.Position // of the first record
	entries   <-chan controllog.Entry
	mark      <-chan error // the answer to the mark; nil: there is none
	end       event.Position
	transport controllog.Transport
	group     *errgroup.Group // of the visit
}

func (v *visit) loop(ctx context.Context, in loopInputs) error {
	late := time.NewTimer(answerMax)
	defer late.Stop()
	look := time.NewTimer(lookEvery)
	defer look.Stop()
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	trimming := make(chan struct{}, 1)
	begun, _ := v.fold.Last()
	for {
		if last, some := v.fold.Last(); !v.caughtUp && in.end.Entry >= 0 && some && !last.Before(in.end) {
			v.reachedEnd(in.transport)
			late.Stop()
			look.Reset(0)
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-in.entries:
			if in.from != controllog.First && e.At != in.from {
				return controllog.ErrReplaced
			}
			in.from = controllog.First // it was there
			v.apply(e)
		case err := <-in.mark:
			if err != nil {
				v.restart = true // it may stand where records were read before
				return err
			}
			in.mark = nil
			v.reachedEnd(in.transport)
			late.Stop()
		case <-look.C:
		case <-v.ended:
		case <-trim.C:
			select {
			case trimming <- struct{}{}:
				in.group.Go(func() error { // the broker may take long to answer, and acts must not wait for it
					defer func() { <-trimming }()
					v.trim(ctx, in.transport)
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
			look.Reset(min(v.settle(v.keys), v.writeAgain(in.transport)))
			v.tellEnds(in.transport)
		}
	}
}

// reachedEnd notes that every record of the topic was read.
func (v *visit) reachedEnd(transport controllog.Transport) {
	v.caughtUp = true
	v.settle(v.keys)
	for _, answer := range v.answers {
		answer() // there is room
	}
	v.answers = nil
	v.setTransport(transport, nil)
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
func (v *visit) writeAgain(transport controllog.Transport) time.Duration {
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
		v.appendOnly(transport, data)
	}
	return lookEvery
}

// appendOnly appends a record that is appended again if it is not read back.
func (v *visit) appendOnly(transport controllog.Transport, data []byte) {
	transport.Append(data, func(err error) {
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
	log.Info("act", "act", r.Kind.String(), "result", string(result), "key_hash", fmt.Sprintf("%016x", ring.HashOf(string(r.Key))),
		"by", r.By, "via", r.Via, "reason", r.Reason, "until", r.Until.UTC().Format(time.RFC3339), "position", at.String())
}

// trim lets the broker delete records that nobody needs any more.
func (v *visit) trim(ctx context.Context, transport controllog.Transport) {
	v.mu.Lock()
	upTo, ok := v.fold.Old(v.wall(), v.cfg.KeepFor)
	v.mu.Unlock()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	if err := transport.MoveAnchor(ctx, upTo); err != nil && !errors.Is(err, context.Canceled) {
		v.log.Warn("old acts are not deleted", "position", upTo.String(), "error", err)
	}
}
