package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/devtools/testapp"
	"github.com/ringfence/router/internal/testing/eventually"
)

// The hidden commands of the children.
const (
	roleApp  = "app"
	roleBurn = "burn"
)

const (
	loadMembers = 3
	loadKeys    = 2000
	appInFlight = 256
	appWorkMax  = 2 * time.Millisecond
)

// runApp is the application beside a router under load.
func runApp(ctx context.Context, args []string) error {
	var path, endpoint string
	f := flag.NewFlagSet(roleApp, flag.ContinueOnError)
	f.StringVar(&path, "journal", "", "file to write")
	f.StringVar(&endpoint, "endpoint", "", "of the router")
	if err := f.Parse(args); err != nil {
		return err
	}
	w, err := journal.Create(path)
	if err != nil {
		return err
	}
	app := testapp.New(testapp.Config{WorkMax: appWorkMax}, w)
	err = client.Run(ctx, endpoint, app.Handle, client.WithMaxInFlight(appInFlight), client.WithLogger(slog.New(slog.DiscardHandler)))
	return errors.Join(err, w.Close())
}

// runBurn uses so much of the processors, until ctx ends.
func runBurn(ctx context.Context, args []string) error {
	var processors float64
	f := flag.NewFlagSet(roleBurn, flag.ContinueOnError)
	f.Float64Var(&processors, "processors", 1, "how many to use")
	if err := f.Parse(args); err != nil {
		return err
	}
	const slice = 20 * time.Millisecond
	n := max(1, int(math.Ceil(processors)))
	busy := time.Duration(processors / float64(n) * float64(slice))
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				for begin := time.Now(); time.Since(begin) < busy; {
				}
				if backoff.Sleep(ctx, slice-busy) != nil {
					return
				}
			}
		})
	}
	all.Wait()
	return nil
}

// child is a process of this binary.
type child struct {
	cmd *exec.Cmd
	log *os.File
}

func startChild(dir, name string, env []string, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...) //nolint:noctx // it ends on request
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), env...)
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return &child{cmd, log}, nil
}

// end asks the process to end, and waits.
func (c *child) end() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	stop := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer stop.Stop()
	return errors.Join(c.cmd.Wait(), c.log.Close())
}

// group is three routers under load. The attacks go to the first one.
type group struct {
	lab      *lab
	routers  []*router
	apps     []*child
	journals []journal.File
	peers    callers
	bound    float64 // on memory, as the routers print it
	load     *publisher
}

func (l *lab) startGroup(ctx context.Context, rate int) (g *group, err error) {
	g = &group{lab: l}
	defer func() {
		if err != nil {
			g.end()
		}
	}()
	more, peers, err := tlsOf(l.dir)
	if err != nil {
		return g, err
	}
	g.peers = peers
	more["app.token_file"] = l.appTokenFile
	more["lane.listen"], more["lane.token_file"] = ":16655", l.callTokenFile
	for i := range loadMembers {
		var first *router
		if i > 0 {
			first = g.routers[0]
		}
		r, err := l.start(ctx, "load", first, more)
		if err != nil {
			return g, err
		}
		g.routers = append(g.routers, r)
		path := filepath.Join(l.dir, fmt.Sprintf("app-%d.journal", i))
		app, err := startChild(l.dir, fmt.Sprint("app-", i), nil, roleApp, "--journal", path, "--endpoint", r.app())
		if err != nil {
			return g, err
		}
		g.apps, g.journals = append(g.apps, app), append(g.journals, journal.File{Path: path})
	}
	for _, r := range g.routers {
		if err := r.owns(ctx); err != nil {
			return g, err
		}
	}
	if g.bound, err = g.routers[0].metric(ctx, "ringfence_memory_bound_bytes"); err != nil {
		return g, err
	}
	g.load, err = newPublisher(l, g.routers[0].topic, rate)
	return g, err
}

// end ends all processes.
func (g *group) end() {
	for _, app := range g.apps {
		_ = app.end() // the journals tell
	}
	g.apps = nil
	for _, r := range g.routers {
		r.stop()
	}
	g.routers = nil
	if g.load != nil {
		g.load.close()
	}
}

