package forward

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// reserve holds a reservation under a number.
func (tt *tableTest) reserve(number int, call event.Call) { tt.reserveAs(number, "id", call) }

func (tt *tableTest) reserveAs(number int, id string, call event.Call) {
	call.ID, call.Reservation = id, true
	tt.serial++
	ev := &event.Event{Handle: event.NewCallHandle(tt.serial), Key: "k", Partition: ring.Partition(1), Call: &call}
	e := event.NewEntry(event.Message{Event: ev, Key: string(ev.Key)})
	e.First, e.Fresh = ev.Handle, event.AllBits(1)
	tt.holdEntry(number, e)
}

// codes returns the codes of what was settled, by number.
func (tt *tableTest) codes() map[int]string {
	codes := map[int]string{}
	for i := range tt.out.Verdicts {
		codes[tt.numbers[tt.out.Verdicts[i].Handle]] = tt.out.Verdicts[i].DetailOrZero().Reply.Code
	}
	tt.out.Reset()
	return codes
}

// TestUnreachableOwnerOfReservations: while the owner cannot be reached, a holder with a ttl has the key, as far as this node knows, and is not told that
// it is over. No third member gets it. The owner is asked when it can be reached again, or the next one.
func TestUnreachableOwnerOfReservations(t *testing.T) {
	for name, back := range map[string]func(tt *tableTest){
		"the owner is back":   func(tt *tableTest) { tt.PeerUp(tt.now, peerNumber(1), true, &tt.out) },
		"there is another":    func(tt *tableTest) { tt.owner(2, 2) },
		"one that takes none": func(tt *tableTest) { tt.PeerUp(tt.now, peerNumber(1), false, &tt.out); tt.owner(2, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, false)
			held, waits, live := 1, 2, 3
			tt.reserve(held, event.Call{TTL: event.TTLLeast})
			tt.reserve(waits, event.Call{TTL: event.TTLLeast})
			tt.reserve(live, event.Call{})
			tt.wantTake(1, held, waits, live)
			tt.say(1, event.Granted, 1, held, live)
			tt.PeerDown(tt.now, peerNumber(1), &tt.out)
			tt.after(tt.config.UnreachableHoldMax)
			if got := tt.codes(); len(got) != 2 || got[waits] != event.CodeUnreachable || got[live] != event.CodeUnreachable {
				t.Fatalf("settled %v, want those without a promise", got)
			}
			comesBack := 4
			tt.reserve(comesBack, event.Call{TTL: event.TTLLeast, Resume: true})
			tt.wantTake(2)
			tt.after(time.Minute)
			if got := tt.codes(); len(got) > 0 {
				t.Fatalf("settled %v", got)
			}
			back(tt)
			owner := int(tt.owners.of(1).peer[15])
			tt.wantTake(owner, held, comesBack)
		})
	}
}
