package appwire

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// message returns the frame in the form of the generated code.
func (f *ToWorker) message() *appv1.WorkResponse {
	var tables hotframe.Tables
	d := &appv1.Deliveries{Number: f.Number}
	for _, x := range f.Deliveries {
		ev := x.Event()
		w := &appv1.Delivery{
			DeliveryId: uint64(x.ID), Partition: uint32(x.Partition), Key: []byte(ev.Key), Payload: ev.Payload,
			LedgerId: ev.ID.Ledger, EntryId: ev.ID.Entry, BatchIndex: ev.ID.Batch, TopicPartition: ev.ID.TopicPartition,
			Topic: uint32(hotframe.IndexText(&tables.Topics, ev.Topic)), Token: uint32(tables.Tokens.Index(x.Token)), PublishTimeMs: ev.PublishTime, EventTimeMs: ev.EventTime,
			Attempt: x.Attempt, Traceparent: hotframe.Text(ev.Trace()), RedeliveryCount: ev.Redelivery, Turn: x.Turn,
		}
		if ev.SchemaVersion != "" {
			w.SchemaVersion = 1 + uint32(tables.Schemas.Index(ev.SchemaVersion))
		}
		if f.State {
			w.Generation = x.Generation
		}
		if c := ev.Call; c != nil {
			w.Call = &appv1.Call{Method: hotframe.Text(c.Method), TimeoutMs: uint64(c.Deadline.Sub(f.Now) / time.Millisecond), Id: hotframe.Text(c.ID)}
			for _, key := range c.Path {
				w.Call.Path = append(w.Call.Path, uint64(key))
			}
		}
		properties, sent := sentOf(ev)
		if sent != nil {
			w.Timer = &appv1.Timer{Name: sent.Name, DueMs: sent.Due}
			if sent.Firing != nil {
				w.Timer.Firing = &appv1.Firing{TimeMs: sent.Firing.Time, Missed: sent.Firing.Missed}
			}
		}
		for _, p := range properties {
			w.Properties = append(w.Properties, &appv1.Property{Name: uint32(hotframe.IndexText(&tables.Names, p.Name)), Value: hotframe.Text(p.Value)})
		}
		d.Deliveries = append(d.Deliveries, w)
	}
	d.Topics, d.Tokens, d.Names = tables.Topics.List(), tables.Tokens.List(), tables.Names.List()
	for _, version := range tables.Schemas.List() {
		d.SchemaVersions = append(d.SchemaVersions, []byte(version))
	}
	return &appv1.WorkResponse{Receipt: f.Receipt, Frame: &appv1.WorkResponse_Deliveries{Deliveries: d}}
}

// decoded returns the deliveries that the worker should read.
func (f *ToWorker) decoded() []Delivery {
	var out []Delivery
	for _, x := range f.Deliveries {
		ev := x.Event()
		d := Delivery{
			ID: uint64(x.ID), Partition: uint32(x.Partition), Key: string(ev.Key), Payload: ev.Payload,
			Ledger: ev.ID.Ledger, Entry: ev.ID.Entry, Batch: ev.ID.Batch, TopicPartition: ev.ID.TopicPartition,
			Topic: hotframe.Text(ev.Topic), Token: x.Token, PublishTime: ev.PublishTime, EventTime: ev.EventTime,
			Attempt: x.Attempt, Traceparent: hotframe.Text(ev.Trace()), Redelivery: ev.Redelivery, Turn: x.Turn, SchemaVersion: ev.SchemaVersion,
		}
		if f.State {
			d.Generation = x.Generation
		}
		if c := ev.Call; c != nil {
			d.Call = &Call{Method: hotframe.Text(c.Method), ID: hotframe.Text(c.ID), Timeout: c.Deadline.Sub(f.Now), Path: c.Path}
		}
		properties, sent := sentOf(ev)
		if sent != nil {
			d.Timer = &Timer{Name: sent.Name, Due: sent.Due}
			if sent.Firing != nil {
				d.Timer.Firing = &Firing{Time: sent.Firing.Time, Missed: sent.Firing.Missed}
			}
		}
		for _, p := range properties {
			d.Properties = append(d.Properties, event.Property{Name: hotframe.Text(p.Name), Value: hotframe.Text(p.Value)})
		}
		out = append(out, d)
	}
	return out
}

