package reload

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ringfence/router/internal/base/clock"
)

// fixture is a Value over one file, with a clock that the test moves.
type fixture struct {
	*Value[string]
	path string
	now  clock.Instant
	told []error
}

func open(t *testing.T, content string) *fixture {
	t.Helper()
	f := &fixture{path: filepath.Join(t.TempDir(), "file")}
	f.write(t, content)
	var err error
	f.Value, err = Open([]string{f.path}, func(contents [][]byte) (string, error) {
		if len(contents[0]) == 0 {
			return "", errors.New("it is empty")
		}
		return string(contents[0]), nil
	}, func(err error) { f.told = append(f.told, err) })
	if err != nil {
		t.Fatal(err)
	}
	f.now = f.looked
	f.Value.now = func() clock.Instant { return f.now }
	return f
}

func (f *fixture) write(t *testing.T, content string) {
	t.Helper()
	if err := os.WriteFile(f.path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) later() { f.now = f.now.Add(Interval) }

func TestAChangeIsTakenOver(t *testing.T) {
	f := open(t, "one")
	f.write(t, "two")
	if got := f.Get(); got != "one" {
		t.Errorf("got %q before the files were looked at again", got)
	}
	f.later()
	if got := f.Get(); got != "two" {
		t.Errorf("got %q, want the present content of the file", got)
	}
	f.later()
	f.Get()
	if !slices.Equal(f.told, []error{nil}) {
		t.Errorf("told %v, want one change", f.told)
	}
	f.write(t, "three")
	if got := f.Get(); got != "two" {
		t.Errorf("got %q: the files were looked at twice within the interval", got)
	}
}

// A change of one file of several is a change.
func TestEachFileCounts(t *testing.T) {
	f := open(t, "one")
	second := filepath.Join(t.TempDir(), "second")
	f.paths = append(f.paths, second)
	f.parse = func(contents [][]byte) (string, error) { return string(bytes.Join(contents, []byte("+"))), nil }
	for _, content := range []string{"a", "b"} {
		if err := os.WriteFile(second, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f.later()
		if got := f.Get(); got != "one+"+content {
			t.Errorf("got %q after the second file became %q", got, content)
		}
	}
}

// A failure is reported again after the file was good in the meantime, and the content from before the failure is no change.
func TestAFailureThatReturnsIsReported(t *testing.T) {
	f := open(t, "good")
	for _, content := range []string{"", "good", "", "better", ""} {
		f.write(t, content)
		f.later()
		f.Get()
	}
	var said []bool
	for _, err := range f.told {
		said = append(said, err != nil)
	}
	if want := []bool{true, true, false, true}; !slices.Equal(said, want) {
		t.Errorf("told %v, want failures and changes %v", f.told, want)
	}
}

// Callers that come at the same time look at the files once.
func TestGetIsSafeForConcurrentUse(t *testing.T) {
	f := open(t, "one")
	f.write(t, "two")
	f.later()
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			if got := f.Get(); got != "two" {
				t.Errorf("got %q", got)
			}
		})
	}
	callers.Wait()
	if !slices.Equal(f.told, []error{nil}) {
		t.Errorf("told %v, want one change", f.told)
	}
}

// A file may have as many bytes as its bound; of a pipe with more no more is read than shows that. Permissions matter only for files with
// secrets.
func TestBoundsAndPermissions(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are neither such permissions nor such pipes")
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if content, err := Bounded(path, 5); err != nil || string(content) != "12345" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := Bounded(path, 4); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("with a byte too many: %v", err)
	}
	if _, err := Secret(path, 5); err == nil {
		t.Error("a secret that all may write to is read")
	}
	if content, err := Secret(os.DevNull, 5); err != nil || len(content) != 0 { // all may write to it
		t.Errorf("no file: %q, %v", content, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := w.Write(make([]byte, 10<<20)) // more than any pipe holds
		_ = w.Close()
		written <- err
	}()
	if _, err := Secret(fmt.Sprintf("/dev/fd/%d", r.Fd()), 4); err == nil || !strings.Contains(err.Error(), "more than 4 bytes") {
		t.Errorf("a pipe with too much: %v", err)
	}
	_ = r.Close()
	if <-written == nil {
		t.Error("all of a pipe was read")
	}
}

