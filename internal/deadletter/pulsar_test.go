package deadletter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
)

// group is a topic with its dead letters on a real broker.
type group struct {
	*Broker
	t      *testing.T
	topic  string
	pulsar pulsar.Client
	client Client // of the Broker
	acts   []Record
}

func newGroup(t *testing.T, partitions int) *group {
	t.Helper()
	g := &group{t: t, topic: pulsartest.Topic(t, partitions), pulsar: pulsartest.Client(t)}
	g.client = connect(t, g.pulsar, 64<<20)
	cfg := DefaultConfig()
	cfg.LettersTopic, cfg.RetryTopic, cfg.Subscription, cfg.Topics = g.topic+"-DLQ", g.topic+"-RETRY", "kept", []string{g.topic}
	cfg.Key, cfg.Now = extractor(t), time.Now
	cfg.LateMax = 100 * time.Millisecond
	cfg.Audit = func(r Record) { g.acts = append(g.acts, r) }
	g.Broker = New(cfg, g.client)
	g.keep(cfg.LettersTopic, "kept")
	return g
}

// connect returns a client that reads messages of so many bytes.
func connect(t *testing.T, client pulsar.Client, payloadMax int) Client {
	t.Helper()
	reader, err := entries.New(ReaderConfig(pulsartest.URL(t), payloadMax), entries.Access{}, entries.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	return Connect(client, reader)
}

// keep creates a subscription, without which a topic deletes its messages.
func (g *group) keep(topic, subscription string) {
	g.t.Helper()
	consumer, err := g.pulsar.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: subscription, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest})
	if err != nil {
		g.t.Fatal(err)
	}
	consumer.Close()
}

func (g *group) publish(topic string, messages ...pulsar.ProducerMessage) {
	g.t.Helper()
	g.publishAs(pulsar.ProducerOptions{Topic: topic}, messages...)
}

func (g *group) publishAs(o pulsar.ProducerOptions, messages ...pulsar.ProducerMessage) {
	g.t.Helper()
	o.DisableBatching, o.SendTimeout = true, pulsarsend.NoTimeout
	producer, err := g.client.CreateProducer(o)
	if err != nil {
		g.t.Fatal(err)
	}
	defer producer.Close()
	for i := range messages {
		if _, err := producer.Send(g.t.Context(), &messages[i]); err != nil {
			g.t.Fatal(err)
		}
	}
}

// letter is a dead letter as a router writes it, of event n.
func (g *group) letter(n int) pulsar.ProducerMessage {
	return pulsar.ProducerMessage{
		Key: fmt.Sprintf("user-%d", n%3), Payload: []byte(strconv.Itoa(n)), EventTime: time.UnixMilli(1000),
		Properties: map[string]string{
			"colour": "red", source.PropertyMessageID: event.MessageID{Ledger: 9, Entry: int64(n), Batch: -1, TopicPartition: -1}.String(),
			source.PropertyTopic: g.topic, source.PropertyReason: "failed 10 times", source.PropertyAttempts: "10",
		},
	}
}

func (g *group) letters(numbers ...int) {
	g.t.Helper()
	var all []pulsar.ProducerMessage
	for _, n := range numbers {
		all = append(all, g.letter(n))
	}
	g.publish(g.cfg.LettersTopic, all...)
}

// held returns the payloads that a topic holds, with their numbers.
func (g *group) held(topic string) map[string]int {
	g.t.Helper()
	all := map[string]int{}
	partitions, err := g.client.TopicPartitions(topic)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, one := range partitions {
		_, _, err := g.read(g.t.Context(), one, Place{Entry: -1}, func(m *message) error {
			all[string(m.Payload)]++
			return nil
		})
		if err != nil {
			g.t.Fatal(err)
		}
	}
	return all
}

func (g *group) wantHeld(what string, want ...string) {
	g.t.Helper()
	got := g.held(g.topic)
	for payload, n := range got {
		if n != 1 {
			g.t.Errorf("%s: %q is in the topic %d times", what, payload, n)
		}
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		g.t.Errorf("%s: the topic holds %q, want %q", what, names, want)
	}
}

