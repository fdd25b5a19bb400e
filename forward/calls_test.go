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

// TestUnreachableOwnerOfReservations: while the owner cannot be reached, a holder with a ttl has the key, as far as
// this node knows, and is not told that it is over. No third member gets it. The owner is asked when it can be reached
// again, or the next one.
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

// TestFormerOwnerOfAReservation: what an owner says late of a reservation that was taken over from it, of its turn or
// its wait there, does not end the turn that the next owner has granted.
func TestFormerOwnerOfAReservation(t *testing.T) {
	cut, late := event.Unknown(0, "its handler was cancelled, or lost its key"), event.NotRun(0, event.CodeTimeout, "its time was up")
	for name, c := range map[string]struct {
		granted, released bool
		says              event.Verdict
	}{
		"its turn ends":               {granted: true, says: cut},
		"its turn ends, and released": {granted: true, released: true, says: cut},
		"its wait ends":               {says: late},
	} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, false)
			tt.reserve(1, event.Call{TTL: event.TTLLeast})
			tt.wantTake(1, 1)
			if c.granted {
				tt.say(1, event.Granted, 1, 1)
			}
			tt.owner(2, 2)
			tt.TakenOver(peerNumber(1), func(ring.Partition) bool { return true }, &tt.out)
			tt.wantTake(2, 1)
			if c.released {
				tt.giveUp(1)
			}
			tt.say(2, event.Granted, 2, 1)
			c.says.Handle = tt.handle(1)
			tt.Settle(tt.now, peerNumber(1), []event.Verdict{c.says}, &tt.out)
			tt.wantOver(1, "")
			if tt.Settle(tt.now, peerNumber(2), []event.Verdict{c.says}, &tt.out); len(tt.out.Verdicts) != 1 || tt.n != 0 {
				t.Errorf("the present owner ends it: settled with %+v, %d are held", tt.out.Verdicts, tt.n)
			}
		})
	}
}
