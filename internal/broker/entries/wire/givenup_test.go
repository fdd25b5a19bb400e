package wire

import (
	"bytes"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// taker adds chunks to an Assembler, and knows what that holds.
type taker struct {
	*testing.T
	a    *Assembler
	now  clock.Instant
	held []ID
}

func newTaker(t *testing.T, bytesMax int) *taker {
	t.Helper()
	return &taker{T: t, a: NewAssembler(bytesMax, time.Hour)}
}

// add adds a chunk, and returns the ids that were given up, in order.
func (a *taker) add(id ID, entry []byte) []ID {
	a.Helper()
	got, err := a.a.Add(a.now, id, false, chunkOf(a, entry), MessageSizeDefault)
	if err != nil {
		a.Fatal(err)
	}
	if a.held = append(a.held, id); len(got.IDs) > 0 {
		a.lose(got.IDs)
	}
	a.lose(got.GivenUp)
	return got.GivenUp
}

func (a *taker) lose(ids []ID) {
	a.held = slices.DeleteFunc(a.held, func(id ID) bool { return slices.Contains(ids, id) })
}

// holds checks what is held.
func (a *taker) holds(want ...ID) {
	a.Helper()
	if !slices.Equal(a.held, want) || len(a.a.entries) != len(want) {
		a.Errorf("%d entries are held, %v..., want %v", len(a.held), a.held[:min(3, len(a.held))], want)
	}
}

func ofMessage(ledger int64, chunks ...int64) (ids []ID) {
	for _, chunk := range chunks {
		ids = append(ids, ID{Ledger: ledger, Entry: chunk})
	}
	return ids
}

// A message of which a chunk has no room goes back as a whole, and what comes of it later goes back, too. It is assembled once its first chunk is held
// again.
func TestMessagesAreGivenUpWhole(t *testing.T) {
	one := cut(named("p", "one", 1), 0, bytes.Repeat([]byte("1"), 4000), 3000)
	two := cut(named("p", "two", 1), 0, bytes.Repeat([]byte("2"), 4500), 1500)
	a := newTaker(t, 7000)
	a.add(ID{1, 0}, one[0])
	a.add(ID{2, 0}, two[0])
	if got := a.add(ID{2, 1}, two[1]); !slices.Equal(got, ofMessage(2, 0, 1)) {
		t.Errorf("without room %v is given up, want chunks 0 and 1 of the second message", got)
	}
	a.add(ID{1, 1}, one[1]) // completes it, and makes room
	if got := a.add(ID{2, 2}, two[2]); !slices.Equal(got, ofMessage(2, 2)) {
		t.Errorf("after the first chunk, %v is given up, want chunk 2 of the second message", got)
	}
	a.holds()
	a.add(ID{2, 0}, two[0])
	a.add(ID{2, 1}, two[1])
	a.holds(ofMessage(2, 0, 1)...)
	a.add(ID{2, 2}, two[2])
	a.holds()
}

// What comes of a message after it has made room for an earlier one, was refused or has timed out goes back, too.
func TestLaterChunksOfAMessageThatWasGivenUp(t *testing.T) {
	one := cut(named("p", "one", 1), 0, bytes.Repeat([]byte("1"), 4500), 1500)
	two := cut(named("p", "two", 1), 0, bytes.Repeat([]byte("2"), 4000), 3000)
	for name, giveUp := range map[string]func(*taker){
		"room for another": func(a *taker) {
			a.add(ID{1, 0}, one[0])
			a.add(ID{2, 0}, two[0])
			if got := a.add(ID{1, 1}, one[1]); !slices.Equal(got, ofMessage(2, 0)) {
				t.Errorf("%v made room, want the second message", got)
			}
			a.add(ID{1, 2}, one[2])
		},
		"refused": func(a *taker) {
			a.add(ID{1, 0}, one[0])
			a.add(ID{1, 1}, one[1])
			if got := a.add(ID{2, 0}, two[0]); !slices.Equal(got, ofMessage(2, 0)) {
				t.Errorf("%v is refused, want the second message", got)
			}
			a.add(ID{1, 2}, one[2])
		},
		"timed out": func(a *taker) {
			a.add(ID{2, 0}, two[0])
			a.now = a.now.Add(2 * time.Hour)
			givenUp := a.a.Expire(a.now).GivenUp
			a.lose(givenUp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newTaker(t, 7000)
			giveUp(a)
			a.holds()
			if got := a.add(ID{2, 1}, two[1]); !slices.Equal(got, ofMessage(2, 1)) {
				t.Errorf("%v is given up, want chunk 1 of the second message", got)
			}
		})
	}
}

// A repetition without room takes its message with it. Repetitions never keep a message that is alone from being complete.
func TestRepetitionsAreGivenUpWithTheirMessage(t *testing.T) {
	one := cut(named("p", "one", 1), 0, make([]byte, 3*entriesMax), 3)
	a := newTaker(t, 1<<30)
	for i := range entriesMax {
		a.add(ID{1, int64(i)}, one[0])
	}
	if got := a.add(ID{1, entriesMax}, one[0]); len(got) != entriesMax+1 {
		t.Errorf("%d entries are given up with a repetition, want %d", len(got), entriesMax+1)
	}
	a.holds()

	two := cut(named("p", "two", 1), 0, make([]byte, 2000), 1000)
	e := chunkOf(t, two[0])
	key := identityOf(&e.Metadata)
	a = newTaker(t, int(key.whole(e)))
	for i := range int64(100) {
		if got := a.add(ID{2, i}, two[0]); len(got) > 0 {
			t.Fatalf("repetition %d gives up %v", i, got)
		}
	}
	a.add(ID{2, 100}, two[1])
	a.holds()
}

// What is remembered of messages that were given up is bounded.
func TestReturnedIsBounded(t *testing.T) {
	var r returned
	for i := range 3 * returnedMax {
		r.add(identity{published: int64(i)})
	}
	r.add(identity{uuid: string(make([]byte, rememberedNameMax+1))})
	if len(r.messages) != returnedMax || len(r.order) != returnedMax || !r.has(identity{published: 3*returnedMax - 1}) || r.has(identity{}) {
		t.Errorf("%d messages are remembered in %d places, want the latest %d", len(r.messages), len(r.order), returnedMax)
	}
	r.remove(identity{published: 3*returnedMax - 1})
	r.remove(identity{})
	if len(r.messages) != returnedMax-1 || len(r.order) != returnedMax-1 {
		t.Errorf("%d messages are remembered in %d places after one is removed", len(r.messages), len(r.order))
	}
}

// With PreferLater the messages that began first are given up: otherwise the chunks of producers that died would keep out all later messages.
func TestEarlierMessagesAreGivenUp(t *testing.T) {
	chunksOf := func(ledger int64) [][]byte {
		return cut(named("p", strconv.FormatInt(ledger, 10), 1), 0, bytes.Repeat([]byte("x"), 4000), 2000)
	}
	const bytesMax = 3 * (messageCost + 100 + 2*pieceCost + 4000)
	a := newTaker(t, bytesMax)
	a.a.PreferLater()
	for ledger := range int64(100) { // their other chunks never come
		a.add(ID{ledger, 0}, chunksOf(ledger)[0])
	}
	for ledger := int64(100); ledger < 110; ledger += 2 { // two at once are whole
		one, two := chunksOf(ledger), chunksOf(ledger+1)
		for i, chunk := range [][]byte{one[0], two[0], one[1], two[1]} {
			id := ID{ledger + int64(i%2), int64(i / 2)}
			got, err := a.a.Add(a.now, id, false, chunkOf(t, chunk), MessageSizeDefault)
			if whole := len(got.IDs) == 2; err != nil || whole != (i > 1) {
				t.Fatalf("chunk %v: %+v, %v", id, got, err)
			}
			if a.a.Held() > bytesMax {
				t.Fatalf("%d bytes are held, want at most %d", a.a.Held(), bytesMax)
			}
		}
	}
}

// With PreferLater, too, a message whose repetitions fill the Assembler ends, after all others.
func TestRepetitionsFillAnAssemblerThatPrefersLater(t *testing.T) {
	first := func(uuid string) []byte { return cut(named("p", uuid, 1), 0, bytes.Repeat([]byte("x"), 4000), 2000)[0] }
	a := newTaker(t, 1<<20)
	a.a.PreferLater()
	a.add(ID{1, 0}, first("one"))
	a.add(ID{2, 0}, first("two"))
	for entry := int64(1); entry < entriesMax-1; entry++ {
		a.add(ID{1, entry}, first("one"))
	}
	if got := a.add(ID{1, entriesMax}, first("one")); !slices.Equal(got, ofMessage(2, 0)) {
		t.Errorf("%v makes room, want the other message", got)
	}
	if got := a.add(ID{1, entriesMax + 1}, first("one")); len(got) != entriesMax+1 || len(a.a.messages) != 0 {
		t.Errorf("%d entries are given up and %d messages are held, want all and none", len(got), len(a.a.messages))
	}
}
