//go:build unix

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// locks are processes of router lock that use one router, which is a process too.
type locks struct {
	*pod
	dir string // of files, and the mark of all processes
}

func newLocks(t *testing.T) *locks {
	t.Helper()
	l := &locks{newPod(t, ""), t.TempDir()}
	l.sidecar = l.start([]string{"RINGFENCE__OWNERSHIP__PROFILE=" + cmp.Or(os.Getenv("LOCK_TEST_PROFILE"), "calm")}, "demo", "member", "--config", l.file, "--broker", l.address)
	l.startApp() // a router without an application owns nothing
	l.nothingIsLeft()
	eventually.NoError(t, eventually.Most, "the router grants a key", func() error {
		if c := l.lock("--wait", "1s", "first", "--", "true"); l.code(c) != exitOK {
			return fmt.Errorf("exit code %d: %s", c.ProcessState.ExitCode(), c.shown)
		}
		return nil
	})
	return l
}

// lock starts router lock.
func (l *locks) lock(args ...string) *podProcess {
	l.t.Helper()
	return l.start([]string{"RINGFENCE_APP_ENDPOINT=" + l.endpoint, "RINGFENCE_DEMO_FOLDER=" + l.dir, "DIR=" + l.dir}, append([]string{"lock"}, args...)...)
}

// nothingIsLeft looks at the end of the test whether all processes have ended, by the mark in their environments.
func (l *locks) nothingIsLeft() {
	l.t.Cleanup(func() {
		eventually.NoError(l.t, eventually.Most, "all processes end", func() error {
			if left := l.processes(); len(left) > 0 {
				return fmt.Errorf("left: %v", left)
			}
			return nil
		})
	})
}

// processes are those of router lock and of its commands, by number: their command lines.
func (l *locks) processes() map[int]string {
	all := map[int]string{}
	paths, err := filepath.Glob("/proc/[0-9]*/environ") // none but on Linux
	if err != nil {
		l.t.Fatal(err)
	}
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte("RINGFENCE_DEMO_FOLDER="+l.dir+"\x00")) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // digits, by the pattern
		if line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline")); err == nil && len(line) > 0 {
			all[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return all
}

