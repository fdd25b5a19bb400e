package e2e

import (
	_ "embed" // embeds files that are added to the former commit
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/testing/eventually"
)

// formerCommit is the newest commit whose routers read version 1 of the control log and no other.
const formerCommit = "07a84d18dbba98add0ed4ea2ac813e3fbdcb8124"

// formerClock is the clock that the application of the former commit gets, so that all journals show the same clock.
//
//go:embed testdata/former_clock.go
var formerClock string

// former holds the programs of formerCommit.
type former struct {
	router string // the router
	app    string // a test binary, which is an application with that commit's SDK when appCommand is set
}

// buildFormer returns the programs of formerCommit. They are built from git's history once,
// and kept in the user's cache.
func buildFormer() (former, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return former{}, err
	}
	cache = filepath.Join(cache, "ringfence")
	kept := filepath.Join(cache, fmt.Sprintf("former-%.12s-%x", formerCommit, xxhash.Sum64String(formerClock)))
	f := former{router: filepath.Join(kept, "router"), app: filepath.Join(kept, "app")}
	if _, err := os.Stat(kept); err == nil {
		return f, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return former{}, err
	}
	dir, err := os.MkdirTemp(cache, "building-")
	if err != nil {
		return former{}, err
	}
	defer os.RemoveAll(dir)
	source, built := filepath.Join(dir, "source"), filepath.Join(dir, "built")
	for _, step := range []struct{ dir, command string }{
		{"..", `cd "$(git -c "safe.directory=*" rev-parse --show-toplevel)" && mkdir "$SOURCE" && git -c "safe.directory=*" archive "$COMMIT" | tar -x -C "$SOURCE"`},
		{source, `printf %s "$CLOCK" >internal/journal/shared.go && grep -q "create(path, clock.Now)" internal/journal/writer.go && sed -i "s/create(path, clock.Now)/create(path, shared)/" internal/journal/writer.go`},
		{source, `go build -buildvcs=false -o "$BUILT/router" ./cmd/router`},
		{source, `go test -c -buildvcs=false -o "$BUILT/app" ./e2e`},
	} {
		cmd := exec.Command("bash", "-c", "set -euo pipefail; "+step.command)
		cmd.Dir = step.dir
		cmd.Env = append(os.Environ(), "SOURCE="+source, "BUILT="+built, "COMMIT="+formerCommit, "CLOCK="+formerClock)
		if out, err := cmd.CombinedOutput(); err != nil {
			return former{}, fmt.Errorf("%s: %w\n%s", step.command, err, out)
		}
	}
	if err := os.Rename(built, kept); err != nil && !errors.Is(err, fs.ErrExist) { // another process was quicker
		return former{}, err
	}
	return f, nil
}

// needFormer returns the programs of formerCommit. Where git does not have that
// commit, as in a shallow clone, the test is skipped, but not in CI.
func needFormer(t *testing.T) former {
	t.Helper()
	err := exec.Command("git", "-c", "safe.directory=*", "cat-file", "-e", formerCommit+"^{commit}").Run()
	if err != nil && os.Getenv("CI") != "true" {
		t.Skipf("git does not have commit %s: %v", formerCommit, err)
	}
	if err != nil {
		t.Fatalf("CI needs the whole history (git fetch --unshallow), and commit %s is not there: %v", formerCommit, err)
	}
	f, err := buildFormer()
	if err != nil {
		t.Fatalf("build the programs of %s: %v", formerCommit, err)
	}
	return f
}

// rollingStep is the number of events handled between two replacements.
const rollingStep = 1500

// rolling is a group that changes its programs under load.
type rolling struct{ *cluster }

