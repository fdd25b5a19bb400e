package forward

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
)

// Field numbers of Verdicts and Verdict.
const (
	verdictsNumber   = 1
	verdictsVerdicts = 2
	verdictsEpoch    = 3
	verdictsDone     = 4

	doneHandle = 1
	doneEvents = 2

	verdictHandle     = 1
	verdictKind       = 2
	verdictDelay      = 3
	verdictAttempts   = 4
	verdictReason     = 5
	verdictFirstError = 6
	verdictEpoch      = 7
	verdictOwner      = 8
	verdictCrashes    = 9
	verdictOutcome    = 10
	verdictReply      = 11
	verdictCode       = 12
	verdictToken      = 13
	verdictTurn       = 14
	verdictRemaining  = 15
)

// verdictBatch is the verdicts of one frame. They are encoded as they come, so that they
// take a tenth of the memory while they wait; those that are plainly Done are collected by entry.
type verdictBatch struct {
	sets  bool      // the peer reads sets
	n     int       // verdicts, those in sets included
	texts int       // bytes of reasons and errors
	buf   *[]byte   // the encoded verdicts, of frameBuffers; nil when there are none
	done  []doneSet // not encoded yet
	words int       // that the receiver needs for done, of 64 events each
}

// doneSet is the set of the events of one entry that are done. first is the handle of the event that the set's index 0 stands for.
type doneSet struct {
	first  event.Handle
	events event.Bits
}

// setsSought bounds the search for the set of an event: a frame has events of few entries at a time, or each of its own.
const setsSought = 32

// setWordPart keeps the sets of a frame, with at most 15 bytes besides each word, within half of the largest frame.
const setWordPart = 64

// addDone adds an event to the set of its entry. It reports false if the sets of the frame would need more than wordsMax
// words.
func (p *verdictBatch) addDone(h event.Handle, wordsMax int) bool {
	var set *doneSet
	word := h.Index() / 64
	more := word + 1 // for a new set: the receiver's begins with the first event of the entry
	for i := len(p.done) - 1; i >= max(0, len(p.done)-setsSought); i-- {
		if s := &p.done[i]; s.first.First() == h.First() && word >= s.first.Index()/64 {
			set, more = s, word+1-s.first.Index()/64-len(s.events)
			break
		}
	}
	if more > 0 {
		if p.words+more > wordsMax {
			return false
		}
		p.words += more
		if set == nil {
			p.done = append(p.done, doneSet{first: h.First() | event.Handle(word*64)})
			set, more = &p.done[len(p.done)-1], 1
		}
		set.events = append(set.events, make(event.Bits, more)...)
	}
	set.events.Add(h.Index() - set.first.Index())
	return true
}

// plainMax bounds the size of a verdict without a detail, longMax that of one without its texts, setMax that of a set without its words, and
// verdictsHeadMax that of a frame without all of these.
const (
	plainMax        = 2 + 1 + binary.MaxVarintLen64 + 2
	longMax         = 192
	setMax          = 24
	verdictsHeadMax = 128
)

// left returns how many bytes of verdicts the frame has room for.
func (p *verdictBatch) left(config *Config) int {
	n := config.FrameMax - verdictsHeadMax - setMax*len(p.done) - 8*p.words
	if p.buf != nil {
		n -= len(*p.buf)
	}
	return n
}

// add encodes as many of the verdicts as have room in the frame, at least one if it has none yet,
// and returns the rest.
func (p *verdictBatch) add(verdicts []event.Verdict, config *Config) []event.Verdict {
	left := p.left(config)
	for i := range verdicts {
		v := &verdicts[i]
		if p.n == config.FrameEventsMax || p.texts > config.FrameBytesMax || left < plainMax {
			return verdicts[i:]
		}
		if v.Detail != nil {
			if !p.addLong(v, left, config) {
				return verdicts[i:]
			}
			left = p.left(config)
			continue
		}
		if p.sets && v.Kind == event.Done && p.addDone(v.Handle, min(setWordsMax, config.FrameMax/setWordPart, p.words+(left-setMax)/8)) {
			p.n++
			left = p.left(config)
			continue
		}
		b := p.room(plainMax)
		*p.buf = appendVerdict(b, v, nil)
		p.n++
		left -= plainMax
	}
	return nil
}

// addLong encodes a verdict with a detail. It returns false if that does not fit into the left bytes of the frame. If
// a reply fits into no frame, its caller is told that the handler ran.
func (p *verdictBatch) addLong(v *event.Verdict, left int, config *Config) bool {
	d := *v.Detail
	d.Reason, d.FirstError, d.Owner = clip(d.Reason), clip(d.FirstError), clip(d.Owner)
	texts := textsOf(&d)
	if frame := config.FrameMax - verdictsHeadMax; d.Reply != nil && longMax+texts+len(d.Owner) > frame {
		d.Reason = fmt.Sprintf("the reply of %d bytes is larger than a frame between routers", len(d.Reply.Payload))
		d.Reply = &event.Reply{Outcome: event.CallFailed, Code: event.CodeTooLarge}
		texts = textsOf(&d)
	}
	size := longMax + texts + len(d.Owner)
	if p.n > 0 && (p.texts+texts > config.FrameBytesMax || size > left) {
		return false
	}
	b := p.room(size)
	*p.buf = appendVerdict(b, v, &d)
	p.n++
	p.texts += texts
	return true
}

