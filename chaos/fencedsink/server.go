//go:build unix

package fencedsink

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/ringfence/router/internal/testing/eventually"
)

// ErrNotInstalled means that the database's programs are not on this machine.
var ErrNotInstalled = errors.New("not installed")

// Server is a database of our own on scratch data, reached by a socket in its
// directory only. It is for tests: nothing that it holds survives a power cut.
type Server struct {
	URL string // the argument of OpenPostgres or OpenRedis

	cmd *exec.Cmd
	log string
}

// startMax bounds the start of a server.
const startMax = 30 * time.Second

// StartPostgres starts a Postgres on new data in dir, which must exist, be empty, and
// be short: a socket's path has at most 107 bytes.
func StartPostgres(ctx context.Context, dir string) (*Server, error) {
	initdb, err := findPostgres("initdb")
	if err != nil {
		return nil, err
	}
	postgres, err := findPostgres("postgres")
	if err != nil {
		return nil, err
	}
	attributes, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	init := exec.CommandContext(ctx, initdb, "--pgdata", data, "--username", "sink", "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")
	init.SysProcAttr, init.Dir = attributes, dir
	if out, err := init.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("sink: initdb: %w: %s", err, out)
	}
	s := &Server{URL: "postgres:///postgres?" + url.Values{"host": {dir}, "user": {"sink"}}.Encode()}
	err = s.start(dir, attributes, postgres, "-D", data, "-k", dir, "-c", "listen_addresses=",
		"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off",
		"-c", "max_connections=300", "-c", "shared_buffers=64MB", "-c", "autovacuum_naptime=10s")
	if err != nil {
		return nil, err
	}
	return s, s.await(ctx, func(ctx context.Context) error {
		p, err := OpenPostgres(ctx, s.URL, 1)
		if err != nil {
			return err
		}
		defer p.Close()
		return p.pool.Ping(ctx)
	})
}

// StartRedis starts a Redis in dir, which must exist and be short.
func StartRedis(ctx context.Context, dir string) (*Server, error) {
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("sink: redis-server is %w: it is in Debian's package redis-server", ErrNotInstalled)
	}
	socket := filepath.Join(dir, "redis.sock")
	s := &Server{URL: "unix://" + socket}
	if err := s.start(dir, &syscall.SysProcAttr{}, binary, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "777", "--save", "", "--appendonly", "no", "--dir", dir); err != nil {
		return nil, err
	}
	return s, s.await(ctx, func(ctx context.Context) error {
		r, err := OpenRedis(s.URL, 1)
		if err != nil {
			return err
		}
		defer r.Close()
		return r.client.Ping(ctx).Err()
	})
}

// findPostgres looks where Debian puts the programs of Postgres, newest version first.
func findPostgres(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name) // the pattern is fine
	if len(found) == 0 {
		return "", fmt.Errorf("sink: %s is %w: it is in Debian's package postgresql", name, ErrNotInstalled)
	}
	return slices.Max(found), nil
}

// unprivileged gives dir to a user other than root, because Postgres refuses to run as root.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return &syscall.SysProcAttr{}, nil
	}
	who, err := user.Lookup("postgres")
	if err != nil {
		if who, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("sink: postgres does not run as root: %w", err)
		}
	}
	uid, errUID := strconv.ParseUint(who.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(who.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return nil, fmt.Errorf("sink: user %s: %w", who.Username, err)
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

// start starts the server, as the child of a parent without which it must not be.
func (s *Server) start(dir string, attributes *syscall.SysProcAttr, binary string, args ...string) error {
	s.log = filepath.Join(dir, "server.log")
	log, err := os.Create(s.log)
	if err != nil {
		return fmt.Errorf("sink: %w", err)
	}
	defer func() { _ = log.Close() }()    // the server has its own
	attributes.Setpgid = true             // a Ctrl-C at the terminal is for us
	s.cmd = exec.Command(binary, args...) //nolint:noctx // a server for tests; it ends by Stop
	s.cmd.SysProcAttr, s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = attributes, dir, log, log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("sink: %w", err)
	}
	return nil
}

// await waits until ping succeeds. If it never does, the server is stopped.
func (s *Server) await(ctx context.Context, ping func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startMax) // of a ping that hangs, too
	defer cancel()
	err := eventually.Ask(ctx, startMax, "it answers", func() error { return ping(ctx) })
	if err == nil {
		return nil
	}
	s.Stop()
	said, _ := os.ReadFile(s.log) // without it the error tells less
	return fmt.Errorf("sink: %s does not answer: %w: %s", s.cmd.Path, err, said)
}

// Stop kills the server and waits until it is gone.
func (s *Server) Stop() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // its children too; it may have ended
	_ = s.cmd.Wait()                                      // it was killed
}
