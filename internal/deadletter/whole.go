package deadletter

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/event"
)

// whole reads a topic partition in the order of its messages, each once, and misses none.
//
// The reader of Pulsar's client reconnects by itself, and drops the message that waits for its caller at that moment
// if another one is queued. So a message that is not the next one of its batch, or of the next entry of the same
// ledger, is in doubt: together with those that follow it for a while it forms a stretch, which a second reader reads
// again. The messages of both readers count. (controllog.Whole does this for the records of an endless log, by their
// positions.)
//
// A chunked message that the first reader has missed, and whose chunks lie among those of others, may escape the second reader, too, since
// that begins where the stretch does.
type whole struct {
	open    func(from Place) (pulsar.Reader, error)
	reader  pulsar.Reader
	from    Place
	end     Place            // of what is read
	within  time.Duration    // for each message
	last    pulsar.MessageID // of the newest message that next has returned, nil if there is none
	checked []pulsar.Message // the rest of the newest stretch
}

// Bounds of a stretch.
const (
	stretchFor      = 50 * time.Millisecond
	stretchMax      = 1000 // messages
	stretchBytesMax = 8 << 20
)

// next returns the next message. The error is errQuiet if none comes in time.
func (w *whole) next(ctx context.Context) (pulsar.Message, error) {
	for {
		if len(w.checked) > 0 {
			m := w.checked[0]
			w.checked = w.checked[1:]
			w.last = m.ID()
			return m, nil
		}
		m, err := receive(ctx, w.reader.Next, w.within)
		switch {
		case err != nil:
			return nil, err
		case w.last == nil || !follows(w.last, m.ID()):
			if w.checked, err = w.stretch(ctx, m); err != nil {
				return nil, err
			}
		default:
			w.last = m.ID()
			return m, nil
		}
	}
}

// stretch returns the messages from behind the last one on that begin with one in doubt, and those that had been missed before and among them.
func (w *whole) stretch(ctx context.Context, m pulsar.Message) ([]pulsar.Message, error) {
	all, err := w.ahead(ctx, m)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	upTo := all[len(all)-1].ID()
	from := w.from
	if w.last != nil {
		from = placeOf(w.last)
	}
	for _, one := range all {
		if first := firstChunk(one.ID()); first.before(from) {
			from = first
		}
	}
	second, err := w.open(from)
	if err != nil {
		return nil, err
	}
	defer second.Close()
	for {
		again, err := receive(ctx, second.Next, w.within)
		if err != nil {
			return nil, err
		}
		order := compareIDs(again.ID(), upTo)
		if order <= 0 {
			all = w.insert(all, again)
		}
		if order >= 0 {
			return all, nil
		}
	}
}

// ahead returns m and what the reader shows right after it.
func (w *whole) ahead(ctx context.Context, m pulsar.Message) (all []pulsar.Message, err error) {
	soon, stop := context.WithTimeout(ctx, stretchFor)
	defer stop()
	for bytes := 0; ; {
		all = w.insert(all, m)
		bytes += len(m.Payload())
		if len(all) == stretchMax || bytes >= stretchBytesMax || isLast(m, w.end) {
			return all, nil
		}
		m, err = receive(soon, w.reader.Next, w.within)
		switch {
		case err == nil:
		case soon.Err() != nil:
			return all, ctx.Err()
		default:
			return nil, err
		}
	}
}

// insert adds a message in its place, unless it is there or has been returned by next.
func (w *whole) insert(all []pulsar.Message, m pulsar.Message) []pulsar.Message {
	if w.last != nil && compareIDs(m.ID(), w.last) <= 0 {
		return all
	}
	at, found := slices.BinarySearchFunc(all, m.ID(), func(one pulsar.Message, id pulsar.MessageID) int { return compareIDs(one.ID(), id) })
	if found {
		return all
	}
	return slices.Insert(all, at, m)
}

// follows reports whether no message can be between two.
func follows(last, next pulsar.MessageID) bool {
	a, b := placeOf(last), placeOf(next)
	if a == b {
		return next.BatchIdx() == last.BatchIdx()+1
	}
	return b == Place{a.Ledger, a.Entry + 1} && last.BatchIdx() >= last.BatchSize()-1 && next.BatchIdx() <= 0
}

// compareIDs orders the ids of a topic partition.
func compareIDs(a, b pulsar.MessageID) int {
	return cmp.Or(event.Position(placeOf(a)).Compare(event.Position(placeOf(b))), cmp.Compare(a.BatchIdx(), b.BatchIdx()))
}
