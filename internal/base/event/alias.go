package event

import "unsafe"

// Alias returns b as a string without a copy. b must never be written to again.
func Alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // pointer and length are those of b

// bytesOf is the inverse of Alias. The result is not nil, and must never be written to.
func bytesOf(s string) []byte {
	if s == "" {
		return []byte{}
	}
	return unsafe.Slice(unsafe.StringData(s), len(s)) //nolint:gosec // pointer and length are those of s
}
