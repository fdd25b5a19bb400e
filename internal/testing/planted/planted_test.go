package planted_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/testing/planted"
)

// TestEnvironment: RINGFENCE_PLANTED plants a bug in a build that has the switches, and
// means nothing to any other build.
func TestEnvironment(t *testing.T) {
	if os.Getenv("PLANTED_TEST_CHILD") != "" {
		for bug := range planted.All {
			if planted.On(bug) != (planted.Present() == bug) {
				t.Errorf("%v is present and not on, or the reverse", bug)
			}
		}
		fmt.Printf("present: %v\n", planted.Present())
		return
	}
	for name, test := range map[string]struct {
		present string // in a build with the switches; empty: it refuses to run
	}{
		"":          {"none"},
		"none":      {"none"},
		"no_wait":   {"no_wait"},
		"dl_falls":  {"dl_falls"},
		"something": {""},
	} {
		want := "present: " + test.present
		switch {
		case !planted.Overlaid:
			want = "present: none"
		case test.present == "":
			want = `RINGFENCE_PLANTED = "something", want one of [no_wait`
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEnvironment$")
		cmd.Env = append(os.Environ(), "PLANTED_TEST_CHILD=1", "RINGFENCE_PLANTED="+name)
		out, err := cmd.CombinedOutput()
		if refused := err != nil; refused != (planted.Overlaid && test.present == "") || !strings.Contains(string(out), want) {
			t.Errorf("RINGFENCE_PLANTED=%s: %v, want %q in:\n%s", name, err, want, out)
		}
	}
}
