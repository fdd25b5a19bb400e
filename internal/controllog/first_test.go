package controllog

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
)

// TestReadFirst: a log is virgin while it holds nothing but Hellos before a position, whatever other groups wrote.
func TestReadFirst(t *testing.T) {
	hello := func(g string) ownership.Record {
		return ownership.Record{
			LogVersion: ownership.LogVersionMin, Group: g, Inc: ownership.Incarnation{1},
			Body: &ownership.Hello{Floor: 7, Node: ownership.Node{Name: "a", Inc: ownership.Incarnation{1}, Lease: time.Second}},
		}
	}
	beat := ownership.Record{LogVersion: ownership.LogVersionMax, Group: group, Inc: ownership.Incarnation{1}, Body: &ownership.Beat{Seq: 1}}
	later, foreign := beat, beat
	later.LogVersion++ // what a downgrade leaves behind
	foreign.Group = "other"
	for name, test := range map[string]struct {
		records []ownership.Record
		want    bool
		later   uint32
	}{
		"Hellos alone":              {[]ownership.Record{hello(group), hello(group)}, true, 0},
		"a member's Beat":           {[]ownership.Record{hello(group), beat, hello(group)}, false, 0},
		"another group's Beat":      {[]ownership.Record{foreign, hello(group)}, true, 0},
		"a Beat after it":           {[]ownership.Record{hello(group), hello(group), beat}, true, 0},
		"a Beat of a later version": {[]ownership.Record{later, hello(group)}, true, ownership.LogVersionMax + 1},
		"one after it":              {[]ownership.Record{hello(group), later}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			mem := NewMem()
			var before event.Position // the newest Hello
			var told ownership.Token  // by those before it
			for _, r := range test.records {
				data, err := Encode(r)
				if err != nil {
					t.Fatal(err)
				}
				at := mem.Put(data)
				if h, ok := r.Body.(*ownership.Hello); ok {
					if !before.IsZero() {
						told = h.Floor
					}
					before = at
				}
			}
			got := make(chan ownership.FirstRead, 1)
			l := &Log{cfg: DefaultConfig(), transport: mem, deliver: func(in ownership.Input) { got <- in.(ownership.FirstRead) }, log: quiet()}
			l.cfg.Group = group
			l.readFirst(t.Context(), ownership.ReadFirst{Read: 7, Before: before})
			if answer := <-got; !reflect.DeepEqual(answer, ownership.FirstRead{Read: 7, Virgin: test.want, First: event.Position{Ledger: 1}, Told: told, Later: test.later}) {
				t.Errorf("got %+v, want virgin %v, told %v, later %d", answer, test.want, told, test.later)
			}
		})
	}
}

// putRecord appends a record of one incarnation in the newest version.
func putRecord(t *testing.T, mem *Mem, body ownership.Body) event.Position {
	t.Helper()
	data, err := Encode(ownership.Record{LogVersion: ownership.LogVersionMax, Group: group, Inc: ownership.Incarnation{1}, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return mem.Put(data)
}

// TestReadFirstReadsReservations: of a log with a group, the answer has the reservations that the records up to the position leave.
func TestReadFirstReadsReservations(t *testing.T) {
	mem := NewMem()
	put := func(body ownership.Body) event.Position { return putRecord(t, mem, body) }
	key := ownership.KeyAt{Partition: 5, Key: 9}
	at := put(&ownership.Beat{Seq: 1})
	for i := range byte(3) {
		at = put(&ownership.Reservations{Seq: uint64(i), Applied: at, Take: []ownership.Take{{KeyAt: key, ID: ownership.ReservationID{i + 1}, TTL: ownership.TTLLeast}}})
	}
	got := make(chan ownership.FirstRead, 1)
	l := &Log{cfg: DefaultConfig(), transport: mem, deliver: func(in ownership.Input) { got <- in.(ownership.FirstRead) }, log: quiet()}
	l.cfg.Group = group
	l.readFirst(t.Context(), ownership.ReadFirst{Read: 7, Before: at, Partitions: 8})
	want := []ownership.Reserved{{KeyAt: key, IDs: []ownership.ReservationID{{2}}, TTL: ownership.TTLLeast}}
	if answer := <-got; answer.Virgin || answer.Failed || answer.Crowded || !reflect.DeepEqual(answer.Reserved, want) {
		t.Errorf("got %+v, want the reservation %+v", answer, want)
	}
	l.cfg.FirstTimeout = 50 * time.Millisecond
	l.readFirst(t.Context(), ownership.ReadFirst{Read: 8, Before: event.Position{Ledger: 9}, Partitions: 8})
	if answer := <-got; !answer.Failed {
		t.Errorf("got %+v of a log that ends before the position", answer)
	}
}

// slow is a log whose readers take a millisecond for each record.
type slow struct{ *Mem }

func (s slow) Tail(ctx context.Context, from event.Position, prefetch int, opened func(), record func(Entry)) error {
	return s.Mem.Tail(ctx, from, prefetch, opened, func(e Entry) {
		time.Sleep(time.Millisecond)
		record(e)
	})
}

// TestReadFirstGoesOn: the records of a large group are read in several attempts, all of them even if the log grows meanwhile, or is trimmed.
func TestReadFirstGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		put := func(body ownership.Body) event.Position { return putRecord(t, mem, body) }
		key := ownership.KeyAt{Partition: 5, Key: 9}
		take := func(applied event.Position) event.Position {
			return put(&ownership.Reservations{Seq: 1, Applied: applied, Take: []ownership.Take{{KeyAt: key, ID: ownership.ReservationID{1}, TTL: ownership.TTLLeast}}})
		}
		want := []ownership.Reserved{{KeyAt: key, IDs: []ownership.ReservationID{{1}}, TTL: ownership.TTLLeast}}
		put(&ownership.Beat{Seq: 1})
		at := take(put(&ownership.Beat{Seq: 1}))
		for range 10_000 { // Beats of ten seconds of reading
			at = put(&ownership.Beat{Seq: 1, Applied: at})
		}
		got := make(chan ownership.FirstRead, 1)
		l := &Log{cfg: DefaultConfig(), transport: slow{mem}, deliver: func(in ownership.Input) { got <- in.(ownership.FirstRead) }, log: quiet()}
		l.cfg.Group = group
		read := func() (answer ownership.FirstRead, attempts uint64) {
			for attempts = 1; attempts < 10; attempts++ {
				before := put(&ownership.Beat{Seq: 1, Applied: at})
				l.readFirst(t.Context(), ownership.ReadFirst{Read: attempts, Before: before, Partitions: 8})
				if answer = <-got; !answer.Failed {
					break
				}
			}
			return answer, attempts
		}
		if answer, attempts := read(); attempts != 3 || answer.Virgin || !reflect.DeepEqual(answer.Reserved, want) {
			t.Errorf("after %d attempts of %v: %+v, want the reservation %+v", attempts, l.cfg.FirstTimeout, answer, want)
		}

		mem.Roll()
		mem.Forget(event.Position{Ledger: 2}) // with the place where the reading would go on
		at = take(put(&ownership.Beat{Seq: 1}))
		if answer, attempts := read(); attempts != 2 || answer.Virgin || !reflect.DeepEqual(answer.Reserved, want) {
			t.Errorf("after the log was trimmed, and %d attempts: %+v, want the reservation %+v", attempts, answer, want)
		}
	})
}

