package topicname

import "testing"

func TestNamesOfTopicPartitions(t *testing.T) {
	for name, want := range map[string]int32{"t": -1, "t-partition-0": 0, "t-partition-12": 12, "t-partition--1": -1, "t-partition-": -1, "t-partition-x": -1, "t-partition-2147483648": -1, "t-partition-1-partition-2": 2} {
		topic, got := Split(name)
		if got != want || (want < 0) != (topic == name) {
			t.Errorf("%s is partition %d of %s, want %d", name, got, topic, want)
		}
		if got >= 0 && Partition(topic, int(got)) != name {
			t.Errorf("partition %d of %s is %s, want %s", got, topic, Partition(topic, int(got)), name)
		}
	}
}
