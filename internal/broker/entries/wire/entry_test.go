package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

func drawMetadata(t *rapid.T) *pulsarpb.MessageMetadata {
	text := rapid.StringN(0, 10, 40)
	m := &pulsarpb.MessageMetadata{
		ProducerName:           new(text.Draw(t, "producer")),
		SequenceId:             new(rapid.Uint64().Draw(t, "sequence")),
		PublishTime:            new(rapid.Uint64().Draw(t, "publish time")),
		Properties:             drawProperties(t, "properties"),
		ReplicatedFrom:         some(t, text, "replicated from"),
		PartitionKey:           some(t, text, "key"),
		ReplicateTo:            rapid.SliceOfN(text, 0, 2).Draw(t, "replicate to"),
		UncompressedSize:       some(t, rapid.Uint32(), "uncompressed size"),
		EventTime:              some(t, rapid.Uint64(), "event time"),
		EncryptionAlgo:         some(t, text, "algo"),
		EncryptionParam:        someBytes(t, "param"),
		SchemaVersion:          someBytes(t, "schema version"),
		PartitionKeyB64Encoded: some(t, rapid.Bool(), "base64"),
		OrderingKey:            someBytes(t, "ordering key"),
		DeliverAtTime:          some(t, rapid.Int64(), "deliver at"),
		MarkerType:             some(t, rapid.Int32(), "marker"),
		TxnidLeastBits:         some(t, rapid.Uint64(), "txn least"),
		TxnidMostBits:          some(t, rapid.Uint64(), "txn most"),
		HighestSequenceId:      some(t, rapid.Uint64(), "highest"),
		NullValue:              some(t, rapid.Bool(), "null value"),
		Uuid:                   some(t, text, "uuid"),
		NumChunksFromMsg:       some(t, rapid.Int32(), "chunks"),
		TotalChunkMsgSize:      some(t, rapid.Int32(), "chunked size"),
		ChunkId:                some(t, rapid.Int32(), "chunk"),
		NullPartitionKey:       some(t, rapid.Bool(), "null key"),
		NumMessagesInBatch:     some(t, rapid.Int32(), "events"),
	}
	if rapid.Bool().Draw(t, "compressed") {
		m.Compression = pulsarpb.CompressionType(rapid.IntRange(0, 4).Draw(t, "compression")).Enum()
	}
	for range rapid.IntRange(0, 2).Draw(t, "keys") {
		m.EncryptionKeys = append(m.EncryptionKeys, &pulsarpb.EncryptionKeys{
			Key: new(text.Draw(t, "key name")), Value: []byte(text.Draw(t, "key value")), Metadata: drawProperties(t, "key properties"),
		})
	}
	return m
}

// The metadata parser agrees with the generated code, for any order of the fields.
func TestMetadataParsesLikeGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawMetadata(t)
		var m Metadata
		count, err := m.parse(shuffled(t, marshal(t, want)))
		if err != nil {
			t.Fatal(err)
		}
		sameMetadata(t, &m, want)
		same(t, "batch", count, counted{present: want.NumMessagesInBatch != nil, events: deref(want.NumMessagesInBatch)})
	})
}

