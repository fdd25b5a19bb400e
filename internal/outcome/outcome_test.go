package outcome

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

var testConfig = Config{
	AttemptsMax:  4,
	CrashesMax:   3,
	BackoffMin:   time.Second,
	BackoffMax:   time.Minute,
	AfterMax:     time.Hour,
	RetryHoldMax: 30 * time.Second,
}

func TestOf(t *testing.T) {
	tests := map[string]struct {
		attempts uint32
		crashes  uint32
		result   event.Result
		want     Outcome
	}{
		"done": {
			attempts: 2,
			result:   event.Result{Kind: event.ResultDone},
			want:     Outcome{Kind: Ack, Attempts: 2},
		},
		"reject": {
			result: event.Result{Kind: event.ResultReject, Reason: "no such order"},
			want:   Outcome{Kind: DeadLetter, Attempts: 1, Reason: "no such order"},
		},
		"not started is nobody's failure": {
			attempts: 3,
			result:   event.Result{Kind: event.ResultNotStarted, After: time.Hour, Reason: "ignored"},
			want:     Outcome{Kind: Retry, Hold: true, Attempts: 3},
		},
		"cancelled is nobody's failure": {
			attempts: 3,
			result:   event.Result{Kind: event.ResultCancelled},
			want:     Outcome{Kind: Retry, Hold: true, Attempts: 3},
		},
		"lost is nobody's failure": {
			attempts: 3,
			result:   event.Result{Kind: event.ResultLost},
			want:     Outcome{Kind: Retry, Hold: true, Attempts: 3},
		},
		"the application's own short delay is held, exactly": {
			result: event.Result{Kind: event.ResultRetry, After: 30 * time.Second, Reason: "busy"},
			want:   Outcome{Kind: Retry, Delay: 30 * time.Second, Hold: true, Attempts: 1, Reason: "busy"},
		},
		"the application's own long delay goes by way of the retry topic": {
			result: event.Result{Kind: event.ResultRetry, After: 30*time.Second + 1, Reason: "busy"},
			want:   Outcome{Kind: Retry, Delay: 30*time.Second + 1, Attempts: 1, Reason: "busy"},
		},
		"the application's own delay has a limit": {
			result: event.Result{Kind: event.ResultRetry, After: math.MaxInt64},
			want:   Outcome{Kind: Retry, Delay: time.Hour, Attempts: 1},
		},
		"the last attempt is a dead letter, whatever delay was asked for": {
			attempts: 3,
			result:   event.Result{Kind: event.ResultRetry, After: time.Second, Reason: "busy"},
			want:     Outcome{Kind: DeadLetter, Attempts: 4, Reason: "failed 4 times: busy"},
		},
		"beyond the last attempt, after the limit was lowered": {
			attempts: 9,
			result:   event.Result{Kind: event.ResultRetry, Reason: "busy"},
			want:     Outcome{Kind: DeadLetter, Attempts: 10, Reason: "failed 10 times: busy"},
		},
		"a crash is no failure, and the key has waited already": {
			attempts: 3, crashes: 1,
			result: event.Result{Kind: event.ResultCrashed},
			want:   Outcome{Kind: Retry, Hold: true, Attempts: 3, Crashes: 2, Reason: "its worker crashed"},
		},
		"the last crash is a dead letter": {
			attempts: 1, crashes: 2,
			result: event.Result{Kind: event.ResultCrashed},
			want:   Outcome{Kind: DeadLetter, Attempts: 1, Crashes: 3, Reason: "a worker crashed 3 times while it had the event"},
		},
		"what was put off waits, and is no failure": {
			attempts: 3, crashes: 1,
			result: event.Result{Kind: event.ResultPutOff, After: time.Millisecond},
			want:   Outcome{Kind: Retry, Delay: time.Millisecond, Hold: true, Attempts: 3, Crashes: 1},
		},
		"what was put off waits for half a minute at most": {
			result: event.Result{Kind: event.ResultPutOff, After: time.Hour, To: 7},
			want:   Outcome{Kind: Retry, Delay: 30 * time.Second, Hold: true, To: 7},
		},
		"what was put off behind others waits there": {
			result: event.Result{Kind: event.ResultPutOff, After: time.Millisecond, Behind: true},
			want:   Outcome{Kind: Retry, Delay: time.Millisecond, Hold: true, Behind: true},
		},
		"an unknown kind is a failure": {
			attempts: 3,
			result:   event.Result{Kind: 99, Reason: "?"},
			want:     Outcome{Kind: DeadLetter, Attempts: 4, Reason: "failed 4 times: ?"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Of(testConfig, event.MessageID{}, tt.attempts, tt.crashes, tt.result)
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// What is put off waits, also where no failure may wait at the owner: otherwise it would be taken and put off again without a pause.
func TestPutOffWaitsWithoutAHold(t *testing.T) {
	c := testConfig
	c.RetryHoldMax = 0
	if got := Of(c, event.MessageID{}, 0, 0, event.Result{Kind: event.ResultPutOff, After: time.Second}); got.Delay != time.Second || !got.Hold {
		t.Errorf("got %+v, want it held for a second", got)
	}
}

// delayAfter returns the delay after a failure of an application that asks for none.
func delayAfter(c Config, id event.MessageID, attempts uint32) time.Duration {
	c.AttemptsMax = math.MaxUint32
	return Of(c, id, attempts-1, 0, event.Result{Kind: event.ResultRetry}).Delay
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	c := DefaultConfig()
	full := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600}
	for i, want := range full {
		want *= time.Second
		got := delayAfter(c, event.MessageID{Ledger: 7, Entry: 3}, uint32(i+1))
		if got > want || got < want/2 {
			t.Errorf("after failure %d: %v, want within [%v, %v]", i+1, got, want/2, want)
		}
	}
}

func TestBackoffSurvivesTheLongestDuration(t *testing.T) {
	c := Config{BackoffMin: time.Second, BackoffMax: math.MaxInt64}
	for attempts := range uint32(200) {
		if got := delayAfter(c, event.MessageID{}, attempts+1); got < c.BackoffMin/2 {
			t.Fatalf("after failure %d: %v", attempts+1, got)
		}
	}
}

// Events that fail together must not come back together.
func TestJitterSpreads(t *testing.T) {
	const events, buckets = 10_000, 10
	var count [buckets]int
	for entry := range int64(events) {
		id := event.MessageID{Ledger: 12, Entry: entry, Batch: -1, TopicPartition: -1}
		share := float64(testConfig.BackoffMin-delayAfter(testConfig, id, 1)) / float64(testConfig.BackoffMin/2)
		count[min(buckets-1, int(share*buckets))]++
	}
	for i, n := range count {
		if n < events/buckets*8/10 || n > events/buckets*12/10 {
			t.Errorf("bucket %d holds %d of %d delays, want about a tenth", i, n, events)
		}
	}
}

func TestOfKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := &event.Event{
			ID:       event.MessageID{Ledger: rapid.Int64().Draw(t, "ledger"), Batch: rapid.Int32().Draw(t, "batch")},
			Attempts: rapid.OneOf(rapid.Uint32Range(0, 6), rapid.Uint32Min(math.MaxUint32-1)).Draw(t, "attempts"), // a copy may claim any
			Crashes:  rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Min(math.MaxUint32-1)).Draw(t, "crashes"),
		}
		r := event.Result{
			Kind:   event.ResultKind(rapid.Uint8Range(0, 9).Draw(t, "kind")),
			After:  time.Duration(rapid.Int64().Draw(t, "after")),
			Reason: string(rapid.SliceOfN(rapid.Byte(), 0, 2*ReasonMax).Draw(t, "reason")),
		}
		got := Of(testConfig, e.ID, e.Attempts, e.Crashes, r)
		if again := Of(testConfig, e.ID, e.Attempts, e.Crashes, r); again != got {
			t.Fatalf("%+v, then %+v", got, again)
		}
		if got.Attempts < e.Attempts || got.Crashes < e.Crashes {
			t.Fatalf("%d failures and %d crashes after %d and %d", got.Attempts, got.Crashes, e.Attempts, e.Crashes)
		}
		if IsAck(r.Kind) != (got.Kind == Ack) {
			t.Fatalf("IsAck(%v) = %v, and the outcome is %+v", r.Kind, IsAck(r.Kind), got)
		}
		if len(got.Reason) > ReasonMax || !utf8.ValidString(got.Reason) {
			t.Fatalf("reason of %d bytes, valid UTF-8: %v", len(got.Reason), utf8.ValidString(got.Reason))
		}
		if got.Delay < 0 || got.Delay > max(testConfig.AfterMax, testConfig.BackoffMax) {
			t.Fatalf("delay %v", got.Delay)
		}
		if got.Kind == Retry && got.Hold != (got.Delay <= testConfig.RetryHoldMax) {
			t.Fatalf("delay %v, hold %v", got.Delay, got.Hold)
		}
		if got.Kind == Retry && got.Attempts >= testConfig.AttemptsMax && (r.Kind == event.ResultRetry || got.Attempts > e.Attempts) {
			t.Fatalf("failure %d of at most %d is tried again", got.Attempts, testConfig.AttemptsMax)
		}
	})
}

func TestClipKeepsWholeRunes(t *testing.T) {
	got := clip(strings.Repeat("a", ReasonMax-1) + "é")
	if want := strings.Repeat("a", ReasonMax-1); got != want {
		t.Errorf("clip left %q at the end", got[ReasonMax-4:])
	}
}
