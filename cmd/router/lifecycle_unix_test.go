//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ringfence/router/internal/base/timerslack"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// docs/lifecycle.md names the tests of this file beside its arrows. They run a pod of processes: a
// router, an application beside it, and this test as the supervisor.

// pod is a sidecar and its application.
type pod struct {
	t        *testing.T
	broker   *membroker.Broker
	address  string // of the broker
	file     string // settings
	name     string // of the member
	listen   string // for the application
	gossip   string
	seeds    []string // gossip of the other members
	admin    string
	endpoint string
	sidecar  *podProcess
	app      *podProcess
	stderr   *os.File // of the next child; nil: its screen
}

// podProcess is a process that a supervisor has started.
type podProcess struct {
	*exec.Cmd
	shown *written.Text
	ended chan struct{}
}

const topicOfPod = "persistent://public/default/orders"

func newPod(t *testing.T, settings string) *pod {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{t: t, broker: membroker.New(membroker.DefaultConfig()), address: l.Addr().String()}
	server := grpc.NewServer()
	membroker.Register(server, p.broker)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	ports := freePorts(t, 3)
	dir := t.TempDir()
	p.listen, p.endpoint = procgroup.AppAddress(filepath.Join(dir, "app.sock"), ports[2])
	p.admin, p.file = procgroup.Loopback(ports[1]), filepath.Join(dir, "router.yaml")
	p.name, p.gossip = "pod-0", procgroup.Loopback(ports[0])
	p.writeSettings(settings)
	return p
}

// writeSettings writes the file with the settings of the sidecar.
func (p *pod) writeSettings(further string) {
	p.t.Helper()
	s := procgroup.Settings{
		Group: "orders", Name: p.name, Topics: []string{topicOfPod}, Subscription: "orders",
		Namespace: "public/default", App: p.listen, Gossip: p.gossip, Admin: p.admin, Seeds: p.seeds,
	}
	if err := os.WriteFile(p.file, append(s.YAML(), further...), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// start starts this binary as a child, which ends with the test at the latest.
func (p *pod) start(environ []string, arguments ...string) *podProcess {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	c := &podProcess{Cmd: exec.Command(self, arguments...), shown: &written.Text{}, ended: make(chan struct{})}
	c.Env = append(os.Environ(), environ...)
	c.Stdout, c.Stderr = c.shown, c.shown
	if p.stderr != nil {
		c.Stderr = p.stderr
	}
	stdin, err := c.StdinPipe() // a child of the demo ends with it
	if err != nil {
		p.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		_ = c.Wait() // the state is checked
		close(c.ended)
	}()
	p.t.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended long ago
		<-c.ended
		_ = stdin.Close()
		if p.t.Failed() {
			p.t.Logf("%v:\n%s", arguments[0], c.shown)
		}
	})
	return c
}

func (p *pod) startSidecar(flags ...string) {
	p.t.Helper()
	p.sidecar = p.start(nil, append([]string{"demo", "member", "--config", p.file, "--broker", p.address}, flags...)...)
}

func (p *pod) startApp(environ ...string) {
	p.t.Helper()
	p.app = p.start(append(environ, "RINGFENCE_APP_ENDPOINT="+p.endpoint), testApp)
}

