package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
)

// subscription is the shared state of all consumers of a round's topic.
const subscription = "bench"

const namespace = "public/default"

// brokerPID returns the process of the broker that tools/pulsar.sh started, or 0 when
// it runs in a container or somewhere else.
func brokerPID(handle string) int {
	if handle == "" {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(handle, "pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0
	}
	return pid
}

// admin is the broker's admin API. Its zero value has none: then nothing is deleted,
// nothing is known of acks, and there are no partitioned topics.
type admin struct{ pulsaradmin.Client }

func (a admin) there() bool { return a.URL != "" }

func (a admin) get(ctx context.Context, path string, into any) error {
	return a.Call(ctx, http.MethodGet, path, nil, into)
}

func (a admin) delete(ctx context.Context, path string) error {
	return a.Call(ctx, http.MethodDelete, path+"?force=true", nil, nil)
}

const ownTopics = "persistent/" + namespace

// createPartitioned makes a topic with n partitions.
func (a admin) createPartitioned(ctx context.Context, topic string, n int) error {
	return a.Call(ctx, http.MethodPut, ownTopics+"/"+localName(topic)+"/partitions", n, nil)
}

// deleteRound deletes every topic of a round: its own, and those that routers have
// made for the group that bears its name.
func (a admin) deleteRound(ctx context.Context, topic string) error {
	if !a.there() {
		return nil
	}
	var partitioned, plain []string
	if err := a.get(ctx, ownTopics+"/partitioned", &partitioned); err != nil {
		return err
	}
	var errs []error
	for _, name := range partitioned {
		if ofRound(name, topic) {
			errs = append(errs, a.delete(ctx, ownTopics+"/"+localName(name)+"/partitions"))
		}
	}
	if err := a.get(ctx, ownTopics, &plain); err != nil {
		return err
	}
	for _, name := range plain {
		if ofRound(name, topic) {
			errs = append(errs, a.delete(ctx, ownTopics+"/"+localName(name)))
		}
	}
	return errors.Join(errs...)
}

// ofRound reports whether a topic belongs to the round of topic.
func ofRound(name, topic string) bool { return strings.Contains(localName(name), localName(topic)) }

func localName(topic string) string { return topic[strings.LastIndex(topic, "/")+1:] }

// entries are the broker's counts for a subscription, in entries: a batch is one.
type entries struct {
	at    time.Time
	added float64 // so far
	open  float64 // published, and not acked as a whole
}

// entriesOf asks for a topic, or for all its partitions.
func (a admin) entriesOf(ctx context.Context, topic string, partitions int) (entries, error) {
	sum := entries{at: time.Now()}
	for _, name := range partitionNames(topic, partitions) {
		var stats struct {
			EntriesAdded float64 `json:"entriesAddedCounter"`
			Cursors      map[string]struct {
				Consumed float64 `json:"messagesConsumedCounter"` // counts entries, in spite of its name
			} `json:"cursors"`
		}
		if err := a.get(ctx, ownTopics+"/"+name+"/internalStats", &stats); err != nil {
			return entries{}, err
		}
		sum.added += stats.EntriesAdded
		sum.open += stats.EntriesAdded - stats.Cursors[subscription].Consumed
	}
	return sum, nil
}

// meanOpen returns the average time that an entry stayed unacked, by Little's law: the average
// number of open entries divided by the rate of arrivals. It is 0 if nothing arrived.
func meanOpen(samples []entries) time.Duration {
	if len(samples) < 2 {
		return 0
	}
	first, last := samples[0], samples[len(samples)-1]
	took, came := last.at.Sub(first.at), last.added-first.added
	if took <= 0 || came <= 0 {
		return 0
	}
	open := 0.0
	for _, s := range samples {
		open += s.open / float64(len(samples))
	}
	return time.Duration(open / came * float64(took))
}

// version returns the broker's release, or "" if the broker does not tell it.
func (a admin) version(ctx context.Context) string {
	if !a.there() {
		return ""
	}
	b, err := a.Do(ctx, http.MethodGet, "brokers/version", nil)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