// watchdogs are the processes that watch over commands.
func (l *locks) watchdogs() (pids []int) {
	for pid, line := range l.processes() {
		if strings.Contains(line, " "+lockWatchdogRole+" ") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// times are the numbers in a file, one a line, in nanoseconds.
func (l *locks) times(name string) (all []int64) {
	l.t.Helper()
	text, _ := os.ReadFile(filepath.Join(l.dir, name)) // it may not be there yet
	for line := range strings.Lines(string(text)) {
		if n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil && strings.HasSuffix(line, "\n") {
			all = append(all, n)
		}
	}
	return all
}

// begins waits until a command has written into its files.
func (l *locks) begins(c *podProcess, names ...string) {
	l.t.Helper()
	for _, name := range names {
		eventually.NoError(l.t, eventually.Most, name+" begins", func() error {
			if !c.lives() {
				return fmt.Errorf("%w: it has ended: %s", eventually.ErrInVain, c.shown)
			}
			if len(l.times(name)) < 3 {
				return fmt.Errorf("processes: %v", l.processes())
			}
			return nil
		})
	}
}

// stubborn is a command that does not end by itself, and its child: both write down when they run.
const stubborn = `trap 'date +%s%N >> $DIR/told' TERM
( trap '' TERM; while :; do date +%s%N >> $DIR/grandchild; sleep 0.01; done ) &
while :; do date +%s%N >> $DIR/child; sleep 0.01; done`

// TestLock: the exit codes, what a command gets, and what becomes of it.
func TestLock(t *testing.T) {
	t.Parallel()
	l := newLocks(t)
	plain := write(t, filepath.Join(l.dir, "plain"), "no program")
	for name, test := range map[string]struct {
		args  []string
		code  int
		shows string
	}{
		"it ends well":       {[]string{"user-1", "--", "echo", "done"}, exitOK, "done\n"},
		"it fails":           {[]string{"user-1", "--", "sh", "-c", "exit 3"}, 3, ""},
		"its flags":          {[]string{"-n", "user-1", "--", "sh", "-c", `echo "$0 $*"`, "-n", "--wait", "--"}, exitOK, "-n --wait --\n"},
		"killed":             {[]string{"user-1", "--", "sh", "-c", "kill -9 $$"}, exitSignal + 9, ""},
		"not there":          {[]string{"user-1", "--", "no-such-command"}, exitNoCommand, "no-such-command cannot be run: "},
		"no such path":       {[]string{"user-1", "--", "/no/such/command"}, exitNoCommand, "cannot be run: "},
		"no program":         {[]string{"user-1", "--", plain}, exitNotExec, "cannot be run: permission denied"},
		"its environment":    {[]string{"user-2", "--", "sh", "-c", "echo $RINGFENCE_KEY $RINGFENCE_KEY_BASE64; test $RINGFENCE_FENCE = $(printf %019d.%020d $RINGFENCE_FENCING_TOKEN $RINGFENCE_TURN)"}, exitOK, "user-2 dXNlci0y\n"},
		"a binary key":       {[]string{"--base64", "/wA=", "--", "sh", "-c", "echo ${RINGFENCE_KEY-none} $RINGFENCE_KEY_BASE64"}, exitOK, "none /wA=\n"},
		"a group of its own": {[]string{"user-1", "--", "sh", "-c", `test $(ps -o pgid= -p $$) = $$`}, exitOK, ""},
		"no router":          {[]string{"--endpoint=127.0.0.1:1", "user-1", "--", "true"}, exitNotLocked, "the key was not obtained (unreachable): "},
		"no command":         {[]string{"user-1"}, exitUsage, "takes a KEY, then --"},
		"no --":              {[]string{"user-1", "true"}, exitUsage, "takes a KEY, then --"},
		"two keys":           {[]string{"user-1", "user-2", "--", "true"}, exitUsage, "takes a KEY, then --"},
		"no key":             {[]string{"", "--", "true"}, exitUsage, "KEY has 0 bytes"},
		"a long wait":        {[]string{"--wait=2h", "user-1", "--", "true"}, exitUsage, "--wait = 2h0m0s, want 0 to 1h0m0s"},
		"a short ttl":        {[]string{"--ttl=1s", "user-1", "--", "true"}, exitUsage, "--ttl = 1s, want 5s to 5m0s"},
		"a ttl":              {[]string{"--ttl=5s", "user-1", "--", "echo", "covered"}, exitOK, "covered\n"},
		"to wait or not":     {[]string{"--wait=1s", "-n", "user-1", "--", "true"}, exitUsage, "exclude each other"},
		"a bad endpoint":     {[]string{"--endpoint=nowhere", "user-1", "--", "true"}, exitUsage, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			if c := l.lock(test.args...); l.code(c) != test.code || !strings.Contains(c.shown.String(), test.shows) {
				t.Errorf("exit code %d, %q; want %d, %q", c.ProcessState.ExitCode(), c.shown, test.code, test.shows)
			}
		})
	}
	t.Run("no wait", func(t *testing.T) {
		holder := l.lock("user-3", "--", "sh", "-c", `trap 'exit 7' TERM; while :; do date +%s%N >> $DIR/holder; sleep 0.01; done`)
		l.begins(holder, "holder")
		began := clock.Now()
		c := l.lock("-n", "user-3", "--", "touch", filepath.Join(l.dir, "wrong"))
		if l.code(c) != exitNotLocked || !strings.Contains(c.shown.String(), "the key was not obtained (timeout)") {
			t.Errorf("exit code %d, %q", c.ProcessState.ExitCode(), c.shown)
		}
		t.Logf("-n was answered after %v", clock.Now().Sub(began))
		if out, says, code := cli(t, "locate", "user-3", "--admin="+l.admin); code != exitOK || !strings.Contains(out, "is reserved, for ") || !strings.Contains(out, "0 events wait behind it") {
			t.Errorf("locate: exit code %d: %s%s", code, out, says)
		}
		waiting := l.lock("user-3", "--", "true")
		eventually.NoError(t, eventually.Most, "it waits", func() error {
			out, _, _ := cli(t, "locate", "user-3", "--admin="+l.admin)
			if !strings.Contains(out, "1 call or reservation waits") {
				return errors.New(out)
			}
			return nil
		})
		l.signal(waiting, syscall.SIGINT)
		if code := l.code(waiting); code != exitSignal+2 {
			t.Errorf("interrupted while it waits: exit code %d, %q", code, waiting.shown)
		}
		l.signal(holder, syscall.SIGTERM)
		if code := l.code(holder); code != 7 {
			t.Errorf("told to end: exit code %d, %q", code, holder.shown)
		}
		if _, err := os.Stat(filepath.Join(l.dir, "wrong")); err == nil {
			t.Error("a command without its key has run")
		}
	})
	t.Run("what it leaves behind", func(t *testing.T) {
		c := l.lock("user-4", "--", "sh", "-c", `( while :; do date +%s%N >> $DIR/behind; sleep 0.01; done ) & while ! [ -s $DIR/behind ]; do sleep 0.01; done`)
		if code := l.code(c); code != exitOK {
			t.Errorf("exit code %d: %s", code, c.shown)
		}
		n := len(l.times("behind"))
		time.Sleep(300 * time.Millisecond)
		if now := len(l.times("behind")); now != n {
			t.Errorf("it still runs after the key is free: %d lines, then %d", n, now)
		}
	})
}

// TestLocksTakeTurns: commands with one key never overlap.
func TestLocksTakeTurns(t *testing.T) {
	t.Parallel()
	l := newLocks(t)
	const n = 8
	var all []*podProcess
	for range n {
		all = append(all, l.lock("--wait", "1m", "queue", "--", "sh", "-c", `echo S >> $DIR/turns; sleep 0.05; echo E >> $DIR/turns`))
	}
	for _, c := range all {
		if code := l.code(c); code != exitOK {
			t.Errorf("exit code %d: %s", code, c.shown)
		}
	}
	if turns := read(t, filepath.Join(l.dir, "turns")); turns != strings.Repeat("S\nE\n", n) {
		t.Errorf("the commands ran in this order: %q", turns)
	}
}

// TestLockEndsItsCommandInTime: whatever happens to router lock, its command and what that has started are dead before another one can have the key.
func TestLockEndsItsCommandInTime(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc, and a date with nanoseconds")
	}
	kill := func(l *locks, c *podProcess) { l.signal(c, syscall.SIGKILL) }
	for name, test := range map[string]struct {
		does  func(*locks, *podProcess)
		code  int // -1: a signal
		says  string
		flags []string
	}{
		"killed":           {kill, -1, "", nil},
		"killed, with ttl": {kill, -1, "", []string{"--ttl=5s"}},
		"stopped": {func(l *locks, c *podProcess) {
			l.signal(c, syscall.SIGSTOP)
			time.Sleep(5 * time.Second) // longer than any permission
			l.signal(c, syscall.SIGCONT)
		}, exitLost, "the key was lost while the command ran: ", nil},
		"stopped, with ttl": {func(l *locks, c *podProcess) {
			l.signal(c, syscall.SIGSTOP)
			time.Sleep(6 * time.Second)
			l.signal(c, syscall.SIGCONT)
		}, exitLost, "the key was lost while the command ran: ", []string{"--ttl=5s"}},
		"without its watchdog":    {func(l *locks, _ *podProcess) { l.toWatchdog(syscall.SIGKILL) }, exitLost, "its watchdog has ended", nil},
		"with a stopped watchdog": {func(l *locks, _ *podProcess) { l.toWatchdog(syscall.SIGSTOP) }, exitLost, "its watchdog does not answer", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocks(t)
			c := l.lock(append(test.flags, "user-1", "--", "sh", "-c", stubborn)...)
			l.begins(c, "child", "grandchild")
			time.Sleep(700 * time.Millisecond) // at least one renewal, if there is no ttl
			at := time.Now().UnixNano()
			next := make(chan *podProcess, 1)
			next <- l.lock("user-1", "--", "sh", "-c", `date +%s%N > $DIR/next`)
			test.does(l, c)
			if code := l.code(c); code != test.code || !strings.Contains(c.shown.String(), test.says) {
				t.Errorf("exit code %d, %q; want %d, %q", code, c.shown, test.code, test.says)
			}
			second := <-next
			if code := l.code(second); code != exitOK {
				t.Fatalf("the next one: exit code %d: %s", code, second.shown)
			}
			l.dead(at, l.times("next")[0])
		})
	}
}

