package event_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// A handle is a serial number and an index. All handles of an entry have their first in common, and those of relayed events and of calls differ from all others.
func TestHandle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		index := rapid.IntRange(0, event.EntryEventsMax-1).Draw(t, "index")
		serial := rapid.Uint64Range(1, 1<<45-1).Draw(t, "serial")
		own, relayed := event.NewHandle(serial, index), event.NewRelayedHandle(serial, index)
		if own.IsRelayed() || !relayed.IsRelayed() || own == relayed {
			t.Fatalf("handles %x and %x, relayed: %v, %v", uint64(own), uint64(relayed), own.IsRelayed(), relayed.IsRelayed())
		}
		if call := event.NewCallHandle(serial); !call.IsCall() || call.IsRelayed() || own.IsCall() || relayed.IsCall() || call.Index() != 0 || call.First() != call {
			t.Fatalf("handle %x of a call; events' are %x and %x", uint64(call), uint64(own), uint64(relayed))
		}
		for _, h := range []event.Handle{own, relayed} {
			if h.Index() != index || h.Serial() != serial || h.First().Index() != 0 || h.First()|event.Handle(index) != h {
				t.Fatalf("handle %x has index %d and serial number %d, want %d and %d", uint64(h), h.Index(), h.Serial(), index, serial)
			}
		}
	})
}

// Bits is a set, whatever its length.
func TestBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(t, "n")
		indexes := rapid.SliceOfDistinct(rapid.IntRange(0, n-1), rapid.ID[int])
		set := func(label string) (event.Bits, []int) {
			list := indexes.Draw(t, label)
			slices.Sort(list)
			b := event.NewBits(n)
			for _, i := range list {
				b.Add(i)
			}
			return b, list
		}
		a, inA := set("a")
		b, inB := set("b")
		if got := slices.Collect(a.All()); !slices.Equal(got, inA) || a.Len() != len(inA) {
			t.Fatalf("%v has %v, %d of them", inA, got, a.Len())
		}
		first := -1
		if len(inA) > 0 {
			first = inA[0]
		}
		if a.First() != first {
			t.Fatalf("the first of %v is %d", inA, a.First())
		}
		end := rapid.IntRange(0, n+70).Draw(t, "end")
		below := func(i int) (n int) {
			for _, one := range inA {
				if one < i {
					n++
				}
			}
			return n
		}
		if a.Has(end) != slices.Contains(inA, end) || a.Below(end) != below(end) {
			t.Fatalf("%v: has %d: %v, %d below", inA, end, a.Has(end), a.Below(end))
		}
		in := func(other []int, want bool) (rest []int) {
			for _, one := range inA {
				if slices.Contains(other, one) == want {
					rest = append(rest, one)
				}
			}
			return rest
		}
		longer := append(slices.Clone(b), ^uint64(0)) // what lies beyond a is ignored
		less, taken := slices.Clone(a), event.NewBits(n)
		less.RemoveAll(longer)
		if got := slices.Collect(less.All()); !slices.Equal(got, in(inB, false)) {
			t.Fatalf("%v without %v is %v", inA, inB, got)
		}
		rest := slices.Clone(a)
		if k := rest.Take(longer, taken); k != len(in(inB, true)) || !slices.Equal(slices.Collect(taken.All()), in(inB, true)) || !slices.Equal(rest, less) {
			t.Fatalf("%d of %v are taken for %v: %v, and %v are left", k, inA, inB, slices.Collect(taken.All()), slices.Collect(rest.All()))
		}
		for _, i := range inA {
			a.Remove(i)
		}
		if a.Remove(1 << 20); a.First() != -1 || event.AllBits(n).Len() != n || event.AllBits(n).Has(n) {
			t.Fatalf("%v is not empty, or all of %d are %d", a, n, event.AllBits(n).Len())
		}
	})
}

