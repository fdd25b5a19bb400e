package prove

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ringfence/router/internal/base/clock"
)

// TestMembersLeaveWhenAllIsHandled: a member that does not hear in time that the load has ended goes on publishing. Nobody leaves before it has
// told of all its events, and they are handled.
func TestMembersLeaveWhenAllIsHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 7 // an event of b
		var mu sync.Mutex
		polls, left, handled := 0, 0, false
		ask := func(_ context.Context, member string, ask Ask) (Answer, error) {
			mu.Lock()
			defer mu.Unlock()
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
					a.Pending = 1 // it is being published
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
			group: Group{Members: []string{"a", "b"}, Ask: ask}, tell: t.Logf, from: make([]int, 2), answers: make([]Answer, 2), heard: []clock.Instant{now, now},
			state: map[uint64]uint8{}, running: map[handlingOf]uint64{}, run: &Run{Members: make([]Member, 2)},
		}
		if err := c.finish(t.Context()); err != nil || left != 2 {
			t.Errorf("%d members leave, %v", left, err)
		}
	})
}
