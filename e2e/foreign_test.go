package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/pulsartest"
)

// The events of foreign producers: kinds, and how many events of each. Each kind has a topic.
var (
	pythonKinds = map[string]int{
		"plain": 3_000, "batched": 14_000, "key_batched": 9_000, "zstd": 10_000, "lz4": 10_000, "snappy": 10_000, "zlib": 10_000,
		"delayed": 1_500, "chunked": 6, "chunked_plain": 4, "avro": 6_000, "json": 6_000, "encrypted": 500,
	}
	javaKinds = map[string]int{"java_plain": 2_000, "java_batched": 8_000, "java_key_batched": 5_000, "java_chunked": 5, "java_avro": 3_000}
)

const (
	perfKind  = "perf"
	perfCount = 4_000
	secret    = "encrypted" // its events go to the dead letter topic, as entries
)

// withSchema are the kinds whose producers name a schema.
var withSchema = []string{"avro", "json", "java_avro"}

// One in retriedEvery events fails at its first attempt, and comes again as a copy.
const retriedEvery = 1000

// foreign holds the application's observations.
type foreign struct {
	mu   sync.Mutex
	done map[string]map[string]int // how often each event was handled to its end, by kind and number
	bad  []string                  // differences from the sent events
	came map[string]int            // how many events came as copies, by kind
	keys map[string]string         // of pulsar-perf's events, by message id
}

func (f *foreign) complain(format string, args ...any) {
	if len(f.bad) < 20 {
		f.bad = append(f.bad, fmt.Sprintf(format, args...))
	}
}

// handle compares one event with its own properties.
func (f *foreign) handle(perfPayload []byte) client.Handler {
	return func(_ context.Context, e *client.Event) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		kind := e.Topic[strings.LastIndex(e.Topic, "-")+1:]
		if f.done[kind] == nil {
			f.done[kind] = make(map[string]int)
		}
		if kind == perfKind {
			f.done[kind][e.ID.String()]++
			f.keys[e.ID.String()] = e.Key
			if !bytes.Equal(e.Payload, perfPayload) || len(e.Properties) != 0 || len(e.SchemaVersion) != 0 {
				f.complain("%s %v has %d bytes and properties %v", kind, e.ID, len(e.Payload), e.Properties)
			}
			return nil
		}
		properties := make(map[string]string)
		for _, p := range e.Properties {
			properties[p.Name] = p.Value
		}
		number, _ := strconv.Atoi(properties["number"])
		want := map[string]string{
			"kind": kind, "number": strconv.Itoa(number), "key": fmt.Sprintf("user-%d-ü", number%211), "empty": "", "sha256": properties["sha256"],
		}
		if !maps.Equal(properties, want) {
			f.complain("%s %v has the properties %q, want %q", kind, e.ID, properties, want)
		}
		if e.Key != want["key"] {
			f.complain("%s %d has the key %q, want %q", kind, number, e.Key, want["key"])
		}
		if at := int64(1_700_000_000_000 + number); e.EventTime.UnixMilli() != at {
			f.complain("%s %d happened at %v, want %d", kind, number, e.EventTime, at)
		}
		if slices.Contains(withSchema, kind) != (len(e.SchemaVersion) > 0) {
			f.complain("%s %d has the schema version %x at attempt %d", kind, number, e.SchemaVersion, e.Attempt)
		}
		digest := sha256.Sum256(e.Payload)
		if hex.EncodeToString(digest[:]) != properties["sha256"] {
			f.complain("%s %d has other %d bytes than were sent, at attempt %d", kind, number, len(e.Payload), e.Attempt)
		}
		if number%retriedEvery == 7 && e.Attempt == 1 {
			return errors.New("once more, as a copy")
		}
		if e.Attempt > 1 {
			f.came[kind]++
		}
		f.done[kind][properties["number"]]++
		return nil
	}
}