// TestReadFirstGoesOnBehindHellos: routers whose applications are not ready write Hellos for days. A log of nothing
// else is read in several attempts, too.
func TestReadFirstGoesOnBehindHellos(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := NewMem()
		hello := func(floor ownership.Token) event.Position {
			return putRecord(t, mem, &ownership.Hello{Node: ownership.Node{Name: "a", Inc: ownership.Incarnation{1}}, Floor: floor})
		}
		first := hello(5)
		for range 10_000 { // ten seconds of reading
			hello(0)
		}
		got := make(chan ownership.FirstRead, 1)
		l := &Log{cfg: DefaultConfig(), transport: slow{mem}, deliver: func(in ownership.Input) { got <- in.(ownership.FirstRead) }, log: quiet()}
		l.cfg.Group = group
		read := func() (answer ownership.FirstRead, attempts uint64) {
			for attempts = 1; attempts < 10; attempts++ {
				l.readFirst(t.Context(), ownership.ReadFirst{Read: attempts, Before: hello(0), Partitions: 8})
				if answer = <-got; !answer.Failed {
					break
				}
			}
			return answer, attempts
		}
		if answer, attempts := read(); attempts != 3 || !answer.Virgin || answer.First != first || answer.Told != 5 {
			t.Errorf("after %d attempts of %v: %+v", attempts, l.cfg.FirstTimeout, answer)
		}

		mem.Roll()
		second := hello(0)
		mem.Forget(event.Position{Ledger: 2}) // with the place where the reading would go on
		if answer, attempts := read(); attempts != 1 || !answer.Virgin || answer.First != second {
			t.Errorf("after the log was trimmed, and %d attempts: %+v, want one that begins at %v", attempts, answer, second)
		}

		putRecord(t, mem, &ownership.Beat{Seq: 1, Applied: second})
		if answer, attempts := read(); attempts != 1 || answer.Virgin {
			t.Errorf("behind a Beat, after %d attempts: %+v", attempts, answer)
		}
	})
}

// TestReadFirstOfALaterVersion: after a downgrade of the whole group, nobody knows which reservations the records of the later version leave: the
// answer says so, and does not say that there are none. Those of another group say nothing.
func TestReadFirstOfALaterVersion(t *testing.T) {
	for of, want := range map[string]bool{group: true, "other": false} {
		mem := NewMem()
		at := putRecord(t, mem, &ownership.Beat{Seq: 1})
		take := ownership.Reservations{Seq: 1, Applied: at, Take: []ownership.Take{{KeyAt: ownership.KeyAt{Partition: 5, Key: 9}, ID: ownership.ReservationID{1}, TTL: ownership.TTLLeast}}}
		data, err := Encode(ownership.Record{LogVersion: ownership.LogVersionMax + 1, Group: of, Inc: ownership.Incarnation{1}, Body: &take})
		if err != nil {
			t.Fatal(err)
		}
		mem.Put(data)
		at = putRecord(t, mem, &ownership.Hello{Node: ownership.Node{Name: "a", Inc: ownership.Incarnation{1}, Lease: time.Second}})
		got := make(chan ownership.FirstRead, 1)
		l := &Log{cfg: DefaultConfig(), transport: mem, deliver: func(in ownership.Input) { got <- in.(ownership.FirstRead) }, log: quiet()}
		l.cfg.Group = group
		l.readFirst(t.Context(), ownership.ReadFirst{Read: 7, Before: at, Partitions: 8})
		if answer := <-got; answer.Virgin || answer.Failed || answer.Crowded != want || len(answer.Reserved) > 0 {
			t.Errorf("a record of group %s: got %+v, want crowded %v", of, answer, want)
		}
	}
}