func sameMetadata(t *rapid.T, m *Metadata, want *pulsarpb.MessageMetadata) {
	t.Helper()
	sameBytes(t, "producer", m.Producer, blob(want.ProducerName))
	same(t, "publish time", m.PublishTime, int64(want.GetPublishTime()))
	same(t, "event time", m.EventTime, int64(want.GetEventTime()))
	sameProperties(t, m.Properties, want.Properties)
	sameBytes(t, "key", m.Key, blob(want.PartitionKey))
	same(t, "null value", m.NullValue, want.GetNullValue())
	sameBytes(t, "ordering key", m.OrderingKey, want.OrderingKey)
	sameBytes(t, "schema version", m.SchemaVersion, want.SchemaVersion)
	same(t, "compression", int32(m.Compression), int32(want.GetCompression()))
	same(t, "uncompressed size", m.UncompressedSize, want.GetUncompressedSize())
	sameBytes(t, "algo", m.Encryption.Algo, blob(want.EncryptionAlgo))
	sameBytes(t, "param", m.Encryption.Param, want.EncryptionParam)
	same(t, "encrypted", m.Encryption.Present(), len(want.EncryptionKeys) > 0)
	same(t, "keys", m.Encryption.Keys.Len(), len(want.EncryptionKeys))
	i := 0
	for key := range m.Encryption.Keys.All() {
		same(t, "key name", string(key.Name), want.EncryptionKeys[i].GetKey())
		same(t, "key value", string(key.Value), string(want.EncryptionKeys[i].GetValue()))
		sameProperties(t, key.Properties, want.EncryptionKeys[i].Metadata)
		i++
	}
	same(t, "keys yielded", i, len(want.EncryptionKeys))
	sameBytes(t, "uuid", m.UUID, blob(want.Uuid))
	same(t, "chunk", m.Chunk, want.GetChunkId())
	same(t, "chunks", m.Chunks, want.GetNumChunksFromMsg())
	same(t, "chunked size", m.ChunkedSize, want.GetTotalChunkMsgSize())
	same(t, "marker", m.Marker, want.MarkerType != nil)
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Parse parses an entry and decompresses its payload.
func (p *Parser) Parse(e *Entry, b []byte, payloadMax int) error {
	if err := p.ParseHead(e, b, payloadMax); err != nil {
		return err
	}
	return p.Open(e, payloadMax)
}

// parse parses an entry with a new Parser.
func parse(b []byte, payloadMax int) (*Entry, error) {
	e := new(Entry)
	return e, new(Parser).Parse(e, b, payloadMax)
}

func TestParseEntry(t *testing.T) {
	m := metadata()
	m.PartitionKey = new("k")
	plain := must(wiretest.Entry(m, []byte("payload")))
	check := func(t *testing.T, b []byte) {
		t.Helper()
		e, err := parse(b, 100)
		if err != nil {
			t.Fatal(err)
		}
		if string(e.Payload) != "payload" || string(e.Metadata.Key) != "k" || e.Events != 1 || e.Batched || e.Chunked {
			t.Errorf("entry = %+v", e)
		}
	}
	t.Run("plain", func(t *testing.T) { check(t, plain) })
	t.Run("stamped", func(t *testing.T) {
		stamp := &pulsarpb.BrokerEntryMetadata{BrokerTimestamp: proto.Uint64(5), Index: proto.Uint64(6)}
		check(t, must(wiretest.Stamped(stamp, plain)))
	})
	t.Run("stamped with nothing", func(t *testing.T) { check(t, must(wiretest.Stamped(&pulsarpb.BrokerEntryMetadata{}, plain))) })
	t.Run("without checksum", func(t *testing.T) { check(t, plain[6:]) })
	t.Run("empty", func(t *testing.T) {
		if e, err := parse(must(wiretest.Entry(m, nil)), 0); err != nil || e.Payload == nil || len(e.Payload) > 0 {
			t.Errorf("payload = %v, %v", e.Payload, err)
		}
	})
}

// Ringfence has no keys: encrypted payloads are passed on unchanged.
func TestEncryptedPayloadIsPassedOn(t *testing.T) {
	m := metadata()
	m.EncryptionKeys = []*pulsarpb.EncryptionKeys{{Key: new("k"), Value: []byte("v")}}
	m.Compression, m.UncompressedSize, m.NumMessagesInBatch = pulsarpb.CompressionType_ZSTD.Enum(), proto.Uint32(1000), proto.Int32(10)
	m.NumChunksFromMsg, m.ChunkId = proto.Int32(3), proto.Int32(9)
	e, err := parse(must(wiretest.Entry(m, []byte("secret"))), 100)
	if err != nil || string(e.Payload) != "secret" || e.Events != 10 || !e.Batched || e.Chunked {
		t.Errorf("entry = %+v, %v", e, err)
	}
	if _, err := e.Split(nil); reasonOf(t, err) != ReasonBatch {
		t.Errorf("Split of an encrypted batch: %v", err)
	}
}

func TestParseEntryRefuses(t *testing.T) {
	type head = pulsarpb.MessageMetadata
	entry := func(change func(m *head), payload string) []byte {
		m := metadata()
		change(m)
		b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return wiretest.Checked(append(wiretest.Sized(nil, b), payload...))
	}
	chunk := func(chunk, chunks, size int32, uuid string, change func(m *head)) []byte {
		return entry(func(m *head) {
			m.ChunkId, m.NumChunksFromMsg, m.TotalChunkMsgSize, m.Uuid = &chunk, &chunks, &size, &uuid
			if change != nil {
				change(m)
			}
		}, "payload")
	}
	asIs := func(*head) {}
	flipped := entry(func(m *head) { m.NumMessagesInBatch = proto.Int32(12) }, "payload")
	flipped[len(flipped)-1]++
	none := proto.Int32
	tests := map[string]struct {
		entry  []byte
		want   Reason
		events int
	}{
		"nothing":           {nil, ReasonMetadata, 1},
		"half a checksum":   {[]byte{0x0e, 0x01, 0, 0}, ReasonChecksum, 1},
		"wrong checksum":    {flipped, ReasonChecksum, 12},
		"metadata of 4 GiB": {wiretest.Checked([]byte{0xff, 0xff, 0xff, 0xff, 0}), ReasonMetadata, 1},
		"no protobuf":       {wiretest.Checked(wiretest.Sized(nil, []byte{0xff})), ReasonMetadata, 1},
		"no producer":       {entry(func(m *head) { m.ProducerName = nil }, ""), ReasonMetadata, 1},
		"no sequence":       {entry(func(m *head) { m.SequenceId = nil }, ""), ReasonMetadata, 1},
		"no publish time":   {entry(func(m *head) { m.PublishTime = nil }, ""), ReasonMetadata, 1},
		"property without value": {entry(func(m *head) {
			m.Properties, m.NumMessagesInBatch = []*pulsarpb.KeyValue{{Key: new("k")}}, none(12)
		}, ""), ReasonMetadata, 12},
		"key without name":         {entry(func(m *head) { m.EncryptionKeys = []*pulsarpb.EncryptionKeys{{}} }, ""), ReasonMetadata, 1},
		"broker metadata of 4 GiB": {[]byte{0x0e, 0x02, 0xff, 0xff, 0xff, 0xff}, ReasonMetadata, 1},
		"broker metadata cut off":  {[]byte{0x0e, 0x02}, ReasonMetadata, 1},
		"broker metadata no field": {wiretest.Sized([]byte{0x0e, 0x02}, []byte{8}), ReasonMetadata, 1},
		"unknown compression": {entry(func(m *head) {
			m.Compression, m.NumMessagesInBatch = pulsarpb.CompressionType(5).Enum(), none(12)
		}, ""), ReasonCompression, 12},
		"too long":    {entry(asIs, string(make([]byte, 101))), ReasonSize, 1},
		"no events":   {entry(func(m *head) { m.NumMessagesInBatch = none(0) }, "payload"), ReasonBatch, 0},
		"-1 events":   {entry(func(m *head) { m.NumMessagesInBatch = none(-1) }, "payload"), ReasonBatch, -1},
		"2^31 events": {entry(func(m *head) { m.NumMessagesInBatch = none(math.MaxInt32) }, "payload"), ReasonBatch, math.MaxInt32},
		"2^31 encrypted events": {entry(func(m *head) {
			m.NumMessagesInBatch = none(math.MaxInt32)
			m.EncryptionKeys = []*pulsarpb.EncryptionKeys{{Key: new("k"), Value: []byte("v")}}
		}, "payload"), ReasonBatch, math.MaxInt32},
		"chunk -1":             {chunk(-1, 2, 100, "u", nil), ReasonChunk, 1},
		"chunk beyond":         {chunk(2, 2, 100, "u", nil), ReasonChunk, 1},
		"2^31 chunks":          {chunk(2, math.MaxInt32, 100, "u", nil), ReasonChunk, 1},
		"no uuid":              {chunk(1, 2, 100, "", nil), ReasonChunk, 1},
		"chunk too long":       {chunk(1, 2, 6, "u", nil), ReasonChunk, 1},
		"chunks of no size":    {chunk(1, 2, 0, "u", nil), ReasonChunk, 1},
		"chunk of a batch":     {chunk(1, 2, 100, "u", func(m *head) { m.NumMessagesInBatch = none(1) }), ReasonChunk, 1},
		"one chunk is a whole": {chunk(7, 1, 100, "u", nil), 0, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e, err := parse(test.entry, 100)
			if got := reasonOf(t, err); got != test.want || e.Events != test.events || (e.Payload == nil) == (got == 0) || e.Chunked {
				t.Errorf("reason = %v, want %v; entry = %+v, want %d events", got, test.want, e, test.events)
			}
		})
	}
}

func TestBatchParsesLikeGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 10, 40)
		var batch []byte
		var want []*pulsarpb.SingleMessageMetadata
		var payloads [][]byte
		for range rapid.IntRange(1, 6).Draw(t, "events") {
			payload := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")
			s := &pulsarpb.SingleMessageMetadata{
				Properties: drawProperties(t, "properties"), PartitionKey: some(t, text, "key"), PayloadSize: new(int32(len(payload))),
				CompactedOut: some(t, rapid.Bool(), "compacted"), EventTime: some(t, rapid.Uint64(), "event time"),
				PartitionKeyB64Encoded: some(t, rapid.Bool(), "base64"), OrderingKey: someBytes(t, "ordering key"),
				SequenceId: some(t, rapid.Uint64(), "sequence"), NullValue: some(t, rapid.Bool(), "null value"),
				NullPartitionKey: some(t, rapid.Bool(), "null key"),
			}
			batch = append(wiretest.Sized(batch, shuffled(t, marshal(t, s))), payload...)
			want, payloads = append(want, s), append(payloads, payload)
		}
		m := metadata()
		m.NumMessagesInBatch = new(int32(len(want)))
		compressed := must(wiretest.Compress(m, pulsarpb.CompressionType(rapid.IntRange(0, 4).Draw(t, "compression")), batch))
		e, err := parse(must(wiretest.Entry(m, compressed)), len(batch)+100)
		if err != nil {
			t.Fatal(err)
		}
		before := []Single{{EventTime: 5}}
		got, err := e.Split(before)
		if err != nil || len(got) != 1+len(want) || got[0].EventTime != 5 {
			t.Fatalf("Split = %d events, %v", len(got), err)
		}
		for i, s := range want {
			g := got[i+1]
			sameProperties(t, g.Properties, s.Properties)
			sameBytes(t, "key", g.Key, blob(s.PartitionKey))
			sameBytes(t, "ordering key", g.OrderingKey, s.OrderingKey)
			sameBytes(t, "payload", g.Payload, append([]byte{}, payloads[i]...))
			same(t, "event time", g.EventTime, int64(s.GetEventTime()))
			same(t, "null value", g.NullValue, s.GetNullValue())
			same(t, "compacted", g.CompactedOut, s.GetCompactedOut())
		}
	})
}

