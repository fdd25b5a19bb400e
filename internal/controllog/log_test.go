package controllog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
)

// A machine that opens a reader gets the answer, and then every record in order.
func TestLogDeliversRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startLog(t, NewMem())
		n.log.OpenReader(ownership.OpenReader{Reader: 1})
		n.want(t, ownership.ReaderOpened{Reader: 1})
		for seq := range uint64(3) {
			n.log.Append(ownership.Append{Record: beat(seq)})
			n.want(t, ownership.AppendDone{Record: beat(seq)},
				ownership.RecordRead{Reader: 1, At: event.Position{Ledger: 1, Entry: int64(seq)}, Record: beat(seq)})
		}
	})
}

// A new reader ends the old one: nothing more comes from it.
func TestLogReplacesReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		n := startLog(t, mem)
		n.log.OpenReader(ownership.OpenReader{Reader: 1})
		n.want(t, ownership.ReaderOpened{Reader: 1})
		first := mem.Put(encoded(t, beat(1)))
		n.want(t, ownership.RecordRead{Reader: 1, At: first, Record: beat(1)})
		n.log.OpenReader(ownership.OpenReader{Reader: 2, At: first})
		n.want(t, ownership.ReaderOpened{Reader: 2}, ownership.RecordRead{Reader: 2, At: first, Record: beat(1)})
		second := mem.Put(encoded(t, beat(2)))
		n.want(t, ownership.RecordRead{Reader: 2, At: second, Record: beat(2)})
	})
}

// Bytes that are no record of ours come as a record without a body, at their
// position, and are counted.
func TestLogDeliversWhatItCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		n := startLog(t, mem)
		n.log.OpenReader(ownership.OpenReader{Reader: 1})
		n.want(t, ownership.ReaderOpened{Reader: 1})
		foreign := beat(1)
		foreign.Group = "other"
		at := mem.Put(encoded(t, foreign))
		foreign.Body = nil
		n.want(t, ownership.RecordRead{Reader: 1, At: at, Record: foreign})
		at = mem.Put([]byte("garbage"))
		n.want(t, ownership.RecordRead{Reader: 1, At: at})
		at = mem.Put(encoded(t, beat(2)))
		n.want(t, ownership.RecordRead{Reader: 1, At: at, Record: beat(2)})
		for reason, want := range map[string]float64{"group": 1, "malformed": 1, "version": 0} {
			if got := testutil.ToFloat64(n.metrics.bad.WithLabelValues(reason)); got != want {
				t.Errorf("%v records counted as %s, want %v", got, reason, want)
			}
		}
	})
}

// Records of others, which come as fast as their writer likes, write few log lines; the metric counts all.
func TestLogOfManyBadRecordsWritesFewLines(t *testing.T) {
	var lines strings.Builder
	metrics := NewMetrics(prometheus.NewRegistry())
	l, err := New(testConfig(), NewMem(), func(ownership.Input) {}, slog.New(slog.NewTextHandler(&lines, nil)), metrics)
	if err != nil {
		t.Fatal(err)
	}
	const records = 1000
	for i := range int64(records) {
		l.decode(Entry{At: event.Position{Ledger: 1, Entry: i}, Data: []byte("garbage")})
	}
	if n := strings.Count(lines.String(), "record skipped"); n == 0 || n > 100 {
		t.Errorf("%d records wrote %d lines", records, n)
	}
	if got := testutil.ToFloat64(metrics.bad.WithLabelValues("malformed")); got != records {
		t.Errorf("%v records are counted, want %d", got, records)
	}
}

