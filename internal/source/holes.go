package source

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/topicname"
)

// AckHolesMax is the default of managedLedgerMaxUnackedRangesToPersist in Pulsar 4 (200,000 in 5.0): the number of ranges of
// acked entries between unacked ones that a broker persists per subscription of a topic partition. When
// it unloads the topic partition, acks beyond that are lost and their events are redelivered.
const AckHolesMax = 10_000

// Backlog returns the number of such ranges of a subscription, and of its messages that are not acked, each on the topic partition that has most of
// them.
func Backlog(ctx context.Context, admin pulsaradmin.Client, topic string, partitioned bool, subscription string) (holes, messages int, err error) {
	type stats struct {
		Subscriptions map[string]struct {
			Holes    int `json:"nonContiguousDeletedMessagesRanges"`
			Messages int `json:"msgBacklog"`
		} `json:"subscriptions"`
	}
	var all struct {
		stats
		Partitions map[string]stats `json:"partitions"`
	}
	if err := admin.Call(ctx, http.MethodGet, pulsaradmin.StatsPath(topic, partitioned, true), nil, &all); err != nil {
		return 0, 0, fmt.Errorf("source: %w", err)
	}
	if !partitioned {
		of := all.Subscriptions[subscription]
		return of.Holes, of.Messages, nil
	}
	for _, p := range all.Partitions {
		of := p.Subscriptions[subscription]
		holes, messages = max(holes, of.Holes), max(messages, of.Messages)
	}
	return holes, messages, nil
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
	topics := d.topics()
	if d.timers() == nil {
		topics = append(topics, d.cfg.TimerTopic())
	}
	for _, topic := range topics {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		holes, waiting, err := Backlog(ctx, admin, topic, d.isPartitioned(topic), d.cfg.Subscription)
		cancel()
		if err != nil {
			if !d.holesUnknown { // said once, until it works again
				d.log.Warn("cannot ask the broker for the holes in its acks", "topic", topic, "error", err)
			}
			failed = true
			continue
		}
		worst = max(worst, holes)
		if topic == d.cfg.TimerTopic() {
			d.metrics.timersPending.Set(float64(waiting))
		}
	}
	d.holesUnknown = failed
	d.metrics.ackHoles.Set(float64(worst))
}

// isPartitioned reports whether partitions of a topic are read, rather than the topic.
func (d *discovery) isPartitioned(topic string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.reading {
		if base, number := topicname.Split(name); base == topic && number >= 0 {
			return true
		}
	}
	return false
}
