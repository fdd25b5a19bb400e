package event_test

import (
	"testing"

	"github.com/ringfence/router/internal/base/event"
)

func TestPartitionNumberOfMessageID(t *testing.T) {
	const marked = 5 << event.ClusterShift
	for _, want := range []int32{-1, 0, 7, 99_999} {
		for _, mark := range []int32{0, marked} {
			if got := (event.MessageID{TopicPartition: want + mark}).PartitionNumber(); got != want {
				t.Errorf("topic partition %d has the number %d, want %d", want+mark, got, want)
			}
		}
	}
}