func TestSplitRefuses(t *testing.T) {
	two := batch(2, 10)
	negative := wiretest.Sized(nil, protowire.AppendVarint([]byte{3 << 3}, math.MaxUint64))
	tests := map[string]struct {
		payload []byte
		events  int32
	}{
		"fewer events than bytes": {two, 1},
		"more events":             {two, 3},
		"payload cut off":         {two[:len(two)-1], 2},
		"metadata of 4 GiB":       {append([]byte{0xff, 0xff, 0xff, 0xff}, two...), 1},
		"payload of -1 bytes":     {append(negative, two...), 1},
		"payload of 2 GiB":        {append(wiretest.Sized(nil, protowire.AppendVarint([]byte{3 << 3}, math.MaxInt32)), two...), 1},
		"no payload size":         {append(wiretest.Sized(nil, []byte{2<<3 | 2, 0}), two...), 1},
		"no protobuf":             {append(wiretest.Sized(nil, []byte{2<<3 | 2, 5}), two...), 1},
		"key cut off":             {append(wiretest.Sized(nil, []byte{3 << 3, 0, 2<<3 | 2, 1}), two...), 1},
		"field number 0":          {wiretest.Sized(nil, []byte{3 << 3, 0, 0, 0}), 1},
		"property without value":  {append(wiretest.Sized(nil, []byte{1<<3 | 2, 0, 3 << 3, 0}), two...), 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := metadata()
			m.NumMessagesInBatch = &test.events
			e, err := parse(must(wiretest.Entry(m, test.payload)), 1000)
			if err != nil {
				t.Fatal(err)
			}
			before := []Single{{EventTime: 5}}
			got, err := e.Split(before)
			if reasonOf(t, err) != ReasonBatch || len(got) != 1 {
				t.Errorf("Split = %d events, %v", len(got), err)
			}
		})
	}
	if _, err := new(Entry).Split(nil); reasonOf(t, err) != ReasonBatch {
		t.Errorf("Split of an empty Entry: %v", err)
	}
}

