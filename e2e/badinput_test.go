package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsartest"
)

// refused runs a router that must end by itself, and returns its exit code and its
// output.
func refused(t *testing.T, within time.Duration, args ...string) (code int, said string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), routerBinary, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	overdue := time.AfterFunc(within, func() { _ = cmd.Process.Kill() })
	defer overdue.Stop()
	_ = cmd.Wait() // how it ended is in its ProcessState
	return cmd.ProcessState.ExitCode(), out.String()
}

func wantRefused(t *testing.T, code, wantCode int, said string, want ...string) {
	t.Helper()
	if code != wantCode {
		t.Errorf("exit code %d, want %d", code, wantCode)
	}
	for _, w := range want {
		if !strings.Contains(said, w) {
			t.Errorf("the output lacks %q", w)
		}
	}
	if t.Failed() {
		t.Logf("it said:\n%s", said[max(0, len(said)-2000):])
	}
}

// wantEnded waits until the router of a member has ended with exit code 1.
func wantEnded(t *testing.T, m *member, want ...string) {
	t.Helper()
	select {
	case <-m.router.done:
	case <-time.After(time.Minute):
		t.Fatalf("the router did not end: %s", tail(m.router.log))
	}
	said, err := os.ReadFile(m.router.log)
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, m.router.ProcessState.ExitCode(), 1, string(said), want...)
}

// another writes settings as those of a member's router, for one beside it, and returns their file.
func (c *cluster) another(m *member) string {
	c.t.Helper()
	config, err := os.ReadFile(filepath.Join(c.dir, m.name+".yaml"))
	if err != nil {
		c.t.Fatal(err)
	}
	file := filepath.Join(c.dir, "second.yaml")
	there := strings.ReplaceAll(string(config), m.ip+":", ipOf(c.net, 77)+":")
	if err := os.WriteFile(file, []byte(there), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

func TestUnknownSettingIsRefusedWithTheNearestName(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(file, []byte("pulsar: {subscriptio: orders}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, said := refused(t, 30*time.Second, "run", "--config", file)
	wantRefused(t, code, 2, said, "subscriptio", "pulsar.subscription")
}

func TestSubscriptionOfAnotherTypeIsRefused(t *testing.T) {
	t.Parallel()
	topic := pulsartest.Topic(t, 0)
	consumer, err := pulsartest.Client(t).Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "e2e", Type: pulsar.Failover,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	c := newCluster(t, "message_key", 0, topic)
	m := c.start("a") // with its application: a router without one does not subscribe
	wantEnded(t, m, topic, `"e2e"`, "another type than Shared")
}

func TestPartitionedControlTopicIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "message_key", 0, pulsartest.Topic(t, 0))
	pulsartest.Admin(t, http.MethodPut, "persistent/public/default/__ring-"+c.group+"/partitions", 3, nil)
	m := c.start("a")
	wantEnded(t, m, "partitioned", "no common order")
}

// TestSecondMemberOfOneNameIsRefused: the second member exits, and the first one is not
// disturbed.
func TestSecondMemberOfOneNameIsRefused(t *testing.T) {
	t.Parallel()
	const n = 500
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	first := c.start("twin")
	c.ready(first)
	code, said := refused(t, time.Minute, "run", "--config", c.another(first), "--ownership.name_in_use_after", "2s")
	wantRefused(t, code, 1, said, "twin", "name")

	names := publish(t, topic, func(i int) string { return fmt.Sprint("user-", i%50) }, make([]task, n))
	c.settled()
	c.check(names)
}

// TestEventBeyondAFrameIsDeadLettered: no frame carries it, so it goes aside with
// the reason, and the events around it do not notice.
func TestEventBeyondAFrameIsDeadLettered(t *testing.T) {
	t.Parallel()
	const small, size = 200, 9 << 20
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	a, b := c.start("a"), c.start("b")
	c.ready(a)
	c.ready(b)

	client := pulsartest.Client(t)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true, EnableChunking: true})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	send := func(payload []byte, i int) {
		m := &pulsar.ProducerMessage{Key: fmt.Sprint("user-", i), Payload: payload, Properties: map[string]string{"mine": "kept"}}
		if _, err := producer.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range small {
		send([]byte("small"), i)
		if i == small/2 {
			send(make([]byte, size), i)
		}
	}
	m := deadLetter(t, topic)
	if reason := m.Properties()["ringfence-reason"]; !strings.Contains(reason, "a frame carries") {
		t.Errorf("reason = %q", reason)
	}
	if len(m.Payload()) != size || m.Key() != fmt.Sprint("user-", small/2) || m.Properties()["mine"] != "kept" {
		t.Errorf("the dead letter has %d bytes, key %q and properties %v: not the original's", len(m.Payload()), m.Key(), m.Properties())
	}
	c.settled()
	if got := c.handled(a) + c.handled(b); got != small {
		t.Errorf("%d events were handled, want %d", got, small)
	}
}
