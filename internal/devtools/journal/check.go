package journal

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// ExamplesMax bounds the overlaps, and the lost events, that a [Report] lists.
const ExamplesMax = 10

// WakeMax is how long after a [Stop] a handler that has lost its key may still run: the SDK must
// notice the loss first, and a stopped process notices nothing.
const WakeMax = 200 * time.Millisecond

// File names one journal to check.
type File struct {
	Path     string
	KilledAt clock.Instant // when its process was killed; 0 when it ended by itself, or still runs
	Stops    []Stop        // when its process was stopped, in order
}

// Files returns the journals at paths, of processes that were neither killed nor stopped.
func Files(paths []string) []File {
	files := make([]File, len(paths))
	for i, path := range paths {
		files[i].Path = path
	}
	return files
}

// Stop is a period in which a process was stopped by SIGSTOP. Its handlers stood still, though
// their journal shows them as running.
type Stop struct{ From, Until clock.Instant }

// covers reports whether h, a handling of the file, stood still from start to end: that time must lie within one of
// the stops and the WakeMax after it. If h has deadlines, it still owned the key until the last of them, although it
// stood still: a handling that began before that deadline is an overlap.
func (f File) covers(h *handling, start, end clock.Instant) bool {
	if start.Before(h.deadline) {
		return false
	}
	for _, s := range f.Stops {
		if !start.Before(s.From) && !s.Until.Add(WakeMax).Before(end) {
			return true
		}
	}
	return false
}

// Report is the evidence of the journals.
type Report struct {
	Files     int `json:"files"`
	TornLines int `json:"torn_lines"` // cut by a kill, ignored

	Started    uint64 `json:"started"` // handlings; the next five add up to it
	Done       uint64 `json:"done"`
	Rejected   uint64 `json:"rejected"`
	Failed     uint64 `json:"failed"`
	Cancelled  uint64 `json:"cancelled"`
	Unfinished uint64 `json:"unfinished"` // without an end

	FirstStart clock.Instant `json:"first_start_ns"` // of all handlings; 0 when there is none
	LastEnd    clock.Instant `json:"last_end_ns"`    // of all that ended

	Keys   uint64 `json:"keys"`   // that were handled
	Events uint64 `json:"events"` // that were done or rejected

	Published    uint64   `json:"published"`
	Lost         uint64   `json:"lost"`       // published, but neither done nor rejected
	Unknown      uint64   `json:"unknown"`    // done or rejected, but not published; 0 if the published events are unknown
	Duplicates   uint64   `json:"duplicates"` // handlings of an event that was over already, by another one
	LostExamples []string `json:"lost_examples,omitempty"`

	Overlaps        uint64        `json:"overlaps"` // pairs of handlings of one key that ran at the same time
	OverlapMax      time.Duration `json:"overlap_max_ns"`
	OverlapExamples []Overlap     `json:"overlap_examples,omitempty"` // the first ones

	// Woken counts the pairs that are no overlaps because one of the two stood still
	// in a Stop, until WakeMax after it at most, and had no deadline that was later.
	Woken uint64 `json:"woken"`

	// StaleTokens counts the handlings that started, or ended as done, after a
	// greater fence of their key had been seen: a sink refuses them.
	StaleTokens uint64 `json:"stale_tokens"`
	// StaleSameToken counts those of them that had the token of the greatest fence, and
	// only a lower turn: both handlings were deliveries by one owner.
	StaleSameToken uint64 `json:"stale_same_token"`

	// RepeatedFences counts the handlings that started with the greatest fence of their key so far: an earlier one had it, too, and a sink cannot
	// tell the two apart.
	RepeatedFences uint64 `json:"repeated_fences"`

	Gap       Spread     `json:"gap"`                 // from the end of a handling to the start of the next one of its key
	GapMaxKey event.Key  `json:"-"`                   // the key of the longest gap
	Handoff   Spread     `json:"handoff"`             // those gaps in which the key went from one living process to another
	Takeovers []Takeover `json:"takeovers,omitempty"` // one for each file with a KilledAt, in the order of the files
}