// textsOf returns the bytes of a verdict's detail that have no fixed size, without the name of a member.
func textsOf(d *event.Detail) int {
	n := len(d.Reason) + len(d.FirstError)
	if d.Reply != nil {
		n += len(d.Reply.Payload) + len(d.Reply.Code)
	}
	return n
}

// room returns the buffer, with room for size more bytes.
func (p *verdictBatch) room(size int) []byte {
	if p.buf == nil {
		p.buf = frameBuffers.Get(size)
		*p.buf = (*p.buf)[:0]
	}
	if cap(*p.buf)-len(*p.buf) < size {
		larger := frameBuffers.Get(2*cap(*p.buf) + size)
		*larger = (*larger)[:copy(*larger, *p.buf)]
		frameBuffers.Put(p.buf)
		p.buf = larger
	}
	return *p.buf
}

// marshal encodes the frame. gRPC owns the batch afterwards.
func (f *verdictsFrame) marshal() mem.BufferSlice {
	if f.number == 0 {
		return hotframe.Receipt(f.receipt)
	}
	const most = 64 // bytes of the number and the epoch
	head := hotframe.AppendNumber(make([]byte, 0, most), verdictsNumber, f.number)
	head = appendPosition(head, verdictsEpoch, f.epoch)
	for i := range f.batch.done {
		f.batch.appendDone(&f.batch.done[i])
	}
	body := mem.NewBuffer(f.batch.buf, &frameBuffers)
	f.batch = verdictBatch{}
	return hotframe.Frame(f.receipt, head, body)
}

// appendDone encodes a set, without the bytes at its end that are zero.
func (p *verdictBatch) appendDone(s *doneSet) {
	const room = 1 // for the length
	b, begin := hotframe.Begin(p.room(plainMax+8*len(s.events)), verdictsDone, room)
	b = hotframe.AppendNumber(b, doneHandle, uint64(s.first))
	set := make([]byte, 0, 64)
	for _, word := range s.events {
		set = binary.LittleEndian.AppendUint64(set, word)
	}
	b = hotframe.AppendBytes(b, doneEvents, bytes.TrimRight(set, "\x00"))
	*p.buf = hotframe.End(b, begin, room)
}

// appendVerdict appends a verdict with a detail, or with none.
func appendVerdict(b []byte, v *event.Verdict, d *event.Detail) []byte {
	const room = 1 // for the length
	b, begin := hotframe.Begin(b, verdictsVerdicts, room)
	b = hotframe.AppendNumber(b, verdictHandle, uint64(v.Handle))
	b = hotframe.AppendNumber(b, verdictKind, uint64(v.Kind))
	if d != nil {
		b = hotframe.AppendNumber(b, verdictDelay, hotframe.Milliseconds(d.Delay, delayMax))
		b = hotframe.AppendNumber(b, verdictAttempts, uint64(d.Attempts))
		b = hotframe.AppendText(b, verdictReason, d.Reason)
		b = hotframe.AppendText(b, verdictFirstError, d.FirstError)
		b = appendPosition(b, verdictEpoch, d.Epoch)
		b = hotframe.AppendText(b, verdictOwner, d.Owner)
		b = hotframe.AppendNumber(b, verdictCrashes, uint64(d.Crashes))
		if r := d.Reply; r != nil {
			b = hotframe.AppendNumber(b, verdictOutcome, uint64(r.Outcome))
			b = hotframe.AppendBytes(b, verdictReply, r.Payload)
			b = hotframe.AppendText(b, verdictCode, r.Code)
		}
		if g := d.Grant; g != nil {
			b = hotframe.AppendNumbers(b, verdictToken, uint64(g.Fence.Token), g.Fence.Turn, uint64(max(0, g.Remaining)))
		}
	}
	return hotframe.End(b, begin, room)
}

