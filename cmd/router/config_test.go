package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// settingsFile writes a file with settings.
func settingsFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// least are the mandatory settings of a router.
const least = `node: {group: orders, name: router-0}
pulsar: {topics: [orders], subscription: workers}
peer: {insecure: true}
gossip: {insecure: true}
`

// TestConfigLint: an error of every kind is found, with the correct value.
func TestConfigLint(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	writable := filepath.Join(t.TempDir(), "writable")
	if err := errors.Join(os.WriteFile(writable, []byte("a token for the drain\n"), 0o600), os.Chmod(writable, 0o666)); err != nil {
		t.Fatal(err)
	}
	for kind, test := range map[string]struct {
		file string // after the least
		args []string
		says string
	}{
		"unknown key":          {file: "mailbox: {depht_max: 5}", says: "unknown key mailbox.depht_max, the nearest is mailbox.depth_max"},
		"unknown section":      {file: "mail: {depth_max: 5}", says: "unknown key mail.depth_max, the nearest is mailbox.depth_max"},
		"unknown flag":         {args: []string{"--mailbox.depht_max", "5"}, says: "unknown flag: --mailbox.depht_max; did you mean --mailbox.depth_max?"},
		"wrong type, number":   {file: "mailbox: {depth_max: many}", says: `mailbox.depth_max = "many", want a whole number`},
		"wrong type, truth":    {file: "pulsar: {batch_index_acks: perhaps}", says: `pulsar.batch_index_acks = "perhaps", want true or false`},
		"wrong type, size":     {file: "mailbox: {bytes_max: 1.5MiB}", says: `mailbox.bytes_max = "1.5MiB", want a size (65536, 64KiB, 8MiB), 9MiB to 1TiB`},
		"wrong type, list":     {file: "app: {listen: [a, b]}", says: "app.listen is a list, want one value"},
		"number for text":      {file: "app: {socket_mode: 0600}", says: "app.socket_mode = 0600, which is not text in YAML: put it in quotes"},
		"wrong type, section":  {file: "peer: nothing", says: "peer is a section, not a setting"},
		"bad duration":         {file: "mailbox: {not_yet_delay: 5}", says: `mailbox.not_yet_delay = "5", want a duration with its unit (500ms, 2s, 5m), more than 0`},
		"too small":            {file: "mailbox: {depth_max: 0}", says: "mailbox.depth_max = 0, want a whole number, 1 to 2147483647"},
		"small for chunks":     {file: "pulsar: {chunked_bytes_max: 1MiB}", says: "router.yaml:1: pulsar.chunked_bytes_max = 1MiB, want a size (65536, 64KiB, 8MiB), 5MiB to 1TiB"},
		"small for payloads":   {file: "pulsar: {payload_bytes_max: 64}", says: "router.yaml:1: pulsar.payload_bytes_max = 64, want a size (65536, 64KiB, 8MiB), 5MiB to 1TiB"},
		"many connections":     {file: "pulsar: {broker_connections_max: 65}", says: "pulsar.broker_connections_max = 65, want a whole number, 1 to 64"},
		"too large":            {file: "app: {workers_max: 100000}", says: "app.workers_max = 100000, want a whole number, 1 to 10000"},
		"not one of the words": {file: "log: {level: loud}", says: `router.yaml:1: log.level = "loud", want debug, info, warn or error`},
		"missing":              {args: []string{"--node.group", ""}, says: "node.group is not set"},
		"bad address":          {file: "peer: {listen: '16651'}", says: `peer.listen = "16651", want HOST:PORT`},
		"bad URL":              {file: "pulsar: {url: 'http://broker:8080'}", says: `pulsar.url = "http://broker:8080", want pulsar://HOST:PORT or pulsar+ssl://HOST:PORT`},
		"bad IP":               {file: "node: {advertise_ip: here}", says: `node.advertise_ip = "here", want an IP address`},
		"follows from another": {file: "control_log: {group: x}", says: "control_log.group cannot be set: it follows from node.group"},
		"secret unreadable":    {file: "admin: {drain_token_file: /nowhere/token}", says: "admin.drain_token_file cannot be read: open /nowhere/token: no such file or directory"},
		"secret empty":         {file: "admin: {drain_token_file: " + empty + "}", says: "admin.drain_token_file cannot be used: " + empty + " is empty"},
		"secret twice":         {file: "pulsar: {token: a, token_file: /b}", says: `pulsar.token_file = "/b", want empty if pulsar.token`},
		"secret malformed":     {file: "gossip: {encryption_keys: 'not base64!'}", says: "gossip.encryption_keys = (hidden), want keys in base64"},
		"debug is open":        {file: "debug: {listen: '0.0.0.0:16654'}", says: "want HOST:PORT on a loopback address, or off: it shows all memory"},
		"application is open":  {file: "app: {listen: '0.0.0.0:16650'}", says: `want a loopback address or unix:PATH, or app.tls set: other machines can reach it`},
		"TLS in the clear":     {file: "pulsar: {tls: {ca_file: /ca.pem}}", says: `pulsar.url = "pulsar://127.0.0.1:6650", want pulsar+ssl://HOST:PORT if pulsar.tls is set`},
		"one port for two":     {file: "admin: {listen: '127.0.0.1:16651'}", says: `admin.listen = "127.0.0.1:16651", want a port other than that of app.listen or peer.listen or gossip.listen`},
		"times in conflict":    {file: "ownership: {drain_timeout: 1m}", says: "ownership.drain_timeout = 1m, want less than drain.timeout (45s)"},
		"peers without TLS":    {says: "want a loopback address, or peer.tls set (docs/security.md), or peer.insecure true"},
		"gossip without keys":  {says: "or gossip.encryption_keys_file set (docs/security.md) with gossip.verify_incoming true"},
		"beats too slow":       {file: "ownership: {beat_every: 1s}", says: "ownership.beat_every = 1s, want at most a third of ownership.lease (2s)"},
		"a short token":        {file: "admin: {token: x}", says: "admin.token = (hidden), want 16 bytes or more"},
		"a secret of others":   {file: "admin: {drain_token_file: " + writable + "}", says: "has the permissions 0666, so others than its owner may write to it: chmod go-w " + writable},
		"a user in a URL":      {file: "pulsar: {url: 'pulsar://me:pass@b:6650'}", says: `pulsar.url = "pulsar://(hidden)@b:6650", want a URL without a user`},
		"too deep":             {file: "a: " + strings.Repeat("{a: ", 9000) + "1" + strings.Repeat("}", 9000), says: "sections are nested more than 8 deep"},
		"without an end":       {args: []string{"--config", "/dev/zero"}, says: "/dev/zero: the file cannot be read: /dev/zero has more than 262144 bytes"},
		"not YAML":             {file: "a: [", says: "router.yaml:1: the file is not YAML: "},
	} {
		t.Run(kind, func(t *testing.T) {
			// A section of the test takes the place of the same keys of the least.
			args := append([]string{
				"config", "lint", "--config", settingsFile(t, test.file),
				"--node.group", "orders", "--node.name", "router-0", "--pulsar.topics", "orders", "--pulsar.subscription", "workers",
			}, test.args...)
			out, says, code := cli(t, args...)
			if code != exitUsage || !strings.Contains(says, test.says) {
				t.Errorf("exit code %d, stderr\n%s\nwant %q; output %q", code, says, test.says, out)
			}
		})
	}
	if out, says, code := cli(t, "config", "lint", "--config", settingsFile(t, least)); code != exitOK || out != "ok: 6 settings, all others have their defaults\n" {
		t.Errorf("good settings: exit code %d, %q, %s", code, out, says)
	}
	if out, _, code := cli(t, "config", "lint", "--config", settingsFile(t, least), "--ownership.mode", "gossip"); code != exitOK || !strings.Contains(out, "# not exclusive: ") {
		t.Errorf("gossip: exit code %d, %q", code, out)
	}
}