// The events of a batch are the same as bytes and as objects, whatever is asked about them.
func TestEntryOfBytesAndOfObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "events")
		e := event.NewBatch(n, 100)
		e.Ledger, e.Entry, e.TopicPartition, e.Batched = 7, 8, 3, n > 1
		e.Topic, e.PublishTime, e.Redelivery, e.SchemaVersion = "persistent://a/b/c", 5, 2, "v1"
		text := rapid.StringN(0, 3, 4)
		for i := range n {
			var properties []event.Property
			for range rapid.IntRange(0, 3).Draw(t, "properties") {
				properties = append(properties, event.Property{Name: text.Draw(t, "name"), Value: text.Draw(t, "value")})
			}
			var payload []byte
			if rapid.Bool().Draw(t, "value") {
				payload = []byte(text.Draw(t, "payload"))
			}
			e.AddPart(event.Part{Key: text.Draw(t, "message key"), EventTime: int64(i)}, payload, text.Draw(t, "ordering key"), properties)
		}
		e.Fresh = event.AllBits(n)
		e.SetFirst(event.NewHandle(9, 0))
		for i := range n {
			e.SetKey(i, event.Key(text.Draw(t, "key")), partition.ID(i))
		}
		objects := *e
		objects.MakeObjects()
		if e.Objects() || !objects.Objects() || e.Len() != n || objects.Len() != n {
			t.Fatalf("%d and %d events, objects: %v, %v", e.Len(), objects.Len(), e.Objects(), objects.Objects())
		}
		var refs []event.Ref
		var scratch event.Event
		for i := range n {
			a, b := e.Message(i), objects.Message(i)
			if !reflect.DeepEqual(a, b) || a.Event.Handle != e.Handle(i) || (a.Event.Payload == nil) != (e.Payload(i) == nil) {
				t.Fatalf("event %d is %+v as bytes, %+v as an object", i, a.Event, b.Event)
			}
			if want := "7:8:3:" + fmt.Sprint(map[bool]int{true: i, false: -1}[n > 1]); a.Event.ID.String() != want {
				t.Fatalf("event %d has id %v, want %s", i, a.Event.ID, want)
			}
			same := func(what string, a, b any) {
				if !reflect.DeepEqual(a, b) {
					t.Fatalf("event %d: %s is %v as bytes, %v as an object", i, what, a, b)
				}
			}
			same("id", e.ID(i), objects.ID(i))
			same("key", e.Key(i), objects.Key(i))
			same("partition", e.Partition(i), objects.Partition(i))
			same("payload", e.Payload(i), objects.Payload(i))
			same("properties", e.Properties(i), objects.Properties(i))
			same("weight", e.Weight(i), objects.Weight(i))
			message, ordering := e.Keys(i)
			same("keys", []string{message, ordering}, []string{a.Key, a.OrderingKey})
			ref := event.Ref{Entry: e, Index: int32(i)}
			if rapid.Bool().Draw(t, "newer") {
				newer := *a.Event
				newer.Attempts = 4
				ref.Object = &newer
			}
			refs = append(refs, ref)
			same("event read", *ref.Read(&scratch), *ref.Event())
			same("weight of the name", ref.Weight(), ref.Event().Bytes())
		}
		for _, ref := range append(refs, event.RefsTo(objects.Event(0))...) {
			ev := ref.Event()
			attempts, crashes := ref.Failures()
			redelivery, round := ref.Rounds()
			if ref.Handle() != ev.Handle || ref.MessageID() != ev.ID || ref.Topic() != ev.Topic || ref.Key() != ev.Key || ref.Partition() != ev.Partition ||
				attempts != ev.Attempts || crashes != ev.Crashes || redelivery != ev.Redelivery || round != ev.Round {
				t.Fatalf("%+v is named as if it was another one", ev)
			}
		}
	})
}

