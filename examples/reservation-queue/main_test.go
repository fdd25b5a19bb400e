package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestClerks: three clerks beside three routers, as the command of the documentation starts them, close each item once.
func TestClerks(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a router and runs it")
	}
	dir := t.TempDir()
	router, clerk := filepath.Join(dir, "router"), filepath.Join(dir, "clerk")
	for path, pkg := range map[string]string{router: "../../cmd/router", clerk: "."} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, pkg).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	dev := exec.CommandContext(ctx, router, "dev", "--rate", "10", "--", clerk)
	dev.Env = append(os.Environ(), "QUEUE_DIR="+filepath.Join(dir, "queue"))
	dev.Cancel = func() error { return dev.Process.Signal(os.Interrupt) }
	dev.WaitDelay = time.Minute
	var said strings.Builder
	dev.Stdout, dev.Stderr = &said, &said
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	q, err := openQueue(filepath.Join(dir, "queue"))
	if err != nil {
		t.Fatal(err)
	}
	for open := items; open > 0 && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		open = 0
		for i := range items {
			if !q.isClosed(fmt.Sprintf("item-%d", i)) {
				open++
			}
		}
	}
	stop()
	_ = dev.Wait() // it was interrupted
	for i := range items {
		item := fmt.Sprintf("item-%d", i)
		if lines := q.journal(item); !closedOnce(lines) {
			t.Errorf("%s: %q", item, lines)
		}
		if n := strings.Count(said.String(), "msg=closed item="+item+" "); n != 1 {
			t.Errorf("%s: the clerks say %d times that they closed it", item, n)
		}
	}
	if t.Failed() {
		t.Log(said.String())
	}
}

// closedOnce reports whether the clerk that began last has closed an item, and no other. On a busy machine, a clerk may
// lose an item in the middle of its work.
func closedOnce(lines []string) bool {
	begun := ""
	for i, line := range lines {
		what, fence, _ := strings.Cut(line, " ")
		switch last := i == len(lines)-1; {
		case what == "begun" && !last && fence > begun: // of fixed length
			begun = fence
		case what == "closed" && last:
			return fence == begun
		default:
			return false
		}
	}
	return false
}

// TestClosedOnce: the journals of two clerks at a time are found.
func TestClosedOnce(t *testing.T) {
	for lines, want := range map[string]bool{
		"begun 1;closed 1":                  true,
		"begun 1;begun 2;closed 2":          true,
		"":                                  false,
		"begun 1":                           false,
		"closed 1":                          false,
		"begun 1;closed 2":                  false,
		"begun 2;begun 1;closed 1":          false,
		"begun 1;closed 1;begun 2":          false,
		"begun 1;begun 2;closed 1":          false,
		"begun 1;begun 2;closed 1;TWICE 2":  false,
		"begun 1;begun 2;closed 2;closed 2": false,
	} {
		if got := closedOnce(strings.FieldsFunc(lines, func(r rune) bool { return r == ';' })); got != want {
			t.Errorf("%q: %t, want %t", lines, got, want)
		}
	}
}

// journal returns the lines of an item, in their order.
func (q *queue) journal(item string) (lines []string) {
	text, err := q.dir.ReadFile("journal")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, item+" "); is {
			lines = append(lines, strings.TrimSpace(rest))
		}
	}
	return lines
}
