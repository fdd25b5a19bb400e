package report

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	reportv1 "github.com/ringfence/router/proto/ringfence/report/v1"
)

// The bounds of what is known of moves.
const (
	RolloutsMax = 100             // in one answer
	RolloutGap  = 5 * time.Minute // moves with less between them are one rollout

	MoveWordsMax  = 1024    // in a member's answer and in what a leaving member hands over: the newest
	moveTextMax   = 1 << 10 // bytes of each text of a word
	moveFromMax   = 64      // members that lost partitions in one move
	moveWordBytes = 1 << 20 // of the JSON of all words that are handed over

	moveReportBytes = reportBytesMax * 3 / 4 // of those in a member's answer
)

// MoveWord is one member's report of one move: of a record of the control log that gave partitions other owners.
type MoveWord struct {
	Member      string       `json:"member"`
	Incarnation string       `json:"incarnation"`
	At          string       `json:"position"` // of the record
	Time        time.Time    `json:"time"`     // when the member read it, by its clock
	Reason      string       `json:"reason"`   // as its author has it: "leave node-1", "silent node-1", "join node-1", or several
	Partitions  int          `json:"partitions"`
	From        list[string] `json:"from,omitempty"` // members that lost some

	Gained  int     `json:"gained"`         // of the partitions, by this member
	Waiting int     `json:"waiting"`        // of these, such that a key still waits for an earlier owner
	Waited  float64 `json:"waited_seconds"` // longest time from the record until no key of a gained partition waited any more
	Silent  float64 `json:"silent_seconds"` // if an owner was found silent: longest time since its last sign; else 0

	Lost       int    `json:"lost"`       // of the partitions, by this member
	Answered   uint64 `json:"answered"`   // deliveries that ran when their partition was lost, and were answered
	Cut        uint64 `json:"cut"`        // such that were cancelled or lost: the event is delivered a second time
	Forced     int    `json:"forced"`     // lost partitions that were given up on, with what ran there
	Unanswered int    `json:"unanswered"` // events that this member had sent to an owner that is gone without an answer: a second delivery of those that ran there
}

// pause is the longest time for which a key of a gained partition can have waited because of the move.
func (w *MoveWord) pause() float64 { return max(w.Waited, w.Silent) }

// key names the member and the move of a word.
func (w *MoveWord) key() [2]string { return [2]string{w.Incarnation, w.At} }

// check returns what is wrong with a word that came from another process.
func (w *MoveWord) check() error {
	for _, text := range append([]string{w.Member, w.Incarnation, w.At, w.Reason}, w.From...) {
		if len(text) > moveTextMax {
			return fmt.Errorf("report: a text of %d bytes, want at most %d", len(text), moveTextMax)
		}
	}
	if len(w.From) > moveFromMax {
		return fmt.Errorf("report: %d members lost partitions, want at most %d", len(w.From), moveFromMax)
	}
	return nil
}

// Clip cuts the texts and lists of a word to what others take.
func (w *MoveWord) Clip() {
	w.Reason = strings.ToValidUTF8(w.Reason[:min(len(w.Reason), moveTextMax)], "") // JSON would replace a cut character by a longer one
	w.From = w.From[:min(len(w.From), moveFromMax)]
}

// MoveWords holds the reports of moves by member and move, in the order of their arrival.
type MoveWords []MoveWord

// bytes is about the length of a word in JSON.
func (w *MoveWord) bytes() int {
	const numbers = 300 // with their names
	n := numbers + len(w.Member) + len(w.Incarnation) + len(w.At) + len(w.Reason)
	for _, name := range w.From {
		n += len(name) + len(`"",`)
	}
	return n
}

// Add adds words, and replaces those of the same member about the same move. It keeps the newest [MoveWordsMax], and no more than fit into a
// member's answer.
func (m MoveWords) Add(words ...MoveWord) MoveWords {
	for _, w := range words {
		if i := slices.IndexFunc(m, func(one MoveWord) bool { return one.key() == w.key() }); i >= 0 {
			m[i] = w
			continue
		}
		m = append(m, w)
	}
	bytes := 0
	for i := len(m) - 1; i >= 0; i-- {
		if bytes += m[i].bytes(); bytes > moveReportBytes || len(m)-i > MoveWordsMax {
			return slices.Delete(m, 0, i+1)
		}
	}
	return m
}

