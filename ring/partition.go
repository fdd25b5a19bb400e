package ring

import "github.com/cespare/xxhash/v2"

// Partition is one slice of the key space, the unit of ownership: 0 … Partitions−1.
// (Pulsar's own partitions are always called topic partitions here.)
type Partition uint16

// Partitions is how many slices the key space has. It is a constant of the wire:
// it stands in [HashID], and a node with another one may not join a group.
const Partitions = 4093

// HashID names the function from key to partition. It travels in the control log
// and in the Hello of every stream; nodes that differ in it never work together.
const HashID = "xxhash64/4093/1"

// KeyHash stands for a key where one is named to other nodes. Two keys with one hash
// are taken for one there.
type KeyHash uint64

// HashOf returns the hash of a key. It neither allocates nor locks.
func HashOf(key string) KeyHash { return KeyHash(xxhash.Sum64String(key)) }

// PartitionOf returns the partition of a key. It neither allocates nor locks.
func PartitionOf(key string) Partition {
	return Partition(xxhash.Sum64String(key) % Partitions)
}