// settled waits until every event has been handled.
func (g *group) settled(ctx context.Context) error {
	return eventually.Ask(ctx, 3*time.Minute, "everything is settled", func() error {
		var stats struct {
			Subscriptions map[string]struct {
				Backlog int `json:"msgBacklog"`
			} `json:"subscriptions"`
		}
		if err := g.lab.broker.Call(ctx, http.MethodGet, pulsaradmin.TopicPath(g.routers[0].topic)+"/stats", nil, &stats); err != nil {
			return err
		}
		if n := stats.Subscriptions["attacked"].Backlog; n > 0 {
			return fmt.Errorf("the broker has a backlog of %d", n)
		}
		for _, r := range g.routers {
			n, err := r.metric(ctx, "ringfence_source_unsettled")
			if err != nil || n > 0 {
				return errors.Join(err, fmt.Errorf("%v events are unsettled", n))
			}
		}
		return nil
	})
}

// publisher sends events at a rate, and remembers which the broker has.
type publisher struct {
	client   pulsar.Client
	producer pulsar.Producer
	rate     int
	random   *rand.Rand

	mu        sync.Mutex
	confirmed []string
}

func newPublisher(l *lab, topic string, rate int) (*publisher, error) {
	c, err := l.client()
	if err != nil {
		return nil, err
	}
	producer, err := c.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		c.Close()
		return nil, err
	}
	return &publisher{client: c, producer: producer, rate: rate, random: rand.New(rand.NewPCG(24, 1))}, nil
}

// run sends until ctx ends.
func (p *publisher) run(ctx context.Context) error {
	begin, sent := time.Now(), 0
	for backoff.Sleep(ctx, 10*time.Millisecond) == nil {
		for due := int(time.Since(begin).Seconds() * float64(p.rate)); sent < due; sent++ {
			name := strconv.Itoa(sent)
			message := &pulsar.ProducerMessage{Key: "user-" + strconv.Itoa(p.random.IntN(loadKeys)), Payload: []byte(name)}
			p.producer.SendAsync(context.WithoutCancel(ctx), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err == nil {
					p.mu.Lock()
					p.confirmed = append(p.confirmed, name)
					p.mu.Unlock()
				}
			})
		}
	}
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return p.producer.FlushWithCtx(flush)
}

func (p *publisher) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.confirmed)
}

func (p *publisher) close() {
	p.producer.Close()
	p.client.Close()
}

// phase is the routers' behaviour during one attack. Its JSON is for machines: fields are only
// added.
type phase struct {
	Name       string  `json:"name"`
	Rate       string  `json:"rate"`
	Seconds    float64 `json:"seconds"`
	Done       int64   `json:"done"`         // packets, connections, requests or runs of the attack
	Events     int     `json:"events"`       // that the broker took
	Attackers  float64 `json:"attacker_cpu"` // processors that the attack used
	Routers    float64 `json:"router_cpu"`   // and all routers
	Lapses     float64 `json:"lease_lapses"` // or removals, of all routers
	Probes     int     `json:"probes"`       // of /livez, at all routers
	ProbesLate int     `json:"probes_late"`  // of them, not answered within a second
	ProbeMaxMS float64 `json:"probe_max_ms"`
	MarginMS   float64 `json:"lease_margin_ms"` // the least that was left of a lease at a dispatch, of all routers
	PeakMiB    int64   `json:"peak_mib"`        // the most memory of one router
	BoundMiB   int64   `json:"bound_mib"`       // printed by the routers
}

// loadResult is the result of a run under load.
type loadResult struct {
	Phases   []phase  `json:"phases"`
	Events   uint64   `json:"events"`
	Keys     uint64   `json:"keys"`
	Overlaps uint64   `json:"overlaps"`
	Lost     uint64   `json:"lost"`
	Twice    uint64   `json:"handled_twice"`
	Broken   []string `json:"broken,omitempty"`
}

const (
	probeEvery = 500 * time.Millisecond
	probeMax   = time.Second
	lookEvery  = 100 * time.Millisecond // at memory
)

