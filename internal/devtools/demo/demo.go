package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/devtools/procgroup"
)

// Environment holds the executable and the outputs of a demo.
type Environment struct {
	Executable string // the binary that has the hidden commands
	Stdout     *os.File
	Stderr     io.Writer
}

// ErrInterrupted means that the demo was ended from outside, before its verdict.
var ErrInterrupted = errors.New("demo: interrupted")

// demo is one run.
type demo struct {
	options   Options
	names     names
	dir       string
	processes *procgroup.Group
	backend   backend
	view      *view
}

// Run runs a demo and prints its result. It returns nil only if every promise held and the run
// proved something; otherwise the logs and journals of all processes are kept, and their place
// is printed to Stderr. When it returns, all children have ended.
func Run(ctx context.Context, o Options, e Environment) error {
	if err := o.Validate(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", folderPrefix)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	v := newView(e.Stdout, e.Stderr, o.JSON)
	result, err := run(ctx, o, e.Executable, dir, v)
	v.clear()
	if ctx.Err() != nil {
		err = ErrInterrupted
	}
	if result != nil && ctx.Err() == nil {
		err = errors.Join(err, result.Broken(o))
		v.result(result, o, err)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(e.Stderr, "The logs and journals of this run are in", dir)
		return err
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// run runs both parts. The Result is nil when there was no end to judge.
func run(ctx context.Context, o Options, executable, dir string, v *view) (*Result, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	d := &demo{options: o, names: newNames(), dir: dir, view: v}
	d.processes = procgroup.New(procgroup.Config{
		Executable: executable, Dir: dir, Patience: stopPatience,
		Ended: func(_ *procgroup.Process, err error) { fail(fmt.Errorf("demo: %w", err)) },
	})
	if err := d.connect(ctx); err != nil {
		d.processes.StopAll()
		return nil, causeOf(ctx, err)
	}
	defer d.backend.close()
	defer d.processes.StopAll() // while the broker is there
	plain, err := d.plain(ctx)
	if err != nil {
		return nil, causeOf(ctx, fmt.Errorf("plain SHARED: %w", err))
	}
	result, err := d.fenced(ctx, plain)
	if err != nil {
		return result, causeOf(ctx, fmt.Errorf("ringfence: %w", err))
	}
	return result, nil
}

// causeOf returns the cause of the end of ctx, if that came first.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func newNames() names {
	var run [4]byte
	_, _ = rand.Read(run[:]) // never fails
	return namesOf(hex.EncodeToString(run[:]))
}

// connect finds the broker of this run, or starts it.
func (d *demo) connect(ctx context.Context) (err error) {
	if d.options.Pulsar != "" {
		d.backend, err = dialCluster(d.options.Pulsar, d.names.left())
		return err
	}
	address := make(chan string, 1)
	if _, err := d.child("broker", func(line string) { address <- line }, RoleBroker); err != nil {
		return err
	}
	select {
	case a := <-address:
		d.backend, err = dialMemory(a)
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// child starts a process of this demo: of the hidden command that role names.
func (d *demo) child(name string, line func(string), role string, arguments ...string) (*procgroup.Process, error) {
	p, err := d.processes.Start(name, line, append([]string{"demo", role}, arguments...)...)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	return p, nil
}

const (
	stopPatience  = 2 * time.Second
	startPatience = time.Minute
	drainPatience = time.Minute
	lookEvery     = 50 * time.Millisecond
)

// until waits until holds returns true, for patience at most. what names the condition in the
// error.
func until(ctx context.Context, patience time.Duration, what string, holds func(context.Context) (bool, error)) error {
	begin := clock.Now()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if ok, err := holds(ctx); ok || err != nil {
			return err
		}
		if clock.Now().Sub(begin) > patience {
			return fmt.Errorf("%s took longer than %v", what, patience)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// application is one application under test, as the parent sees it.
type application struct {
	name    string
	journal string
	process *procgroup.Process
	ready   atomic.Bool  // plain ones: it is subscribed
	handled atomic.Int64 // as the application reports it
}

func (d *demo) application(name string) *application {
	return &application{name: name, journal: filepath.Join(d.dir, name+".journal")}
}

// line takes a line of the application's output.
func (a *application) line(text string) {
	var n int64
	if text == ready {
		a.ready.Store(true)
	} else if _, err := fmt.Sscan(text, &n); err == nil {
		a.handled.Store(n)
	}
}

// plain shows the behaviour of a SHARED subscription alone under this load.
func (d *demo) plain(ctx context.Context) (journal.Report, error) {
	d.view.note("First plain SHARED: %d applications consume one subscription, each event goes to any of them.", d.options.Nodes)
	var apps []*application
	for i := range d.options.Nodes {
		a := d.application(fmt.Sprintf("plain-%d", i+1))
		var err error
		a.process, err = d.child(a.name, a.line, RolePlain, append([]string{
			"--journal", a.journal,
			"--topic", d.names.plain.topic, "--subscription", d.names.plain.name,
		}, d.backend.arguments()...)...)
		if err != nil {
			return journal.Report{}, err
		}
		apps = append(apps, a)
	}
	err := until(ctx, startPatience, "the start of the applications", func(context.Context) (bool, error) {
		for _, a := range apps {
			if !a.ready.Load() {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return journal.Report{}, err
	}
	p := &part{demo: d, title: "plain SHARED", duration: d.options.baseline(), apps: apps}
	err = p.shown(ctx, func(ctx context.Context) error {
		if err := p.publish(ctx, d.names.plain.topic); err != nil {
			return err
		}
		return until(ctx, drainPatience, "handling what was published", func(context.Context) (bool, error) { return p.allHandled() })
	})
	if err != nil {
		return journal.Report{}, err
	}
	for _, a := range apps {
		d.processes.Stop(a.process)
	}
	report, err := journal.Check(journal.Files(p.journals()), p.sent.names)
	d.view.note("Plain SHARED: of %s events, %s times two of one key were handled at the same time.", thousands(report.Events), thousands(report.Overlaps))
	return report, err
}