// sentOf returns the properties that a worker sees, and what the others say of an event that a router has published.
func sentOf(ev *event.Event) ([]event.Property, *event.Sent) {
	if !ev.ID.IsSent() {
		return ev.Properties, nil
	}
	properties := slices.DeleteFunc(slices.Clone(ev.Properties), func(p event.Property) bool { return event.IsOfSent(p.Name) })
	if s, err := event.ParseSent(ev.Properties); err == nil {
		return properties, &s
	}
	return properties, nil
}

// drawSent makes an event one that a router has published.
func drawSent(t *rapid.T, ev *event.Event) {
	s := event.Sent{Key: "k", Due: rapid.Int64Min(0).Draw(t, "due"), Name: rapid.SampledFrom([]string{"", "expire", "über"}).Draw(t, "timer")}
	if rapid.Bool().Draw(t, "firing") {
		s.Firing = &event.Firing{Definition: 7, Time: rapid.Int64().Draw(t, "time"), Missed: rapid.Uint32().Draw(t, "missed")}
	}
	ev.ID = event.SentMessageID(s.Key, "test", s.Name)
	ev.Properties = s.Properties(ev.Properties)
}

// kept is a Receiver that stores the deliveries.
type kept []Delivery

func (k *kept) Begin(int) { *k = nil }

func (k *kept) Deliver(d *Delivery) {
	copied := *d
	copied.Properties = slices.Clone(d.Properties)
	*k = append(*k, copied)
}

// dropped is a Receiver that keeps nothing.
type dropped struct{}

func (dropped) Begin(int)         {}
func (dropped) Deliver(*Delivery) {}

// plain is the deliveries with one form of emptiness.
func plain(ds []Delivery) string {
	var b strings.Builder
	for _, d := range ds {
		if len(d.Payload) == 0 {
			d.Payload = nil
		}
		if len(d.Properties) == 0 {
			d.Properties = nil
		}
		if d.Call != nil {
			fmt.Fprintf(&b, "%#v: ", *d.Call)
			d.Call = nil
		}
		if d.Timer != nil {
			fmt.Fprintf(&b, "%q %d: ", d.Timer.Name, d.Timer.Due)
			if d.Timer.Firing != nil {
				fmt.Fprintf(&b, "%#v: ", *d.Timer.Firing)
			}
			d.Timer = nil
		}
		fmt.Fprintf(&b, "%#v\n", d)
	}
	return b.String()
}

func (f *ToRouter) message() *appv1.WorkRequest {
	r := &appv1.Results{Number: f.Number}
	for _, x := range f.Results {
		result := &appv1.Result{
			DeliveryId: uint64(x.Delivery), Kind: appv1.ResultKind(x.Kind), AfterMs: hotframe.Milliseconds(x.After, afterMax), Reason: hotframe.Text(x.Reason),
			StartedNs: uint64(x.Ran.Start), TookNs: uint64(x.Ran.Length),
		}
		if x.Reply != nil {
			result.Reply, result.Code = x.Reply.Payload, hotframe.Text(x.Reply.Code)
		}
		r.Results = append(r.Results, result)
	}
	return &appv1.WorkRequest{Receipt: f.Receipt, Frame: &appv1.WorkRequest_Results{Results: r}}
}

// drawCall draws a call, as long before its deadline as a frame can say.
func drawCall(t *rapid.T, now clock.Instant, words *rapid.Generator[string]) *event.Call {
	c := &event.Call{Method: words.Draw(t, "method"), ID: words.Draw(t, "call id")}
	c.Deadline = now.Add(time.Duration(rapid.Int64Range(0, hotframe.CallTimeoutMax.Milliseconds()).Draw(t, "ms left")) * time.Millisecond)
	for range rapid.IntRange(0, event.CallPathMax+1).Draw(t, "path") {
		c.Path = append(c.Path, ring.KeyHash(rapid.Uint64().Draw(t, "key before")))
	}
	return c
}

// drawReply draws what the result of a call has, nil if that is nothing.
func drawReply(t *rapid.T) *event.CallReply {
	return replyOf(rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "reply"), rapid.OneOf(rapid.Just(""), rapid.String()).Draw(t, "code"))
}

// plainResults is the results with one form of emptiness.
func plainResults(results []event.Result) string {
	var b strings.Builder
	for _, r := range results {
		if r.Reply != nil {
			fmt.Fprintf(&b, "%q %q ", r.Reply.Payload, r.Reply.Code)
			r.Reply = nil
		}
		fmt.Fprintf(&b, "%+v\n", r)
	}
	return b.String()
}