// watch asks the probes of all routers, and looks at their memory, until ctx ends.
func (g *group) watch(ctx context.Context, p *phase) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, r := range g.routers {
		all.Go(func() {
			for backoff.Sleep(ctx, probeEvery) == nil {
				begin := time.Now()
				code, _, err := askAt(context.WithoutCancel(ctx), r.admin(), http.MethodGet, "/livez", "")
				took := time.Since(begin)
				mu.Lock()
				p.Probes++
				p.ProbeMaxMS = max(p.ProbeMaxMS, math.Round(took.Seconds()*1e4)/10)
				if err != nil || code != http.StatusOK || took > probeMax {
					p.ProbesLate++
				}
				mu.Unlock()
			}
		})
		all.Go(func() {
			for backoff.Sleep(ctx, lookEvery) == nil {
				if now, err := residentOf(r.pid()); err == nil {
					mu.Lock()
					p.PeakMiB = max(p.PeakMiB, now>>20)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
}

// look returns the metrics of all routers, as soon as each answers.
func (g *group) look(ctx context.Context) (all []map[string]float64, err error) {
	for i, r := range g.routers {
		err := eventually.Ask(ctx, time.Minute, fmt.Sprintf("router %d shows its metrics", i), func() error {
			m, err := r.metrics(ctx)
			if err == nil {
				all = append(all, m)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

const marginSeries = "ringfence_ownership_lease_margin_seconds"

// during runs storms for the given time and returns the routers' behaviour.
func (g *group) during(ctx context.Context, name string, length time.Duration, storms ...storm) (phase, error) {
	p := phase{Name: name, Seconds: length.Seconds(), BoundMiB: int64(g.bound) >> 20}
	var rates []string
	for _, s := range storms {
		rates = append(rates, s.rate)
	}
	if p.Rate = strings.Join(rates, "; "); len(storms) > 1 {
		p.Rate = "each at its rate"
	}
	before, err := g.look(ctx)
	if err != nil {
		return p, err
	}
	var peaks []int64
	for _, r := range g.routers {
		most, err := peakOf(r.pid())
		if err != nil {
			return p, err
		}
		peaks = append(peaks, most)
	}
	published, own, routers := g.load.count(), ownCPU(), g.cpu()
	attacking, stop := context.WithTimeout(ctx, length)
	defer stop()
	var all sync.WaitGroup
	var done atomic.Int64
	for _, s := range storms {
		all.Go(func() { done.Add(s.run(attacking, g)) })
	}
	g.watch(attacking, &p)
	p.Routers = round2((g.cpu() - routers).Seconds() / length.Seconds())
	p.Events = g.load.count() - published
	all.Wait() // a child's CPU use is known at its end
	p.Done = done.Load()
	p.Attackers = round2((ownCPU() - own).Seconds() / length.Seconds())
	if ctx.Err() != nil {
		return p, ctx.Err()
	}
	after, err := g.look(ctx)
	if err != nil {
		return p, err
	}
	margin := math.Inf(1)
	for i, r := range g.routers {
		p.Lapses += leaseLosses(before[i], after[i])
		if m, ok := after[i][marginSeries]; ok { // since the look before
			margin = min(margin, m)
		}
		if most, err := peakOf(r.pid()); err == nil && most > peaks[i] { // between two looks at it
			p.PeakMiB = max(p.PeakMiB, most>>20)
		}
	}
	if !math.IsInf(margin, 1) {
		p.MarginMS = math.Round(margin * 1000)
	}
	return p, nil
}

func round2(x float64) float64 { return math.Round(x*100) / 100 }

// cpu returns the processor time of all routers.
func (g *group) cpu() (sum time.Duration) {
	for _, r := range g.routers {
		if used, err := cpuOf(r.pid()); err == nil {
			sum += used
		}
	}
	return sum
}

// underLoad goes through all attacks beside a load.
func underLoad(ctx context.Context, o options, l *lab) (*loadResult, error) {
	g, err := l.startGroup(ctx, o.Rate)
	if err != nil {
		return nil, err
	}
	defer g.end()
	loading, stop := context.WithCancel(ctx)
	defer stop()
	var load sync.WaitGroup
	var loadErr error
	load.Go(func() { loadErr = g.load.run(loading) })
	result := &loadResult{}
	err = g.phases(ctx, o, result)
	stop()
	load.Wait()
	if err = errors.Join(err, loadErr); ctx.Err() != nil || err != nil {
		return result, err
	}
	err = g.settled(ctx)
	journals, published := g.journals, g.load.confirmed
	g.end()
	report, checked := journal.Check(journals, slices.Values(published))
	if err := errors.Join(err, checked); err != nil {
		return result, err
	}
	result.Events, result.Keys, result.Overlaps, result.Lost, result.Twice = report.Published, report.Keys, report.Overlaps, report.Lost, report.Duplicates
	result.judge(o)
	return result, nil
}

// phases runs the control without an attack, each attack, all of them, and the control with their load on the CPU.
func (g *group) phases(ctx context.Context, o options, result *loadResult) error {
	if err := backoff.Sleep(ctx, 5*time.Second); err != nil { // until all keys are known
		return err
	}
	add := func(name string, storms ...storm) error {
		p, err := g.during(ctx, name, o.For, storms...)
		if err == nil {
			fmt.Fprintln(os.Stderr, p)
			result.Phases = append(result.Phases, p)
			err = backoff.Sleep(ctx, 2*time.Second)
		}
		return err
	}
	if err := add("no attack"); err != nil {
		return err
	}
	var all []storm
	for _, s := range storms() {
		if len(o.Only) > 0 && !slices.Contains(o.Only, s.number) {
			continue
		}
		all = append(all, s)
		if err := add(fmt.Sprintf("%d: %s", s.number, s.name), s); err != nil {
			return err
		}
	}
	if err := add("all of them together", all...); err != nil {
		return err
	}
	quiet, together := result.Phases[0], result.Phases[len(result.Phases)-1]
	busy := max(0.1, together.Attackers+together.Routers-quiet.Attackers-quiet.Routers)
	burn := storm{rate: fmt.Sprintf("%.2f processors", busy), run: func(ctx context.Context, g *group) int64 {
		c, err := startChild(g.lab.dir, "burn", nil, roleBurn, "--processors", fmt.Sprint(busy))
		if err != nil {
			return 0
		}
		<-ctx.Done()
		_ = c.end() // its work is done
		return 1
	}}
	return add("no attack, their load on the CPU", burn)
}

// judge records the broken promises.
func (r *loadResult) judge(o options) {
	broken := func(is bool, format string, args ...any) {
		if is {
			r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
		}
	}
	for _, p := range r.Phases {
		broken(p.Lapses > 0, "%s: %.0f leases lost", p.Name, p.Lapses)
		broken(p.ProbesLate > 0, "%s: %d of %d probes were not answered within %v", p.Name, p.ProbesLate, p.Probes, probeMax)
		broken(p.PeakMiB >= p.BoundMiB, "%s: %d MiB of memory, %d MiB is the bound", p.Name, p.PeakMiB, p.BoundMiB)
		broken(p.Rate != "" && p.Done == 0, "%s: nothing was done: this proves nothing", p.Name)
		broken(p.Probes == 0 || p.Events < int(p.Seconds)*o.Rate/2, "%s: %d probes and %d events: this proves nothing", p.Name, p.Probes, p.Events)
	}
	broken(r.Overlaps > 0, "%d overlaps", r.Overlaps)
	broken(r.Lost > 0, "%d events were lost", r.Lost)
	broken(r.Events == 0, "nothing was published: this proves nothing")
}

// String tells a phase in a row of a Markdown table.
func (p phase) String() string {
	return fmt.Sprintf("| %s | %s | %d | %.2f + %.2f | %.0f, %.0f ms | %.0f ms, %d of %d late | %d of %d MiB |",
		p.Name, p.Rate, p.Done, p.Attackers, p.Routers, p.Lapses, p.MarginMS, p.ProbeMaxMS, p.ProbesLate, p.Probes, p.PeakMiB, p.BoundMiB)
}

// tell prints the result, and returns an error if a promise broke.
func (r *loadResult) tell() error {
	fmt.Println("| Attack | Rate | Done | CPU of attack + routers | Leases lost, least margin | /livez | Memory |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, p := range r.Phases {
		fmt.Println(p)
	}
	fmt.Printf("\n%d events of %d keys: %d overlaps, %d lost, %d handled twice\n", r.Events, r.Keys, r.Overlaps, r.Lost, r.Twice)
	if len(r.Broken) > 0 {
		return fmt.Errorf("broken: %s", strings.Join(r.Broken, "\n"))
	}
	return nil
}
