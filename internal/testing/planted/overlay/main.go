// Command overlay builds and tests the router with the switches of package planted, which
// patches insert into copies of its files. Run it in the root of the repository:
//
//	go run ./internal/testing/planted/overlay                       # does every patch apply?
//	go run ./internal/testing/planted/overlay build ./cmd/router    # go build, with the switches; test and vet work, too
//	go run ./internal/testing/planted/overlay edit                  # write the patched files to .planted
//	go run ./internal/testing/planted/overlay refresh               # write the patches anew from there
//
// A hunk of a patch applies wherever its old lines are, regardless of line numbers, but only if they
// occur exactly once. An error names each hunk that does not apply.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	patchesDir = "internal/testing/planted/patches"
	editDir    = ".planted"
	cleanExt   = ".clean" // of the file that a copy in editDir was made from
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		_, err := patchedFiles()
		return err
	case args[0] == "edit":
		return edit()
	case args[0] == "refresh":
		return refresh(ctx)
	}
	files, err := patchedFiles()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ringfence-planted-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a failure leaves only temporary files
	list, err := writeOverlay(dir, files)
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", slices.Insert(args, 1, "-overlay="+list)...) //nolint:gosec // the command comes from the command line
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	return command.Run()
}

// patchedFiles returns the text of each patched file, with the hunks that apply.
func patchedFiles() (map[string]string, error) {
	patches, err := filepath.Glob(filepath.Join(patchesDir, "*.patch"))
	if err != nil || len(patches) == 0 {
		return nil, errors.Join(err, fmt.Errorf("%s has no patch: is this the root of the repository?", patchesDir))
	}
	files := map[string]string{}
	var errs []error
	for _, patch := range patches {
		text, err := os.ReadFile(patch) //nolint:gosec // a patch of this repository
		errs = append(errs, err)
		for name, hunks := range parse(filepath.Base(patch), string(text)) {
			clean, err := os.ReadFile(name) //nolint:gosec // a file of this repository
			if _, twice := files[name]; err != nil || twice {
				errs = append(errs, fmt.Errorf("%s: %s is not there, or another patch has it", patch, name))
				continue
			}
			files[name], err = apply(string(clean), hunks)
			errs = append(errs, err)
		}
	}
	return files, errors.Join(errs...)
}

// writeOverlay writes the files to dir, and returns the name of the list that go build -overlay takes.
func writeOverlay(dir string, files map[string]string) (string, error) {
	replace := map[string]string{}
	for name, text := range files {
		from, err := filepath.Abs(name)
		replace[from] = filepath.Join(dir, name)
		if err := errors.Join(err, write(replace[from], text)); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	list := filepath.Join(dir, "overlay.json")
	return list, errors.Join(err, write(list, string(text)))
}

// edit writes the patched files, each with the file that it was made from, to editDir.
func edit() error {
	if _, err := os.Stat(editDir); err == nil {
		return fmt.Errorf("%s is there already: make planted-refresh takes it over, and rm -r %s gives it up", editDir, editDir)
	}
	files, failed := patchedFiles()
	for name, text := range files {
		clean, err := os.ReadFile(name) //nolint:gosec // a file of this repository
		copied := filepath.Join(editDir, name)
		if err := errors.Join(err, write(copied, text), write(copied+cleanExt, string(clean))); err != nil {
			return err
		}
	}
	return failed
}

// refresh writes the patches anew, so that they make the files of editDir, and removes it.
// A file goes to the patch that is named after its folder.
func refresh(ctx context.Context) error {
	patches := map[string]string{}
	err := filepath.WalkDir(editDir, func(copied string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(copied) != ".go" {
			return err
		}
		name, err := filepath.Rel(editDir, copied)
		if err != nil {
			return err
		}
		section, err := diff(ctx, filepath.ToSlash(name), copied)
		patches[filepath.Base(filepath.Dir(name))+".patch"] += section
		return err
	})
	if err == nil {
		err = os.RemoveAll(patchesDir)
	}
	for name, patch := range patches {
		if err == nil && patch != "" {
			err = write(filepath.Join(patchesDir, name), patch)
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(editDir)
}

// contextMax bounds the lines of context that a patch may need to make a place unique.
const contextMax = 20

// diff returns the part of a patch that makes the copy from the file of this name, with as little
// context as is enough.
func diff(ctx context.Context, name, copied string) (string, error) {
	before, err := os.ReadFile(copied + cleanExt) //nolint:gosec // a file of this repository
	clean, err2 := os.ReadFile(name)              //nolint:gosec // the same
	edited, err3 := os.ReadFile(copied)           //nolint:gosec // the same
	if errors.Is(err, fs.ErrNotExist) {           // no patch changes it yet
		before, err = clean, nil
	}
	if err := errors.Join(err, err2, err3); err != nil {
		return "", err
	}
	if string(before) != string(clean) {
		return "", fmt.Errorf("%s has changed since make planted-edit: save your changes in %s, and begin again", name, copied)
	}
	for n := 1; n <= contextMax; n++ {
		command := exec.CommandContext(ctx, "git", "diff", "--no-index", "--no-ext-diff", "--no-color", fmt.Sprint("-U", n), name, copied) //nolint:gosec // two files
		out, err := command.Output()
		if len(out) == 0 {
			return "", err // no difference, or no git
		}
		_, hunks, _ := strings.Cut(string(out), "\n@@")
		section := fmt.Sprintf("--- a/%s\n+++ b/%s\n%s", name, name, lineNumbers.ReplaceAllString("@@"+hunks, "@@"))
		if text, err := apply(string(clean), parse("", section)[name]); err == nil && text == string(edited) {
			return section, nil
		}
	}
	return "", fmt.Errorf("%s: %d lines around a change do not show where it belongs", name, contextMax)
}

// lineNumbers begin a hunk. A patch leaves them out, since they would change with each line that anybody adds.
var lineNumbers = regexp.MustCompile(`(?m)^@@ -[0-9,]+ \+[0-9,]+ @@`)

func write(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644) //nolint:gosec // for everybody, as other files of the repository are
}
