package controllog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/ownership"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
	"github.com/ringfence/router/ring"
)

const group = "g"

// Every record is read back as it was written.
func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRecord(t)
		data, err := Encode(want)
		if err != nil {
			t.Fatalf("Encode: %v", err)
		}
		got, err := Decode(group, data)
		if err != nil {
			t.Fatalf("Decode: %v", err)
		}
		if s, ok := want.Body.(*ownership.Snap); ok {
			s.TopicRefs = false // how it is written
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got.Body, want.Body)
		}
	})
}

// A set is encoded in its bits at most, and a small set in few bytes.
func TestSetsAreShort(t *testing.T) {
	all := make([]ring.Partition, ring.Partitions)
	for p := range all {
		all[p] = ring.Partition(p)
	}
	for name, c := range map[string]struct {
		set ownership.Set
		max int
	}{
		"nothing":     {nil, 0},
		"one":         {ownership.SetOf(4000), 4},
		"ten":         {ownership.SetOf(all[4000:4010]...), 24},
		"every third": {everyThird(all), len(all)/8 + 4},
		"all":         {ownership.SetOf(all...), len(all)/8 + 4},
	} {
		if got := proto.Size(encodeSet(c.set)); got > c.max {
			t.Errorf("%s takes %d bytes, want <= %d", name, got, c.max)
		}
	}
}

func everyThird(all []ring.Partition) ownership.Set {
	var s []ring.Partition
	for i := 0; i < len(all); i += 3 {
		s = append(s, all[i])
	}
	return ownership.SetOf(s...)
}

// recordMax is the broker's limit of the bytes of a message, unless an operator has changed it.
const recordMax = 5 << 20

// A state of full size fits into a record: as many members as a group has, as many former nodes as a state remembers, and the
// longest texts. Once each topic is written once, so do the longest topics of all of them.
func TestSnapOfFullSize(t *testing.T) {
	for name, c := range map[string]struct {
		members, others, text int
		topics                []string
		max                   int
	}{
		"a usual group":         {100, 0, 60, nil, 768 << 10},
		"the largest group":     {ring.MembersMax, 256, 250, nil, 2 << 20},
		"a few long topics":     {ring.MembersMax, 256, 250, topicsOf(TopicBytesMax), 2 << 20},
		"many short topics":     {ring.MembersMax, 256, 250, topicsOf(len("persistent://a/b/c")), recordMax},
		"330 topics, 3 members": {3, 256, 60, topicsOf(60)[:330], 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			s := &ownership.State{HashID: ring.HashID}
			for i := range c.members + c.others {
				n := ownership.Node{
					Name: strings.Repeat("n", c.text), Lease: 2 * time.Second, Since: event.Position{Ledger: 1 << 33, Entry: 1 << 20},
					GRPCAddr: strings.Repeat("a", c.text), GossipAddr: strings.Repeat("b", c.text),
					PublicKey: strings.Repeat("k", 32), LogVersion: ownership.LogVersionMax, Topics: c.topics,
				}
				n.Inc[0], n.Inc[1] = byte(i), byte(i>>8)+1
				s.Nodes = append(s.Nodes, n)
				if i < c.members {
					s.Members = append(s.Members, n.Inc)
				}
			}
			for p := range ring.Partitions {
				at := event.Position{Ledger: 1 << 33, Entry: int64(p)}
				s.Table = append(s.Table, uint16(p%c.members))
				s.Start = append(s.Start, at)
				s.Pending = append(s.Pending, []ownership.Tenure{{Inc: s.Members[0], Lease: time.Second, Start: at, Dep: at}})
			}
			for i := range 4 * ownership.ReservedMax {
				s.Reserved = append(s.Reserved, ownership.Reserved{
					KeyAt: ownership.KeyAt{Partition: 1000, Key: ring.KeyHash(i)}, IDs: make([]ownership.ReservationID, 2), TTL: ownership.TTLMost, At: event.Position{Ledger: 1 << 33, Entry: 1 << 20},
				})
			}
			data, err := Encode(ownership.Record{LogVersion: ownership.LogVersionMin, Group: group, Inc: s.Members[0], Body: &ownership.Snap{State: s, TopicRefs: true}})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bytes", len(data))
			if len(data) > c.max {
				t.Errorf("%d bytes, want <= %d", len(data), c.max)
			}
			read, err := Decode(group, data)
			if err != nil {
				t.Fatal(err)
			}
			for i, n := range read.Body.(*ownership.Snap).State.Nodes {
				if !slices.Equal(n.Topics, c.topics) {
					t.Fatalf("node %d was read with %d topics, want %d", i, len(n.Topics), len(c.topics))
				}
			}
		})
	}
}

