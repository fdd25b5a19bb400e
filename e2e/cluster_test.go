package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/testing/eventually"
)

// appCommand in the environment makes the test binary an application under test.
const appCommand = "RINGFENCE_E2E_APP"

var routerBinary string // built once for all tests

func TestMain(m *testing.M) {
	if os.Getenv(appCommand) != "" {
		if err := application(); err != nil {
			fmt.Fprintln(os.Stderr, "application:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(build(m))
}

// build builds the router and runs the tests.
func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ringfence-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	var release func()
	if ownOctet, release, err = claimRun(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer release()
	routerBinary = filepath.Join(dir, "router")
	cmd := exec.Command("go", "build", "-o", routerBinary, "github.com/ringfence/router/cmd/router")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the router: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// task holds the instructions of an event to the application; most events have none.
type task struct {
	Fails uint32        `json:"fails,omitempty"` // how often it fails before it is done
	After time.Duration `json:"after,omitempty"` // the delay that it asks for, 0 for the router's own
	Works time.Duration `json:"works,omitempty"` // how long it takes, 0 for a moment
	Gate  string        `json:"gate,omitempty"`  // a file: it takes until that is there
	Until time.Time     `json:"until,omitzero"`  // when Works ends to count, zero for never

	Ballast []byte `json:"ballast,omitempty"` // makes the event heavier
}

// works reports whether the event takes as long as it asks for.
func (t task) works() bool {
	return t.Works > 0 && (t.Until.IsZero() || time.Now().Before(t.Until))
}

// application is a worker that journals every handling. It works for a moment, now
// and then for longer than a lease, and stops at once when its key is lost.
func application() error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // the test that started it is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	app, err := journal.Create(os.Getenv("RINGFENCE_E2E_JOURNAL"))
	if err != nil {
		return err
	}
	slow, err := time.ParseDuration(os.Getenv("RINGFENCE_E2E_SLOW"))
	if err != nil {
		return err
	}
	return client.Run(ctx, os.Getenv("RINGFENCE_APP_ENDPOINT"), func(ctx context.Context, e *client.Event) error {
		var asked task
		_ = json.Unmarshal(e.Payload, &asked) // a payload that is not JSON has no instructions
		h, err := app.Start(e.ID.String(), event.Key(e.Key), event.Fence(e.Fence))
		if err != nil {
			return err
		}
		work := time.Duration(rand.Int64N(int64(500 * time.Microsecond)))
		switch {
		case asked.works():
			work = asked.Works
		case slow > 0 && rand.IntN(2000) == 0:
			work = slow
		}
		timer := time.NewTimer(work)
		defer timer.Stop()
		select {
		case <-opened(ctx, asked.Gate, timer.C):
			if uint32(e.Attempt) <= asked.Fails {
				return errors.Join(app.End(h, journal.Failed), client.RetryAfter(errors.New("as it was asked to"), asked.After))
			}
			return app.End(h, journal.Done)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), app.End(h, journal.Cancelled))
		}
	}, client.WithMaxInFlight(256))
}

// opened returns a channel on which something comes when a file is there, the other one if there is no file to wait for.
func opened(ctx context.Context, file string, other <-chan time.Time) <-chan time.Time {
	if file == "" {
		return other
	}
	there := make(chan time.Time, 1)
	go func() {
		for backoff.Sleep(ctx, 10*time.Millisecond) == nil {
			if _, err := os.Stat(file); err == nil {
				there <- time.Time{}
				return
			}
		}
	}()
	return there
}

// cluster is a group of routers with an application each, on one topic list.
type cluster struct {
	t      *testing.T
	dir    string
	group  string
	topics []string
	keys   string // where keys come from
	slow   time.Duration
	net    int      // the group's own loopback network, so that ports are never taken
	more   []string // settings besides those that every test needs, as flags

	members []*member
	files   []journal.File
}

// member is one router process and the application process beside it.
type member struct {
	name, ip string
	router   *process
	app      *process
	file     int // index of the application's journal

	routerBinary, appBinary string // other programs than those of this build
}

type process struct {
	*exec.Cmd
	stdin io.Closer
	log   string
	done  chan struct{} // closed when it has ended
}

// networks counts the clusters of this test process.
var networks struct {
	sync.Mutex
	n int
}

func newCluster(t *testing.T, keys string, slow time.Duration, topics ...string) *cluster {
	networks.Lock()
	networks.n++
	c := &cluster{t: t, dir: t.TempDir(), group: pulsartest.Name(t), topics: topics, keys: keys, slow: slow, net: networks.n}
	networks.Unlock()
	t.Cleanup(c.stop)
	return c
}

// start adds a member with its application.
func (c *cluster) start(name string) *member {
	c.t.Helper()
	m := &member{}
	c.add(name, m)
	return m
}

// add names a member and starts it with its application.
func (c *cluster) add(name string, m *member) {
	c.t.Helper()
	m.name, m.ip = name, ipOf(c.net, len(c.members)+1)
	c.members = append(c.members, m)
	c.startRouter(m)
	c.startApp(m)
}

// startApp starts the application of a member, for the first time or again. Each has
// a journal of its own.
func (c *cluster) startApp(m *member) {
	c.t.Helper()
	m.file = len(c.files)
	path := filepath.Join(c.dir, fmt.Sprintf("%s-%d.journal", m.name, m.file))
	c.files = append(c.files, journal.File{Path: path})
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	m.app = c.launch("app-"+m.name, cmp.Or(m.appBinary, self), nil,
		appCommand+"=1", "RINGFENCE_E2E_JOURNAL="+path, "RINGFENCE_E2E_SLOW="+c.slow.String(), "RINGFENCE_APP_ENDPOINT="+m.ip+":16650")
}

// startRouter starts the router of a member, for the first time or again.
func (c *cluster) startRouter(m *member) {
	c.t.Helper()
	settings := fmt.Sprintf(`
node: {group: %q, name: %q}
pulsar: {url: %q, topics: %q, subscription: e2e}
key: {from: %q}
app: {listen: "%[6]s:16650"}
peer: {listen: "%[6]s:16651"}
gossip: {listen: "%[6]s:16652", seeds: ["%[7]s:16652"]}
admin: {listen: "%[6]s:16653"}
debug: {listen: "%[6]s:16654"}
`, c.group, m.name, pulsartest.URL(c.t), strings.Join(c.topics, ","), c.keys, m.ip, ipOf(c.net, 1))
	config := filepath.Join(c.dir, m.name+".yaml")
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		c.t.Fatal(err)
	}
	args := []string{"run", "--config", config}
	m.router = c.launch("router-"+m.name, cmp.Or(m.routerBinary, routerBinary), append(args, c.more...))
}