// waiting returns the payloads of the letters that are not acked.
func (g *group) waiting() string {
	g.t.Helper()
	var all []string
	if _, err := g.List(g.t.Context(), Selection{}, func(l *Letter) error { all = append(all, string(l.Payload)); return nil }); err != nil {
		g.t.Fatal(err)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (g *group) replay(sel Selection, change func(*Options)) (Counts, error) {
	o := Options{Who: "me@here", Why: "a test", Rate: 1000, Max: 1000}
	if change != nil {
		change(&o)
	}
	return g.ReplayLetters(g.t.Context(), sel, o)
}

func dry(o *Options) { o.DryRun = true }

func (g *group) mustReplay(sel Selection, change func(*Options)) Counts {
	g.t.Helper()
	c, err := g.replay(sel, change)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

func TestReplayLetters(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 3} {
		t.Run(strconv.Itoa(partitions), func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, partitions)
			g.keep(g.topic, "orders")
			g.letters(0, 1, 2, 3, 4, 4)
			foreign := g.letter(5)
			foreign.Properties[source.PropertyTopic] = "persistent://public/default/" + pulsartest.Name(t)
			g.publish(g.cfg.LettersTopic, foreign)

			c := g.mustReplay(Selection{}, dry)
			if c.Read != 7 || c.Sent != 5 || c.Repeated != 1 || c.Obstacles[ObstacleTopic] != 1 || len(g.acts) != 0 {
				t.Errorf("a dry run: %+v, %d acts", c, len(g.acts))
			}
			g.wantHeld("after a dry run")
			if got := g.waiting(); got != "0 1 2 3 4 4 5" {
				t.Errorf("after a dry run these wait: %s", got)
			}

			c = g.mustReplay(Selection{Keys: []string{"user-1"}}, nil)
			if c.Sent != 2 || c.Repeated != 1 {
				t.Errorf("one key: %+v", c)
			}
			g.wantHeld("one key", "1", "4")
			c = g.mustReplay(Selection{}, nil)
			if c.Sent != 3 || c.SentBefore != 0 {
				t.Errorf("the rest: %+v", c)
			}
			g.wantHeld("all", "0", "1", "2", "3", "4")
			if got := g.waiting(); got != "5" {
				t.Errorf("at the end these wait: %s", got)
			}
			if len(g.acts) != 4 || g.acts[3].Step != StepEnded || g.acts[3].Who != "me@here" || g.acts[3].Why != "a test" || g.acts[3].Counts.Sent != 3 {
				t.Errorf("the acts are %+v", g.acts)
			}
		})
	}
}

// TestReplayedEventIsTheOriginal: content, key and properties are those of the original, with the marks.
func TestReplayedEventIsTheOriginal(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	ordered := g.letter(4)
	ordered.OrderingKey = "order-4"
	g.publish(g.cfg.LettersTopic, ordered)
	null := g.letter(5)
	null.Payload = nil
	g.publish(g.cfg.LettersTopic, null)
	g.mustReplay(Selection{}, nil)
	var all []*message
	if _, _, err := g.read(t.Context(), g.topic, Place{Entry: -1}, func(m *message) error { all = append(all, m); return nil }); err != nil {
		t.Fatal(err)
	}
	m := all[0]
	if m.MessageKey != "user-1" || m.OrderingKey != "order-4" || string(m.Payload) != "4" || m.EventTime != 1000 || m.Null || !all[1].Null {
		t.Errorf("it is key %q, payload %q, event time %v", m.MessageKey, m.Payload, m.EventTime)
	}
	p := map[string]string{}
	for _, one := range m.Properties {
		p[one.Name] = one.Value
	}
	if p["colour"] != "red" || p[PropertyReplayOf] != "9:4:-1:-1" || p[PropertyReplayAct] != g.acts[0].Act || p[PropertyReplayLetter] == "" || len(p) != 4 {
		t.Errorf("its properties are %v", p)
	}
}