func drawDeliveries(t *rapid.T) *ToWorker {
	words := rapid.OneOf(rapid.StringN(0, 12, 200), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 12), func(b []byte) string { return string(b) }))
	names := rapid.SampledFrom([]string{"", "a", "b", "traceparent", "\xff\xfe"})
	topics := rapid.SampledFrom([]string{"persistent://t/n/one", "persistent://t/n/two", ""})
	tokens := rapid.SampledFrom([]int64{0, 1, -1, 1 << 62})
	turns := rapid.OneOf(rapid.SampledFrom([]uint64{0, 1, 127, 128, math.MaxUint64}), rapid.Uint64())
	now := clock.Instant(rapid.Int64Range(0, 1<<50).Draw(t, "now"))
	return &ToWorker{
		Now:     now,
		Receipt: rapid.Uint64().Draw(t, "receipt"),
		Number:  rapid.Uint64().Draw(t, "number"),
		State:   rapid.Bool().Draw(t, "state"),
		Deliveries: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) event.Delivery {
			d := event.Delivery{
				ID: event.DeliveryID(rapid.Uint64().Draw(t, "id")), Partition: ring.Partition(rapid.IntRange(0, ring.Partitions-1).Draw(t, "p")),
				Token: tokens.Draw(t, "token"), Turn: turns.Draw(t, "turn"), Generation: turns.Draw(t, "generation"), Attempt: rapid.Uint32().Draw(t, "attempt"),
				Ref: event.RefTo(&event.Event{
					ID:    event.MessageID{Ledger: rapid.Int64().Draw(t, "ledger"), Entry: rapid.Int64().Draw(t, "entry"), Batch: rapid.Int32().Draw(t, "batch"), TopicPartition: rapid.Int32().Draw(t, "tp")},
					Topic: topics.Draw(t, "topic"), Key: event.Key(words.Draw(t, "key")), Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
					Properties: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) event.Property {
						return event.Property{Name: names.Draw(t, "name"), Value: words.Draw(t, "value")}
					}), 0, 4).Draw(t, "properties"),
					PublishTime: rapid.Int64().Draw(t, "publish"), EventTime: rapid.Int64().Draw(t, "event"), Redelivery: rapid.Uint32().Draw(t, "redelivery"),
					SchemaVersion: rapid.SampledFrom([]string{"", "", "\x00\x00\x00\x01", "\xff"}).Draw(t, "schema version"),
					Call:          rapid.OneOf(rapid.Just[*event.Call](nil), rapid.Custom(func(t *rapid.T) *event.Call { return drawCall(t, now, words) })).Draw(t, "call"),
				}),
			}
			if rapid.Bool().Draw(t, "sent") {
				drawSent(t, d.Event())
			}
			return d
		}), 0, 20).Draw(t, "deliveries"),
	}
}

// Our writer's output equals the generated code's, byte for byte, and both readers read it.
func TestDeliveriesAgreeWithTheGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawDeliveries(t)
		got := f.marshal()
		defer got.Free()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(f.message())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Materialize(), want) {
			t.Fatalf("ours     %x\ngenerated %x", got.Materialize(), want)
		}
		var deliveries kept
		read := FromRouter{To: &deliveries}
		if !read.parse(want) {
			t.Fatal("our reader left our writer's frame to the generated code")
		}
		if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(want)}, &read); err != nil {
			t.Fatal(err)
		}
		if read.Receipt != f.Receipt || read.Number != f.Number || plain(deliveries) != plain(f.decoded()) {
			t.Fatalf("read %d %d\n%s\nwant %d %d\n%s", read.Receipt, read.Number, plain(deliveries), f.Receipt, f.Number, plain(f.decoded()))
		}
	})
}

func TestResultsAgreeWithTheGeneratedCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &ToRouter{
			Receipt: rapid.Uint64().Draw(t, "receipt"), Number: rapid.Uint64().Draw(t, "number"),
			Results: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) event.Result {
				return event.Result{
					Delivery: event.DeliveryID(rapid.Uint64().Draw(t, "id")), Kind: event.ResultKind(rapid.IntRange(1, 5).Draw(t, "kind")),
					After: time.Duration(rapid.IntRange(0, 100_000).Draw(t, "after")) * time.Millisecond, Reason: rapid.String().Draw(t, "reason"),
					Ran: ranOf(rapid.Uint64().Draw(t, "started"), rapid.Uint64().Draw(t, "took")), Reply: drawReply(t),
				}
			}), 0, 20).Draw(t, "results"),
		}
		got := f.marshal()
		defer got.Free()
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(f.message())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Materialize(), want) {
			t.Fatalf("ours     %x\ngenerated %x", got.Materialize(), want)
		}
		read := FromWorker{Bounds: wide}
		if !read.parse(want) {
			t.Fatal("our reader left our writer's frame to the generated code")
		}
		if err := (Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(want)}, &read); err != nil {
			t.Fatal(err)
		}
		if read.Receipt != f.Receipt || read.Number != f.Number || plainResults(read.Results) != plainResults(f.Results) {
			t.Fatalf("read %+v\n%s\nwant %+v\n%s", read, plainResults(read.Results), f, plainResults(f.Results))
		}
	})
}

func TestOtherFramesGoTheStandardWay(t *testing.T) {
	pong := &appv1.WorkResponse{Receipt: 7, Frame: &appv1.WorkResponse_Pong{Pong: &appv1.Pong{K: 3, RemainingNs: -1, Draining: []uint64{9}}}}
	data, err := Codec{}.Marshal(pong)
	if err != nil {
		t.Fatal(err)
	}
	var deliveries kept
	read := FromRouter{To: &deliveries}
	if !read.parse((&ToWorker{Receipt: 1, Number: 2, Deliveries: sample(3)}).marshal().Materialize()) || len(deliveries) != 3 {
		t.Fatal("our reader did not read our writer's frame")
	}
	deliveries = nil
	if err := (Codec{}).Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	if read.Receipt != 7 || read.Number != 0 || len(deliveries) != 0 || !proto.Equal(read.Other, pong) {
		t.Errorf("read %+v, want the Pong and nothing of the frame before", read)
	}
}

func TestBadFrames(t *testing.T) {
	frame := func(d *appv1.Deliveries) []byte {
		b, err := proto.Marshal(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Deliveries{Deliveries: d}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tests := map[string]struct {
		data  []byte
		index bool
	}{
		"garbage":          {data: []byte("\xff\xff\xff\xff garbage")},
		"cut short":        {data: []byte{3<<3 | 2, 200}},
		"no such topic":    {data: frame(&appv1.Deliveries{Tokens: []int64{1}, Deliveries: []*appv1.Delivery{{}}}), index: true},
		"no such token":    {data: frame(&appv1.Deliveries{Topics: []string{"t"}, Deliveries: []*appv1.Delivery{{Token: 1}}}), index: true},
		"no such property": {data: frame(&appv1.Deliveries{Topics: []string{"t"}, Tokens: []int64{1}, Deliveries: []*appv1.Delivery{{Properties: []*appv1.Property{{Name: 1 << 31}}}}}), index: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := Codec{}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(test.data)}, &FromRouter{To: dropped{}})
			if err == nil || errors.Is(err, ErrIndex) != test.index {
				t.Errorf("error = %v, want one that is ErrIndex: %v", err, test.index)
			}
		})
	}
}

// generated fills f from the generated message, independently of our reader.
func (f *FromRouter) generated(m *appv1.WorkResponse) error {
	f.Receipt, f.Number = m.GetReceipt(), m.GetDeliveries().GetNumber()
	if m.GetDeliveries() == nil {
		f.Other = m
		return nil
	}
	f.To.Begin(len(m.GetDeliveries().GetDeliveries()))
	for _, w := range m.GetDeliveries().GetDeliveries() {
		d, err := deliveryOf(m.GetDeliveries(), w)
		if err != nil {
			return err
		}
		f.To.Deliver(&d)
	}
	return nil
}