// Overlap is a pair of handlings of one key that ran at the same time.
type Overlap struct {
	Key    event.Key     `json:"key"`
	Events [2]string     `json:"events"`
	Paths  [2]string     `json:"paths"`
	Start  clock.Instant `json:"start_ns"` // of the later one
	Length time.Duration `json:"length_ns"`
}

// Takeover tells how long the keys of a killed process waited: for each key that
// was handled there last, from the kill to its next handling elsewhere.
type Takeover struct {
	Path     string        `json:"path"`
	KilledAt clock.Instant `json:"killed_at_ns"`
	Keys     Spread        `json:"keys"`
}

// Check reads the journals of all processes that worked on one load and reports their evidence.
// published yields the publishers' events, each by the name that [Writer.Start] got; if it is
// nil, nothing counts as lost.
//
// It streams: memory grows with the number of keys, events and running handlings, by some 100
// bytes each, not with the number of records. Events and keys are identified by a 64-bit hash
// (the odds to confuse any two of ten million are 1 in 300,000).
//
// Files may still be growing; then the report covers the written part.
func Check(files []File, published iter.Seq[string]) (Report, error) {
	c := newChecker(files)
	if err := merge(files, c); err != nil {
		return Report{}, err
	}
	if published != nil {
		c.settle(published)
	}
	return c.finish(), nil
}

// A checker counts the figures of a Report.
type checker struct {
	files   []File
	report  Report
	keys    map[uint64]*keyState
	events  map[uint64]eventState
	running []map[Handling]*handling // by file

	gaps, handoffs histogram
	takeovers      []histogram // by file
}

type handling struct {
	file    int
	event   string
	eventID uint64
	key     event.Key
	state   *keyState
	start   clock.Instant
	fence   event.Fence
	stale   bool

	deadline clock.Instant // the newest; 0: none
}

type keyState struct {
	running  []*handling
	fenceMax event.Fence
	lastFile int           // of the newest handling
	lastEnd  clock.Instant // of the newest end
	ended    bool          // there has been one
}

type eventState uint8

const (
	isOver eventState = 1 << iota
	isPublished
)

func newChecker(files []File) *checker {
	c := &checker{
		files:     files,
		report:    Report{Files: len(files)},
		keys:      make(map[uint64]*keyState),
		events:    make(map[uint64]eventState),
		running:   make([]map[Handling]*handling, len(files)),
		takeovers: make([]histogram, len(files)),
	}
	for i := range c.running {
		c.running[i] = make(map[Handling]*handling)
	}
	return c
}

func (c *checker) start(file int, r record) error {
	if c.running[file][r.handling] != nil {
		return fmt.Errorf("handling %d starts twice", r.handling)
	}
	if c.report.Started == 0 {
		c.report.FirstStart = r.at
	}
	c.report.Started++
	hash := xxhash.Sum64String(string(r.key))
	key := c.keys[hash]
	if key == nil {
		key = &keyState{fenceMax: r.fence, lastFile: file}
		c.keys[hash] = key
	} else if r.fence.Turn > 0 && r.fence == key.fenceMax {
		c.report.RepeatedFences++
	}
	c.measureGap(key, file, r)
	h := &handling{
		file: file, event: r.event, eventID: xxhash.Sum64String(r.event), key: r.key,
		state: key, start: r.at, fence: r.fence,
	}
	c.judgeFence(h)
	if key.fenceMax.Before(r.fence) {
		key.fenceMax = r.fence
	}
	key.lastFile = file
	key.running = append(key.running, h)
	c.running[file][r.handling] = h
	return nil
}

// measureGap looks at how long a key has waited that is handled again in file.
func (c *checker) measureGap(key *keyState, file int, r record) {
	moved := key.lastFile != file
	killed := c.files[key.lastFile].KilledAt
	if moved && killed != 0 && !r.at.Before(killed) {
		c.takeovers[key.lastFile].add(r.at.Sub(killed))
	}
	if !key.ended || len(key.running) > 0 {
		return
	}
	gap := r.at.Sub(key.lastEnd)
	if c.gaps.count == 0 || gap > c.gaps.max {
		c.report.GapMaxKey = r.key
	}
	c.gaps.add(gap)
	if moved && (killed == 0 || r.at.Before(killed)) {
		c.handoffs.add(gap)
	}
}

