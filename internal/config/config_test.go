package config_test

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// bare sets the settings without defaults, but does not protect the listeners.
var bare = []string{
	"RINGFENCE__NODE__GROUP=orders",
	"RINGFENCE__NODE__NAME=router-0",
	"RINGFENCE__PULSAR__TOPICS=orders",
	"RINGFENCE__PULSAR__SUBSCRIPTION=workers",
	"PATH=/bin", // not a setting
}

// enough is the smallest valid set of settings.
var enough = slices.Concat(bare, []string{"RINGFENCE__PEER__INSECURE=true", "RINGFENCE__GOSSIP__INSECURE=true"})

func with(environ ...string) []string { return append(slices.Clone(enough), environ...) }

// without is enough, but for the variables of a name.
func without(name string) []string {
	return slices.DeleteFunc(slices.Clone(enough), func(v string) bool { return strings.HasPrefix(v, name+"=") })
}

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
	set.String("config", "", "a flag that is not a setting")
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
	want.Peer.Insecure = true // as set in enough
	if loaded.Mailbox != want.Mailbox || loaded.Peer != want.Peer || loaded.Retry != want.Retry || loaded.Ownership != want.Ownership {
		t.Errorf("got %+v, want the defaults %+v", loaded.Config, want)
	}
	if loaded.App.Listen != "127.0.0.1:16650" || !loaded.Debug.Off() {
		t.Errorf("app on %s, debug on %s", loaded.App.Listen, loaded.Debug.Listen)
	}
}

