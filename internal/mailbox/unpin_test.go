package mailbox

import (
	"testing"
	"unsafe"

	"github.com/ringfence/router/internal/event"
)

// What waits for long keeps nothing of the frame that brought it, and is the same as before.
func TestUnpin(t *testing.T) {
	f := newFixture(t, nil)
	running, waiting, local := f.event("ann"), f.event("ann"), f.event("bob")
	waiting.Properties = []event.Property{{Name: "n", Value: "v"}}
	f.accept(3, running, waiting)
	f.accept(Local, local)
	for _, d := range f.take() {
		if d.Event.Key == "bob" {
			f.finish(d, event.ResultNotStarted, "")
		}
	}
	f.now = f.now.Add(unpinAfter - 1)
	f.Tick(f.now, &f.out)
	young := f.event("cat")
	f.accept(3, young)
	f.now = f.now.Add(unpinAfter)
	f.Tick(f.now, &f.out)
	f.Tick(f.now.Add(unpinAfter), &f.out) // copies nothing again
	for _, e := range []*event.Event{running, waiting, local, young} {
		it, _ := f.lookUp(hashOf(e.ID), e.ID)
		if moved := it.event != e; moved != (e != local) {
			t.Errorf("event of %s: copied %v", string(e.Key), moved)
		}
		if string(it.event.Payload) != string(e.Payload) || it.event.Key != e.Key || len(it.event.Properties) != len(e.Properties) {
			t.Errorf("event of %s is another one now: %+v", string(e.Key), it.event)
		}
	}
	if n := f.counters.Unpinned; n != 3 {
		t.Errorf("%d events were copied, want 3", n)
	}
	a := f.actor("ann", f.hashOfKey("ann"))
	if unsafe.StringData(string(a.key)) == unsafe.StringData(string(running.Key)) {
		t.Error("the actor's key lies in the frame")
	}
}
