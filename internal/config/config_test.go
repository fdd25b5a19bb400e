package config_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// bare says what has no default, and nothing about who may connect.
var bare = []string{
	"RINGFENCE__NODE__GROUP=orders",
	"RINGFENCE__NODE__NAME=router-0",
	"RINGFENCE__PULSAR__TOPICS=orders",
	"RINGFENCE__PULSAR__SUBSCRIPTION=workers",
	"PATH=/bin", // is nobody's setting
}

// enough is the least that a router must be told.
var enough = slices.Concat(bare, []string{"RINGFENCE__PEER__INSECURE=true", "RINGFENCE__GOSSIP__INSECURE=true"})

func with(environ ...string) []string { return append(slices.Clone(enough), environ...) }

func yamlFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func flags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	set := pflag.NewFlagSet("router", pflag.ContinueOnError)
	set.String("config", "", "a flag that is no setting")
	config.AddFlags(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return set
}

func load(t *testing.T, from config.Sources) *config.Loaded {
	t.Helper()
	loaded, err := config.Load(from)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func TestDefaultsAreValidOnceTheRouterHasAName(t *testing.T) {
	loaded := load(t, config.Sources{Environ: enough})
	want := config.Default()
	want.Peer.Insecure = true // as enough says
	if loaded.Mailbox != want.Mailbox || loaded.Peer != want.Peer || loaded.Retry != want.Retry || loaded.Ownership != want.Ownership {
		t.Errorf("got %+v, want the defaults %+v", loaded.Config, want)
	}
	if loaded.App.Listen != "127.0.0.1:16650" || !loaded.Debug.Off() {
		t.Errorf("app on %s, debug on %s", loaded.App.Listen, loaded.Debug.Listen)
	}
}

func TestWhatFollowsFromAnotherSetting(t *testing.T) {
	secret := strings.Repeat("k", 16)
	loaded := load(t, config.Sources{Environ: with(
		"RINGFENCE__NODE__ADVERTISE_IP=10.0.0.7",
		"RINGFENCE__PULSAR__BATCH_INDEX_ACKS=true",
		"RINGFENCE__GOSSIP__ENCRYPTION_KEYS="+base64.StdEncoding.EncodeToString([]byte(secret)),
	)})
	if loaded.ControlLog.Group != "orders" || loaded.Gossip.Group != "orders" || loaded.Gossip.Name != "router-0" || loaded.Pulsar.ConsumerName != "router-0" {
		t.Errorf("groups and names are %q, %q, %q, %q", loaded.ControlLog.Group, loaded.Gossip.Group, loaded.Gossip.Name, loaded.Pulsar.ConsumerName)
	}
	if loaded.Gossip.Advertise != "10.0.0.7:16652" {
		t.Errorf("gossip advertises %q", loaded.Gossip.Advertise)
	}
	if loaded.Pulsar.Counting != source.CountEvents {
		t.Errorf("counting = %v", loaded.Pulsar.Counting)
	}
	if keys := loaded.Gossip.SecretKeys; len(keys) != 1 || string(keys[0]) != secret {
		t.Errorf("%d keys", len(keys))
	}
}

func TestStrongerSourcesWin(t *testing.T) {
	loaded := load(t, config.Sources{
		File: yamlFile(t, `
mailbox:
  depth_max: 1
  joins_max: 1
  not_yet_delay: 1s
log: {level: debug}
gossip:
drain: {}
`),
		Environ: with("RINGFENCE__MAILBOX__JOINS_MAX=2", "RINGFENCE__MAILBOX__NOT_YET_DELAY=2s"),
		Flags:   flags(t, "--mailbox.not_yet_delay", "3s", "--config", "x.yaml"),
	})
	m := loaded.Mailbox
	if m.DepthMax != 1 || m.JoinsMax != 2 || m.NotYetDelay != 3*time.Second || loaded.Log.Level != "debug" {
		t.Errorf("got %+v", m)
	}
	origins := map[string]string{}
	for _, s := range loaded.Settings() {
		origins[s.Key], _, _ = strings.Cut(s.Origin, " /")
	}
	for key, want := range map[string]string{
		"mailbox.depth_max":     "file",
		"mailbox.joins_max":     "variable RINGFENCE__MAILBOX__JOINS_MAX",
		"mailbox.not_yet_delay": "flag --mailbox.not_yet_delay",
		"mailbox.shards":        "default",
	} {
		if origins[key] != want {
			t.Errorf("origin of %s is %q, want %q", key, origins[key], want)
		}
	}
}

func TestValuesOfEveryKind(t *testing.T) {
	loaded := load(t, config.Sources{
		File: yamlFile(t, `
pulsar: {topics: [a, "persistent://t/n/b"], token: hush}
ring: {load: 1.5, virtual_nodes: 50}
retry: {attempts_max: 3, after_max: 1h30m}
peer: {frame_max: 16MiB, frame_bytes_max: 65536}
app: {listen: "unix:/run/router.sock"}
`),
		Environ: slices.DeleteFunc(with("RINGFENCE__GOSSIP__SEEDS=a:1, b:2"), func(s string) bool {
			return strings.HasPrefix(s, "RINGFENCE__PULSAR__TOPICS")
		}),
	})
	if got := loaded.Pulsar.Topics; !slices.Equal(got, []string{"a", "persistent://t/n/b"}) {
		t.Errorf("topics = %q", got)
	}
	if got := loaded.Gossip.Seeds; !slices.Equal(got, []string{"a:1", "b:2"}) {
		t.Errorf("seeds = %q", got)
	}
	if loaded.Ring.Load != 1.5 || loaded.Ring.VirtualNodes != 50 {
		t.Errorf("ring = %+v", loaded.Ring)
	}
	if loaded.Retry.AttemptsMax != 3 || loaded.Retry.AfterMax != 90*time.Minute {
		t.Errorf("retry = %+v", loaded.Retry)
	}
	if loaded.Peer.FrameMax != 16<<20 || loaded.Peer.FrameBytesMax != 65536 {
		t.Errorf("peer = %+v", loaded.Peer)
	}
}

func TestProfile(t *testing.T) {
	fast := load(t, config.Sources{Environ: with("RINGFENCE__OWNERSHIP__PROFILE=fast", "RINGFENCE__OWNERSHIP__BEAT_EVERY=200ms")})
	want := ownership.FastTiming()
	want.BeatEvery = 200 * time.Millisecond // said one by one, it wins over the profile
	if fast.Ownership.Timing != want {
		t.Errorf("got %+v, want %+v", fast.Ownership.Timing, want)
	}
}

func TestLoadTellsEverythingThatIsWrong(t *testing.T) {
	tests := map[string]struct {
		file    string
		environ []string
		want    []string
	}{
		"unknown keys": {"mailbox: {depht_max: 5}\nlogs: {level: info}\n", enough, []string{
			"router.yaml: unknown key mailbox.depht_max, the nearest is mailbox.depth_max",
			"router.yaml: unknown key logs.level, the nearest is log.level",
		}},
		"unknown keys that are like no other": {"pulsar: {nack_delay: 1s}\nx: 1\n", enough, []string{
			"router.yaml: unknown key pulsar.nack_delay; `router config example` lists all",
			"router.yaml: unknown key x; `router config example` lists all",
		}},
		"unknown variable": {"", with("RINGFENCE__PULSAR__TOPIC=a"), []string{
			"variable RINGFENCE__PULSAR__TOPIC: unknown key pulsar.topic, the nearest is pulsar.topics",
		}},
		"values that cannot be read": {`
mailbox: {depth_max: many, bytes_max: 1.5MiB, not_yet_delay: 5}
ring: {load: heavy}
node: {name: [a, b]}
pulsar: {topics: {a: b}}
gossip: {seeds: [1]}
retry: {attempts_max: -1}
peer: nothing
log: {level: }
`, enough, []string{
			`mailbox.depth_max = "many", want a whole number`,
			`mailbox.bytes_max = "1.5MiB", want a size`,
			`mailbox.not_yet_delay = "5", want a duration`,
			`ring.load = "heavy", want a number`,
			"node.name is a list, want one value", "log.level is empty, want one value",
			"unknown key pulsar.topics.a",
			"gossip.seeds has 1 in its list, want text",
			`retry.attempts_max = "-1", which is out of the range`,
			"peer is a section, not a setting",
		}},
		"what follows from another": {"control_log: {group: x}\n", enough, []string{
			"control_log.group cannot be set: it follows from node.group",
		}},
		"nothing said": {"", []string{"RINGFENCE__NODE__NAME="}, []string{
			"node.group is not set", "node.name is not set", `peer.listen = "0.0.0.0:16651" can be reached`, `gossip.listen = "0.0.0.0:16652" can be reached`, "section pulsar: source: Subscription", "section pulsar: source: Topics",
		}},
		"values without sense": {`
pulsar: {url: "http://broker:8080"}
key: {from: shoe size, missing: guess}
app: {listen: "16650", deadline_margin: 1500ms}
admin: {listen: "unix:/admin"}
debug: {listen: "0.0.0.0:16654"}
gossip: {listen: "localhost", encryption_keys: "not base64!"}
node: {advertise_ip: here}
ownership: {mode: loose, profile: slow, drain_timeout: 1m}
control_log: {namespace: public}
mailbox: {depth_max: 0}
log: {level: loud}
`, enough, []string{
			`pulsar.url = "http://broker:8080"`, "key: ", `missing = "guess"`, `app.listen = "16650"`,
			`admin.listen = "unix:/admin"`, `debug.listen = "0.0.0.0:16654", want a loopback address`,
			`ownership.mode = "loose", want strict or gossip`, `ownership.profile = "slow"`,
			`control_log.namespace = "public"`, "app.deadline_margin = 1.5s, want less than half of ownership.lease (1s)",
			"ownership.drain_timeout = 1m0s, want less than drain.timeout (45s)",
			"gossip.encryption_keys: key 1 is not base64", `node.advertise_ip = "here"`, `section gossip: membership: Listen = "localhost"`,
			"section mailbox: mailbox: DepthMax = 0", `section log: telemetry: Level = "loud"`,
		}},
		"not YAML": {"a: [\n", enough, []string{"router.yaml: "}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			from := config.Sources{Environ: test.environ}
			if test.file != "" {
				from.File = yamlFile(t, test.file)
			}
			_, err := config.Load(from)
			if err == nil {
				t.Fatal("Load succeeded")
			}
			if lines := strings.Count(err.Error(), "\n") + 1; name == "nothing said" && lines != len(test.want) {
				t.Errorf("%d lines about %d settings:\n%v", lines, len(test.want), err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not tell %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	if _, err := config.Load(config.Sources{File: filepath.Join(t.TempDir(), "none.yaml"), Environ: enough}); err == nil {
		t.Error("a file that does not exist was read")
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	loaded := load(t, config.Sources{Environ: with("RINGFENCE__PULSAR__TOKEN=hush", "RINGFENCE__GOSSIP__ENCRYPTION_KEYS=aHVzaGh1c2hodXNoaHVzaA==")})
	shown := fmt.Sprintf("%v %+v %#v %v", loaded.Config, loaded.Config, loaded.Config, loaded.Settings())
	for _, secret := range []string{"hush", "aHVzaGh1", "104 117 115 104", "0x68, 0x75"} { // as text, in base64, as bytes
		if strings.Contains(shown, secret) {
			t.Errorf("%q is in %s", secret, shown)
		}
	}
	if len(loaded.Gossip.SecretKeys) != 1 {
		t.Error("the key of the gossip is gone")
	}
	if !slices.ContainsFunc(loaded.Settings(), func(s config.Setting) bool { return s.Key == "pulsar.token" && s.Value == "(hidden)" }) {
		t.Error("the dump does not tell that there is a token")
	}
	if string(loaded.Pulsar.Token) != "hush" {
		t.Errorf("the token is %q", string(loaded.Pulsar.Token))
	}
}

// What is printed can be read again, and gives the same settings.
func TestSettingsRoundTrip(t *testing.T) {
	first := load(t, config.Sources{Environ: with("RINGFENCE__RING__LOAD=1.125", "RINGFENCE__GOSSIP__SEEDS=a:1,b:2")})
	var environ []string
	for _, s := range first.Settings() {
		environ = append(environ, config.EnvPrefix+strings.ToUpper(strings.ReplaceAll(s.Key, ".", "__"))+"="+s.Value)
	}
	if len(environ) < 50 {
		t.Fatalf("only %d settings; this run proves little", len(environ))
	}
	second := load(t, config.Sources{Environ: environ})
	if got, want := fmt.Sprintf("%+v", second.Config), fmt.Sprintf("%+v", first.Config); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestHelpShowsTheUsualFlags(t *testing.T) {
	usage := flags(t).FlagUsages()
	if !strings.Contains(usage, "--pulsar.topics") || strings.Contains(usage, "--mailbox.joins_max") {
		t.Errorf("usage is\n%s", usage)
	}
}
