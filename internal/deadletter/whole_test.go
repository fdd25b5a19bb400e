package deadletter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsartest"
)

// fakeMessage is a message of a fake topic partition.
type fakeMessage struct {
	pulsar.Message
	id fakeID
}

func (m fakeMessage) ID() pulsar.MessageID { return m.id }
func (fakeMessage) Payload() []byte        { return make([]byte, 100) }

// fakeID is the id of a message in a batch.
type fakeID struct {
	pulsar.MessageID
	size int32
}

func (id fakeID) BatchSize() int32 { return id.size }

func fakeOf(ledger, entry int64, batch, size int32) fakeMessage {
	return fakeMessage{id: fakeID{pulsar.NewMessageID(ledger, entry, batch, 0), size}}
}

// fakeTopic is a topic partition whose readers miss messages.
type fakeTopic struct {
	messages []fakeMessage
	missed   []map[int]bool // by reader, indices of messages
	repeated map[int]bool   // indices of messages that each reader shows once more, after the next one
	opened   int
}

func (f *fakeTopic) open(from Place) (pulsar.Reader, error) {
	r := &fakeReader{}
	for i, m := range f.messages {
		if placeOf(m.ID()).before(from) || f.opened < len(f.missed) && f.missed[f.opened][i] {
			continue
		}
		r.left = append(r.left, m)
		if f.repeated[i-1] {
			r.left = append(r.left, f.messages[i-1])
		}
	}
	f.opened++
	return r, nil
}

type fakeReader struct {
	pulsar.Reader
	left []fakeMessage
}

func (r *fakeReader) Next(ctx context.Context) (pulsar.Message, error) {
	if len(r.left) == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	m := r.left[0]
	r.left = r.left[1:]
	return m, nil
}

func (*fakeReader) Close() {}

// all reads the topic partition from a place to its end.
func (f *fakeTopic) all(t *testing.T, from Place) (got []string) {
	t.Helper()
	reader, _ := f.open(from) // it does not fail
	end := placeOf(f.messages[len(f.messages)-1].ID())
	w := whole{open: f.open, reader: reader, from: from, end: end, within: 5 * time.Second}
	for {
		m, err := w.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.ID().String())
		if isLast(m, end) {
			return got
		}
	}
}

func (f *fakeTopic) want(from int) (want []string) {
	for _, m := range f.messages[from:] {
		want = append(want, m.ID().String())
	}
	return want
}

// TestWhole: a message that one reader misses comes from another one, in its order.
func TestWhole(t *testing.T) {
	messages := []fakeMessage{
		fakeOf(1, 0, -1, 0), fakeOf(1, 1, -1, 0), fakeOf(1, 2, 0, 3), fakeOf(1, 2, 1, 3), fakeOf(1, 2, 2, 3), fakeOf(1, 3, -1, 0),
		fakeOf(2, 0, -1, 0), fakeOf(5, 0, 0, 2), fakeOf(5, 0, 1, 2), fakeOf(5, 3, -1, 0), fakeOf(5, 4, -1, 0),
	}
	for i := range len(messages) - 1 { // the client never drops the last message
		for _, first := range []int{0, 1, 6} {
			f := &fakeTopic{messages: messages, missed: []map[int]bool{{i: true}}, repeated: map[int]bool{7: true}}
			from := Place{Entry: -1}
			if first > 0 {
				from = placeOf(messages[first].ID())
			}
			if got, want := f.all(t, from), f.want(first); !slices.Equal(got, want) {
				t.Errorf("from message %d, without message %d it reads\n%q, want\n%q", first, i, got, want)
			}
		}
	}
	f := &fakeTopic{messages: messages, missed: []map[int]bool{{3: true, 4: true}}} // the rest of a batch
	if got, want := f.all(t, Place{Entry: -1}), f.want(0); !slices.Equal(got, want) {
		t.Errorf("without the end of a batch it reads\n%q, want\n%q", got, want)
	}
}