// parseHot decodes a Verdicts message that is encoded as our writer does it. It returns an error for any other, good or bad.
func (f *verdictsFrame) parseHot(b []byte) error {
	f.number, b = hotframe.Number(b, verdictsNumber)
	f.epoch, b = readPosition(b, verdictsEpoch)
	if f.number == 0 {
		return fmt.Errorf("%w: verdicts without a number", errFrame)
	}
	for len(b) > 0 {
		if body, rest := hotframe.Chunk(b, verdictsVerdicts); body != nil {
			if len(f.verdicts) == frameItemsMax || !f.parseVerdict(body) {
				return errOther
			}
			b = rest
			continue
		}
		body, rest := hotframe.Chunk(b, verdictsDone)
		handle, body := hotframe.Number(body, doneHandle)
		set, body := hotframe.Chunk(body, doneEvents)
		if set == nil || len(body) > 0 || len(f.done) == frameItemsMax {
			return errOther
		}
		if err := f.addDone(event.Handle(handle), set); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// addDone adds a set: of the event with a handle, and those behind it, a bit for each.
func (f *verdictsFrame) addDone(h event.Handle, set []byte) error {
	if end := h.Index() + 8*len(set); h.Index()%64 != 0 || len(set) == 0 || end > event.EntryEventsMax {
		return fmt.Errorf("%w: a set of %d bytes from index %d on", errFrame, len(set), h.Index())
	}
	begin := len(f.words)
	if begin+h.Index()/64+(len(set)+7)/8 > setWordsMax {
		return fmt.Errorf("%w: sets of more than %d words", errFrame, setWordsMax)
	}
	f.words = slices.Grow(f.words, h.Index()/64+(len(set)+7)/8)
	f.words = append(f.words, make([]uint64, h.Index()/64)...)
	for len(set) > 0 {
		var word [8]byte
		set = set[copy(word[:], set):]
		f.words = append(f.words, binary.LittleEndian.Uint64(word[:]))
	}
	f.done = append(f.done, event.Set{First: h.First(), Events: f.words[begin:len(f.words):len(f.words)]})
	return nil
}

func (f *verdictsFrame) parseVerdict(b []byte) bool {
	handle, b := hotframe.Number(b, verdictHandle)
	kind, b := hotframe.Number(b, verdictKind)
	v := event.Verdict{Handle: event.Handle(handle), Kind: kindOf(kind)}
	if len(b) > 0 { // rarely
		if v.Detail, b = readDetail(b); len(b) > 0 {
			return false
		}
	}
	f.verdicts = append(f.verdicts, v)
	return true
}

// readDetail reads the fields that few verdicts have. What it cannot read, it leaves in rest.
func readDetail(b []byte) (_ *event.Detail, rest []byte) {
	delay, b := hotframe.Number(b, verdictDelay)
	attempts, b := hotframe.Number(b, verdictAttempts)
	reason, b := hotframe.Chunk(b, verdictReason)
	first, b := hotframe.Chunk(b, verdictFirstError)
	epoch, b := readPosition(b, verdictEpoch)
	owner, b := hotframe.Chunk(b, verdictOwner)
	crashes, b := hotframe.Number(b, verdictCrashes)
	outcome, b := hotframe.Number(b, verdictOutcome)
	reply, b := hotframe.Chunk(b, verdictReply)
	code, b := hotframe.Chunk(b, verdictCode)
	token, b := hotframe.Number(b, verdictToken)
	turn, b := hotframe.Number(b, verdictTurn)
	remaining, b := hotframe.Number(b, verdictRemaining)
	d := event.Detail{
		Reply: replyOf(outcome, bytes.Clone(reply), textOf(code)), Grant: grantOf(int64(token), turn, remaining),
		Delay: hotframe.Duration(delay, delayMax), Attempts: uint32(attempts), Crashes: uint32(crashes),
		Reason: textOf(reason), FirstError: textOf(first), Epoch: epoch, Owner: textOf(owner),
	}
	if d == (event.Detail{}) {
		return nil, b
	}
	return &d, b
}

// textOf returns a peer's text as UTF-8: gRPC could not pass another one on to a caller.
func textOf(b []byte) string { return hotframe.Text(string(b)) }

// kindOf reads a kind. An unknown kind makes the event be sent again: running it twice is
// safe, loss is not.
func kindOf(n uint64) event.VerdictKind {
	if kind := uint32(n); kind > 0 && kind <= uint32(event.Granted) { // protobuf cuts excess bits of a kind off
		return event.VerdictKind(kind)
	}
	return event.NotYet
}

// delayMax is longer than any delay that settings allow, and so short that its sum with the time of day is in nanoseconds since 1970.
const delayMax = 100 * 365 * 24 * time.Hour

// grantOf returns the beginning of a reservation, nil if all its fields are zero.
func grantOf(token int64, turn, remaining uint64) *event.Grant {
	if token == 0 && turn == 0 && remaining == 0 {
		return nil
	}
	return &event.Grant{Fence: event.Fence{Token: token, Turn: turn}, Remaining: nanoseconds(remaining)}
}

// nanoseconds reads a duration; one that is longer than any permission counts as none.
func nanoseconds(ns uint64) time.Duration {
	if ns > uint64(time.Hour) {
		return 0
	}
	return time.Duration(ns)
}

// replyOf returns the answer to a call, nil if all its fields are zero.
func replyOf(outcome uint64, payload []byte, code string) *event.Reply {
	if outcome == 0 && len(payload) == 0 && code == "" {
		return nil
	}
	r := &event.Reply{Outcome: event.CallUnknown, Payload: payload, Code: code}
	if o := uint32(outcome); o > 0 && o <= uint32(event.CallUnknown) { // protobuf cuts excess bits of an outcome off
		r.Outcome = event.CallOutcome(o)
	}
	return r
}
