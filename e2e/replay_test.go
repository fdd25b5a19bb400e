package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// TestReplay: a cursor that is reset brings all events again. They are acked without a handler, which a metric shows,
// unless every member was told before that a replay is meant: then each event is handled once more.
func TestReplay(t *testing.T) {
	t.Parallel()
	const n = 300
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	c.ready(c.start("a"))
	c.ready(c.start("b"))
	publish(t, topic, func(i int) string { return fmt.Sprint("user-", i%50) }, make([]task, n))
	c.awaitHandlings(n)
	c.settled()
	shown := func() (sum float64) {
		for _, m := range c.members {
			got, err := c.metric(m, "ringfence_mailbox_done_first_deliveries_total")
			if err != nil {
				t.Fatal(err)
			}
			sum += got
		}
		return sum
	}
	reset := func() {
		hourAgo := time.Now().Add(-time.Hour).UnixMilli()
		pulsartest.Admin(t, http.MethodPost, fmt.Sprintf("%s/subscription/e2e/resetcursor/%d", pulsaradmin.TopicPath(topic), hourAgo), nil, nil)
	}

	if got := shown(); got != 0 {
		t.Errorf("%v events count as replayed before any was", got)
	}
	reset()
	eventually.NoError(t, time.Minute, "all events were redelivered and acked", func() error {
		if got := shown(); got != n {
			return fmt.Errorf("%v so far", got)
		}
		return nil
	})
	c.settled()
	if got := len(c.handlings()); got != n {
		t.Fatalf("%d handlings of %d events without a requested replay", got, n)
	}

	for range 2 {
		for _, m := range c.members {
			out, err := exec.Command(routerBinary, "forget-done", "--admin", m.ip+":16653").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "ids of finished events") {
				t.Fatalf("forget-done at %s: %v\n%s", m.name, err, out)
			}
		}
	}
	reset()
	c.awaitHandlings(2 * n)
	c.settled()
	times := map[string]int{}
	for _, h := range c.handlings() {
		times[h.event]++
	}
	for event, handlings := range times {
		if handlings != 2 {
			t.Errorf("%s was handled %d times, want twice", event, handlings)
		}
	}
	if len(times) != n {
		t.Errorf("%d events were handled, want %d", len(times), n)
	}
	if got := shown(); got != n {
		t.Errorf("%v events count as acked without a handler, want %d: those of the first reset", got, n)
	}
}
