// Package partition maps keys to partitions, the units of ownership.
//
// It is pure, and the only part of the ring that the SDK needs.
// [github.com/ringfence/router/ring] maps partitions to members.
package partition

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

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

// String returns the hash as reports and metrics have it.
func (h KeyHash) String() string { return fmt.Sprintf("%016x", uint64(h)) }

// ParseKeyHash reads a hash as String writes it.
func ParseKeyHash(text string) (KeyHash, error) {
	n, err := strconv.ParseUint(text, 16, 64)
	if err != nil || len(text) != len("0123456789abcdef") {
		return 0, errors.New("the hash of a key has 16 hexadecimal digits")
	}
	return KeyHash(n), nil
}

// Partition returns the partition of the keys with a hash.
func (h KeyHash) Partition() ID { return ID(h % Count) }

// Of returns the partition of a key. It neither allocates nor locks.
func Of(key string) ID { return HashOf(key).Partition() }