// interrupt records a batch, sends so many events of it and ends before it acks any, as a command that is killed at that moment.
func (g *group) interrupt(sent int, numbers ...int) {
	g.t.Helper()
	ctx := g.t.Context()
	a, err := g.begin(ctx, Record{What: ActReplayLetters, Who: "me@here", Why: "a test", Selection: &Selection{}}, false)
	if err != nil {
		g.t.Fatal(err)
	}
	defer a.close()
	s := newSender(a, 1000)
	defer s.close()
	if err := s.open(ctx, g.topic); err != nil {
		g.t.Fatal(err)
	}
	r := Record{Act: a.act.Act, Step: StepSending, From: maps.Clone(s.ends[g.topic])}
	var batch []batched
	reach, err := g.Broker.letters(ctx, func(l *received) error {
		n, err := strconv.Atoi(string(l.Payload))
		if err != nil || !slices.Contains(numbers, n) {
			return err
		}
		e := batched{outgoing: l.again(g.topic, l.origin(), map[string]string{PropertyReplayLetter: l.ID.String()}), sent: l.sent()}
		batch, r.Letters = append(batch, e), append(r.Letters, e.sent)
		return nil
	}, nothing)
	if err != nil || len(batch) != len(numbers) {
		g.t.Fatalf("%d letters were read, want %v (%s): %v", len(batch), numbers, reach, err)
	}
	r.Ends, err = a.lastLetters(ctx)
	if err := errors.Join(err, a.record(ctx, r)); err != nil {
		g.t.Fatal(err)
	}
	if confirmed, _, err := s.send(ctx, batch[:sent], &Counts{}); err != nil || len(confirmed) != sent {
		g.t.Fatalf("%d of %d sent: %v", len(confirmed), sent, err)
	}
}

// TestInterruptedReplay: the next replay finds out what the last one has sent, whatever it selects itself.
func TestInterruptedReplay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before  []string // that the topic held
		chunked bool     // as messages of several entries
		sent    int
		want    Counts
	}{
		"sent, not acked":                {nil, false, 2, Counts{Sent: 2, SentBefore: 2}},
		"sent, with events before":       {[]string{"x", "y"}, false, 2, Counts{Sent: 2, SentBefore: 2}},
		"sent, chunks before":            {[]string{"xxx", "yyy"}, true, 2, Counts{Sent: 2, SentBefore: 2}},
		"sent, a large event before":     {[]string{strings.Repeat("x", 40)}, true, 2, Counts{Sent: 2, SentBefore: 2}},
		"one of them sent":               {[]string{"x"}, false, 1, Counts{Sent: 3, SentBefore: 1}},
		"recorded, events before it":     {[]string{"x"}, false, 0, Counts{Sent: 4}},
		"recorded, chunks before it":     {[]string{"xxx"}, true, 0, Counts{Sent: 4}},
		"recorded, a large event before": {[]string{strings.Repeat("x", 40)}, true, 0, Counts{Sent: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 0)
			g.keep(g.topic, "orders")
			for _, payload := range c.before {
				o := pulsar.ProducerOptions{Topic: g.topic, EnableChunking: c.chunked}
				if c.chunked {
					o.ChunkMaxMessageSize = 1
				}
				g.publishAs(o, pulsar.ProducerMessage{Payload: []byte(payload)})
			}
			g.letters(0, 1, 2, 3)
			g.interrupt(c.sent, 1, 2)
			if got := g.waiting(); got != "0 1 2 3" {
				t.Fatalf("after the interruption these wait: %s", got)
			}
			if d := g.mustReplay(Selection{}, dry); d.Doubt != 2 || d.Sent != 2 {
				t.Errorf("a dry run: %+v", d)
			}
			got := g.mustReplay(Selection{}, nil)
			if got.Sent != c.want.Sent || got.SentBefore != c.want.SentBefore {
				t.Errorf("sent %d, sent before %d, want %d, %d", got.Sent, got.SentBefore, c.want.Sent, c.want.SentBefore)
			}
			g.wantHeld("at the end", append([]string{"0", "1", "2", "3"}, c.before...)...)
			if got := g.waiting(); got != "" {
				t.Errorf("at the end these wait: %s", got)
			}
			if memory, err := g.remember(t.Context()); err != nil || len(memory.interrupted()) > 0 || memory.foreign > 0 {
				t.Errorf("at the end %+v count as interrupted, and %d records as foreign: %v", memory.interrupted(), memory.foreign, err)
			}
		})
	}
}