// topicsOf returns as many topics of so many bytes as a router may have.
func topicsOf(bytes int) (topics []string) {
	for i := range TopicsBytesMax / bytes {
		topics = append(topics, fmt.Sprintf("%0*d", bytes, i))
	}
	return topics
}

// A record that cannot be represented exactly is refused, not rounded.
func TestEncodeRefuses(t *testing.T) {
	record := func(body ownership.Body) ownership.Record {
		return ownership.Record{LogVersion: ownership.LogVersionMin, Group: group, Inc: ownership.Incarnation{1}, Body: body}
	}
	hello := func(lease time.Duration) ownership.Record {
		return record(&ownership.Hello{Node: ownership.Node{Name: "n", Inc: ownership.Incarnation{1}, Lease: lease}})
	}
	for name, r := range map[string]ownership.Record{
		"no body":              record(nil),
		"half a millisecond":   hello(500 * time.Microsecond),
		"a negative lease":     hello(-time.Second),
		"a lease of 100 days":  hello(100 * 24 * time.Hour),
		"a name that is bytes": record(&ownership.Hello{Node: ownership.Node{Name: "\xff", Inc: ownership.Incarnation{1}}}),
		"a snap of nothing":    record(&ownership.Snap{}),
		"a ttl of half a ms":   record(&ownership.Reservations{Take: []ownership.Take{{TTL: 5*time.Second + 500*time.Microsecond}}}),
	} {
		if _, err := Encode(r); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	epoch := record(&ownership.Epoch{Members: []ownership.Incarnation{{1}}, Reason: "\xff is gone"})
	if data, err := Encode(epoch); err != nil {
		t.Errorf("a reason that is bytes: %v", err)
	} else if r, err := Decode(group, data); err != nil || r.Body.(*ownership.Epoch).Reason != "? is gone" {
		t.Errorf("a reason that is bytes became %+v, %v", r.Body, err)
	}
}

// Bytes that are not a record are refused with the reason, and without a body.
func TestDecodeRefuses(t *testing.T) {
	inc := bytes.Repeat([]byte{7}, 16)
	node := &controllogv1.Node{Name: "n", Inc: inc, LeaseMs: 2000}
	state := func(change func(*controllogv1.State)) func(*controllogv1.Record) {
		return func(r *controllogv1.Record) {
			s := &controllogv1.State{
				Members: [][]byte{inc}, Table: []byte{0, 0, 0, 0}, Nodes: []*controllogv1.Node{node},
				StartPositions: []*controllogv1.Position{{LedgerId: 1}}, Starts: []uint32{0, 0},
				Pending: []*controllogv1.Pending{{LeaseMs: 1, Partitions: &controllogv1.PartitionSet{List: []uint32{1}}}},
			}
			change(s)
			r.Record = &controllogv1.Record_Snap{Snap: &controllogv1.Snap{State: s}}
		}
	}
	beat := func(b *controllogv1.Beat) func(*controllogv1.Record) {
		return func(r *controllogv1.Record) { r.Record = &controllogv1.Record_Beat{Beat: b} }
	}
	busy := func(list ...*controllogv1.BusyKeys) func(*controllogv1.Record) {
		return beat(&controllogv1.Beat{Busy: list})
	}
	set := func(s *controllogv1.PartitionSet) func(*controllogv1.Record) {
		return beat(&controllogv1.Beat{Draining: s})
	}
	somebody := []byte("0123456789abcdef")
	hello := func(h *controllogv1.Hello) func(*controllogv1.Record) {
		return func(r *controllogv1.Record) { r.Record = &controllogv1.Record_Hello{Hello: h} }
	}
	reservations := func(version uint32, takes int) func(*controllogv1.Record) {
		return func(r *controllogv1.Record) {
			b := &controllogv1.Reservations{Drop: []*controllogv1.Drop{{Partition: 1, Key: 2}}}
			for range takes {
				b.Take = append(b.Take, &controllogv1.Take{Id: inc, TtlMs: 5000})
			}
			r.LogVersion, r.Record = version, &controllogv1.Record_Reservations{Reservations: b}
		}
	}
	tests := map[string]struct {
		change func(*controllogv1.Record)
		want   error
	}{
		"a good beat":               {func(*controllogv1.Record) {}, nil},
		"a good snap":               {state(func(*controllogv1.State) {}), nil},
		"another version":           {func(r *controllogv1.Record) { r.LogVersion = ownership.LogVersionMax + 1 }, ErrVersion},
		"another version's body":    {func(r *controllogv1.Record) { r.LogVersion, r.Record = ownership.LogVersionMax+1, nil }, ErrVersion},
		"another group":             {func(r *controllogv1.Record) { r.Group = "h" }, ErrGroup},
		"no body":                   {func(r *controllogv1.Record) { r.Record = nil }, ErrMalformed},
		"no sender":                 {func(r *controllogv1.Record) { r.Inc = nil }, ErrMalformed},
		"a sender that is nobody":   {func(r *controllogv1.Record) { r.Inc = make([]byte, 16) }, ErrMalformed},
		"a sender that is too long": {func(r *controllogv1.Record) { r.Inc = make([]byte, 17) }, ErrMalformed},
		"a negative position":       {beat(&controllogv1.Beat{Cur: &controllogv1.Position{EntryId: -1}}), ErrMalformed},
		"a short incarnation":       {beat(&controllogv1.Beat{Unreachable: [][]byte{{1}}}), ErrMalformed},
		"topics out of order":       {hello(&controllogv1.Hello{Node: &controllogv1.Node{Inc: somebody, Topics: []string{"b", "a"}}}), ErrMalformed},
		"an empty topic":            {hello(&controllogv1.Hello{Node: &controllogv1.Node{Inc: somebody, Topics: []string{""}}}), ErrMalformed},
		"a short public key":        {hello(&controllogv1.Hello{Node: &controllogv1.Node{Inc: somebody, PublicKey: []byte{1}}}), ErrMalformed},
		"settings out of order":     {hello(&controllogv1.Hello{Node: &controllogv1.Node{Inc: somebody}, Identity: []*controllogv1.Setting{{Name: "b"}, {Name: "a"}}}), ErrMalformed},
		"too many settings":         {hello(&controllogv1.Hello{Node: &controllogv1.Node{Inc: somebody}, Identity: make([]*controllogv1.Setting, identity.SettingsMax+1)}), ErrMalformed},
		"a floor below zero":        {hello(&controllogv1.Hello{Node: &controllogv1.Node{Inc: somebody}, Floor: -1}), ErrMalformed},
		"a good hello":              {hello(&controllogv1.Hello{Node: &controllogv1.Node{Inc: somebody, Topics: []string{"a"}}, Identity: []*controllogv1.Setting{{Name: "a"}}}), nil},
		"a set in two forms":        {set(&controllogv1.PartitionSet{Bits: []byte{1}, List: []uint32{1}}), ErrMalformed},
		"a set out of order":        {set(&controllogv1.PartitionSet{List: []uint32{2, 1}}), ErrMalformed},
		"a set with a twin":         {set(&controllogv1.PartitionSet{List: []uint32{1, 1}}), ErrMalformed},
		"a set out of range":        {set(&controllogv1.PartitionSet{List: []uint32{1 << 16}}), ErrMalformed},
		"a set too large":           {set(&controllogv1.PartitionSet{Bits: make([]byte, 1<<13+1)}), ErrMalformed},
		"busy keys":                 {busy(&controllogv1.BusyKeys{Partition: 1, Keys: []uint64{2, 3}}, &controllogv1.BusyKeys{Partition: 2}), nil},
		"busy keys out of order":    {busy(&controllogv1.BusyKeys{Keys: []uint64{2, 2}}), ErrMalformed},
		"busy keys of one twice":    {busy(&controllogv1.BusyKeys{}, &controllogv1.BusyKeys{}), ErrMalformed},
		"busy keys of no partition": {busy(&controllogv1.BusyKeys{Partition: 1 << 16}), ErrMalformed},
		"a snap of nothing":         {func(r *controllogv1.Record) { r.Record = &controllogv1.Record_Snap{} }, ErrMalformed},
		"half a table entry":        {state(func(s *controllogv1.State) { s.Table = []byte{0, 0, 0} }), ErrMalformed},
		"a table too large":         {state(func(s *controllogv1.State) { s.Table = make([]byte, 1<<17+2) }), ErrMalformed},
		"too few starts":            {state(func(s *controllogv1.State) { s.Starts = []uint32{0} }), ErrMalformed},
		"a start that is not there": {state(func(s *controllogv1.State) { s.Starts = []uint32{0, 1} }), ErrMalformed},
		"a start beyond any":        {state(func(s *controllogv1.State) { s.Starts = []uint32{0, math.MaxUint32} }), ErrMalformed},
		"pending out of the table":  {state(func(s *controllogv1.State) { s.Pending[0].Partitions.List = []uint32{2} }), ErrMalformed},
		"pending of half an inc":    {state(func(s *controllogv1.State) { s.Pending[0].Inc = inc[:8] }), ErrMalformed},
		"pending twice":             {state(func(s *controllogv1.State) { s.Pending = append(s.Pending, s.Pending[0]) }), ErrMalformed},
		"too many pending":          {state(manyPending), ErrMalformed},
		"reservations":              {reservations(3, 1), nil},
		"reservations too early":    {reservations(2, 1), ErrMalformed},
		"too many takes":            {reservations(3, reservedMax+1), ErrMalformed},
		"a drop of no partition":    {func(r *controllogv1.Record) { reservations(3, 0)(r); r.GetReservations().Drop[0].Partition = 1 << 16 }, ErrMalformed},
		"a take with a short id":    {func(r *controllogv1.Record) { reservations(3, 1)(r); r.GetReservations().Take[0].Id = inc[:8] }, ErrMalformed},
		"a reserved key too often":  {state(func(s *controllogv1.State) { s.Reserved = make([]*controllogv1.Reserved, reservedMax+1) }), ErrMalformed},
		"a key with many holders": {state(func(s *controllogv1.State) {
			s.Reserved = []*controllogv1.Reserved{{Ids: make([][]byte, reservedIDsMax+1)}}
		}), ErrMalformed},
		"topics by reference": {state(func(s *controllogv1.State) {
			s.Topics, s.Nodes[0] = []string{"b", "a"}, &controllogv1.Node{Name: "n", Inc: inc, LeaseMs: 2000, TopicRefs: []uint32{1, 0}}
		}), nil},
		"a reference to no topic": {state(func(s *controllogv1.State) {
			s.Topics, s.Nodes[0] = []string{"a"}, &controllogv1.Node{Name: "n", Inc: inc, TopicRefs: []uint32{1}}
		}), ErrMalformed},
		"topics in two forms": {state(func(s *controllogv1.State) {
			s.Topics, s.Nodes[0] = []string{"a"}, &controllogv1.Node{Name: "n", Inc: inc, Topics: []string{"a"}, TopicRefs: []uint32{0}}
		}), ErrMalformed},
		"references out of order": {state(func(s *controllogv1.State) {
			s.Topics, s.Nodes[0] = []string{"b", "a"}, &controllogv1.Node{Name: "n", Inc: inc, TopicRefs: []uint32{0, 1}}
		}), ErrMalformed},
		"too many references": {state(func(s *controllogv1.State) {
			s.Topics, s.Nodes[0] = []string{"a"}, &controllogv1.Node{Name: "n", Inc: inc, TopicRefs: make([]uint32, topicsMax+1)}
		}), ErrMalformed},
		"a node without incarnation": {state(func(s *controllogv1.State) { s.Nodes[0] = &controllogv1.Node{Name: "n"} }), ErrMalformed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := &controllogv1.Record{
				LogVersion: ownership.LogVersionMin, Group: group, Inc: inc,
				Record: &controllogv1.Record_Beat{Beat: &controllogv1.Beat{Seq: 1}},
			}
			test.change(in)
			data, err := proto.Marshal(in)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Decode(group, data)
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Fatalf("Decode: %v, want %v", err, test.want)
			}
			if (r.Body == nil) == (err == nil) {
				t.Errorf("Decode: body %v with error %v", r.Body, err)
			}
		})
	}
	if _, err := Decode(group, []byte("hello")); !errors.Is(err, ErrMalformed) {
		t.Errorf("Decode of an invalid message: %v, want %v", err, ErrMalformed)
	}
}