func TestDerivedFields(t *testing.T) {
	secret := strings.Repeat("k", 16)
	loaded := load(t, config.Sources{Environ: with(
		"RINGFENCE__NODE__ADVERTISE_IP=10.0.0.7",
		"RINGFENCE__PULSAR__BATCH_INDEX_ACKS=true",
		"RINGFENCE__HANDLER__TIMEOUT=7s",
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
	if loaded.App.HandlerTimeout != 7*time.Second {
		t.Errorf("handlers may take %v", loaded.App.HandlerTimeout)
	}
	properties := map[string]string{"ringfence-group": "orders", "ringfence-control-topic": "persistent://public/default/__ring-orders"}
	if !maps.Equal(loaded.Pulsar.Properties, properties) {
		t.Errorf("the subscription has the properties %v", loaded.Pulsar.Properties)
	}
	if keys := loaded.Gossip.SecretKeys; len(keys) != 1 || string(keys[0]) != secret {
		t.Errorf("%d keys", len(keys))
	}
	loaded = load(t, config.Sources{Environ: with("RINGFENCE__NODE__ADVERTISE_IP=10.0.0.7", "RINGFENCE__GOSSIP__ADVERTISE=10.0.0.8:1", "RINGFENCE__OWNERSHIP__MODE=gossip")})
	if loaded.Gossip.Advertise != "10.0.0.8:1" {
		t.Errorf("gossip advertises %q, not what it was told", loaded.Gossip.Advertise)
	}
	delete(properties, "ringfence-control-topic") // there is none
	if !maps.Equal(loaded.Pulsar.Properties, properties) {
		t.Errorf("without a control topic the subscription has the properties %v", loaded.Pulsar.Properties)
	}
}

// A profile is chosen by its own setting only.
func TestNameOfAProfile(t *testing.T) {
	if loaded := load(t, config.Sources{Environ: with("RINGFENCE__NODE__NAME=fast")}); loaded.Ownership.Timing != ownership.DefaultTiming() {
		t.Errorf("the times of a router called fast are %+v", loaded.Ownership.Timing)
	}
}

// A secret from a file is that of the file.
func TestSecretOfAFile(t *testing.T) {
	token := strings.Repeat("t", 16)
	loaded := load(t, config.Sources{Environ: with("RINGFENCE__ADMIN__DRAIN_TOKEN_FILE=" + yamlFile(t, token+"\n"))})
	if got := string(loaded.Admin.DrainToken); got != token {
		t.Errorf("the token is %q", got)
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

// TestBlanksAroundValues: blanks around a value mean nothing, wherever the value comes from.
func TestBlanksAroundValues(t *testing.T) {
	loaded := load(t, config.Sources{File: yamlFile(t, `gossip: {seeds: ["a:1", " b:2 "]}`), Environ: with("RINGFENCE__OWNERSHIP__PROFILE=fast\n")})
	if got := loaded.Gossip.Seeds; !slices.Equal(got, []string{"a:1", "b:2"}) {
		t.Errorf("seeds = %q", got)
	}
	if got, want := loaded.Ownership.Lease, ownership.FastTiming().Lease; loaded.Ownership.Profile != "fast" || got != want {
		t.Errorf("profile %q with leases of %v, want those of fast, %v", loaded.Ownership.Profile, got, want)
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
	want.BeatEvery = 200 * time.Millisecond // the setting wins over the profile
	if fast.Ownership.Timing != want {
		t.Errorf("got %+v, want %+v", fast.Ownership.Timing, want)
	}
}

func TestLoadReportsAllProblems(t *testing.T) {
	dir := t.TempDir()
	secret, blank := filepath.Join(dir, "secret"), filepath.Join(dir, "blank")
	if err := errors.Join(os.WriteFile(secret, []byte("fedcba9876543210\n"), 0o600), os.WriteFile(blank, []byte(" \n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		file    string
		environ []string
		want    []string // all lines, without the path of the file
	}{
		"unknown keys": {"mailbox: {depht_max: 5}\nlogs:\n  level: info\n", enough, []string{
			"1: unknown key mailbox.depht_max, the nearest is mailbox.depth_max",
			"3: unknown key logs.level, the nearest is log.level",
		}},
		"unknown keys with bad values": {"mailbox:\n  depht_max: many\nlogs: {level: loud}\n", enough, []string{
			"2: unknown key mailbox.depht_max, the nearest is mailbox.depth_max",
			`2: mailbox.depth_max = "many", want a whole number, 1 to 2147483647`,
			"3: unknown key logs.level, the nearest is log.level",
		}},
		"unknown keys that are like no other": {"pulsar: {nack_delay: 1s}\nx: 1\ny: {}\n", enough, []string{
			"1: unknown key pulsar.nack_delay; `router config example` lists all",
			"2: unknown key x; `router config example` lists all",
			"3: unknown key y; `router config example` lists all",
		}},
		"an unknown key that is farther from another": {"mailbox: {depth_greatest: many}\n", enough, []string{
			"1: unknown key mailbox.depth_greatest, the nearest is mailbox.depth_max", // and nothing about a value that may be meant for something else
		}},
		"a file of a setting that is no secret": {"log: {level_file: SECRET}\n", enough, []string{
			"1: unknown key log.level_file; `router config example` lists all",
		}},
		"secrets that are no text": {"admin: {token: 0123456789012345678}\npulsar: {token: 1234567890}\n", enough, []string{
			"1: admin.token = (hidden), which is not text in YAML: put it in quotes",
			"2: pulsar.token = (hidden), which is not text in YAML: put it in quotes",
		}},
		"a number for the file of a secret": {"admin: {drain_token_file: 5}\n", enough, []string{"1: admin.drain_token_file is not the path of a file"}},
		"no file of a secret":               {"", with("RINGFENCE__ADMIN__DRAIN_TOKEN_FILE="), []string{"variable RINGFENCE__ADMIN__DRAIN_TOKEN_FILE: admin.drain_token_file is not the path of a file"}},
		"a file of blanks":                  {"admin: {drain_token_file: BLANK}\n", enough, []string{"1: admin.drain_token_file cannot be used: DIR/blank is empty"}},
		"a list of a number":                {"gossip: {seeds: 5}\n", enough, []string{"1: gossip.seeds = 5, which is not text in YAML: put it in quotes"}},
		"unknown variable": {"", with("RINGFENCE__PULSAR__TOPIC=a"), []string{
			"variable RINGFENCE__PULSAR__TOPIC: unknown key pulsar.topic, the nearest is pulsar.topics",
		}},
		"values that cannot be read": {`
mailbox: {depth_max: many, bytes_max: 1.5MiB, not_yet_delay: 5}
ring: {load: heavy}
node: {name: [a, b], group: 0600}
pulsar: {topics: {a: b}}
gossip: {seeds: [1], advertise: true}
peer: nothing
log: {level: }
debug: [a]
`, bare[1:1], []string{
			`2: mailbox.depth_max = "many", want a whole number, 1 to 2147483647`,
			`2: mailbox.bytes_max = "1.5MiB", want a size (65536, 64KiB, 8MiB), 9MiB to 1TiB`,
			`2: mailbox.not_yet_delay = "5", want a duration with its unit (500ms, 2s, 5m), more than 0, at most 87600h`,
			`3: ring.load = "heavy", want a number, more than 1, at most 1024`,
			"4: node.name is a list, want one value: text",
			"4: node.group = 0600, which is not text in YAML: put it in quotes",
			"5: pulsar.topics is a section, want a list, as in [a, b]",
			"6: gossip.seeds has 1 in its list, want text: put it in quotes",
			"6: gossip.advertise = true, which is not text in YAML: put it in quotes",
			"7: peer is a section, not a setting: want settings in it, such as peer.connections_max",
			"8: log.level is empty, want one value: debug, info, warn or error",
			"9: debug is a section, not a setting: want settings in it, such as debug.listen",
			"pulsar.subscription is not set, want text",
			`peer.listen = "0.0.0.0:16651", want a loopback address, or peer.tls set (docs/security.md), or peer.insecure true if`,
			`gossip.listen = "0.0.0.0:16652", want a loopback address, or gossip.encryption_keys_file set`,
		}},
		"values out of range, of all sources": {"retry: {attempts_max: -1}\nring:\n  load: .nan\n", with("RINGFENCE__APP__PING_INTERVAL=1h", "RINGFENCE__KEY__MISSING=guess"), []string{
			"1: retry.attempts_max = -1, want a whole number, 1 to 2147483647",
			`3: ring.load = ".nan", want a number, more than 1, at most 1024`,
			"variable RINGFENCE__APP__PING_INTERVAL: app.ping_interval = 1h, want a duration with its unit (500ms, 2s, 5m), 10ms to 5s",
			`variable RINGFENCE__KEY__MISSING: key.missing = "guess", want reject or spread`,
		}},
		"huge numbers": {`
mailbox: {depth_max: 99999999999999999999, bytes_max: 9999999999999TiB, shards: 9223372036854775807}
retry: {attempts_max: 4294967296, after_max: 999999999h, backoff_max: 99999h}
pulsar: {unsettled_max: 2147483648}
`, enough, []string{
			"2: mailbox.depth_max = 99999999999999999999, want a whole number, 1 to 2147483647",
			"2: mailbox.bytes_max = 9999999999999TiB, want a size (65536, 64KiB, 8MiB), 9MiB to 1TiB",
			"2: mailbox.shards = 9223372036854775807, want a whole number, 1 to 4093",
			"3: retry.attempts_max = 4294967296, want a whole number, 1 to 2147483647",
			`3: retry.after_max = "999999999h", want a duration with its unit`,
			"3: retry.backoff_max = 99999h, want a duration with its unit (500ms, 2s, 5m), more than 0, at most 87600h",
			"4: pulsar.unsettled_max = 2147483648, want a whole number, 1 to 2147483647",
		}},
		"names that are no topics": {"node: {group: shop/orders}\npulsar: {topics: [shop/orders], retry_topic: a//b}\n", slices.DeleteFunc(without("RINGFENCE__PULSAR__TOPICS"), func(v string) bool { return strings.HasPrefix(v, "RINGFENCE__NODE__GROUP=") }), []string{
			`1: node.group = "shop/orders", want a name without /`,
			`2: pulsar.topics = "shop/orders", want NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME`,
			`2: pulsar.retry_topic = "a//b", want NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME`,
		}},
		"topics that are not persistent": {"pulsar: {topics: [orders, 'non-persistent://shop/eu/orders'], dead_letter_topic: 'topic://shop/eu/letters'}\n", without("RINGFENCE__PULSAR__TOPICS"), []string{
			`1: pulsar.topics = "orders,non-persistent://shop/eu/orders", want NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME`,
			`1: pulsar.dead_letter_topic = "topic://shop/eu/letters", want NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME`,
		}},
		"URLs without a host": {"pulsar: {url: 'pulsar://:6650', admin_url: 'broker:8080'}\n", enough, []string{
			`1: pulsar.url = "pulsar://:6650", want pulsar://HOST:PORT or pulsar+ssl://HOST:PORT`,
			`1: pulsar.admin_url = "broker:8080", want http://HOST:PORT or https://HOST:PORT`,
		}},
		"one of several hosts is missing": {"pulsar: {url: 'pulsar://a:6650,:6650'}\n", enough, []string{
			`1: pulsar.url = "pulsar://a:6650,:6650", want pulsar://HOST:PORT or pulsar+ssl://HOST:PORT`,
		}},
		"one setting by two variables": {"", with("RINGFENCE__LOG__LEVEL=debug", "RINGFENCE__log__level=error"), []string{
			"variable RINGFENCE__log__level: log.level is set a second time, first by RINGFENCE__LOG__LEVEL: want it once",
		}},
		"a secret and its file": {"admin:\n  drain_token: 0123456789abcdef\n  drain_token_file: SECRET\n", enough, []string{
			"3: admin.drain_token is set a second time, first in line 2: want it once",
		}},
		"topics that the router writes to": {"pulsar: {topics: [orders, orders-workers-TIMER]}\n", without("RINGFENCE__PULSAR__TOPICS"), []string{
			`1: pulsar.topics = "orders,orders-workers-TIMER", want topics other than those of timers and of parked events`,
		}},
		"the topic of parked events": {"pulsar: {topics: [orders, orders-workers-PARKED]}\n", without("RINGFENCE__PULSAR__TOPICS"), []string{
			`1: pulsar.topics = "orders,orders-workers-PARKED", want topics other than those of timers and of parked events`,
		}},
		"retries among the parked events": {"pulsar: {retry_topic: orders-workers-PARKED}\n", enough, []string{
			`1: pulsar.retry_topic = "orders-workers-PARKED", want a topic that is neither in pulsar.topics nor that of parked events`,
		}},
		"dead letters among the timers": {"pulsar: {dead_letter_topic: orders-workers-TIMER}\n", enough, []string{
			`1: pulsar.dead_letter_topic = "orders-workers-TIMER", want a topic that is neither in pulsar.topics`,
		}},
		"a derived field": {"control_log: {group: x}\n", enough, []string{
			"1: control_log.group cannot be set: it follows from node.group",
		}},
		"nothing said": {"", []string{"RINGFENCE__NODE__NAME="}, []string{
			"node.group is not set", "pulsar.subscription is not set", "pulsar.topics is not set",
			`peer.listen = "0.0.0.0:16651", want a loopback address`, `gossip.listen = "0.0.0.0:16652", want a loopback address`,
			"variable RINGFENCE__NODE__NAME: node.name is not set",
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
handler: {timeout: 1ms}
`, enough, []string{
			`2: pulsar.url = "http://broker:8080", want pulsar://HOST:PORT or pulsar+ssl://HOST:PORT`,
			`3: key.from = "shoe size", want message_key, property:NAME or json:PATH`, `3: key.missing = "guess", want reject or spread`,
			`4: app.listen = "16650", want HOST:PORT or unix:PATH`, "4: app.deadline_margin = 1500ms, want less than half of ownership.lease (2s)",
			`5: admin.listen = "unix:/admin", want HOST:PORT`, `6: debug.listen = "0.0.0.0:16654", want HOST:PORT on a loopback address`,
			`7: gossip.listen = "localhost", want IP:PORT`, "7: gossip.encryption_keys = (hidden), want keys in base64",
			`8: node.advertise_ip = "here", want an IP address`,
			`9: ownership.mode = "loose", want strict or gossip`, `9: ownership.profile = "slow", want default, fast or calm`,
			"9: ownership.drain_timeout = 1m, want less than drain.timeout (45s)",
			`10: control_log.namespace = "public", want TENANT/NAMESPACE`, "11: mailbox.depth_max = 0, want",
			`12: log.level = "loud", want debug, info, warn or error`, "13: handler.timeout = 1ms, want 0s for none, or at least 100ms",
		}},
		"an anchor that passes the records of promises": {"ownership: {lost_after: 30s, anchor_behind: 1m}\n", enough, []string{
			"1: ownership.anchor_behind = 1m, want at least 9m11s: a reservation may be promised until 9m0s after its record",
		}},
		"an anchor that moves all the time": {"ownership: {anchor_every: 1ns}\n", enough, []string{"1: ownership.anchor_every = 1ns, want a duration with its unit (500ms, 2s, 5m), 1s to 87600h"}},
		"a rule that a default breaks": {"drain:\n  timeout: 10s\n", enough, []string{
			"2: ownership.drain_timeout = 30s, want less than drain.timeout (10s)",
		}},
		"an attempt that is longer than the pause": {"control_log:\n  first_timeout: 5s\n", enough, []string{
			"2: control_log.first_timeout = 5s, want less than ownership.reopen_after (5s)",
		}},
		"no rule about a value that cannot be read": {"drain: {timeout: 10}\n", enough, []string{
			`1: drain.timeout = "10", want a duration`,
		}},
		"not YAML":          {"a: [\n", enough, []string{"1: the file is not YAML: did not find expected node content"}},
		"a list":            {"- a\n", enough, []string{"1: the file has no sections: want settings as in node: {group: orders}"}},
		"two documents":     {"node: {group: a}\n---\nnode: {group: b}\n", enough, []string{"2: a second document begins: want only one"}},
		"twice":             {"mailbox: {depth_max: 1}\nlog: {}\nmailbox:\n  depth_max: 0\n", enough, []string{"3: mailbox is set a second time, first in line 1: want it once", "4: mailbox.depth_max is set a second time, first in line 1: want it once", "4: mailbox.depth_max = 0, want"}},
		"an alias":          {"app: {listen: &a 'unix:/a'}\nadmin:\n  listen: *a\n", enough, []string{"3: admin.listen is an alias, want the value itself; text that begins with * needs quotes"}},
		"a merge":           {"app: &a {listen: 'unix:/a'}\nadmin: {<<: *a}\n", enough, []string{"2: unknown key admin.<<"}},
		"no anchor":         {"log: {}\nadmin: {token: *hush}\n", enough, []string{"2: an alias has no anchor: text that begins with * needs quotes"}},
		"a tag":             {"admin:\n  token: !hush\n", enough, []string{"2: admin.token has a tag, want a value without one; text that begins with ! needs quotes"}},
		"binary":            {"node: {name: !!binary aGk=}\n", enough, []string{"1: node.name has a tag"}},
		"a key of no text":  {"{a: b}: c\n", enough, []string{"1: a list, a section or an alias stands where the name of a setting should"}},
		"not UTF-8":         {"log:\n  level: inf\xff\n", enough, []string{"2: the file has a byte that is not text: want YAML in UTF-8"}},
		"a zero byte":       {"log:\n\n  level: \x00\n", enough, []string{"3: the file has a byte that is not text: want YAML in UTF-8"}},
		"a section of text": {"log: info\n", enough, []string{"1: log is a section, not a setting: want settings in it, such as log.format"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			from := config.Sources{Environ: test.environ}
			if test.file != "" {
				from.File = yamlFile(t, strings.NewReplacer("SECRET", secret, "BLANK", blank).Replace(test.file))
			}
			_, err := config.Load(from)
			if err == nil {
				t.Fatal("Load succeeded")
			}
			lines := strings.Split(strings.NewReplacer(cmp.Or(from.File, "none")+":", "", dir, "DIR").Replace(err.Error()), "\n")
			if len(lines) > 1 {
				if want := fmt.Sprintf("%d problems in the settings", len(lines)-1); lines[0] != want {
					t.Errorf("the first line is %q, want %q", lines[0], want)
				}
				lines = lines[1:]
			}
			if len(lines) != len(test.want) {
				t.Errorf("%d lines about %d problems", len(lines), len(test.want))
			}
			for _, want := range test.want {
				if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
					t.Errorf("no line begins with %q", want)
				}
			}
			for _, line := range lines {
				if goNames.MatchString(line) {
					t.Errorf("a name of Go is in %q", line)
				}
			}
			if t.Failed() {
				t.Log(strings.Join(lines, "\n"))
			}
		})
	}
}

// The first 500 problems are listed, in the order of their lines, and the others are counted.
func TestProblemsAreBounded(t *testing.T) {
	var file strings.Builder
	for line := range 501 {
		fmt.Fprintf(&file, "x%d: 1\n", line+1)
	}
	path := yamlFile(t, file.String())
	_, err := config.Load(config.Sources{File: path, Environ: enough})
	if err == nil {
		t.Fatal("Load succeeded")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 502 || lines[0] != "501 problems in the settings" || lines[501] != "and 1 more" {
		t.Fatalf("%d lines, from %q to %q", len(lines), lines[0], lines[len(lines)-1])
	}
	for line := range 500 {
		if want := fmt.Sprintf("%s:%d: unknown key x%d;", path, line+1, line+1); !strings.HasPrefix(lines[line+1], want) {
			t.Errorf("line %d is %q, want %q", line+1, lines[line+1], want)
		}
	}
}

// goNames matches names of Go fields, types and functions.
var goNames = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*|\[\]string|\bu?int\d*\b|strconv|\btime\.|!!|map\[`)

func TestMissingFile(t *testing.T) {
	_, err := config.Load(config.Sources{File: filepath.Join(t.TempDir(), "none.yaml"), Environ: bare[1:]})
	if err == nil || strings.Contains(err.Error(), "\n") { // what is missing may be in the file
		t.Errorf("of a file that does not exist: %v", err)
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
		t.Error("the gossip key is missing")
	}
	if !slices.ContainsFunc(loaded.Settings(), func(s config.Setting) bool { return s.Key == "pulsar.token" && s.Value == "(hidden)" }) {
		t.Error("the dump does not show that there is a token")
	}
	if string(loaded.Pulsar.Token) != "hush" {
		t.Errorf("the token is %q", string(loaded.Pulsar.Token))
	}
}

// Printed settings can be read again, and give the same Config.
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

// TestIdentity: the names and values that members compare, also across releases.
func TestIdentity(t *testing.T) {
	loaded := load(t, config.Sources{Environ: with("RINGFENCE__PULSAR__TOPICS=b,a", "RINGFENCE__RING__LOAD=1.50", "RINGFENCE__PULSAR__BATCH_INDEX_ACKS=1")})
	want := []identity.Setting{
		{Name: "control_log.topic", Value: "persistent://public/default/__ring-orders"},
		{Name: "key.from", Value: "message_key"},
		{Name: "key.missing", Value: "reject"},
		{Name: "node.group", Value: "orders"},
		{Name: "ownership.mode", Value: "strict"},
		{Name: "pulsar.batch_index_acks", Value: "true"},
		{Name: "pulsar.dead_letter_topic", Value: "persistent://public/default/a-workers-DLQ"},
		{Name: "pulsar.retry_topic", Value: "persistent://public/default/a-workers-RETRY"},
		{Name: "pulsar.subscription", Value: "workers"},
		{Name: "ring.load", Value: "1.5"},
		{Name: "ring.virtual_nodes", Value: "100"},
	}
	if got := loaded.Identity(); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// Each of these values was accepted, and then ended the router, or left it running without handling anything.
func TestValuesThatCannotWorkAreRefused(t *testing.T) {
	for _, given := range []string{
		"control_log.anchor_timeout=1ns",  // the log is never trimmed
		"control_log.first_timeout=1ns",   // no attempt reads anything: no cold start
		"control_log.prefetch=2147483647", // out of memory
		"gossip.gossip_interval=1ns",      // a whole core, for nothing
		"gossip.gossip_nodes=2147483647",  // a panic of memberlist
		"gossip.join_backoff_min=1ns",     // a whole core while no seed answers, if join_backoff_max is as short
		"gossip.leave_timeout=20s",        // longer than a stage may take to stop: exit code 3 after a complete drain
		"gossip.probe_interval=1ms",       // living members are taken for dead all the time
		"gossip.probe_interval=1h",        // with the multiples below, more than a Duration holds
		"gossip.rejoin_interval=1ns",      // most of a core
		"gossip.stream_timeout=1ns",       // no member is ever reached
		"gossip.suspicion_max_mult=20000000",
		"gossip.suspicion_mult=20000000", // overflows: a suspect is dead at once, or never
		"ownership.check_timeout=1ns",    // no check is answered: the first new ledger of the control log stops the member
		"ownership.hello_every=1ms",      // each own Hello comes back too late for a cold start
		"ownership.hello_every=24h",      // no second Hello
		"ownership.hello_slow=1ns",       // Hellos as fast as the broker takes them, while there is no application
		"ownership.hello_slow=24h",       // no second Hello to an active group
		"ownership.hello_lost_after=1ms", // the reader is replaced before a Hello comes back
		"ownership.lost_after=200ms",     // ends incarnations before a Beat comes back
		"peer.hello_timeout=1ns",         // no stream between members
		"peer.reconnect_min=1ns",         // attempts and log lines without a pause, if reconnect_max is as short
		"pulsar.close_timeout=20s",       // longer than a stage may take to stop
		"pulsar.copies_max=2147483647",   // out of memory at the first copy
		"pulsar.copy_backoff_min=1ns",    // copies that fail are sent again without a pause, if copy_backoff_max is as short
		"pulsar.discover_every=1ns",      // the broker is asked without a pause
		"pulsar.copy_timeout=1ns",        // each copy counts as failed and is sent again, forever
	} {
		name, value, _ := strings.Cut(given, "=")
		variable := config.EnvPrefix + strings.ToUpper(strings.ReplaceAll(name, ".", "__")) + "=" + value
		_, err := config.Load(config.Sources{Environ: with(variable)})
		if err == nil || !strings.Contains(err.Error(), name+" = "+value+", want ") {
			t.Errorf("%s: %v", given, err)
		}
	}
}

// Nobody can be reached at any of these. Gossip looks no name of a port up, and the others were dialed again and again.
func TestAddressesThatCannotBeDialedAreRefused(t *testing.T) {
	for variable, value := range map[string]string{
		"GOSSIP__SEEDS": "a:1,b:99999", "gossip__seeds": "dns+a:http", "Gossip__Seeds": "a:0",
		"PULSAR__URL": "pulsar://a:1,b:99999", "pulsar__url": "pulsar+ssl://a:b c", "Pulsar__Url": "pulsar://a:0",
		"PULSAR__url": "pulsar://a:6650,", "pulsar__URL": "pulsar://pulsar+ssl://a:6651", "pulsar__ADMIN_url": "http://:8080",
		"PULSAR__ADMIN_URL": "http://a:99999", "NODE__ADVERTISE_IP": "0.0.0.0", "node__advertise_ip": "224.0.0.1",
	} {
		environ := with(config.EnvPrefix+variable+"="+value, config.EnvPrefix+"GOSSIP__ADVERTISE=192.0.2.1:16652")
		_, err := config.Load(config.Sources{Environ: environ})
		name := strings.ReplaceAll(strings.ToLower(variable), "__", ".")
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s = %q, want ", name, value)) {
			t.Errorf("%s=%s: %v", variable, value, err)
		}
	}
	good := with("RINGFENCE__GOSSIP__SEEDS=a:1,dns+b:65535,[::1]:1", "RINGFENCE__PULSAR__URL=pulsar://a,b:6650,[::1]:1/", "RINGFENCE__PULSAR__ADMIN_URL=https://a")
	good = append(good, "RINGFENCE__NODE__GROUP="+strings.Repeat("g", membership.GroupBytesMax))
	if _, err := config.Load(config.Sources{Environ: good}); err != nil {
		t.Error(err)
	}
}

// A file would say 8 where a variable with the same text says 10.
func TestNumbersWithALeadingZeroAreRefused(t *testing.T) {
	for _, text := range []string{"010", "07", "0100", "-010", "0_10"} {
		_, err := config.Load(config.Sources{File: yamlFile(t, "mailbox: {depth_max: "+text+"}\n"), Environ: with()})
		if err == nil || !strings.Contains(err.Error(), "mailbox.depth_max = "+text+", which is octal") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"0", "0x10", "0b10", "0o10", "0X10", "0B10", "0O10", "10"} {
		if _, err := config.Load(config.Sources{File: yamlFile(t, "prove: {peer_port: "+text+"}\n"), Environ: with()}); err != nil {
			t.Error(err)
		}
	}
}
