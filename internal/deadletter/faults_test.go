package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
)

// over gives the group a client made of its own.
func (g *group) over(client Client) {
	g.client = client
	g.Broker = New(g.cfg, client)
}

// TestEventTimesBefore1970: no copy can have such a time, and still is found.
func TestEventTimesBefore1970(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	old := time.Date(1960, 1, 2, 0, 0, 0, 0, time.UTC)
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("0"), EventTime: old})
	sel := Selection{Since: time.Now().Add(-time.Minute), Until: time.Now().Add(time.Minute), Run: "r"}
	for i, want := range []int{1, 0} {
		if c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 100}); err != nil || c.Sent != want {
			t.Errorf("replay %d: %+v, %v, want %d sent", i, c, err, want)
		}
	}
	letter := g.letter(1)
	letter.EventTime = old
	g.publish(g.cfg.LettersTopic, letter)
	g.interrupt(1, 1)
	if c := g.mustReplay(Selection{}, nil); c.SentBefore != 1 || c.Sent != 0 {
		t.Errorf("of a letter: sent %d, sent before %d, want 0, 1", c.Sent, c.SentBefore)
	}
}

// TestInterruptedReplayToATopicThatIsGone: an act is refused, and not for good: with consent it begins.
func TestInterruptedReplayToATopicThatIsGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, after int }{
		"not made again":               {0, -1},
		"with partitions, not again":   {2, -1},
		"then with partitions":         {0, 2},
		"then with fewer partitions":   {2, 1},
		"then with none and made anew": {2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, c.before)
			if c.after < 0 { // in a namespace whose topics are made by people
				namespace := "public/" + pulsartest.Name(t)
				pulsartest.Admin(t, http.MethodPut, "namespaces/"+namespace, map[string]any{}, nil)
				g.cfg.Topics = []string{"persistent://" + namespace + "/orders"}
				g.topic = g.cfg.Topics[0]
				path := pulsaradmin.TopicPath(g.topic)
				if c.before > 0 {
					pulsartest.Admin(t, http.MethodPut, path+"/partitions", c.before, nil)
				} else {
					pulsartest.Admin(t, http.MethodPut, path, nil, nil)
				}
				pulsartest.Admin(t, http.MethodPost, "namespaces/"+namespace+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": false}, nil)
				g.over(g.client)
			}
			g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("before")})
			g.letters(1, 2, 3)
			g.interrupt(1, 1, 2)
			path := pulsaradmin.TopicPath(g.topic)
			if c.before > 0 {
				path += "/partitions"
			}
			pulsartest.Admin(t, http.MethodDelete, path+"?force=true", nil, nil)
			if c.after > 0 {
				pulsartest.Admin(t, http.MethodPut, pulsaradmin.TopicPath(g.topic)+"/partitions", c.after, nil)
			}
			if c.after == 0 {
				g.keep(g.topic, "orders")
			}
			o := Options{Who: "me@here", Why: "a test", Rate: 1000, Max: 1000}
			if _, err := g.Purge(t.Context(), Selection{Keys: []string{"user-0"}}, o); !errors.Is(err, ErrTrimmed) {
				t.Errorf("the error is %v", err)
			}
			o.AcceptDuplicates = true
			if c, err := g.Purge(t.Context(), Selection{Keys: []string{"user-0"}}, o); err != nil || c.Purged != 1 {
				t.Errorf("with consent: %+v, %v", c, err)
			}
		})
	}
}

// quick is a client whose producers look for new topic partitions all the time, unless they are told when.
type quick struct{ Client }

func (c quick) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	if o.PartitionsAutoDiscoveryInterval == 0 {
		o.PartitionsAutoDiscoveryInterval = time.Millisecond
	}
	return c.Client.CreateProducer(o)
}

