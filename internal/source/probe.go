package source

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// limits are a broker's limits as its admin API reports them.
type limits struct {
	unackedConsumer     int // the least of all topics
	unackedSubscription int // the least of all topics
	batchIndexAcks      string
}

// probeTimeout bounds each question to the admin API.
const probeTimeout = 5 * time.Second

// errCounting says that events would never be acked: a broker that acks whole entries
// drops acks of single events.
var errCounting = errors.New("source: pulsar.batch_index_acks is on, but the broker acks only whole entries: " +
	"turn this off, or acknowledgmentAtBatchIndexLevelEnabled on at all brokers")

// probe asks the admin API for the limits of topics, with the policies of topic and
// namespace applied. The topics have to exist, but for those that cannot be read any more: the
// limits are those of the others then.
func probe(ctx context.Context, admin pulsaradmin.Client, topics []string, unread map[string]error) (limits, error) {
	l := limits{unackedConsumer: math.MaxInt32, unackedSubscription: math.MaxInt32}
	ask := func(path string, answer any) error {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		if err := admin.Call(ctx, http.MethodGet, path, nil, answer); err != nil {
			return fmt.Errorf("source: %w", err)
		}
		return nil
	}
	var gone error
	known := false
	for _, topic := range topics {
		path := pulsaradmin.TopicPath(topic)
		for name, least := range map[string]*int{
			"/maxUnackedMessagesOnConsumer":     &l.unackedConsumer,
			"/maxUnackedMessagesOnSubscription": &l.unackedSubscription,
		} {
			var n int
			if err := ask(path+name+"?applied=true", &n); err != nil && unread[topic] != nil {
				gone = err
				continue
			} else if err != nil {
				return limits{}, err
			}
			if known = true; n > 0 { // 0 is no limit
				*least = min(*least, n)
			}
		}
	}
	if !known {
		return limits{}, gone
	}
	settings := map[string]string{}
	// Only administrators may ask this; without the right, the configuration counts.
	if err := ask("brokers/configuration/runtime", &settings); err == nil {
		l.batchIndexAcks = settings["acknowledgmentAtBatchIndexLevelEnabled"]
	}
	return l, nil
}
