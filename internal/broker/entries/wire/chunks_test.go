package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

const chunkTimeout = time.Minute

// cut returns the entries of a chunked message.
func cut(m *pulsarpb.MessageMetadata, c pulsarpb.CompressionType, payload []byte, size int) [][]byte {
	m = proto.CloneOf(m)
	compressed := must(wiretest.Compress(m, c, payload))
	m.TotalChunkMsgSize = new(int32(len(compressed)))
	parts := slices.Collect(slices.Chunk(compressed, size))
	m.NumChunksFromMsg = new(int32(len(parts)))
	var entries [][]byte
	for i, part := range parts {
		m.ChunkId = new(int32(i))
		entries = append(entries, must(wiretest.Entry(m, part)))
	}
	return entries
}

func named(producer, uuid string, published uint64) *pulsarpb.MessageMetadata {
	m := metadata()
	m.ProducerName, m.Uuid, m.PublishTime = &producer, &uuid, &published
	return m
}

// chunkOf parses the entry of a chunk.
func chunkOf(t interface{ Fatalf(string, ...any) }, entry []byte) *Entry {
	e := new(Entry)
	if err := new(Parser).Parse(e, entry, MessageSizeDefault); err != nil || !e.Chunked {
		t.Fatalf("Parse of a chunk: %v, Chunked = %v", err, e.Chunked)
	}
	return e
}

// logged is an entry of the topic partition in the model.
type logged struct {
	message, chunk int
	bytes          []byte
	acked          bool
	again          bool // the broker has delivered it before
}

// sent is a message of the model.
type sent struct {
	payload    []byte
	entries    [][]byte
	complete   bool // all chunks are in the log
	done       bool // was complete at the consumer, and acked
	assembled  int
	mayBeLost  bool // valid, but too large for the Assembler
	ended      bool // chunks of it were taken for those of an incomplete message
	unfinished [][]ID
}

// assembling models a broker, a consumer and an Assembler between them.
type assembling struct {
	t        *rapid.T
	now      clock.Instant
	a        *Assembler
	bytesMax int
	messages []*sent
	log      map[ID]*logged
	ids      []ID // of the log, in order
	pending  []ID // to be sent to the consumer
	held     map[ID]bool
	again    bool // the broker knows which entries it has delivered
	ended    int  // incomplete messages
}

func drawAssembling(t *rapid.T) *assembling {
	z := &assembling{t: t, now: clock.Instant(time.Hour), log: map[ID]*logged{}, held: map[ID]bool{}, again: true}
	z.bytesMax = rapid.IntRange(1500, 5000).Draw(t, "bytes max")
	z.a = NewAssembler(z.bytesMax, chunkTimeout)
	var queues [][]ID
	for i := range rapid.IntRange(1, 6).Draw(t, "messages") {
		length := rapid.SampledFrom([]int{200, 201, 600}).Draw(t, "length")
		m := &sent{payload: rapid.SliceOfN(rapid.Byte(), length, length).Draw(t, "payload")}
		size := rapid.SampledFrom([]int{60, 100, 150}).Draw(t, "chunk size")
		c := pulsarpb.CompressionType(max(rapid.IntRange(-4, 4).Draw(t, "compression"), 0))
		// Few names, lengths and sizes, so that some messages differ in only one part of their identity.
		head := named([]string{"p", "q"}[i%2], []string{"u", "v"}[i/2%2], uint64(i/4))
		if m.entries = cut(head, c, m.payload, size); len(m.entries) < 2 {
			continue
		}
		m.complete = true
		number := len(z.messages)
		z.messages = append(z.messages, m)
		var queue []ID
		put := func(chunk int) {
			id := ID{Ledger: int64(number), Entry: int64(len(queue))}
			z.log[id] = &logged{message: number, chunk: chunk, bytes: m.entries[chunk]}
			queue = append(queue, id)
		}
		missing := -1
		if rapid.IntRange(0, 4).Draw(t, "one is missing") == 0 {
			missing, m.complete = rapid.IntRange(0, len(m.entries)-1).Draw(t, "missing"), false
		}
		for chunk := range m.entries {
			if chunk != missing {
				put(chunk)
			}
		}
		if rapid.IntRange(0, 2).Draw(t, "sent again") == 0 {
			for chunk := rapid.IntRange(0, len(m.entries)-1).Draw(t, "from"); chunk < len(m.entries); chunk++ {
				if chunk != missing {
					put(chunk)
				}
			}
		}
		queues = append(queues, queue)
	}
	for len(queues) > 0 { // interleaved
		i := rapid.IntRange(0, len(queues)-1).Draw(t, "next")
		z.ids, queues[i] = append(z.ids, queues[i][0]), queues[i][1:]
		if len(queues[i]) == 0 {
			queues = slices.Delete(queues, i, i+1)
		}
	}
	z.pending = slices.Clone(z.ids)
	return z
}

