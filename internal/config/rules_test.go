package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// TestRulesAtTheirLimits: the last value that a rule takes, and the first one that it refuses.
func TestRulesAtTheirLimits(t *testing.T) {
	topic := func(bytes int) string { return strings.Repeat("t", bytes-len(source.FullTopicName(""))) }
	topics := func(sum int) string {
		var names []string
		for i := 0; sum > 0; i++ {
			one := min(sum, 900)
			if sum-one < 100 { // the last one needs room for its namespace
				one = sum
			}
			names = append(names, topic(one-3)+fmt.Sprintf("%03d", i))
			sum -= one
		}
		return strings.Join(names, ", ")
	}
	const shards = 4
	for _, test := range []struct {
		content string
		broken  string // the settings whose rules are broken
	}{
		{"handler: {timeout: 100ms}", ""},
		{"handler: {timeout: 99999us}", "handler.timeout"},
		{"pulsar: {url: 'pulsar://me:%zz@b'}", "pulsar.url"}, // the rule about users alone
		{"pulsar: {url: 'pulsar://b c'}", "pulsar.url"},
		{"pulsar: {oauth2: {issuer_url: 'https://i:443', key_file: /k}}", ""},
		{"pulsar: {oauth2: {issuer_url: 'https://i:99999', key_file: /k}}", "pulsar.oauth2.issuer_url"},
		{"pulsar: {oauth2: {issuer_url: 'https://', key_file: /k}}", "pulsar.oauth2.issuer_url"},
		{"pulsar: {oauth2: {issuer_url: 'https://:443', key_file: /k}}", "pulsar.oauth2.issuer_url"},
		{"pulsar: {oauth2: {issuer_url: 'https://i/%zz', key_file: /k}}", "pulsar.oauth2.issuer_url"},
		{"pulsar: {admin_url: 'http://b:8080'}", ""},
		{"pulsar: {admin_url: 'https://b'}", ""},
		{"pulsar: {admin_url: 'ftp://b:8080'}", "pulsar.admin_url"},
		{"pulsar: {admin_url: 'http://:8080'}", "pulsar.admin_url"},
		{"pulsar: {admin_url: 'http://b:8080/%zz'}", "pulsar.admin_url"},
		{"pulsar: {topics: [a, '']}", "pulsar.topics"},
		{"pulsar: {topics: [b, a, public/default/b]}", "pulsar.topics"},
		{"pulsar: {topics: [a, b], dead_letter_topic: b}", "pulsar.dead_letter_topic"},
		{"pulsar: {topics: [" + topic(controllog.TopicBytesMax) + "]}", ""},
		{"pulsar: {topics: [" + topic(controllog.TopicBytesMax+1) + "]}", "pulsar.topics"},
		{"pulsar: {topics: [" + topics(controllog.TopicsBytesMax) + "]}", ""},
		{"pulsar: {topics: [" + topics(controllog.TopicsBytesMax+1) + "]}", "pulsar.topics"},
		{"pulsar: {retry_topic: b, dead_letter_topic: b}", "pulsar.dead_letter_topic"},
		{"pulsar: {spill: {delay_min: 1h, delay_max: 1h}}", ""},
		{"app: {listen: 'unix:/" + strings.Repeat("s", listen.UnixPathBytesMax-1) + "'}", ""},
		{"app: {listen: 'unix:/" + strings.Repeat("s", listen.UnixPathBytesMax) + "'}", "app.listen"},
		{"app: {tls: {cert_file: /c}}", "app.tls.key_file app.tls.ca_file app.tls.name"},
		{"peer: {tls: {name: n}}", "peer.tls.cert_file peer.tls.key_file peer.tls.ca_file"},
		{"gossip: {advertise: '0.0.0.0:1'}", "gossip.advertise"},
		{"gossip: {advertise: '192.0.2.1:0'}", "gossip.advertise"},
		{"gossip: {listen: '[::]:1', advertise: '192.0.2.1:1'}", ""},
		{"gossip: {listen: '[::]:1'}", "gossip.advertise"},
		{"gossip: {seeds: ['a:1', ':1']}", "gossip.seeds"},
		{"gossip: {probe_timeout: 500ms, probe_interval: 500ms}", "gossip.probe_timeout"},
		{"peer: {ping_after: 1s, dead_after: 1s}", "peer.dead_after"},
		{"acts: {hold_for: 2h, hold_for_max: 2h}", ""},
		{fmt.Sprintf("ownership: {lost_after: 10s, anchor_behind: %v}", ownership.AnchorBehindMin()), ""},
		{fmt.Sprintf("ownership: {lost_after: 10s, anchor_behind: %v}", ownership.AnchorBehindMin()-1), "ownership.anchor_behind"},
		{"control_log: {namespace: /b}", "control_log.namespace"},
		{"control_log: {namespace: a/}", "control_log.namespace"},
		{"control_log: {namespace: a/b/c}", "control_log.namespace"},
		{fmt.Sprintf("mailbox: {shards: %d, bytes_max: %d}", shards, shards*mailbox.ShardBytesMin), ""},
		{fmt.Sprintf("mailbox: {shards: %d, bytes_max: %d}", shards, shards*mailbox.ShardBytesMin-1), "mailbox.bytes_max"},
		{fmt.Sprintf("mailbox: {shards: %d, window_bytes_max: %d}", shards, shards*mailbox.ShardWindowBytesMin), ""},
		{fmt.Sprintf("mailbox: {shards: %d, window_bytes_max: %d}", shards, shards*mailbox.ShardWindowBytesMin-1), "mailbox.window_bytes_max"},
		{fmt.Sprintf("mailbox: {shards: %d, calls_max: %d}", shards, shards), ""},
		{"{app: {listen: 'unix:16651'}, peer: {listen: ':16651'}}", ""},
		{"admin: {listen: '127.0.0.1:no-such-port'}", "admin.listen"},
		{"{debug: {listen: ''}, lane: {listen: ''}}", ""},
		{fmt.Sprintf("{node: {group: %s}, prove: {enabled: true}}", strings.Repeat("g", membership.GroupBytesMax-ProofSuffixBytes)), ""},
		{fmt.Sprintf("{node: {group: %s}, prove: {enabled: true}}", strings.Repeat("g", membership.GroupBytesMax-ProofSuffixBytes+1)), "prove.enabled"},
		{"{admin: {listen: '127.0.0.1:0'}, debug: {listen: '127.0.0.1:0'}}", ""},
		{"{admin: {listen: '127.0.0.2:7'}, debug: {listen: '127.0.0.1:7'}}", ""},
		{"{admin: {listen: '0.0.0.0:7'}, debug: {listen: '127.0.0.1:7'}}", "debug.listen"},
		{"{app: {listen: '127.0.0.1:7'}, admin: {listen: ':7'}}", "admin.listen"},
		{"{app: {listen: '127.0.0.1:7'}, admin: {listen: '[::]:7'}}", "admin.listen"},
		{"{app: {listen: '127.0.0.1:7'}, lane: {listen: '127.0.0.1:7'}}", "lane.listen"},
		{"app: {tls: {name: 'a*', cert_file: /c, key_file: /k, ca_file: /a}}", "app.tls.name"},
	} {
		path := filepath.Join(t.TempDir(), "router.yaml")
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		r := newReader()
		r.Node.Group, r.Node.Name, r.Peer.Insecure, r.Gossip.Insecure = "group", "name", true, true
		r.Pulsar.Topics, r.Pulsar.Subscription = []string{"topic"}, "subscription"
		r.read(Sources{File: path})
		r.derive()
		r.check()
		var broken []string
		for _, rule := range rules {
			if !slices.ContainsFunc(append([]string{rule.setting}, rule.others...), func(key string) bool { return r.doubtful[key] }) && !rule.holds(r) {
				broken = append(broken, rule.setting)
			}
		}
		if got := strings.Join(broken, " "); got != test.broken || len(r.doubtful) > 0 {
			_, err := r.result()
			t.Errorf("%.100s: the rules of %q are broken, want %q: %.300v", test.content, got, test.broken, err)
		}
	}
}