// TestForeignProducers: whatever producers of other languages publish reaches handlers as it was sent: payload by
// digest, key, properties, event time; also after a way through the retry topic.
func TestForeignProducers(t *testing.T) {
	python, java, perf := foreignTools(t)
	topics := pulsartest.Topic(t, 0)
	var all []string
	total := perfCount
	for _, kinds := range []map[string]int{pythonKinds, javaKinds, {perfKind: perfCount}} {
		for kind := range kinds {
			all = append(all, topics+"-"+kind)
		}
	}
	for _, n := range pythonKinds {
		total += n
	}
	for _, n := range javaKinds {
		total += n
	}
	if total < 100_000 || len(all) < 12 {
		t.Fatalf("%d events of %d kinds", total, len(all))
	}
	dir := t.TempDir()
	perfPayload := []byte("pulsar-perf sends this line each time")
	perfFile, publicKey := filepath.Join(dir, "payload"), filepath.Join(dir, "public.pem")
	for path, content := range map[string][]byte{perfFile: perfPayload, publicKey: newPublicKey(t)} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	c := newCluster(t, "message_key", 0, all...)
	letters := topics + "-letters"
	c.more = []string{"--pulsar.dead_letter_topic", letters, "--retry.retry_hold_max", "0s"}
	f := &foreign{done: make(map[string]map[string]int), came: make(map[string]int), keys: make(map[string]string)}
	ctx, stop := context.WithCancel(t.Context())
	var applications sync.WaitGroup
	defer applications.Wait()
	defer stop()
	for i, name := range []string{"a", "b"} {
		m := &member{name: name, ip: ipOf(c.net, i+1)}
		c.members = append(c.members, m)
		c.startRouter(m)
		m.app = c.launch("app-"+name, "cat", nil) // the application is in this process
		applications.Go(func() {
			_ = client.Run(ctx, m.ip+":16650", f.handle(perfPayload), client.WithMaxInFlight(256)) // ends with ctx
		})
	}
	for _, m := range c.members {
		c.ready(m)
	}

	began := time.Now()
	var producing sync.WaitGroup
	run := func(name string, args ...string) {
		producing.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Env = append(os.Environ(), "PYTHONPATH="+python, "PULSAR_MEM=-Xms64m -Xmx256m")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
			t.Logf("%s has sent all after %v", name, time.Since(began).Round(time.Second))
		})
	}
	wanted := func(kinds map[string]int) (args []string) {
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			args = append(args, fmt.Sprintf("%s=%d", kind, kinds[kind]))
		}
		return args
	}
	run("python", append([]string{"python3", "foreign/producers.py", pulsartest.URL(t), topics, publicKey}, wanted(pythonKinds)...)...)
	run("java", append([]string{"java", "-Xmx512m", "-cp", java, "foreign/Producers.java", pulsartest.URL(t), topics}, wanted(javaKinds)...)...)
	run("pulsar-perf", perf, "produce", "--service-url", pulsartest.URL(t), "-m", strconv.Itoa(perfCount), "-r", "2000", "-mk", "autoIncrement",
		"-f", perfFile, "-z", "LZ4", topics+"-"+perfKind)
	producing.Wait()
	if t.Failed() {
		return
	}
	entries := encryptedLetters(t, letters, pythonKinds[secret])
	c.settled()
	t.Logf("%d events of %d kinds were settled after %v, the encrypted ones as %d dead letters", total, len(all), time.Since(began).Round(time.Second), entries)

	f.mu.Lock()
	defer f.mu.Unlock()
	for _, bad := range f.bad {
		t.Error(bad)
	}
	check := func(kind string, want int) {
		twice := 0
		for _, n := range f.done[kind] {
			twice += n - 1
		}
		if len(f.done[kind]) != want {
			t.Errorf("%s: %d events were handled, want %d", kind, len(f.done[kind]), want)
		}
		if twice > 0 {
			t.Logf("%s: %d were handled twice", kind, twice)
		}
	}
	for _, kinds := range []map[string]int{pythonKinds, javaKinds} {
		for kind, n := range kinds {
			if kind == secret {
				n = 0
			}
			check(kind, n)
		}
	}
	for _, kind := range append(withSchema, "batched", "java_batched") {
		if f.came[kind] == 0 {
			t.Errorf("%s: no event went by way of the retry topic", kind)
		}
	}
	sent := keysOf(t, topics+"-"+perfKind) // pulsar-perf sends some more than requested, and does not report which
	check(perfKind, len(sent))
	if len(sent) < perfCount || !maps.Equal(f.keys, sent) {
		t.Errorf("pulsar-perf sent %d events; the handled events are not the same, or have other keys", len(sent))
	}
}

