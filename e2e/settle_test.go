package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/testing/eventually"
)

var settleRounds = flag.Int("e2e.settle", 0, "how often each fault of TestNothingIsLostOrRepeatedWithoutReason happens; 0: the test is skipped")

// The faults of TestNothingIsLostOrRepeatedWithoutReason.
const (
	brokerUnload = "broker unload"      // the topic is given up and loaded again: all that is unacked is delivered again
	consumerKill = "consumer node kill" // of a router that has received events whose keys others own
	ownerKill    = "owner kill"         // of the router that owns the keys of all events, every second time with its application
)

// settling is a group under load and faults.
type settling struct {
	*cluster
	topic string
	load  *load
	kills []journal.Kill // of routers whose application lived on
	begun []fault        // in order
}

type fault struct {
	kind string
	at   clock.Instant
}

// TestNothingIsLostOrRepeatedWithoutReason: through faults under load each event comes
// to its end, and none is handled again that had been done, unless its owner died
// meanwhile, and with it the knowledge.
func TestNothingIsLostOrRepeatedWithoutReason(t *testing.T) {
	if *settleRounds == 0 {
		// On a machine so busy that a lease lapses, an owner forgets for a reason that no journal shows.
		t.Skip("for a machine of its own: make settle-long")
	}
	topic := pulsartest.Topic(t, 4)
	s := &settling{cluster: newCluster(t, "message_key", time.Second, topic), topic: topic, load: newLoad(t, topic)}
	for _, name := range []string{"a", "b", "d"} {
		s.start(name)
	}
	for _, m := range s.members {
		s.ready(m)
	}
	s.publishThrough(s.load.keys, func() {}) // so that each key has an owner that is known
	for i := range *settleRounds {
		for _, kind := range []string{brokerUnload, consumerKill, ownerKill} {
			s.round(kind, i)
		}
	}
	s.settled()
	report := s.checkPromises(s.load.published())
	if report.Unknown > 0 {
		t.Logf("%d events were published whose receipt was lost", report.Unknown)
	}
	s.explain()
	s.wantRecognised()
}

// wantRecognised fails the test if nothing came twice to an owner that knew it: then
// the faults have hit nothing.
func (s *settling) wantRecognised() {
	s.t.Helper()
	sum := 0.0
	for _, m := range s.members {
		for _, answer := range []string{"joined", "duplicate"} {
			n, err := s.metric(m, `ringfence_mailbox_events_total{answer="`+answer+`"}`)
			if err != nil {
				s.t.Fatal(err)
			}
			sum += n
		}
	}
	s.t.Logf("%v events came again and were recognised by their owner, since the routers' last start", sum)
	if sum == 0 {
		s.t.Error("no event was redelivered: this run proved nothing")
	}
}

// round publishes to keys that the fault is about, makes it happen meanwhile, and
// waits until everything is handled and everybody is back.
func (s *settling) round(kind string, i int) {
	s.t.Helper()
	victim := s.members[i%len(s.members)]
	keys := s.load.keys
	if kind != brokerUnload {
		keys = s.keysOf(victim, kind == ownerKill)
	}
	s.publishThrough(keys, func() {
		s.begun = append(s.begun, fault{kind, clock.Now()})
		switch kind {
		case brokerUnload:
			pulsartest.Unload(s.t, s.topic)
		case ownerKill:
			if i%2 == 1 {
				s.killMember(victim)
				s.startApp(victim)
				break
			}
			fallthrough
		case consumerKill:
			s.kill(victim.router)
			s.kills = append(s.kills, journal.Kill{Path: s.files[victim.file].Path, At: clock.Now()})
		}
	})
	if kind != brokerUnload {
		s.startRouter(victim)
		s.ready(victim)
	}
}

// publishThrough publishes to keys for some seconds, calls do in the middle, and waits
// until all of it is handled.
func (s *settling) publishThrough(keys []string, do func()) {
	s.t.Helper()
	const before, after = 1500 * time.Millisecond, 1500 * time.Millisecond
	stop := s.load.start(keys)
	time.Sleep(before)
	do()
	time.Sleep(after)
	stop()
	published := s.load.published()
	eventually.NoError(s.t, 2*time.Minute, "all events are handled", func() error {
		report, err := journal.Check(s.files, slices.Values(published))
		if err == nil && report.Lost > 0 {
			err = fmt.Errorf("%d of %d events are not, such as %v", report.Lost, report.Published, report.LostExamples[0])
		}
		return err
	})
}

