package forward

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// giveUp releases a reservation, and checks which owner is told.
func (tt *tableTest) giveUp(number int, told ...Cancel) {
	tt.t.Helper()
	tt.GiveUp(tt.now, tt.handle(number), &tt.out)
	tt.wantCancel(told...)
}

func (tt *tableTest) wantCancel(want ...Cancel) {
	tt.t.Helper()
	if !slices.Equal(tt.out.Cancel, want) {
		tt.t.Fatalf("the owners are told %+v, want %+v", tt.out.Cancel, want)
	}
	tt.out.Cancel = nil
}

// confirm lets a peer say that it has handled a release.
func (tt *tableTest) confirm(peer, number int) {
	tt.Confirmed(peerNumber(peer), []event.Renewal{{Handle: tt.handle(number), Number: confirmation}}, &tt.out)
}

// wantOver checks that a reservation is over with a code, or is not.
func (tt *tableTest) wantOver(number int, code string) {
	tt.t.Helper()
	if got := tt.codes(); got[number] != code || len(got) > 1 {
		tt.t.Fatalf("settled with %v, want %q for %d", got, code, number)
	}
	if held := tt.n > 0; held == (code != "") {
		tt.t.Fatalf("it is held: %t, over with %q", held, code)
	}
}

// wantReleaseAtTheNextOwner: peer 2 grants reservation 1, gets the Cancel, and its confirmation ends the release.
func (tt *tableTest) wantReleaseAtTheNextOwner() {
	tt.t.Helper()
	tt.wantTake(2, 1)
	tt.say(2, event.Granted, 2, 1)
	tt.wantCancel(Cancel{peerNumber(2), tt.handle(1), true})
	tt.confirm(2, 1)
	tt.wantOver(1, event.CodeTimeout)
}

// TestReleaseWhileTheKeyChangesItsOwner: the next owner keeps the key for its holder, and so has to hear of the
// release: when it has granted the reservation, since a Cancel before that frees nothing.
func TestReleaseWhileTheKeyChangesItsOwner(t *testing.T) {
	for name, taken := range map[string]bool{"it waits": false, "it is sent": true} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, false)
			tt.reserve(1, event.Call{TTL: event.TTLLeast})
			tt.wantTake(1, 1)
			tt.say(1, event.Granted, 1, 1)
			tt.PeerDown(tt.now, peerNumber(1), &tt.out)
			tt.owner(2, 2)
			if taken {
				tt.wantTake(2, 1)
			}
			tt.out.Reset()
			tt.giveUp(1)
			tt.wantOver(1, "")
			if !taken {
				tt.wantTake(2, 1)
			}
			tt.say(2, event.Granted, 2, 1)
			if len(tt.out.Granted) > 0 {
				t.Errorf("the holder is told %+v after its release", tt.out.Granted)
			}
			tt.wantCancel(Cancel{peerNumber(2), tt.handle(1), true})
			tt.wantOver(1, "")
			tt.confirm(1, 1)
			tt.wantOver(1, "")
			tt.confirm(2, 1)
			tt.wantOver(1, event.CodeTimeout)
		})
	}
}

// TestReleaseOnItsWayToADeadOwner: the stream of the owner breaks before it has confirmed the release.
func TestReleaseOnItsWayToADeadOwner(t *testing.T) {
	tt := newTableTest(t, false)
	tt.reserve(1, event.Call{TTL: event.TTLLeast})
	tt.wantTake(1, 1)
	tt.say(1, event.Granted, 1, 1)
	tt.giveUp(1, Cancel{peerNumber(1), tt.handle(1), true})
	tt.giveUp(1)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.wantOver(1, "")
	tt.owner(2, 2)
	tt.wantTake(2, 1)
	tt.confirm(2, 1) // nothing that was asked of it
	tt.wantOver(1, "")
	tt.say(2, event.Overloaded, 2, 1) // the key is still kept
	tt.wantOver(1, "")
	tt.after(100 * time.Millisecond)
	tt.wantReleaseAtTheNextOwner()
}

// TestReleaseAtAFormerOwner: an owner that does not know yet that it is none confirms a release, which frees nothing at the next one.
func TestReleaseAtAFormerOwner(t *testing.T) {
	for name, former := range map[string]int{"a peer": 1, "this node": 0} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, false)
			tt.owner(former, 2)
			tt.reserve(1, event.Call{TTL: event.TTLLeast})
			if former == 0 {
				tt.Settle(tt.now, Local, []event.Verdict{{Handle: tt.handle(1), Kind: event.Granted, Detail: &event.Detail{}}}, &tt.out)
			} else {
				tt.wantTake(former, 1)
				tt.say(former, event.Granted, 1, 1)
			}
			tt.owner(2, 3)
			tt.out.Reset()
			if former == 0 {
				tt.giveUp(1, Cancel{Local, tt.handle(1), true})
				tt.Confirmed(Local, []event.Renewal{{Handle: tt.handle(1), Number: confirmation}}, &tt.out)
			} else {
				tt.giveUp(1, Cancel{peerNumber(former), tt.handle(1), true})
				tt.confirm(former, 1)
			}
			tt.wantOver(1, "")
			tt.wantReleaseAtTheNextOwner()
		})
	}
}

