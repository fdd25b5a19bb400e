package act

import (
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/ring"
)

// ending is the end of a skip or of an unpark at this member that the topic does not have yet.
type ending struct {
	record   Record        // but for its id
	appended clock.Instant // zero: not yet
}

// endsMax bounds the ends that wait to be written to the topic.
const endsMax = SkipsLimit

// Ended takes the ends of skips at this member. Each is logged, and written to the acts topic as soon as the topic
// can be used. If a skip ends several times, because its event is delivered again, only the first end is written.
// Ended does not block, and does not keep the slice.
func (k *Keeper) Ended(ends []event.Skipped) {
	for _, e := range ends {
		end, reason := EndDeadLetter, "its event goes to the dead letter topic"
		if e.Done {
			end, reason = EndDone, "a handler that ran already had done its event"
		}
		if log, due := k.lines.Line(); due {
			log.Info("event skipped", "act", ID(e.Act).String(), "end", end.String(), "event", e.Event.String(), "key_hash", ring.HashOf(string(e.Key)).String())
		}
		k.keepEnd(Record{Kind: Skipped, Key: e.Key, Of: e.Act, End: end, Reason: reason})
	}
	signal.Set(k.ended)
}

// Unparked takes the end of an unpark at this member, which has handled that many letters of the key and knows of no
// further one. The end is logged and written like the end of a skip. Unparked does not block. It reports false if too
// many ends wait; the caller then tries again.
func (k *Keeper) Unparked(p event.Park, letters uint64) (kept bool) {
	if !k.keepEnd(Record{Kind: Unparked, Key: p.Key, Of: p.Act, End: EndEmpty, Reason: fmt.Sprintf("no letter is left; %s has handled %d", k.member, letters)}) {
		return false
	}
	if log, due := k.lines.Line(); due {
		log.Info("key unparked", "act", ID(p.Act).String(), "letters", letters, "key_hash", ring.HashOf(string(p.Key)).String())
	}
	signal.Set(k.ended)
	return true
}

// keepEnd keeps an end until the topic has it. It reports false if there is no room.
func (k *Keeper) keepEnd(r Record) bool {
	r.By, r.Via = k.member[:min(len(k.member), byMax)], k.member // names may have 253 bytes
	r.At = k.wall().Truncate(time.Millisecond)
	r.Until = r.At
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, waits := k.ends[r.Of]; waits {
		return true
	}
	if len(k.ends) >= endsMax {
		if r.Kind == Skipped { // those of unparks come again
			k.metrics.endsLost.Inc()
		}
		return false
	}
	k.ends[r.Of] = &ending{record: r}
	return true
}

// tellEnds appends the ends of skips and unparks that the topic does not have, each again when it was not read back for long.
func (v *visit) tellEnds() {
	var due []*ending
	v.mu.Lock()
	for act, e := range v.ends {
		switch {
		case !v.fold.lacksEnd(e.record.Key, act):
			delete(v.ends, act)
		case e.appended == 0 || clock.Now().Sub(e.appended) > answerMax:
			e.appended = clock.Now()
			due = append(due, e)
		}
	}
	v.mu.Unlock()
	for _, e := range due {
		r := e.record
		r.ID = newID()
		data, err := Encode(r)
		if err != nil {
			v.log.Error("the end of an act could not be recorded", "act", r.Of.String(), "error", err)
			continue
		}
		v.appendOnly(data)
	}
}
