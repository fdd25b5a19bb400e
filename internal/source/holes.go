package source

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// AckHolesMax is Pulsar's default of managedLedgerMaxUnackedRangesToPersist: the number of ranges of
// acked entries between unacked ones that a broker persists per subscription of a topic partition. When
// it unloads the topic partition, acks beyond that are lost and their events are redelivered.
const AckHolesMax = 10_000

// AckHoles returns the number of such ranges of a subscription, on the topic partition that has most of them.
func AckHoles(ctx context.Context, admin pulsaradmin.Client, topic string, partitioned bool, subscription string) (int, error) {
	type stats struct {
		Subscriptions map[string]struct {
			Holes int `json:"nonContiguousDeletedMessagesRanges"`
		} `json:"subscriptions"`
	}
	var all struct {
		stats
		Partitions map[string]stats `json:"partitions"`
	}
	path := pulsaradmin.TopicPath(topic) + "/stats"
	if partitioned {
		path = pulsaradmin.TopicPath(topic) + "/partitioned-stats?perPartition=true"
	}
	if err := admin.Call(ctx, http.MethodGet, path, nil, &all); err != nil {
		return 0, fmt.Errorf("source: %w", err)
	}
	if !partitioned {
		return all.Subscriptions[subscription].Holes, nil
	}
	worst := 0
	for _, p := range all.Partitions {
		worst = max(worst, p.Subscriptions[subscription].Holes)
	}
	return worst, nil
}

// holesEvery is the interval at which the broker is asked for its holes.
const holesEvery = time.Minute

// noteHoles publishes the number of holes once in holesEvery, if the broker can be asked.
func (d *discovery) noteHoles(ctx context.Context) {
	now := clock.Now()
	if d.cfg.AdminURL == "" || d.holesAsked != 0 && now.Sub(d.holesAsked) < holesEvery {
		return
	}
	d.holesAsked = now
	admin := pulsaradmin.Client{URL: d.cfg.AdminURL, HTTP: d.admin}
	worst, failed := 0, false
	for _, topic := range d.topics() {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		holes, err := AckHoles(ctx, admin, topic, d.isPartitioned(topic), d.cfg.Subscription)
		cancel()
		if err != nil {
			if !d.holesUnknown { // said once, until it works again
				d.log.Warn("cannot ask the broker for the holes in its acks", "topic", topic, "error", err)
			}
			failed = true
			continue
		}
		worst = max(worst, holes)
	}
	d.holesUnknown = failed
	d.metrics.ackHoles.Set(float64(worst))
}

// isPartitioned reports whether partitions of a topic are read, rather than the topic.
func (d *discovery) isPartitioned(topic string) bool {
	for name := range d.reading {
		if strings.HasPrefix(name, topic+"-partition-") {
			return true
		}
	}
	return false
}
