package ring_test

import (
	"fmt"
	"log"

	"github.com/ringfence/router/ring"
)

func ExampleRing_Locate() {
	r, err := ring.New([]ring.Member{"router-2", "router-0", "router-1"}, ring.DefaultConfig())
	if err != nil {
		log.Fatal(err)
	}
	partition, member := r.Locate("user-1")
	fmt.Println(partition, member)
	// Output: 362 router-1
}

func ExampleDiff() {
	cfg := ring.DefaultConfig()
	cfg.Load = 1.01 // so near to even that members that stay must make room for each other
	three := []ring.Member{"router-0", "router-1", "router-2"}
	before, err := ring.New(three, cfg)
	if err != nil {
		log.Fatal(err)
	}
	after, err := ring.New(append(three, "router-3"), cfg)
	if err != nil {
		log.Fatal(err)
	}
	count := map[ring.MoveKind]int{}
	for _, move := range ring.Diff(before, after) {
		count[move.Kind]++
	}
	fmt.Println(count[ring.Unavoidable], "to the joiner,", count[ring.Collateral], "between the others")
	// Output: 1034 to the joiner, 39 between the others
}

func ExampleConfig_Place() {
	names := []string{"router-1", "router-0"} // in any order
	table, err := ring.DefaultConfig().Place(names)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(names[table[ring.PartitionOf("user-1")]])
	// Output: router-1
}