// get asks the sidecar; the status is 0 if it does not answer.
func (p *pod) get(path string) (status int, body string) {
	p.t.Helper()
	method := http.MethodGet
	if strings.HasPrefix(path, "/undrain") {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(context.Background(), method, "http://"+p.admin+path, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body) // as much as there is
	return response.StatusCode, string(text)
}

func (p *pod) expect(path string, status int, body string) {
	p.t.Helper()
	if got, text := p.get(path); got != status || !strings.Contains(text, body) {
		p.t.Fatalf("%s: %d %q, want %d with %q", path, got, text, status, body)
	}
}

// answers waits until a probe does.
func (p *pod) answers(path string) {
	p.t.Helper()
	eventually.True(p.t, path, func() bool { status, _ := p.get(path); return status == http.StatusOK })
}

func (p *pod) signal(c *podProcess, s os.Signal) {
	p.t.Helper()
	if err := c.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// code waits for the end of a child and returns its exit code, -1 after a signal.
func (p *pod) code(c *podProcess) int {
	p.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(eventually.Most):
		p.t.Fatal("it does not end")
	}
	return c.ProcessState.ExitCode()
}

func (c *podProcess) lives() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// publish sends n events of as many keys, in entries of their own.
func (p *pod) publish(prefix string, n int) {
	p.t.Helper()
	for i := range n {
		e := membroker.Message{Key: fmt.Sprintf("%s-%d", prefix, i), Payload: fmt.Appendf(nil, "%s %d", prefix, i)}
		if _, err := p.broker.Publish(p.t.Context(), topicOfPod, []membroker.Message{e}); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *pod) settled() {
	p.t.Helper()
	eventually.True(p.t, "everything is settled", func() bool {
		s := p.broker.SubscriptionStats("orders")
		return s.Backlog == 0 && s.Unacked == 0
	})
}

// TestLifecycleNativeSidecar is the supervisor of a Kubernetes pod, in the order that
// KEP-753 sets: the sidecar starts first and the application when its startup probe has
// passed; at the end the application's preStop hook comes first, then its SIGTERM, and
// the sidecar's SIGTERM only when the application has gone.
func TestLifecycleNativeSidecar(t *testing.T) {
	t.Parallel()
	p := newPod(t, "")
	p.startSidecar()
	p.answers("/startupz")
	p.expect("/livez", 200, "ok")
	p.expect("/readyz", 503, "application: no application is connected")
	p.startApp()
	p.expect("/undrain", 200, "undrained") // an application sends this at its start; there is no drain to undo
	p.answers("/readyz")
	p.publish("first", 50)
	p.settled()

	p.publish("second", 50)
	p.expect("/drain?wait=30s", 200, "drained") // the preStop hook
	p.expect("/drain?wait=30s", 200, "drained")
	p.expect("/readyz", 503, "drain: drained")
	p.expect("/livez", 200, "ok")
	if !p.sidecar.lives() || !p.app.lives() {
		t.Fatal("a drain has ended a process")
	}
	p.signal(p.app, syscall.SIGTERM)
	if code := p.code(p.app); code != exitOK {
		t.Errorf("the application: exit code %d", code)
	}
	if !p.sidecar.lives() {
		t.Fatal("the sidecar has ended with the application")
	}
	p.signal(p.sidecar, syscall.SIGTERM)
	if code := p.code(p.sidecar); code != exitOK {
		t.Errorf("the sidecar: exit code %d, want %d", code, exitOK)
	}

	// The restarted router gets the events that the drained one had not taken.
	if s := p.broker.SubscriptionStats("orders"); s.Unacked != 0 {
		t.Errorf("it ended with %d unacked events", s.Unacked)
	}
	p.startSidecar()
	p.startApp()
	p.settled()
}

// TestMembersHaveAWideTimerSlack: a process that runs a member has it, and others of the router do not.
func TestMembersHaveAWideTimerSlack(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // only Linux has a slack
	}
	for _, c := range []struct {
		arguments string
		is        bool
	}{
		{"run", true},
		{"run --config router.yaml -- app run", true},
		{"demo member --config router.yaml", true},
		{"prove member", true},
		{"", false},
		{"demo", false},
		{"demo app", false},
		{"lock run -- run member", false},
		{"invoke member member", false},
	} {
		if is := isMember(strings.Fields(c.arguments)); is != c.is {
			t.Errorf("router %s: %t, want %t", c.arguments, is, c.is)
		}
	}
	p := newPod(t, "")
	p.startSidecar()
	p.answers("/livez")
	slack, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", p.sidecar.Process.Pid))
	if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		return // Linux tells root alone
	}
	if want := fmt.Sprintf("%d\n", timerslack.Wide); err != nil || string(slack) != want {
		t.Errorf("the slack is %q (%v), want %q", slack, err, want)
	}
}

// TestLifecycleApplicationRestart: a liveness probe makes the kubelet call the preStop
// hook too, so the application calls /undrain when it starts.
func TestLifecycleApplicationRestart(t *testing.T) {
	t.Parallel()
	p := newPod(t, "")
	p.startSidecar()
	p.answers("/startupz")
	p.startApp()
	p.answers("/readyz")
	p.expect("/drain?wait=30s", 200, "drained")
	p.signal(p.app, syscall.SIGTERM)
	p.code(p.app)
	p.publish("while away", 10)
	p.startApp() // which is all that it takes
	p.answers("/readyz")
	p.expect("/undrain?wait=30s", 200, "undrained")
	p.settled()
}