// toWatchdog signals the only watchdog there is.
func (l *locks) toWatchdog(s syscall.Signal) {
	l.t.Helper()
	var pids []int
	eventually.True(l.t, "there is one watchdog", func() bool { pids = l.watchdogs(); return len(pids) == 1 })
	if err := syscall.Kill(pids[0], s); err != nil {
		l.t.Fatal(err)
	}
}

// dead checks that the command, its child and what they have written ended before the next one began. All times are of the wall clock.
func (l *locks) dead(at, next int64) {
	l.t.Helper()
	for _, name := range []string{"child", "grandchild"} {
		last := slices.Max(l.times(name))
		l.t.Logf("%s: it ran for %v after the fault, and the next holder began %v later", name, time.Duration(last-at), time.Duration(next-last))
		if last >= next {
			l.t.Errorf("%s ran for %v beside the next holder", name, time.Duration(last-next))
		}
	}
	if told := l.times("told"); len(told) > 0 {
		l.t.Logf("SIGTERM came %v after the fault", time.Duration(told[0]-at))
	}
}

// TestLockLosesItsRouter: the command gets SIGTERM, and is dead by the deadline.
func TestLockLosesItsRouter(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs a date with nanoseconds")
	}
	l := newLocks(t)
	c := l.lock("user-1", "--", "sh", "-c", stubborn)
	l.begins(c, "child", "grandchild")
	time.Sleep(700 * time.Millisecond)
	at := time.Now().UnixNano()
	l.signal(l.sidecar, syscall.SIGKILL)
	if code := l.code(c); code != exitLost || !strings.Contains(c.shown.String(), "the key was lost while the command ran: ") {
		t.Errorf("exit code %d: %s", code, c.shown)
	}
	if len(l.times("told")) == 0 {
		t.Error("the command got no SIGTERM")
	}
	const lease = 4 * time.Second // and no deadline is later
	l.dead(at, at+int64(lease))
}

