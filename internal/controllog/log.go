package controllog

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/setting"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Log lines about records that cannot be read: any writer of the topic can cause them.
const (
	skippedEvery = time.Second
	skippedBurst = 20
	failedEvery  = 10 * time.Second // while the broker is away a member writes twice a second
	failedBurst  = 3
)

// Config of a [Log].
type Config struct {
	Group string `from:"node.group"` // whose records are read and written

	BeatsMax   int `min:"1"`              // most Beats in flight; a further one fails at once, since a Beat that waits is useless
	AppendsMax int `min:"2"`              // most records of any kind in flight
	Prefetch   int `min:"2" max:"100000"` // most records that the reader prefetches

	CheckTimeout  time.Duration `above:"0"`   // timeout of the short-lived reader of a contiguity check, if that of ownership is not longer
	AnchorTimeout time.Duration `min:"100ms"` // timeout of a move of the anchor
	FirstTimeout  time.Duration `min:"100ms"` // longest attempt to read the log before a cold start; the next one continues where it ended
}

// DefaultConfig returns the protocol's defaults, without a group.
func DefaultConfig() Config {
	return Config{
		BeatsMax:      2,
		AppendsMax:    16,
		Prefetch:      1000,
		CheckTimeout:  300 * time.Millisecond,
		AnchorTimeout: 30 * time.Second,
		FirstTimeout:  4 * time.Second,
	}
}

// Validate reports every field that is out of the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }

// Log performs the effects OpenReader, CheckContiguity, Append, MoveAnchor and ReadFirst of an
// ownership machine and delivers the inputs that answer them, and the records.
//
// The effect methods never block and may be called by any goroutine, before and
// during Run; of readers, checks and anchors the newest request replaces the one
// before. The lifecycle belongs to [Log.Run].
type Log struct {
	cfg       Config
	transport Transport
	deliver   func(ownership.Input)
	log       *slog.Logger
	metrics   *Metrics
	skipped   *loglimit.Limit
	failed    *loglimit.Limit // lines about appends

	wake chan struct{} // cap 1: there is something in todo

	mu      sync.Mutex
	todo    todo
	beats   int // under way
	appends int // under way, with the Beats
	first   progress

	notWritten, notRead error // why the newest append or reader has failed; nil: it has not
}

// progress holds the records that attempts of ReadFirst have read. Only the running attempt uses it.
type progress struct {
	head    head
	stretch *stretch // nil: none was read
}

// head holds the records that were read from the first one on, in one or several attempts.
type head struct {
	first, last event.Position // zero: none was read
	told        ownership.Token
	later       uint32 // the greatest log version of the group's records that this build does not read
}

// stretch holds the records that were read from the anchor on, in one or several attempts.
type stretch struct {
	ownership.Stretch

	last event.Position // of these; zero: none
}

// todo is the work that the effect methods leave for Run's goroutine.
type todo struct {
	open    *ownership.OpenReader
	check   *ownership.CheckContiguity
	anchor  *event.Position
	first   *ownership.ReadFirst
	answers []ownership.Input // of appends; no more than the caller has asked for
}

// New returns a Log over a transport. It does no I/O.
//
// deliver is called by several goroutines of Run, for the records of one reader in
// their order. It may block until the driver takes the input, but must return once
// Run's context has ended. An effect method may be called from within it.
func New(cfg Config, transport Transport, deliver func(ownership.Input), log *slog.Logger, metrics *Metrics) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log = log.With("component", "controllog")
	return &Log{
		cfg:       cfg,
		transport: transport,
		deliver:   deliver,
		log:       log,
		metrics:   metrics,
		skipped:   loglimit.NewBurst(log, "controllog_skipped", skippedEvery, skippedBurst, metrics.lines),
		failed:    loglimit.NewBurst(log, "controllog_failed", failedEvery, failedBurst, metrics.lines),
		wake:      make(chan struct{}, 1),
	}, nil
}

// OpenReader closes the present tail and opens another one, answered by
// ownership.ReaderOpened or ReaderFailed; then come its records. A few records of the
// earlier reader may still come.
func (l *Log) OpenReader(eff ownership.OpenReader) {
	l.ask(func(t *todo) { t.open = &eff })
}

