// Package contention runs benchmarks of structures that several cores share. `make contention` runs them with a growing GOMAXPROCS, and draws
// their throughput.
package contention

import (
	"runtime"
	"testing"
)

// Batch is the number of events of one operation: as many as a source hands on at a time.
const Batch = 256

// Run calls operations on all cores at the same time. worker is called once on each goroutine, with its number from 0, and returns the
// operation, which handles Batch events and is called repeatedly on that goroutine. worker is called on one goroutine at a time.
func Run(b *testing.B, worker func(number int) (operation func())) {
	b.Helper()
	ready := make(chan int, 1) // the number of the next worker
	ready <- 0
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		number := <-ready
		operation := worker(number)
		ready <- number + 1
		for pb.Next() {
			operation()
		}
	})
	b.ReportMetric(Batch, "events/op")
	b.ReportMetric(float64(runtime.NumCPU()), "cores")
}
