package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/deadletter"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/source"
)

// lettersGroup makes a topic with dead letters on a real broker, and returns the flags of its group.
func lettersGroup(t *testing.T, letters int) (topic string, flags []string) {
	t.Helper()
	client := pulsartest.Client(t)
	topic = pulsartest.Topic(t, 0)
	keep := func(topic, subscription string) {
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: subscription})
		if err != nil {
			t.Fatal(err)
		}
		consumer.Close()
	}
	dead := topic + "-workers-DLQ"
	keep(topic, "workers")
	keep(dead, settings(t).Config.Pulsar.DeadLetterSubscription)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: dead, DisableBatching: true, SendTimeout: pulsarsend.NoTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for n := range letters {
		_, err := producer.Send(t.Context(), &pulsar.ProducerMessage{
			Key: fmt.Sprintf("user-%d", n%3), Payload: []byte(strconv.Itoa(n)),
			Properties: map[string]string{
				source.PropertyMessageID: event.MessageID{Ledger: 9, Entry: int64(n), Batch: -1, TopicPartition: -1}.String(),
				source.PropertyTopic:     topic, source.PropertyReason: "failed 3 times: no \x1b[31mstock", source.PropertyAttempts: "3", source.PropertyOwner: "pod-0",
				source.PropertyFirstError: "no stock",
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return topic, []string{
		"--node.group=orders", "--node.name=cli", "--pulsar.url=" + pulsartest.URL(t), "--pulsar.topics=" + topic, "--pulsar.subscription=workers",
		"--peer.insecure=true", "--gossip.insecure=true",
	}
}

// topicReader returns a function that waits for the next message of a topic, from its beginning on.
func topicReader(t *testing.T, topic string) func() pulsar.Message {
	t.Helper()
	reader, err := pulsartest.Client(t).CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	return func() pulsar.Message {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		m, err := reader.Next(ctx)
		if err != nil {
			t.Fatalf("no further event in %s: %v", topic, err)
		}
		return m
	}
}

// TestReplayedUnderKills: the replaying command is killed again and again, each time when one of its events has just
// arrived, which is before it is acked. No letter is lost, and none is sent twice.
func TestReplayedUnderKills(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and kills the command several times")
	}
	t.Parallel()
	const letters, kills = 120, 6
	topic, flags := lettersGroup(t, letters)
	first, err := pulsartest.Client(t).CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: pulsarsend.NoTimeout})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Send(t.Context(), &pulsar.ProducerMessage{Payload: []byte("first")}); err != nil { // of an empty topic it cannot be known what was sent
		t.Fatal(err)
	}
	first.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := func() (*exec.Cmd, *bytes.Buffer) {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Args = append([]string{asRouter, "deadletters", "replay", "--all", "--yes", "--reason=stock is back", "--rate=15"}, flags...)
		cmd.Stdout, cmd.Stderr = &out, &out
		return cmd, &out
	}
	next, arrived := topicReader(t, topic), 0
	next() // the first event
	for range kills {
		cmd, out := command()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				t.Logf("a command said:\n%s", out)
			}
		})
		for range 1 + rand.IntN(17) {
			if arrived == letters {
				break
			}
			next()
			arrived++
		}
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		t.Logf("killed when %d had arrived:\n%s", arrived, out)
	}
	cmd, out := command()
	if err := cmd.Run(); err != nil {
		t.Fatalf("the last replay: %v\n%s", err, out)
	}
	t.Logf("at last:\n%s", out)

	counts := map[string]int{}
	read := topicReader(t, topic)
	for range letters + 1 {
		counts[string(read().Payload())]++
	}
	for n := range letters {
		if counts[strconv.Itoa(n)] != 1 {
			t.Errorf("letter %d is in the topic %d times", n, counts[strconv.Itoa(n)])
		}
	}
	stats := pulsartest.Stats(t, topic, "workers")
	if stats.Backlog != letters+1 {
		t.Errorf("the topic has %d events, want %d", stats.Backlog, letters+1)
	}
	list, stderr, code := cli(t, append([]string{"deadletters", "list"}, flags...)...)
	if code != exitOK || !strings.Contains(list, "0 dead letters read") {
		t.Errorf("the dead letters at the end (%d): %s%s", code, list, stderr)
	}
}