// Before a cold start a log counts as one that held a group if members have written to it. Later
// records from members of a replaced log do not count.
func TestLogReadsItsFirstRecords(t *testing.T) {
	before := event.Position{Ledger: 1, Entry: 3} // three records, then the position before them
	beatAfter := func(applied event.Position) ownership.Record {
		r := beat(1)
		r.Body = &ownership.Beat{Applied: applied}
		return r
	}
	stale := beatAfter(event.Position{Ledger: 800, Entry: 1})
	for name, c := range map[string]struct {
		records []ownership.Record
		virgin  bool
	}{
		"Hellos":                          {[]ownership.Record{hello(), hello(), hello()}, true},
		"a Beat of a member":              {[]ownership.Record{hello(), beatAfter(event.Position{Ledger: 1}), hello()}, false},
		"a Beat of a member of elsewhere": {[]ownership.Record{stale, hello(), stale}, true},
		"a Beat that comes later":         {[]ownership.Record{hello(), hello(), hello(), beatAfter(event.Position{Ledger: 1})}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := NewMem()
				n := startLog(t, mem)
				for _, r := range append(c.records, hello()) {
					mem.Put(encoded(t, r))
				}
				n.log.ReadFirst(ownership.ReadFirst{Read: 7, Before: before})
				n.want(t, ownership.FirstRead{Read: 7, Virgin: c.virgin, First: event.Position{Ledger: 1}})
			})
		})
	}
}

// Readers hash the bytes of a record, whether or not they can read it: the same bytes give the
// same hash, and the smallest difference another one.
func TestLogHashesRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		n := startLog(t, mem)
		n.log.OpenReader(ownership.OpenReader{Reader: 1})
		n.want(t, ownership.ReaderOpened{Reader: 1})
		unknown := append(encoded(t, beat(1)), 0xf8, 0x7f, 1) // field 2047, which is unknown
		for _, data := range [][]byte{encoded(t, beat(1)), encoded(t, beat(1)), unknown, []byte("garbage"), []byte("garbagf")} {
			mem.Put(data)
		}
		time.Sleep(time.Second) // of the bubble's clock
		synctest.Wait()
		var sums []uint64
		for _, in := range n.heard {
			sums = append(sums, in.(ownership.RecordRead).Sum)
		}
		if len(sums) != 5 || sums[0] != sums[1] || sums[0] == sums[2] || sums[3] == sums[4] || slices.Contains(sums, 0) {
			t.Errorf("hashes %x", sums)
		}
	})
}

// A check returns the two records, whether they are contiguous or not, and reports when it has no answer.
func TestLogChecksContiguity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		n := startLog(t, mem)
		var at []event.Position
		for seq := range uint64(4) {
			at = append(at, mem.Put(encoded(t, beat(seq))))
			mem.Roll()
		}
		n.log.CheckContiguity(ownership.CheckContiguity{Check: 1, Last: at[0], Queued: at[1]})
		n.want(t, ownership.CheckAnswer{Check: 1, First: at[0], Second: at[1]})

		n.log.CheckContiguity(ownership.CheckContiguity{Check: 2, Last: at[0], Queued: at[2]})
		n.want(t, ownership.CheckAnswer{Check: 2, First: at[0], Second: at[1]})

		mem.Forget(at[2])
		n.log.CheckContiguity(ownership.CheckContiguity{Check: 3, Last: at[0], Queued: at[1]})
		n.want(t, ownership.CheckAnswer{Check: 3, First: at[2], Second: at[3]})

		began := time.Now()
		n.log.CheckContiguity(ownership.CheckContiguity{Check: 4, Last: at[3], Queued: at[3]})
		n.want(t, ownership.CheckAnswer{Check: 4, Failed: true})
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("a check without an answer took %v, want 300 ms", took)
		}
	})
}

// A later check takes the place of one that has no answer yet.
func TestLogReplacesCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		n := startLog(t, mem)
		a, b := mem.Put(encoded(t, beat(1))), mem.Put(encoded(t, beat(2)))
		n.log.CheckContiguity(ownership.CheckContiguity{Check: 1, Last: b, Queued: b}) // hangs
		synctest.Wait()
		n.log.CheckContiguity(ownership.CheckContiguity{Check: 2, Last: a, Queued: b})
		n.want(t, ownership.CheckAnswer{Check: 2, First: a, Second: b})
		time.Sleep(time.Second)
		n.want(t)
	})
}

