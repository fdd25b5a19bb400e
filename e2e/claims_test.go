package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ringfence/router/internal/broker/pulsartest"
)

// TestAnotherGroupOnTheSubscription: a second group on a subscription, as by a second Helm release, ends with exit
// code 5, and the first one works on. The claim is released only when no member lives, or by force, which ends the members.
func TestAnotherGroupOnTheSubscription(t *testing.T) {
	t.Parallel()
	const n = 300
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	first := c.start("a")
	c.ready(first)
	ours, second := filepath.Join(c.dir, "a.yaml"), c.another(first)
	green := c.group + "-green"
	code, said := refused(t, time.Minute, "run", "--config", second, "--node.group", green, "--node.name", "b")
	wantRefused(t, code, 5, said, "__ring-"+green, "node.group is", "router group release")

	names := publish(t, topic, func(i int) string { return fmt.Sprint("user-", i%50) }, make([]task, n))
	c.settled()
	c.check(names)

	code, said = refused(t, time.Minute, "group", "show", "--config", ours, "-o", "json")
	wantRefused(t, code, 0, said, `"held": "this group"`, `"began": true`)
	code, said = refused(t, time.Minute, "group", "release", "--config", second, "--node.group", green)
	wantRefused(t, code, 5, said, "held with other settings", "node.group is")
	code, said = refused(t, time.Minute, "group", "release", "--config", ours)
	wantRefused(t, code, 1, said, "members of the group are running")
	code, said = refused(t, time.Minute, "group", "release", "--config", ours, "--force")
	wantRefused(t, code, 0, said, "released: subscription "+topic)
	select {
	case <-first.router.done:
	case <-time.After(time.Minute):
		t.Fatal("the router of the released group did not end")
	}
	if code := first.router.ProcessState.ExitCode(); code != 5 {
		t.Errorf("the router of the released group ended with %d, want 5", code)
	}
	code, said = refused(t, time.Minute, "group", "show", "--config", second, "--node.group", green, "-o", "json")
	wantRefused(t, code, 0, said, `"held": "nobody"`, `"released": true`, `"began": true`)
}