// deliver sends an entry to the consumer.
func (z *assembling) deliver(i int) {
	t, id := z.t, z.pending[i]
	z.pending = slices.Delete(z.pending, i, i+1)
	l := z.log[id]
	m := z.messages[l.message]
	frame := slices.Clone(l.bytes)
	e := chunkOf(t, frame)
	got, err := addWhole(z.a, z.now, id, z.again && l.again, e, MessageSizeDefault)
	l.again = true
	defer clear(frame) // the next frame may be read into the same memory
	if z.a.Held() > z.bytesMax {
		t.Fatalf("Held() = %d, limit is %d bytes", z.a.Held(), z.bytesMax)
	}
	if err != nil {
		key := identityOf(&e.Metadata)
		if reasonOf(t, err) != ReasonSize || key.whole(e) <= int64(z.bytesMax) || len(got.IDs)+len(got.GivenUp) > 0 {
			t.Fatalf("Add of a chunk of message %d: %+v, %v", l.message, got, err)
		}
		m.mayBeLost = true
		return
	}
	wasHeld := z.held[id]
	for _, given := range got.GivenUp {
		if !z.held[given] && given != id {
			t.Fatalf("Add gave up %v, which was not held", given)
		}
		delete(z.held, given)
	}
	if !slices.Contains(got.GivenUp, id) {
		z.held[id] = true
	}
	z.givenUp(got.GivenUp)
	if len(got.IDs) == 0 {
		if !e.Chunked {
			t.Fatalf("message is complete without IDs")
		}
		return
	}
	if wasHeld || e.Chunked || !bytes.Equal(e.Payload, m.payload) {
		t.Fatalf("message %d: payload of %d bytes, want %d", l.message, len(e.Payload), len(m.payload))
	}
	for i, done := range got.IDs {
		d := z.log[done]
		if !z.held[done] || d.message != l.message || i < len(m.entries) && d.chunk != i {
			t.Fatalf("message %d: IDs name %v: held = %v, entry = %+v", l.message, done, z.held[done], d)
		}
		delete(z.held, done)
	}
	if len(got.IDs) < len(m.entries) {
		t.Fatalf("message %d is complete with %d IDs for %d chunks", l.message, len(got.IDs), len(m.entries))
	}
	m.assembled++
	m.unfinished = append(m.unfinished, got.IDs)
}

// finish acks the entries of a complete message.
func (z *assembling) finish(m *sent) {
	for _, id := range m.unfinished[0] {
		z.log[id].acked = true
	}
	m.done = true
	m.unfinished = m.unfinished[1:]
}