// A third Beat is not sent while two are under way; other records are.
func TestLogLimitsBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowAppends{Mem: NewMem()}
		n := startLog(t, slow)
		for seq := range uint64(3) {
			n.log.Append(ownership.Append{Record: beat(seq)})
		}
		n.want(t, ownership.AppendDone{Record: beat(2), Failed: true})
		n.log.Append(ownership.Append{Record: hello()})
		slow.release(nil)
		n.want(t, ownership.AppendDone{Record: beat(0)}, ownership.AppendDone{Record: beat(1)}, ownership.AppendDone{Record: hello()})
		n.log.Append(ownership.Append{Record: beat(3)})
		slow.release(errors.New("no broker"))
		n.want(t, ownership.AppendDone{Record: beat(3), Failed: true})
	})
}

// There is a limit for records of all kinds too, and each refusal is answered.
func TestLogLimitsAppends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowAppends{Mem: NewMem()}
		n := startLog(t, slow)
		appendsMax := DefaultConfig().AppendsMax
		for range appendsMax + 2 {
			n.log.Append(ownership.Append{Record: hello()})
		}
		n.want(t, ownership.AppendDone{Record: hello(), Failed: true}, ownership.AppendDone{Record: hello(), Failed: true})
		slow.release(nil)
		var all []ownership.Input
		for range appendsMax {
			all = append(all, ownership.AppendDone{Record: hello()})
		}
		n.want(t, all...)
		for seq := range uint64(3) { // the limit for Beats is what it was
			n.log.Append(ownership.Append{Record: beat(seq)})
		}
		n.want(t, ownership.AppendDone{Record: beat(2), Failed: true})
		slow.release(nil)
		n.want(t, ownership.AppendDone{Record: beat(0)}, ownership.AppendDone{Record: beat(1)})
	})
}

// moving is a log that notes where its anchor goes; the first move fails.
type moving struct {
	*Mem

	to []event.Position
}

func (m *moving) MoveAnchor(_ context.Context, to event.Position) error {
	if m.to = append(m.to, to); len(m.to) == 1 {
		return errors.New("no broker")
	}
	return nil
}

// The anchor goes where the machine says; a failure is counted, and the next move has its effect.
func TestLogMovesTheAnchor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &moving{Mem: NewMem()}
		n := startLog(t, log)
		want := []event.Position{{Ledger: 1, Entry: 2}, {Ledger: 1, Entry: 5}}
		for _, to := range want {
			n.log.MoveAnchor(ownership.MoveAnchor{To: to})
			synctest.Wait()
		}
		if !slices.Equal(log.to, want) {
			t.Errorf("the anchor went to %v, want %v", log.to, want)
		}
		for result, want := range map[string]float64{"ok": 1, "failed": 1} {
			if got := testutil.ToFloat64(n.metrics.anchors.WithLabelValues(result)); got != want {
				t.Errorf("%v moves are counted as %s, want %v", got, result, want)
			}
		}
	})
}

// A record that cannot be written down fails at once and leaves no trace.
func TestLogRefusesWhatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		n := startLog(t, mem)
		bad := ownership.Record{LogVersion: ownership.LogVersionMin, Group: group, Inc: ownership.Incarnation{1}}
		n.log.Append(ownership.Append{Record: bad})
		n.want(t, ownership.AppendDone{Record: bad, Failed: true})
		if _, got := mem.end(); got.Entry != 0 {
			t.Errorf("the log continues at %v", got)
		}
	})
}

// A reader that breaks is reported once, and never opened again unasked.
func TestLogReportsLostReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &brokenTails{Mem: NewMem()}
		n := startLog(t, broken)
		n.log.OpenReader(ownership.OpenReader{Reader: 1})
		n.want(t, ownership.ReaderOpened{Reader: 1}, ownership.ReaderFailed{Reader: 1})
		time.Sleep(time.Minute)
		n.want(t)
		if broken.opened != 1 {
			t.Errorf("%d readers were opened, want 1", broken.opened)
		}
	})
}