// An entry of too many properties is broken, whether they are its own or those of all its events.
func TestTooManyProperties(t *testing.T) {
	const shortest = 6 // bytes of a property without a name
	for name, n := range map[string]int{"the most": propertiesMax, "one more": propertiesMax + 1} {
		t.Run(name, func(t *testing.T) {
			own := func(number protowire.Number, n int) []byte {
				return bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), []byte{1<<3 | 2, 0, 2<<3 | 2, 0}), n)
			}
			var payload []byte
			for _, part := range []int{n / 2, n - n/2} {
				payload = wiretest.Sized(payload, append(own(1, part), 3<<3, 0))
			}
			m := metadata()
			m.NumMessagesInBatch = proto.Int32(2)
			e, err := parse(must(wiretest.Entry(m, payload)), 2*shortest*propertiesMax)
			if err != nil {
				t.Fatal(err)
			}
			singles, err := e.Split(nil)
			if want := map[bool]Reason{true: ReasonBatch}[n > propertiesMax]; reasonOf(t, err) != want || (len(singles) == 2) != (want == 0) {
				t.Errorf("a batch with them is split into %d events, %v", len(singles), err)
			}
			single := must(proto.Marshal(metadata()))
			e, err = parse(wiretest.Checked(append(wiretest.Sized(nil, append(single, own(4, n)...)), "payload"...)), 100)
			if want := map[bool]Reason{true: ReasonMetadata}[n > propertiesMax]; reasonOf(t, err) != want || want == 0 && e.Metadata.Properties.Len() != n {
				t.Errorf("an entry with them has %d properties, %v", e.Metadata.Properties.Len(), err)
			}
		})
	}
}

