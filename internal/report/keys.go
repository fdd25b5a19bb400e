package report

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
)

// The lengths of a list of keys.
const (
	KeysLimit    = 50   // unless the question says another one
	KeysLimitMax = 1000 // of each member's list, and of the group's

	// KeysBytesMax bounds the bytes of all keys in the JSON of a member's list: the rest of it is cut.
	KeysBytesMax = 1 << 20
)

// The selections of a [KeysQuestion]; "" is every key.
const (
	KeysWaiting = "waiting" // the first event of the key waits
	KeysRunning = "running" // an event of the key runs
	KeysFailing = "failing" // the first event has failed, or a worker crashed that had it
	KeysHot     = "hot"     // the keys with the most events and the busiest handlers of the last ten seconds

	KeysInverted = "inverted" // the keys whose events began out of order most, since each member's start
)

// KeysQuestion selects keys.
type KeysQuestion struct {
	Which string
	Limit int  // 1 … KeysLimitMax
	Named bool // the answer names the keys; else it has their hashes alone
}

// Check returns the fault of a question.
func (q *KeysQuestion) Check() error {
	if !slices.Contains([]string{"", KeysWaiting, KeysRunning, KeysFailing, KeysHot, KeysInverted}, q.Which) {
		return fmt.Errorf("which = %q, want %s, %s, %s, %s or %s; without it every key is meant", q.Which, KeysWaiting, KeysRunning, KeysFailing, KeysHot, KeysInverted)
	}
	if q.Limit < 1 || q.Limit > KeysLimitMax {
		return fmt.Errorf("limit = %d, want 1 to %d", q.Limit, KeysLimitMax)
	}
	return nil
}

// Keys is the worst keys of the group: each key at each member that has events of it and waits,
// or lets its application work on them.
type Keys struct {
	View
	Named  bool        `json:"named"` // the keys themselves are shown
	Counts KeyCounts   `json:"counts"`
	Keys   []ListedKey `json:"keys"` // the worst first
	Cut    int         `json:"cut"`  // selected keys that are not listed
	Silent []string    `json:"silent,omitempty"`

	WithoutApplication []string `json:"without_application,omitempty"` // members to which no application is connected; not told for hot and inverted keys
}

// KeysAt is the worst keys at one member.
type KeysAt struct {
	View
	Error  string    `json:"error,omitempty"` // why this member gave no list; nothing below counts then
	Counts KeyCounts `json:"counts"`
	Keys   keyList   `json:"keys"`
	Cut    int       `json:"cut"`

	NoApplication bool `json:"no_application,omitempty"` // none is connected to this member, which takes no events from the broker therefore
}

// KeyCounts counts keys by their state.
type KeyCounts struct {
	Keys     int `json:"keys"`     // with events in mailboxes
	Waiting  int `json:"waiting"`  // of these
	Running  int `json:"running"`  // of these
	Failing  int `json:"failing"`  // of these: the first event has failed, or a worker crashed that had it
	Unsent   int `json:"unsent"`   // keys with events that a member has received and no mailbox has
	Selected int `json:"selected"` // those that the question asks for
}

func (c *KeyCounts) add(d KeyCounts) {
	c.Keys += d.Keys
	c.Waiting += d.Waiting
	c.Running += d.Running
	c.Failing += d.Failing
	c.Unsent += d.Unsent
	c.Selected += d.Selected
}

// ListedKey is one key at one member.
type ListedKey struct {
	Hash      string `json:"hash"`                 // of the key: equal at all members
	Key       string `json:"key,omitempty"`        // only in a list that is named
	KeyBase64 string `json:"key_base64,omitempty"` // instead of key, if that is not UTF-8
	Partition uint16 `json:"partition"`
	Owner     string `json:"owner"` // by the table of that member
	At        string `json:"at"`    // the member that has the events

	Wait     string  `json:"wait"`                       // reason: handler, retry, gate, worker, slot or hold; of events that no mailbox has their place: queued, full, delayed or refused
	With     string  `json:"with,omitempty"`             // for a place: the member that the events wait for
	Seconds  float64 `json:"seconds"`                    // for how long
	Age      float64 `json:"age_seconds"`                // how long the first event has been there
	Failures uint32  `json:"failures"`                   // how often the application has failed that event
	Crashes  uint32  `json:"crashes"`                    // how often a worker crashed that had it
	RetryIn  float64 `json:"retry_in_seconds,omitempty"` // until its next attempt is due
	Behind   int     `json:"behind"`                     // events behind it
	Event    string  `json:"event,omitempty"`            // its message id
	Worker   uint64  `json:"worker,omitempty"`           // the stream that has it, or that the key sticks to
	Call     bool    `json:"call,omitempty"`             // it is a call or a reservation, not an event
	Method   string  `json:"method,omitempty"`           // of that call
	Calls    int     `json:"calls,omitempty"`            // calls and reservations that wait, besides a running one

	// Of the last ten seconds, if the key is hot.
	Rate       float64  `json:"events_per_second,omitempty"`   // that were handled
	Busy       float64  `json:"busy,omitempty"`                // the part of the time in which its handler ran
	OutgrowsIn *float64 `json:"outgrows_in_seconds,omitempty"` // until it gets more events than can be handled one at a time, if it goes on as in the last minute; 0: it does; none: not foreseen

	Order *KeyOrder `json:"order,omitempty"` // of a key whose events began out of order

	EventSeconds float64 `json:"event_seconds"` // the time that the events, calls and reservations of the key have been there, all of them together, as an estimate: lists are in its order
}

