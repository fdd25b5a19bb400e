package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/testing/eventually"
)

var overloadFor = flag.Duration("e2e.overload", 10*time.Second, "how long TestOverload publishes ten times what the applications can do")

// elsewhere is a router's memory beyond the bound on events, as documented in
// docs/install.md.
const elsewhere = 64 << 20

// TestOverload publishes ten times the rate that the applications can handle. No router may need
// more memory than documented for its printed bound. When the applications are fast again, all
// events are handled, and none is lost or remains.
func TestOverload(t *testing.T) {
	const (
		keys     = 5000
		size     = 1 << 10
		inFlight = 256         // of each application
		works    = time.Second // so two applications do 512 events a second
		tick     = 10 * time.Millisecond
		rate     = 10 * 2 * inFlight // a second
	)
	topic := pulsartest.Topic(t, 4)
	c := newCluster(t, "message_key", 0, topic)
	c.more = []string{ // bounds that are reached, so that their sum is tested
		"--app.workers_max=1", "--app.reason_bytes_max=64",
		"--mailbox.bytes_max=80MiB", "--mailbox.frames_bytes_max=8MiB", "--mailbox.window_bytes_max=8MiB",
		"--peer.peers_typical=1", "--peer.handover_max=10000",
		"--pulsar.receiver_queue_max=1000", "--pulsar.event_bytes_typical=2KiB", "--pulsar.unsettled_bytes_max=32MiB",
	}
	c.start("a")
	c.start("b")
	limits := map[*member]int{}
	for _, m := range c.members {
		c.ready(m)
		bound, err := c.metric(m, "ringfence_memory_bound_bytes")
		if err != nil {
			t.Fatal(err)
		}
		limits[m] = 2 * (int(bound) + elsewhere) // as much room again as GOGC=100 asks for
	}

	producer, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	end := time.Now().Add(*overloadFor)
	payload, err := json.Marshal(task{Works: works, Until: end, Ballast: make([]byte, size)})
	if err != nil {
		t.Fatal(err)
	}
	published := 0
	pace := time.NewTicker(tick)
	defer pace.Stop()
	begun := time.Now()
	for now := begun; now.Before(end); now = <-pace.C {
		for due := int(rate * now.Sub(begun).Seconds()); published < due; { // a busy machine skips ticks
			producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Key: fmt.Sprint("user-", published%keys), Payload: payload},
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					if err != nil {
						t.Errorf("produce: %v", err)
					}
				})
			published++
		}
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
	behind := published
	for _, m := range c.members {
		behind -= int(c.handled(m))
	}
	t.Logf("%d events were published in %v, %d of them have not begun", published, *overloadFor, behind)
	if behind < published/2 {
		t.Errorf("%d of %d events have begun: this was no overload", published-behind, published)
	}

	over := time.Now()
	c.settledWithin(max(3**overloadFor+time.Minute, eventually.Most)) // ten times as much is left as was done
	t.Logf("everything was settled %v later", time.Since(over).Round(time.Millisecond))
	c.check(ids(t, published, topic))
	for _, m := range c.members {
		peak, err := peakMemory(m.router.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: at most %d MiB resident, of %d MiB that it may have", m.name, peak>>20, limits[m]>>20)
		if peak > limits[m] {
			t.Errorf("%s had %d bytes resident, its limit is %d", m.name, peak, limits[m])
		}
		if n, err := c.metric(m, "ringfence_forward_full_keys"); err != nil || n != 0 {
			t.Errorf("%s has %v keys whose mailbox is full (%v)", m.name, n, err)
		}
	}
}

var peakLine = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// peakMemory returns the most bytes that a process has had resident.
func peakMemory(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	found := peakLine.FindSubmatch(b)
	if found == nil {
		return 0, errors.New("no VmHWM in /proc/PID/status")
	}
	kib, err := strconv.Atoi(string(found[1]))
	return kib << 10, err
}
