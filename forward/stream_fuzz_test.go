package forward

import (
	"crypto/ed25519"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// arrivals counts the frames that an inbound stream passes on.
type arrivals struct{ frames int }

func (a *arrivals) Accept(Arrival)                         { a.frames++ }
func (a *arrivals) LearnDone(Peer, bool, []event.Finished) {}
func (a *arrivals) KeyOf(Peer) ed25519.PublicKey           { return nil }
func (a *arrivals) Gone(StreamID)                          {}
func (a *arrivals) CancelFor(StreamID, []event.Handle)     {}
func (a *arrivals) RenewFor(StreamID, []event.Renewal)     {}

// stillMetrics is shared: registering metrics takes longer than a run of the fuzzer.
var stillMetrics = NewMetrics(prometheus.NewRegistry())

// still is an inbound stream without goroutines: the test is both ends of it.
func still(t *testing.T) (*inbound, *arrivals) {
	taken := &arrivals{}
	cfg := DefaultConfig()
	cfg.DeadAfter, cfg.HelloTimeout = time.Hour, time.Hour
	now := func() clock.Instant { return clock.Instant(time.Hour) }
	s := NewServer(cfg, func() Identity { return Identity{} }, nil, taken, now, stillMetrics, slog.New(slog.DiscardHandler))
	in := &inbound{server: s, link: newLink(cfg, now, s.metrics, func(error) {}, calleeEnd)}
	t.Cleanup(func() { in.link.silence.Stop() })
	return in, taken
}

// A peer that sends frames without waiting for their receipts gets an error, and its further frames
// are dropped.
func TestFlood(t *testing.T) {
	in, taken := still(t)
	frame := func(number uint64) *eventsFrame {
		return &eventsFrame{number: number, events: event.RefsTo(&event.Event{Handle: 1})}
	}
	if err := in.handle(frame(1)); err != nil {
		t.Fatal(err)
	}
	err := in.handle(frame(2))
	const want = "forward: malformed frame: frame 2 came before the receipt for frame 1"
	if !errors.Is(err, errFrame) || err.Error() != want || taken.frames != 1 {
		t.Errorf("error = %v, want %s; %d frames were taken in, want 1", err, want, taken.frames)
	}
	in.link.receiptOut.Store(1)
	if err := in.handle(frame(2)); err != nil || taken.frames != 2 {
		t.Errorf("after the receipt: %v", err)
	}
}

// FuzzPeerStream: whatever frames a peer sends and whenever it gets its receipts, frames
// are taken in one by one, each once and after the receipt for the one before; all else
// ends the stream with a reason.
func FuzzPeerStream(f *testing.F) {
	f.Add([]byte{1, 1, 2, 0, 1, 2, 2, 0, 3, 0, 4, 9, 1, 3})
	f.Add([]byte{1, 1, 1, 2})
	f.Add([]byte{1, 1, 1, 1})
	f.Add([]byte{3, 200})
	f.Add([]byte{0, 4, 0x12, 2, 0x08, 1, 2, 0, 1, 1})
	f.Fuzz(func(t *testing.T, program []byte) {
		in, taken := still(t)
		var newest, receipted uint64
		for i := 0; i+1 < len(program) && i < 400; i += 2 {
			what, arg := program[i]%5, uint64(program[i+1])
			frame := eventsFrame{}
			switch what {
			case 0: // any bytes
				raw := program[i+2 : min(len(program), i+2+int(arg))]
				i += len(raw)
				if err := frame.parse(raw, in.server.config.FrameMax, atZero); err != nil {
					if !errors.Is(err, errFrame) {
						t.Fatalf("bytes that are no frame: %v", err)
					}
					return
				}
			case 1:
				frame.number, frame.events = arg, event.RefsTo(&event.Event{Handle: 1})
			case 2: // the sending goroutine has its turn
				receipted = in.link.takenIn.Load()
				in.link.receiptOut.Store(receipted)
				continue
			case 3:
				frame.receipt = arg
			case 4:
				in.link.ping(arg)
				continue
			}
			before := taken.frames
			err := in.link.heard(frame.receipt)
			if err == nil {
				err = in.handle(&frame)
			}
			good := frame.number == 0 || frame.number == newest+1 && newest == receipted
			switch {
			case err != nil && !errors.Is(err, errFrame):
				t.Fatalf("a bad frame: %v", err)
			case err != nil && taken.frames != before:
				t.Fatalf("a frame was taken in and refused: %v", err)
			case err == nil && !good:
				t.Fatalf("frame %d was let through, the newest was %d and the receipts are at %d", frame.number, newest, receipted)
			case err != nil && good && frame.number > 0 && frame.receipt == 0:
				t.Fatalf("frame %d was refused: %v", frame.number, err)
			case err != nil:
				return
			}
			if frame.number > 0 {
				newest = frame.number
			}
			if taken.frames != int(newest) || in.link.takenIn.Load() != newest {
				t.Fatalf("%d frames were taken in, the newest is %d", taken.frames, newest)
			}
		}
	})
}
