// Package topicname makes and splits the names of topic partitions, as Pulsar does.
package topicname

import (
	"strconv"
	"strings"
)

const mark = "-partition-"

// Partition returns the name of a partition of a topic.
func Partition(topic string, number int) string { return topic + mark + strconv.Itoa(number) }

// Split splits the name of a topic partition into its topic and number. The number is -1, and topic the
// whole name, if it is not the name of a topic partition.
func Split(name string) (topic string, number int32) {
	at := strings.LastIndex(name, mark)
	if at < 0 {
		return name, -1
	}
	n, err := strconv.ParseInt(name[at+len(mark):], 10, 32)
	if err != nil || n < 0 {
		return name, -1
	}
	return name[:at], int32(n)
}
