package entries

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Acks of the same entry in one group are merged, with the events of all; acks of different entries are unchanged.
func TestAcksOfAnEntryAreOne(t *testing.T) {
	type state map[wire.ID]uint64 // unacked events of 64
	rapid.Check(t, func(t *rapid.T) {
		var g ackGroup
		want := state{}
		for range rapid.IntRange(0, 50).Draw(t, "acks") {
			id := wire.ID{Entry: rapid.Int64Range(0, 5).Draw(t, "entry")}
			before, there := want[id]
			if !there {
				before = 1<<64 - 1
			}
			ack := wire.AckID{ID: id}
			left := uint64(0)
			if rapid.Bool().Draw(t, "some") {
				left = rapid.Uint64().Draw(t, "left") | 1
				ack.AckSet = []uint64{left}
			}
			want[id] = before & left
			g.add([]wire.AckID{ack})
		}
		got := state{}
		for _, command := range g.take(3) {
			if len(command) == 0 || len(command) > 3 {
				t.Fatalf("command with %d ids", len(command))
			}
			for _, ack := range command {
				if left, twice := got[ack.ID]; twice && (left != 0 || ack.AckSet != nil) {
					t.Fatalf("%v with an ack set is in the group twice", ack.ID)
				}
				got[ack.ID] = 0
				if ack.AckSet != nil {
					got[ack.ID] = ack.AckSet[0]
				}
			}
		}
		for id, left := range want {
			if got[id] != left {
				t.Fatalf("unacked events of %v = %b, want %b", id, got[id], left)
			}
		}
		if len(g.ids) != 0 || g.full(1) {
			t.Fatal("the group is not empty")
		}
	})
}

func TestBoth(t *testing.T) {
	for _, c := range []struct{ a, b, want []uint64 }{
		{nil, []uint64{1}, nil},
		{[]uint64{1}, nil, nil},
		{[]uint64{1}, []uint64{2}, nil},
		{[]uint64{3, 1}, []uint64{2}, []uint64{2}},
		{[]uint64{3}, []uint64{2, 7}, []uint64{2}},
	} {
		if got := both(c.a, c.b); !slices.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("both(%v, %v) = %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestCommandsOfAcksAreBounded(t *testing.T) {
	var g ackGroup
	for i := range 300 {
		g.add([]wire.AckID{{ID: wire.ID{Entry: int64(i)}, AckSet: make([]uint64, 1000)}})
	}
	if !g.full(1000) {
		t.Error("group with a megabyte of acks is not full")
	}
	n := 0
	for _, command := range g.take(1000) {
		bytes := 0
		for _, id := range command {
			bytes += weight(id)
			if n := len(wire.AppendAck(nil, 1, 1, []wire.AckID{id})); n > weight(id) {
				t.Fatalf("weight of an ack of %d bytes = %d", n, weight(id))
			}
		}
		if n += len(command); bytes > ackBytesMax {
			t.Errorf("command with %d bytes", bytes)
		}
	}
	if n != 300 {
		t.Errorf("%d acks, want 300", n)
	}
}