// TestReplayAfterAnInterruptedOne: it waits for messages that the broker may still be handling.
func TestReplayAfterAnInterruptedOne(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(1)
	g.interrupt(0, 1)
	g.cfg.LateMax = time.Hour
	g.over(g.client)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if c, err := g.ReplayLetters(ctx, Selection{}, Options{Who: "me@here", Why: "a test", Rate: 100, Max: 100}); !errors.Is(err, context.DeadlineExceeded) || c.Sent != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	g.wantHeld("while it waits")
}

// TestInterruptedReplayOfLargeLetters: events that are sent as several chunks are found like others, as the first of a topic, and as the last before a batch.
func TestInterruptedReplayOfLargeLetters(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.cfg.QuietMax = time.Minute // a busy machine takes its time for a large letter
	g.keep(g.topic, "orders")
	large := g.letter(1)
	large.Payload = append(bytes.Repeat([]byte{'0'}, 6<<20), '1') // of two chunks; the number 1
	g.publishAs(pulsar.ProducerOptions{Topic: g.cfg.LettersTopic, EnableChunking: true}, large)
	g.letters(2, 3)
	g.interrupt(1, 1) // the topic was empty
	g.interrupt(1, 2)
	g.interrupt(0, 3)
	if c := g.mustReplay(Selection{}, nil); c.Sent != 1 || c.SentBefore != 2 {
		t.Errorf("sent %d, sent before %d, want 1, 2", c.Sent, c.SentBefore)
	}
	g.wantHeld("at the end", string(large.Payload), "2", "3")
}

// hiding is a client whose readers do not show some messages, as brokers do not show their markers.
type hiding struct{ Client }

func (c hiding) read(ctx context.Context, topic string, from entries.Start, queue int) (reader, error) {
	r, err := c.Client.read(ctx, topic, from, queue)
	return hidingReader{r}, err
}

type hidingReader struct{ reader }

func (r hidingReader) next(ctx context.Context) (*message, error) {
	for {
		m, err := r.reader.next(ctx)
		if err != nil || string(m.Payload) != "hidden" {
			return m, err
		}
	}
}

// TestInterruptedReplayBeforeAMarker: what a topic does not show cannot be known, unless all letters were found. With consent, those that were found are
// not sent again.
func TestInterruptedReplayBeforeAMarker(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before []string // that the topic held
		sent   int
	}{"one is not found": {[]string{"before"}, 1}, "one is not found, the topic was empty": {nil, 1}, "all are found": {[]string{"before"}, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 0)
			g.keep(g.topic, "orders")
			for _, payload := range c.before {
				g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte(payload)})
			}
			g.letters(1, 2)
			g.interrupt(c.sent, 1, 2)
			g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("hidden")})
			g.client = hiding{g.client}
			g.cfg.AnswerMax = 5 * time.Second // for what the topic does not show, too
			g.Broker = New(g.cfg, g.client)
			if c.sent < 2 {
				if _, err := g.replay(Selection{}, nil); !errors.Is(err, ErrTrimmed) {
					t.Fatalf("the error is %v", err)
				}
			}
			if got := g.mustReplay(Selection{}, func(o *Options) { o.AcceptDuplicates = c.sent < 2 }); got.Sent != 2-c.sent || got.SentBefore != c.sent {
				t.Errorf("sent %d, sent before %d, want %d, %d", got.Sent, got.SentBefore, 2-c.sent, c.sent)
			}
		})
	}
}

// TestInterruptedReplayAmongClocksAhead: messages of producers whose clocks are ahead do not end the search for what an interrupted replay has
// sent, nor do those that are ahead by SkewMax at most. Its record is dated back, so that all messages are ahead of it.
func TestInterruptedReplayAmongClocksAhead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ahead           time.Duration // of SkewMax
		max, sentBefore int
	}{"as many as AheadMax": {time.Minute, 2, 2}, "more": {time.Minute, 0, 0}, "within SkewMax": {-time.Minute, 0, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 0)
			g.keep(g.topic, "orders")
			g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("before")})
			g.letters(0, 1, 2, 3)
			now := g.cfg.Now
			g.cfg.Now = func() time.Time { return now().Add(-g.cfg.SkewMax - c.ahead) }
			g.cfg.AheadMax = c.max
			g.interrupt(2, 1, 2)
			g.cfg.Now = now
			if got := g.mustReplay(Selection{}, nil); got.SentBefore != c.sentBefore || got.Sent != 4-c.sentBefore {
				t.Errorf("sent %d, sent before %d, want %d, %d", got.Sent, got.SentBefore, 4-c.sentBefore, c.sentBefore)
			}
		})
	}
}