// TestLockThatCannotStart: a command that cannot begin, since router itself starts no process any more, has not run, and that is the exit code.
func TestLockThatCannotStart(t *testing.T) {
	t.Parallel()
	l := newLocks(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "router-of-its-own")
	if err := os.Link(self, own); err != nil {
		t.Skipf("no links here: %v", err)
	}
	holder := l.lock("user-1", "--", "sh", "-c", `while :; do date +%s%N >> $DIR/holder; sleep 0.01; done`)
	l.begins(holder, "holder")
	shown := &written.Text{}
	c := exec.CommandContext(t.Context(), own, "lock", "--wait=1m", "user-1", "--", "touch", filepath.Join(l.dir, "wrong"))
	c.Env = append(os.Environ(), "RINGFENCE_APP_ENDPOINT="+l.endpoint, "RINGFENCE_DEMO_FOLDER="+l.dir)
	c.Stdout, c.Stderr = shown, shown
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.NoError(t, eventually.Most, "it waits", func() error {
		if out, _, _ := cli(t, "locate", "user-1", "--admin="+l.admin); !strings.Contains(out, "1 call or reservation waits") {
			return errors.New(out)
		}
		return nil
	})
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	l.signal(holder, syscall.SIGTERM)
	_ = c.Wait() // its code is looked at
	if code := c.ProcessState.ExitCode(); code != exitNotLocked || !strings.Contains(shown.String(), "the command has not run: its watchdog cannot be started: ") {
		t.Errorf("exit code %d, %q", code, shown)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "wrong")); err == nil {
		t.Error("the command has run")
	}
}

// TestLockHeedsAnEarlySignal: a signal that comes before the command listens for signals ends it all the same.
func TestLockHeedsAnEarlySignal(t *testing.T) {
	for _, early := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		ctx, stop := signal.NotifyContext(t.Context(), early)
		if err := syscall.Kill(os.Getpid(), early); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		root := rootCommand()
		root.SetArgs([]string{"lock", "--endpoint=127.0.0.1:1", "user-1", "--", "true"})
		if code := exitCode(root.ExecuteContext(ctx)); code != exitSignal+int(early) {
			t.Errorf("%v: exit code %d, want %d", early, code, exitSignal+int(early))
		}
		stop()
	}
}

