package framepool

import (
	"testing"

	"google.golang.org/grpc/mem"
)

// What is joined stays as it was when the parts are written over.
func TestJoinCopies(t *testing.T) {
	first, second := []byte("one frame "), []byte("in two parts")
	got := Join(mem.BufferSlice{mem.SliceBuffer(first), mem.SliceBuffer(second)})
	first[0], second[0] = 'X', 'X'
	if want := "one frame in two parts"; string(got) != want {
		t.Errorf("joined %q, want %q", got, want)
	}
	if got := Join(nil); len(got) != 0 {
		t.Errorf("nothing joined is %q", got)
	}
}