// TestDeadLetterCommands: what the commands show, and what they refuse.
func TestDeadLetterCommands(t *testing.T) {
	t.Parallel()
	topic, flags := lettersGroup(t, 5)
	run := func(want int, args ...string) string {
		t.Helper()
		out, stderr, code := cli(t, append(args, flags...)...)
		if code != want {
			t.Fatalf("%v ends with %d, want %d: %s%s", args, code, want, out, stderr)
		}
		return out + stderr
	}
	list := run(exitOK, "deadletters", "list", "--limit=2")
	for _, want := range []string{"user-1", `failed 3 times: no \x1b[31mstock`, "5 dead letters read, 5 selected, 2 shown", "3 selected letters are not shown", "pod-0", topic} {
		if !strings.Contains(list, want) {
			t.Errorf("the list has no %q:\n%s", want, list)
		}
	}
	var shown deadletter.ShownList
	if err := json.Unmarshal([]byte(run(exitOK, "deadletters", "list", "--key=user-1", "-o=json")), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown.Letters) != 2 || shown.Selected != 2 || shown.Letters[0].Original != "9:1:-1:-1" {
		t.Fatalf("of one key: %+v", shown)
	}
	id := shown.Letters[0].ID
	if page := run(exitOK, "deadletters", "show", id); !strings.Contains(page, "9:1:-1:-1") || !strings.Contains(page, "no stock") || strings.Contains(page, "payload (text)") || strings.Contains(page, "broken") {
		t.Errorf("show says:\n%s", page)
	}
	if page := run(exitOK, "deadletters", "show", id, "--payload"); !strings.Contains(page, "payload (text):\n1\n") {
		t.Errorf("show --payload says:\n%s", page)
	}
	run(exitFailed, "deadletters", "show", "1:1:1:1")
	for _, wrong := range [][]string{
		{"replay"},
		{"replay", "--all", "--yes"},
		{"replay", "--all", "--key=a"},
		{"replay", "--all", "--rate=0"},
		{"replay", "--all", "--to=" + topic + "-workers-DLQ"},
		{"purge"},
		{"purge", "--all", "--max=0"},
		{"list", "--since=yesterday"},
		{"list", "--limit=100000"},
	} {
		run(exitUsage, append([]string{"deadletters"}, wrong...)...)
	}
	if dry := run(exitOK, "deadletters", "replay", "--match=stock"); !strings.Contains(dry, "5 would be sent") || !strings.Contains(dry, "nothing was changed") {
		t.Errorf("a dry run says:\n%s", dry)
	}
	closed := pulsartest.Topic(t, 0)
	reader, err := pulsartest.Client(t).CreateReader(pulsar.ReaderOptions{Topic: closed, StartMessageID: pulsar.EarliestMessageID()}) // it creates the topic
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	pulsartest.Admin(t, http.MethodPost, pulsaradmin.TopicPath(closed)+"/terminate", nil, nil)
	if says := run(exitFailed, "deadletters", "replay", "--all", "--yes", "--reason=a test", "--to="+closed); !strings.Contains(says, "5 cannot be sent: its topic cannot be opened") ||
		!strings.Contains(says, "producer for "+closed) || strings.Contains(says, "interrupted") {
		t.Errorf("a replay to a topic that takes no events says:\n%s", says)
	}
	if says := run(exitFailed, "deadletters", "replay", "--all", "--yes", "--reason=a test", "--to="+pulsartest.Topic(t, 0), "--pulsar.admin_url="+pulsartest.AdminURL(t)); !strings.Contains(says, "5 cannot be sent: its topic has no subscription") {
		t.Errorf("a replay to a topic that holds nothing says:\n%s", says)
	}
	done := run(exitOK, "deadletters", "purge", "--id="+id, "--yes", "--reason=a test")
	for _, want := range []string{"1 removed", "purge of dead letters by " + account() + ", because: a test", `"msg":"act"`, `"step":"ended"`, `"purged":1`} {
		if !strings.Contains(done, want) {
			t.Errorf("a purge has no %q:\n%s", want, done)
		}
	}
	if strings.Contains(done, "user-1") {
		t.Errorf("a purge shows a key:\n%s", done)
	}

	for _, wrong := range [][]string{
		{"--all"},
		{"--from=1h"},
		{"--from=1h", "--keys=a", "--all"},
		{"--from=1h", "--all", "--yes", "--reason=x"},
		{"--from=2026-01-02T00:00:00Z", "--until=2026-01-01T00:00:00Z", "--all"},
		{"--from=1h", "--all", "--topic=payments"},
	} {
		run(exitUsage, append([]string{"replay"}, wrong...)...)
	}
	run(exitOK, "deadletters", "replay", "--all", "--yes", "--reason=a test")
	until := wallClock().Add(time.Millisecond)
	time.Sleep(5 * time.Millisecond)
	args := []string{"replay", "--from=" + until.Add(-time.Hour).Format(time.RFC3339Nano), "--until=" + until.Format(time.RFC3339Nano), "--keys=user-0,user-2"}
	if dry := run(exitOK, args...); !strings.Contains(dry, "3 would be sent") || !strings.Contains(dry, "handled after newer events") {
		t.Errorf("a dry run of events says:\n%s", dry)
	}
	args = append(args, "--yes", "--reason=a test")
	if done := run(exitOK, args...); !strings.Contains(done, "3 sent") {
		t.Errorf("a replay of events says:\n%s", done)
	}
	if again := run(exitOK, args...); !strings.Contains(again, "an earlier replay sent them") {
		t.Errorf("a second one says:\n%s", again)
	}
	acts := run(exitOK, "deadletters", "acts", "--limit=3")
	for _, want := range []string{"replay of events", "replay of dead letters", "3 sent", "4 sent", account(), "a test", "3 older acts", "-REPLAYS"} {
		if !strings.Contains(acts, want) {
			t.Errorf("the acts have no %q:\n%s", want, acts)
		}
	}
	if strings.Contains(acts, "user-1") {
		t.Errorf("the acts show a key:\n%s", acts)
	}
	if stats := pulsartest.Stats(t, topic, "workers"); stats.Backlog != 4+3 {
		t.Errorf("the topic has %d events, want 7", stats.Backlog)
	}
}

