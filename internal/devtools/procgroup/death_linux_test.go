package procgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/testing/eventually"
)

// The test binary is the parent or the child of a group if it is started as one.
const (
	asParent = "parent"
	asChild  = "child"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == asChild:
		FollowParent(os.Stdin, os.Exit)
		fmt.Println(os.Getpid())
		select {}
	case len(os.Args) > 1 && os.Args[1] == asParent:
		parent()
	}
	os.Exit(m.Run())
}

// parent starts two children and stops one of them, prints the numbers of both processes, and waits for its end.
func parent() {
	self, err := os.Executable()
	g := New(Config{Executable: self, DieWithParent: true, Stderr: func(string) io.Writer { return os.Stderr }, Ended: func(*Process, error) {}})
	for i := range 2 {
		pids := make(chan string, 1)
		child, errStart := g.Start("child", func(line string) { pids <- line }, asChild)
		if err != nil || errStart != nil {
			fmt.Fprintln(os.Stderr, err, errStart)
			os.Exit(1)
		}
		pid := <-pids
		if i == 0 {
			if _, err := child.Pause(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		fmt.Println(pid)
	}
	select {}
}

// TestDieWithParent: children end with a parent that is killed, also one that is stopped and reads nothing.
func TestDieWithParent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), self, asParent)
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var children []string
	lines := bufio.NewScanner(stdout)
	for len(children) < 2 && lines.Scan() {
		children = append(children, lines.Text())
	}
	if len(children) != 2 || state(children[0]) != "T" || state(children[1]) == "" {
		t.Fatalf("the children are %v, in the states %q", children, []string{state(children[0]), state(children[1])})
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // it was killed
	eventually.NoError(t, eventually.Most, "the children end", func() error {
		for _, pid := range children {
			if s := state(pid); s != "" && s != "Z" && s != "X" {
				return fmt.Errorf("%s is in the state %s", pid, s)
			}
		}
		return nil
	})
}

// state returns the state of a process as the system shows it; "" if there is no such process.
func state(pid string) string {
	if _, err := strconv.Atoi(pid); err != nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}
