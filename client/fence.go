package client

import "github.com/ringfence/router/internal/base/event"

// Fence orders the deliveries of one key: each delivery has a greater fence than all
// earlier deliveries of its key, across handlers, applications, routers and restarts. Keep
// the greatest fence of each key in your database, and refuse a write whose fence is older:
// see docs/sinks.md. Fences of different keys cannot be compared.
//
// It is a pair, compared by its first number, then by its second. A database can keep the
// two numbers in two columns, or [Fence.String] in one.
type Fence struct {
	// Token grows whenever the key gets another owner. It needs 63 bits. It is 0 if the
	// routers run with ownership.mode gossip, which cannot order owners: then Turn is 0
	// too, and no write can be refused.
	Token int64
	// Turn grows with each delivery under one Token, from 1, by steps of any size. It fits
	// into a signed integer of 64 bits. It is 0 if the router's release has no turns yet.
	Turn uint64
}

// Compare returns -1 if f is older than other, 0 if they are equal, and 1 if f is newer.
func (f Fence) Compare(other Fence) int { return event.Fence(f).Compare(event.Fence(other)) }

// Before reports whether f is older than other: once a write with other was accepted, a
// write with f must be refused.
func (f Fence) Before(other Fence) bool { return event.Fence(f).Before(event.Fence(other)) }

// String returns the fence as text: 19 digits, a point and 20 digits. The texts sort
// bytewise in the order of the fences.
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

// ErrFence means that a text does not have the form of [Fence.String].
var ErrFence = event.ErrFence

// ParseFence returns the fence whose String is text, or [ErrFence].
func ParseFence(text string) (Fence, error) {
	f, err := event.ParseFence(text)
	return Fence(f), err
}
