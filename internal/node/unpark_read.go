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

// choice holds the letters of some keys that were read ahead.
type choice map[event.Key]*chosen

// chosen holds the letters of one key: those with the least fences.
type chosen struct {
	of      *comeback
	letters []*source.ParkedLetter // ascending by fence
	bytes   int
	cut     bool                         // there are further letters
	still   map[event.MessageID]struct{} // letters that were handled before
}

func newChoice(keys []*comeback) choice {
	c := make(choice, len(keys))
	for _, of := range keys {
		c[of.park.Key] = &chosen{of: of, still: map[event.MessageID]struct{}{}}
	}
	return c
}

// of returns the letters of the key of a letter, nil if they are not wanted, and gives the letter its key.
func (c choice) of(extractor key.Extractor, l *source.ParkedLetter) *chosen {
	k, err := extractor.Extract(&key.Message{
		MessageKey: l.Key, OrderingKey: l.OrderingKey, Properties: l.Event.Properties, Payload: l.Event.Payload, ID: l.Event.ID,
	})
	if err != nil {
		return nil
	}
	l.Event.Key, l.Event.Partition = k, ring.PartitionOf(string(k))
	return c[k]
}

// add takes a letter of a key, and drops the letters with the greatest fences if there are too many.
func (c choice) add(k *chosen, l *source.ParkedLetter) {
	at, _ := slices.BinarySearchFunc(k.letters, l, func(a, b *source.ParkedLetter) int { return a.Mark.Fence.Compare(b.Mark.Fence) })
	k.letters = slices.Insert(k.letters, at, l)
	k.bytes += l.Event.Bytes()
	keys := len(c)
	for n := len(k.letters); n > 1 && (n > unparkLettersMax/keys || k.bytes > unparkBytesMax/keys); n = len(k.letters) {
		k.bytes -= k.letters[n-1].Event.Bytes()
		k.letters, k.cut = k.letters[:n-1], true
	}
}