// UnmarshalJSON implements json.Unmarshaler. It reads no more words than there may be: an empty one of three bytes takes hundreds in memory.
func (m *MoveWords) UnmarshalJSON(text []byte) error {
	return unmarshalList((*[]MoveWord)(m), text, MoveWordsMax)
}

// EncodeMoves returns words for another member, the newest ones that fit.
func EncodeMoves(words MoveWords) []byte {
	for {
		text, err := json.Marshal(words)
		if err == nil && len(text) <= moveWordBytes/2 {
			return text
		}
		words = words[(len(words)+1)/2:]
	}
}

// DecodeMoves reads the words of another member.
func DecodeMoves(text []byte) (MoveWords, error) {
	var words MoveWords
	if len(text) > moveWordBytes || json.Unmarshal(text, &words) != nil {
		return nil, errors.New("report: malformed description of moves")
	}
	for i := range words {
		if err := words[i].check(); err != nil {
			return nil, err
		}
	}
	return words, nil
}

// RolloutAt holds one member's reports of moves: its own, and those that members that left have handed over.
type RolloutAt struct {
	View
	Error string    `json:"error,omitempty"` // why this member told nothing; nothing below counts then
	Since time.Time `json:"since"`           // its start
	Words MoveWords `json:"words"`
}

// Bound drops the oldest words beyond what fits into a report.
func (at *RolloutAt) Bound() {
	bytes := 0
	for i := len(at.Words) - 1; i >= 0; i-- {
		text, err := json.Marshal(&at.Words[i])
		if bytes += len(text) + len(","); err != nil || bytes > moveReportBytes {
			at.Words = at.Words[i+1:]
			return
		}
	}
}

// Rollouts holds the effects of moves of partitions, from all members that answer.
type Rollouts struct {
	View
	Rollouts []Rollout `json:"rollouts"` // the newest first
	Silent   []string  `json:"silent,omitempty"`
}

// MoveSum sums up the effects of moves, from the reports of all members.
type MoveSum struct {
	Partitions int     `json:"partitions"` // that got another owner
	Waiting    int     `json:"waiting"`    // such that a key still waits for an earlier owner
	Pause      float64 `json:"longest_pause_seconds"`
	Answered   uint64  `json:"answered"`
	Cut        uint64  `json:"cut"`
	Forced     int     `json:"forced"`
	Unanswered int     `json:"unanswered"`
}

func (s *MoveSum) add(w *MoveWord) {
	s.Waiting += w.Waiting
	s.Pause = max(s.Pause, w.pause())
	s.Answered += w.Answered
	s.Cut += w.Cut
	s.Forced += w.Forced
	s.Unanswered += w.Unanswered
}

// Rollout is moves that followed each other.
type Rollout struct {
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"` // of the last record; its partitions may open later
	MoveSum
	Moves   []RolloutMove   `json:"moves"`             // by time
	Members []RolloutMember `json:"members"`           // by name
	Unknown []string        `json:"unknown,omitempty"` // members that lost partitions, and whose word about it is known to nobody that answers
}

// RolloutMove is one move.
type RolloutMove struct {
	At     string    `json:"position"`
	Time   time.Time `json:"time"` // the earliest at which a member read it
	Reason string    `json:"reason"`
	MoveSum
	Words   []MoveWord `json:"words"` // by member
	Unknown []string   `json:"unknown,omitempty"`
}

// RolloutMember holds the effects of a rollout on the members of one name.
type RolloutMember struct {
	Name   string `json:"name"`
	Left   int    `json:"left"`   // how often it left as planned
	Gone   int    `json:"gone"`   // how often it was found silent or unreachable
	Joined int    `json:"joined"` // how often it joined
	Gained int    `json:"gained"` // partitions
	Lost   int    `json:"lost"`   // partitions
	MoveSum
}

