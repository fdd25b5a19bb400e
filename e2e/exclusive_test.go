package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/ring"
)

// TestExclusiveThroughKillJoinAndLeave is the main promise on the real thing: 200,000
// events on 10,000 keys, half of them from a producer that knows nothing of keys;
// one member is killed, one joins, one leaves.
func TestExclusiveThroughKillJoinAndLeave(t *testing.T) {
	const half, keys = 100_000, 10_000
	perf, own := pulsartest.Topic(t, 0), pulsartest.Topic(t, 4)
	c := newCluster(t, "json:user", 3*time.Second, perf, own)
	t.Setenv("RINGFENCE_OWNERSHIP_JOURNAL", c.dir)
	a, b, d := c.start("a"), c.start("b"), c.start("d")
	for _, m := range []*member{a, b, d} {
		c.ready(m)
	}
	produced := make(chan error, 2)
	go func() { produced <- produceWithPulsarPerf(t, perf, half, keys) }()
	go func() { produced <- produce(t, own, half, keys) }()

	c.progress(40_000)
	c.killMember(a)
	t.Log("killed a")
	c.progress(90_000)
	e := c.start("e")
	c.ready(e)
	t.Log("e has joined")
	c.progress(140_000)
	if code := c.leave(b); code != 0 {
		t.Errorf("b left with exit code %d, want 0", code)
	}
	t.Log("b has left")
	for range 2 {
		if err := <-produced; err != nil {
			t.Fatal(err)
		}
	}
	c.settled()
	report := c.check(ids(t, 2*half, perf, own))
	if report.Keys != keys {
		t.Errorf("%d keys were handled, want %d", report.Keys, keys)
	}
	for _, m := range c.members {
		if n := c.handled(m); n == 0 {
			t.Errorf("%s handled nothing: this run proved less than it claims", m.name)
		}
	}
	c.stop()
	cmd := exec.Command("go", "test", "github.com/ringfence/router/spec", "-run", "Journals", "-count=1", "-v", "-spec.journals="+c.dir)
	out, err := cmd.CombinedOutput()
	if t.Logf("the model's word on the routers' journals:\n%s", out); err != nil {
		t.Errorf("the model does not allow the routers' steps: %v", err)
	}
}

// produceWithPulsarPerf sends JSON lines with Pulsar's own load tool. It picks lines
// at random, so each key gets one for certain first, by our own producer.
func produceWithPulsarPerf(t *testing.T, topic string, n, keys int) error {
	lines := make([]string, keys)
	for i := range lines {
		lines[i] = payload(i)
	}
	file := filepath.Join(t.TempDir(), "payloads.json")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		return err
	}
	home, err := exec.Command("../tools/pulsar.sh", "home").Output()
	if err != nil {
		return fmt.Errorf("tools/pulsar.sh home: %w", err)
	}
	cmd := exec.Command(filepath.Join(strings.TrimSpace(string(home)), "bin", "pulsar-perf"), "produce", topic,
		"--service-url", pulsartest.URL(t), "--payload-file", file, "--num-messages", fmt.Sprint(n), "--rate", "20000")
	cmd.Env = append(os.Environ(), "PULSAR_MEM=-Xms128m -Xmx512m")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pulsar-perf: %w\n%s", err, out)
	}
	return nil
}

// produce sends n events over all keys with the Go client's default batching.
func produce(t *testing.T, topic string, n, keys int) error {
	client, err := pulsar.NewClient(pulsartest.Options(t))
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	defer producer.Close()
	pace := time.NewTicker(50 * time.Millisecond)
	defer pace.Stop()
	for i := range n {
		if i%1000 == 0 {
			<-pace.C // 20,000 a second
		}
		user := i
		if i >= keys {
			user = rand.IntN(keys)
		}
		producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Payload: []byte(payload(user % keys))},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					t.Errorf("produce: %v", err)
				}
			})
	}
	return producer.FlushWithCtx(t.Context())
}

func payload(user int) string { return fmt.Sprintf(`{"user":"user-%d","action":"click"}`, user) }

// TestAckedWhereItWasReceived shows that an event whose owner is another node is
// acked on the subscription of the node that received it.
func TestAckedWhereItWasReceived(t *testing.T) {
	t.Parallel()
	const n = 2000
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "property:user", 0, topic)
	a, b := c.start("a"), c.start("b")
	c.ready(a)
	c.ready(b)
	users := ownedBy(t, "b", "a", "b")

	producer, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{Topic: topic, BatchingMaxMessages: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i := range n {
		producer.SendAsync(t.Context(), &pulsar.ProducerMessage{
			Payload: []byte("hello"), Properties: map[string]string{"user": users[i%len(users)]},
		}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				t.Errorf("produce: %v", err)
			}
		})
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.settled()
	c.check(ids(t, n, topic))
	if got := c.handled(a); got != 0 {
		t.Errorf("a handled %d events of keys that b owns", got)
	}
	if got := c.handled(b); got != n {
		t.Errorf("b handled %d events, want %d", got, n)
	}
	received, err := c.metric(a, `ringfence_source_received_total{kind="fresh"}`)
	if err != nil || received == 0 {
		t.Errorf("a received %v events (%v): nothing was acked away from its owner", received, err)
	}
	for _, consumer := range pulsartest.Stats(t, topic, "e2e").Consumers {
		if consumer.Unacked != 0 {
			t.Errorf("consumer %s has %d unacked events", consumer.Name, consumer.Unacked)
		}
	}
}

// ownedBy returns names of users whose keys belong to the owner, in a group of these members.
func ownedBy(t *testing.T, owner ring.Member, members ...ring.Member) []string {
	t.Helper()
	r, err := ring.New(members, ring.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	var users []string
	for i := 0; len(users) < 100; i++ {
		user := fmt.Sprintf("user-%d", i)
		if _, m := r.Locate(user); m == owner {
			users = append(users, user)
		}
	}
	return users
}
