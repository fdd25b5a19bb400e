package report

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/ringfence/router/internal/base/event"
	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
	"github.com/ringfence/router/ring"
)

// HistoryStepsMax bounds the steps of a history, of each member's and of the group's: the newest.
const HistoryStepsMax = 1000

// The kinds of steps, in the order in which those of one instant are shown.
const (
	StepReceived  = "received"  // its consumer node got the event from the broker
	StepMoved     = "moved"     // the partition got another owner; with an event: its owner sent it on, since the partition has moved
	StepQueued    = "queued"    // the owner's mailbox took the event
	StepDelivered = "delivered" // a worker got it
	StepStarted   = "started"   // its handler began, as the worker says
	StepAnswered  = "answered"  // the worker gave its result, or none in time
	StepRetried   = "retried"   // it failed, and stays in its mailbox for the next attempt
	StepSettled   = "settled"   // its consumer node ended its journey
)

var stepOrder = []string{StepReceived, StepMoved, StepQueued, StepDelivered, StepStarted, StepAnswered, StepRetried, StepSettled}

// Step is one thing that happened to an event of a key, or to its partition.
type Step struct {
	At      time.Time `json:"at"` // by the clock of the member's machine
	Member  string    `json:"member"`
	Kind    string    `json:"step"`
	Event   string    `json:"event,omitempty"`        // message id; none: the partition moved
	Attempt int       `json:"attempt,omitempty"`      // from 1
	Fence   string    `json:"fence,omitempty"`        // of the delivery
	Result  string    `json:"result,omitempty"`       // answered: the worker's answer; settled: acked, retry topic, dead letter topic, parking topic, spilled, or returned to the broker
	Seconds float64   `json:"seconds,omitempty"`      // answered: since it was delivered; settled: since it was received
	From    string    `json:"from,omitempty"`         // moved: the owner before
	To      string    `json:"to,omitempty"`           // moved: the owner; received: the owner at that moment
	Token   int64     `json:"token,string,omitempty"` // moved: of the new tenure
}

// order is the place of a step among those of one instant.
func (s *Step) order() int {
	if s.Kind == StepMoved && s.Event != "" { // after the answer
		return len(stepOrder)
	}
	return slices.Index(stepOrder, s.Kind)
}

// History holds the records of one key, from all members that answer.
type History struct {
	View
	Hash      string   `json:"hash"`
	Partition uint16   `json:"partition"`
	Owner     string   `json:"owner"` // by the asked member's table; "" before the first
	Token     int64    `json:"token,string"`
	Steps     []Step   `json:"steps"` // by time
	Cut       int      `json:"cut"`   // older steps that are not listed
	Reach     []Reach  `json:"reach"` // how far back each member remembers
	Silent    []string `json:"silent,omitempty"`
}

// Reach is how far back a member remembers all events. Those of keys that failed go back further.
type Reach struct {
	Member string    `json:"member"`
	Since  time.Time `json:"since"` // since the start of the member, if it has forgotten nothing
}

// HistoryAt holds the records of one key at one member.
type HistoryAt struct {
	View
	Error string    `json:"error,omitempty"` // why this member told nothing; nothing below counts then
	Since time.Time `json:"since"`
	Steps stepList  `json:"steps"`
	Cut   int       `json:"cut"`
}

// Bound sorts the steps and drops the oldest ones beyond [HistoryStepsMax].
func (h *HistoryAt) Bound() {
	slices.SortStableFunc(h.Steps, func(a, b Step) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.order(), b.order()))
	})
	if cut := len(h.Steps) - HistoryStepsMax; cut > 0 {
		h.Cut += cut
		h.Steps = h.Steps[cut:]
	}
}

// History asks all members what they remember of a key.
func (g *Group) History(ctx context.Context, key ring.KeyHash) History {
	all := History{View: g.local.Status().View, Hash: key.String(), Partition: uint16(key.Partition()), Steps: []Step{}, Reach: []Reach{}}
	if m, token := g.local.Owner(key.Partition()); m != nil {
		all.Owner, all.Token = m.Name, token
	}
	members, words := askEach(g, func(m Member) HistoryAt { return g.historyOf(ctx, m, key) }, func(word HistoryAt) View { return word.View })
	sum := HistoryAt{}
	for i := range words {
		if words[i].Error != "" {
			all.Silent = append(all.Silent, members[i].Name+": "+words[i].Error)
			continue
		}
		all.Reach = append(all.Reach, Reach{members[i].Name, words[i].Since})
		sum.Cut += words[i].Cut
		sum.Steps = append(sum.Steps, words[i].Steps...)
	}
	sum.Steps = onceMoved(sum.Steps)
	sum.Bound()
	all.Steps, all.Cut = append(all.Steps, sum.Steps...), sum.Cut
	return all
}

// Only keeps the steps of one event, and the moves of its partition; "" is every event.
func (h *History) Only(event string) {
	h.Steps = slices.DeleteFunc(h.Steps, func(s Step) bool { return event != "" && s.Event != "" && s.Event != event })
}

// onceMoved keeps the first report of each move of the partition, since every member has its own,
// and drops the moves before the first step of an event.
func onceMoved(steps []Step) []Step {
	var begin time.Time
	for _, s := range steps {
		if s.Event != "" && (begin.IsZero() || s.At.Before(begin)) {
			begin = s.At
		}
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return a.At.Compare(b.At) })
	told := map[string]bool{}
	return slices.DeleteFunc(steps, func(s Step) bool {
		if s.Event != "" {
			return false
		}
		move := s.From + " " + s.To + " " + strconv.FormatInt(s.Token, 10)
		again := told[move]
		told[move] = true
		return again || begin.IsZero() || s.At.Before(begin)
	})
}

func (g *Group) historyOf(ctx context.Context, m Member, key ring.KeyHash) HistoryAt {
	if m.Reach == ReachSelf {
		return g.local.History(ctx, key)
	}
	var word HistoryAt
	if err := g.ask(ctx, m, &reportv1.ReportRequest{Subject: reportv1.Subject_SUBJECT_HISTORY, KeyHash: uint64(key)}, &word); err != nil {
		return HistoryAt{Error: err.Error()}
	}
	if len(word.Steps) > HistoryStepsMax {
		return HistoryAt{Error: errTooLong.Error()}
	}
	return word
}

// keyOf returns the hash of the key that a query names: ?key=KEY or ?hash=HASH.
func keyOf(query url.Values) (ring.KeyHash, error) {
	if key := query.Get("key"); query.Has("key") {
		if len(key) > event.KeyMax {
			return 0, badRequest(fmt.Sprintf("the key has %d bytes, want at most %d", len(key), event.KeyMax))
		}
		return ring.HashOf(key), nil
	}
	parsed, err := ring.ParseKeyHash(query.Get("hash"))
	if err != nil {
		return 0, badRequest(err.Error())
	}
	return parsed, nil
}
