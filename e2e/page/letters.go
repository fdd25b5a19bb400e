package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/deadletter"
	"github.com/ringfence/router/ring"
)

// letters are the dead letters of the group, the newest first.
type letters struct {
	mu  sync.Mutex
	all []*deadletter.AskedLetter
}

// hostilePayload is a payload that a producer may have sent, as a router makes it printable.
const hostilePayload = `<script>document.title='broken'</script>\x1b[2J` + "\n" + `{"total": 12}`

// refusedKey is the key of letters of which the newest is too large for its topic.
const refusedKey = "user-00819"

// refuse makes an answer that of a replay which has sent all letters but one.
func refuse(a *deadletter.Answer, id string) {
	const topic = "persistent://public/default/orders"
	c := &a.Acted.Counts
	c.Sent--
	c.Obstacles, c.Refused = map[string]int{deadletter.ObstacleRefused: 1}, []string{id + " of 70000 bytes: " + topic + " has not taken it"}
	a.Acted.Says = c.Words(false)
	a.Error, a.Status = deadletter.ErrNotSent.Error()+": "+topic+" has not taken one of 70000 bytes", http.StatusBadGateway
}

func newLetters(now time.Time) *letters {
	s := &letters{}
	for i := range 40 {
		l := &deadletter.AskedLetter{Age: float64(90 + 400*i)}
		key := fmt.Sprintf("user-%05d", 815+i%7)
		l.ID, l.Key, l.Hash, l.Published = fmt.Sprintf("9:%d:-1:-1", 400-i), key, ring.HashOf(key).String(), now.Add(-time.Duration(l.Age)*time.Second)
		l.Reason, l.Attempts, l.Topic, l.Owner = "failed 10 times", 10, "persistent://public/default/orders", "orders-2"
		l.Original, l.OriginalAt = fmt.Sprintf("7:%d:-1:-1", 3000-i), l.Published.Add(-4*time.Minute)
		l.FirstError, l.LastError, l.Bytes = "no such user: 815", "context deadline exceeded", 812
		switch {
		case i%5 == 3:
			l.Reason = "rejected: the total does not match"
		case i == 1:
			l.Key, l.Hash, l.Reason, l.Topic = hostileKeys[0], ring.HashOf(hostileKeys[0]).String(), `<b onclick="x">failed</b> \x1b[31m\u{202e}`, strings.Repeat("a-long-name-", 16)
		case i == 2:
			l.Key, l.Hash, l.Broken, l.Reason, l.Obstacle = "", "", "checksum", "the entry cannot be read", deadletter.ObstacleBroken
		}
		s.all = append(s.all, l)
	}
	return s
}

// ask answers as the process does that reads the letters of a broker.
func (s *letters) ask(_ context.Context, q deadletter.Question) (a deadletter.Answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	selected := func(l *deadletter.AskedLetter) bool {
		return (q.ID == "" || l.ID == q.ID) && (!q.ByKey || l.Key == string(q.Key))
	}
	var some []*deadletter.AskedLetter
	for _, l := range s.all {
		if selected(l) {
			copied := *l
			some = append(some, &copied)
		}
	}
	switch q.What {
	case deadletter.AskList:
		a.List = list(some, len(s.all), q)
	case deadletter.AskShow:
		if len(some) == 0 {
			return deadletter.Answer{Error: "no such letter waits", Status: http.StatusNotFound}, nil
		}
		a.Letter = some[0]
		a.Letter.Properties = map[string]string{"ringfence-attempts": "10", "content-type": "application/json", "x-note": `<img src=x onerror="document.title='broken'">`}
		if text := hostilePayload; q.Payload {
			a.Letter.Payload, a.Letter.PayloadIs = &text, "text"
		}
	case deadletter.AskEvents: // three in an hour
		c := deadletter.Counts{Read: 1200, Selected: 3 * int(q.Until.Sub(q.Since).Hours())}
		c.Sent = c.Selected
		a.Acted = &deadletter.Acted{DryRun: !q.Yes, Counts: c, Says: c.Words(!q.Yes)}
		if q.Yes {
			a.Acted.Act = "f00dfeed00000002"
		}
	default:
		a.Acted = &deadletter.Acted{DryRun: !q.Yes, Counts: deadletter.Counts{Read: len(s.all), Selected: len(some), Sent: len(some)}}
		if q.What == deadletter.AskPurge {
			a.Acted.Counts.Sent, a.Acted.Counts.Purged = 0, len(some)
		}
		a.Acted.Says = a.Acted.Counts.Words(!q.Yes)
		if q.Yes {
			a.Acted.Act = "f00dfeed00000001"
			if string(q.Key) == refusedKey {
				refuse(&a, some[0].ID)
				selected = func(l *deadletter.AskedLetter) bool { return l.Key == refusedKey && l.ID != some[0].ID }
			}
			s.all = slices.DeleteFunc(s.all, selected)
		}
	}
	return a, nil
}

func list(some []*deadletter.AskedLetter, read int, q deadletter.Question) *deadletter.AskedList {
	l := &deadletter.AskedList{Whole: true, Read: read, Selected: len(some), Letters: append([]*deadletter.AskedLetter{}, some...), Reasons: []deadletter.ReasonCount{}}
	counts := map[string]int{}
	for _, one := range some {
		counts[one.Reason]++
	}
	for reason, n := range counts {
		l.Reasons = append(l.Reasons, deadletter.ReasonCount{Reason: reason, Letters: n})
	}
	slices.SortFunc(l.Reasons, func(a, b deadletter.ReasonCount) int {
		return cmp.Or(b.Letters-a.Letters, strings.Compare(a.Reason, b.Reason))
	})
	l.Note = fmt.Sprintf("%d dead letters wait.", l.Selected)
	if q.ByKey {
		l.Note = fmt.Sprintf("%d dead letters wait, selected from %d that were read.", l.Selected, l.Read)
	}
	return l
}
