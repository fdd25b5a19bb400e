package forward

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// In a group of two no third member can be reached; a call to an owner that cannot be reached ends all the same after UnreachableHoldMax.
func TestCallsToAnUnreachableOwnerEndWithoutAThirdMember(t *testing.T) {
	tt := newTableTest(t, false)
	tt.PeerDown(tt.now, peerNumber(2), &tt.out)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.out.Reset()
	tt.reserve(1, event.Call{})
	tt.reserve(2, event.Call{TTL: event.TTLLeast, Resume: true})
	tt.after(tt.config.UnreachableHoldMax)
	if got := tt.codes(); len(got) != 1 || got[1] != event.CodeUnreachable {
		t.Errorf("after the hold: settled %v, want the call without a promise as unreachable", got)
	}
	tt.reserve(3, event.Call{})
	tt.after(time.Millisecond)
	if got := tt.codes(); len(got) != 1 || got[3] != event.CodeUnreachable {
		t.Errorf("later: settled %v, want the new call at once", got)
	}
	if next := tt.Next(); !next.After(tt.now) {
		t.Errorf("Next is %v, now is %v: it would spin", next, tt.now)
	}
	tt.PeerUp(tt.now, peerNumber(1), true, &tt.out)
	tt.wantTake(1, 2)
}
