package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/testing/eventually"
)

// exitCode returns the exit code behind an error of a command, and -1 if it has none.
func (l *lab) exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
}

// usageCode is the exit code of a router with settings that cannot be used.
const usageCode = 2

// minimal are settings that every binary takes: its defaults would listen in the clear.
func minimal() settings {
	return settings{
		"node.group": "settings", "pulsar.topics": "t", "pulsar.subscription": "s",
		"peer.listen": "127.0.0.1:16651", "gossip.listen": "127.0.0.1:16652",
	}
}

// refusedAtStart reports whether a router with these settings ends with the usage code, and not serves its admin page.
func (l *lab) refusedAtStart(ctx context.Context, name string, more settings) (finding, error) {
	r := l.prepare(name, nil, more)
	if err := r.launch(ctx); err != nil {
		return finding{}, err
	}
	defer r.stop()
	code := 0
	err := eventually.Ask(ctx, startMax, "it ends or serves", func() (err error) {
		if r.ended() {
			return nil
		}
		code, _, err = r.ask(ctx, "/livez")
		return err
	})
	if err != nil {
		return finding{}, err
	}
	if !r.ended() {
		return broken("it starts (/livez answers %d)", code)
	}
	if got := r.cmd.ProcessState.ExitCode(); got != usageCode {
		return finding{}, fmt.Errorf("it ends with code %d: %s", got, r.tail())
	}
	return held("it ends with code %d: %.160s", usageCode, strings.TrimSpace(r.tail()))
}

func shortToken(ctx context.Context, l *lab) (finding, error) {
	return l.refusedAtStart(ctx, "short", settings{"admin.token": "x"})
}

func openTokenFile(ctx context.Context, l *lab) (finding, error) {
	path := filepath.Join(l.dir, "open-token")
	if err := os.WriteFile(path, []byte(adminToken+"\n"), 0o600); err != nil {
		return finding{}, err
	}
	if err := os.Chmod(path, 0o666); err != nil { // independent of the umask
		return finding{}, err
	}
	return l.refusedAtStart(ctx, "open", settings{"admin.token": "", "admin.token_file": path})
}

func passwordInURL(ctx context.Context, l *lab) (finding, error) {
	s := minimal()
	s["pulsar.url"] = "pulsar://operator:planted-password@broker.example:6650"
	out, err := l.command(ctx, s, "config", "print").CombinedOutput()
	code := l.exitCode(err)
	if code < 0 {
		return finding{}, err
	}
	shown := strings.Contains(string(out), "planted-password")
	return finding{shown, fmt.Sprintf("`router config print` ends with code %d; the password is shown: %t", code, shown)}, nil
}

func serviceVariables(ctx context.Context, l *lab) (finding, error) {
	cmd := l.command(ctx, minimal(), "config", "lint")
	for name, value := range map[string]string{ // as a kubelet sets them for a Service of that name
		"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80", "PORT": "tcp://10.0.0.1:80",
		"PORT_80_TCP": "tcp://10.0.0.1:80", "PORT_80_TCP_PROTO": "tcp", "PORT_80_TCP_PORT": "80", "PORT_80_TCP_ADDR": "10.0.0.1",
	} {
		cmd.Env = append(cmd.Env, "RINGFENCE__X_"+name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	code := l.exitCode(err)
	if code < 0 {
		return finding{}, err
	}
	return finding{code != 0, fmt.Sprintf("`router config lint` ends with code %d: %.160q", code, strings.TrimSpace(string(out)))}, nil
}

const (
	settingsDepth  = 9000
	settingsCPUMax = 500 * time.Millisecond
)

// writeDeep writes a settings file with a map in a map, many times over.
func (l *lab) writeDeep() (path string, err error) {
	path = filepath.Join(l.dir, "deep.yaml")
	return path, os.WriteFile(path, []byte("node: "+strings.Repeat("{a: ", settingsDepth)+"1"+strings.Repeat("}", settingsDepth)+"\n"), 0o600)
}

func deepSettings(ctx context.Context, l *lab) (finding, error) {
	path, err := l.writeDeep()
	if err != nil {
		return finding{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := l.command(ctx, nil, "config", "lint", "--config", path)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return finding{}, err
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	said := strings.TrimSpace(string(out))
	seen := fmt.Sprintf("`router config lint` ends with code %d after %.1f s of CPU: %.160q", cmd.ProcessState.ExitCode(), used.Seconds(), said)
	return finding{used > settingsCPUMax || cmd.ProcessState.ExitCode() != usageCode, seen}, nil
}

const (
	endlessBytes = 256 << 20 // of /dev/zero that are proof enough
	endlessWait  = 20 * time.Second
)

func endlessSettings(ctx context.Context, l *lab) (finding, error) {
	ctx, cancel := context.WithTimeout(ctx, endlessWait)
	defer cancel()
	cmd := l.command(ctx, nil, "config", "lint", "--config", "/dev/zero")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return finding{}, err
	}
	pid, most, tooMuch := cmd.Process.Pid, int64(0), false
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for !tooMuch && backoff.Sleep(watching, 10*time.Millisecond) == nil {
			if n, err := readBytesOf(pid); err == nil {
				most = max(most, n)
			}
			tooMuch = most > endlessBytes
		}
		if tooMuch {
			cancel() // kills it
		}
	})
	err := cmd.Wait()
	stop()
	watch.Wait()
	if tooMuch || ctx.Err() != nil {
		return broken("`router config lint --config /dev/zero` had read %s and went on", mebibytes(most))
	}
	return held("it ends with code %d: %.160q", l.exitCode(err), strings.TrimSpace(said.String()))
}
