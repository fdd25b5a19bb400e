package pipeline

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
)

// silent is the stages around a pipeline. They do nothing.
type silent struct{}

type silentHolder struct{ Holder }

func (silent) Settle([]event.Set, []event.Verdict)                     {}
func (silentHolder) Hold(...*event.Entry)                              {}
func (silentHolder) Settle(forward.Peer, []event.Set, []event.Verdict) {}

// BenchmarkCold measures a pipeline's own work on events, when other work has used the caches since
// its last turn, but not since the stage before it has produced its input: receiving a batch from the
// source, sending results of the mailboxes to three senders, settling.
func BenchmarkCold(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const batch, caches = 256, 16 << 20
	extractor, err := key.Parse("message_key", key.Reject)
	if err != nil {
		b.Fatal(err)
	}
	p := newPipeline(b, Parts{Now: clock.Now, History: history.DefaultConfig()}, Stages{Key: extractor, Holder: silentHolder{}, Peers: deaf{}, App: nobody{}})
	p.SetSource(silent{})
	random := rand.New(rand.NewPCG(1, 2))
	keys := make([]string, 10_000)
	for i := range keys {
		keys[i] = "user-" + strconv.Itoa(i)
	}
	var out mailbox.Output
	for to := range mailbox.Sender(3) {
		out.Answers = append(out.Answers, mailbox.Answer{To: to})
	}
	verdicts, serial := make([]event.Verdict, batch), uint64(0)
	others := make([]byte, caches)
	evict := func() {
		for i := 0; i < len(others); i += 64 {
			others[i]++
		}
	}
	var receive, send, settle time.Duration
	b.ReportAllocs()
	for b.Loop() {
		evict()
		e := event.NewBatch(batch, 0)
		for range batch {
			e.AddPart(event.Part{Key: keys[random.IntN(len(keys))]}, nil, "", nil)
		}
		serial++
		e.Fresh = event.AllBits(batch)
		e.SetFirst(event.NewHandle(serial, 0))
		receive += timed(b, func() { p.Received(b.Context(), []*event.Entry{e}) })
		evict()
		for i := range out.Answers {
			out.Answers[i].Verdicts = out.Answers[i].Verdicts[:0]
		}
		for i := range verdicts {
			verdicts[i] = event.Verdict{Handle: event.NewHandle(serial, i), Kind: event.Done}
			a := &out.Answers[random.IntN(len(out.Answers))]
			a.Verdicts = append(a.Verdicts, verdicts[i])
		}
		send += timed(b, func() { p.pass(&out) })
		done := []event.Set{{First: e.First, Events: e.Fresh, Entry: e}}
		settle += timed(b, func() { p.Settle(done, nil, nil) })
	}
	perEvent := func(d time.Duration, unit string) { b.ReportMetric(float64(d)/float64(b.N*batch), unit) }
	perEvent(receive, "receive-ns/event")
	perEvent(send, "send-ns/event")
	perEvent(settle, "settle-ns/event")
	perEvent(receive+send+settle, "cpu-ns/event")
}

// timed returns the CPU time of a call on this thread.
func timed(b *testing.B, call func()) time.Duration {
	b.Helper()
	now := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	before := now()
	call()
	return now() - before
}
