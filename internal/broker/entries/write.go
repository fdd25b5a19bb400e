package entries

import (
	"io"
	"sync"

	"github.com/ringfence/router/internal/base/signal"
)

// pendingBytesMax bounds the unwritten bytes of one connection. Commands are short, so a broker that leaves this many unread hangs.
const pendingBytesMax = 16 << 20

// outbox holds the bytes that wait to be written to a connection.
type outbox struct {
	wake chan struct{}

	mu      sync.Mutex // guards the fields below
	pending []byte
	spare   []byte // array of the last write, for reuse
	written uint64 // bytes, for the keep-alive
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// add lets build append to the pending bytes, and reports whether there was room. It never waits for the broker.
func (o *outbox) add(build func(dst []byte) []byte) bool {
	o.mu.Lock()
	if len(o.pending) > pendingBytesMax {
		o.mu.Unlock()
		return false
	}
	o.pending = build(o.pending)
	o.mu.Unlock()
	signal.Set(o.wake)
	return true
}

// run writes pending bytes until a write fails or done is closed.
func (o *outbox) run(to io.Writer, done <-chan struct{}) error {
	for {
		select {
		case <-o.wake:
		case <-done:
			return nil
		}
		o.mu.Lock()
		bytes := o.pending
		o.pending, o.spare = o.spare[:0], nil
		o.mu.Unlock()
		if len(bytes) == 0 {
			continue
		}
		n, err := to.Write(bytes)
		o.mu.Lock()
		o.written += uint64(n)
		if cap(bytes) <= spareBytesMax {
			o.spare = bytes
		}
		o.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// spareBytesMax bounds the array that is kept for reuse.
const spareBytesMax = 64 << 10

// progress returns the number of bytes written, and whether bytes are waiting.
func (o *outbox) progress() (written uint64, waiting bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written, len(o.pending) > 0
}
