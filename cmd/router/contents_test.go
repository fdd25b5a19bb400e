package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

// plantedContents are parts of events that cannot be printed by chance.
var plantedContents = map[string]string{
	"key":          `planted "key" of Erika/ü`,
	"ordering key": "planted-ordering-key-1",
	"payload":      `{"planted-user":"Erika Mustermann","planted-iban":"DE89370400440532013000"}`,
	"field":        "DE89370400440532013000",
	"property":     "planted-property-Heidestraße 17",
}

// contentKinds are the events of TestLogsShowNoContents, by their results at the handler.
var contentKinds = []string{"done", "failed once", "rejected", "always failed", "stuck"}

// TestLogsShowNoContents: two members that log all that they can hand events of a real broker on to each other, through
// every outcome, with applications that put all that they know into their errors; and no line has a key, a payload or a
// property, as it stands or escaped. Pulsar's client logs at the same level.
func TestLogsShowNoContents(t *testing.T) {
	url, topic := pulsartest.URL(t), pulsartest.Topic(t, 0)
	handled.Store(0)
	group := pulsartest.Name(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*eventually.Most)
	defer stop()
	addresses := map[string][3]string{} // app, gossip, admin
	for _, name := range []string{"a", "b"} {
		addresses[name] = [3]string{freeAddress(t), freeAddress(t), freeAddress(t)}
	}
	logged := withStderr(t, func() {
		members, endMembers := context.WithCancel(ctx)
		apps, endApps := context.WithCancel(ctx)
		var routers, workers sync.WaitGroup
		for name, at := range addresses {
			routers.Go(func() {
				if _, err := command(members, "run", "--node.group="+group, "--node.name="+name, "--node.advertise_ip=127.0.0.1",
					"--pulsar.topics="+topic, "--pulsar.subscription=contents", "--pulsar.url="+url, "--log.format=json",
					"--app.listen="+at[0], "--peer.listen=127.0.0.1:0", "--gossip.listen="+at[1], "--gossip.seeds="+addresses["a"][1], "--admin.listen="+at[2],
					"--ownership.profile=fast", "--handler.timeout=1s", "--retry.attempts_max=3", "--retry.backoff_min=10ms", "--retry.backoff_max=20ms", "--retry.retry_hold_max=15ms",
				); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
			workers.Go(func() {
				err := client.Run(apps, at[0], tellAll, client.WithLogger(slog.New(slog.DiscardHandler)))
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("application of %s: %v", name, err)
				}
			})
		}
		defer func() {
			endMembers()
			routers.Wait()
			endApps()
			workers.Wait()
		}()
		for _, at := range addresses {
			toDebug(ctx, t, "http://"+at[2])
		}
		awaitContents(ctx, t, "http://"+addresses["a"][2], "both own partitions", func(m report.Members) bool {
			for _, one := range m.Members {
				if one.Partitions == 0 || one.Status == nil || one.Status.Gates.Open != one.Partitions {
					return false
				}
			}
			return len(m.Members) == 2
		})
		plantContents(ctx, t, topic)
		awaitContents(ctx, t, "http://"+addresses["a"][2], "all events have an end", func(m report.Members) bool {
			left := 0
			for _, one := range m.Members {
				if one.Status == nil {
					return false
				}
				left += one.Status.Events.Unsettled
			}
			return left == 0 && handled.Load() >= int64(contentEvents)
		})
	})
	if ctx.Err() != nil {
		t.Fatal("it took too long")
	}
	for name, content := range plantedContents {
		quoted := strconv.Quote(content)
		inJSON, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		clean(t, name, logged, content, strings.Trim(quoted, `"`), strings.Trim(string(inJSON), `"`), strings.Trim(strconv.Quote(quoted), `"`))
	}
	for _, part := range []string{"Mustermann", "planted", "Heidestra"} {
		clean(t, "a part", logged, part)
	}
	// The logs cover the whole journey.
	for _, want := range []string{
		`"msg":"received"`, `"msg":"sent"`, `"msg":"in the mailbox"`, `"msg":"delivered"`, `"msg":"finished"`, `"msg":"settled"`, `"msg":"no answer from the handler in time"`,
		`"msg":"dead letter"`, `"msg":"failed; copied to the retry topic"`, "cannot handle ", "(key hidden)", "(content hidden)",
		"Received command: BaseCommand SEND_RECEIPT", "Received send request: (pulsar.ProducerMessage)",
	} {
		if !strings.Contains(logged, want) {
			t.Errorf("no line of the log has %s", want)
		}
	}
}

// contentEvents is the number of planted events: some keys of each kind, alone and in batches.
const contentEvents = 5 * 2 * 8

// handled counts events that were seen by a handler for the first time.
var handled atomic.Int64

// tellAll is a handler whose errors have all that it knows.
func tellAll(ctx context.Context, e *client.Event) error {
	if e.Attempt == 1 {
		handled.Add(1)
	}
	property, _ := e.Property("address")
	kind, _ := e.Property("kind")
	err := fmt.Errorf("cannot handle %s %q %s: %s %q %s %s %q", e.Key, e.Key, url.PathEscape(e.Key), e.Payload, e.Payload, plantedContents["field"], property, property)
	switch kind {
	case "failed once":
		if e.Attempt > 1 {
			return nil
		}
		return err
	case "rejected":
		return client.Reject(err)
	case "always failed":
		return err
	case "stuck":
		<-ctx.Done()
		return err
	}
	return nil
}

// plantContents publishes events with all that events can have.
func plantContents(ctx context.Context, t *testing.T, topic string) {
	t.Helper()
	c := pulsartest.Client(t)
	for _, batched := range []bool{false, true} {
		producer, err := c.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: !batched, BatchingMaxPublishDelay: 10 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range contentKinds {
			for n := range 8 { // keys of both members
				producer.SendAsync(ctx, &pulsar.ProducerMessage{
					Key: fmt.Sprint(plantedContents["key"], n), OrderingKey: plantedContents["ordering key"], Payload: []byte(plantedContents["payload"]),
					Properties: map[string]string{"kind": kind, "address": plantedContents["property"], "planted-name": "x"},
				}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
		if err := producer.FlushWithCtx(ctx); err != nil {
			t.Error(err)
		}
		producer.Close()
	}
}

// toDebug sets the level of a member, as soon as it answers.
func toDebug(ctx context.Context, t *testing.T, admin string) {
	t.Helper()
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, admin+"/log/level", strings.NewReader("debug"))
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := http.DefaultClient.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Fatalf("PUT /log/level: %s", answer.Status)
			}
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// awaitContents asks a member about the group until the answer fits.
func awaitContents(ctx context.Context, t *testing.T, admin, what string, fits func(report.Members) bool) {
	t.Helper()
	for ctx.Err() == nil {
		if r, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/v1/members", http.NoBody); err != nil {
			t.Fatal(err)
		} else if answer, err := http.DefaultClient.Do(r); err == nil {
			var m report.Members
			err := json.NewDecoder(answer.Body).Decode(&m)
			answer.Body.Close()
			if err == nil && fits(m) {
				return
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("it does not come to this: %s", what)
}