// keysOf returns the keys of all messages of a topic by their ids, as the broker has them.
func keysOf(t *testing.T, topic string) map[string]string {
	t.Helper()
	reader, err := pulsartest.Client(t).CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	keys := make(map[string]string)
	for reader.HasNext() {
		m, err := reader.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		keys[nameOf(m.ID(), -1)] = m.Key()
	}
	return keys
}

// encryptedLetters reads dead letters until they hold so many encrypted events, and returns how many letters these are.
func encryptedLetters(t *testing.T, topic string, want int) (letters int) {
	t.Helper()
	consumer, err := pulsartest.Client(t).Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "test", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for events := 0; events < want; letters++ {
		m, err := consumer.Receive(ctx)
		if err != nil {
			t.Fatalf("%d of %d encrypted events are in the dead letter topic: %v", events, want, err)
		}
		var e struct {
			Keys      map[string]any `json:"keys"`
			BatchSize int            `json:"batch_size"`
		}
		if err := json.Unmarshal([]byte(m.Properties()["ringfence-encryption"]), &e); err != nil || e.Keys["their-key"] == nil {
			t.Fatalf("a dead letter that is not encrypted: %v, %v", m.Properties(), err)
		}
		events += e.BatchSize
	}
	return letters
}

// newPublicKey makes a key pair and forgets the private half.
func newPublicKey(t *testing.T) []byte {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// foreignTools returns the Python interpreter with the client, Java's class path, and pulsar-perf.
// Missing tools are installed; if that fails, the test is skipped, but fails in CI.
func foreignTools(t *testing.T) (python, java, perf string) {
	t.Helper()
	pulsartest.URL(t) // or skip
	missing := func(what string, err error, out []byte) {
		t.Helper()
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s: %v\n%s", what, err, out)
		}
		t.Skipf("%s: %v\n%s", what, err, out)
	}
	home, err := exec.Command("../tools/pulsar.sh", "home").Output()
	if err != nil {
		missing("the Pulsar distribution, which has the Java client and pulsar-perf", err, home)
	}
	if out, err := exec.Command("javac", "-version").CombinedOutput(); err != nil {
		missing("a JDK", err, out)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	requirements, err := os.ReadFile("foreign/requirements.txt")
	if err != nil {
		t.Fatal(err)
	}
	version, err := exec.Command("python3", "-c", "import sys; print(sys.implementation.cache_tag)").CombinedOutput()
	if err != nil {
		missing("python3", err, version)
	}
	digest := sha256.Sum256(slices.Concat(requirements, version))
	python = filepath.Join(cache, "ringfence", "foreign-"+hex.EncodeToString(digest[:6]))
	if _, err := os.Stat(python); err != nil {
		if err := os.MkdirAll(filepath.Dir(python), 0o750); err != nil {
			t.Fatal(err)
		}
		fresh, err := os.MkdirTemp(filepath.Dir(python), "foreign-") //nolint:usetesting // a rename must stay within one file system
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(fresh)
		out, err := exec.Command("python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", fresh, "-r", "foreign/requirements.txt").CombinedOutput()
		if err != nil {
			missing("Python's client for Pulsar", err, out)
		}
		if err := os.Rename(fresh, python); err != nil { // another process was faster
			if _, there := os.Stat(python); there != nil {
				t.Fatal(err)
			}
		}
	}
	root := strings.TrimSpace(string(home))
	return python, filepath.Join(root, "lib", "*"), filepath.Join(root, "bin", "pulsar-perf")
}
