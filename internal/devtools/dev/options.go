package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ringfence/router/internal/config"
)

// Options are the options of a development group.
type Options struct {
	Members int      // 1 to 16
	Command []string // the application, started once beside each member; or
	Exec    string   // a shell command, run for each event

	Parallel int // Exec: commands at once beside one member, 1 to 1000

	Pulsar       string   // URL of a broker; "": one in memory, with generated events
	Topics       []string // with Pulsar
	Subscription string
	Group        string

	Rate   int // generated events per second, 0 to 100000
	Keys   int // among which they are spread, at least 1
	Events int // end after this many, when all are handled; 0: never

	Settings []string // SECTION.KEY=VALUE, for every member
	Verbose  bool     // show the members' logs at level info, too
}

// DefaultOptions returns a group of three with a few events.
func DefaultOptions() Options {
	return Options{Members: 3, Parallel: 8, Subscription: "ringfence-dev", Group: "ringfence-dev", Rate: 5, Keys: 10}
}

const (
	membersMax  = 16
	parallelMax = 1000
	rateMax     = 100_000
)

// Validate reports every option that makes no sense.
func (o Options) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("dev: "+format, args...))
		}
	}
	need(o.Members >= 1 && o.Members <= membersMax, "--members = %d, want 1 to %d", o.Members, membersMax)
	need((len(o.Command) > 0) != (o.Exec != ""), "want your application's command after --, or --exec COMMAND for each event, and not both:\n"+
		"  router dev -- python3 app.py\n  router dev --exec ./handle.sh")
	need(o.Parallel >= 1 && o.Parallel <= parallelMax, "--parallel = %d, want 1 to %d", o.Parallel, parallelMax)
	need(o.Keys >= 1, "--keys = %d, want >= 1", o.Keys)
	need(o.Rate >= 0 && o.Rate <= rateMax, "--rate = %d, want 0 to %d", o.Rate, rateMax)
	need(o.Events >= 0, "--events = %d, want >= 0", o.Events)
	need(o.Events == 0 || o.Rate > 0, "--events = %d with --rate 0 never come", o.Events)
	need(o.Group != "" && o.Subscription != "", "--group and --subscription must not be empty")
	if o.Pulsar != "" {
		need(strings.HasPrefix(o.Pulsar, "pulsar://") || strings.HasPrefix(o.Pulsar, "pulsar+ssl://"), "--pulsar = %q, want pulsar://HOST:PORT", o.Pulsar)
		need(len(o.Topics) > 0, "--pulsar needs --topic: events are read from there, none are generated")
		need(o.Events == 0, "--events is for generated events, and with --pulsar there are none")
	} else {
		need(len(o.Topics) == 0, "--topic needs --pulsar: the broker in memory has generated events only")
	}
	_, err := settingFlags(o.Settings)
	return errors.Join(append(errs, err)...)
}

// CheckCommand returns an error if the command of the application, or the first word of the shell
// command, is not there. A first word that is more than a name, as in $HOME/handle.sh, is not
// checked.
func (o Options) CheckCommand(ctx context.Context) error {
	if o.Exec == "" {
		if _, err := exec.LookPath(o.Command[0]); err != nil {
			return fmt.Errorf("dev: the application cannot be started: %w", err)
		}
		return nil
	}
	word, _, _ := strings.Cut(strings.TrimSpace(o.Exec), " ")
	if !plainWord.MatchString(word) {
		return nil
	}
	if strings.Contains(word, "/") {
		if _, err := exec.LookPath(word); err != nil {
			return fmt.Errorf("dev: --exec: %w", err)
		}
		return nil
	}
	if shellHas(ctx, word) {
		return nil
	}
	hint := ""
	if _, err := os.Stat(word); err == nil {
		hint = "; for the file in this folder, write ./" + word
	}
	return fmt.Errorf("dev: --exec: the shell finds no command %s%s", word, hint)
}

// plainWord matches a word that a shell takes as it is.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./-]+$`)

// settingFlags returns the flags of a router with these settings, given as SECTION.KEY=VALUE. The
// error names every one that there is not.
func settingFlags(settings []string) (*pflag.FlagSet, error) {
	flags := pflag.NewFlagSet("settings", pflag.ContinueOnError)
	config.AddFlags(flags)
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	var errs []error
	for _, setting := range settings {
		key, value, ok := strings.Cut(setting, "=")
		switch near, isNear := config.Nearest(key, names, max(settingEditsMin, len(key)/3)); {
		case !ok || !strings.Contains(key, "."):
			errs = append(errs, fmt.Errorf("dev: --set %q, want SECTION.KEY=VALUE", setting))
		case config.IsSecret(key):
			errs = append(errs, fmt.Errorf("dev: --set %s: a secret has no place in a command line: want %s_file", key, key))
		case slices.Contains(ownSettings, key):
			errs = append(errs, fmt.Errorf("dev: --set %s: each member gets it from this command; --topic and --subscription are for events of --pulsar", key))
		case flags.Lookup(key) != nil:
			errs = append(errs, flags.Set(key, value)) // text: it cannot fail
		case isNear:
			errs = append(errs, fmt.Errorf("dev: --set %s: there is no setting of that name; did you mean %s?", key, near))
		default:
			errs = append(errs, fmt.Errorf("dev: --set %s: there is no setting of that name; `router config example` lists all", key))
		}
	}
	return flags, errors.Join(errs...)
}

// ownSettings are those by which this command tells its members apart and knows their events.
var ownSettings = []string{"node.name", "app.listen", "gossip.listen", "gossip.seeds", "admin.listen", "pulsar.topics", "pulsar.subscription"}

// settingEditsMin is the number of edits within which a name counts as a misspelling of a
// setting's; a third of a long one is allowed too.
const settingEditsMin = 2

// logLevel is the members' log level. With an in-memory broker, the user cannot fix anything
// that they warn of.
func (o Options) logLevel() string {
	switch {
	case o.Verbose:
		return "info"
	case o.Pulsar == "":
		return "error"
	}
	return "warn"
}
