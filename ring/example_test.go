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

func ExampleConfig_Next() {
	present := make([]ring.Member, ring.Partitions) // partition → owner
	for p := range present {
		present[p] = []ring.Member{"router-0", "router-1", "router-2"}[p%3]
	}
	moves, err := ring.DefaultConfig().Next(present, []ring.Member{"router-0", "router-1", "router-2", "router-3"})
	if err != nil {
		log.Fatal(err)
	}
	count := map[ring.MoveKind]int{}
	for _, move := range moves {
		count[move.Kind]++
	}
	fmt.Println(count[ring.Unavoidable], "to the joiner,", count[ring.Collateral], "between the others")
	// Output: 1075 to the joiner, 0 between the others
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