func TestLifecycleSecondSignal(t *testing.T) {
	t.Parallel()
	p := newPod(t, "")
	p.startSidecar()
	p.startApp("TEST_APP_HOLDS=1")
	p.answers("/readyz")
	p.publish("held", 1)
	eventually.True(p.t, "the handler runs", func() bool { return strings.Contains(p.app.shown.String(), "holding") })
	p.signal(p.sidecar, syscall.SIGTERM)
	eventually.True(p.t, "it drains", func() bool { _, body := p.get("/readyz"); return strings.Contains(body, "drain: draining") })
	p.expect("/undrain", 409, "start it again")
	p.signal(p.sidecar, syscall.SIGTERM)
	if code := p.code(p.sidecar); code != -1 {
		t.Errorf("exit code %d, want the end by a signal", code)
	}
}

func TestLifecycleExitCodes(t *testing.T) {
	t.Parallel()
	t.Run("1: it could not run", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, "")
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", p.admin)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		p.startSidecar()
		if code := p.code(p.sidecar); code != exitFailed || !strings.Contains(p.sidecar.shown.String(), "admin.listen") {
			t.Errorf("exit code %d, want %d; output %s", code, exitFailed, p.sidecar.shown)
		}
	})
	t.Run("2: wrong settings", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, "drain: {timeuot: 1s}\n")
		p.startSidecar()
		if code := p.code(p.sidecar); code != exitUsage || !strings.Contains(p.sidecar.shown.String(), "drain.timeout") {
			t.Errorf("exit code %d, want %d and the nearest name; output %s", code, exitUsage, p.sidecar.shown)
		}
	})
	t.Run("3: the drain was cut", func(t *testing.T) {
		t.Parallel()
		p := newPod(t, "")
		// Little time between the two: when the lease ends, the handler is cancelled, and the drain is complete.
		p.startSidecar("--drain.timeout", "1600ms", "--ownership.drain_timeout", "1500ms")
		p.startApp("TEST_APP_HOLDS=1")
		p.answers("/readyz")
		p.publish("held", 1)
		eventually.True(p.t, "the handler runs", func() bool { return strings.Contains(p.app.shown.String(), "holding") })
		p.signal(p.sidecar, syscall.SIGTERM)
		if code := p.code(p.sidecar); code != exitUndrain || !strings.Contains(p.sidecar.shown.String(), "1 events are not settled; the broker will deliver them again") {
			t.Errorf("exit code %d, want %d; output %s", code, exitUndrain, p.sidecar.shown)
		}
		p.signal(p.app, syscall.SIGKILL)
		p.startSidecar()
		p.startApp()
		p.settled() // safe: it was delivered again
	})
}

// TestLifecycleRouterIsKilled is a row of the table of an application's observations.
func TestLifecycleRouterIsKilled(t *testing.T) {
	t.Parallel()
	p := newPod(t, "")
	p.startSidecar()
	p.startApp("TEST_APP_HOLDS=1")
	p.answers("/readyz")
	p.publish("held", 1)
	eventually.True(p.t, "the handler runs", func() bool { return strings.Contains(p.app.shown.String(), "holding") })
	p.signal(p.sidecar, syscall.SIGKILL)
	p.code(p.sidecar)
	eventually.True(p.t, "the handler's context is cancelled", func() bool { return strings.Contains(p.app.shown.String(), "cancelled: client: the key is lost") })
	p.startSidecar()
	p.answers("/readyz") // the same application has found it
	p.publish("after", 20)
	p.settled()
	if !p.app.lives() {
		t.Error("the application has ended")
	}
}

// TestNoAnswerFromBeforeADrain: pages remember their answers for a moment, but after a drain or an undrain a router gives no answer from before it.
func TestNoAnswerFromBeforeADrain(t *testing.T) {
	t.Parallel()
	p := newPod(t, "")
	p.startSidecar()
	p.startApp()
	p.answers("/readyz")
	for _, verb := range []string{"drain", "undrain", "drain"} {
		var before report.Members
		if err := p.ask("/v1/members", &before); err != nil {
			t.Fatal(err)
		}
		if out, says, code := answered(t, verb, "--admin="+p.admin, "--wait=30s"); code != 0 {
			t.Fatalf("%s: exit code %d, %s%s", verb, code, out, says)
		}
		var m report.Members
		var s report.Status
		if err := errors.Join(p.ask("/v1/members", &m), p.ask("/v1/status", &s)); err != nil {
			t.Fatal(err)
		}
		if want := verb == "drain"; len(m.Members) != 1 || m.Members[0].Status.Drained != want || s.Drained != want {
			t.Errorf("after %s: members %+v, status %+v; want drained: %v", verb, m.Members, s, want)
		}
	}
}