// TestDeadLettersAtTheAdminEndpoint: a router lists and shows letters, and sends them again or removes them, by a process of its own.
func TestDeadLettersAtTheAdminEndpoint(t *testing.T) {
	t.Parallel()
	topic, flags := lettersGroup(t, 5)
	environ := []string{"RINGFENCE__KEY__FROM=message_key"}
	for _, flag := range flags {
		name, value, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		environ = append(environ, config.EnvPrefix+strings.ToUpper(strings.ReplaceAll(name, ".", "__"))+"="+value)
	}
	loaded, err := config.Load(config.Sources{Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	cfg := loaded.Config
	var log bytes.Buffer
	pages, err := letterPages(cfg, broker{letters: true}, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, page := range pages {
		mux.Handle(pattern, page)
	}
	const token = "a token of this test"
	guard := listen.Guard{Name: "admin", Token: func() string { return token }, Metrics: listen.NewMetrics(prometheus.NewRegistry())}
	server := httptest.NewServer(guard.Protect(mux))
	defer server.Close()
	call := func(method, path string, want int, into any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != want {
			t.Fatalf("%s %s: %d %s", method, path, answer.StatusCode, text)
		}
		if into != nil && json.Unmarshal(text, into) != nil {
			t.Fatalf("%s %s: %s", method, path, text)
		}
	}
	var list deadletter.AskedList
	call("GET", "/v1/deadletters?limit=2", http.StatusOK, &list)
	if list.Selected != 5 || len(list.Letters) != 2 || list.Cut != 3 || list.Letters[0].Original != "9:4:-1:-1" || list.Letters[0].Key != "user-1" || list.Letters[0].Topic != topic {
		t.Fatalf("the list is %+v", list)
	}
	if list.Letters[0].Reason != `failed 3 times: no \x1b[31mstock` {
		t.Errorf("a reason is %q", list.Letters[0].Reason)
	}
	var letter deadletter.AskedLetter
	call("GET", "/v1/deadletters/letter?payload=true&id="+list.Letters[1].ID, http.StatusOK, &letter)
	if letter.Payload == nil || *letter.Payload != "3" || letter.Properties[source.PropertyFirstError] != "no stock" {
		t.Errorf("a letter is %+v", letter)
	}
	call("GET", "/v1/deadletters/letter?id=1:1:-1:-1", http.StatusNotFound, nil)
	var acted deadletter.Acted
	call("POST", "/v1/deadletters/replay?key=user-0", http.StatusOK, &acted)
	if !acted.DryRun || acted.Counts.Sent != 2 || acted.Act != "" {
		t.Errorf("a dry run is %+v", acted)
	}
	acted = deadletter.Acted{}
	call("POST", "/v1/deadletters/replay?key=user-0&yes=true&by=alice&reason=INC-7", http.StatusOK, &acted)
	if acted.DryRun || acted.Counts.Sent != 2 || acted.Act == "" || acted.Says[1].Text != "2 sent" {
		t.Errorf("a replay is %+v", acted)
	}
	acted = deadletter.Acted{}
	call("POST", "/v1/deadletters/purge?yes=true&by=alice&reason=INC-7&id="+list.Letters[0].ID, http.StatusOK, &acted)
	call("GET", "/v1/deadletters", http.StatusOK, &list)
	if stats := pulsartest.Stats(t, topic, "workers"); list.Selected != 2 || acted.Counts.Purged != 1 || stats.Backlog != 2 {
		t.Errorf("at the end %d letters wait, %d were purged, and the topic has %d events", list.Selected, acted.Counts.Purged, stats.Backlog)
	}
	again := func(query string) deadletter.Acted {
		var acted deadletter.Acted
		const times = "&since=2026-11-25T14:00:00Z&until=2999-11-25T14:00:00Z"
		call("POST", "/v1/replay?key=user-0"+times+query, http.StatusOK, &acted)
		return acted
	}
	if would := again(""); !would.DryRun || would.Counts.Sent != 2 || pulsartest.Stats(t, topic, "workers").Backlog != 2 {
		t.Errorf("a dry run of a replay of events is %+v", would)
	}
	first, second := again("&yes=true&by=alice&reason=INC-8"), again("&yes=true&by=alice&reason=INC-8")
	if stats := pulsartest.Stats(t, topic, "workers"); first.Counts.Sent != 2 || second.Counts.Sent != 0 || second.Counts.SentBefore != 2 || stats.Backlog != 4 {
		t.Errorf("a replay of events is %+v, once more %+v, and the topic has %d events", first, second, stats.Backlog)
	}
	acts, _, _ := cli(t, append([]string{"deadletters", "acts"}, flags...)...)
	for _, want := range []string{"alice, at the admin endpoint of cli", "INC-7", "INC-8", "2 sent"} {
		if !strings.Contains(acts, want) {
			t.Errorf("the acts have no %q:\n%s", want, acts)
		}
	}
	if !strings.Contains(log.String(), "act on dead letters ended") || strings.Contains(log.String(), "user-0") {
		t.Errorf("the log is\n%s", &log)
	}
}

// TestOnlyActsThatContinueSaySo: the same command, run again, has the same end if too many events are selected or a topic has refused letters.
func TestOnlyActsThatContinueSaySo(t *testing.T) {
	for err, want := range map[error]bool{io.ErrUnexpectedEOF: true, deadletter.ErrTooMany: false, deadletter.ErrNotSent: false} {
		cmd := &cobra.Command{}
		cmd.SetOut(io.Discard)
		if got := showCounts(cmd, &outputForm{}, deadletter.Counts{}, deadletter.Options{}, err); !errors.Is(got, err) || strings.Contains(got.Error(), "it continues") != want {
			t.Errorf("%q is shown as %q", err, got)
		}
	}
}

func TestShownPayload(t *testing.T) {
	for name, c := range map[string]struct {
		payload  string
		max      int
		text, is string
	}{
		"text":        {"grün", 10, "grün", "text"},
		"cut":         {"grün", 3, "gr", "text, cut to 3 of 5 bytes: --payload-max"},
		"binary":      {"\xff\xfe", 10, "//4=", "base64"},
		"cut binary":  {"\xff\xfe\xfd\xfc\xfb\xfa", 5, "//79/Ps=", "base64, cut to 5 of 6 bytes: --payload-max"},
		"empty":       {"", 10, "", "text"},
		"cut to none": {"abc", 0, "", "text, cut to 0 of 3 bytes: --payload-max"},
	} {
		var s deadletter.Shown
		s.SetPayload([]byte(c.payload), c.max, "--payload-max")
		if *s.Payload != c.text || s.PayloadIs != c.is {
			t.Errorf("%s: %q (%s), want %q (%s)", name, *s.Payload, s.PayloadIs, c.text, c.is)
		}
	}
}