// TestWatchdog: what a watchdog makes of what it is told.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	const now = clock.Instant(time.Hour)
	at := func(d time.Duration) string { return fmt.Sprintf("%s %d", tellUntil, int64(now.Add(d))) }
	var d watchdog
	if d.late(now) {
		t.Error("it is late before it has a deadline")
	}
	for _, line := range []string{at(2 * time.Second), at(time.Second), "until", "until -5", "until x", "group 0", "group 1", "group -7", "nonsense 5", ""} {
		if d.hear(line) {
			t.Errorf("%q ends it", line)
		}
	}
	if d.group != 0 || d.deadline != now.Add(2*time.Second) {
		t.Errorf("%+v: a deadline moved back, or nonsense was believed", d)
	}
	if d.hear("group 4711"); d.group != 4711 {
		t.Errorf("%+v", d)
	}
	if last := now.Add(2*time.Second - lockKill); d.late(last-1) || !d.late(last) {
		t.Error("it is not late as soon as it should be")
	}
	if d.abandoned(now); d.deadline != now.Add(lockOrphanMax) {
		t.Errorf("%+v: an orphan goes on for long", d)
	}
	if !d.hear(tellEnd) {
		t.Error("the end does not end it")
	}
}

// TestWatchdogKillsInTime: a watchdog whose parent says nothing more kills at the deadline it knows, and no later.
func TestWatchdogKillsInTime(t *testing.T) {
	t.Parallel()
	// How far its clock is ahead is known by when its answers are read, which a busy machine does late: then it kills too early, which is safe.
	const early = 500 * time.Millisecond
	// A busy machine may also see an end late, but hardly all five.
	first, latest := time.Hour, -time.Hour
	for range 5 {
		d, err := startDog()
		if err != nil {
			t.Fatal(err)
		}
		child := exec.CommandContext(t.Context(), "sleep", "60")
		child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		deadline := clock.Now().Add(time.Second)
		d.say(tellGroup, int64(child.Process.Pid)) // first: on a busy machine a watchdog that knows no group may be late, and ends
		d.say(tellUntil, int64(deadline.Add(d.ahead)))
		_ = child.Wait() // it is killed
		late := clock.Now().Sub(deadline)
		first, latest = min(first, late), max(latest, late)
		if late < -lockKill-early {
			t.Errorf("it has killed %v before the deadline", -late)
		}
		d.end()
	}
	t.Logf("the ends were seen %v to %v after their deadlines", first, latest)
	if first > time.Second || latest > 45*time.Second { // the child ends by itself later
		t.Errorf("it has killed %v to %v after the deadlines", first, latest)
	}
}

// TestLockOutlivesTheOwner: a command that runs under lock --ttl goes on when the owner of its key is killed, nobody else gets the key meanwhile, and it
// is free after the command.
func TestLockOutlivesTheOwner(t *testing.T) {
	t.Parallel()
	l := newLocks(t)
	q := *l.pod
	dir, ports := t.TempDir(), freePorts(t, 3)
	q.listen, q.endpoint = procgroup.AppAddress(filepath.Join(dir, "app.sock"), ports[2])
	q.admin, q.file, q.name, q.gossip, q.seeds = procgroup.Loopback(ports[1]), filepath.Join(dir, "router.yaml"), "pod-1", procgroup.Loopback(ports[0]), []string{l.gossip}
	q.writeSettings("")
	q.startSidecar()
	q.startApp()
	var key string
	eventually.NoError(t, eventually.Most, "the other router owns a key", func() error {
		for i := range 20 {
			key = fmt.Sprintf("user-%d", i)
			if out, _, code := cli(t, "locate", key, "--admin="+l.admin); code == exitOK && strings.Contains(out, "pod-1") {
				return nil
			}
		}
		return errors.New("it owns none of them")
	})
	holder := l.lock("--ttl=15s", "--wait=20s", key, "--", "sh", "-c", `for i in $(seq 120); do date +%s%N >> $DIR/holder; sleep 0.1; done; date +%s%N >> $DIR/done`)
	l.begins(holder, "holder")
	if err := q.sidecar.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-q.sidecar.ended
	following := func() *podProcess { return l.lock("--wait=1m", key, "--", "sh", "-c", `date +%s%N >> $DIR/next`) }
	next := following()
	if code := l.code(holder); code != exitOK {
		t.Fatalf("exit code %d: %s", code, holder.shown)
	}
	code := l.code(next)
	for code == exitNotLocked && strings.Contains(next.shown.String(), "by the time that it could") { // a busy machine starts its watchdog slowly
		next = following()
		code = l.code(next)
	}
	if code != exitOK {
		t.Errorf("the next one: exit code %d: %s", code, next.shown)
	}
	if done, began := l.times("done"), l.times("next"); len(done) != 1 || len(began) != 1 || began[0] < done[0] {
		t.Errorf("the command was done at %v, and the next one ran at %v", done, began)
	}
}
