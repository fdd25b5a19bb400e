package event

import (
	"cmp"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestFencesSortAsTheirTexts: a fence can be kept as text by a database that compares
// bytes, and comes back as it was.
func TestFencesSortAsTheirTexts(t *testing.T) {
	fence := rapid.Custom(func(t *rapid.T) Fence {
		return Fence{
			Token: rapid.OneOf(rapid.SampledFrom([]int64{0, 1, 9, 10, 1 << 53, math.MaxInt64}), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "token"),
			Turn:  rapid.OneOf(rapid.SampledFrom([]uint64{0, 1, 9, 10, 1 << 53, math.MaxUint64}), rapid.Uint64()).Draw(t, "turn"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := fence.Draw(t, "a"), fence.Draw(t, "b")
		want := cmp.Compare(a.Token, b.Token)
		if a.Token == b.Token {
			want = cmp.Compare(a.Turn, b.Turn)
		}
		if a.Compare(b) != want || a.Before(b) != (want < 0) || strings.Compare(a.String(), b.String()) != want {
			t.Fatalf("%v and %v: Compare = %d, Before = %v, as texts %d; want %d", a, b, a.Compare(b), a.Before(b), strings.Compare(a.String(), b.String()), want)
		}
		if back, err := ParseFence(a.String()); err != nil || back != a {
			t.Fatalf("ParseFence(%q) = %v, %v", a, back, err)
		}
	})
}

func TestFenceText(t *testing.T) {
	const text = "0000000000004194310.00000000000000000017"
	if got := (Fence{Token: 4194310, Turn: 17}).String(); got != text {
		t.Errorf("text = %q, want %q", got, text)
	}
	for _, bad := range []string{
		"", "4194310", "4194310.17", strings.Replace(text, ".", ":", 1), text + "0", text[1:] + "0",
		"-" + text[1:], "+" + text[1:], "9223372036854775808" + text[19:], text[:20] + "18446744073709551616", text[:20] + "+0000000000000000017",
	} {
		if f, err := ParseFence(bad); !errors.Is(err, ErrFence) {
			t.Errorf("ParseFence(%q) = %v, %v; want ErrFence", bad, f, err)
		}
	}
}