// A Kubernetes volume changes by a link that is replaced.
func TestALinkIsFollowed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := open(t, "zero")
	for _, target := range []string{"one", "two"} {
		next := filepath.Join(dir, "next")
		if err := os.Symlink(filepath.Join(dir, target), next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, f.path); err != nil {
			t.Fatal(err)
		}
		f.later()
		if got := f.Get(); got != target {
			t.Errorf("got %q, want %q", got, target)
		}
	}
}

// After any damage to the file, the last good value stays, and each failure is reported once.
func TestABrokenFileChangesNothing(t *testing.T) {
	f := open(t, "good")
	f.write(t, "")
	for range 3 {
		f.later()
		if got := f.Get(); got != "good" {
			t.Errorf("got %q with an empty file", got)
		}
	}
	if err := os.Remove(f.path); err != nil {
		t.Fatal(err)
	}
	f.later()
	if got := f.Get(); got != "good" {
		t.Errorf("got %q without a file", got)
	}
	f.write(t, strings.Repeat("x", BytesMax+1))
	f.later()
	if got := f.Get(); got != "good" {
		t.Errorf("got %d bytes of a file that is too long", len(got))
	}
	if len(f.told) != 3 || slices.Contains(f.told, nil) {
		t.Errorf("told %v, want three failures", f.told)
	}
	f.write(t, "better")
	f.later()
	if got := f.Get(); got != "better" || f.told[3] != nil {
		t.Errorf("got %q, told %v", got, f.told)
	}
}

func TestOpenNeedsAGoodValue(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	parse := func([][]byte) (int, error) { return 0, nil }
	if _, err := Open([]string{missing}, parse, nil); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("a missing file gives %v", err)
	}
	if err := os.WriteFile(missing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no sense in it")
	if _, err := Open([]string{missing}, func([][]byte) (int, error) { return 0, broken }, nil); !errors.Is(err, broken) {
		t.Errorf("a file without sense gives %v", err)
	}
}

// Files that other users may write to, and things other than files, are refused at first, and change nothing later.
func TestOnlyFilesOfTheOwner(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no such permissions")
	}
	f := open(t, "one")
	for _, mode := range []os.FileMode{0o666, 0o620, 0o602} {
		f.write(t, fmt.Sprintf("from a stranger: %o", mode))
		if err := os.Chmod(f.path, mode); err != nil {
			t.Fatal(err)
		}
		f.now = f.now.Add(Interval)
		if got := f.Get(); got != "one" {
			t.Errorf("with the permissions %o the value is %q", mode, got)
		}
		if len(f.told) == 0 || f.told[len(f.told)-1] == nil || !strings.Contains(f.told[len(f.told)-1].Error(), "chmod go-w") {
			t.Errorf("with the permissions %o it tells %v", mode, f.told)
		}
		_, err := Open([]string{f.path}, func([][]byte) (string, error) { return "", nil }, nil)
		if err == nil || strings.Contains(err.Error(), "stranger") {
			t.Errorf("with the permissions %o it is opened, or shown: %v", mode, err)
		}
	}
	for _, mode := range []os.FileMode{0o644, 0o440} { // as in volumes of Kubernetes
		if err := os.Chmod(f.path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open([]string{f.path}, func([][]byte) (string, error) { return "", nil }, nil); err != nil {
			t.Errorf("with the permissions %o: %v", mode, err)
		}
	}
	for _, path := range []string{"/dev/zero", t.TempDir()} {
		if _, err := Open([]string{path}, func([][]byte) (string, error) { return "", nil }, nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