// deliveryOf returns w with its indexes resolved through the frame's tables.
func deliveryOf(all *appv1.Deliveries, w *appv1.Delivery) (Delivery, error) {
	topics, tokens, names, versions := all.GetTopics(), all.GetTokens(), all.GetNames(), all.GetSchemaVersions()
	if uint64(w.GetTopic()) >= uint64(len(topics)) || uint64(w.GetToken()) >= uint64(len(tokens)) || uint64(w.GetSchemaVersion()) > uint64(len(versions)) {
		return Delivery{}, ErrIndex
	}
	d := Delivery{
		ID: w.GetDeliveryId(), Partition: w.GetPartition(), Key: string(w.GetKey()), Payload: w.GetPayload(),
		Ledger: w.GetLedgerId(), Entry: w.GetEntryId(), Batch: w.GetBatchIndex(), TopicPartition: w.GetTopicPartition(),
		Topic: topics[w.GetTopic()], Token: tokens[w.GetToken()],
		PublishTime: w.GetPublishTimeMs(), EventTime: w.GetEventTimeMs(), Attempt: w.GetAttempt(),
		Traceparent: w.GetTraceparent(), Redelivery: w.GetRedeliveryCount(), Turn: w.GetTurn(), Generation: w.GetGeneration(),
		Timer: timerOf(w.GetTimer()),
	}
	if c := w.GetCall(); c != nil {
		d.Call = &Call{Method: c.GetMethod(), ID: c.GetId(), Timeout: hotframe.Duration(c.GetTimeoutMs(), hotframe.CallTimeoutMax)}
		for _, key := range c.GetPath()[:min(len(c.GetPath()), event.CallPathMax+1)] {
			d.Call.Path = append(d.Call.Path, ring.KeyHash(key))
		}
	}
	if i := w.GetSchemaVersion(); i > 0 {
		d.SchemaVersion = string(versions[i-1])
	}
	for _, p := range w.GetProperties() {
		if uint64(p.GetName()) >= uint64(len(names)) {
			return d, ErrIndex
		}
		d.Properties = append(d.Properties, event.Property{Name: names[p.GetName()], Value: p.GetValue()})
	}
	return d, nil
}

func FuzzFromRouter(f *testing.F) {
	for _, deliveries := range [][]event.Delivery{nil, sample(1), sample(3)} {
		frame := &ToWorker{Receipt: 1, Number: 2, Deliveries: deliveries}
		f.Add(frame.marshal().Materialize())
	}
	calls := sample(2)
	for i, call := range []*event.Call{{Method: "m", ID: "i", Deadline: clock.Instant(time.Second), Path: []ring.KeyHash{1, 1 << 63}}, {}} {
		ev := *calls[i].Event()
		ev.Call = call
		calls[i].Ref = event.RefTo(&ev)
	}
	f.Add((&ToWorker{Number: 1, Deliveries: calls}).marshal().Materialize())
	timers := sample(2)
	for i, s := range []event.Sent{{Key: "k", Due: 5, Name: "expire"}, {Key: "k", Name: "report", Firing: &event.Firing{Time: 7, Missed: 2}}} {
		ev := *timers[i].Event()
		ev.ID, ev.Properties = event.SentMessageID(s.Key, "test", s.Name), s.Properties(ev.Properties)
		timers[i].Ref = event.RefTo(&ev)
	}
	f.Add((&ToWorker{Number: 1, Deliveries: timers}).marshal().Materialize())
	calls[0].Generation = 300
	f.Add((&ToWorker{Number: 1, State: true, Deliveries: calls}).marshal().Materialize())
	f.Add([]byte{3<<3 | 2, 0, 3<<3 | 2, 0}) // the same field twice: the generated code merges
	f.Fuzz(func(t *testing.T, data []byte) {
		var quick, sure kept
		fast, slow := FromRouter{To: &quick}, FromRouter{To: &sure}
		errFast := fast.unmarshal(bytes.Clone(data))
		m := new(appv1.WorkResponse)
		errSlow := proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(data, m)
		if errSlow == nil {
			errSlow = slow.generated(m)
		}
		if (errFast == nil) != (errSlow == nil) {
			t.Fatalf("ours: %v, generated: %v", errFast, errSlow)
		}
		if errFast == nil && (fast.Receipt != slow.Receipt || fast.Number != slow.Number || !proto.Equal(fast.Other, slow.Other) || plain(quick) != plain(sure)) {
			t.Fatalf("ours %+v\n%s\ngenerated %+v\n%s", fast, plain(quick), slow, plain(sure))
		}
	})
}

