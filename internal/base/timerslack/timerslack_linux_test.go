package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// asProgram makes the test binary a program that widens its slack, and says what it has then.
const asProgram = "TIMERSLACK_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	if err := Widen(); err != nil {
		panic(err)
	}
	others := make(chan time.Duration)
	go func() { // on a thread that the runtime has started meanwhile
		runtime.LockOSThread()
		slack, _ := Get()
		others <- slack
	}()
	runtime.LockOSThread()
	slack, err := Get()
	fmt.Println(os.Getpid(), strings.Join(os.Args[1:], " "), slack, <-others, err)
	restore := Narrow()
	narrow, _ := Get()
	child, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()
	restore()
	wide, _ := Get()
	fmt.Println(narrow, wide, strings.TrimSpace(string(child)), err)
}

// program starts it with a slack, and returns what it says.
func program(t *testing.T, slack time.Duration) (says string, pid int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := Get()
	if err != nil {
		t.Fatal(err)
	}
	if err := set(slack); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = set(before) }()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "a", "b c")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out), cmd.Process.Pid
}

// TestWiden: the program runs anew with the wide slack, in the same process and with the same arguments, and starts others without it.
func TestWiden(t *testing.T) {
	says, pid := program(t, Default)
	if want := fmt.Sprintf("%d a b c 1ms 1ms <nil>\n50µs 1ms 50000 <nil>\n", pid); says != want {
		t.Errorf("it says\n%swant\n%s", says, want)
	}
}

// TestWidenLeavesAnotherSlackAlone: somebody has chosen it.
func TestWidenLeavesAnotherSlackAlone(t *testing.T) {
	says, pid := program(t, 7*time.Microsecond)
	if want := fmt.Sprintf("%d a b c 7µs 7µs <nil>\n50µs 7µs 50000 <nil>\n", pid); says != want {
		t.Errorf("it says\n%swant\n%s", says, want)
	}
}