func (c *checker) end(file int, r record) error {
	h := c.running[file][r.handling]
	if h == nil {
		return fmt.Errorf("handling %d ends without a start", r.handling)
	}
	delete(c.running[file], r.handling)
	c.report.LastEnd = r.at
	switch r.outcome {
	case Done:
		c.report.Done++
	case Rejected:
		c.report.Rejected++
	case Failed:
		c.report.Failed++
	case Cancelled:
		c.report.Cancelled++
	}
	if r.outcome == Done {
		c.judgeFence(h)
	}
	if r.outcome.over() {
		if c.events[h.eventID]&isOver != 0 {
			c.report.Duplicates++
		}
		c.events[h.eventID] |= isOver
	}
	c.stop(h, r.at)
	return nil
}

// until takes a deadline.
func (c *checker) until(file int, r record) error {
	h := c.running[file][r.handling]
	if h == nil {
		return fmt.Errorf("handling %d has a deadline without a start", r.handling)
	}
	h.deadline = max(h.deadline, r.deadline)
	return nil
}

// judgeFence counts a handling once if a greater fence of its key has been seen.
func (c *checker) judgeFence(h *handling) {
	newest := h.state.fenceMax
	if h.stale || !h.fence.Before(newest) {
		return
	}
	h.stale = true
	c.report.StaleTokens++
	if h.fence.Token == newest.Token {
		c.report.StaleSameToken++
	}
}

// endOfFile ends at instant the handlings that the process left running.
func (c *checker) endOfFile(file int, at clock.Instant, torn bool) {
	if torn {
		c.report.TornLines++
	}
	for _, number := range slices.Sorted(maps.Keys(c.running[file])) {
		c.report.Unfinished++
		c.stop(c.running[file][number], at)
	}
	clear(c.running[file])
}

// stop counts every other running handling of the key of h as an overlap: it
// reaches from the later of the two starts to now, the earlier of the two ends.
func (c *checker) stop(h *handling, at clock.Instant) {
	key := h.state
	others := key.running[:0]
	for _, other := range key.running {
		if other != h {
			others = append(others, other)
			c.overlap(h, other, at)
		}
	}
	clear(key.running[len(others):])
	key.running = others
	key.lastEnd, key.ended = at, true
}

func (c *checker) overlap(a, b *handling, end clock.Instant) {
	start := max(a.start, b.start)
	length := end.Sub(start)
	if length <= 0 {
		return // they touch
	}
	if c.files[a.file].covers(a, start, end) || c.files[b.file].covers(b, start, end) {
		c.report.Woken++
		return
	}
	c.report.Overlaps++
	c.report.OverlapMax = max(c.report.OverlapMax, length)
	if len(c.report.OverlapExamples) == ExamplesMax {
		return
	}
	c.report.OverlapExamples = append(c.report.OverlapExamples, Overlap{
		Key:    a.key,
		Events: [2]string{a.event, b.event},
		Paths:  [2]string{c.files[a.file].Path, c.files[b.file].Path},
		Start:  start,
		Length: length,
	})
}

// settle compares the finished events with the published ones.
func (c *checker) settle(published iter.Seq[string]) {
	for name := range published {
		id := xxhash.Sum64String(name)
		state := c.events[id]
		if state&isPublished != 0 {
			continue // named twice
		}
		c.events[id] = state | isPublished
		c.report.Published++
		if state&isOver != 0 {
			continue
		}
		c.report.Lost++
		if len(c.report.LostExamples) < ExamplesMax {
			c.report.LostExamples = append(c.report.LostExamples, name)
		}
	}
	for _, state := range c.events {
		if state == isOver {
			c.report.Unknown++
		}
	}
}

func (c *checker) finish() Report {
	r := c.report
	r.Keys = uint64(len(c.keys))
	for _, state := range c.events {
		if state&isOver != 0 {
			r.Events++
		}
	}
	r.Gap, r.Handoff = c.gaps.spread(), c.handoffs.spread()
	for i, file := range c.files {
		if file.KilledAt != 0 {
			r.Takeovers = append(r.Takeovers, Takeover{file.Path, file.KilledAt, c.takeovers[i].spread()})
		}
	}
	return r
}

