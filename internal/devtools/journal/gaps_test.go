package journal

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

func TestGapsCountOnlyWhileAnEventWaits(t *testing.T) {
	sent := map[string]clock.Instant{"1": ms(0), "2": ms(5), "3": ms(90), "4": ms(92), "5": ms(20), "6": ms(120)}
	sentAt := func(event string) (clock.Instant, bool) { at, ok := sent[event]; return at, ok }
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	a.handle(1, 10, "1", "before", 0)
	a.handle(10, 12, "2", "before", 0) // all before since: not counted
	a.handle(15, 16, "5", "twice", 0)
	a.start(40, "3", "cut", 0)              // until the kill at 50
	b.handle(95, 96, "4", "idle", 0)        // waited 3 ms from its publication, however long the key was idle
	b.handle(100, 101, "5", "twice", 0)     // over before: no event waited
	b.handle(110, 112, "3", "cut", 0)       // waited from the publication, 90, which is after the kill
	h := b.start(121, "6", "overlapped", 0) // 1 ms
	b.handle(122, 130, "7", "overlapped", 0)
	b.end(140, h, Done)
	files := []File{a.killedAt(50), b.file()}

	got, err := MeasureGaps(files, ms(50), sentAt)
	if err != nil {
		t.Fatal(err)
	}
	if got.Count != 4 || got.Max != 20*time.Millisecond {
		t.Errorf("gaps = %+v, want 4 keys, the longest 20ms", got)
	}
	delete(sent, "3")
	if got, err = MeasureGaps(files, ms(50), sentAt); err != nil || got.Max != 60*time.Millisecond {
		t.Errorf("gaps = %+v, %v, want 60ms from the kill to the next handling of the key it cut", got, err)
	}
}
