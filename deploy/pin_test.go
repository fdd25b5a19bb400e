package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPinImages runs tools/pin-images.sh on copies of the files, with a registry that it makes up.
func TestPinImages(t *testing.T) {
	root := t.TempDir()
	files := []string{"deploy/Dockerfile", "deploy/compose/compose.yaml", ".ko.yaml", "tools/pin-images.sh"}
	for _, name := range files {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o750); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, name), read(t, filepath.Join("..", name)))
	}
	pin := func(digest string, args ...string) (string, error) {
		registry := t.TempDir()
		write(t, filepath.Join(registry, "crane"), "#!/bin/sh\necho "+digest+"\n")
		if err := os.Chmod(filepath.Join(registry, "crane"), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{filepath.Join(root, "tools/pin-images.sh")}, args...)...)
		cmd.Env = append(os.Environ(), "PATH="+registry+":"+os.Getenv("PATH"))
		output, err := cmd.CombinedOutput()
		return string(output), err
	}

	before := read(t, filepath.Join(root, "deploy/Dockerfile"))
	if output, err := pin("no-digest"); err == nil || !strings.Contains(output, "gave no digest") {
		t.Errorf("an answer that is no digest: %v\n%s", err, output)
	}
	if read(t, filepath.Join(root, "deploy/Dockerfile")) != before {
		t.Error("a failure changed a file")
	}
	for _, digit := range []string{"a", "b"} { // the second time it replaces digests
		digest := "sha256:" + strings.Repeat(digit, 64)
		if output, err := pin(digest); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if output, err := pin(digest, "--check"); err != nil {
			t.Errorf("--check after pinning: %v\n%s", err, output)
		}
		for name, images := range map[string]int{"deploy/Dockerfile": 2, "deploy/compose/compose.yaml": 4, ".ko.yaml": 1} {
			if got := strings.Count(read(t, filepath.Join(root, name)), "@"+digest); got != images {
				t.Errorf("%s has %d images with the digest %s, want %d", name, got, digest[:9], images)
			}
		}
	}
	write(t, filepath.Join(root, "deploy/Dockerfile"), before)
	if output, err := pin("", "--check"); err == nil || !strings.Contains(output, "deploy/Dockerfile golang:") {
		t.Errorf("--check with an image that has no digest: %v\n%s", err, output)
	}
}
