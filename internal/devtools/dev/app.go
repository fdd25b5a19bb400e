package dev

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
)

// appGrace is the time for the user's command to end after SIGTERM.
const appGrace = 5 * time.Second

// startsMax is how often in a row an application may end soon after its start, before
// [RunCommand] returns.
const startsMax = 5

// errNoStart means that an application ended soon after each of its starts.
var errNoStart = fmt.Errorf("dev: the application ended within %v of its start, %d times in a row", restartMax, startsMax)

// RunCommand runs an application beside a member until ctx ends, and starts it again
// whenever it ends. It finds the member by [client.EndpointEnv]. When ctx ends it gets
// SIGTERM, with all that it has started, and after a grace SIGKILL. It returns an
// error if the command is not there, or ends soon after its start again and again.
func RunCommand(ctx context.Context, command []string, endpoint string, stdout, stderr io.Writer) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	pauses := backoff.Backoff{Min: restartFirst, Max: restartMax}
	for starts := 1; ; starts++ {
		begun := clock.Now()
		cmd := exec.CommandContext(ctx, path, command[1:]...) //nolint:gosec // the command comes from the command line
		cmd.Env = append(os.Environ(), client.EndpointEnv+"="+endpoint)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		inGroup(cmd)
		err := cmd.Run()
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was ended
		}
		if clock.Now().Sub(begun) > restartMax {
			pauses.Reset()
			starts = 1
		}
		if starts == startsMax {
			return fmt.Errorf("%w: %w", errNoStart, cmp.Or(err, errZero))
		}
		pause := pauses.Next()
		fmt.Fprintf(stderr, "the application has ended (%v); starting it again in %v\n", cmp.Or(err, errZero), pause)
		if backoff.Sleep(ctx, pause) != nil {
			return nil //nolint:nilerr // it was ended
		}
	}
}

var errZero = errors.New("exit status 0")
