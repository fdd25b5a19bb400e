package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarlog"
	"github.com/ringfence/router/internal/testing/eventually"
)

// The tokens of the routers under attack.
const (
	adminToken = "an-admin-token-that-no-stranger-has"
	appToken   = "a-token-of-workers-that-no-stranger-has"
	callToken  = "a-token-of-callers-that-no-stranger-has"
)

// appTokenVariable names a file with the token that the SDK sends.
const appTokenVariable = "RINGFENCE_APP_TOKEN_FILE"

const startMax = 60 * time.Second // until a router answers

// lab starts the routers that are attacked.
type lab struct {
	binary       string
	dir          string
	pulsar       string
	broker       pulsaradmin.Client
	known        map[string]bool // the settings that the binary understands
	appTokenFile string

	callTokenFile string // of lane.listen

	hosts int // loopback addresses given out so far
}

func newLab(ctx context.Context, binary, dir string) (*lab, error) {
	l := &lab{binary: binary, dir: dir, pulsar: os.Getenv("PULSAR_URL"), appTokenFile: filepath.Join(dir, "app-token"), callTokenFile: filepath.Join(dir, "call-token")}
	l.broker.URL = os.Getenv("PULSAR_ADMIN_URL")
	if l.pulsar == "" || l.broker.URL == "" {
		return nil, errors.New("no broker: set PULSAR_URL and PULSAR_ADMIN_URL, or run `make attack`")
	}
	for path, token := range map[string]string{l.appTokenFile: appToken, l.callTokenFile: callToken} {
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			return nil, err
		}
	}
	schema, err := l.command(ctx, nil, "config", "schema").Output()
	if err != nil {
		return nil, fmt.Errorf("%s config schema: %w", binary, err)
	}
	l.known, err = settingsOf(schema)
	return l, err
}

// settingsOf lists the settings of a JSON Schema, with dots.
func settingsOf(schema []byte) (map[string]bool, error) {
	type node struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	known := map[string]bool{}
	var walk func(prefix string, raw json.RawMessage) error
	walk = func(prefix string, raw json.RawMessage) error {
		var n node
		if err := json.Unmarshal(raw, &n); err != nil {
			return err
		}
		if len(n.Properties) == 0 {
			known[prefix] = true
			return nil
		}
		for name, inner := range n.Properties {
			if err := walk(strings.TrimPrefix(prefix+"."+name, "."), inner); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk("", schema); err != nil {
		return nil, fmt.Errorf("config schema: %w", err)
	}
	if !known["node.group"] {
		return nil, errors.New("config schema: no node.group among the settings")
	}
	return known, nil
}

// address returns a loopback address of this run's own.
func (l *lab) address() string {
	l.hosts++
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 150+pid/250%50, 1+pid%250, l.hosts)
}

// settings are the values of settings, by their names with dots.
type settings map[string]string

// environ returns settings as variables, without those that the binary does not know.
func (l *lab) environ(s settings) []string {
	var environ []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "RINGFENCE_") {
			environ = append(environ, variable)
		}
	}
	for name, value := range s {
		if l.known[name] {
			environ = append(environ, "RINGFENCE__"+strings.ToUpper(strings.ReplaceAll(name, ".", "__"))+"="+value)
		}
	}
	return environ
}

// command is the binary with arguments and settings.
func (l *lab) command(ctx context.Context, s settings, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.binary, args...)
	cmd.Env = l.environ(s)
	dieWithParent(cmd)
	return cmd
}

// router is one router under attack.
type router struct {
	lab         *lab
	ip, log     string
	group       string
	topic       string
	set         settings
	cmd         *exec.Cmd
	done        chan struct{} // closed when it has ended
	waiter      sync.WaitGroup
	stopRequest context.CancelFunc
}

func (r *router) app() string    { return r.ip + ":16650" }
func (r *router) peer() string   { return r.ip + ":16651" }
func (r *router) gossip() string { return r.ip + ":16652" }
func (r *router) admin() string  { return r.ip + ":16653" }
func (r *router) debug() string  { return r.ip + ":16654" }
func (r *router) pid() int       { return r.cmd.Process.Pid }

// prepare returns a router that is not started: one of a group and a topic of its own,
// or of other's when that is not nil.
func (l *lab) prepare(name string, other *router, more settings) *router {
	ip := l.address()
	own := fmt.Sprintf("attack-%d-%s", os.Getpid(), name)
	r := &router{lab: l, ip: ip, group: own, topic: "persistent://public/default/" + own, log: filepath.Join(l.dir, own+"-"+ip+".log")}
	seeds := ""
	if other != nil {
		r.group, r.topic, seeds = other.group, other.topic, other.gossip()
	}
	r.set = settings{
		"node.group": r.group, "node.name": "router-" + strings.ReplaceAll(ip, ".", "-"),
		"pulsar.url": l.pulsar, "pulsar.topics": r.topic, "pulsar.subscription": "attacked",
		"app.listen": r.app(), "peer.listen": r.peer(), "gossip.listen": r.gossip(), "gossip.seeds": seeds,
		"admin.listen": r.admin(), "debug.listen": r.debug(), "admin.token": adminToken, "log.format": "json",
	}
	for setting, value := range more {
		if value == "" {
			delete(r.set, setting)
			continue
		}
		if strings.HasPrefix(value, ":") { // a port of its own address
			value = ip + value
		}
		r.set[setting] = value
	}
	if seeds == "" {
		delete(r.set, "gossip.seeds")
	}
	return r
}

