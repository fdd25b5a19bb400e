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
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
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
		if lines := q.journal(item); len(lines) != 2 || !strings.HasPrefix(lines[0], "begun ") || !strings.HasPrefix(lines[1], "closed ") || lines[0][6:] != lines[1][7:] {
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