// manyPending gives a state 257 tenures on each of 4096 partitions: 130 kB in the log, 100 MB in memory.
func manyPending(s *controllogv1.State) {
	const partitions = 4096
	s.Table, s.Starts, s.Pending = make([]byte, 2*partitions), make([]uint32, partitions), nil
	for i := range pendingMax/partitions + 1 {
		s.Pending = append(s.Pending, &controllogv1.Pending{
			LeaseMs: 1, Dep: &controllogv1.Position{LedgerId: 1, EntryId: int64(i)},
			Partitions: &controllogv1.PartitionSet{Bits: bytes.Repeat([]byte{0xff}, partitions/8)},
		})
	}
}

// For any bytes in the log, every member reads the same: no crash, no body with an error, and
// every readable record can be written and read again.
func FuzzDecode(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(group, data)
		if err != nil {
			if r.Body != nil {
				t.Fatalf("a body with the error %v", err)
			}
			return
		}
		again, err := Encode(r)
		if err != nil {
			t.Fatalf("a decoded record cannot be encoded: %v", err)
		}
		same, err := Decode(group, again)
		if err != nil || !reflect.DeepEqual(r, same) {
			t.Fatalf("read %+v, wrote it, read %+v, %v", r.Body, same.Body, err)
		}
	})
}