// TestLetterAfterItsReplay: an event that was replayed, and later runs and fails again under its own id, is sent again; a second letter
// from before its replay is not.
func TestLetterAfterItsReplay(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.cfg.Now = func() time.Time { return time.Now().Add(5 * time.Minute) } // places tell, not the command's clock
	g.keep(g.topic, "orders")
	g.letters(1, 1)
	if c := g.mustReplay(Selection{}, func(o *Options) { o.Max = 1 }); c.Sent != 1 || c.Left != 1 {
		t.Fatalf("the first replay: %+v", c)
	}
	g.letters(1) // after a reset of the cursor
	for _, change := range []func(*Options){dry, nil} {
		if c := g.mustReplay(Selection{}, change); c.Sent != 1 || c.Repeated != 1 {
			t.Errorf("the second replay: sent %d, repeated %d, want 1, 1", c.Sent, c.Repeated)
		}
	}
	if got := g.held(g.topic)["1"]; got != 2 {
		t.Errorf("the event was sent %d times, want 2", got)
	}
	if got := g.waiting(); got != "" {
		t.Errorf("at the end these wait: %s", got)
	}
}

// TestLetterAfterAnInterruptedReplay: a letter that came after the last batch of a replay that was interrupted is a new one, whatever the clock of its command.
func TestLetterAfterAnInterruptedReplay(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.cfg.Now = func() time.Time { return time.Now().Add(5 * time.Minute) }
	g.keep(g.topic, "orders")
	g.letters(1)
	g.interrupt(1, 1)
	g.letters(1) // after a reset of the cursor
	if c := g.mustReplay(Selection{}, nil); c.Sent != 1 || c.SentBefore != 1 || c.Repeated != 0 {
		t.Errorf("the second replay: sent %d, sent before %d, repeated %d, want 1, 1, 0", c.Sent, c.SentBefore, c.Repeated)
	}
	if got := g.held(g.topic)["1"]; got != 2 {
		t.Errorf("the event was sent %d times, want 2", got)
	}
	if got := g.waiting(); got != "" {
		t.Errorf("at the end these wait: %s", got)
	}
}

// TestForgedCopy: a message that claims to be a letter's copy does not count as one with other content.
func TestForgedCopy(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("before")})
	g.letters(1)
	g.interrupt(0, 1)
	var id string
	if _, err := g.List(t.Context(), Selection{}, func(l *Letter) error { id = l.ID.String(); return nil }); err != nil {
		t.Fatal(err)
	}
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("forged"), Key: "user-1", Properties: map[string]string{
		PropertyReplayLetter: id, PropertyReplayOf: "9:1:-1:-1",
	}})
	if c := g.mustReplay(Selection{}, nil); c.Sent != 1 || c.SentBefore != 0 {
		t.Errorf("%+v", c)
	}
	g.wantHeld("at the end", "1", "before", "forged")
}

// TestForgedLetterOfAnotherTopic: a letter with the original and the content of another one, which claims another topic, does not end that one: neither in
// one act nor in a later one, as of letters that were selected apart.
func TestForgedLetterOfAnotherTopic(t *testing.T) {
	t.Parallel()
	for name, acts := range map[string][]func(first string) Selection{
		"one act":  {func(string) Selection { return Selection{} }},
		"two acts": {func(first string) Selection { return Selection{IDs: []string{first}} }, func(string) Selection { return Selection{} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 0)
			g.keep(g.topic, "orders")
			other := pulsartest.Topic(t, 0)
			g.keep(other, "orders")
			g.cfg.Topics = append(g.cfg.Topics, other)
			forged := g.letter(1)
			forged.Properties[source.PropertyTopic] = other
			g.publish(g.cfg.LettersTopic, forged)
			g.letters(1, 1) // the second one is a copy
			var first string
			if _, err := g.List(t.Context(), Selection{}, func(l *Letter) error { first = cmp.Or(first, l.ID.String()); return nil }); err != nil {
				t.Fatal(err)
			}
			sent, repeated := 0, 0
			for _, selects := range acts {
				c := g.mustReplay(selects(first), nil)
				sent, repeated = sent+c.Sent, repeated+c.Repeated
			}
			if sent != 2 || repeated != 1 {
				t.Errorf("%d sent, %d repeated, want 2 and 1", sent, repeated)
			}
			g.wantHeld("at the end", "1")
		})
	}
}

