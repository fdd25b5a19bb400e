package node

import (
	"context"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

// History implements report.Local.
func (s *reporter) History(ctx context.Context, key ring.KeyHash) report.HistoryAt {
	ctx, cancel := context.WithTimeout(ctx, report.AskTimeout)
	defer cancel()
	if s.keys.Wait(ctx) != nil {
		s.node.metrics.questionsRefused.Inc()
		return report.HistoryAt{View: s.reporter(), Error: tooMany}
	}
	attempts, oldest := s.node.boxes.History(key)
	told := s.node.pipeline.Journeys().Tell(key, key.Partition())
	t := teller{member: s.node.cfg.Name, wall: wallClock(), names: told.Names, seen: map[report.Step]bool{}}
	for i := range told.Journeys {
		t.journey(&told.Journeys[i])
	}
	for i := range told.Moves {
		m := &told.Moves[i]
		t.add(report.Step{Kind: report.StepMoved, From: t.names[m.From], To: t.names[m.To], Token: m.Token}, m.At)
	}
	for i := range attempts {
		t.attempt(&attempts[i])
	}
	all := report.HistoryAt{View: s.reporter(), Steps: t.steps, Since: t.wall.of(max(s.since, oldest, told.Oldest))}
	all.Bound()
	return all
}

// wall converts instants to the time of day, by the present readings of both clocks.
type wall struct {
	now  clock.Instant
	time time.Time
	boot time.Duration // CLOCK_BOOTTIME
}

func wallClock() wall {
	return wall{clock.Now(), time.Now(), clock.Read().Boot} //nolint:forbidigo // for people: nothing is decided by it
}

func (w *wall) of(i clock.Instant) time.Time { return w.time.Add(-w.now.Sub(i)).UTC() }

// ofBoot returns the instant of a CLOCK_BOOTTIME of this machine.
func (w *wall) ofBoot(boot time.Duration) clock.Instant { return w.now.Add(boot - w.boot) }

// teller makes steps of records.
type teller struct {
	member string
	wall   wall
	names  []string
	steps  []report.Step
	seen   map[report.Step]bool
}

// add adds a step, once: the attempts of one event were queued together.
func (t *teller) add(s report.Step, at clock.Instant) {
	s.At, s.Member = t.wall.of(at), t.member
	if !t.seen[s] {
		t.seen[s] = true
		t.steps = append(t.steps, s)
	}
}

func (t *teller) journey(j *history.Journey) {
	id := j.ID.String()
	t.add(report.Step{Kind: report.StepReceived, Event: id, To: t.names[j.Owner]}, j.Received)
	if j.Ended != 0 {
		t.add(report.Step{Kind: report.StepSettled, Event: id, Result: settledAs(j), Seconds: j.Ended.Sub(j.Received).Seconds()}, j.Ended)
	}
}

// settledAs names the end of a journey.
func settledAs(j *history.Journey) string {
	switch {
	case j.Dropped == event.Spilled:
		return "spilled"
	case j.Dropped == event.Returned:
		return "returned"
	case j.Verdict == event.Done:
		return "acked"
	case j.Verdict == event.Failed:
		return "retry topic"
	case j.Verdict == event.Parked:
		return "parking topic"
	}
	return "dead letter topic"
}

// startSlack is the difference that the clocks of a worker and of this process may show when they are
// one machine's: they are read at different moments.
const startSlack = 50 * time.Millisecond

func (t *teller) attempt(a *history.Attempt) {
	about := report.Step{Event: a.ID.String(), Attempt: int(a.Number)}
	step := func(kind string, at clock.Instant) {
		about.Kind = kind
		t.add(about, at)
	}
	t.add(report.Step{Kind: report.StepQueued, Event: about.Event}, a.Accepted)
	if a.Delivered != 0 {
		if a.Fence != (event.Fence{}) {
			about.Fence = a.Fence.String()
		}
		step(report.StepDelivered, a.Delivered)
	}
	if start := t.wall.ofBoot(a.Ran.Start); a.Ran.Length > 0 && !start.Before(a.Delivered.Add(-startSlack)) && !start.After(a.Ended.Add(startSlack)) {
		step(report.StepStarted, max(start, a.Delivered))
	}
	if a.Result != 0 {
		answered := about
		answered.Kind, answered.Result, answered.Seconds = report.StepAnswered, a.Result.String(), a.Ended.Sub(a.Delivered).Seconds()
		if a.TimedOut {
			answered.Result = "timed out"
		}
		t.add(answered, a.Ended)
	}
	switch a.End {
	case history.Moved:
		step(report.StepMoved, a.Ended)
	case history.Retried:
		step(report.StepRetried, a.Ended)
	case history.Open, history.Done, history.Copied, history.Rejected, history.Returned, history.Parked:
	}
}