// KeyOrder tells how often events of a key began after a later one of their topic partition, at one member.
type KeyOrder struct {
	Inversions uint64            `json:"inversions"`  // since the member's start: at least so many
	Causes     map[string]uint64 `json:"causes"`      // of these, as the metric has them
	Ago        float64           `json:"ago_seconds"` // since the last one
}

// InMailbox reports whether Wait is the reason of a mailbox, and not the place of events that
// no mailbox has.
func (k *ListedKey) InMailbox() bool {
	return slices.Contains([]string{"handler", "retry", "gate", "worker", "slot", "hold", "park"}, k.Wait)
}

// Reserved reports whether the key is reserved: it is the work of no stream of an application, whose numbers begin with 1.
func (k *ListedKey) Reserved() bool { return k.Wait == "handler" && k.Call && k.Worker == 0 }

// SetKey names the key.
func (k *ListedKey) SetKey(key string) {
	if utf8.ValidString(key) {
		k.Key = key
		return
	}
	k.KeyBase64 = base64.StdEncoding.EncodeToString([]byte(key))
}

// byWeight orders keys, the worst first.
func byWeight(a, b ListedKey) int {
	return cmp.Or(-cmp.Compare(a.EventSeconds, b.EventSeconds), cmp.Compare(a.Hash, b.Hash), cmp.Compare(a.At, b.At))
}

// byBusy orders hot keys, the busiest first.
func byBusy(a, b ListedKey) int {
	return cmp.Or(-cmp.Compare(a.Busy, b.Busy), -cmp.Compare(a.Rate, b.Rate), byWeight(a, b))
}

// byInversions orders keys whose events began out of order, the most first.
func byInversions(a, b ListedKey) int {
	return cmp.Or(-cmp.Compare(a.inversions(), b.inversions()), byWeight(a, b))
}

func (k *ListedKey) inversions() uint64 {
	if k.Order == nil {
		return 0
	}
	return k.Order.Inversions
}

// Bound sorts a list and cuts it to what a question and the limits permit.
func (k *KeysAt) Bound(q KeysQuestion) {
	order := byWeight
	switch q.Which {
	case KeysHot:
		order = byBusy
	case KeysInverted:
		order = byInversions
	}
	slices.SortFunc(k.Keys, order)
	bytes := 0
	for i, one := range k.Keys {
		if bytes += encodedLen(one.Key) + len(one.KeyBase64); i == q.Limit || bytes > KeysBytesMax {
			k.Keys = k.Keys[:i]
			break
		}
	}
	k.Cut = k.Counts.Selected - len(k.Keys)
}

// encodedLen is the length of a key in JSON, where a byte may take six.
func encodedLen(key string) int {
	text, _ := json.Marshal(key) // cannot fail
	return len(text) - len(`""`)
}

// Keys asks all members for their worst keys. q must be valid.
func (g *Group) Keys(ctx context.Context, q KeysQuestion) Keys {
	all := Keys{View: g.local.Status().View, Named: q.Named, Keys: []ListedKey{}}
	members, lists := askEach(g, func(m Member) KeysAt { return g.keysOf(ctx, m, q) }, func(list KeysAt) View { return list.View })
	sum := KeysAt{}
	for i := range lists {
		if lists[i].Error != "" {
			all.Silent = append(all.Silent, members[i].Name+": "+lists[i].Error)
			continue
		}
		if lists[i].NoApplication {
			all.WithoutApplication = append(all.WithoutApplication, members[i].Name)
		}
		sum.Counts.add(lists[i].Counts)
		sum.Keys = append(sum.Keys, lists[i].Keys...)
	}
	sum.Bound(q)
	all.Counts, all.Cut, all.Keys = sum.Counts, sum.Cut, append(all.Keys, sum.Keys...)
	return all
}

func (g *Group) keysOf(ctx context.Context, m Member, q KeysQuestion) KeysAt {
	if m.Reach == ReachSelf {
		return g.local.Keys(ctx, q)
	}
	var word KeysAt
	request := &reportv1.ReportRequest{Subject: reportv1.Subject_SUBJECT_KEYS, Keys: &reportv1.KeysQuestion{Which: q.Which, Limit: uint32(q.Limit), Named: q.Named}}
	if err := g.ask(ctx, m, request, &word); err != nil {
		return KeysAt{Error: err.Error()}
	}
	if len(word.Keys) > q.Limit {
		return KeysAt{Error: errTooLong.Error()}
	}
	return word
}

var errTooLong = errors.New("report: its list is longer than requested")