// TestServicesOfKubernetes: a Service whose variables look like settings does not end the start, and is named.
func TestServicesOfKubernetes(t *testing.T) {
	for name, value := range map[string]string{"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "PORT": "tcp://10.0.0.1:80", "PORT_80_TCP_ADDR": "10.0.0.1"} {
		t.Setenv("RINGFENCE__X_"+name, value)
	}
	out, says, code := cli(t, "config", "lint", "--config", settingsFile(t, least))
	if code != exitOK || !strings.Contains(out, "# RINGFENCE__X_PORT is ignored: Kubernetes gives it for a Service\n") {
		t.Errorf("exit code %d, %q, %s", code, out, says)
	}
}

func TestConfigPrint(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hush-hush-hush-hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := settingsFile(t, least+"admin: {drain_token_file: "+secret+"}\n")
	out, says, code := cli(t, "config", "print", "--config", file, "--mailbox.depth_max", "7")
	if code != exitOK {
		t.Fatal(says)
	}
	for _, want := range []string{"flag --mailbox.depth_max", "file " + file, "default", "(hidden)", "# memory bound, live: "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.Contains(out, "hush-hush-hush-hush") {
		t.Error("the secret is printed")
	}
	out, _, _ = cli(t, "config", "print", "--config", file, "--redacted", "-o", "json")
	if strings.Contains(out, "orders") || strings.Contains(out, "router-0") || strings.Contains(out, file) {
		t.Error("redacted, it still tells names")
	}
	var all []printed
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) < 100 {
		t.Errorf("%d settings (%v)", len(all), err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	nameless := settingsFile(t, strings.Replace(least, "name: router-0", "", 1))
	if out, says, code = cli(t, "config", "print", "--config", nameless, "--redacted", "-o", "json"); code != exitOK || strings.Contains(out, fmt.Sprintf("%q", host)) {
		t.Errorf("redacted, it still tells the name of the host: exit code %d, %s", code, says)
	}
	out, _, _ = cli(t, "config", "print", "--config", file, "--origin=false")
	if strings.Contains(out, "file "+file) {
		t.Error("it tells origins")
	}
}

// TestConfigExample: the example is a file with which a router could run, once it has a name, and peers and gossip stay on loopback.
func TestConfigExample(t *testing.T) {
	out, says, code := cli(t, "config", "example")
	if code != exitOK {
		t.Fatal(says)
	}
	if _, says, code := cli(t, "config", "lint", "--config", settingsFile(t, out), "--node.name", "router-0",
		"--peer.listen", "127.0.0.1:16651", "--gossip.listen", "127.0.0.1:16652"); code != exitOK {
		t.Errorf("the example is not valid: %s", says)
	}
	var schema map[string]any
	out, _, _ = cli(t, "config", "schema")
	if err := json.Unmarshal([]byte(out), &schema); err != nil || schema["additionalProperties"] != false {
		t.Errorf("%v in %.200s", err, out)
	}
}
