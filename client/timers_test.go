package client

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// TestTimersAreChecked: what a handler may not set fails its event, and the first that is wrong says why.
func TestTimersAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after   time.Duration
		name    string
		payload int
		want    string
	}{
		"the longest":        {event.SentAfterMax, strings.Repeat("n", event.SentNameMax), event.SentPayloadMax, ""},
		"a past":             {-time.Hour, "n", 0, ""},
		"too late":           {event.SentAfterMax + 1, "n", 0, "want at most"},
		"a long name":        {0, strings.Repeat("n", event.SentNameMax+1), 0, "printable"},
		"an unprintable one": {0, "a\nb", 0, "printable"},
		"a large payload":    {0, "n", event.SentPayloadMax + 1, "a payload of"},
	} {
		e := &Event{Key: "k"}
		e.After(c.after, c.name, make([]byte, c.payload))
		switch err := e.run.timers.err; {
		case c.want == "" && (err != nil || len(e.run.timers.set) != 1 || e.run.timers.set[0].after != max(0, c.after)):
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(e.run.timers.set) != 0):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	e := &Event{Key: "k"}
	for n := range TimersMax + 2 {
		e.After(0, fmt.Sprintf("n-%d", n), nil)
	}
	if err := e.run.timers.err; err == nil || !strings.Contains(err.Error(), "more than 100 timers") || len(e.run.timers.set) != TimersMax {
		t.Errorf("one too many: %v", err)
	}
}

// TestTimerIDs: the id of a timer is that of its event, of a call as well, and its number.
func TestTimerIDs(t *testing.T) {
	t.Parallel()
	call := event.CallMessageID("k", "order-7", 0)
	for id, want := range map[MessageID]string{
		{Ledger: 7, Entry: 3, Batch: -1, TopicPartition: 2}:                     "after/7:3:2:-1/5",
		{Ledger: call.Ledger, Entry: call.Entry, Batch: -1, TopicPartition: -1}: fmt.Sprintf("after/%d:%d:-1:-1/5", call.Ledger, call.Entry),
	} {
		if got := timerID(id, 5); got != want {
			t.Errorf("%v: %q, want %q", id, got, want)
		}
	}
}