func (z *assembling) expire(d time.Duration) {
	z.now = z.now.Add(d)
	if len(z.held) > 0 && z.a.next == clock.Forever {
		z.t.Fatalf("%d entries are held, and none times out", len(z.held))
	}
	r := z.a.Expire(z.now)
	ended := slices.Concat(r.GivenUp, r.Redundant)
	for _, m := range r.Incomplete {
		z.incomplete(m)
		ended = append(ended, m.IDs...)
	}
	for _, id := range ended {
		if !z.held[id] {
			z.t.Fatalf("Expire gave up %v, which was not held", id)
		}
		delete(z.held, id)
	}
	z.givenUp(r.GivenUp)
	for _, id := range r.Redundant {
		z.log[id].acked = true
	}
	if d > chunkTimeout && len(z.held) > 0 {
		z.t.Fatalf("%d entries are held after the timeout", len(z.held))
	}
}

// incomplete ends a message with chunks missing. Its entries are acked.
func (z *assembling) incomplete(m Incomplete) {
	first := z.log[m.IDs[0]]
	of, again := z.messages[first.message], false
	var parts []byte
	for i, id := range m.IDs {
		l := z.log[id]
		if l.message != first.message || l.acked {
			z.t.Fatalf("incomplete message %d has entry %v: %+v", first.message, id, l)
		}
		if i < len(of.entries)-m.Missing {
			parts = append(parts, chunkOf(z.t, l.bytes).Payload...)
		}
		again = again || l.again
		l.acked = true
	}
	uuid := chunkOf(z.t, of.entries[0]).Metadata.UUID
	if !again || !bytes.Equal(m.Parts, parts) || !bytes.Equal(m.Entry.Metadata.UUID, uuid) || m.Missing < 1 || int(m.Entry.Metadata.Chunks) != len(of.entries) {
		z.t.Fatalf("incomplete message %d: %d of %d chunks are missing, and %d bytes are there, want %d", first.message, m.Missing, len(of.entries), len(m.Parts), len(parts))
	}
	of.ended = true
	z.ended++
}

// givenUp returns entries to the broker. It can assign a later chunk only after the first chunk of its message.
func (z *assembling) givenUp(ids []ID) {
	z.pending = append(z.pending, ids...)
	for _, id := range ids {
		for held := range z.held {
			if of, first := z.log[id], z.log[held]; of.chunk > 0 && first.chunk == 0 && of.message == first.message {
				z.t.Fatalf("chunk %d of message %d was given up while its first chunk is held", of.chunk, of.message)
			}
		}
	}
}

// reconnect makes the broker redeliver all unacked entries.
func (z *assembling) reconnect() {
	z.a.Drop()
	clear(z.held)
	z.pending = slices.DeleteFunc(slices.Clone(z.ids), func(id ID) bool { return z.log[id].acked })
}

func (z *assembling) check() {
	if z.a.Held() > z.bytesMax || z.a.Held() < 0 || (z.a.Held() == 0) != (len(z.held) == 0) || len(z.a.entries) != len(z.held) {
		z.t.Fatalf("Held() = %d of %d bytes, with %d entries, want %d", z.a.Held(), z.bytesMax, len(z.a.entries), len(z.held))
	}
	for i, m := range z.messages { // a message that is not done can still be complete, even if the consumer dies now
		if m.done || !m.complete || m.ended {
			continue
		}
		unacked := map[int]bool{}
		for _, l := range z.log {
			if l.message == i && !l.acked {
				unacked[l.chunk] = true
			}
		}
		if len(unacked) < len(m.entries) {
			z.t.Fatalf("message %d is lost: it is not done, and only %d of %d chunks are unacked", i, len(unacked), len(m.entries))
		}
	}
}