// TestPartitionsAddedDuringAReplay: events go to the topic partitions whose ends are recorded, where the next command looks for them.
func TestPartitionsAddedDuringAReplay(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 1)
	g.over(quick{g.client})
	g.keep(g.topic, "orders")
	a, err := g.begin(t.Context(), Record{What: ActReplayLetters, Selection: &Selection{}}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	s := newSender(a, 1000)
	defer s.close()
	if err := s.open(t.Context(), g.topic); err != nil {
		t.Fatal(err)
	}
	other, err := g.client.CreateProducer(pulsar.ProducerOptions{Topic: g.topic, DisableBatching: true})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	pulsartest.Grow(t, g.topic, 16)
	for at := int32(0); at == 0; { // until the client knows the new partitions
		id, err := other.Send(t.Context(), &pulsar.ProducerMessage{})
		if err != nil {
			t.Fatal(err)
		}
		at = id.PartitionIdx()
	}
	var c Counts
	for n := range 100 {
		m := &message{MessageKey: strconv.Itoa(n), Payload: []byte("again")}
		if err := s.add(t.Context(), batched{outgoing: m.again(g.topic, "1:1:-1:-1", nil)}, &c); err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for partition := range s.ends[g.topic] {
		_, _, err := g.read(t.Context(), partition, Place{Entry: -1}, func(m *message) error {
			if string(m.Payload) == "again" {
				found++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found != 100 {
		t.Errorf("%d of 100 events are where the next command looks for them", found)
	}
}

// repeating is a client that shows each letter twice, as one that has lost its connection meanwhile.
type repeating struct{ Client }

func (c repeating) letters(ctx context.Context, topic, subscription string, queue int) (reader, error) {
	r, err := c.Client.letters(ctx, topic, subscription, queue)
	return &repeatingReader{reader: r}, err
}

type repeatingReader struct {
	reader

	last *message
}

func (r *repeatingReader) next(ctx context.Context) (m *message, err error) {
	if m, r.last = r.last, nil; m != nil {
		return m, nil
	}
	m, err = r.reader.next(ctx)
	r.last = m
	return m, err
}

// TestLettersThatAreShownTwice: a letter is sent once by each command, also by one that sends events again.
func TestLettersThatAreShownTwice(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0, 1, 1)
	if c := g.mustReplay(Selection{}, func(o *Options) { o.Max = 2 }); c.Sent != 2 || c.Left != 1 {
		t.Fatalf("%+v", c)
	}
	g.letters(0, 1)
	g.over(repeating{g.client})
	g.mustReplay(Selection{}, func(o *Options) { o.Again = true })
	if got, want := g.held(g.topic), map[string]int{"0": 2, "1": 3}; !maps.Equal(got, want) {
		t.Errorf("the topic holds %v, want %v", got, want)
	}
	if got := g.waiting(); got != "" {
		t.Errorf("at the end these wait: %s", got)
	}
}

// TestALetterThatIsShownTwiceBeforeItIsSent: it is not removed by its second showing while the first one waits in the batch.
func TestALetterThatIsShownTwiceBeforeItIsSent(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0, 1)
	healthy := g.client
	client := &dying{Client: repeating{healthy}}
	client.left.Store(2) // the record of the beginning, and that of the batch
	g.over(client)
	if c, err := g.replay(Selection{}, nil); !errors.Is(err, errDied) || c.Sent != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	g.over(healthy)
	if got := g.waiting(); got != "0 1" {
		t.Errorf("these wait: %q", got)
	}
}

// cancelling is a client that cancels its caller's context instead of showing the third letter.
type cancelling struct {
	Client

	cancel func()
}

func (c cancelling) letters(ctx context.Context, topic, subscription string, queue int) (reader, error) {
	r, err := c.Client.letters(ctx, topic, subscription, queue)
	return &cancellingReader{r, c.cancel, 0}, err
}

type cancellingReader struct {
	reader

	cancel   func()
	received int
}

func (r *cancellingReader) next(ctx context.Context) (*message, error) {
	if r.received++; r.received == 3 {
		r.cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return r.reader.next(ctx)
}

// TestSentOfACancelledReplay: letters whose batch was not sent do not count as sent.
func TestSentOfACancelledReplay(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0, 1, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g.over(cancelling{g.client, cancel})
	c, err := g.ReplayLetters(ctx, Selection{}, Options{Who: "me@here", Why: "a test", Rate: 100, Max: 100})
	if !errors.Is(err, context.Canceled) || c.Selected != 2 || c.Sent != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	g.wantHeld("at the end")
}

// dying is a client that does nothing more after so many calls that change something, as when its process is killed. The last one is done, and has no
// answer.
type dying struct {
	Client

	left atomic.Int64
}

var errDied = errors.New("died")

// call reports whether a call is done, and whether it has an answer.
func (c *dying) call() (done, answered bool) {
	left := c.left.Add(-1)
	return left >= 0, left > 0
}

func (c *dying) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	p, err := c.Client.CreateProducer(o)
	return &dyingProducer{p, c}, err
}

func (c *dying) letters(ctx context.Context, topic, subscription string, queue int) (reader, error) {
	r, err := c.Client.letters(ctx, topic, subscription, queue)
	return &dyingReader{r, c}, err
}

type dyingProducer struct {
	pulsar.Producer

	client *dying
}

func (p *dyingProducer) SendAsync(ctx context.Context, m *pulsar.ProducerMessage, answer func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	done, answered := p.client.call()
	if !done {
		answer(nil, m, errDied)
		return
	}
	p.Producer.SendAsync(ctx, m, func(id pulsar.MessageID, m *pulsar.ProducerMessage, err error) {
		if !answered {
			id, err = nil, errDied
		}
		answer(id, m, err)
	})
}

type dyingReader struct {
	reader

	client *dying
}

func (r *dyingReader) ack(m *message) error {
	done, answered := r.client.call()
	if !done {
		return errDied
	}
	if err := r.reader.ack(m); err != nil || answered {
		return err
	}
	return errDied
}

// TestReplayThatDies: wherever a replay ends, the next one sends what is left, once.
func TestReplayThatDies(t *testing.T) {
	t.Parallel()
	for calls := range int64(14) { // of a replay: 4 records, 4 events, and 5 acks
		t.Run(strconv.FormatInt(calls, 10), func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 2)
			g.keep(g.topic, "orders")
			var want []string
			for n := range 8 { // in each topic partition, so that both have an end
				want = append(want, fmt.Sprintf("before-%d", n))
				g.publish(g.topic, pulsar.ProducerMessage{Key: strconv.Itoa(n), Payload: []byte(want[n])})
			}
			g.letters(0, 1, 1, 2, 3)
			marker := g.letter(9) // at the end, so that no reading waits for more
			marker.Properties[source.PropertyTopic] = "persistent://public/default/none"
			g.publish(g.cfg.LettersTopic, marker)
			healthy := g.client
			g.cfg.Now = func() time.Time { return time.Now().Add(5 * time.Minute) } // places tell what came later, not the command's clock
			client := &dying{Client: healthy}
			client.left.Store(calls)
			g.over(client)
			few := func(o *Options) { o.Rate = 2 }
			c, err := g.replay(Selection{}, few)
			if err == nil {
				t.Fatalf("it has not died: %+v", c)
			}
			if sent := len(g.held(g.topic)) - len(want); c.Sent > sent || c.Sent < sent-1 {
				t.Errorf("%d are said to be sent, %d were", c.Sent, sent)
			}
			g.over(healthy)
			g.letters(0) // came later: its event has run again under its own id
			d := g.mustReplay(Selection{}, few)
			got := g.held(g.topic)
			if n := got["0"]; n != 2 && (n != 1 || c.Sent > 0) {
				t.Errorf("event 0 was sent %d times: %+v, then %+v", n, c, d)
			}
			delete(got, "0")
			for _, payload := range append(want, "1", "2", "3") {
				if got[payload] != 1 {
					t.Errorf("%s is in the topic %d times", payload, got[payload])
				}
			}
			if left := g.waiting(); left != "9" {
				t.Errorf("at the end these wait: %s", left)
			}
		})
	}
}

// TestInterruptedReplayToTwoTopics: the record of a batch names the ends of both, where the next command looks for its events, whatever it selects itself.
func TestInterruptedReplayToTwoTopics(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	other := pulsartest.Topic(t, 0)
	g.cfg.Topics = append(g.cfg.Topics, other)
	letter := g.letter(1)
	letter.Properties[source.PropertyTopic] = other
	for _, topic := range g.cfg.Topics {
		g.keep(topic, "orders")
	}
	g.publish(g.cfg.LettersTopic, g.letter(0), letter)
	healthy := g.client
	client := &dying{Client: healthy}
	client.left.Store(4) // two records, and two events
	g.over(client)
	if c, err := g.replay(Selection{}, nil); !errors.Is(err, errDied) {
		t.Fatalf("%+v, %v", c, err)
	}
	g.over(healthy)
	if c := g.mustReplay(Selection{Keys: []string{"none of theirs"}}, nil); c.Sent != 0 || c.SentBefore != 2 {
		t.Errorf("sent %d, sent before %d, want 0, 2", c.Sent, c.SentBefore)
	}
	g.wantHeld("at the end", "0")
	if got, want := g.held(other), map[string]int{"1": 1}; !maps.Equal(got, want) {
		t.Errorf("the other topic holds %v, want %v", got, want)
	}
}

// losing is a client that loses one message of a topic.
type losing struct {
	Client

	topic string
	left  atomic.Int64 // messages, that one included
}

func (c *losing) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	p, err := c.Client.CreateProducer(o)
	if o.Topic == c.topic {
		p = losingProducer{p, c}
	}
	return p, err
}

