package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// asProgram makes the test binary a program that widens its slack, and says what it has then. With the value gone it removes its file before.
const (
	asProgram = "TIMERSLACK_TEST"
	gone      = "gone"
)

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv(asProgram) == gone {
		runtime.LockOSThread()
		if err := os.Remove(os.Args[0]); err != nil {
			panic(err)
		}
		err := Widen()
		slack, _ := get()
		fmt.Println(slack, err)
		return
	}
	if err := Widen(); err != nil {
		panic(err)
	}
	others := make(chan time.Duration)
	go func() { // on a thread that the runtime has started meanwhile
		runtime.LockOSThread()
		slack, _ := get()
		others <- slack
	}()
	runtime.LockOSThread()
	slack, err := get()
	fmt.Println(os.Getpid(), strings.Join(os.Args[1:], " "), slack, <-others, err)
	restore := Narrow()
	narrow, _ := get()
	child, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()
	restore()
	wide, _ := get()
	fmt.Println(narrow, wide, strings.TrimSpace(string(child)), err)
}

// program starts a file as the program, with a slack, and returns what it says.
func program(t *testing.T, file, as string, slack time.Duration) (says string, pid int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := get()
	if err != nil {
		t.Fatal(err)
	}
	if err := set(slack); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = set(before) }()
	cmd := exec.CommandContext(t.Context(), file, "a", "b c")
	cmd.Env = append(os.Environ(), asProgram+"="+as)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out), cmd.Process.Pid
}

// TestWiden: the program runs anew with the wide slack, in the same process and with the same arguments, and starts others without it.
func TestWiden(t *testing.T) {
	says, pid := program(t, os.Args[0], "there", Default)
	if want := fmt.Sprintf("%d a b c 1ms 1ms <nil>\n50µs 1ms 50000 <nil>\n", pid); says != want {
		t.Errorf("it says\n%swant\n%s", says, want)
	}
}

// TestWidenLeavesAnotherSlackAlone: somebody has chosen it.
func TestWidenLeavesAnotherSlackAlone(t *testing.T) {
	says, pid := program(t, os.Args[0], "there", 7*time.Microsecond)
	if want := fmt.Sprintf("%d a b c 7µs 7µs <nil>\n50µs 7µs 50000 <nil>\n", pid); says != want {
		t.Errorf("it says\n%swant\n%s", says, want)
	}
}

// TestWidenThatCannotStartTheProgram: the process goes on with the slack that it had, and an error that says why.
func TestWidenThatCannotStartTheProgram(t *testing.T) {
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, binary, 0o700); err != nil {
		t.Fatal(err)
	}
	says, _ := program(t, file, gone, Default)
	if !strings.HasPrefix(says, "50µs timer slack: cannot start "+file) || !strings.Contains(says, "no such file") {
		t.Errorf("it says %s", says)
	}
}
