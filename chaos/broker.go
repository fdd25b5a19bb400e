//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/testing/eventually"
)

// ledgerEntries is the length of the broker's ledgers in a run with rollovers: the control log of a
// few members fills one in about ten seconds. The broker has no such limit for a single topic, so
// the ledgers of the events roll over every second or two. Their producers and the control log
// wait for that, so no times are measured then.
const ledgerEntries = 150

// broker is a Pulsar of our own, on the bridge.
type broker struct {
	url, handle string
	admin       pulsaradmin.Client
	env         []string
}

// startBroker starts it, with short ledgers or with the broker's own ones.
func startBroker(ctx context.Context, dir string, short bool) (*broker, error) {
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return nil, err
	}
	b := &broker{env: append(os.Environ(), "TMPDIR="+tmp, "RINGFENCE_PULSAR_FROM=dist", "PULSAR_URL=")}
	if os.Getenv("RINGFENCE_PULSAR_WAIT") == "" {
		b.env = append(b.env, "RINGFENCE_PULSAR_WAIT=300") // it is not alone on the machine
	}
	args := []string{"start", "--own", "--advertise", brokerIP}
	if short {
		args = append(args, "--set", fmt.Sprint("managedLedgerMaxEntriesPerLedger=", ledgerEntries), "--set", "managedLedgerMinLedgerRolloverTimeMinutes=0")
	}
	out, err := b.tool(ctx, args...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "PULSAR_URL":
			b.url = value
		case "PULSAR_ADMIN_URL":
			b.admin.URL = value
		case "PULSAR_HANDLE":
			b.handle = value
		}
	}
	return b, b.admin.Call(ctx, http.MethodPut, pulsaradmin.TopicPath(eventsTopic)+"/partitions", topicPartitions, nil)
}

func (b *broker) tool(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "tools/pulsar.sh", args...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = b.env, &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tools/pulsar.sh %s: %w\n%s", args[0], err, said.String())
	}
	return string(out), nil
}

// restart kills the broker and starts it again on its data, and up to four times more if it loops then.
func (b *broker) restart(ctx context.Context) error {
	for range 5 {
		if _, err := b.tool(ctx, "restart", b.handle); err != nil {
			return err
		}
		if loops, err := b.loops(ctx); err != nil || !loops {
			return err
		}
		say("%v: it is restarted again", errBrokerLoops)
	}
	return errBrokerLoops
}

// errBrokerLoops says that the broker takes a core for nothing, so that a group may not become whole beside it.
var errBrokerLoops = errors.New("the broker deletes and makes the registration of its bookie for ever (https://github.com/apache/pulsar/issues/17759)")

// loops reports whether what the broker's log gains in two seconds shows that: it loses its registration once or twice at its start, and else hundreds of
// times a second.
func (b *broker) loops(ctx context.Context) (bool, error) {
	log, err := os.Open(b.log())
	if err != nil {
		return false, err
	}
	defer func() { _ = log.Close() }() // it was only read
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		return false, err
	}
	if err := backoff.Sleep(ctx, 2*time.Second); err != nil {
		return false, err
	}
	n, err := registrationsLost(log)
	return n >= 20, err
}

// registrationsLost counts the lines that say so.
func registrationsLost(log io.Reader) (n int, err error) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if isRegistrationLost(lines.Bytes()) {
			n++
		}
	}
	return n, lines.Err()
}

func isRegistrationLost(line []byte) bool {
	_, after, found := bytes.Cut(line, []byte("Lock on resource /ledgers/available/"))
	return found && bytes.Contains(after, []byte(" was invalidated"))
}

func (b *broker) log() string { return filepath.Join(b.handle, "logs", "broker.log") }

// keepLog copies the end of the broker's log to the other processes' logs.
func (b *broker) keepLog(dir string) error {
	log, err := os.Open(b.log())
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // it was only read
	const most = 8 << 20
	if size, err := log.Seek(0, io.SeekEnd); err != nil {
		return err
	} else if _, err := log.Seek(max(0, size-most), io.SeekStart); err != nil {
		return err
	}
	kept, err := os.Create(filepath.Join(dir, "broker.log"))
	if err != nil {
		return err
	}
	_, err = io.Copy(kept, log)
	return errors.Join(err, kept.Close())
}

