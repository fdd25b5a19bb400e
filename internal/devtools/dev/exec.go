package dev

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/ringfence/router/client"
)

// exitReject is EX_DATAERR of sysexits.h: these data will never do. EX_TEMPFAIL, 75,
// is like any other failure: the event comes again.
const exitReject = 65

// The variables of one event.
const (
	envKey        = "RINGFENCE_KEY"        // without it if the key has a zero byte
	envKeyBase64  = "RINGFENCE_KEY_BASE64" // always
	envMessageID  = "RINGFENCE_MESSAGE_ID"
	envTopic      = "RINGFENCE_TOPIC"
	envAttempt    = "RINGFENCE_ATTEMPT"
	envToken      = "RINGFENCE_FENCING_TOKEN" //nolint:gosec // the name of a variable, no secret
	envTurn       = "RINGFENCE_TURN"
	envFence      = "RINGFENCE_FENCE" // token and turn as one text, which sorts as fences do
	exitNotFound  = 127               // the shell's
	exitNotUsable = 126
)

// RunExec is an application that runs a shell command for each event, with the payload
// on its standard input and the rest in its environment. Its exit code is the verdict:
// 0 done, 65 (EX_DATAERR) reject, anything else failed. When the key is lost it gets
// SIGTERM, with all that it has started, and after a grace SIGKILL.
func RunExec(ctx context.Context, command, endpoint string, parallel int, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	handler := func(ctx context.Context, e *client.Event) error {
		return handle(ctx, command, e, stdout, stderr)
	}
	return client.Run(ctx, endpoint, handler, client.WithMaxInFlight(parallel), client.WithLogger(log))
}

func handle(ctx context.Context, command string, e *client.Event, stdout, stderr io.Writer) error {
	cmd := shell(ctx, command)
	cmd.Env = append(os.Environ(), variables(e)...)
	cmd.Stdin = bytes.NewReader(e.Payload)
	out, errs := wholeLines(stdout), wholeLines(stderr) // others run at the same time
	cmd.Stdout, cmd.Stderr = out, errs
	inGroup(cmd)
	err := cmd.Run()
	out.end()
	errs.end()
	if errors.Is(err, exec.ErrWaitDelay) { // its exit code was 0, and a background process holds its output open
		err = nil
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("%s: %w", command, err)
	case exit.ExitCode() == exitReject:
		return client.Reject(fmt.Errorf("%s: %w", command, err))
	case exit.ExitCode() == exitNotFound || exit.ExitCode() == exitNotUsable:
		return fmt.Errorf("%s: the shell cannot run it: %w", command, err)
	}
	return fmt.Errorf("%s: %w", command, err)
}

func variables(e *client.Event) []string {
	list := []string{
		envKeyBase64 + "=" + base64.StdEncoding.EncodeToString([]byte(e.Key)),
		envMessageID + "=" + e.ID.String(),
		envTopic + "=" + e.Topic,
		envAttempt + "=" + strconv.Itoa(e.Attempt),
		envToken + "=" + strconv.FormatInt(e.Fence.Token, 10),
		envTurn + "=" + strconv.FormatUint(e.Fence.Turn, 10),
		envFence + "=" + e.Fence.String(),
	}
	if !strings.ContainsRune(e.Key, 0) {
		list = append(list, envKey+"="+e.Key)
	}
	return list
}