// CheckContiguity reads two records from eff.Last on with a reader of its own,
// answered by ownership.CheckAnswer. Whether to try again is the machine's decision.
func (l *Log) CheckContiguity(eff ownership.CheckContiguity) {
	l.ask(func(t *todo) { t.check = &eff })
}

// MoveAnchor lets the log delete the records before the position. It has no answer; a failure
// is logged and counted, and the next move makes up for it.
func (l *Log) MoveAnchor(eff ownership.MoveAnchor) {
	l.ask(func(t *todo) { t.anchor = &eff.To })
}

// ReadFirst reads the log from its very first record with a reader of its own, answered by
// ownership.FirstRead. Whether to try again is the machine's decision.
func (l *Log) ReadFirst(eff ownership.ReadFirst) {
	l.ask(func(t *todo) { t.first = &eff })
}

// Append sends one record, answered by ownership.AppendDone.
func (l *Log) Append(eff ownership.Append) {
	record := eff.Record
	data, err := Encode(record)
	if err != nil {
		l.appended(record, err)
		return
	}
	if !l.admit(record) {
		l.appended(record, errBusy)
		return
	}
	began := clock.Now()
	l.transport.Append(data, func(err error) {
		l.metrics.appendSeconds.Observe(clock.Now().Sub(began).Seconds())
		l.release(record)
		l.appended(record, err)
	})
}

// Fault returns why the log cannot be written or read, nil if the newest append and the newest reader have not failed.
func (l *Log) Fault() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.notWritten, l.notRead)
}

// note keeps the result of the newest append or reader.
func (l *Log) note(of *error, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*of = err
}

// Run connects the transport and performs requested effects until ctx ends. It returns nil when
// ctx ends, and an error if the log cannot be used at all.
func (l *Log) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.transport.Run(ctx) })
	group.Go(func() error {
		l.perform(ctx, group)
		return nil
	})
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// perform starts the effects that the methods have queued.
func (l *Log) perform(ctx context.Context, group *errgroup.Group) {
	stopTail, stopCheck, stopAnchor, stopFirst := func() {}, func() {}, func() {}, func() {}
	start := func(stop *func(), run func(context.Context)) {
		(*stop)()
		var sub context.Context
		sub, *stop = context.WithCancel(ctx)
		group.Go(func() error {
			run(sub)
			return nil
		})
	}
	defer func() { stopTail(); stopCheck(); stopAnchor(); stopFirst() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		work := l.takeTodo()
		for _, answer := range work.answers {
			l.deliver(answer)
		}
		if eff := work.open; eff != nil {
			start(&stopTail, func(ctx context.Context) { l.tail(ctx, *eff) })
		}
		if eff := work.check; eff != nil {
			start(&stopCheck, func(ctx context.Context) { l.check(ctx, *eff) })
		}
		if eff := work.first; eff != nil {
			start(&stopFirst, func(ctx context.Context) { l.readFirst(ctx, *eff) })
		}
		if to := work.anchor; to != nil {
			start(&stopAnchor, func(ctx context.Context) { l.moveAnchor(ctx, *to) })
		}
	}
}

// tail is one reader, from its opening to its end.
func (l *Log) tail(ctx context.Context, eff ownership.OpenReader) {
	l.metrics.readers.WithLabelValues("opened").Inc()
	err := l.transport.Tail(ctx, eff.At, l.cfg.Prefetch,
		func() {
			l.log.Debug("reader opened", "reader", eff.Reader, "position", eff.At)
			l.note(&l.notRead, nil)
			l.deliver(ownership.ReaderOpened{Reader: eff.Reader})
		},
		func(e Entry) {
			record := l.decode(e)
			if ctx.Err() == nil { // a reader that was replaced need not be heard
				l.deliver(ownership.RecordRead{Reader: eff.Reader, At: e.At, Record: record, Sum: SumOf(e.Data)})
			}
		})
	if ctx.Err() != nil {
		return
	}
	l.note(&l.notRead, err)
	l.metrics.readers.WithLabelValues("failed").Inc()
	l.log.Warn("reader lost", "reader", eff.Reader, "position", eff.At, "error", err)
	l.deliver(ownership.ReaderFailed{Reader: eff.Reader})
}

