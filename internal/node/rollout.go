package node

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

// movesMax bounds the moves that a node remembers as it has seen them itself.
const movesMax = 256

// rollout remembers the moves of partitions: what this node saw of each, and what members that left have told it. The driver calls noted,
// closing and gates; the others may be called by anybody.
type rollout struct {
	node *Node

	mu     sync.Mutex
	own    []seenMove // the newest movesMax, by time
	told   report.MoveWords
	before *ownership.Table  // the newest table whose moves were noted
	closed *mailbox.Counters // before gates closed for a move that is not noted yet; nil: none did
	waits  map[ring.Partition]pause
	open   [ring.Partitions]bool // whose gate is open
}

// seenMove is a move as this node has seen it.
type seenMove struct {
	word  report.MoveWord
	token ownership.Token // of the tenures that it began
	gone  []ownership.Incarnation
	base  mailbox.Counters // before gates closed for it
}

// pause is a partition of which a key waits for an earlier owner.
type pause struct {
	token ownership.Token // of our tenure
	since clock.Instant
}

func newRollout(n *Node) *rollout {
	return &rollout{node: n, waits: make(map[ring.Partition]pause)}
}

// begin forgets the state of the gates of an earlier incarnation, and its table.
func (r *rollout) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.waits)
	r.before, r.closed = nil, nil
	clear(r.open[:])
}

// closing notes the counters before open gates close for a move: a delivery may end before the move itself is noted.
func (r *rollout) closing(changes []ownership.GateChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed == nil && slices.ContainsFunc(changes, func(c ownership.GateChange) bool { return c.Gate != ownership.Open && r.open[c.Partition] }) {
		counters := r.node.boxes.Stats().Counters
		r.closed = &counters
	}
}

// gates notes how long the keys of partitions that came to this node wait for earlier owners.
func (r *rollout) gates(now clock.Instant, changes []ownership.GateChange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		r.open[c.Partition] = c.Gate == ownership.Open
		at, waits := r.waits[c.Partition]
		switch {
		case c.Gate == ownership.Waiting, c.Gate == ownership.Open && len(c.Withheld) > 0:
			if !waits || at.token != c.Token {
				r.waits[c.Partition] = pause{c.Token, now}
			}
		default:
			delete(r.waits, c.Partition)
			if waits && c.Gate == ownership.Open && at.token == c.Token {
				r.waited(c.Token, now.Sub(at.since))
			}
		}
	}
}

// waited notes the end of a wait. mu is held.
func (r *rollout) waited(token ownership.Token, took time.Duration) {
	for i := len(r.own) - 1; i >= 0; i-- {
		if w := &r.own[i].word; r.own[i].token == token {
			w.Waited = max(w.Waited, took.Seconds())
			return
		}
	}
}

// noted takes a Note of the machine. The table that belongs to it is published.
func (r *rollout) noted(now time.Time, note *ownership.Note) {
	switch note.Kind {
	case ownership.NoteEpoch:
		r.moved(now, note, note.Reason)
	case ownership.NoteGenesis:
		r.moved(now, note, "the group begins")
	case ownership.NoteAdopted:
		r.mu.Lock()
		defer r.mu.Unlock()
		r.before = r.node.Table()
	case ownership.NoteTakeover:
		r.newest(func(w *report.MoveWord) {
			if strings.Contains(w.Reason, "silent ") || strings.Contains(w.Reason, "unreachable ") { // else it has only withheld keys
				w.Silent = max(w.Silent, note.Took.Seconds())
			}
		})
	case ownership.NoteForced:
		r.newest(func(w *report.MoveWord) { w.Forced += note.Count })
	default:
	}
}

func (r *rollout) newest(change func(*report.MoveWord)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.own) > 0 {
		change(&r.own[len(r.own)-1].word)
	}
}

// moved notes the difference of the newest table to the one before.
func (r *rollout) moved(now time.Time, note *ownership.Note, reason string) {
	t, self, counters := r.node.Table(), r.node.self.Load().inc, r.node.boxes.Stats().Counters
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.before
	if r.closed != nil {
		counters = *r.closed
	}
	r.before, r.closed = t, nil
	if t == nil || t.Cur != note.At {
		return
	}
	m := seenMove{
		word: report.MoveWord{
			Member: r.node.cfg.Name, Incarnation: self.String(), At: note.At.String(), Time: now.UTC(), Reason: reason,
		},
		token: ownership.TokenOf(t.Gen, t.Cur), base: counters,
	}
	from := make(map[string]bool)
	for p := range ring.Partition(len(t.Owners)) {
		var was ownership.Node
		if before != nil {
			was = before.Owner(p)
		}
		is := t.Owner(p)
		if was.Inc == is.Inc {
			continue
		}
		m.word.Partitions++
		if !was.Inc.IsZero() {
			from[was.Name] = true
		}
		switch self {
		case was.Inc:
			m.word.Lost++
		case is.Inc:
			m.word.Gained++
		}
	}
	if m.word.Partitions == 0 {
		return
	}
	m.word.From = slices.Sorted(maps.Keys(from))
	if before != nil {
		for _, n := range before.Members {
			if !t.IsMember(n.Inc) {
				m.gone = append(m.gone, n.Inc)
			}
		}
	}
	m.word.Clip()
	if len(r.own) == movesMax {
		r.own = slices.Delete(r.own, 0, 1)
	}
	r.own = append(r.own, m)
}

// words returns all that is known: what others told, and then what this node saw.
func (r *rollout) words() report.MoveWords {
	counters, unanswered := r.node.boxes.Stats().Counters, r.node.pool.Unanswered()
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting := make(map[ownership.Token]int)
	for _, at := range r.waits {
		waiting[at.token]++
	}
	all := slices.Clone(r.told)
	for i := range r.own {
		m := &r.own[i]
		until := counters
		if i+1 < len(r.own) {
			until = r.own[i+1].base
		}
		w := m.word
		w.Waiting = waiting[m.token]
		w.Answered, w.Cut = until.Outlived-m.base.Outlived, until.Cut-m.base.Cut
		for _, u := range unanswered {
			if slices.Contains(m.gone, ownership.Incarnation(u.Peer)) {
				w.Unanswered += u.Events
			}
		}
		all = append(all, w)
	}
	return all[max(0, len(all)-report.MoveWordsMax):]
}

// take takes the words of a member that leaves.
func (r *rollout) take(text []byte) error {
	words, err := report.DecodeMoves(text)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range words {
		if !slices.ContainsFunc(r.own, func(m seenMove) bool { return m.word.Incarnation == w.Incarnation }) { // no member knows more about this node
			r.told = r.told.Add(w)
		}
	}
	return nil
}

// tellMoves tells the members what this node knows of moves, since it leaves.
func (a *auditing) tellMoves(ctx context.Context) {
	t := a.node.Table()
	if t == nil {
		return
	}
	moves := report.EncodeMoves(a.node.rollout.words())
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var sending sync.WaitGroup
	for _, m := range t.Members {
		if m.Name == a.node.cfg.Name {
			continue
		}
		sending.Go(func() {
			if err := a.exchange(ctx, m, exchange.Report{Moves: moves}); err != nil {
				a.node.log.Info("records of partition moves were not handed over", "peer", m.Name, "error", untrusted.Print(err.Error()))
			}
		})
	}
	sending.Wait()
}

// Rollout implements report.Local.
func (s *reporter) Rollout() report.RolloutAt {
	wall := wallClock()
	return report.RolloutAt{View: s.reporter(), Since: wall.of(s.since), Words: s.node.rollout.words()}
}
