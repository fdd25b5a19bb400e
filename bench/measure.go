package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
)

// The modes.
const (
	modeShared    = "shared"
	modeRingfence = "ringfence"
)

// Sample is one measured repetition.
type Sample struct {
	PerSecond float64
	CPU       map[string]float64 // role → CPU microseconds per event
}

// point is what a worker has done at an instant, or what a process has used.
type point struct {
	at    time.Time
	value float64 // events, or CPU seconds
}

// proc is one process under measurement.
type proc struct {
	role   string // app or router
	cmd    *exec.Cmd
	reader sync.WaitGroup

	mu     sync.Mutex
	events []point
	cpu    []point
}

// measure fills a fresh topic, starts the mode's processes, waits until they have
// handled everything, and computes the steady window's figures.
func measure(ctx context.Context, o Options, mode, dir string, round int) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	topic := fmt.Sprintf("persistent://public/default/bench-%s-%d-%x", mode, round, time.Now().UnixNano())
	if err := fill(ctx, o, topic); err != nil {
		return Sample{}, fmt.Errorf("fill %s: %w", topic, err)
	}
	procs, err := start(ctx, o, mode, topic, filepath.Join(dir, fmt.Sprintf("%s-%d", mode, round)))
	defer func() {
		cancel()
		for _, p := range procs {
			p.reader.Wait()
			_ = p.cmd.Wait() // it was killed
		}
	}()
	if err != nil {
		return Sample{}, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return Sample{}, fmt.Errorf("%d of %d events were handled: %w", total(procs), o.Events, ctx.Err())
		case <-tick.C:
		}
		for _, p := range procs {
			p.sampleCPU()
		}
		if total(procs) >= o.Events {
			return window(o, procs)
		}
	}
}

// fill publishes the backlog with the client's default batching, after the
// subscription was made so that nothing is missed.
func fill(ctx context.Context, o Options, topic string) error {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: o.PulsarURL, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return err
	}
	defer client.Close()
	sub, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "bench", Type: pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, ReceiverQueueSize: 1,
	})
	if err != nil {
		return err
	}
	sub.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, MaxPendingMessages: 5000})
	if err != nil {
		return err
	}
	defer producer.Close()
	var failed error
	var once sync.Once
	users := rand.New(rand.NewPCG(1, 1)) // the same load in every run
	pad := strings.Repeat("x", max(0, o.Size-44))
	for i := range o.Events {
		key := "user-" + strconv.Itoa(users.IntN(o.Keys))
		producer.SendAsync(ctx, &pulsar.ProducerMessage{
			Key:     key,
			Payload: fmt.Appendf(nil, `{"user":%q,"n":%d,"pad":%q}`, key, i, pad),
		}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	return errors.Join(producer.FlushWithCtx(ctx), failed)
}

func start(ctx context.Context, o Options, mode, topic, dir string) ([]*proc, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var procs []*proc
	launch := func(role string, name string, args ...string) error {
		p := &proc{role: role, cmd: exec.CommandContext(ctx, name, args...)}
		p.cmd.Env = append(os.Environ(), "GOGC="+strconv.Itoa(o.GOGC))
		log, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.log", role, len(procs))))
		if err != nil {
			return err
		}
		p.cmd.Stderr = log
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := p.cmd.Start(); err != nil {
			return fmt.Errorf("start %s: %w", role, err)
		}
		p.reader.Go(func() { p.read(out) })
		procs = append(procs, p)
		return nil
	}
	for i := range o.Nodes {
		switch mode {
		case modeShared:
			err = launch("app", self, workerCommand, "--mode", mode, "--handler", o.Handler, "--pulsar", o.PulsarURL, "--topic", topic)
		case modeRingfence:
			var config, endpoint string
			if config, endpoint, err = routerConfig(o, topic, dir, i); err != nil {
				return procs, err
			}
			if err = launch("router", o.Router, "run", "--config", config); err == nil {
				err = launch("app", self, workerCommand, "--mode", mode, "--handler", o.Handler, "--endpoint", endpoint)
			}
		}
		if err != nil {
			return procs, err
		}
	}
	return procs, nil
}

// read takes a worker's progress lines: the count of events it has handled.
func (p *proc) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			continue
		}
		p.mu.Lock()
		p.events = append(p.events, point{time.Now(), float64(n)})
		p.mu.Unlock()
	}
}