func TestAssemblerModel(t *testing.T) {
	complete, givenUp, incomplete := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		z := drawAssembling(t)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { z.t = t; z.check() },
			"deliver": func(t *rapid.T) {
				if len(z.pending) == 0 {
					t.Skip()
				}
				z.deliver(0)
			},
			"deliver any": func(t *rapid.T) {
				if len(z.pending) == 0 {
					t.Skip()
				}
				z.deliver(rapid.IntRange(0, len(z.pending)-1).Draw(t, "which"))
			},
			"finish": func(t *rapid.T) {
				for _, m := range z.messages {
					if len(m.unfinished) > 0 {
						z.finish(m)
						return
					}
				}
				t.Skip()
			},
			"reconnect": func(*rapid.T) { z.reconnect() },
			"wait":      func(t *rapid.T) { z.expire(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second) },
		})
		// In the end every message that can be complete is complete, if the broker redelivers the entries that were given up. It has been restarted,
		// so it does not know what it had delivered before.
		z.again = false
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 200 {
			z.reconnect()
			random.Shuffle(len(z.pending), func(i, j int) { z.pending[i], z.pending[j] = z.pending[j], z.pending[i] })
			for range len(z.pending) {
				z.deliver(0)
			}
			givenUp += len(z.pending)
			for _, m := range z.messages {
				for len(m.unfinished) > 0 {
					z.finish(m)
				}
			}
			z.expire(2 * chunkTimeout)
			z.check()
		}
		for i, m := range z.messages {
			if m.complete && !m.mayBeLost && !m.done && !m.ended {
				t.Fatalf("message %d was never complete", i)
			}
			if !m.complete && m.assembled > 0 {
				t.Fatalf("message %d was complete without all chunks", i)
			}
			complete += m.assembled
		}
		incomplete += z.ended
		for id, l := range z.log {
			if m := z.messages[l.message]; m.done && !l.acked && len(m.entries) < rememberedIDsMax/2 {
				t.Fatalf("entry %v repeats a chunk of message %d, which is done, but is never acked", id, l.message)
			}
		}
	})
	if complete == 0 || givenUp == 0 || incomplete == 0 {
		t.Errorf("%d messages complete, %d incomplete, %d entries given up, want some of each", complete, incomplete, givenUp)
	}
}

// Two interleaved messages that exceed bytesMax together do not evict each other forever.
func TestAssemblerMakesProgress(t *testing.T) {
	payload := bytes.Repeat([]byte("x"), 4000)
	one, other := cut(named("p", "u", 1), 0, payload, 1000), cut(named("p", "v", 1), 0, payload, 1000)
	a := NewAssembler(6000, chunkTimeout)
	complete := 0
	for range 4 {
		for i := range one {
			for ledger, entries := range [][][]byte{one, other} {
				if complete&(1<<ledger) != 0 {
					continue // it is acked
				}
				got, err := addWhole(a, 0, ID{Ledger: int64(ledger), Entry: int64(i)}, false, chunkOf(t, entries[i]), MessageSizeDefault)
				if err != nil {
					t.Fatal(err)
				}
				if len(got.IDs) > 0 {
					complete |= 1 << ledger
				}
			}
		}
	}
	if complete != 3 {
		t.Errorf("complete = %b, want both", complete)
	}
}

// A restarted producer can reuse the uuid of an unfinished message. The halves must not be mixed.
func TestAssemblerKeepsRestartedProducersApart(t *testing.T) {
	a := NewAssembler(1<<20, chunkTimeout)
	before, after := bytes.Repeat([]byte("a"), 300), bytes.Repeat([]byte("b"), 300)
	first, second := cut(named("p", "p-0", 1), 0, before, 100), cut(named("p", "p-0", 2), 0, after, 100)
	for i, entry := range [][]byte{first[0], first[1], second[0], second[1], second[2]} {
		e := chunkOf(t, entry)
		got, err := addWhole(a, 0, ID{Entry: int64(i)}, false, e, MessageSizeDefault)
		if err != nil || len(got.GivenUp) > 0 || (len(got.IDs) > 0) != (i == 4) {
			t.Fatalf("chunk %d: %+v, %v", i, got, err)
		}
		if i == 4 && (!bytes.Equal(e.Payload, after) || fmt.Sprint(got.IDs) != "[{0 2} {0 3} {0 4}]") {
			t.Errorf("ids = %v, payload = %q", got.IDs, e.Payload)
		}
	}
	if r := a.Expire(clock.Instant(chunkTimeout)); fmt.Sprint(r.GivenUp, r.Redundant, r.Incomplete) != "[{0 0} {0 1}] [] []" {
		t.Errorf("Expire of the first half = %+v", r)
	}
}