type losingProducer struct {
	pulsar.Producer

	client *losing
}

func (p losingProducer) SendAsync(ctx context.Context, m *pulsar.ProducerMessage, answer func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	if p.client.left.Add(-1) == 0 {
		answer(nil, m, errRefused)
		return
	}
	p.Producer.SendAsync(ctx, m, answer)
}

// TestRecordsThatAreRefused: an act without one of its records has an error, and goes no further. Its beginning and its end are audited when they are recorded.
func TestRecordsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before        int // whether one was interrupted
		record        int64
		held, audited int
	}{
		"what an interrupted one has sent": {1, 1, 1, 0},
		"the beginning":                    {0, 1, 0, 0},
		"the batch":                        {0, 2, 0, 1},
		"the end":                          {0, 3, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGroup(t, 0)
			g.keep(g.topic, "orders")
			g.letters(1)
			if c.before > 0 {
				g.interrupt(1, 1)
			}
			client := &losing{Client: g.client, topic: g.cfg.ReplaysTopic()}
			client.left.Store(c.record)
			g.over(client)
			if got, err := g.replay(Selection{}, nil); !errors.Is(err, errRefused) || len(g.held(g.topic)) != c.held || len(g.acts) != c.before+c.audited {
				t.Errorf("%+v, %v; the topic holds %v, and %d acts are audited, want %d and %d", got, err, g.held(g.topic), len(g.acts), c.held, c.before+c.audited)
			}
		})
	}
}

// lettersInOneEntry publishes letters as no router does.
func (g *group) lettersInOneEntry(numbers ...int) {
	g.t.Helper()
	batch, err := g.client.CreateProducer(pulsar.ProducerOptions{
		Topic: g.cfg.LettersTopic, SendTimeout: pulsarsend.NoTimeout, BatchingMaxPublishDelay: time.Minute, BatchingMaxMessages: uint(len(numbers)),
	})
	if err != nil {
		g.t.Fatal(err)
	}
	defer batch.Close()
	for _, n := range numbers {
		m := g.letter(n)
		batch.SendAsync(g.t.Context(), &m, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				g.t.Error(err)
			}
		})
	}
	if err := batch.FlushWithCtx(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
}

