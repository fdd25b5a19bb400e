package prove

import (
	"context"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// TestTheEndWaitsForTheBroker: the members of a proof leave when the broker has answered for the last events and these are done, also if
// an answer is late.
func TestTheEndWaitsForTheBroker(t *testing.T) {
	const members = 2
	polls, leaves := 0, 0 // of member 1, since the end of its load
	confirmed, done := false, false
	ask := func(_ context.Context, member string, ask Ask) (Answer, error) {
		a := Answer{Member: member, Enabled: true, Limits: Limits{Seconds: 60, Rate: 100, Keys: 10}, Now: int64(clock.Shared()), Ready: true, Next: ask.From}
		if member == "b" && ask.Do == DoPoll && !ask.Load && leaves == 0 {
			polls++
			switch event := EventOf(1, 1); polls {
			case 1, 2, 3:
				a.Unconfirmed = 1
			case 4:
				confirmed = true
				a.Records = []Record{{Kind: WasPublished, At: a.Now, Event: event}}
			case 6:
				done = true
				a.Records = []Record{{Kind: HasStarted, At: a.Now, Process: 1, Handling: 1, Event: event, Token: 1, Turn: 1}, {Kind: HasEnded, At: a.Now, Process: 1, Handling: 1, Outcome: Done}}
			}
			a.Next += len(a.Records)
		}
		if ask.Do == DoFault && ask.Fault.Kind == Leave {
			if leaves++; !confirmed || !done {
				t.Errorf("%s is told to leave, and an event is open: confirmed %v, done %v", member, confirmed, done)
			}
		}
		a.Drained = leaves == members
		return a, nil
	}
	o := DefaultOptions()
	o.For, o.Every, o.By = time.Second, time.Hour, "a test"
	o.Rate, o.Keys = 10, 10
	run, err := Conduct(t.Context(), o, Group{Name: "orders", Members: []string{"a", "b"}, Ask: serially(ask)}, t.Logf)
	if err != nil || run.Cut || leaves != members {
		t.Errorf("%v, %+v, %d members left", err, run, leaves)
	}
}

// serially lets one call run at a time.
func serially(ask func(context.Context, string, Ask) (Answer, error)) func(context.Context, string, Ask) (Answer, error) {
	turn := make(chan struct{}, 1)
	return func(ctx context.Context, member string, what Ask) (Answer, error) {
		turn <- struct{}{}
		defer func() { <-turn }()
		return ask(ctx, member, what)
	}
}