// follower receives the records of all files in the order of time.
type follower interface {
	start(file int, r record) error
	end(file int, r record) error
	endOfFile(file int, at clock.Instant, torn bool)
}

// deadlineFollower is a follower that receives deadlines too.
type deadlineFollower interface {
	until(file int, r record) error
}

// Step is one record of a journal: the start of a handling, or its end.
type Step struct {
	File     int // index of the journal
	At       clock.Instant
	Handling Handling
	Outcome  Outcome // how the handling ended; 0 for a start, and only a start has the rest
	Token    int64   // of the fence
	Turn     uint64  // of the fence
	Event    string  // the publisher's name of it

	Deadline clock.Instant // of [WalkAll]: this is neither a start nor an end, but the handling may last until then
	Key      event.Key     // of the event
}

// Walk calls visit for every record of the journals at paths, in the order of time.
// It reads them as [Check] does, and stops at the first error.
func Walk(paths []string, visit func(Step) error) error {
	return merge(Files(paths), walker(visit))
}

// WalkAll is [Walk], but visits deadlines too.
func WalkAll(paths []string, visit func(Step) error) error {
	return merge(Files(paths), deadlineWalker{visit})
}

// deadlineWalker is a walker that passes deadlines on.
type deadlineWalker struct{ walker }

func (w deadlineWalker) until(file int, r record) error {
	s := step(file, r)
	s.Deadline = r.deadline
	return w.walker(s)
}

// walker is a follower that only passes on.
type walker func(Step) error

func (w walker) start(file int, r record) error { return w(step(file, r)) }
func (w walker) end(file int, r record) error   { return w(step(file, r)) }

func (walker) endOfFile(int, clock.Instant, bool) {}

func step(file int, r record) Step {
	return Step{File: file, At: r.at, Handling: r.handling, Outcome: r.outcome, Token: r.fence.Token, Turn: r.fence.Turn, Event: r.event, Key: r.key}
}

// merge feeds the records of all files to f in the order of time.
func merge(files []File, f follower) (err error) {
	var heads headHeap
	defer func() {
		for _, h := range heads {
			err = errors.Join(err, h.reader.close())
		}
	}()
	for i, file := range files {
		r, err := openReader(file.Path)
		if err != nil {
			return err
		}
		h := &head{reader: r, file: i, killedAt: file.KilledAt}
		heads = append(heads, h)
		if err := h.advance(); err != nil {
			return err
		}
	}
	heap.Init(&heads)
	for heads.Len() > 0 {
		h := heads[0]
		if h.atEnd {
			f.endOfFile(h.file, h.record.at, h.reader.torn)
			heap.Pop(&heads)
			if err := h.reader.close(); err != nil {
				return err
			}
			continue
		}
		if err := h.tell(f); err != nil {
			return fmt.Errorf("journal: %s:%d: %w", h.reader.path, h.reader.line, err)
		}
		if err := h.advance(); err != nil {
			return err
		}
		heap.Fix(&heads, 0)
	}
	return nil
}

// head is the next record of one file, or its end.
type head struct {
	reader   *reader
	file     int
	killedAt clock.Instant
	record   record
	atEnd    bool
}

// advance reads the next record. The end of a file comes when its process was
// killed, or else, or if it wrote later than that, with its last record.
func (h *head) advance() error {
	rec, err := h.reader.next()
	if errors.Is(err, io.EOF) {
		h.atEnd = true
		h.record = record{at: max(h.killedAt, h.reader.last)}
		return nil
	}
	h.record = rec
	return err
}

func (h *head) tell(f follower) error {
	if h.record.isDeadline() {
		if d, ok := f.(deadlineFollower); ok {
			return d.until(h.file, h.record)
		}
		return nil
	}
	if h.record.isStart() {
		return f.start(h.file, h.record)
	}
	return f.end(h.file, h.record)
}

// headHeap implements heap.Interface: earliest first, files in their order at a tie.
type headHeap []*head

func (h headHeap) Len() int { return len(h) }
func (h headHeap) Less(i, j int) bool {
	if h[i].record.at != h[j].record.at {
		return h[i].record.at < h[j].record.at
	}
	return h[i].file < h[j].file
}
func (h headHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *headHeap) Push(x any)   { *h = append(*h, x.(*head)) }
func (h *headHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