// TestWholeIsCheap: only where a message may be missing is a topic partition read twice.
func TestWholeIsCheap(t *testing.T) {
	f := &fakeTopic{}
	const ledger = int64(2 * stretchMax)
	for i := range 2 * ledger {
		f.messages = append(f.messages, fakeOf(1+i/ledger, i%ledger, -1, 0))
	}
	if got := f.all(t, Place{Entry: -1}); !slices.Equal(got, f.want(0)) {
		t.Errorf("it reads %d messages", len(got))
	}
	if f.opened != 3 { // the reader itself, for the first message, and for the first one of the second ledger
		t.Errorf("%d readers, want 3", f.opened)
	}
}

// TestWholeAtRandom: whatever the readers miss of a topic with gaps, each message that one of two readers has shown is returned, once and in its order.
func TestWholeAtRandom(t *testing.T) {
	missed := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		f := &fakeTopic{repeated: map[int]bool{}}
		ledger, entry := int64(1), int64(0)
		for len(f.messages) < 3*stretchMax {
			size := random.Int32N(5)
			for i := range size {
				f.messages = append(f.messages, fakeOf(ledger, entry, i, size))
			}
			if size == 0 {
				f.messages = append(f.messages, fakeOf(ledger, entry, -1, 0))
			}
			switch entry++; random.IntN(8) {
			case 0:
				ledger, entry = ledger+1+random.Int64N(2), 0
			case 1:
				entry += random.Int64N(3)
			}
		}
		first := map[int]bool{}
		for i := range len(f.messages) - 1 {
			if first[i] = random.IntN(20) == 0; first[i] {
				missed++
			}
			f.repeated[i] = random.IntN(50) == 0
		}
		f.missed = []map[int]bool{first}
		if got, want := f.all(t, Place{Entry: -1}), f.want(0); !slices.Equal(got, want) {
			t.Fatalf("seed %d: it reads %d messages, want %d", seed, len(got), len(want))
		}
	}
	if missed < 1000 {
		t.Errorf("%d messages were missed", missed)
	}
}

// TestWholeEnds: an error of a reader, the end of the context and silence are returned.
func TestWholeEnds(t *testing.T) {
	messages := []fakeMessage{fakeOf(1, 0, -1, 0), fakeOf(2, 0, -1, 0), fakeOf(2, 1, -1, 0)}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("no broker")
	for name, c := range map[string]struct {
		ctx    context.Context
		open   func(Place) (pulsar.Reader, error)
		missed []map[int]bool
		want   error
	}{
		"the second reader cannot be opened": {t.Context(), func(Place) (pulsar.Reader, error) { return nil, broken }, nil, broken},
		"the second reader shows nothing":    {t.Context(), nil, []map[int]bool{{}, {0: true, 1: true, 2: true}}, errQuiet},
		"no reader shows anything":           {t.Context(), nil, []map[int]bool{{0: true, 1: true, 2: true}}, errQuiet},
		"the context has ended":              {ended, nil, []map[int]bool{{0: true, 1: true, 2: true}}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeTopic{messages: messages, missed: c.missed}
			reader, _ := f.open(Place{Entry: -1}) // it does not fail
			w := whole{open: f.open, reader: reader, from: Place{Entry: -1}, end: Place{2, 1}, within: 200 * time.Millisecond}
			if c.open != nil {
				w.open = c.open
			}
			if m, err := w.next(c.ctx); !errors.Is(err, c.want) || m != nil {
				t.Errorf("the error is %v, want %v", err, c.want)
			}
		})
	}
}

// TestReadAcrossReconnect: the client's reader drops what it holds for its caller when it reconnects while more is queued. A read misses none of it.
func TestReadAcrossReconnect(t *testing.T) {
	pulsartest.SkipUnderRace(t)
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
			_, err := g.read(t.Context(), g.topic, Place{Entry: -1}, func(m pulsar.Message) error {
				if got = append(got, string(m.Payload())); len(got) == 1 {
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
