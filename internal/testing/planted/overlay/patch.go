package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// hunk replaces lines of a file by others.
type hunk struct {
	name     string // patch, number, file and function
	old, new []string
}

// parse reads a patch, and returns the hunks of each file. A patch has no
// line numbers: a hunk belongs where its old lines are.
func parse(name, patch string) map[string][]hunk {
	files := map[string][]hunk{}
	var file string
	var hunks []hunk
	inHunk, count := false, 0
	for line := range strings.SplitSeq(strings.TrimSuffix(patch, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "--- a/"):
			inHunk = false
		case strings.HasPrefix(line, "+++ b/"):
			file = line[len("+++ b/"):]
			hunks = files[file]
		case strings.HasPrefix(line, "@@"):
			inHunk = true
			count++
			hunks = append(hunks, hunk{name: fmt.Sprintf("%s: hunk %d, %s:%s", name, count, file, line[2:])})
		case inHunk:
			h := &hunks[len(hunks)-1]
			if line == "" {
				line = " " // an editor has removed the blank at its end
			}
			if line[0] != '+' {
				h.old = append(h.old, line[1:])
			}
			if line[0] != '-' {
				h.new = append(h.new, line[1:])
			}
		}
		files[file] = hunks
	}
	delete(files, "")
	return files
}

// apply returns text with every hunk that fits. The old lines of a hunk must be at exactly one
// place; the error names each hunk of which this is not so.
func apply(text string, hunks []hunk) (string, error) {
	type change struct {
		at int
		hunk
	}
	lines := strings.Split(text, "\n")
	var changes []change
	var errs []error
	for _, h := range hunks {
		var places []int
		for i := range len(lines) - len(h.old) + 1 {
			if slices.Equal(lines[i:i+len(h.old)], h.old) {
				places = append(places, i)
			}
		}
		if len(places) == 1 {
			changes = append(changes, change{places[0], h})
		} else {
			errs = append(errs, fmt.Errorf("%s: %d places have these lines, want 1:\n\t%s", h.name, len(places), strings.Join(h.old, "\n\t")))
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return b.at - a.at }) // from the end, so that places stay where they are
	for i, c := range changes {
		if i > 0 && c.at+len(c.old) > changes[i-1].at {
			errs = append(errs, fmt.Errorf("%s: overlaps another hunk", c.name))
			continue
		}
		lines = slices.Replace(lines, c.at, c.at+len(c.old), c.new...)
	}
	return strings.Join(lines, "\n"), errors.Join(errs...)
}