func FuzzFromWorker(f *testing.F) {
	frame := &ToRouter{Receipt: 1, Number: 2, Results: []event.Result{
		{Delivery: 1, Kind: event.ResultDone},
		{Delivery: 2, Kind: event.ResultRetry, After: time.Second, Reason: "r", Reply: &event.CallReply{Code: "c"}},
		{Delivery: 3, Kind: event.ResultDone, Reply: &event.CallReply{Payload: []byte("p")}},
	}}
	f.Add(frame.marshal().Materialize())
	f.Fuzz(func(t *testing.T, data []byte) {
		fast, slow := FromWorker{Bounds: wide}, FromWorker{Bounds: wide}
		errFast := fast.unmarshal(data)
		if fast.Err != nil {
			if len(data) < min(wide.Results, progressMax, capabilitiesMax) {
				t.Fatalf("%d bytes cannot exceed the bounds, and yet: %v", len(data), fast.Err)
			}
			return
		}
		m := new(appv1.WorkRequest)
		errSlow := proto.Unmarshal(data, m)
		if errSlow == nil {
			slow.fromMessage(m)
		}
		if (errFast == nil) != (errSlow == nil) {
			t.Fatalf("ours: %v, generated: %v", errFast, errSlow)
		}
		if errFast == nil && (fast.Receipt != slow.Receipt || fast.Number != slow.Number || !proto.Equal(fast.Other, slow.Other) || plainResults(fast.Results) != plainResults(slow.Results)) {
			t.Fatalf("ours %+v\ngenerated %+v", fast, slow)
		}
	})
}

// sample returns n deliveries as production has them.
func sample(n int) []event.Delivery {
	out := make([]event.Delivery, n)
	for i := range out {
		out[i] = event.Delivery{ID: event.DeliveryID(1<<20 + i), Partition: ring.Partition(i % ring.Partitions), Token: 1<<40 + int64(i%3), Turn: 1<<30 + uint64(i), Attempt: 1, Ref: event.RefTo(&event.Event{
			ID: event.MessageID{Ledger: 1234, Entry: int64(i), Batch: 3, TopicPartition: -1}, Topic: "persistent://public/default/orders",
			Key: event.Key(fmt.Sprintf("user-%d", i)), Payload: bytes.Repeat([]byte("x"), 200), PublishTime: 1_763_000_000_000,
			Properties: []event.Property{{Name: "source", Value: "web"}, {Name: "kind", Value: "click"}},
		})}
		out[i].Size = uint32(out[i].Weight())
	}
	return out
}

// BenchmarkColdDeliveries encodes events that are far from the processor, as those of a
// busy router are: frames of a thousand out of a hundred thousand, in no order.
func BenchmarkColdDeliveries(b *testing.B) {
	const n, frames = 1024, 96
	all := sample(n * frames)
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	began, at := cpu(b), 0
	for b.Loop() {
		frame := ToWorker{Number: 1, Deliveries: all[at*n : (at+1)*n]}
		frame.marshal().Free()
		at = (at + 1) % frames
	}
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N)/n, "cpu-ns/event")
}

// cpu returns the processor time of this process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

func BenchmarkDeliveries(b *testing.B) {
	const n = 256
	frame := &ToWorker{Receipt: 5, Number: 6, Deliveries: sample(n)}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		began := cpu(b)
		for b.Loop() {
			frame.marshal().Free()
		}
		b.ReportMetric(float64(cpu(b)-began)/float64(b.N)/n, "cpu-ns/event")
	})
	data := mem.BufferSlice{mem.SliceBuffer(frame.marshal().Materialize())}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		began := cpu(b)
		read := FromRouter{To: dropped{}}
		for b.Loop() {
			if err := (Codec{}).Unmarshal(data, &read); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(cpu(b)-began)/float64(b.N)/n, "cpu-ns/event")
	})
	b.Run("decode_generated", func(b *testing.B) {
		b.ReportAllocs()
		began := cpu(b)
		for b.Loop() {
			if err := encoding.GetCodecV2("proto").Unmarshal(data, new(appv1.WorkResponse)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(cpu(b)-began)/float64(b.N)/n, "cpu-ns/event")
	})
}

func BenchmarkResults(b *testing.B) {
	const n = 256
	frame := &ToRouter{Receipt: 5, Number: 6}
	for i := range n {
		frame.Results = append(frame.Results, event.Result{Delivery: event.DeliveryID(1<<20 + i), Kind: event.ResultDone})
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		began := cpu(b)
		for b.Loop() {
			frame.marshal().Free()
		}
		b.ReportMetric(float64(cpu(b)-began)/float64(b.N)/n, "cpu-ns/event")
	})
	data := mem.BufferSlice{mem.SliceBuffer(frame.marshal().Materialize())}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		began := cpu(b)
		read := FromWorker{Bounds: wide}
		for b.Loop() {
			if err := (Codec{}).Unmarshal(data, &read); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(cpu(b)-began)/float64(b.N)/n, "cpu-ns/event")
	})
}