func drawRecord(t *rapid.T) ownership.Record {
	bodies := []*rapid.Generator[ownership.Body]{
		rapid.Custom(func(t *rapid.T) ownership.Body { return drawGenesis(t) }),
		rapid.Custom(func(t *rapid.T) ownership.Body { return drawEpoch(t) }),
		rapid.Custom(func(t *rapid.T) ownership.Body { return drawBeat(t) }),
		rapid.Custom(func(t *rapid.T) ownership.Body { return drawHello(t) }),
		rapid.Custom(func(t *rapid.T) ownership.Body { return drawSnap(t) }),
		rapid.Custom(func(t *rapid.T) ownership.Body { return drawReservations(t) }),
	}
	r := ownership.Record{
		LogVersion: rapid.Uint32Range(ownership.LogVersionMin, ownership.LogVersionMax).Draw(t, "log version"),
		Group:      group, Inc: incs.Draw(t, "inc"),
		Body: rapid.OneOf(bodies...).Draw(t, "body"),
	}
	if _, ok := r.Body.(*ownership.Reservations); ok {
		r.LogVersion = max(r.LogVersion, reservationsVersion)
	}
	return r
}

var keys = rapid.Custom(func(t *rapid.T) ownership.KeyAt {
	return ownership.KeyAt{Partition: ring.Partition(rapid.Uint16().Draw(t, "partition")), Key: ring.KeyHash(rapid.Uint64().Draw(t, "key"))}
})