// Topic partitions that are added while events flow.
const (
	partitionsStep = 2
	partitionsMax  = 64 // more are not added: each costs every member a consumer
	// discoverEvery is the interval at which producers and routers look for new topic partitions.
	discoverEvery = 2 * time.Second
)

// morePartitions adds topic partitions to the events' topic, and returns when each of them has been published to
// and is consumed.
func (b *broker) morePartitions(ctx context.Context) error {
	before, err := b.eventPartitions(ctx)
	if err != nil || len(before) >= partitionsMax {
		return err
	}
	more := len(before) + partitionsStep
	// A broker that has just restarted answers, and cannot write before its bookie has registered.
	if err := eventually.Ask(ctx, time.Minute, "the broker adds topic partitions", func() error {
		err := b.admin.Call(ctx, http.MethodPost, pulsaradmin.TopicPath(eventsTopic)+"/partitions", more, nil)
		if err != nil {
			if now, failed := b.eventPartitions(ctx); failed == nil && len(now) >= more {
				return nil // an attempt that was answered with an error has added them
			}
		}
		return err
	}); err != nil {
		return err
	}
	return eventually.Ask(ctx, time.Minute, "added topic partitions are used", func() error {
		all, err := b.eventPartitions(ctx)
		if err != nil {
			return err
		}
		used := 0
		for _, p := range all {
			if p.Published > 0 && len(p.Subscriptions[subscription].Consumers) > 0 {
				used++
			}
		}
		if used < more {
			return fmt.Errorf("%d of %d topic partitions", used, more)
		}
		return nil
	})
}

// partitionStats are the broker's statistics of a topic partition.
type partitionStats struct {
	Published     int64 `json:"msgInCounter"`
	Subscriptions map[string]struct {
		Consumers []struct{} `json:"consumers"`
	} `json:"subscriptions"`
}

// eventPartitions returns the topic partitions of the events, by name.
func (b *broker) eventPartitions(ctx context.Context) (map[string]partitionStats, error) {
	var all struct {
		Partitions map[string]partitionStats `json:"partitions"`
	}
	err := b.admin.Call(ctx, http.MethodGet, pulsaradmin.TopicPath(eventsTopic)+"/partitioned-stats?perPartition=true", nil, &all)
	return all.Partitions, err
}

func (b *broker) unload(ctx context.Context, topic string) error {
	return b.admin.Call(ctx, http.MethodPut, pulsaradmin.TopicPath(topic)+"/unload", nil, nil)
}

func (b *broker) remove(ctx context.Context, topic string) error {
	return b.admin.Call(ctx, http.MethodDelete, pulsaradmin.TopicPath(topic)+"?force=true", nil, nil)
}

// ledger returns the newest ledger of a topic.
func (b *broker) ledger(ctx context.Context, topic string) (newest int64, err error) {
	var stats struct {
		Ledgers []struct {
			ID int64 `json:"ledgerId"`
		} `json:"ledgers"`
	}
	err = b.admin.Call(ctx, http.MethodGet, pulsaradmin.TopicPath(topic)+"/internalStats", nil, &stats)
	for _, l := range stats.Ledgers {
		newest = max(newest, l.ID)
	}
	return newest, err
}

// awaitRollover waits until a topic continues in another ledger.
func (b *broker) awaitRollover(ctx context.Context, topic string) error {
	before, err := b.ledger(ctx, topic)
	if err != nil {
		return err
	}
	return eventually.Ask(ctx, time.Minute, "the ledger has rolled over", func() error {
		newest, err := b.ledger(ctx, topic)
		if err == nil && newest == before {
			err = fmt.Errorf("it is still ledger %d", before)
		}
		return err
	})
}

// backlog returns how many entries of the events are not acked.
func (b *broker) backlog(ctx context.Context) (int, error) {
	var stats struct {
		Subscriptions map[string]struct {
			Backlog int `json:"msgBacklog"`
		} `json:"subscriptions"`
	}
	err := b.admin.Call(ctx, http.MethodGet, pulsaradmin.TopicPath(eventsTopic)+"/partitioned-stats?perPartition=false", nil, &stats)
	return stats.Subscriptions[subscription].Backlog, err
}