func TestAssemblerReportsBrokenMessages(t *testing.T) {
	m := named("p", "u", 1)
	m.Compression, m.UncompressedSize = pulsarpb.CompressionType_ZLIB.Enum(), proto.Uint32(100)
	add := func(m *pulsarpb.MessageMetadata, payloadMax int, parts ...string) (got Assembled, err error) {
		a := NewAssembler(1<<20, chunkTimeout)
		for i, part := range parts {
			m.ChunkId, m.NumChunksFromMsg = new(int32(i)), new(int32(len(parts)))
			if got, err = addWhole(a, 0, ID{Entry: int64(i)}, false, chunkOf(t, must(wiretest.Entry(m, []byte(part)))), payloadMax); err != nil {
				break
			}
		}
		if err != nil && len(got.IDs) > 0 && a.Held() != 0 {
			t.Errorf("Held() = %d after a broken message", a.Held())
		}
		return got, err
	}
	m.TotalChunkMsgSize = proto.Int32(6)
	if got, err := add(m, 1000, "abc", "def"); reasonOf(t, err) != ReasonDecompress || len(got.IDs) != 2 || string(got.Parts) != "abcdef" {
		t.Errorf("not compressed: %+v, %v", got, err)
	}
	if got, err := add(m, 99, "abc", "def"); reasonOf(t, err) != ReasonSize || len(got.IDs) != 2 {
		t.Errorf("too long when decompressed: %+v, %v", got, err)
	}
	if got, err := add(m, 1000, "abc", "d"); reasonOf(t, err) != ReasonSize || len(got.IDs) != 2 || string(got.Parts) != "abcd" {
		t.Errorf("shorter than declared: %+v, %v", got, err)
	}
	if got, err := add(m, 1000, "abcde", "fgh"); reasonOf(t, err) != ReasonChunk || len(got.IDs) != 0 {
		t.Errorf("longer than declared: %+v, %v", got, err)
	}
	m.TotalChunkMsgSize = proto.Int32(1 << 18)
	tiny := cut(m, 0, make([]byte, chunksMax+1), 1)
	if _, err := NewAssembler(1<<30, 1).Add(0, ID{}, false, chunkOf(t, tiny[0]), 1<<20); reasonOf(t, err) != ReasonSize {
		t.Errorf("too many chunks: %v", err)
	}
	m.TotalChunkMsgSize = proto.Int32(1 << 30)
	if got, err := add(m, 1000, "abc", "def"); reasonOf(t, err) != ReasonSize || len(got.IDs) != 0 {
		t.Errorf("a gigabyte: %+v, %v", got, err)
	}
	if _, err := NewAssembler(1, 1).Add(0, ID{}, false, &Entry{}, 1); reasonOf(t, err) != ReasonChunk {
		t.Errorf("no chunk: %v", err)
	}
}