// TestTrimmedTopic: if the messages that would tell are gone, nothing is sent without consent.
func TestTrimmedTopic(t *testing.T) {
	t.Parallel()
	before, after := pulsar.ProducerMessage{Payload: []byte("before")}, pulsar.ProducerMessage{Payload: []byte("after")}
	type messages = []pulsar.ProducerMessage
	for name, c := range map[string]struct{ before, after messages }{
		"with a message after it":            {messages{before}, messages{after}},
		"empty by then":                      {messages{before}, nil},
		"empty before, with a message after": {nil, messages{after}},
		"empty before and by then":           {nil, nil}, // as when nothing was sent
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 0)
			g.publish(g.topic, c.before...)
			g.letters(1)
			g.interrupt(1, 1)
			pulsartest.Admin(t, "DELETE", "persistent/public/default/"+g.topic[strings.LastIndex(g.topic, "/")+1:]+"?force=true", nil, nil)
			g.publish(g.topic, c.after...)
			if _, err := g.replay(Selection{}, nil); !errors.Is(err, ErrTrimmed) {
				t.Fatalf("the error is %v", err)
			}
			if got := g.waiting(); got != "1" {
				t.Errorf("these wait: %s", got)
			}
			g.keep(g.topic, "orders")
			if c := g.mustReplay(Selection{}, func(o *Options) { o.AcceptDuplicates = true }); c.Sent != 1 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestOneActAtATime: a second command is refused, as is one beside a foreign consumer.
func TestOneActAtATime(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.letters(1)
	a, err := g.begin(t.Context(), Record{What: ActPurge, Selection: &Selection{}}, false)
	if err != nil {
		t.Fatal(err)
	}
	g.cfg.BusyMax = 300 * time.Millisecond
	if _, err := g.replay(Selection{}, nil); !errors.Is(err, ErrActing) {
		t.Errorf("beside another act: %v", err)
	}
	a.close()
	consumer, err := g.pulsar.Subscribe(pulsar.ConsumerOptions{Topic: g.cfg.LettersTopic, SubscriptionName: "kept", Type: pulsar.Shared})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	if _, err := g.replay(Selection{}, nil); !errors.Is(err, ErrConsumed) {
		t.Errorf("beside another consumer: %v", err)
	}
}

func TestPurgeAndLimits(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.letters(0, 1, 2, 3, 4, 5)
	o := Options{Who: "me@here", Why: "a test", Rate: 1000, Max: 1, DryRun: true}
	c, err := g.Purge(t.Context(), Selection{Keys: []string{"user-0"}}, o)
	if err != nil || c.Purged != 1 || c.Left != 1 || g.waiting() != "0 1 2 3 4 5" {
		t.Errorf("a dry run: %+v, %v", c, err)
	}
	o.DryRun = false
	if c, err = g.Purge(t.Context(), Selection{Keys: []string{"user-0"}}, o); err != nil || c.Purged != 1 || c.Left != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	if got := g.waiting(); got != "1 2 3 4 5" {
		t.Errorf("these wait: %s", got)
	}
	g.keep(g.topic, "orders")
	if c := g.mustReplay(Selection{}, func(o *Options) { o.Max = 2 }); c.Sent != 2 || c.Left != 3 {
		t.Errorf("%+v", c)
	}
	g.wantHeld("with a limit", "1", "2")
	if l, err := g.Find(t.Context(), "1:1:1:1"); l != nil || err != nil {
		t.Errorf("a letter that is not there: %v, %v", l, err)
	}
}

// TestReadingIsBounded: a reading ends at each of its limits, and says at which one.
func TestReadingIsBounded(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2)
	g.letters(0, 1, 2, 3, 4, 5)
	for want, limit := range map[string]func(*Config){
		"2 letters were read, which is the most that one command reads": func(c *Config) { c.ReadMax = 2 },
		"letters of 1 MiB were read":                                    func(c *Config) { c.BytesMax = 1 << 20 },
		"letters were read for 1ns":                                     func(c *Config) { c.ReadFor = 1 },
		"":                                                              func(c *Config) { *c = c.Asked() },
	} {
		cfg := g.cfg
		limit(&cfg)
		if cfg.BytesMax == 1<<20 {
			large := g.letter(6)
			large.Payload = make([]byte, 1<<20)
			g.publish(cfg.LettersTopic, large, large, large)
		}
		c, err := New(cfg, g.client).List(t.Context(), Selection{}, func(*Letter) error { return nil })
		if err != nil || !strings.Contains(c.Reach, want) || (want == "") != (c.Reach == "") {
			t.Errorf("%q: %v, it ended because %q", want, err, c.Reach)
		}
		if want != "" && !strings.Contains(c.Reach, "topic partitions were not read") && c.Read > 8 {
			t.Errorf("%q: %d letters were read", want, c.Read)
		}
	}
	a := New(g.cfg.Asked(), g.client).Answer(t.Context(), Question{What: AskPurge})
	if a.Status != 400 {
		t.Errorf("a purge of everything has the answer %+v", a)
	}
}

