package client

import "github.com/ringfence/router/internal/base/event"

// Fence orders the deliveries of one key: each delivery has a greater fence than all
// deliveries of its key before it, whatever handlers, applications, routers and restarts
// they went through. Keep the greatest fence of each key in your database, and refuse a
// write whose fence is older: see docs/sinks.md. The fences of two keys say nothing about
// each other.
//
// It is a pair, compared by its first number, then by its second. Databases can keep the
// two in columns of their own, or [Fence.String] in one.
type Fence struct {
	// Token grows whenever the key changes its owner. It needs 63 bits. It is 0 if the
	// routers run with ownership.mode gossip, which cannot order owners: then Turn is 0
	// too, and no write can be refused.
	Token int64
	// Turn grows with each delivery under one Token, from 1, by steps of any size. It fits
	// into a signed integer of 64 bits. It is 0 if the router is older than turns.
	Turn uint64
}

// Compare returns -1 if f is older than other, 0 if they are equal, and 1 if f is newer.
func (f Fence) Compare(other Fence) int { return event.Fence(f).Compare(event.Fence(other)) }

// Before reports whether f is older than other: a write with f must be refused once one
// with other was accepted.
func (f Fence) Before(other Fence) bool { return event.Fence(f).Before(event.Fence(other)) }

// String returns the fence as text: 19 digits, a point and 20 digits. Such texts sort by
// their bytes as the fences do.
func (f Fence) String() string { return event.Fence(f).String() }

// MarshalText implements encoding.TextMarshaler. It returns the bytes of String.
func (f Fence) MarshalText() ([]byte, error) { return event.Fence(f).Append(nil), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Fence) UnmarshalText(text []byte) error {
	parsed, err := ParseFence(string(text))
	if err == nil {
		*f = parsed
	}
	return err
}

// ErrFence means that a text is not one that [Fence.String] returns.
var ErrFence = event.ErrFence

// ParseFence returns the fence whose String is text, or [ErrFence].
func ParseFence(text string) (Fence, error) {
	f, err := event.ParseFence(text)
	return Fence(f), err
}
