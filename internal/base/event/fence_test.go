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

// A mark is read as it is written; what is none, such as a property of anybody's, is refused.
func TestMarks(t *testing.T) {
	m := Mark{Act: [16]byte{1, 2, 255}, Fence: Fence{Token: 7, Turn: 8}}
	if got, err := ParseMark(m.String()); err != nil || got != m {
		t.Errorf("%s is read as %+v, %v", m, got, err)
	}
	text := m.String()
	for _, bad := range []string{"", " ", text[:31], text[:32], text[:33], "0" + text, text[2:], "zz" + text[2:], text + "0", text[:33] + "x"} {
		if got, err := ParseMark(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
	for _, reason := range []string{"", "why", "it failed: no"} {
		mark, lastError := CutMark(strings.TrimSuffix(text+" "+reason, " "))
		if mark != text || lastError != reason {
			t.Errorf("cut into %q and %q, want %q and %q", mark, lastError, text, reason)
		}
	}
	if mark, lastError := CutMark("short"); mark != "short" || lastError != "" {
		t.Errorf("cut into %q and %q", mark, lastError)
	}
}

// Positions are in the order of the log.
func TestPositionsAreOrdered(t *testing.T) {
	ordered := []Position{{}, {Entry: 1}, {Entry: 9}, {Ledger: 1}, {Ledger: 1, Entry: 1}, {Ledger: 2}}
	for i, p := range ordered {
		for j, q := range ordered {
			if p.Before(q) != (i < j) {
				t.Errorf("%v before %v: %t", p, q, p.Before(q))
			}
		}
		if p.IsZero() != (i == 0) {
			t.Errorf("%v is zero: %t", p, p.IsZero())
		}
	}
}