// TestPurgeOfEntries: a purge removes letters of one entry together, and says which remain since it has selected a part of their entry.
func TestPurgeOfEntries(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.lettersInOneEntry(0, 1, 3)
	g.lettersInOneEntry(6, 9)
	g.letters(12)
	g.lettersInOneEntry(15, 18)
	g.letters(2)
	for _, c := range []struct {
		client              Client
		max, purged, shared int
		waiting             string
	}{
		{g.client, 5, 3, 2, "0 1 15 18 2 3"}, // the limit leaves one of 15 and 18
		{repeating{g.client}, 100, 2, 2, "0 1 2 3"},
	} {
		healthy := g.client
		g.over(c.client)
		for _, dry := range []bool{true, false} {
			got, err := g.Purge(t.Context(), Selection{Keys: []string{"user-0"}}, Options{Who: "me@here", Why: "a test", Max: c.max, DryRun: dry})
			if err != nil || got.Purged != c.purged || got.Shared != c.shared {
				t.Errorf("dry run %v: %+v, %v, want %d removed, %d that share an entry", dry, got, err, c.purged, c.shared)
			}
		}
		g.over(healthy)
		if got := g.waiting(); got != c.waiting {
			t.Errorf("these wait: %s, want %s", got, c.waiting)
		}
	}
}

// TestPurgeThatDies: it does not count a letter whose ack has no answer, and the next one removes the rest.
func TestPurgeThatDies(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.letters(0, 1, 2, 3)
	healthy := g.client
	client := &dying{Client: healthy}
	client.left.Store(3) // the record, and two acks
	g.over(client)
	sel, o := Selection{Until: time.Now().Add(time.Hour)}, Options{Who: "me@here", Why: "a test", Max: 100}
	if c, err := g.Purge(t.Context(), sel, o); !errors.Is(err, errDied) || c.Purged != 1 || c.Shared != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	g.over(healthy)
	if got := g.waiting(); got != "2 3" {
		t.Errorf("these wait: %s", got)
	}
	if c, err := g.Purge(t.Context(), sel, o); err != nil || c.Purged != 2 {
		t.Errorf("the next one: %+v, %v", c, err)
	}
}

// TestReplaysTopicWithPartitions: the records are in one topic partition, whatever the broker makes of their topic.
func TestReplaysTopicWithPartitions(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	namespace := "public/" + pulsartest.Name(t)
	pulsartest.Admin(t, http.MethodPut, "namespaces/"+namespace, map[string]any{}, nil)
	pulsartest.Admin(t, http.MethodPost, "namespaces/"+namespace+"/autoTopicCreation",
		map[string]any{"allowAutoTopicCreation": true, "topicType": "partitioned", "defaultNumPartitions": 3}, nil)
	g.topic = "persistent://" + namespace + "/orders"
	g.cfg.LettersTopic, g.cfg.Topics = g.topic+"-DLQ", []string{g.topic}
	g.over(g.client)
	g.keep(g.cfg.LettersTopic, "kept")
	g.keep(g.topic, "orders")
	g.letters(0, 1, 2)
	g.interrupt(1, 1, 2)
	if c := g.mustReplay(Selection{}, func(o *Options) { o.AcceptDuplicates = true }); c.SentBefore != 1 || c.Sent != 2 {
		t.Errorf("sent %d, sent before %d, want 2, 1", c.Sent, c.SentBefore)
	}
	g.wantHeld("at the end", "0", "1", "2")
	if trail, err := g.Trail(t.Context(), 10); err != nil || len(trail.Acts) != 2 || trail.Acts[0].Counts == nil {
		t.Errorf("the acts are %+v, %v", trail, err)
	}
	partitions, err := g.client.TopicPartitions(g.cfg.ReplaysTopic())
	if err != nil || len(partitions) != 3 {
		t.Errorf("the replays topic has the partitions %v, %v", partitions, err)
	}
}

// TestEventsThatMayBeMissedAreNamed: a replay of events says which topic partitions it has not read, as their last events claim to be older.
func TestEventsThatMayBeMissedAreNamed(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("old")})
	sel := Selection{Since: time.Now().Add(time.Hour), Until: time.Now().Add(2 * time.Hour), Run: "r"}
	c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 4, DryRun: true})
	if err != nil || c.Read != 0 || !slices.ContainsFunc(c.Words(true), func(s Said) bool { return strings.HasPrefix(s.Text, g.topic+" was not read") }) {
		t.Errorf("%+v, %v", c.Words(true), err)
	}
}

// TestReplayBesideATopicThatCannotBeOpened: its letters wait on and are named, the others are sent.
func TestReplayBesideATopicThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	terminated := pulsartest.Topic(t, 0)
	g.cfg.Topics = append(g.cfg.Topics, terminated)
	g.over(g.client)
	g.keep(g.topic, "orders")
	g.keep(terminated, "orders")
	pulsartest.Admin(t, http.MethodPost, pulsaradmin.TopicPath(terminated)+"/terminate", nil, nil)
	var all []pulsar.ProducerMessage
	for _, n := range []int{0, 0, 1, 2, 3} {
		letter := g.letter(n)
		if n%2 == 0 {
			letter.Properties[source.PropertyTopic] = terminated
		}
		all = append(all, letter)
	}
	g.publish(g.cfg.LettersTopic, all...)
	c, err := g.replay(Selection{}, nil)
	if !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), terminated) || c.Sent != 2 || c.Repeated != 0 || c.Obstacles[ObstacleNotOpened] != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	g.wantHeld("at the end", "1", "3")
	if got := g.waiting(); got != "0 0 2" {
		t.Errorf("these wait: %s", got)
	}
	if last := g.acts[len(g.acts)-1]; last.Step != StepEnded {
		t.Errorf("the act has not ended: %+v", last)
	}
	if a := g.Answer(t.Context(), Question{What: AskReplay, ByKey: true, Key: []byte("user-2"), By: "me", Why: "a test", Yes: true}); !strings.Contains(a.Error, terminated) || strings.Contains(a.Error, "again") {
		t.Errorf("the admin endpoint answers %+v", a)
	}
	if c := g.mustReplay(Selection{To: g.topic}, nil); c.Sent != 2 || c.Repeated != 1 {
		t.Errorf("to another topic: %+v", c)
	}
}

