// Package partition maps keys to partitions, the units of ownership.
//
// It is pure, and the only part of the ring that the SDK needs.
// [github.com/ringfence/router/ring] maps partitions to members.
package partition

import "github.com/cespare/xxhash/v2"

// ID names one slice of the key space, the unit of ownership: 0 … Count−1.
// (Pulsar's own partitions are always called topic partitions here.)
type ID uint16

// Count is the number of slices of the key space. It is a constant of the wire: it is part of
// [HashID], and a node with another one may not join a group.
const Count = 4093

// HashID names the function from key to partition. It travels in the control log
// and in the Hello of every stream; nodes that differ in it never work together.
const HashID = "xxhash64/4093/1"

// KeyHash identifies a key in messages to other nodes. Two keys with one hash count as one
// there.
type KeyHash uint64

// HashOf returns the hash of a key. It neither allocates nor locks.
func HashOf(key string) KeyHash { return KeyHash(xxhash.Sum64String(key)) }

// Of returns the partition of a key. It neither allocates nor locks.
func Of(key string) ID { return ID(xxhash.Sum64String(key) % Count) }
