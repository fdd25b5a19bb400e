package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/config"
)

// appGraceDefault is how long an application may take to end after SIGTERM.
const appGraceDefault = 10 * time.Second

// application is the process that `router run -- COMMAND` starts beside the router. Both end as
// one: when the application ends, the router drains and ends; when the router is told to end it
// drains first, while the application still answers, and then ends the application.
type application struct {
	command   []string
	grace     time.Duration
	tokenFile string // app.token_file, or ""
	stdout    io.Writer
	stderr    io.Writer
	log       *slog.Logger

	running sync.WaitGroup
	cmd     *exec.Cmd
	ended   chan struct{} // closed when the process has ended
	err     error         // how it ended; written before ended is closed
	asked   chan struct{} // closed when it shall end
	signals chan os.Signal
}

// errApplication says that the application ended first, and not in order.
var errApplication = errors.New("the application has ended")

// start starts the application and makes leave run when it ends. at is the address of app.listen.
func (a *application) start(at net.Addr, leave func()) error {
	path, err := exec.LookPath(a.command[0])
	if err != nil {
		return usageError{fmt.Errorf("the application cannot be started: %w", err)}
	}
	a.cmd = exec.Command(path, a.command[1:]...) //nolint:noctx,gosec // the command comes from the command line; stop ends it
	a.cmd.Stdout, a.cmd.Stderr = a.stdout, a.stderr
	a.cmd.WaitDelay = time.Second // for what it has left behind, and that holds its output open
	a.cmd.Env = a.environment(endpointOf(at))
	a.ended, a.asked, a.signals = make(chan struct{}), make(chan struct{}), make(chan os.Signal, len(forwarded))
	started := make(chan error)
	a.running.Go(func() { reapOrphans(a.ended) })
	a.running.Go(func() { a.watch(started, leave) })
	if err := <-started; err != nil {
		return usageError{fmt.Errorf("the application cannot be started: %w", err)}
	}
	a.log.Info("application started", "command", a.command[0], "pid", a.cmd.Process.Pid)
	return nil
}

// watch starts the process and waits for its end.
func (a *application) watch(started chan<- error, leave func()) {
	defer close(a.ended)
	unlock := ownGroup(a.cmd)
	defer unlock()
	err := a.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	if len(forwarded) > 0 {
		signal.Notify(a.signals, forwarded...)
		defer signal.Stop(a.signals)
		a.running.Go(a.forward)
	}
	err = a.cmd.Wait()
	select {
	case <-a.asked:
		return
	default:
	}
	if a.err = err; err != nil {
		a.err = fmt.Errorf("%w: %w", errApplication, err)
	}
	a.log.Warn("the application has exited; the router drains and exits too", "error", err)
	leave()
}

// forward passes signals on until the application has ended.
func (a *application) forward() {
	for {
		select {
		case s := <-a.signals:
			signalGroup(a.cmd, s)
		case <-a.ended:
			return
		}
	}
}

// environment returns the router's environment without its settings, some of which are secret, and
// with the way to the router.
func (a *application) environment(endpoint string) []string {
	all := append(config.WithoutSettings(os.Environ()), client.EndpointEnv+"="+endpoint)
	if a.tokenFile != "" {
		all = append(all, client.TokenFileEnv+"="+a.tokenFile)
	}
	return all
}

// endpointOf returns the address at which the application reaches a listener.
func endpointOf(at net.Addr) string {
	switch at := at.(type) {
	case *net.UnixAddr:
		return "unix://" + at.Name
	case *net.TCPAddr:
		if at.IP.IsUnspecified() {
			return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: at.Port}).String()
		}
	}
	return at.String()
}

// stop ends the application, if it has not ended: SIGTERM, and after the grace SIGKILL, for it and
// all that it has started. It returns how an application ended that had not been asked to.
func (a *application) stop() error {
	if a.cmd == nil || a.cmd.Process == nil {
		return nil
	}
	defer a.running.Wait()
	close(a.asked)
	select {
	case <-a.ended:
		return a.err
	default:
	}
	terminateGroup(a.cmd)
	patience := time.NewTimer(a.grace)
	defer patience.Stop()
	select {
	case <-a.ended:
	case <-patience.C:
		a.log.Warn("the application did not exit after SIGTERM; killing it", "grace", a.grace)
		killGroup(a.cmd)
		<-a.ended
	}
	return a.err
}

// runBeside runs a member, and an application that starts and ends with it.
func runBeside(ctx context.Context, cfg config.Config, b broker, a *application) error {
	a.tokenFile = cfg.App.TokenFile
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	b.listening = func(at net.Addr, log *slog.Logger) error {
		a.log = log.With("component", "application")
		return a.start(at, leave)
	}
	err := runAlone(ctx, cfg, b)
	return errors.Join(err, a.stop())
}
