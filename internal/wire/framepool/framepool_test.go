package framepool

import "testing"

func TestPool(t *testing.T) {
	var pool Pool
	for _, size := range []int{1, 4096, 4097, 1 << 20, 1<<20 + 1, 8 << 20, 8<<20 + 1, 20 << 20} {
		buf := pool.Get(size)
		if len(*buf) != size || cap(*buf) < size || size <= 8<<20 && size > 4096 && cap(*buf) >= 2*size {
			t.Errorf("Get(%d) has length %d and capacity %d", size, len(*buf), cap(*buf))
		}
		pool.Put(buf)
		if again := pool.Get(size); len(*again) != size {
			t.Errorf("the second Get(%d) has length %d", size, len(*again))
		}
	}
}
