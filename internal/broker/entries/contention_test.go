package entries

import (
	"testing"

	"github.com/ringfence/router/internal/testing/contention"
)

// BenchmarkContention passes entries of one event through a queue on all cores. A reader has a goroutine for each connection that pushes, and
// one that receives; entries usually hold batches.
func BenchmarkContention(b *testing.B) {
	b.Run("entries queue", func(b *testing.B) {
		q := NewQueue()
		contention.Run(b, func(int) func() {
			entries := make([]Delivered, contention.Batch)
			got := make([]*Delivered, 0, contention.Batch)
			return func() {
				for i := range entries {
					q.push(&entries[i])
				}
				var err error
				if got, err = q.poll(got[:0], contention.Batch); err != nil || len(got) != contention.Batch {
					b.Errorf("received %d entries, %v", len(got), err)
				}
			}
		})
		if n := q.Len(); n != 0 {
			b.Errorf("%d entries are left", n)
		}
	})
}