// TestReleaseBehindAHandover: the owner has given the turn to the next one before the Cancel came, which frees nothing.
// Nobody knows of the move here, and the verdict that says so comes instead of the confirmation.
func TestReleaseBehindAHandover(t *testing.T) {
	for name, former := range map[string]int{"a peer": 1, "this node": 0} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, false)
			owner := peerNumber(former)
			if former == 0 {
				owner = Local
			}
			tt.owner(former, 2)
			tt.reserve(1, event.Call{TTL: event.TTLLeast})
			tt.Take(owner, 1, 1<<20, nil)
			say := func(kind event.VerdictKind) {
				tt.Settle(tt.now, owner, []event.Verdict{{Handle: tt.handle(1), Kind: kind, Detail: &event.Detail{}}}, &tt.out)
			}
			say(event.Granted)
			tt.out.Reset()
			tt.GiveUp(tt.now, tt.handle(1), &tt.out)
			tt.wantOver(1, "")
			say(event.NotOwner)
			tt.wantOver(1, "")
			tt.owner(2, 3)
			tt.out.Reset()
			tt.wantReleaseAtTheNextOwner()
		})
	}
}

// TestReleaseIsForgotten: no owner takes the reservation until nobody is promised the key.
func TestReleaseIsForgotten(t *testing.T) {
	for name, alone := range map[string]bool{"its holder waits": false, "its holder is gone": true} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, false)
			tt.reserve(1, event.Call{TTL: event.TTLLeast, Resume: true})
			tt.PeerDown(tt.now, peerNumber(1), &tt.out)
			tt.giveUp(1)
			if alone {
				tt.Forget(tt.handle(1))
				tt.Forget(tt.handle(1))
			}
			due := tt.now.Add(event.TTLLeast + releaseMargin)
			tt.after(due.Sub(tt.now) - 1)
			tt.wantOver(1, "")
			if next := tt.Next(); next != due {
				t.Errorf("the next tick is due at %v, want %v", next, due)
			}
			tt.after(1)
			if n := len(tt.out.Verdicts); n != 1 || tt.out.Verdicts[0].DetailOrZero().Reply.Outcome != event.CallUnknown {
				t.Errorf("settled as %+v, want one whose outcome is unknown", tt.out.Verdicts)
			}
			tt.wantOver(1, event.CodeUnreachable)
			if n := tt.Stats().Forgotten; n != 1 {
				t.Errorf("%d releases are said to be forgotten, want 1", n)
			}
			if next := tt.Next(); next != clock.Forever || len(tt.releases.all)+tt.releases.alone+tt.releases.aloneBytes > 0 {
				t.Errorf("the next tick is due at %v, and %+v are kept", next, tt.releases)
			}
		})
	}
}

// TestReleasesAloneAreBounded: of those without a holder the ones that are due first are dropped; those with a holder are bounded elsewhere.
func TestReleasesAloneAreBounded(t *testing.T) {
	for name, id := range map[string]string{"by their number": "i", "by their bytes": strings.Repeat("i", 8<<10)} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, false)
			tt.PeerDown(tt.now, peerNumber(1), &tt.out)
			const held, alone = 8, 3 * aloneMax
			for n := range held + alone {
				tt.reserveAs(n, id, event.Call{TTL: event.TTLLeast, Resume: true})
				tt.giveUp(n)
				if n >= held {
					tt.Forget(tt.handle(n))
				}
				tt.after(1)
			}
			rs := &tt.releases
			full := rs.alone == aloneMax || rs.aloneBytes+2*(len(id)+1<<10) > aloneBytesMax
			if n := tt.Stats().Forgotten; n != uint64(alone-rs.alone) {
				t.Errorf("%d releases are said to be forgotten, want %d", n, alone-rs.alone)
			}
			if len(rs.all) != held+rs.alone || rs.alone > aloneMax || rs.aloneBytes > aloneBytesMax || !full || tt.n != len(rs.all) {
				t.Errorf("%d releases are kept, %d of them alone with %d bytes", len(rs.all), rs.alone, rs.aloneBytes)
			}
			if _, kept := tt.Has(tt.handle(held + alone - 1)); !kept || rs.all[held].handle() < tt.handle(held+rs.alone) {
				t.Errorf("the newest is kept: %t; the first of them is %d", kept, rs.all[held].handle())
			}
		})
	}
}