var takes = rapid.Custom(func(t *rapid.T) ownership.Take {
	return ownership.Take{KeyAt: keys.Draw(t, "key"), ID: ownership.ReservationID(incs.Draw(t, "id")), TTL: leases.Draw(t, "ttl")}
})

var reserved = rapid.Custom(func(t *rapid.T) ownership.Reserved {
	r := ownership.Reserved{KeyAt: keys.Draw(t, "key"), TTL: leases.Draw(t, "ttl"), At: positions.Draw(t, "at")}
	for _, inc := range some(t, incs, "ids") {
		r.IDs = append(r.IDs, ownership.ReservationID(inc))
	}
	return r
})

func drawReservations(t *rapid.T) *ownership.Reservations {
	return &ownership.Reservations{
		Seq: rapid.Uint64().Draw(t, "seq"), Applied: positions.Draw(t, "applied"), Take: some(t, takes, "takes"), Drop: some(t, keys, "drops"),
	}
}

var incs = rapid.Custom(func(t *rapid.T) ownership.Incarnation {
	var inc ownership.Incarnation
	copy(inc[:], rapid.SliceOfN(rapid.Byte(), 1, 16).Draw(t, "bytes"))
	inc[15] |= 1 // another incarnation
	return inc
})

var positions = rapid.Custom(func(t *rapid.T) event.Position {
	return event.Position{
		Ledger: rapid.Int64Range(0, math.MaxInt64).Draw(t, "ledger"),
		Entry:  rapid.Int64Range(0, math.MaxInt64).Draw(t, "entry"),
	}
})

