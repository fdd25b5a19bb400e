package act

import (
	"fmt"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/ring"
)

// ending is the end of a skip at this member that the topic does not have yet.
type ending struct {
	event.Skipped

	at       time.Time     // by the wall clock
	appended clock.Instant // zero: not yet
}

// endsMax bounds the ends of skips that wait to be written to the topic.
const endsMax = SkipsLimit

// Ended takes the ends of skips at this member: each is logged, and written to the acts topic when that can be used. Of several ends
// of one skip, as when an event is delivered again, the topic gets the first. It does not block, and keeps no slice.
func (k *Keeper) Ended(ends []event.Skipped) {
	for _, e := range ends {
		end := endOf(e)
		if log, due := k.lines.Line(); due {
			log.Info("event skipped", "act", ID(e.Act).String(), "end", end.String(), "event", e.Event.String(), "key_hash", fmt.Sprintf("%016x", ring.HashOf(string(e.Key))))
		}
		k.mu.Lock()
		_, waits := k.ends[e.Act]
		if full := len(k.ends) >= endsMax; !waits && !full {
			k.ends[e.Act] = &ending{Skipped: e, at: k.wall().Truncate(time.Millisecond)}
		} else if full {
			k.metrics.endsLost.Inc()
		}
		k.mu.Unlock()
	}
	signal.Set(k.ended)
}

func endOf(e event.Skipped) End {
	if e.Done {
		return EndDone
	}
	return EndDeadLetter
}

// tellEnds appends the ends of skips that the topic does not have, each again when it was not read back for long.
func (v *visit) tellEnds(transport controllog.Transport) {
	var due []*ending
	v.mu.Lock()
	for act, e := range v.ends {
		switch {
		case !v.fold.lacksEnd(e.Key, act):
			delete(v.ends, act)
		case e.appended == 0 || clock.Now().Sub(e.appended) > answerMax:
			e.appended = clock.Now()
			due = append(due, e)
		}
	}
	v.mu.Unlock()
	for _, e := range due {
		reason := "its event goes to the dead letter topic"
		if e.Done {
			reason = "a handler that ran already had done its event"
		}
		data, err := Encode(Record{
			Kind: Skipped, ID: newID(), Key: e.Key, By: v.member, Via: v.member, Reason: reason,
			At: e.at, Until: e.at, Of: e.Act, End: endOf(e.Skipped),
		})
		if err != nil {
			v.log.Error("the end of a skip is not recorded", "act", ID(e.Act).String(), "error", err)
			continue
		}
		transport.Append(data, func(err error) {
			result := "ok"
			if err != nil {
				result = "failed" // it is appended again
			}
			v.metrics.appends.WithLabelValues(result).Inc()
		})
	}
}