func (p *proc) sampleCPU() {
	seconds, err := cpuSeconds(p.cmd.Process.Pid)
	if err != nil {
		return // it has ended; its last point stays
	}
	p.mu.Lock()
	p.cpu = append(p.cpu, point{time.Now(), seconds})
	p.mu.Unlock()
}

// cpuSeconds reads what a process has used so far, user and system.
func cpuSeconds(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0, fmt.Errorf("unexpected /proc/%d/stat", pid)
	}
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, errors.Join(err1, err2) // USER_HZ is 100 on every Linux that Go runs on
}

func total(procs []*proc) int {
	n := 0.0
	for _, p := range procs {
		p.mu.Lock()
		if len(p.events) > 0 {
			n += p.events[len(p.events)-1].value
		}
		p.mu.Unlock()
	}
	return int(n)
}

// window computes the figures between the moment when warm of the backlog was
// handled, or a little after the last worker had begun where that was later, and the
// moment when 95 % was.
func window(o Options, procs []*proc) (Sample, error) {
	var from, to time.Time
	for _, p := range procs {
		if p.role != "app" {
			continue
		}
		began, ok := p.began()
		if !ok {
			return Sample{}, errors.New("one of the workers has handled nothing")
		}
		if at := began.Add(settle); at.After(from) {
			from = at
		}
	}
	if at := reached(procs, o.Warm*float64(o.Events)); at.After(from) {
		from = at
	}
	to = reached(procs, 0.95*float64(o.Events))
	took := to.Sub(from).Seconds()
	if took < 0.5 {
		return Sample{}, fmt.Errorf("the steady window is only %.2f s long: ask for more --events", took)
	}
	n := eventsAt(procs, to) - eventsAt(procs, from)
	s := Sample{PerSecond: n / took, CPU: map[string]float64{}}
	for _, p := range procs {
		s.CPU[p.role] += (valueAt(p.cpu, to) - valueAt(p.cpu, from)) * 1e6 / n
	}
	return s, nil
}

// reached returns the last moment of a report at which less than n events were handled.
func reached(procs []*proc, n float64) time.Time {
	var last time.Time
	for _, p := range procs {
		for _, e := range p.events {
			if e.at.After(last) && eventsAt(procs, e.at) < n {
				last = e.at
			}
		}
	}
	return last
}

// began returns when the worker reported its first event.
func (p *proc) began() (time.Time, bool) {
	for _, e := range p.events {
		if e.value > 0 {
			return e.at, true
		}
	}
	return time.Time{}, false
}

func eventsAt(procs []*proc, t time.Time) float64 {
	n := 0.0
	for _, p := range procs {
		n += valueAt(p.events, t)
	}
	return n
}

// valueAt interpolates between the points around t.
func valueAt(points []point, t time.Time) float64 {
	var before point
	for _, p := range points {
		if p.at.After(t) {
			if before.at.IsZero() {
				return 0
			}
			part := float64(t.Sub(before.at)) / float64(p.at.Sub(before.at))
			return before.value + part*(p.value-before.value)
		}
		before = p
	}
	return before.value
}

// buildRouter builds the router binary of this module into dir.
func buildRouter(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "router")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/ringfence/router/cmd/router")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the router: %w", err)
	}
	return bin, nil
}

// decode is what the json handler does with an event.
func decode(payload []byte) error {
	var v struct {
		User string `json:"user"`
		N    int    `json:"n"`
	}
	return json.Unmarshal(payload, &v)
}
