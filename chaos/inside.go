//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// scratchPrefix begins the names of the directories that runs work in.
const scratchPrefix = "ringfence-chaos-"

// waitMax bounds the end of the inner process after it was signalled.
const waitMax = time.Minute

// childError is the exit code of the inner process, which has printed the reason.
type childError struct{ code int }

func (e *childError) Error() string { return fmt.Sprint("ended with code ", e.code) }

// runOutside does the work that needs the host's network, and runs the rest in new process,
// network and mount namespaces. When this process ends for any reason, the kernel ends the
// others with it, and removes the bridge and the links.
func runOutside(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := needs(); err != nil {
		return err
	}
	sweep()
	dir, err := os.MkdirTemp("", scratchPrefix)
	if err != nil {
		return err
	}
	lock, err := claim(dir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()          // with it goes the lock
	if err := os.Chmod(dir, 0o755); err != nil { // Postgres runs as another user
		return err
	}
	fmt.Fprintf(os.Stderr, "chaos: building into %s\n", dir)
	if err := prepare(ctx, o, dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	err = enter(ctx, dir, args)
	return errors.Join(err, settleScratch(o, dir, err))
}

// needs reports missing tools.
func needs() error {
	var errs []error
	if os.Geteuid() != 0 {
		errs = append(errs, errors.New("needs root, for network namespaces: run it as root, or with sudo"))
	}
	for _, tool := range []struct{ command, pack string }{
		{"ip", "iproute2"}, {"nft", "nftables"}, {"redis-server", "redis-server"}, {"java", "openjdk-17-jre-headless"},
	} {
		if _, err := exec.LookPath(tool.command); err != nil {
			errs = append(errs, fmt.Errorf("needs %s: apt-get install %s", tool.command, tool.pack))
		}
	}
	return errors.Join(errs...)
}

// claim locks dir for as long as the file is open, so that sweep recognises live runs.
func claim(dir string) (*os.File, error) {
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	return lock, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// sweep removes the directories of runs that were killed. Their processes and their
// network went with them. Directories that a failed run left for its reader stay:
// they hold no lock.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*")) // the pattern is fine
	for _, dir := range dirs {
		lock, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir) // an error could not be reported here
		}
		_ = lock.Close() // it was only read
	}
}

// prepare builds the router and the proxies, and fetches Pulsar: all that needs the
// network of the machine.
func prepare(ctx context.Context, o options, dir string) error {
	var tags []string
	if o.slewed() {
		tags = append(tags, "slewclock")
	}
	with := "-tags=" + strings.Join(tags, ",")
	router := []string{"build", with, "-o", filepath.Join(dir, "router"), "./cmd/router"}
	if o.Control == controlNoWait {
		router = slices.Concat([]string{"run", "./internal/testing/planted/overlay"}, router)
	}
	builds := [][]string{router}
	if o.slewed() { // the applications' clocks are steered too; ours are not
		builds = append(builds, []string{"build", with, "-o", filepath.Join(dir, "app"), "./chaos"})
	}
	builds = append(builds, []string{"build", "-modfile=tools/toxiproxy.mod", "-o", filepath.Join(dir, "toxiproxy"), "github.com/Shopify/toxiproxy/v2/cmd/server"})
	for _, args := range builds {
		build := exec.CommandContext(ctx, "go", args...)
		if strings.HasPrefix(args[1], "-modfile") { // Go takes none in a workspace
			build.Env = append(os.Environ(), "GOWORK=off")
		}
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w (run it in the root of the repository)\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, language := range o.Apps {
		if language == languages[0] {
			continue
		}
		if out, err := exec.CommandContext(ctx, scriptOf(language), "prepare").CombinedOutput(); err != nil {
			return fmt.Errorf("%s prepare: %w\n%s", scriptOf(language), err, out)
		}
	}
	if out, err := exec.CommandContext(ctx, "tools/pulsar.sh", "home").CombinedOutput(); err != nil {
		return fmt.Errorf("tools/pulsar.sh home: %w\n%s", err, out)
	}
	return nil
}

// enter runs this program again as the first process of new namespaces.
func enter(ctx context.Context, dir string, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{roleInside, dir}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // a Ctrl-C at the terminal comes through us
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = waitMax
	var exit *exec.ExitError
	if err = cmd.Run(); errors.As(err, &exit) {
		return &childError{max(1, exit.ExitCode())}
	}
	return err
}

// settleScratch keeps the directory of a run for its reader, or removes it.
func settleScratch(o options, dir string, failed error) error {
	if failed == nil && o.Keep == "" {
		return os.RemoveAll(dir)
	}
	for _, heavy := range []string{"router", "app", "toxiproxy", "postgres", "redis", "tmp", "lock"} {
		if err := os.RemoveAll(filepath.Join(dir, heavy)); err != nil {
			return err
		}
	}
	if o.Keep != "" {
		if err := os.CopyFS(o.Keep, os.DirFS(dir)); err != nil {
			return fmt.Errorf("--keep: %w (everything is still in %s)", err, dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		dir = o.Keep
	}
	fmt.Fprintf(os.Stderr, "chaos: journals and logs are in %s\n", dir)
	return nil
}

// runInside is the first process of the namespaces.
func runInside(ctx context.Context, dir string, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := mountOwn(); err != nil {
		return err
	}
	result, err := run(ctx, o, dir)
	if err != nil {
		return fmt.Errorf("%w\nreplay: %s", err, o.replay())
	}
	return result.tell(os.Stdout, o)
}

// mountOwn makes /proc show the processes of this namespace, and gives `ip netns` a
// directory that goes with it.
func mountOwn() error {
	const names = "/run/netns"
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := os.MkdirAll(names, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", names, "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", names, err)
	}
	return nil
}