// start starts a router and waits until it answers.
func (l *lab) start(ctx context.Context, name string, other *router, more settings) (*router, error) {
	r := l.prepare(name, other, more)
	if err := r.launch(ctx); err != nil {
		return nil, err
	}
	err := eventually.Ask(ctx, startMax, "the router has started", func() error {
		if r.ended() {
			return fmt.Errorf("%w: it has ended: %s", eventually.ErrInVain, r.tail())
		}
		code, said, err := r.ask(ctx, "/startupz")
		if err == nil && code != http.StatusOK {
			err = errors.New(said)
		}
		return err
	})
	if err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *router) launch(ctx context.Context) error {
	log, err := os.Create(r.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the router has its own
	ctx, r.stopRequest = context.WithCancel(ctx)
	r.cmd = r.lab.command(ctx, r.set, "run")
	r.cmd.Stdout, r.cmd.Stderr = log, log
	if err := r.cmd.Start(); err != nil {
		r.stopRequest()
		return err
	}
	r.done = make(chan struct{})
	r.waiter.Go(func() {
		_ = r.cmd.Wait() // how it ended is in its ProcessState
		close(r.done)
	})
	return nil
}

func (r *router) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// stop ends the router, and removes its log.
func (r *router) stop() {
	_ = r.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-r.done
	r.stopRequest()
	_ = os.Remove(r.log) // some are large; the folder goes at the end anyway
}

// tail returns the last part of the log.
func (r *router) tail() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-1000):])
}

// logBytes returns the size of the log.
func (r *router) logBytes() int64 {
	info, err := os.Stat(r.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// logLines returns how many lines the log has.
func (r *router) logLines() int {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return 0
	}
	return bytes.Count(text, []byte("\n"))
}

// settledLog waits until the log has not grown for half a second, and returns its size.
func (r *router) settledLog(ctx context.Context) int64 {
	size := r.logBytes()
	for range 20 {
		if backoff.Sleep(ctx, 500*time.Millisecond) != nil {
			break
		}
		now := r.logBytes()
		if now == size {
			break
		}
		size = now
	}
	return size
}

const askMax = 5 * time.Second // for one answer of the admin page

// ask gets a path of the admin page, with headers as name, value.
func (r *router) ask(ctx context.Context, path string, headers ...string) (code int, said string, err error) {
	return askAt(ctx, r.admin(), http.MethodGet, path, "", headers...)
}

// operator makes a request with the token of operators.
func (r *router) operator(ctx context.Context, method, path, body string) (code int, said string, err error) {
	return askAt(ctx, r.admin(), method, path, body, "Authorization", "Bearer "+adminToken)
}

// askAt makes a request on a connection of its own. The header Host becomes that of the request.
func askAt(ctx context.Context, address, method, path, body string, headers ...string) (code int, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			request.Host = headers[i+1]
			continue
		}
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	return answer.StatusCode, strings.TrimSpace(string(text)), err
}

// alive returns an error unless the router still answers its probe.
func (r *router) alive(ctx context.Context) error {
	return eventually.Ask(ctx, 15*time.Second, "/livez answers", func() error {
		if r.ended() {
			return fmt.Errorf("%w: the router has ended: %s", eventually.ErrInVain, r.tail())
		}
		code, said, err := r.ask(ctx, "/livez")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, said)
		}
		return err
	})
}

var seriesLine = regexp.MustCompile(`(?m)^([a-z_]+(?:\{[^\n]*\})?) (\S+)$`)

// metrics returns all series of the router, with their labels.
func (r *router) metrics(ctx context.Context) (map[string]float64, error) {
	code, text, err := r.ask(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("/metrics: %d %.100q", code, text)
	}
	values := map[string]float64{}
	for _, line := range seriesLine.FindAllStringSubmatch(text, -1) {
		if v, err := strconv.ParseFloat(line[2], 64); err == nil {
			values[line[1]] = v
		}
	}
	return values, nil
}

// metric returns one series.
func (r *router) metric(ctx context.Context, series string) (float64, error) {
	all, err := r.metrics(ctx)
	if err != nil {
		return 0, err
	}
	v, ok := all[series]
	if !ok {
		return 0, fmt.Errorf("no metric %s", series)
	}
	return v, nil
}

// owns waits until the router has open partitions: a worker must be there.
func (r *router) owns(ctx context.Context) error {
	return eventually.Ask(ctx, startMax, "the router owns partitions", func() error {
		open, err := r.metric(ctx, "ringfence_ownership_open_partitions")
		if err == nil && open == 0 {
			err = errors.New("none is open")
		}
		return err
	})
}

// work runs an application that is let in, until ctx ends.
func (r *router) work(ctx context.Context, handle client.Handler) error {
	if err := client.Run(ctx, r.app(), handle, client.WithLogger(slog.New(slog.DiscardHandler))); ctx.Err() == nil {
		return err
	}
	return nil
}

// publish sends n events to the topic of a router; message makes the ith.
func (r *router) publish(ctx context.Context, n int, message func(i int) *pulsar.ProducerMessage) error {
	c, err := r.lab.client()
	if err != nil {
		return err
	}
	defer c.Close()
	producer, err := c.CreateProducer(pulsar.ProducerOptions{Topic: r.topic, DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	for i := range n {
		if _, err := producer.Send(ctx, message(i)); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) client() (pulsar.Client, error) {
	return pulsar.NewClient(pulsar.ClientOptions{
		URL: l.pulsar, ConnectionTimeout: 5 * time.Second, OperationTimeout: 20 * time.Second,
		Logger: pulsarlog.New(slog.New(slog.DiscardHandler)),
	})
}