// keysOf returns the keys that the member's application handled last, or those that
// others' did.
func (s *settling) keysOf(m *member, its bool) (keys []string) {
	s.t.Helper()
	last := map[event.Key]int{}
	err := s.walk(func(step journal.Step) error {
		if step.Outcome == 0 {
			last[step.Key] = step.File
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(last)) {
		if (s.owner(last[key]) == m) == its {
			keys = append(keys, string(key))
		}
	}
	if len(keys) == 0 {
		s.t.Fatalf("%s owns no keys (%v)", m.name, its)
	}
	return keys
}

// owner returns the member whose application has written a journal.
func (s *settling) owner(file int) *member {
	for _, m := range s.members {
		if strings.Contains(s.files[file].Path, "/"+m.name+"-") {
			return m
		}
	}
	return nil
}

// explain counts the reasons why events were handled more than once, and fails the test if there
// is no reason.
func (s *settling) explain() {
	s.t.Helper()
	found, err := journal.FindRepeats(s.files, s.kills)
	if err != nil {
		s.t.Fatal(err)
	}
	counts := map[string]map[journal.Why]int{}
	for _, f := range s.begun {
		counts[f.kind] = map[journal.Why]int{}
	}
	for _, r := range found {
		kind := "no fault"
		for _, f := range s.begun {
			if f.at.Before(r.At) {
				kind = f.kind
			}
		}
		if counts[kind] == nil {
			counts[kind] = map[journal.Why]int{}
		}
		counts[kind][r.Why]++
		if r.Why == journal.WhyUnexplained {
			s.t.Errorf("%s was handled again after %s, though its owner lived: %+v", r.Event, kind, r)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		s.t.Logf("after %s, %d times: handled again, by reason: %v", kind, s.times(kind), counts[kind])
	}
}

func (s *settling) times(kind string) (n int) {
	for _, f := range s.begun {
		if f.kind == kind {
			n++
		}
	}
	return n
}

// load publishes at a fixed rate with the client's default batching, and records the events that
// the broker has stored.
type load struct {
	t        *testing.T
	producer pulsar.Producer
	keys     []string

	mu    sync.Mutex
	names []string
}

func newLoad(t *testing.T, topic string) *load {
	producer, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(producer.Close)
	l := &load{t: t, producer: producer}
	for i := range 500 {
		l.keys = append(l.keys, fmt.Sprint("user-", i))
	}
	return l
}

// start publishes to keys until stop is called, which waits for the receipts.
func (l *load) start(keys []string) (stop func()) {
	const perTick, tick = 15, 10 * time.Millisecond // 1,500 a second
	ctx, cancel := context.WithCancel(l.t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		pace := time.NewTicker(tick)
		defer pace.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-pace.C:
			}
			for range perTick {
				l.send(keys[rand.IntN(len(keys))])
			}
		}
	})
	return func() {
		cancel()
		publishing.Wait()
		if err := l.producer.FlushWithCtx(l.t.Context()); err != nil {
			l.t.Errorf("produce: %v", err)
		}
	}
}

// send publishes one event. One in twenty takes longer, so that handlers run when a fault
// happens.
func (l *load) send(key string) {
	asked := task{}
	if rand.IntN(20) == 0 {
		asked.Works = 50 * time.Millisecond
	}
	payload, err := json.Marshal(asked)
	if err != nil {
		l.t.Error(err)
		return
	}
	l.producer.SendAsync(l.t.Context(), &pulsar.ProducerMessage{Key: key, Payload: payload}, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		if err != nil {
			l.t.Errorf("produce: %v", err)
			return
		}
		name := nameOf(id, id.PartitionIdx())
		l.mu.Lock()
		defer l.mu.Unlock()
		l.names = append(l.names, name)
	})
}

// published returns the names of the events that the broker has stored so far.
func (l *load) published() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.names)
}