// Duplicates and delays below change neither the order nor the delivered records; the machine drops
// duplicates.
func TestLogOverDisorderlyTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startLog(t, &disorderly{Mem: NewMem(), delay: 20 * time.Millisecond})
		n.log.OpenReader(ownership.OpenReader{Reader: 1})
		n.want(t, ownership.ReaderOpened{Reader: 1})
		n.log.Append(ownership.Append{Record: beat(1)})
		n.log.Append(ownership.Append{Record: beat(2)})
		n.want(t, ownership.AppendDone{Record: beat(1)}, ownership.AppendDone{Record: beat(2)})
		time.Sleep(time.Second)
		var want []ownership.Input
		for entry, seq := range []uint64{1, 1, 2, 2} { // each was appended twice
			read := ownership.RecordRead{Reader: 1, At: event.Position{Ledger: 1, Entry: int64(entry)}, Record: beat(seq)}
			want = append(want, read, read) // and read twice
		}
		n.want(t, want...)
	})
}

// Run ends with its context, also while the driver takes nothing, and with the error
// of a log that cannot be used.
func TestLogRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		ctx, cancel := context.WithCancel(t.Context())
		stuck := func(ownership.Input) { <-ctx.Done() }
		log, err := New(testConfig(), mem, stuck, quiet(), NewMetrics(prometheus.NewRegistry()))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- log.Run(ctx) }()
		log.OpenReader(ownership.OpenReader{Reader: 1})
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}

		log, err = New(testConfig(), &unusable{Mem: mem}, func(ownership.Input) {}, quiet(), NewMetrics(prometheus.NewRegistry()))
		if err != nil {
			t.Fatal(err)
		}
		log.OpenReader(ownership.OpenReader{Reader: 1})
		if err := log.Run(t.Context()); !errors.Is(err, ErrPartitioned) {
			t.Errorf("Run = %v, want ErrPartitioned", err)
		}
	})
}

// A log in memory forgets its oldest records rather than grow for ever, and tells no
// reader that it did, like a broker.
func TestMemIsBounded(t *testing.T) {
	mem := NewMem()
	for range memRecordsMax + 1 {
		mem.Put(nil)
	}
	entries, _ := mem.from(event.Position{})
	if len(entries) > memRecordsMax {
		t.Errorf("%d records are kept, want <= %d", len(entries), memRecordsMax)
	}
	if last := entries[len(entries)-1].At; last.Entry != memRecordsMax {
		t.Errorf("the newest record is %v, want entry %d", last, memRecordsMax)
	}
}

// Validate accepts the defaults and names every field that is wrong.
func TestConfigValidate(t *testing.T) {
	for name, c := range map[string]struct {
		good func() error
		bad  func() error
		want []string
	}{
		"Config": {
			testConfig().Validate, Config{}.Validate,
			[]string{"beats_max", "appends_max", "prefetch", "check_timeout", "anchor_timeout"},
		},
		"RemoteConfig": {
			func() error { c := DefaultRemoteConfig(); c.Topic = "log"; return c.Validate() }, RemoteConfig{}.Validate,
			[]string{"Topic", "QueueMax", "SendTimeout"},
		},
		"PulsarConfig": {
			func() error { c := DefaultPulsarConfig(); c.Topic = "persistent://a/b/c"; return c.Validate() }, PulsarConfig{}.Validate,
			[]string{"Topic", "PendingMax", "SendTimeout", "ReconnectMax", "OperationTimeout", "KeepAlive"},
		},
	} {
		if err := c.good(); err != nil {
			t.Errorf("%s: good values were refused: %v", name, err)
		}
		err := c.bad()
		for _, field := range c.want {
			if err == nil || !strings.Contains(err.Error(), field+" ") {
				t.Errorf("%s: Validate does not name %s: %v", name, field, err)
			}
		}
	}
}

// node is a log with the inputs that it has delivered.
type node struct {
	log     *Log
	metrics *Metrics

	mu    sync.Mutex
	heard []ownership.Input
}