var leases = rapid.Custom(func(t *rapid.T) time.Duration {
	return time.Duration(rapid.Uint32().Draw(t, "ms")) * time.Millisecond
})

var nodes = rapid.Custom(func(t *rapid.T) ownership.Node {
	return ownership.Node{
		Name: rapid.String().Draw(t, "name"), Inc: incs.Draw(t, "inc"), Lease: leases.Draw(t, "lease"),
		GRPCAddr: rapid.String().Draw(t, "grpc"), GossipAddr: rapid.String().Draw(t, "gossip"),
		Since:  positions.Draw(t, "since"),
		Topics: drawTopics(t), PublicKey: rapid.SampledFrom([]string{"", strings.Repeat("k", 32)}).Draw(t, "public key"),
		LogVersion: rapid.Uint32().Draw(t, "reads"),
	}
})

func drawTopics(t *rapid.T) []string {
	topics := sortedSlice(rapid.SliceOfNDistinct(rapid.StringN(1, 20, 80), 0, 3, rapid.ID).Draw(t, "topics"))
	if len(topics) == 0 {
		return nil
	}
	return topics
}

func drawIdentity(t *rapid.T) identity.Identity {
	var settings []identity.Setting
	for _, name := range rapid.SliceOfNDistinct(rapid.StringN(1, 20, 80), 0, 3, rapid.ID).Draw(t, "settings") {
		settings = append(settings, identity.Setting{Name: name, Value: rapid.StringN(0, 20, 80).Draw(t, "value")})
	}
	if len(settings) == 0 {
		return nil
	}
	return identity.Of(settings...)
}

// some draws a slice, nil if it is empty, as a decoder leaves it.
func some[T any](t *rapid.T, of *rapid.Generator[T], name string) []T {
	s := rapid.SliceOfN(of, 0, 4).Draw(t, name)
	if len(s) == 0 {
		return nil
	}
	return s
}

