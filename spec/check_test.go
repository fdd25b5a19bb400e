package spec

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// findTLC returns the path of TLC's jar.
func findTLC(t *testing.T) string {
	t.Helper()
	jar, err := exec.CommandContext(t.Context(), "../tools/tlc.sh").Output()
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("without Java and Maven there is no TLC")
	} else if err != nil {
		t.Fatalf("tools/tlc.sh: %v", err)
	}
	return strings.TrimSpace(string(jar))
}

// TestModelCheckersShareNoFiles: each run has a directory of its own for the modules that TLC copies from its jar and deletes at its end. Two in /tmp once
// deleted each other's, and a run ended with "Parsing or semantic analysis failed".
func TestModelCheckersShareNoFiles(t *testing.T) {
	t.Setenv("TLC_JAR", findTLC(t))
	t.Setenv("JAVA_TOOL_OPTIONS", os.Getenv("JAVA_TOOL_OPTIONS")+" -Djava.io.tmpdir="+filepath.Join(t.TempDir(), "missing")) // for a run that names none
	if out, err := exec.CommandContext(t.Context(), "./check.sh", "same_token").CombinedOutput(); err != nil || !strings.Contains(string(out), "ok   same_token") {
		t.Fatalf("%v\n%s", err, out)
	}
}
