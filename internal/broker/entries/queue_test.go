package entries

import (
	"errors"
	"testing"
)

// A lost topic partition is told at once, though a backlog of others waits: that may never end, and nothing else says that one is not read.
func TestALossComesBeforeABacklog(t *testing.T) {
	q := NewQueue()
	for range 3 {
		q.push(new(Delivered))
	}
	lost := &LostError{Topic: "t", Cause: errors.New("gone")}
	q.lose(lost)
	q.push(new(Delivered))
	if got, err := q.Receive(t.Context(), nil, 2); !errors.Is(err, ErrLost) || len(got) > 0 {
		t.Fatalf("Receive = %d entries, %v, want the loss", len(got), err)
	}
	for _, want := range []int{2, 2} {
		if got, err := q.Receive(t.Context(), nil, 2); err != nil || len(got) != want {
			t.Errorf("Receive = %d entries, %v, want %d", len(got), err, want)
		}
	}
}