// TestReplayToATopicWithoutASubscription: letters for a topic that holds nothing wait on and are named, the others are sent; a replay of its events is refused.
func TestReplayToATopicWithoutASubscription(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2)
	others, none := pulsartest.Topic(t, 0), pulsartest.Topic(t, 0)
	g.cfg.Topics = append(g.cfg.Topics, others)
	g.cfg.Group = "orders"
	admin, asked := pulsaradmin.Client{URL: pulsartest.AdminURL(t)}, 0
	g.cfg.Subscriptions = func(ctx context.Context, topic string) (map[string][]string, error) {
		asked++
		return admin.Subscriptions(context.WithoutCancel(ctx), topic) // a busy host may take long
	}
	g.over(g.client)
	g.keep(g.topic, "orders")
	g.keep(others, "another")
	var all []pulsar.ProducerMessage
	for n := range 4 {
		letter := g.letter(n)
		if n%2 == 0 {
			letter.Properties[source.PropertyTopic] = others
		}
		all = append(all, letter)
	}
	g.publish(g.cfg.LettersTopic, all...)

	if c, err := g.ReplayLetters(t.Context(), Selection{}, Options{Rate: 1000, Max: 100, DryRun: true}); err != nil || c.Sent != 2 || c.Obstacles[ObstacleUnheld] != 2 ||
		!slices.Equal(c.Missing, []string{others + " has no subscription orders"}) || asked != 2 {
		t.Errorf("a dry run: %+v, %v, %d questions", c, err, asked)
	}
	if c, err := g.replay(Selection{}, nil); !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), others+" has no subscription orders") || c.Sent != 2 || c.Obstacles[ObstacleUnheld] != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	reader, err := g.pulsar.CreateReader(pulsar.ReaderOptions{Topic: none, StartMessageID: pulsar.EarliestMessageID()}) // whose subscription holds nothing
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if c, err := g.replay(Selection{To: none}, nil); !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), none+" has no subscription") || c.Sent != 0 {
		t.Errorf("to a topic without any: %+v, %v", c, err)
	}
	g.wantHeld("at the end", "1", "3")
	if got := g.waiting(); got != "0 2" {
		t.Errorf("these wait: %s", got)
	}
	now := time.Now()
	events := Selection{Since: now.Add(-time.Hour), Until: now, Run: "r", Topics: []string{others}}
	if _, err := g.ReplayEvents(t.Context(), events, Options{Rate: 1000, Max: 100, DryRun: true}); err == nil || !strings.Contains(err.Error(), "no subscription orders") {
		t.Errorf("a replay of events: %v", err)
	}
	g.keep(none, "another") // no topic of the group's
	if c := g.mustReplay(Selection{To: none}, dry); c.Sent != 2 || len(c.Missing)+len(c.Unsure) != 0 {
		t.Errorf("to a topic with another subscription: %+v", c)
	}
	g.keep(others, "orders")
	if c := g.mustReplay(Selection{}, nil); c.Sent != 2 || len(c.Missing)+len(c.Unsure) != 0 {
		t.Errorf("with its subscription: %+v", c)
	}
	for name, subscriptions := range map[string]func(context.Context, string) (map[string][]string, error){
		"not known without pulsar.admin_url": nil,
		"not known: refused":                 func(context.Context, string) (map[string][]string, error) { return nil, errors.New("refused") },
	} {
		g.cfg.Subscriptions = subscriptions
		g.over(g.client)
		g.publish(g.cfg.LettersTopic, g.letter(len(name)), g.letter(1000+len(name)))
		if c := g.mustReplay(Selection{}, nil); c.Sent != 2 || len(c.Unsure) != 1 || !strings.Contains(c.Unsure[0], name) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// TestReplayToATopicPartitionWithoutASubscription: the broker names the subscriptions of a partitioned topic that any partition has, but what goes to one without is
// lost.
func TestReplayToATopicPartitionWithoutASubscription(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2)
	to := pulsartest.Topic(t, 2)
	g.cfg.Group = "orders"
	admin := pulsaradmin.Client{URL: pulsartest.AdminURL(t)}
	g.cfg.Subscriptions = func(ctx context.Context, topic string) (map[string][]string, error) {
		return admin.Subscriptions(context.WithoutCancel(ctx), topic) // a busy host may take long
	}
	g.over(g.client)
	for _, topic := range []string{g.topic, to} {
		g.keep(topic+"-partition-0", "orders")
	}
	g.publish(g.cfg.LettersTopic, g.letter(0), g.letter(1), g.letter(2))
	lacks := func(sel Selection, partition string) {
		t.Helper()
		c, err := g.replay(sel, nil)
		if want := partition + " has no subscription"; !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), want) || c.Sent != 0 || c.Obstacles[ObstacleUnheld] != 3 {
			t.Errorf("%+v, %v, want %q", c, err, want)
		}
	}
	lacks(Selection{}, g.topic+"-partition-1")
	lacks(Selection{To: to}, to+"-partition-1")
	now := time.Now()
	events := Selection{Since: now.Add(-time.Hour), Until: now, Run: "r", Topics: []string{g.topic}}
	if _, err := g.ReplayEvents(t.Context(), events, Options{Rate: 1000, Max: 100, DryRun: true}); err == nil || !strings.Contains(err.Error(), "-partition-1 has no subscription") {
		t.Errorf("a replay of events: %v", err)
	}
	g.keep(g.topic+"-partition-1", "another")
	lacks(Selection{}, g.topic+"-partition-1")
	g.keep(to+"-partition-1", "another") // no topic of the group's: some subscription of each partition is enough
	if c := g.mustReplay(Selection{To: to}, dry); c.Sent != 3 || len(c.Missing)+len(c.Unsure) != 0 {
		t.Errorf("to a topic with subscriptions: %+v", c)
	}
	g.keep(g.topic, "orders")
	if c := g.mustReplay(Selection{}, nil); c.Sent != 3 || len(c.Missing)+len(c.Unsure) != 0 {
		t.Errorf("with its subscription: %+v", c)
	}
}

