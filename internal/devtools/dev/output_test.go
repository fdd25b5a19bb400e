package dev

import (
	"bytes"
	"strings"
	"testing"
)

// TestWholeLines: lines are printed once they are complete, the last one at the end, and a line
// without an end is not buffered for ever.
func TestWholeLines(t *testing.T) {
	var written bytes.Buffer
	lines := wholeLines(&written)
	for _, step := range []struct{ write, want string }{
		{"a", ""},
		{"b\nc", "ab\n"},
		{"\n\nd", "ab\nc\n\n"},
		{strings.Repeat("e", lineMax), "ab\nc\n\nd" + strings.Repeat("e", lineMax)},
		{"f", "ab\nc\n\nd" + strings.Repeat("e", lineMax)},
	} {
		if n, err := lines.Write([]byte(step.write)); n != len(step.write) || err != nil {
			t.Fatalf("Write = %d, %v, want %d", n, err, len(step.write))
		}
		if written.String() != step.want {
			t.Fatalf("after %.9q there is %.20q, want %.20q", step.write, written.String(), step.want)
		}
	}
	lines.end()
	lines.end()
	if !strings.HasSuffix(written.String(), "ef\n") {
		t.Errorf("the end is %q", written.String()[written.Len()-3:])
	}
}
