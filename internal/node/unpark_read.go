package node

import (
	"slices"
	"sync"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/ring"
)

// parkingReading is a [source.ParkingReading].
type parkingReading interface {
	Ack(l *source.ParkedLetter) error
	Close()
}

// reading is a reading of the parking topic that several goroutines use.
type reading struct {
	parkingReading

	mu      sync.Mutex
	closed  bool
	removed int   // letters
	failed  error // of the newest ack that failed, nil if none did
}

// ack reports whether the letter is removed.
func (r *reading) ack(l *source.ParkedLetter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	if err := r.Ack(l); err != nil {
		r.failed = err
		return false
	}
	r.removed++
	return true
}

// outcome returns the number of removed letters, and the error that kept others from being removed.
func (r *reading) outcome() (removed int, failed error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removed, r.failed
}

func (r *reading) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.Close()
}

// choice holds the letters of some keys that were read ahead: for each key those with the least fences.
type choice struct {
	byKey   map[event.Key]*comeback
	letters map[*comeback][]*source.ParkedLetter // ascending by fence
	bytes   map[*comeback]int
	cut     map[*comeback]bool // there are further letters
}

func newChoice(keys []*comeback) *choice {
	c := &choice{
		byKey: map[event.Key]*comeback{}, letters: map[*comeback][]*source.ParkedLetter{}, bytes: map[*comeback]int{}, cut: map[*comeback]bool{},
	}
	for _, one := range keys {
		c.byKey[one.park.Key] = one
	}
	return c
}

// of returns the unpark that a letter belongs to, nil if there is none, and gives the letter its key.
func (c *choice) of(extractor key.Extractor, l *source.ParkedLetter) *comeback {
	k, err := extractor.Extract(&key.Message{
		MessageKey: l.Key, OrderingKey: l.OrderingKey, Properties: l.Event.Properties, Payload: l.Event.Payload, ID: l.Event.ID,
	})
	if err != nil {
		return nil
	}
	l.Event.Key, l.Event.Partition = k, ring.PartitionOf(string(k))
	return c.byKey[k]
}

// add takes a letter, and drops the letters with the greatest fences if there are too many.
func (c *choice) add(of *comeback, l *source.ParkedLetter) {
	at, _ := slices.BinarySearchFunc(c.letters[of], l, func(a, b *source.ParkedLetter) int { return a.Mark.Fence.Compare(b.Mark.Fence) })
	c.letters[of] = slices.Insert(c.letters[of], at, l)
	c.bytes[of] += l.Event.Bytes()
	keys := len(c.byKey)
	for n := len(c.letters[of]); n > 1 && (n > unparkLettersMax/keys || c.bytes[of] > unparkBytesMax/keys); n = len(c.letters[of]) {
		c.bytes[of] -= c.letters[of][n-1].Event.Bytes()
		c.letters[of], c.cut[of] = c.letters[of][:n-1], true
	}
}