func (c *cluster) launch(name, binary string, args []string, env ...string) *process {
	c.t.Helper()
	p := &process{Cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.log = filepath.Join(c.dir, name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	p.Stdout, p.Stderr = log, log
	p.Env = append(os.Environ(), env...)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that is killed leaves nothing behind
	if p.stdin, err = p.StdinPipe(); err == nil {
		err = p.Start()
	}
	_ = log.Close() // the process has its own
	if err != nil {
		c.t.Fatal(err)
	}
	go func() {
		_ = p.Wait() // how it ended is in its ProcessState
		close(p.done)
	}()
	return p
}

// kill ends a process as a power cut would, waits until it is gone, and returns an instant from which on it did not run.
func (c *cluster) kill(p *process) clock.Instant {
	c.t.Helper()
	if err := p.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	at := clock.Now() // not after the wait: until that returns, its keys may already run elsewhere
	<-p.done
	return at
}

// killMember kills a router and its application together, as a lost machine does.
func (c *cluster) killMember(m *member) {
	c.t.Helper()
	c.kill(m.router)
	c.files[m.file].KilledAt = c.kill(m.app)
}

// leave asks a router to drain and end, and returns its exit code.
func (c *cluster) leave(m *member) int {
	c.t.Helper()
	if err := m.router.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-m.router.done:
	case <-time.After(eventually.Most):
		c.t.Fatalf("%s does not end; its log: %s", m.name, tail(m.router.log))
	}
	return m.router.ProcessState.ExitCode()
}

// stop ends everything and, after a failure, shows the logs' ends.
func (c *cluster) stop() {
	for _, m := range c.members {
		for _, p := range []*process{m.router, m.app} {
			_ = p.Process.Kill() // it may have ended
			<-p.done
			_ = p.stdin.Close()
			if c.t.Failed() {
				c.t.Logf("end of %s:\n%s", filepath.Base(p.log), tail(p.log))
			}
		}
	}
}

// tail returns the last part of a log.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-3000):])
}

// ready waits until the member is ready.
func (c *cluster) ready(m *member) {
	c.t.Helper()
	eventually.NoError(c.t, eventually.Most, m.name+" is ready", func() error {
		body, status, err := get("http://" + m.ip + ":16653/readyz")
		if err == nil && status != http.StatusOK {
			err = errors.New(strings.TrimSpace(body))
		}
		return err
	})
}

