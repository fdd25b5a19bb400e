package pipeline

import (
	"slices"
	"testing"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
)

func addressed(n int, to ...mailbox.Sender) []mailbox.Addressed {
	verdicts := make([]mailbox.Addressed, n)
	for i := range verdicts {
		verdicts[i] = mailbox.Addressed{To: to[i%len(to)], Verdict: event.Verdict{Handle: event.Handle(i), Kind: event.Done}}
	}
	return verdicts
}

func TestPostKeepsTheOrderOfEachSender(t *testing.T) {
	var p post
	for range 2 { // the second time in the memory of the first
		p.sort(addressed(7, 5, mailbox.Local, 5, 9))
		want := map[mailbox.Sender][]event.Handle{5: {0, 2, 4, 6}, mailbox.Local: {1, 5}, 9: {3}}
		if p.used != len(want) {
			t.Errorf("%d bags, want %d", p.used, len(want))
		}
		for _, b := range p.bags[:p.used] {
			var got []event.Handle
			for _, v := range b.verdicts {
				got = append(got, v.Handle)
			}
			if !slices.Equal(got, want[b.to]) {
				t.Errorf("verdicts to %d = %v, want %v", b.to, got, want[b.to])
			}
		}
		p.reset()
	}
}

func BenchmarkPost(b *testing.B) {
	const n = 500
	verdicts := addressed(n, mailbox.Local, 3, 4)
	var p post
	b.ReportAllocs()
	for b.Loop() {
		p.sort(verdicts)
		p.reset()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/event")
}