// worksOn waits until the group, as it is, has handled rollingStep more events.
func (r *rolling) worksOn() {
	r.t.Helper()
	started := func() uint64 {
		report, err := journal.Check(r.files, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		return report.Started
	}
	until := started() + rollingStep
	eventually.NoError(r.t, time.Minute, "the group continues to work", func() error {
		if n := started(); n < until {
			return fmt.Errorf("%d handlings, want %d", n, until)
		}
		return nil
	})
}

// replace replaces the routers of all members by other programs, one by one, and lets the
// group work on before each. A member drains and ends with code 0, but the last one
// is killed with its application if it crashes. The application of the first member is
// always of the former commit, that of the second always of this one, and that of the
// last changes with its router.
func (r *rolling) replace(what, router, app string, crashes bool, settings ...string) {
	r.t.Helper()
	r.more = settings
	begin := time.Now()
	for i, m := range r.members {
		r.worksOn()
		last := i == len(r.members)-1
		switch {
		case last && crashes:
			r.killMember(m)
		default:
			if code := r.leave(m); code != 0 {
				r.t.Errorf("%s: %s left with exit code %d, want 0; its log: %s", what, m.name, code, tail(m.router.log))
			}
			if last { // its router has drained: the application has nothing in its hands
				r.files[m.file].KilledAt = r.kill(m.app)
			}
		}
		m.routerBinary = router
		r.startRouter(m)
		if last {
			m.appBinary = app
			r.startApp(m)
		}
		r.ready(m)
	}
	r.t.Logf("%s took %v", what, time.Since(begin).Round(100*time.Millisecond))
}

// decidesInVersion waits until a router reports that the group decides in this version of the log.
func (r *rolling) decidesInVersion(version int) {
	r.t.Helper()
	says := regexp.MustCompile(fmt.Sprintf(`"kind":"log_version".*"version":%d\b`, version))
	eventually.NoError(r.t, time.Minute, fmt.Sprintf("the group decides in log version %d", version), func() error {
		for _, m := range r.members {
			text, err := os.ReadFile(m.router.log)
			if err != nil || says.Match(text) {
				return err
			}
		}
		return errors.New("no router reports it")
	})
}

// refusesFormer starts a router of the former version beside the group, whose log it cannot read:
// the router must log that and end.
func (r *rolling) refusesFormer(old former) {
	r.t.Helper()
	begin := time.Now()
	m := &member{routerBinary: old.router, appBinary: old.app}
	r.add("former", m)
	wantEnded(r.t, m, "the group decides in log version 3, this router reads 1")
	r.t.Logf("a router of the former version ended after %v", time.Since(begin).Round(100*time.Millisecond))
}

// TestRollsFromTheFormerVersionAndBack: a group of the former version's routers goes
// to this version under load, member by member, back, and forward again. The way back is open as long as
// control_log.version keeps the group at version 1 of the log. No key has two
// handlers at once and no event is lost, with applications of both versions beside
// routers of both.
func TestRollsFromTheFormerVersionAndBack(t *testing.T) {
	old := needFormer(t) // this may take long, and should not run beside other tests
	t.Parallel()
	topic := pulsartest.Topic(t, 4)
	r := &rolling{newCluster(t, "message_key", time.Second, topic)}
	for i, name := range []string{"a", "b", "d"} {
		m := &member{routerBinary: old.router}
		if i != 1 {
			m.appBinary = old.app
		}
		r.add(name, m)
	}
	for _, m := range r.members {
		r.ready(m)
	}
	load := newLoad(t, topic)
	stop := load.start(load.keys)

	r.replace("from the former version to this one", "", "", false, "--control_log.version=1")
	r.replace("back to the former version", old.router, old.app, true)
	r.replace("to this version for good", "", "", false)
	r.decidesInVersion(3)
	r.refusesFormer(old)

	stop()
	r.settled()
	report := r.check(load.published())
	if report.StaleTokens != 0 {
		t.Errorf("%d handlings had a fencing token below one that their key had had", report.StaleTokens)
	}
	if report.Handoff.Count == 0 {
		t.Error("no key moved between living members: this run proved nothing")
	}
}