func FuzzAssembler(f *testing.F) {
	f.Add([]byte("\x00\x01\x02\x11\x12\x10\xff\x00\x01\x02"))
	f.Add([]byte("\x00\x10\x20\x01\x11\x21\x02\x12\x22"))
	// Each byte of a script selects the message and the chunk of an entry, or a wait. A chunk is repeated in another or in the same entry.
	random := rand.New(rand.NewPCG(1, 2))
	var messages [][]*Entry
	var payloads [][]byte
	for i := range 8 {
		payload := make([]byte, 180+60*i)
		for j := range payload {
			payload[j] = byte(random.Uint32()) // compressible bytes would fit into one chunk
		}
		payloads = append(payloads, payload)
		c := pulsarpb.CompressionType([]int32{0, 0, 0, 0, 0, 1, 2, 4}[i])
		var chunks []*Entry
		var script []byte // with which the message becomes complete
		for j, entry := range cut(named("p", string(rune('a'+i%3)), uint64(i)), c, payload, 40+i) {
			chunks = append(chunks, chunkOf(f, entry))
			script = append(script, byte(i<<4|j))
		}
		if len(chunks) > 16 {
			f.Fatalf("message %d has %d chunks: four bits of a script cannot select them", i, len(chunks))
		}
		messages = append(messages, chunks)
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		const bytesMax, scriptMax = 5000, 400 // longer scripts take long, and repeat what shorter ones do
		script = script[:min(len(script), scriptMax)]
		a := NewAssembler(bytesMax, chunkTimeout)
		held := map[ID]bool{}
		give := func(ids []ID, now ID) {
			for _, id := range ids {
				if !held[id] && id != now {
					t.Fatalf("returned %v, which was not held", id)
				}
				delete(held, id)
			}
		}
		var now clock.Instant
		for i, b := range script {
			if b >= 0xf0 {
				now = now.Add(time.Duration(b&15) * 10 * time.Second)
				r := a.Expire(now)
				give(r.GivenUp, ID{-1, -1})
				give(r.Redundant, ID{-1, -1})
				for _, m := range r.Incomplete {
					give(m.IDs, ID{-1, -1})
					if len(m.Parts) == 0 || m.Missing < 1 || m.Missing >= int(m.Entry.Metadata.Chunks) {
						t.Fatalf("%d bytes of an incomplete message, of whose %d chunks %d are missing", len(m.Parts), m.Entry.Metadata.Chunks, m.Missing)
					}
				}
				continue
			}
			message := int(b>>4) % len(messages)
			chunk := int(b&15) % len(messages[message])
			id := ID{Ledger: int64(message), Entry: int64(chunk)}
			if i%3 == 0 {
				id.Entry += int64(i) * 100
			}
			copied := *messages[message][chunk] // Add changes it
			e := &copied
			got, err := addWhole(a, now, id, i%5 == 0, e, MessageSizeDefault)
			if err != nil {
				if key := identityOf(&e.Metadata); reasonOf(t, err) != ReasonSize || key.whole(e) <= bytesMax {
					t.Fatal(err)
				}
				continue
			}
			give(got.GivenUp, id)
			if !slices.Contains(got.GivenUp, id) {
				held[id] = true
			}
			give(got.IDs, ID{-1, -1})
			if (len(got.IDs) > 0) == e.Chunked || !e.Chunked && !bytes.Equal(e.Payload, payloads[message]) {
				t.Fatalf("message %d: %v, chunked %v", message, got.IDs, e.Chunked)
			}
			if a.Held() > bytesMax || len(a.entries) != len(held) {
				t.Fatalf("Held() = %d bytes, with %d entries, want %d", a.Held(), len(a.entries), len(held))
			}
		}
	})
}

// addWhole adds a chunk, and opens the message if that is complete.
func addWhole(a *Assembler, now clock.Instant, id ID, again bool, e *Entry, payloadMax int) (Assembled, error) {
	got, err := a.Add(now, id, again, e, payloadMax)
	if err != nil || len(got.IDs) == 0 {
		return got, err
	}
	parts := e.Payload
	if err = new(Parser).Open(e, payloadMax); err != nil {
		got.Parts = parts
	}
	return got, err
}

// First chunks without the rest of their messages hold few entries: the broker counts each as unacked for as long.
func TestAssemblerHoldsFewEntries(t *testing.T) {
	a := NewAssembler(1<<30, time.Hour)
	for i := range 2 * entriesMax {
		e := chunkOf(t, cut(named("p", fmt.Sprint("uuid-", i), 1), pulsarpb.CompressionType_NONE, []byte("ab"), 1)[0])
		got, err := a.Add(0, ID{Entry: int64(i)}, false, e, MessageSizeDefault)
		if held := len(got.GivenUp) == 0; err != nil || held != (i < entriesMax) {
			t.Fatalf("entry %d: given up %v, %v; want the first %d held", i, got.GivenUp, err, entriesMax)
		}
	}
}