// decode never fails: an unreadable record has no body.
func (l *Log) decode(e Entry) ownership.Record {
	record, err := Decode(l.cfg.Group, e.Data)
	if err != nil {
		l.metrics.bad.WithLabelValues(reasonOf(err)).Inc()
		if log, due := l.skipped.Line(); due {
			log.Warn("record skipped", "position", e.At, "error", err)
		}
		return record
	}
	l.metrics.read.WithLabelValues(kindOf(record)).Inc()
	return record
}

// check is one short reader of the contiguity rule.
func (l *Log) check(ctx context.Context, eff ownership.CheckContiguity) {
	first, second, err := readTwo(ctx, l.transport, eff.Last, max(eff.Timeout, l.cfg.CheckTimeout))
	if ctx.Err() != nil {
		return
	}
	result := "contiguous"
	switch {
	case err != nil:
		result = "failed"
		l.log.Warn("contiguity check got no answer", "last", eff.Last, "position", eff.Queued, "error", err)
	case first != eff.Last || second != eff.Queued:
		result = "torn"
		l.log.Warn("control log is not contiguous", "last", eff.Last, "position", eff.Queued, "first", first, "second", second)
	}
	l.metrics.checks.WithLabelValues(result).Inc()
	l.deliver(ownership.CheckAnswer{Check: eff.Check, First: first, Second: second, Failed: err != nil})
}

// readTwo returns the positions of the first two records at or after from.
func readTwo(ctx context.Context, t Transport, from event.Position, timeout time.Duration) (first, second event.Position, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var got []event.Position
	err = t.Tail(ctx, from, 2, func() {}, func(e Entry) {
		got = append(got, e.At)
		if len(got) == 2 {
			cancel()
		}
	})
	if len(got) < 2 {
		return event.Position{}, event.Position{}, err
	}
	return got[0], got[1], nil
}

// readFirst looks for a record that only a group with members writes. Routers whose applications are not ready may have written Hellos for
// days before it, more than can be read within FirstTimeout, so an attempt begins where the one before ended.
func (l *Log) readFirst(ctx context.Context, eff ownership.ReadFirst) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.FirstTimeout)
	defer cancel()
	read := l.takeProgress()
	answer, torn, err := l.readHead(ctx, eff, &read.head)
	if torn {
		read.head = head{}
		answer, _, err = l.readHead(ctx, eff, &read.head)
	}
	if answer == nil {
		l.log.Warn("the first record of the control log could not be read", "read_to", read.head.last, "error", err)
		answer = &ownership.FirstRead{Read: eff.Read, Failed: true}
	}
	if !answer.Failed && !answer.Virgin {
		l.readReserved(ctx, eff, &read, answer)
	}
	l.keepProgress(read)
	l.deliver(*answer)
}

// readHead continues with the reading of the log from its first record on. torn: see [readOn].
func (l *Log) readHead(ctx context.Context, eff ownership.ReadFirst, read *head) (answer *ownership.FirstRead, torn bool, err error) {
	torn, err = readOn(ctx, l.transport, First, read.last, l.cfg.Prefetch, func(e Entry) (enough bool) {
		if read.first.IsZero() {
			read.first = e.At
		}
		record, _ := Decode(l.cfg.Group, e.Data) // an unreadable record is not one of the group's members either
		virgin := !e.At.Before(eff.Before)
		if enough = virgin || ownership.HoldsGroup(e.At, record); enough {
			answer = &ownership.FirstRead{Read: eff.Read, Virgin: virgin, First: read.first, Told: read.told}
			if virgin {
				answer.Later = read.later
			}
		}
		read.last = e.At
		if record.Group == l.cfg.Group && record.LogVersion > ownership.LogVersionMax {
			read.later = max(read.later, record.LogVersion)
		}
		if h, ok := record.Body.(*ownership.Hello); ok {
			read.told = max(read.told, h.Floor)
		}
		return enough
	})
	return answer, torn, err
}

