package forward

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
)

// The caller sleeps until its Ping is due, counted from the direction that has been quiet for
// longer; the called side sleeps until it gets a Ping.
func TestStreamsSleepUntilTheirBeat(t *testing.T) {
	config := DefaultConfig()
	begin := clock.Instant(time.Hour)
	now := begin
	for _, as := range []role{callerEnd, calleeEnd} {
		l := newLink(config, func() clock.Instant { return now }, nil, func(error) {}, as)
		defer l.silence.Stop()
		p := sender{link: l, sentAt: begin}
		l.heardAt.Store(int64(begin.Add(100 * time.Millisecond)))
		now = begin.Add(100 * time.Millisecond)
		want := config.PingAfter - 100*time.Millisecond
		if as == calleeEnd {
			want = time.Hour
		}
		if got := p.untilDue(); got != want {
			t.Errorf("calling end %v: sleeps for %v, want %v", as, got, want)
		}
		p.heldUntil = now.Add(time.Millisecond)
		if got := p.untilDue(); got != time.Millisecond {
			t.Errorf("calling end %v: with a held receipt sleeps for %v, want 1ms", as, got)
		}
	}
}

// fakeEnd records what a sender sends.
type fakeEnd struct {
	end

	delay time.Duration
	hot   bool // a hot frame is ready

	hotReceipts, receipts, smallReceipts []uint64
}

func (e *fakeEnd) sendSmall(receipt uint64) error {
	e.smallReceipts = append(e.smallReceipts, receipt)
	return nil
}

func (e *fakeEnd) sendHot(_, receipt uint64) (bool, error) {
	ready := e.hot
	if e.hot = false; ready {
		e.hotReceipts = append(e.hotReceipts, receipt)
	}
	return ready, nil
}

func (e *fakeEnd) sendReceipt(receipt uint64) error {
	e.receipts = append(e.receipts, receipt)
	return nil
}

func (e *fakeEnd) receiptDelay(time.Duration) time.Duration { return e.delay }

func TestReceiptsWaitForHotFrames(t *testing.T) {
	const delay = time.Millisecond
	for name, c := range map[string]struct {
		delay              time.Duration
		hotAfter           time.Duration // when a hot frame becomes ready
		hot, alone, before int           // frames with the receipt, and frames after half the delay
	}{
		"none is due":         {delay: 0, hotAfter: time.Hour, alone: 1, before: 1},
		"nothing to carry it": {delay: delay, hotAfter: time.Hour, alone: 1},
		"a hot frame at once": {delay: delay, hot: 1, before: 1},
		"a hot frame later":   {delay: delay, hotAfter: delay * 3 / 4, hot: 1},
	} {
		t.Run(name, func(t *testing.T) {
			now := clock.Instant(time.Hour)
			l := newLink(DefaultConfig(), func() clock.Instant { return now }, NewMetrics(prometheus.NewRegistry()), func(error) {}, calleeEnd)
			defer l.silence.Stop()
			p, e := sender{link: l, sentAt: now}, &fakeEnd{delay: c.delay}
			l.took(1)
			for passed := time.Duration(0); passed <= 2*delay; passed += delay / 4 {
				if passed >= c.hotAfter {
					e.hot, c.hotAfter = true, time.Hour
				}
				if err := p.send(e); err != nil {
					t.Fatal(err)
				}
				if n := len(e.hotReceipts) + len(e.receipts); passed == delay/2 && n != c.before {
					t.Errorf("%d frames after %v, want %d", n, passed, c.before)
				}
				now = now.Add(delay / 4)
			}
			if len(e.hotReceipts) != c.hot || len(e.receipts) != c.alone || l.receiptOut.Load() != 1 || p.heldUntil != 0 {
				t.Errorf("%d hot frames and %d receipts, held until %v, want %d and %d, and none held", len(e.hotReceipts), len(e.receipts), p.heldUntil, c.hot, c.alone)
			}
		})
	}
}

// A frame without a number carries no new receipt: this end would not know that it was sent, and end the stream at the
// next frame of the other end, which may follow it at once.
func TestSmallFramesCarryNoNewReceipt(t *testing.T) {
	now := clock.Instant(time.Hour)
	l := newLink(DefaultConfig(), func() clock.Instant { return now }, NewMetrics(prometheus.NewRegistry()), func(error) {}, calleeEnd)
	defer l.silence.Stop()
	p, e := sender{link: l, sentAt: now}, &fakeEnd{delay: time.Second}
	var greatest uint64 // as the other end knows
	for number := uint64(1); number <= 3; number++ {
		if err := l.arrived(number); err != nil {
			t.Fatal(err)
		}
		l.took(number)
		for range 3 {
			if err := p.send(e); err != nil {
				t.Fatal(err)
			}
			for _, receipt := range append(e.smallReceipts, e.receipts...) {
				greatest = max(greatest, receipt)
			}
			if greatest > l.receiptOut.Load() {
				t.Fatalf("the receipt for frame %d was sent, and this end knows of that for %d", greatest, l.receiptOut.Load())
			}
			now = now.Add(time.Second)
		}
	}
	if len(e.smallReceipts) < 3 || greatest != 3 {
		t.Errorf("small frames with the receipts %v, others with %v", e.smallReceipts, e.receipts)
	}
}

// A peer that may have more events ready gets its receipt at once.
func TestReceiptsOfCloseFramesDoNotWait(t *testing.T) {
	in := new(inbound)
	if got := in.receiptDelay(rareAfter - 1); got != 0 {
		t.Errorf("the receipt of a frame %v after another waits for %v", rareAfter-1, got)
	}
	if got := in.receiptDelay(rareAfter); got != acceptedDelay {
		t.Errorf("the receipt of a frame %v after another waits for %v, want %v", rareAfter, got, acceptedDelay)
	}
}