// Declared sizes cause no allocation before the bytes are present.
func TestDeclaredSizesAllocateNothing(t *testing.T) {
	events := metadata()
	events.NumMessagesInBatch = proto.Int32(math.MaxInt32)
	inflated := metadata()
	inflated.Compression, inflated.UncompressedSize = pulsarpb.CompressionType_LZ4.Enum(), proto.Uint32(math.MaxUint32)
	chunked := metadata()
	chunked.Uuid, chunked.NumChunksFromMsg = new("u"), proto.Int32(math.MaxInt32)
	chunked.ChunkId, chunked.TotalChunkMsgSize = proto.Int32(0), proto.Int32(math.MaxInt32)
	for name, m := range map[string]*pulsarpb.MessageMetadata{"events": events, "size": inflated, "chunks": chunked} {
		b := must(wiretest.Entry(m, []byte("payload")))
		var e Entry
		var p Parser
		a := NewAssembler(1<<30, 1)
		got := allocated(func() {
			if err := p.Parse(&e, b, math.MaxInt); err == nil && e.Chunked {
				_, _ = a.Add(0, ID{}, false, &e, math.MaxInt)
			}
		})
		if got > 10_000 {
			t.Errorf("%s: %d bytes allocated", name, got)
		}
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	frame := benchFrame(pulsarpb.CompressionType_NONE, new("k"), []*pulsarpb.KeyValue{{Key: new("a"), Value: new("b")}})
	var e Entry
	var p Parser
	singles := make([]Single, 0, benchEvents)
	allocates(t, 0, "Parse and Split", func() {
		f, err := ParseFrame(frame)
		if err == nil {
			err = p.Parse(&e, f.Entry, MessageSizeDefault)
		}
		if err == nil {
			singles, err = e.Split(singles[:0])
		}
		if err != nil || len(singles) != benchEvents {
			t.Fatal(len(singles), err)
		}
		for i := range singles {
			for name := range singles[i].Properties.All() {
				if !bytes.Equal(name, []byte("a")) {
					t.Fatalf("name = %q", name)
				}
			}
		}
	})
}

func FuzzParseEntry(f *testing.F) {
	m := metadata()
	m.Properties = []*pulsarpb.KeyValue{{Key: new("a"), Value: new("b")}}
	m.EncryptionAlgo = new("x")
	for _, c := range []pulsarpb.CompressionType{0, 1, 2, 3, 4} {
		m.NumMessagesInBatch = proto.Int32(3)
		compressed := must(wiretest.Compress(m, c, batch(3, 40)))
		f.Add(must(wiretest.Entry(m, compressed))[6:])
	}
	f.Add(must(wiretest.Stamped(&pulsarpb.BrokerEntryMetadata{Index: proto.Uint64(1)}, must(wiretest.Entry(m, nil)))))
	f.Add(cut(named("p", "u", 1), pulsarpb.CompressionType_ZSTD, make([]byte, 100), 5)[0][6:])
	f.Fuzz(func(t *testing.T, b []byte) {
		const payloadMax = 1 << 16
		var p Parser
		for _, b := range [][]byte{b, wiretest.Checked(b)} { // the fuzzer cannot guess checksums
			e := new(Entry)
			err := p.Parse(e, b, payloadMax)
			if e.Events < 1 && err == nil {
				t.Fatalf("events = %d", e.Events)
			}
			if cap(e.buffer) > payloadMax {
				t.Fatalf("buffer of %d bytes", cap(e.buffer))
			}
			for name, value := range e.Metadata.Properties.All() {
				_, _ = name[:0], value[:0]
			}
			if reasonOf(t, err) != 0 {
				if e.Payload != nil || e.Chunked {
					t.Fatalf("a broken entry has a payload")
				}
				continue
			}
			if e.Payload == nil || len(e.Payload) > payloadMax || e.Batched && !e.Metadata.Encryption.Present() && e.Events > payloadMax/singleMin {
				t.Fatalf("payload of %d bytes, %d events", len(e.Payload), e.Events)
			}
			keys := 0
			for key := range e.Metadata.Encryption.Keys.All() {
				for name, value := range key.Properties.All() {
					_, _ = name[:0], value[:0]
				}
				keys++
			}
			if keys != e.Metadata.Encryption.Keys.Len() {
				t.Fatalf("%d keys, want %d", keys, e.Metadata.Encryption.Keys.Len())
			}
			if e.Batched {
				if singles, err := e.Split(nil); reasonOf(t, err) == 0 && len(singles) != e.Events {
					t.Fatalf("%d events, want %d", len(singles), e.Events)
				}
			}
		}
	})
}

func FuzzSplit(f *testing.F) {
	f.Add(batch(3, 10), 3)
	f.Add(must(wiretest.AppendSingle(nil, &pulsarpb.SingleMessageMetadata{
		PartitionKey: new("k"), Properties: []*pulsarpb.KeyValue{{Key: new("a"), Value: new("b")}}, OrderingKey: []byte("o"),
	}, []byte("payload"))), 1)
	f.Fuzz(func(t *testing.T, b []byte, events int) {
		e := Entry{Batched: true, Events: events, Payload: b}
		singles, err := e.Split(nil)
		if reasonOf(t, err) != 0 {
			return
		}
		if len(singles) != max(events, 0) {
			t.Fatalf("%d events, want %d", len(singles), events)
		}
		for _, s := range singles { // compared with the generated code
			size := binary.BigEndian.Uint32(b)
			var want pulsarpb.SingleMessageMetadata
			if err := proto.Unmarshal(b[4:4+size], &want); err != nil {
				t.Fatal(err)
			}
			b = b[4+size:]
			if string(s.Payload) != string(b[:want.GetPayloadSize()]) || string(s.Key) != want.GetPartitionKey() ||
				string(s.OrderingKey) != string(want.OrderingKey) || s.EventTime != int64(want.GetEventTime()) ||
				s.Properties.Len() != len(want.Properties) ||
				s.NullValue != want.GetNullValue() || s.CompactedOut != want.GetCompactedOut() {
				t.Fatalf("event = %+v, want %v", s, &want)
			}
			i := 0
			for name, value := range s.Properties.All() {
				if string(name) != want.Properties[i].GetKey() || string(value) != want.Properties[i].GetValue() {
					t.Fatalf("property %q, want %v", name, want.Properties[i])
				}
				i++
			}
			b = b[want.GetPayloadSize():]
		}
	})
}