func drawTable(t *rapid.T) []uint16 {
	return rapid.SliceOfN(rapid.Uint16(), 0, 40).Draw(t, "table")
}

// drawSet draws a sparse or a dense set, of the length that its greatest partition needs.
func drawSet(t *rapid.T, name string) ownership.Set {
	greatest := rapid.SampledFrom([]uint16{40, ring.Partitions - 1, math.MaxUint16}).Draw(t, name+" greatest")
	var partitions []ring.Partition
	for _, p := range rapid.SliceOfN(rapid.Uint16Range(0, greatest), 0, 60).Draw(t, name) {
		partitions = append(partitions, ring.Partition(p))
	}
	return ownership.SetOf(partitions...)
}

func drawGenesis(t *rapid.T) *ownership.Genesis {
	return &ownership.Genesis{
		Gen: rapid.Uint32().Draw(t, "gen"), HashID: rapid.String().Draw(t, "hash id"),
		Partitions: rapid.Uint32().Draw(t, "partitions"), Members: some(t, nodes, "members"), Table: drawTable(t),
		Identity: drawIdentity(t), After: positions.Draw(t, "after"),
		Base: positions.Draw(t, "base"), Reserved: some(t, reserved, "reserved"),
	}
}

func drawEpoch(t *rapid.T) *ownership.Epoch {
	return &ownership.Epoch{
		Prev: positions.Draw(t, "prev"), Members: some(t, incs, "members"), Table: drawTable(t),
		Reason: rapid.String().Draw(t, "reason"), Identity: drawIdentity(t), Nodes: some(t, nodes, "nodes"),
	}
}

func drawBeat(t *rapid.T) *ownership.Beat {
	return &ownership.Beat{
		Seq: rapid.Uint64().Draw(t, "seq"), Applied: positions.Draw(t, "applied"), Cur: positions.Draw(t, "cur"),
		ViewHash: rapid.Uint64().Draw(t, "view hash"), PrefixHash: rapid.Uint64().Draw(t, "prefix hash"), Ready: rapid.Bool().Draw(t, "ready"),
		Draining: drawSet(t, "draining"), Acquired: drawSet(t, "acquired"),
		Unreachable: some(t, incs, "unreachable"), Busy: drawBusy(t),
	}
}

func drawBusy(t *rapid.T) (busy []ownership.Busy) {
	keys := rapid.SliceOfNDistinct(rapid.Uint64(), 0, 5, rapid.ID)
	for _, p := range sortedSlice(rapid.SliceOfNDistinct(rapid.Uint16(), 0, 4, rapid.ID).Draw(t, "busy partitions")) {
		b := ownership.Busy{Partition: ring.Partition(p)}
		for _, k := range sortedSlice(keys.Draw(t, "busy keys")) {
			b.Keys = append(b.Keys, ring.KeyHash(k))
		}
		busy = append(busy, b)
	}
	return busy
}

func sortedSlice[T cmp.Ordered](s []T) []T { return slices.Sorted(slices.Values(s)) }

func drawHello(t *rapid.T) *ownership.Hello {
	return &ownership.Hello{
		Node: nodes.Draw(t, "node"), HashID: rapid.String().Draw(t, "hash id"),
		Partitions: rapid.Uint32().Draw(t, "partitions"), Gen: rapid.Uint32().Draw(t, "gen"),
		NeedState: rapid.Bool().Draw(t, "need state"), Version: rapid.String().Draw(t, "version"),
		Identity: drawIdentity(t),
		Floor:    ownership.Token(rapid.Int64Min(0).Draw(t, "floor")), TopicRefs: rapid.Bool().Draw(t, "topic refs"),
	}
}

