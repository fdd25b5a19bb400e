package entries

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
)

// Nothing else shows that no event of a topic can come any more. A broker tells it at each connection, the log says it once.
func TestATerminatedTopicIsSaidOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		var said strings.Builder
		a := r.cluster.Broker("a:6650")
		a.Script = func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() != pulsarpb.BaseCommand_FLOW {
				return false
			}
			l.Send(&pulsarpb.BaseCommand{
				Type:              pulsarpb.BaseCommand_REACHED_END_OF_TOPIC.Enum(),
				ReachedEndOfTopic: &pulsarpb.CommandReachedEndOfTopic{ConsumerId: c.GetFlow().ConsumerId},
			})
			return false
		}
		r.open().log = slog.New(slog.NewTextHandler(&said, nil))
		r.subscribe()
		r.cluster.Publish(topicName, fakebroker.Message("1"), 1)
		r.receive(1)
		a.Cut()
		r.receive(1)
		synctest.Wait()
		if lines := strings.Count(said.String(), "is terminated"); lines != 1 || !strings.Contains(said.String(), topicName) {
			t.Errorf("%d lines of a terminated topic, want 1, with its name:\n%s", lines, said.String())
		}
	})
}
