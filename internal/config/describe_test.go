package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/base/setting"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// TestExampleSaysTheDefaults: with all its settings uncommented, the example sets the defaults.
func TestExampleSaysTheDefaults(t *testing.T) {
	text := regexp.MustCompile(`(?m)^( *)#([a-z0-9_]+:)`).ReplaceAllString(Example(), "$1$2")
	path := filepath.Join(t.TempDir(), "example.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(Sources{File: path})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Node.Group, want.Node.Name = "orders", "" // the name has no default that stands in a file
	want.Pulsar.Topics, want.Pulsar.Subscription = []string{"orders"}, "orders"
	told := map[string]string{}
	for _, l := range table(&want) {
		told[l.Key] = shown(l)
	}
	for _, s := range got.Settings() {
		if s.Value != told[s.Key] {
			t.Errorf("%s = %q, want %q", s.Key, s.Value, told[s.Key])
		}
		if s.Origin == OriginDefault {
			t.Errorf("%s is not in the example", s.Key)
		}
	}
}

// TestSchemaTakesTheDefaults: every setting is there, and its default fits.
func TestSchemaTakesTheDefaults(t *testing.T) {
	settings := 0
	var look func(at string, object map[string]any)
	look = func(at string, object map[string]any) {
		for name, one := range object["properties"].(map[string]any) {
			one := one.(map[string]any)
			if one["properties"] != nil {
				look(at+name+".", one)
				continue
			}
			settings++
			if one["description"] == "" {
				t.Errorf("%s%s has no description", at, name)
			}
			if pattern, ok := one["pattern"].(string); ok {
				if value := fmt.Sprint(one["default"]); one["default"] != nil && !regexp.MustCompile(pattern).MatchString(value) {
					t.Errorf("%s%s: the default %q does not match %s", at, name, value, pattern)
				}
			}
			if words, ok := one["enum"].([]string); ok && !strings.Contains(strings.Join(words, " "), fmt.Sprint(one["default"])) {
				t.Errorf("%s%s: the default %v is none of %v", at, name, one["default"], words)
			}
		}
	}
	look("", Schema())
	if want := len(describe()); settings < want {
		t.Errorf("%d settings, want %d at least", settings, want)
	}
}

// TestNumbersAreBounded: every number and time has a range.
func TestNumbersAreBounded(t *testing.T) {
	for _, d := range describe() {
		_, hasMost := d.Bound("max")
		_, hasLeast := d.Bound("min")
		_, above := d.Bound("above")
		switch d.Kind() {
		case "":
			t.Errorf("%s has a type that cannot be set in a file: its field needs the tag from", d.Key)
		case setting.Whole, setting.Size, setting.Number, setting.Duration:
			if !hasMost || !hasLeast && !above {
				t.Errorf("%s has the range %q: its field needs the tag min or above", d.Key, d.limit)
			}
		}
	}
}

// TestTagsAreTheConstants: a tag cannot name a constant.
func TestTagsAreTheConstants(t *testing.T) {
	c := Default()
	r := map[string]setting.Field{}
	for _, f := range table(&c) {
		r[f.Key] = f
	}
	for _, test := range []struct {
		key, tag string
		want     float64
	}{
		{"ring.virtual_nodes", "max", ring.VirtualNodesMax},
		{"ring.load", "max", ring.LoadMax},
		{"mailbox.shards", "max", ring.Partitions},
		{"ownership.generation", "max", ownership.GenMax},
		{"ownership.lease", "max", float64(ownership.LeaseMax)},
		{"acts.hold_for", "max", float64(act.DurationMax)},
		{"acts.hold_for_max", "max", float64(act.DurationMax)},
		{"acts.held_max", "max", act.HeldLimit},
		{"acts.skip_for", "max", float64(act.DurationMax)},
		{"acts.skips_max", "max", act.SkipsLimit},
		{"acts.park_for", "max", float64(act.DurationMax)},
		{"acts.parked_max", "max", act.ParksLimit},
		{"control_log.version", "min", ownership.LogVersionMin},
		{"control_log.version", "max", ownership.LogVersionMax},
	} {
		if got, _ := r[test.key].Bound(test.tag); got != test.want {
			t.Errorf("%s of %s is %v, want the constant %v", test.tag, test.key, got, test.want)
		}
	}
}

// TestRules: every rule is about settings that exist, and holds for the defaults.
func TestRules(t *testing.T) {
	r := newReader()
	r.Node.Group, r.Node.Name, r.Peer.Insecure, r.Gossip.Insecure = "group", "name", true, true
	r.Pulsar.Topics, r.Pulsar.Subscription = []string{"topic"}, "subscription"
	for _, rule := range rules {
		for _, key := range append([]string{rule.setting}, rule.others...) {
			if _, ok := r.known[key]; !ok {
				t.Errorf("the rule %q names %s, which is not a setting", rule.want, key)
			}
		}
		if !rule.holds(r) {
			t.Errorf("the defaults break the rule that %s is %s", rule.setting, rule.want)
		}
	}
}

// TestEveryRuleCanBreak: for each rule there are settings that break it, and the error names the setting to change.
func TestEveryRuleCanBreak(t *testing.T) {
	broken := map[string]bool{}
	for _, content := range []string{
		"node: {group: " + strings.Repeat("g", 256) + ", name: a/b, advertise_ip: here}",
		"{node: {group: " + strings.Repeat("g", 250) + "}, prove: {enabled: true}}",
		"pulsar: {url: 'http://me@b', admin_url: 'http://me@b', topics: [a, public/default/a], retry_topic: a, dead_letter_topic: a}",
		"pulsar: {topics: [" + strings.Repeat("t", 1025) + "]}",
		"{node: {group: a/b}, pulsar: {topics: [a/b], retry_topic: a/b, dead_letter_topic: a/b}}",
		"pulsar: {admin_url: 'b:1'}",
		"pulsar: {topics: [a, b-TIMER], retry_topic: b}",
		"pulsar: {oauth2: {issuer_url: 'http://me@i'}, token: a, token_file: b, tls: {cert_file: c}}",
		"pulsar: {spill: {after: 1m, delay_min: 10m}, copy_backoff_min: 1m}",
		"key: {from: here}",
		"app: {listen: a, socket_mode: rw, socket_owner: me, silence_max: 1s, ping_interval: 1s, deadline_margin: 1s}",
		"app: {listen: '0.0.0.0:1'}", "app: {listen: 'unix:/" + strings.Repeat("s", 108) + "'}", "app: {tls: {name: '*'}}", "app: {tls: {ca_file: a}}", "app: {tls: {cert_file: a}}", "peer: {tls: {name: '*'}}", "peer: {tls: {cert_file: a}}", "peer: {tls: {ca_file: a}}",
		"handler: {timeout: 1ms}",
		"pulsar: {oauth2: {scope: s}}",
		"peer: {listen: a, frame_bytes_max: 9MiB, dead_after: 1ms, reconnect_min: 1m, delay_min: 1m}",
		"peer: {listen: '0.0.0.0:1'}",
		"gossip: {listen: '[::]:1', seeds: [a], encryption_keys: a, encryption_keys_file: a, verify_outgoing: false, probe_timeout: 1s, join_backoff_min: 1m}",
		"gossip: {listen: a, advertise: '0.0.0.0:1'}",
		"admin: {listen: a, token: a, token_file: a, drain_token: a, drain_open: true, tls: {key_file: a}}",
		"{admin: {tls: {cert_file: a}}, pulsar: {tls: {key_file: a}}}",
		"debug: {listen: '0.0.0.0:1'}",
		"lane: {listen: a, tls: {cert_file: a}}", "lane: {listen: '0.0.0.0:1', tls: {key_file: a}}",
		"ownership: {lease: 1500us, beat_every: 1s, beat_spacing: 2s, guard: 1s, drain_timeout: 1h, lost_after: 1h}",
		"ownership: {lost_after: 30s, anchor_behind: 1m}", "ownership: {lost_after: 5s}",
		"control_log: {namespace: a, beats_max: 16, first_timeout: 5s}",
		"mailbox: {shards: 4000, window_bytes_max: 128, calls_max: 3999}",
		"{retry: {backoff_min: 1h}, acts: {hold_for: 2h, hold_for_max: 1h}}",
		"{app: {listen: '127.0.0.1:1'}, peer: {listen: ':1'}, gossip: {listen: '0.0.0.0:1'}, admin: {listen: '127.0.0.1:1'}, debug: {listen: '127.0.0.1:1'}, lane: {listen: '127.0.0.1:1'}}",
	} {
		path := filepath.Join(t.TempDir(), "router.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r := newReader()
		r.read(Sources{File: path})
		r.derive()
		r.check()
		_, err := r.result()
		for _, rule := range rules {
			if doubtful := r.doubtful[rule.setting] || slices.ContainsFunc(rule.others, func(key string) bool { return r.doubtful[key] }); doubtful || rule.holds(r) {
				continue
			}
			broken[rule.setting+" "+rule.want] = true
			if message := rule.setting + " = "; err == nil || !strings.Contains(err.Error(), message) {
				t.Errorf("%s: %v, want %q", content, err, message)
			}
		}
	}
	for _, rule := range rules {
		if !broken[rule.setting+" "+rule.want] {
			t.Errorf("the rule that %s is %s was never broken", rule.setting, rule.want)
		}
	}
}