// Rollouts asks all members what they know, and returns the newest rollouts: 1 to [RolloutsMax].
func (g *Group) Rollouts(ctx context.Context, last int) Rollouts {
	all := Rollouts{View: g.local.Status().View, Rollouts: []Rollout{}}
	members := g.asked()
	words := fromAll(members, func(m Member) RolloutAt { return g.rolloutOf(ctx, m) })
	known := map[[2]string]MoveWord{}
	for i, at := range words {
		if at.Error != "" {
			all.Silent = append(all.Silent, members[i].Name+": "+at.Error)
			continue
		}
		for _, w := range at.Words {
			if _, has := known[w.key()]; !has || w.Member == members[i].Name { // its own word is the newest
				known[w.key()] = w
			}
		}
	}
	rollouts := rolloutsOf(movesOf(slices.Collect(maps.Values(known))))
	slices.Reverse(rollouts)
	all.Rollouts = append(all.Rollouts, rollouts[:min(last, len(rollouts))]...)
	return all
}

func (g *Group) rolloutOf(ctx context.Context, m Member) RolloutAt {
	if m.Reach == ReachSelf {
		return g.local.Rollout()
	}
	var word RolloutAt
	if err := g.ask(ctx, m, about(reportv1.Subject_SUBJECT_ROLLOUT), &word); err != nil {
		return RolloutAt{Error: err.Error()}
	}
	for i := range word.Words {
		if err := word.Words[i].check(); err != nil {
			return RolloutAt{Error: err.Error()}
		}
	}
	return word
}

// movesOf joins the words about each move, by time.
func movesOf(words []MoveWord) (moves []RolloutMove) {
	slices.SortFunc(words, func(a, b MoveWord) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Member, b.Member), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	place := map[string]int{}
	for _, w := range words {
		i, has := place[w.At]
		if !has {
			i = len(moves)
			place[w.At] = i
			moves = append(moves, RolloutMove{At: w.At, Time: w.Time, Reason: w.Reason, MoveSum: MoveSum{Partitions: w.Partitions}})
		}
		moves[i].Words = append(moves[i].Words, w)
		moves[i].add(&w)
	}
	for i := range moves {
		moves[i].Unknown = moves[i].unknown()
		slices.SortStableFunc(moves[i].Words, func(a, b MoveWord) int { return cmp.Compare(a.Member, b.Member) })
	}
	return moves
}

// unknown returns the members that lost partitions in a move, and have no word.
func (m *RolloutMove) unknown() (names []string) {
	told := map[string]bool{}
	for i := range m.Words {
		told[m.Words[i].Member] = true
		names = append(names, m.Words[i].From...)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return told[name] })
}

// rolloutsOf divides moves, which are in the order of time, where nothing moved for [RolloutGap].
func rolloutsOf(moves []RolloutMove) (all []Rollout) {
	for begin := 0; begin < len(moves); {
		end := begin + 1
		for end < len(moves) && moves[end].Time.Sub(moves[end-1].Time) < RolloutGap {
			end++
		}
		all = append(all, rolloutOf(moves[begin:end]))
		begin = end
	}
	return all
}

func rolloutOf(moves []RolloutMove) Rollout {
	r := Rollout{Begin: moves[0].Time, End: moves[len(moves)-1].Time, Moves: moves}
	members := map[string]*RolloutMember{}
	member := func(name string) *RolloutMember {
		if members[name] == nil {
			members[name] = &RolloutMember{Name: name}
		}
		return members[name]
	}
	for i := range moves {
		m := &moves[i]
		r.Partitions += m.Partitions
		r.Unknown = append(r.Unknown, m.Unknown...)
		for reason := range strings.SplitSeq(m.Reason, ", ") {
			switch why, name, _ := strings.Cut(reason, " "); why {
			case "leave":
				member(name).Left++
			case "silent", "unreachable":
				member(name).Gone++
			case "join":
				member(name).Joined++
			}
		}
		for j := range m.Words {
			w := &m.Words[j]
			r.add(w)
			one := member(w.Member)
			one.Gained, one.Lost = one.Gained+w.Gained, one.Lost+w.Lost
			one.Partitions = one.Gained + one.Lost
			one.add(w)
		}
	}
	slices.Sort(r.Unknown)
	r.Unknown = slices.Compact(r.Unknown)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		r.Members = append(r.Members, *members[name])
	}
	return r
}