// startLog runs a log until the test ends. It must be called in a bubble.
func startLog(t *testing.T, transport Transport) *node {
	t.Helper()
	n := &node{metrics: NewMetrics(prometheus.NewRegistry())}
	var err error
	if n.log, err = New(testConfig(), transport, n.hear, quiet(), n.metrics); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.log.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return n
}

func (n *node) hear(in ownership.Input) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, in)
}

// want waits for as many inputs as are wanted, and then until all is still. Answers
// to appends and the records of the tail come from two goroutines: each of the two
// kinds must be in order.
func (n *node) want(t *testing.T, want ...ownership.Input) {
	t.Helper()
	for range 100 {
		synctest.Wait()
		n.mu.Lock()
		enough := len(n.heard) >= len(want)
		n.mu.Unlock()
		if enough {
			break
		}
		time.Sleep(10 * time.Millisecond) // of the bubble's clock
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if got, want := show(n.heard), show(want); got != want {
		t.Fatalf("got:\n%swant:\n%s", got, want)
	}
	n.heard = nil
}

// show writes inputs out, answers to appends first.
func show(inputs []ownership.Input) string {
	var answers, rest strings.Builder
	for _, in := range inputs {
		switch in := in.(type) {
		case ownership.AppendDone:
			fmt.Fprintf(&answers, "  appended, failed=%t: %s\n", in.Failed, showRecord(in.Record))
		case ownership.RecordRead:
			fmt.Fprintf(&rest, "  reader %d at %v: %s\n", in.Reader, in.At, showRecord(in.Record))
		default:
			fmt.Fprintf(&rest, "  %T%+v\n", in, in)
		}
	}
	return answers.String() + rest.String()
}

// showRecord formats a record with its body, which %+v would show as a pointer.
func showRecord(r ownership.Record) string {
	return fmt.Sprintf("%d %q %v %+v", r.LogVersion, r.Group, r.Inc, r.Body)
}

func testConfig() Config {
	cfg := DefaultConfig()
	cfg.Group = group
	return cfg
}

func beat(seq uint64) ownership.Record {
	return ownership.Record{
		LogVersion: ownership.LogVersionMin, Group: group, Inc: ownership.Incarnation{1},
		Body: &ownership.Beat{Seq: seq, Draining: ownership.SetOf(1, 2)},
	}
}

func hello() ownership.Record {
	return ownership.Record{
		LogVersion: ownership.LogVersionMin, Group: group, Inc: ownership.Incarnation{1},
		Body: &ownership.Hello{Node: ownership.Node{Name: "n", Inc: ownership.Incarnation{1}, Lease: time.Second}},
	}
}

func encoded(t *testing.T, r ownership.Record) []byte {
	t.Helper()
	data, err := Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// slowAppends answers appends only on demand.
type slowAppends struct {
	*Mem
	mu   sync.Mutex
	done []func(error)
}

func (s *slowAppends) Append(_ []byte, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = append(s.done, done)
}

func (s *slowAppends) release(err error) {
	s.mu.Lock()
	all := s.done
	s.done = nil
	s.mu.Unlock()
	for _, done := range all {
		done(err)
	}
}

// brokenTails loses each reader as soon as it stands.
type brokenTails struct {
	*Mem
	opened int
}

func (b *brokenTails) Tail(_ context.Context, _ event.Position, _ int, opened func(), _ func(Entry)) error {
	b.opened++
	opened()
	return ErrReaderLost
}

// disorderly appends and delivers everything twice, and late.
type disorderly struct {
	*Mem
	delay time.Duration
}

func (d *disorderly) Append(data []byte, done func(error)) {
	d.Put(data)
	d.Put(data)
	done(nil)
}

func (d *disorderly) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error {
	return d.Mem.Tail(ctx, from, prefetch, opened, func(e Entry) {
		time.Sleep(d.delay)
		record(e)
		record(e)
	})
}

// unusable is a log that Run refuses.
type unusable struct{ *Mem }

func (unusable) Run(context.Context) error { return ErrPartitioned }