// readReserved reads what the log says of covered reservations since the anchor. A large group writes more in that time than can be read
// within FirstTimeout, so an attempt begins where the one before ended.
func (l *Log) readReserved(ctx context.Context, eff ownership.ReadFirst, kept *progress, answer *ownership.FirstRead) {
	if kept.stretch == nil {
		kept.stretch = &stretch{Stretch: ownership.Stretch{Group: l.cfg.Group, Partitions: eff.Partitions}}
	}
	read, done := kept.stretch, false
	torn, err := readOn(ctx, l.transport, Anchored, read.last, l.cfg.Prefetch, func(e Entry) (enough bool) {
		if done = !e.At.Before(eff.Before); !done && read.last.Before(e.At) {
			record, _ := Decode(l.cfg.Group, e.Data)
			read.Read(e.At, record)
			read.last = e.At
		}
		return done
	})
	if !done {
		answer.Failed = true
		l.log.Warn("the control log could not be read from the anchor to its end", "read_to", read.last, "error", err)
	}
	if torn {
		kept.stretch = nil
	}
	if done {
		var all bool
		answer.Reserved, all = read.List()
		answer.Crowded = !all
	}
}

// readOn reads records from last on, where the attempt before ended, or from start if last is zero, until one is enough. torn: the log was
// trimmed or replaced since that attempt, so that last is not there, and no record was read.
func readOn(ctx context.Context, t Transport, start, last event.Position, prefetch int, record func(Entry) (enough bool)) (torn bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	from := start
	if !last.IsZero() {
		from = last
	}
	begun, ended := false, false
	err = t.Tail(ctx, from, prefetch, func() {}, func(e Entry) {
		if ended {
			return
		}
		torn = !begun && from != start && e.At != from
		begun = true
		if ended = torn || record(e); ended {
			stop()
		}
	})
	return torn, err
}

// takeProgress returns the progress of the attempts before.
func (l *Log) takeProgress() progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	read := l.first
	l.first = progress{}
	return read
}

func (l *Log) keepProgress(read progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = read
}

func (l *Log) moveAnchor(ctx context.Context, to event.Position) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.AnchorTimeout)
	defer cancel()
	result := "ok"
	if err := l.transport.MoveAnchor(ctx, to); err != nil {
		if errors.Is(err, context.Canceled) {
			return
		}
		result = "failed"
		l.log.Warn("anchor not moved", "position", to, "error", err)
	}
	l.metrics.anchors.WithLabelValues(result).Inc()
}

// admit counts a record in, unless too many are under way already.
func (l *Log) admit(record ownership.Record) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.appends >= l.cfg.AppendsMax || isBeat(record) && l.beats >= l.cfg.BeatsMax {
		return false
	}
	l.appends++
	if isBeat(record) {
		l.beats++
	}
	return true
}

func (l *Log) release(record ownership.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appends--
	if isBeat(record) {
		l.beats--
	}
}

// appended leaves the answer to an append to Run's goroutine. The caller may be the
// driver, which would deadlock if it delivered the answer to itself, or a goroutine of
// the client, which must not block.
func (l *Log) appended(record ownership.Record, err error) {
	result := "ok"
	if !errors.Is(err, errBusy) { // which those under way explain
		l.note(&l.notWritten, err)
	}
	if err != nil {
		result = "failed"
		if errors.Is(err, errBusy) {
			result = "refused"
		}
		level := slog.LevelWarn
		if status.FromContextError(err).Code() == codes.Canceled || status.Code(err) == codes.Canceled {
			level = slog.LevelInfo // by us: the log is being closed
		}
		if log, due := l.failed.Line(); due {
			log.Log(context.Background(), level, "record not appended", "record", kindOf(record), "error", err)
		}
	}
	l.metrics.appended.WithLabelValues(kindOf(record), result).Inc()
	l.ask(func(t *todo) {
		t.answers = append(t.answers, ownership.AppendDone{Record: record, Failed: err != nil})
	})
}

func (l *Log) ask(change func(*todo)) {
	l.mu.Lock()
	change(&l.todo)
	l.mu.Unlock()
	signal.Set(l.wake)
}

func (l *Log) takeTodo() todo {
	l.mu.Lock()
	defer l.mu.Unlock()
	work := l.todo
	l.todo = todo{}
	return work
}

func isBeat(record ownership.Record) bool {
	_, ok := record.Body.(*ownership.Beat)
	return ok
}