// TestReplayEvents: each event is sent once by all replays of a name, by content.
func TestReplayEvents(t *testing.T) {
	t.Parallel()
	for _, partitions := range []int{0, 3} {
		t.Run(strconv.Itoa(partitions), func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, partitions)
			g.keep(g.topic, "orders")
			from := time.Now().Add(-time.Minute)
			for i := range 6 {
				g.publish(g.topic, pulsar.ProducerMessage{Key: fmt.Sprintf("user-%d", i%3), Payload: []byte(strconv.Itoa(i))})
			}
			time.Sleep(10 * time.Millisecond)
			sel := Selection{Keys: []string{"user-1", "user-2"}, Since: from, Until: time.Now(), Run: "r"}
			time.Sleep(10 * time.Millisecond)
			g.publish(g.topic, pulsar.ProducerMessage{Key: "user-1", Payload: []byte("later")})
			g.publish(g.topic, pulsar.ProducerMessage{Key: "user-1", Payload: []byte("forged"), Properties: map[string]string{PropertyReplayRun: "r", PropertyReplayOf: "1:1:-1:-1"}})
			o := Options{Who: "me@here", Why: "a test", Rate: 1000, Max: 100}
			d := o
			d.DryRun = true
			if c, err := g.ReplayEvents(t.Context(), sel, d); err != nil || c.Sent != 4 || len(g.acts) != 0 {
				t.Errorf("a dry run: %+v, %v", c, err)
			}
			few := o
			few.Max = 3
			if _, err := g.ReplayEvents(t.Context(), sel, few); !errors.Is(err, ErrTooMany) {
				t.Errorf("beyond the limit: %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			g.cfg.Audit = func(r Record) { cancel() } // in the middle of nothing: the act has begun
			if _, err := g.ReplayEvents(ctx, sel, o); err == nil {
				t.Error("a cancelled replay has no error")
			}
			g.cfg.Audit = func(Record) {}
			c, err := g.ReplayEvents(t.Context(), sel, o)
			if err != nil || c.Sent != 4 {
				t.Fatalf("%+v, %v", c, err)
			}
			c, err = g.ReplayEvents(t.Context(), sel, o)
			if err != nil || c.Sent != 0 || c.SentBefore != 4 {
				t.Errorf("again: %+v, %v", c, err)
			}
			got := g.held(g.topic)
			want := map[string]int{"0": 1, "1": 2, "2": 2, "3": 1, "4": 2, "5": 2, "later": 1, "forged": 1}
			if !maps.Equal(got, want) {
				t.Errorf("the topic holds %v, want %v", got, want)
			}
		})
	}
}

// dropping is a client whose readers drop the first messages since a time, as one whose broker has another clock.
type dropping struct {
	Client

	left int // of readers that drop messages
	drop int
}