// TestLettersThatCannotBeSent: encrypted letters, and those of a batch, wait on, and hide no others. The last one is of a batch.
func TestLettersThatCannotBeSent(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0)
	g.publishAs(pulsar.ProducerOptions{Topic: g.cfg.LettersTopic, Encryption: pulsartest.Encryption(t)}, g.letter(1))
	g.letters(2)
	g.lettersInOneEntry(3, 4, 5)
	for _, change := range []func(*Options){dry, nil} {
		c := g.mustReplay(Selection{}, change)
		if c.Read != 6 || c.Sent != 2 || c.Obstacles[ObstacleEncrypted] != 1 || c.Obstacles[ObstacleBatched] != 3 || c.Reach != "" {
			t.Errorf("%+v", c)
		}
	}
	g.wantHeld("at the end", "0", "2")
	var left []event.MessageID
	if _, err := g.List(t.Context(), Selection{}, func(l *Letter) error { left = append(left, l.ID); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(left) != 4 || left[0].Entry != 1 || left[1].Batch != 0 || left[3].Batch != 2 {
		t.Errorf("these wait: %v", left)
	}
}

// TestHeadsThatCannotBeSentAgain: a letter or event as large as the broker takes, whose copy would be larger, stops no replay.
func TestHeadsThatCannotBeSentAgain(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	since := time.Now().Add(-time.Minute)
	for _, topic := range []string{g.cfg.LettersTopic, g.topic} {
		producer, err := g.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, SendTimeout: pulsarsend.NoTimeout})
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		size := 5 << 20
		for err = errStop; err != nil && size > 5<<20-500; size-- { // the client refuses what is too large
			large := pulsar.ProducerMessage{Properties: map[string]string{source.PropertyTopic: g.topic, "large": strings.Repeat("x", size)}}
			_, err = producer.Send(t.Context(), &large)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	g.letters(1)
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("2")})
	if c := g.mustReplay(Selection{}, nil); c.Sent != 1 || c.Obstacles[ObstacleHead] != 1 {
		t.Errorf("of letters: %+v", c)
	}
	c, err := g.ReplayEvents(t.Context(), Selection{Since: since, Until: time.Now().Add(time.Minute), Run: "r"}, Options{Rate: 1000, Max: 100})
	if err != nil || c.Sent != 2 || c.Obstacles[ObstacleHead] != 1 {
		t.Errorf("of events: %+v, %v", c, err)
	}
}

// TestReplaysOfEventsWithTwoNames: the second sends each event once, not also its copy; and only those of its topics.
func TestReplaysOfEventsWithTwoNames(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 2)
	other := pulsartest.Topic(t, 0)
	g.cfg.Topics = append(g.cfg.Topics, other)
	g.over(g.client)
	g.keep(g.topic, "orders")
	g.keep(other, "orders")
	since := time.Now().Add(-time.Minute)
	for n := range 4 {
		g.publish(g.topic, pulsar.ProducerMessage{Key: strconv.Itoa(n), Payload: fmt.Append(nil, n)})
	}
	g.publish(other, pulsar.ProducerMessage{Key: "0", Payload: []byte("other")})
	o := Options{Who: "me@here", Why: "a test", Rate: 1000, Max: 4}
	for i, name := range []string{"a", "b", "a", "b"} {
		sel := Selection{Since: since, Until: time.Now().Add(time.Minute), Topics: g.cfg.Topics[:1], Run: name}
		c, err := g.ReplayEvents(t.Context(), sel, o)
		if sent := []int{4, 4, 0, 0}[i]; err != nil || c.Sent != sent {
			t.Errorf("replay %d: %+v, %v, want %d sent", i, c, err, sent)
		}
	}
	if got, want := g.held(g.topic), map[string]int{"0": 3, "1": 3, "2": 3, "3": 3}; !maps.Equal(got, want) {
		t.Errorf("the topic holds %v, want %v", got, want)
	}
	if got := g.held(other)["other"]; got != 1 {
		t.Errorf("the other topic holds its event %d times", got)
	}
}