// The events of a frame that came in one entry become a part of that entry, and all others do not.
func TestPartOfAnEntry(t *testing.T) {
	first := event.Event{
		Handle: event.NewHandle(4, 70), ID: event.MessageID{Ledger: 1, Entry: 2, Batch: 70, TopicPartition: 3}, Topic: "t", Key: "k", Partition: 5,
		Payload: []byte("p"), Properties: []event.Property{{Name: "n", Value: "v"}}, PublishTime: 6, EventTime: 7, Redelivery: 1, SchemaVersion: "s",
	}
	e := event.PartOf(&first, 2)
	for name, change := range map[string]func(*event.Event){
		"another entry":      func(ev *event.Event) { ev.ID.Entry++ },
		"another handle":     func(ev *event.Event) { ev.Handle = event.NewHandle(5, 70) },
		"an index of old":    func(ev *event.Event) { ev.ID.Batch = 69 },
		"no index":           func(ev *event.Event) { ev.ID.Batch = -1 },
		"a failure":          func(ev *event.Event) { ev.Attempts = 1 },
		"a crash":            func(ev *event.Event) { ev.Crashes = 1 },
		"a round":            func(ev *event.Event) { ev.Round = 1 },
		"a first error":      func(ev *event.Event) { ev.FirstError = "x" },
		"a last error":       func(ev *event.Event) { ev.LastError = "x" },
		"another topic":      func(ev *event.Event) { ev.Topic = "u" },
		"another time":       func(ev *event.Event) { ev.PublishTime = 9 },
		"another redelivery": func(ev *event.Event) { ev.Redelivery = 2 },
		"another schema":     func(ev *event.Event) { ev.SchemaVersion = "" },
	} {
		if ev := first; !event.Together(&first, &ev) {
			t.Fatal("an event is not together with itself")
		} else if change(&ev); event.Together(&first, &ev) || event.Together(&ev, &first) {
			t.Errorf("an event is together with one that has %s", name)
		}
	}
	second := first
	second.Handle, second.ID.Batch, second.Key, second.EventTime, second.Payload, second.Properties = event.NewHandle(4, 7), 7, "l", 0, nil, nil
	e.AddPartOf(&first)
	e.AddPartOf(&second)
	for i, want := range []*event.Event{&first, &second} {
		if got := e.Event(i); !reflect.DeepEqual(got, want) {
			t.Errorf("event %d is %+v, want %+v", i, got, want)
		}
	}
}

// An event made of bytes does not copy them.
func TestAnEventAliasesItsBatch(t *testing.T) {
	payload := []byte("payload")
	e := event.NewBatch(1, len(payload))
	e.AddPart(event.Part{Key: "k"}, payload, "", nil)
	if got := e.Event(0).Payload; !bytes.Equal(got, payload) || &got[0] != &payload[0] {
		t.Errorf("payload %q lies elsewhere", got)
	}
}

// Memory for properties is not taken for all events as many as the first one has.
func TestPropertiesOfTheFirstEventAreNoMeasure(t *testing.T) {
	const events, properties = 50_000, 10_000
	many := make([]event.Property, properties)
	e := event.NewBatch(events, 0)
	allocated := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			e = event.NewBatch(events, 0)
			e.AddPart(event.Part{}, nil, "", many)
		}
	}).AllocedBytesPerOp()
	if most := int64(events*64 + 4*properties*32); allocated > most {
		t.Errorf("%d bytes are allocated for an event with %d properties in a batch of %d, want at most %d", allocated, properties, events, most)
	}
	e.AddPart(event.Part{}, nil, "", many[:1])
	if len(e.Properties(0)) != properties || len(e.Properties(1)) != 1 || e.Bytes < properties*32 {
		t.Errorf("%d and %d properties, %d bytes", len(e.Properties(0)), len(e.Properties(1)), e.Bytes)
	}
}

// An event of a batch has the ordering key that it came with, and others have none.
func TestOrderingKeysOfParts(t *testing.T) {
	e := event.NewBatch(2, 2)
	e.AddPart(event.Part{Key: "a"}, []byte("p"), "o", nil)
	e.AddPart(event.Part{Key: "b"}, []byte("q"), "", nil)
	for i, want := range [][2]string{{"a", "o"}, {"b", ""}} {
		if key, ordering := e.Keys(i); key != want[0] || ordering != want[1] {
			t.Errorf("event %d has the keys %q and %q, want %q", i, key, ordering, want)
		}
	}
}
