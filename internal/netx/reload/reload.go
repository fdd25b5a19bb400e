// Package reload rereads small files when they have changed: certificates, keys and tokens that
// are replaced while the process runs.
//
// The files are not watched. Reading the value checks the files again if the last check is older
// than [Interval]. So there is no goroutine to stop, and it does not matter whether a file is
// overwritten, renamed, or replaced through the symbolic links of a Kubernetes volume.
//
// A change that cannot be read or parsed changes nothing: the last good value stays in use, and
// the failure is reported once.
package reload

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// Interval is the least time between two looks at the files of one [Value].
const Interval = time.Second

// BytesMax bounds the size of a file.
const BytesMax = 1 << 20

// Value is the parsed content of some files. It is safe for concurrent use. Make one with
// [Open].
type Value[T any] struct {
	paths   []string
	parse   func(contents [][]byte) (T, error)
	changed func(error)
	now     func() clock.Instant

	mu       sync.Mutex // guards the fields below, and is held while files are read
	contents [][]byte
	value    T
	looked   clock.Instant
	failure  string // of the last look, "" if it was good
}

// Open reads the files and parses their contents, which come in the order of the paths. Errors
// name files, and must not show their content; the same holds for errors of parse. An error
// here means that there is no value.
//
// changed is called for each new value, with nil, and for each failure that differs from the
// one before. It is called with a lock held: it must not call Get.
func Open[T any](paths []string, parse func(contents [][]byte) (T, error), changed func(error)) (*Value[T], error) {
	v := &Value[T]{paths: slices.Clone(paths), parse: parse, changed: changed, now: clock.Now}
	contents, err := v.read()
	if err != nil {
		return nil, err
	}
	if v.value, err = parse(contents); err != nil {
		return nil, err
	}
	v.contents, v.looked = contents, v.now()
	return v, nil
}

// Get returns the newest good value. It rereads the files if the last check is too old.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now := v.now(); now.Sub(v.looked) >= Interval {
		v.looked = now
		v.look()
	}
	return v.value
}

// look takes a change over, if there is a good one.
func (v *Value[T]) look() {
	contents, err := v.read()
	if err == nil && slices.EqualFunc(contents, v.contents, bytes.Equal) {
		v.failure = ""
		return
	}
	var value T
	if err == nil {
		value, err = v.parse(contents)
	}
	if err != nil {
		if v.failure != err.Error() {
			v.failure = err.Error()
			v.changed(err)
		}
		return
	}
	v.contents, v.value, v.failure = contents, value, ""
	v.changed(nil)
}

func (v *Value[T]) read() ([][]byte, error) {
	contents := make([][]byte, len(v.paths))
	for i, path := range v.paths {
		var err error
		if contents[i], err = readFile(path); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe could wait for ever, each time
		return nil, fmt.Errorf("%s is not a regular file, and must be readable more than once", path)
	}
	return Secret(path, BytesMax)
}

// writable are permissions with which other users than the owner could replace a file that
// controls access.
const writable = 0o022

// Secret reads a secret, or data to verify one, from a file or a pipe of at most bytesMax
// bytes. A file that the owner's group or all users may write to is refused, because a writer
// controls access. Read permissions are not checked: volumes of Secrets in Kubernetes are
// readable for all processes of their container.
func Secret(path string, bytesMax int) ([]byte, error) {
	return read(path, bytesMax, func(info os.FileInfo) error {
		if mode := info.Mode().Perm(); info.Mode().IsRegular() && mode&writable != 0 && runtime.GOOS != "windows" {
			return fmt.Errorf("%s has the permissions %#o, so others than its owner may write to it: chmod go-w %s", path, mode, path)
		}
		return nil
	})
}

// Bounded reads a file or a pipe of at most bytesMax bytes.
func Bounded(path string, bytesMax int) ([]byte, error) {
	return read(path, bytesMax, func(os.FileInfo) error { return nil })
}

func read(path string, bytesMax int, accept func(os.FileInfo) error) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the path comes from the settings
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := accept(info); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, int64(bytesMax)+1))
	if err != nil {
		return nil, err
	}
	if len(content) > bytesMax {
		return nil, fmt.Errorf("%s has more than %d bytes", path, bytesMax)
	}
	return content, nil
}