// TestBatchesAreBounded: a batch is sent when it has enough events, or enough bytes; the next one begins with none.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	large := strings.Repeat("x", batchBytesMax/2)
	for n := range 6 {
		letter := g.letter(n)
		if n < 2 {
			letter.Payload = []byte(strconv.Itoa(n) + large)
		}
		g.publish(g.cfg.LettersTopic, letter)
	}
	if c := g.mustReplay(Selection{}, func(o *Options) { o.Rate = 3 }); c.Sent != 6 {
		t.Errorf("%+v", c)
	}
	var batches []int
	var begins []Place
	foreign, err := g.records(t.Context(), func(r Record) {
		if r.Step == StepSending {
			batches, begins = append(batches, len(r.Letters)), append(begins, r.From[g.topic])
		}
	})
	if want := []int{2, 3, 1}; err != nil || foreign != 0 || !slices.Equal(batches, want) {
		t.Fatalf("the batches have %d letters, want %d: %v", batches, want, err)
	}
	if begins[1].Entry != 1 || begins[2].Entry != 4 {
		t.Errorf("the batches begin behind %v, want the last event of the one before", begins)
	}
}

// TestABatchWaitsForItsRate: before it is recorded.
func TestABatchWaitsForItsRate(t *testing.T) {
	s := newSender(nil, 1)
	s.limiter.Allow() // all of this second
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if sent, _, err := s.sendRecorded(ctx, make([]batched, 1), &Counts{}); sent != 0 || err == nil {
		t.Errorf("%d sent, %v", sent, err)
	}
}

// TestRecordsOfEvents: the records of a replay of events name its topic partitions, and no letters, of which the next command would look for copies.
func TestRecordsOfEvents(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(1)
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("0")})
	sel := Selection{Since: time.Now().Add(-time.Minute), Until: time.Now().Add(time.Minute), Run: "r"}
	if c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 100}); err != nil || c.Sent != 1 || len(c.Unsure) != 1 { // without pulsar.admin_url
		t.Fatalf("%+v, %v", c, err)
	}
	sendings := 0
	foreign, err := g.records(t.Context(), func(r Record) {
		if len(r.Letters)+len(r.Ends) > 0 {
			t.Errorf("a record names letters: %+v", r)
		}
		if r.Step == StepSending {
			sendings += len(r.From)
		}
	})
	if err != nil || foreign != 0 || sendings != 1 {
		t.Errorf("%d topic partitions, %v, want 1", sendings, err)
	}
}

// refusing is a client that learns nothing of a topic.
type refusing struct {
	Client

	topic string
}

var errRefused = errors.New("refused")

func (c refusing) read(ctx context.Context, topic string, from entries.Start, queue int) (reader, error) {
	if topic == c.topic {
		return nil, errRefused
	}
	return c.Client.read(ctx, topic, from, queue)
}

func (c refusing) TopicPartitions(topic string) ([]string, error) {
	if topic == c.topic {
		return nil, errRefused
	}
	return c.Client.TopicPartitions(topic)
}

// TestInterruptedReplayToATopicThatCannotBeRead: also with consent to duplicates an act waits for what can be known later.
func TestInterruptedReplayToATopicThatCannotBeRead(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("before")})
	g.letters(1)
	g.interrupt(1, 1)
	healthy := g.client
	g.over(refusing{healthy, g.topic})
	if found, err := g.findSent(t.Context(), Record{Step: StepSending, From: map[string]Place{g.topic: {}}}); len(found) > 0 || err != nil {
		t.Errorf("of a batch without letters: %v, %v", found, err) // nothing to look for
	}
	if c, err := g.replay(Selection{}, func(o *Options) { o.AcceptDuplicates = true }); !errors.Is(err, errRefused) || c.Sent != 0 || len(g.acts) != 1 {
		t.Errorf("%+v, %v, %d acts with the interrupted one", c, err, len(g.acts))
	}
	g.over(healthy)
	if c := g.mustReplay(Selection{}, nil); c.Sent != 0 || c.SentBefore != 1 {
		t.Errorf("sent %d, sent before %d, want 0, 1", c.Sent, c.SentBefore)
	}
}

// interrupting is a client whose producers for a topic cancel their caller's context before they send.
type interrupting struct {
	Client

	topic  string
	cancel func()
}

func (c interrupting) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	p, err := c.Client.CreateProducer(o)
	if o.Topic == c.topic {
		p = interruptingProducer{p, c.cancel}
	}
	return p, err
}

type interruptingProducer struct {
	pulsar.Producer

	cancel func()
}

func (p interruptingProducer) SendAsync(ctx context.Context, m *pulsar.ProducerMessage, answer func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	p.cancel()
	if err := ctx.Err(); err != nil {
		answer(nil, m, err)
		return
	}
	p.Producer.SendAsync(ctx, m, answer)
}

// TestReplayThatIsCancelledWhileItSends: the batch that is under way is sent, and its letters are removed.
func TestReplayThatIsCancelledWhileItSends(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	healthy := g.client
	g.over(interrupting{healthy, g.topic, cancel})
	c, err := g.ReplayLetters(ctx, Selection{}, Options{Who: "me@here", Why: "a test", Rate: 100, Max: 100})
	if !errors.Is(err, context.Canceled) || c.Sent != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	g.over(healthy)
	g.wantHeld("at the end", "0", "1")
	if got := g.waiting(); got != "" {
		t.Errorf("at the end these wait: %s", got)
	}
}

// TestRecordsAreKept: the replays topic has a subscription that keeps its records.
func TestRecordsAreKept(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.letters(0)
	g.mustReplay(Selection{}, nil)
	if s := pulsartest.Stats(t, g.cfg.ReplaysTopic(), replaysSubscription); s.Backlog != 3 {
		t.Errorf("%d records are kept, want 3", s.Backlog)
	}
}