func (c *dropping) read(ctx context.Context, topic string, from entries.Start, queue int) (reader, error) {
	r, err := c.Client.read(ctx, topic, from, queue)
	d := &droppingReader{reader: r}
	if !from.Since.IsZero() && c.left > 0 {
		c.left--
		d.drop = c.drop
	}
	return d, err
}

type droppingReader struct {
	reader

	drop int
}

func (r *droppingReader) next(ctx context.Context) (*message, error) {
	for ; r.drop > 0; r.drop-- {
		if _, err := r.reader.next(ctx); err != nil {
			return nil, err
		}
	}
	return r.reader.next(ctx)
}

// payloadsSince are what readSince reads.
func (g *group) payloadsSince(b *Broker, since time.Time) (got []string, end Place) {
	g.t.Helper()
	end, _, err := b.readSince(g.t.Context(), g.topic, since, func(m *message) error {
		got = append(got, string(m.Payload))
		return nil
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return got, end
}

// TestReadAfterALostSeek: a client that drops the first messages since a time, or all, hides none from a read.
func TestReadAfterALostSeek(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	want := []string{"0", "1", "2", "3"}
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("0")}, pulsar.ProducerMessage{Payload: []byte("1")})
	time.Sleep(20 * time.Millisecond)
	since := time.Now()
	time.Sleep(20 * time.Millisecond)
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("2")}, pulsar.ProducerMessage{Payload: []byte("3")})
	cfg := g.cfg
	cfg.QuietMax, cfg.SkewMax = 500*time.Millisecond, 0
	dropped := 0 // seeks; on a busy host a reader may be too quiet for one
	for drop, starts := range map[int][]string{1: want[1:], 2: want, 3: want, 4: want} {
		for left := range 8 {
			client := &dropping{g.client, left, drop}
			got, end := g.payloadsSince(New(cfg, client), since)
			if !slices.Equal(got, want) && (drop > 1 || !slices.Equal(got, starts)) || end.Entry != 3 {
				t.Errorf("%d seeks without %d messages: it reads %q up to %v", left, drop, got, end)
			}
			dropped += left - client.left
		}
	}
	if dropped == 0 {
		t.Error("no seek dropped anything")
	}
}

// TestReadSince: each read from a time on begins with the first event published then, however many
// messages the client has received before it seeks, and ends at the last.
func TestReadSince(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("older")})
	time.Sleep(20 * time.Millisecond)
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("old")})
	time.Sleep(20 * time.Millisecond)
	since := time.Now()
	time.Sleep(20 * time.Millisecond)
	want := []string{"0", "1", "2", "3"}
	for _, n := range want {
		g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte(n)})
	}
	patient := g.cfg
	patient.QuietMax, patient.SkewMax = time.Minute, 0
	for n := range 30 {
		got, _ := g.payloadsSince(New(patient, g.client), since)
		if !slices.Equal(got, append([]string{"old"}, want...)) && !slices.Equal(got, append([]string{"older", "old"}, want...)) {
			t.Fatalf("read %d gives %q, want events before and %q", n, got, want)
		}
	}
	begun := time.Now()
	if got, end := g.payloadsSince(New(patient, g.client), begun.Add(time.Hour)); len(got) != 0 || end.Entry != 5 {
		t.Errorf("a read from a later time on gives %q up to %v", got, end)
	}
	if took := time.Since(begun); took > patient.QuietMax {
		t.Errorf("a read of nothing takes %v", took)
	}
}

// TestReadAcrossReconnect: a read shows each message once, also if its connection ends.
func TestReadAcrossReconnect(t *testing.T) {
	t.Parallel()
	want := []string{"0", "1", "2", "3"}
	for n := range 16 { // in some of them the client drops a message
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 0)
			g.keep(g.topic, "orders")
			for _, payload := range want {
				g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte(payload)})
			}
			var got []string
			_, _, err := g.read(t.Context(), g.topic, Place{Entry: -1}, func(m *message) error {
				if got = append(got, string(m.Payload)); len(got) == 1 {
					time.Sleep(300 * time.Millisecond) // real: nothing shows that the client holds the next message
					pulsartest.Unload(t, g.topic)
					g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("more")}) // the topic is back
				}
				return nil
			})
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("it reads %q and ends with %v", got, err)
			}
		})
	}
}
