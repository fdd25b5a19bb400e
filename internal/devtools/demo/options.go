package demo

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ringfence/router/internal/devtools/testapp"
)

// Options are the options of a demo.
type Options struct {
	Nodes     int           // members, each with an application: 1 to 16
	Keys      int           // distinct keys
	Rate      int           // events per second; at most 50 for each key
	Duration  time.Duration // of the load on Ringfence
	KillAt    time.Duration // after the begin of that load; 0: no kill
	RestartAt time.Duration // after the begin of that load; 0: not restarted
	Pulsar    string        // URL of a broker; "": one in memory
	JSON      bool          // the result as one line of JSON, and nothing else, on standard output
}

// DefaultOptions returns the demo of the README.
func DefaultOptions() Options {
	return Options{Nodes: 3, Keys: 500, Rate: 2000, Duration: 20 * time.Second, KillAt: 8 * time.Second, RestartAt: 14 * time.Second}
}

const (
	nodesMax      = 16
	keysMax       = 1_000_000
	ratePerKeyMax = 50 // handlers of a key run one after the other: at this rate a key is busy 15 % of the time

	// handlersMax bounds the concurrent handlers of one application, in both parts.
	handlersMax = 100

	// baselineMax bounds the part with plain SHARED.
	baselineMax = 5 * time.Second
)

// usualWork is the duration of a handler: long enough to overlap, short enough that keys are
// idle most of the time.
var usualWork = testapp.Config{WorkMin: 2 * time.Millisecond, WorkMax: 4 * time.Millisecond}

// Validate reports every option that makes no sense.
func (o Options) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("demo: "+format, args...))
		}
	}
	need(o.Nodes >= 1 && o.Nodes <= nodesMax, "--nodes = %d, want 1 to %d", o.Nodes, nodesMax)
	need(o.Keys >= 1 && o.Keys <= keysMax, "--keys = %d, want 1 to %d", o.Keys, keysMax)
	need(o.Rate >= 1 && o.Rate <= ratePerKeyMax*max(1, min(o.Keys, keysMax)), "--rate = %d, want 1 to %d for each of the %d keys", o.Rate, ratePerKeyMax, o.Keys)
	need(o.Duration >= time.Second, "--duration = %v, want >= 1s", o.Duration)
	need(o.KillAt >= 0 && o.KillAt < o.Duration, "--kill-at = %v, want 0 (nobody) or less than --duration (%v)", o.KillAt, o.Duration)
	need(o.RestartAt == 0 || o.RestartAt > o.KillAt && o.RestartAt < o.Duration && o.KillAt > 0,
		"--restart-at = %v, want 0 (never) or between --kill-at (%v) and --duration (%v)", o.RestartAt, o.KillAt, o.Duration)
	need(o.KillAt == 0 || o.Nodes > 1, "--nodes = 1 leaves nobody when a member is killed: use --kill-at 0s --restart-at 0s")
	need(o.Pulsar == "" || strings.HasPrefix(o.Pulsar, "pulsar://") || strings.HasPrefix(o.Pulsar, "pulsar+ssl://"),
		"--pulsar = %q, want pulsar://HOST:PORT", o.Pulsar)
	return errors.Join(errs...)
}

// baseline returns the duration of the load on plain SHARED.
func (o Options) baseline() time.Duration { return min(baselineMax, o.Duration/4) }