// TestSchemasAreCounted: messages are sent without the version of their schema, and counted.
func TestSchemasAreCounted(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	letter := g.letter(0)
	letter.Properties[source.PropertySchema] = "0000000000000001"
	g.publish(g.cfg.LettersTopic, letter, g.letter(1))
	producer, err := g.client.CreateProducer(pulsar.ProducerOptions{Topic: g.topic, Schema: pulsar.NewStringSchema(nil)}) // in batches, the only messages to which Pulsar's client adds the version
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	if _, err := producer.Send(t.Context(), &pulsar.ProducerMessage{Payload: []byte("text")}); err != nil {
		t.Fatal(err)
	}
	sel := Selection{Since: time.Now().Add(-time.Minute), Until: time.Now().Add(time.Minute), Run: "r"}
	for round, dry := range []bool{true, false, true, false} {
		want := 1 - round/2
		if c, err := g.ReplayEvents(t.Context(), sel, Options{Rate: 1000, Max: 100, DryRun: dry}); err != nil || c.Sent != want || c.Schema != want {
			t.Errorf("replay %d of events: %+v, %v", round, c, err)
		}
	}
	for _, change := range []func(*Options){dry, nil} {
		if c := g.mustReplay(Selection{}, change); c.Sent != 2 || c.Schema != 1 {
			t.Errorf("of letters: %+v", c)
		}
	}
	g.publish(g.cfg.LettersTopic, letter) // once more
	if c := g.mustReplay(Selection{}, func(o *Options) { o.Max = 1 }); c.Sent != 1 || c.Schema != 1 {
		t.Errorf("of a letter that failed again: %+v", c)
	}
}

// TestForeignRecordsAreCounted: what somebody else writes to the replays topic is counted, and prevents no act.
func TestForeignRecordsAreCounted(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.keep(g.cfg.ReplaysTopic(), "theirs")
	g.publish(g.cfg.ReplaysTopic(), pulsar.ProducerMessage{Payload: []byte("no record")})
	g.letters(0)
	for _, change := range []func(*Options){dry, nil} {
		if c := g.mustReplay(Selection{}, change); c.Sent != 1 || c.Foreign != 1 {
			t.Errorf("%+v", c)
		}
	}
}

// TestAMarkerBehindTheRecords prevents no act, although no reader shows it.
func TestAMarkerBehindTheRecords(t *testing.T) {
	t.Parallel()
	g := newImpatientGroup(t)
	g.letters(0)
	g.interrupt(1, 0)
	g.letters(1)
	g.publish(g.cfg.ReplaysTopic(), pulsar.ProducerMessage{Payload: []byte("hidden")})
	g.over(hiding{g.client})
	if c := g.mustReplay(Selection{}, dry); c.Sent != 1 || c.Doubt != 1 || !strings.Contains(strings.Join(c.Unsure, "; "), "replays topic") {
		t.Errorf("a dry run: %+v", c)
	}
	if c := g.mustReplay(Selection{}, nil); c.Sent != 1 || c.SentBefore != 1 {
		t.Errorf("%+v", c)
	}
	g.wantHeld("at the end", "0", "1")
	if c := g.mustReplay(Selection{}, dry); c.Sent != 0 || len(c.Unsure) > 1 { // without pulsar.admin_url
		t.Errorf("behind records: %+v", c)
	}
}

// TestReplayToAnotherTopic: all letters go there, whatever their own topic.
func TestReplayToAnotherTopic(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	other := pulsartest.Topic(t, 2)
	g.keep(other, "orders")
	stranger := g.letter(1)
	stranger.Properties[source.PropertyTopic] = "persistent://public/default/" + pulsartest.Name(t)
	g.publish(g.cfg.LettersTopic, g.letter(0), stranger)
	if c := g.mustReplay(Selection{To: other}, nil); c.Sent != 2 {
		t.Errorf("%+v", c)
	}
	g.wantHeld("its own topic")
	if got, want := g.held(other), map[string]int{"0": 1, "1": 1}; !maps.Equal(got, want) {
		t.Errorf("the other topic holds %v, want %v", got, want)
	}
}

// dated is a client whose readers show messages with a payload of 2 as published long ago.
type dated struct{ Client }

func (c dated) read(ctx context.Context, topic string, from entries.Start, queue int) (reader, error) {
	r, err := c.Client.read(ctx, topic, from, queue)
	return datedReader{r}, err
}

type datedReader struct{ reader }

func (r datedReader) next(ctx context.Context) (*message, error) {
	m, err := r.reader.next(ctx)
	if err == nil && string(m.Payload) == "2" {
		m.Published = time.UnixMilli(1000)
	}
	return m, err
}

// TestInterruptedReplayBetweenClocksAhead: only messages in a row of producers whose clocks are ahead end the search.
func TestInterruptedReplayBetweenClocksAhead(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 0)
	g.keep(g.topic, "orders")
	g.publish(g.topic, pulsar.ProducerMessage{Payload: []byte("before")})
	g.letters(1, 2, 3)
	g.cfg.AheadMax = 1
	g.cfg.Now = func() time.Time { return time.Now().Add(-g.cfg.SkewMax - time.Minute) }
	g.over(g.client)
	g.interrupt(3, 1, 2, 3)
	g.over(dated{g.client})
	if c := g.mustReplay(Selection{}, nil); c.SentBefore != 3 || c.Sent != 0 {
		t.Errorf("sent %d, sent before %d, want 0, 3", c.Sent, c.SentBefore)
	}
}