func drawSnap(t *rapid.T) *ownership.Snap {
	s := &ownership.State{
		Gen: rapid.Uint32().Draw(t, "gen"), HashID: rapid.String().Draw(t, "hash id"),
		Genesis: positions.Draw(t, "genesis"), Cur: positions.Draw(t, "cur"), ViewHash: rapid.Uint64().Draw(t, "view hash"), PrefixHash: rapid.Uint64().Draw(t, "prefix hash"),
		Members: some(t, incs, "members"), Table: drawTable(t), Nodes: some(t, nodes, "nodes"),
		LogVersion: rapid.Uint32().Draw(t, "decides"), Identity: drawIdentity(t),
		Reserved: some(t, reserved, "reserved"), LastTake: positions.Draw(t, "last take"),
	}
	epochs := rapid.SliceOfNDistinct(positions, 3, 3, func(p event.Position) event.Position { return p }).Draw(t, "epochs")
	slices.SortFunc(epochs, event.Position.Compare)
	tenures := make([]ownership.Tenure, len(epochs)) // one for each epoch, in their order, as the state has them
	for i := range tenures {
		tenures[i] = ownership.Tenure{Lease: leases.Draw(t, "lease"), Start: positions.Draw(t, "start"), Dep: epochs[i]}
		if rapid.Bool().Draw(t, "somebody") {
			tenures[i].Inc = incs.Draw(t, "inc")
		}
	}
	s.Start = make([]event.Position, len(s.Table))
	s.Pending = make([][]ownership.Tenure, len(s.Table))
	for p := range s.Table {
		s.Start[p] = rapid.SampledFrom(epochs).Draw(t, "start")
		for _, tenure := range tenures {
			if rapid.Bool().Draw(t, "pending") {
				s.Pending[p] = append(s.Pending[p], tenure)
			}
		}
	}
	return &ownership.Snap{ForHello: positions.Draw(t, "for hello"), State: s, TopicRefs: rapid.Bool().Draw(t, "topic refs")}
}

// TestCrowdedRecordsAreNotDecoded: decoded, each of these records, which a broker takes, has fifty times its bytes and more, at all members at once.
func TestCrowdedRecordsAreNotDecoded(t *testing.T) {
	const size = 5 << 20
	within := func(content []byte, fields ...protowire.Number) []byte {
		for _, field := range fields {
			content = protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), content)
		}
		return content
	}
	field := func(body, repeated string) (protowire.Number, []byte) {
		in := (&controllogv1.Record{}).ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(body))
		item := in.Message().Fields().ByName(protoreflect.Name(repeated))
		return in.Number(), bytes.Repeat(within(nil, item.Number()), size/2)
	}
	for _, c := range [][2]string{{"genesis", "members"}, {"genesis", "identity"}, {"genesis", "reserved"}, {"epoch", "members"}, {"epoch", "nodes"}, {"beat", "busy"}, {"beat", "unreachable"}, {"hello", "identity"}, {"reservations", "take"}, {"reservations", "drop"}} {
		number, items := field(c[0], c[1])
		head, err := proto.Marshal(&controllogv1.Record{LogVersion: ownership.LogVersionMax, Group: group, Inc: bytes.Repeat([]byte{1}, 16)})
		if err != nil {
			t.Fatal(err)
		}
		data := append(head, within(items, number)...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = Decode(group, data)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrMalformed) || took > 2*size {
			t.Errorf("%s of a %s: refusing them took %d MiB: %v", c[1], c[0], took>>20, err)
		}
		if head, err = proto.Marshal(&controllogv1.Record{LogVersion: ownership.LogVersionMax + 1, Group: group, Inc: bytes.Repeat([]byte{1}, 16)}); err != nil {
			t.Fatal(err)
		}
		if r, err := Decode(group, append(within(items, number), head...)); !errors.Is(err, ErrVersion) || r.Group != group || r.LogVersion != ownership.LogVersionMax+1 {
			t.Errorf("%s of a %s of a later version: %+v, %v", c[1], c[0], r, err)
		}
	}
}
