package prove

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
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

// TestMembersLeaveWhenAllIsHandled: a member that does not hear in time that the load has ended goes on publishing. Nobody leaves before it has
// told of all its events, and they are handled.
func TestMembersLeaveWhenAllIsHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 7 // an event of b
		polls, left, handled := 0, 0, false
		ask := func(_ context.Context, member string, ask Ask) (Answer, error) {
			a := Answer{Next: ask.From, Drained: left > 0}
			if ask.Do == DoFault {
				left++
				if !handled {
					t.Errorf("%s is to leave, and event %d is not handled", member, late)
				}
				return a, nil
			}
			if member == "b" {
				switch polls++; polls {
				case 1, 2:
					return Answer{}, errors.New("no answer in time")
				case 3, 4:
					a.Unconfirmed = 1
				case 5:
					a.Records, a.Next = []Record{{Kind: WasPublished, Event: late}}, 1
				}
			} else if polls > 7 && !handled {
				handled = true
				a.Records, a.Next = []Record{{Kind: HasStarted, Event: late, Handling: 1}, {Kind: HasEnded, Handling: 1, Outcome: Done}}, 2
			}
			return a, nil
		}
		now := clock.Now()
		c := &conducting{
			group: Group{Members: []string{"a", "b"}, Ask: serially(ask)}, tell: t.Logf, from: make([]int, 2), answers: make([]Answer, 2), heard: []clock.Instant{now, now},
			state: map[uint64]uint8{}, running: map[handlingOf]uint64{}, run: &Run{Members: make([]Member, 2)},
		}
		if err := c.finish(t.Context()); err != nil || left != 2 {
			t.Errorf("%d members leave, %v", left, err)
		}
	})
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

// TestOptionsAreWithinTheBoundsOfMembers: what members would refuse in the middle of a proof is refused before it.
func TestOptionsAreWithinTheBoundsOfMembers(t *testing.T) {
	for _, longest := range []time.Duration{-time.Second, (faultSecondsMax + 1) * time.Second} {
		o := DefaultOptions()
		o.LengthMax = longest
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "--fault-max") {
			t.Errorf("--fault-max %v: %v", longest, err)
		}
	}
}

// TestAProofThatCannotBeginLeavesNoTopics: members that had begun have made topics, which are removed, or named in the error.
func TestAProofThatCannotBeginLeavesNoTopics(t *testing.T) {
	var asked []string
	ask := func(_ context.Context, member string, ask Ask) (Answer, error) {
		asked = append(asked, ask.Do)
		a := Answer{Member: member, Enabled: true, Limits: Limits{Seconds: 3600, Rate: 1000, Keys: 1000}, Now: int64(clock.Shared())}
		switch {
		case ask.Do == DoStart && member == "b":
			a.Error = "no port is free"
		case ask.Do == DoClean:
			a.Remain = []string{"persistent://acme/shop/__prove-orders-" + ask.Run}
		}
		return a, nil
	}
	_, err := Conduct(t.Context(), DefaultOptions(), Group{Name: "orders", Members: []string{"a", "b"}, Ask: serially(ask)}, t.Logf)
	if err == nil || !strings.Contains(err.Error(), "no port is free") || !strings.Contains(err.Error(), "persistent://acme/shop/__prove-orders-") {
		t.Errorf("err = %v, want the reason and the topic that is left", err)
	}
	if n := len(asked); n < 3 || asked[n-1] != DoClean || asked[n-2] != DoStop {
		t.Errorf("members are asked to %v, want a stop of all and then the removal of topics at the end", asked)
	}
}
