package ring

import "github.com/ringfence/router/internal/base/partition"

// Partition is one slice of the key space, the unit of ownership: 0 … Partitions−1.
// (Pulsar's own partitions are always called topic partitions here.)
type Partition = partition.ID

// Partitions is the number of slices of the key space. It is a constant of the wire: it is part
// of [HashID], and a node with another one may not join a group.
const Partitions = partition.Count

// HashID names the function from key to partition. It travels in the control log
// and in the Hello of every stream; nodes that differ in it never work together.
const HashID = partition.HashID

// KeyHash identifies a key in messages to other nodes. Two keys with one hash count as one key
// there.
type KeyHash = partition.KeyHash

// HashOf returns the hash of a key. It neither allocates nor locks.
func HashOf(key string) KeyHash { return partition.HashOf(key) }

// ParseKeyHash reads a hash as [KeyHash.String] writes it.
func ParseKeyHash(text string) (KeyHash, error) { return partition.ParseKeyHash(text) }

// PartitionOf returns the partition of a key. It neither allocates nor locks.
func PartitionOf(key string) Partition { return partition.Of(key) }