// metric returns a metric without labels of the member's router.
func (c *cluster) metric(m *member, name string) (float64, error) {
	body, _, err := get("http://" + m.ip + ":16653/metrics")
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(body)
	if found == nil {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return strconv.ParseFloat(found[1], 64)
}

// settled waits until the broker has nothing left and no living router holds anything.
func (c *cluster) settled() {
	c.t.Helper()
	c.settledWithin(eventually.Most)
}

func (c *cluster) settledWithin(most time.Duration) {
	c.t.Helper()
	eventually.NoError(c.t, most, "everything is settled", func() error {
		for _, topic := range c.topics {
			if s := pulsartest.Stats(c.t, topic, "e2e"); s.Backlog != 0 {
				return fmt.Errorf("%s has a backlog of %d", topic, s.Backlog)
			}
		}
		for _, m := range c.members {
			select {
			case <-m.router.done:
				continue
			default:
			}
			if n, err := c.metric(m, "ringfence_source_unsettled"); err != nil || n != 0 {
				return errors.Join(err, fmt.Errorf("%s has %v unsettled", m.name, n))
			}
		}
		return nil
	})
}

// walk calls visit for every record of all journals, in the order of time.
func (c *cluster) walk(visit func(journal.Step) error) error {
	paths := make([]string, len(c.files))
	for i, f := range c.files {
		paths[i] = f.Path
	}
	return journal.Walk(paths, visit)
}

// check reads the journals and fails the test if a promise broke.
func (c *cluster) check(published []string) journal.Report {
	c.t.Helper()
	report := c.checkPromises(published)
	if report.Unknown != 0 {
		c.t.Errorf("%d events were handled that were not published", report.Unknown)
	}
	return report
}

// checkPromises is check for a load whose published events are not all known: a producer that
// has lost a receipt may send an event twice.
func (c *cluster) checkPromises(published []string) journal.Report {
	c.t.Helper()
	report, err := journal.Check(c.files, slices.Values(published))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Logf("%d events on %d keys: done %d, unfinished %d, cancelled %d, duplicates %d; longest gap of a key %v",
		report.Published, report.Keys, report.Done, report.Unfinished, report.Cancelled, report.Duplicates, report.Gap.Max)
	for _, k := range report.Takeovers {
		c.t.Logf("takeover after the kill: %+v", k.Keys)
	}
	if report.Overlaps != 0 {
		c.t.Errorf("%d overlapping handlings of one key, the longest by %v: %+v", report.Overlaps, report.OverlapMax, report.OverlapExamples)
	}
	if report.Lost != 0 {
		c.t.Errorf("%d of %d events were lost, such as %v", report.Lost, report.Published, report.LostExamples)
	}
	return report
}

// handled returns the number of events that the member's application has started so far.
func (c *cluster) handled(m *member) uint64 {
	c.t.Helper()
	report, err := journal.Check(c.files[m.file:m.file+1], nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return report.Started
}

// progress waits until the applications have started this many handlings.
func (c *cluster) progress(n uint64) {
	c.t.Helper()
	eventually.NoError(c.t, eventually.Most, fmt.Sprintf("%d handlings", n), func() error {
		sum := uint64(0)
		for _, m := range c.members {
			sum += c.handled(m)
		}
		if sum < n {
			return fmt.Errorf("%d so far", sum)
		}
		return nil
	})
}

// ids reads topics from their beginning to their end and returns the ids of all
// messages, as the applications see them. It fails if there are fewer than want.
func ids(t *testing.T, want int, topics ...string) []string {
	t.Helper()
	client := pulsartest.Client(t)
	var all []string
	for _, topic := range topics {
		partitions, err := client.TopicPartitions(topic)
		if err != nil {
			t.Fatal(err)
		}
		for i, partition := range partitions {
			number := int32(-1)
			if partition != topic {
				number = int32(i)
			}
			all = append(all, idsOf(t, client, partition, number)...)
		}
	}
	if len(all) < want {
		t.Fatalf("the topics hold %d events, want at least %d", len(all), want)
	}
	return all
}

func idsOf(t *testing.T, client pulsar.Client, topic string, partition int32) (all []string) {
	t.Helper()
	reader, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for reader.HasNext() {
		m, err := reader.Next(t.Context())
		if err != nil {
			t.Fatalf("read %s: %v", topic, err)
		}
		all = append(all, nameOf(m.ID(), partition))
	}
	return all
}

// nameOf returns the id of a message as the applications see it.
func nameOf(id pulsar.MessageID, partition int32) string {
	batch := int32(-1) // a batch of one is sent as none
	if id.BatchSize() > 1 {
		batch = id.BatchIdx()
	}
	return event.MessageID{Ledger: id.LedgerID(), Entry: id.EntryID(), Batch: batch, TopicPartition: partition}.String()
}

func get(url string) (body string, status int, err error) {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get(url)
	if err != nil {
		return "", 0, err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return string(b), answer.StatusCode, err
}
