package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// plantedSecrets are secrets that cannot be printed by chance, by setting.
var plantedSecrets = map[string]string{
	"pulsar.token":           "planted-token-of-pulsar",
	"admin.token":            "planted-token-of-admin",
	"admin.drain_token":      "planted-token-of-drains",
	"gossip.encryption_keys": base64.StdEncoding.EncodeToString([]byte("planted-key-1234")),
	"oauth2":                 "planted-client-secret",
}

// traces are the forms in which a secret may be printed.
func traces(secret string) []string {
	forms := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)), strings.Trim(fmt.Sprintf("%d", []byte(secret)), "[]")}
	if raw, err := base64.StdEncoding.DecodeString(secret); err == nil {
		forms = append(forms, string(raw), hex.EncodeToString(raw), strings.Trim(fmt.Sprintf("%d", raw), "[]"), fmt.Sprintf("%q", raw))
	}
	return forms
}

// clean fails the test if text has a trace of a secret.
func clean(t *testing.T, what, text string, secrets ...string) {
	t.Helper()
	for _, secret := range secrets {
		for _, form := range traces(secret) {
			if at := strings.Index(text, form); at >= 0 {
				t.Errorf("%s shows a secret, as %q: …%.300s…", what, form, text[max(0, at-150):])
			}
		}
	}
}

// execute runs a command of the router in this process, and returns all that it prints.
func execute(t *testing.T, arguments ...string) (printed string, err error) {
	t.Helper()
	var stdout string
	logged := withStderr(t, func() { stdout, err = command(t.Context(), arguments...) })
	return fmt.Sprint(stdout, logged, err), err
}

// command runs a command, and returns its standard output.
func command(ctx context.Context, arguments ...string) (printed string, err error) {
	var stdout bytes.Buffer
	root := rootCommand()
	root.SetArgs(arguments)
	root.SetOut(&stdout)
	root.SetErr(&stdout)
	err = root.ExecuteContext(ctx)
	return stdout.String(), err
}

// withStderr returns the standard error of f. It redirects that of the whole process, so its tests run alone.
func withStderr(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stderr := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = stderr }()
	f()
	return read(t, file.Name())
}

// TestEverySecretIsHidden: a setting that is secret by its name has the type that hides
// it, and is one that these tests plant.
func TestEverySecretIsHidden(t *testing.T) {
	name := regexp.MustCompile(`token|secret|password|credential|encryption_keys`)
	var environ []string
	for _, s := range settings(t).Settings() {
		if strings.HasSuffix(s.Key, "_file") || !name.MatchString(s.Key) {
			continue
		}
		if plantedSecrets[s.Key] == "" {
			t.Errorf("%s looks like a secret: plant one here, or give it a name that does not", s.Key)
		}
		environ = append(environ, config.EnvPrefix+strings.ToUpper(strings.ReplaceAll(s.Key, ".", "__"))+"="+plantedSecrets[s.Key])
	}
	if len(environ) != len(plantedSecrets)-1 {
		t.Errorf("%d settings are secret, and %d are planted", len(environ), len(plantedSecrets)-1)
	}
	loaded, err := config.Load(config.Sources{Environ: append(environ,
		"RINGFENCE__NODE__GROUP=g", "RINGFENCE__NODE__NAME=n", "RINGFENCE__PULSAR__TOPICS=t", "RINGFENCE__PULSAR__SUBSCRIPTION=s",
		"RINGFENCE__PEER__INSECURE=true")})
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		clean(t, verb, fmt.Sprintf(verb, loaded.Config), values(plantedSecrets)...)
	}
}

func values(m map[string]string) (list []string) {
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

func TestPrintedSettingsHaveNoSecrets(t *testing.T) {
	for _, key := range []string{"pulsar.token", "admin.token", "admin.drain_token", "gossip.encryption_keys"} {
		t.Setenv(config.EnvPrefix+strings.ToUpper(strings.ReplaceAll(key, ".", "__")), plantedSecrets[key])
	}
	enough := []string{"--node.group=g", "--pulsar.topics=t", "--pulsar.subscription=s", "--peer.insecure=true"}
	printed, err := execute(t, append([]string{"config", "print"}, enough...)...)
	if err != nil || strings.Count(printed, "(hidden)") != 4 {
		t.Errorf("config print (%v) hides %d secrets, want 4:\n%s", err, strings.Count(printed, "(hidden)"), printed)
	}
	clean(t, "config print", printed, values(plantedSecrets)...)

	// Commands that query have secrets, too: with a router that rejects them, and without a
	// router.
	for _, admin := range []string{answering(t, http.StatusForbidden, "not for you"), "--admin=127.0.0.1:1"} {
		for _, form := range []string{"table", "json", "yaml"} {
			for _, verb := range [][]string{{"members"}, {"locate", "a"}, {"exclusivity"}, {"ring", "show"}, {"ring", "diff"}, {"ring", "simulate", "--members", "+1"}} {
				printed, err := execute(t, append(verb, "-o", form, admin)...)
				if err == nil {
					t.Errorf("%s succeeded without the admin page: %s", verb, printed)
				}
				clean(t, strings.Join(verb, " "), printed, values(plantedSecrets)...)
			}
		}
		for _, verb := range []string{"drain", "undrain"} {
			printed, _ := execute(t, verb, admin)
			clean(t, verb, printed, values(plantedSecrets)...)
		}
	}
	broken := []string{"--pulsar.url=pulsar://127.0.0.1:1", "--pulsar.admin_url=http://" + brokenBroker(t), "--admin.listen=" + loopback(9) + ":0"}
	for _, verb := range [][]string{{"config", "lint"}, {"config", "print", "-o", "json"}, {"config", "print", "-o", "yaml", "--redacted"}, {"doctor"}} {
		arguments := slices.Concat(verb, enough, broken)
		printed, err := execute(t, arguments...)
		if exitCode(err) == exitUsage {
			t.Errorf("%s does not run: %s", verb, printed)
		}
		clean(t, strings.Join(verb, " "), printed, values(plantedSecrets)...)
	}
	for _, verb := range []string{"schema", "example"} {
		printed, err := execute(t, "config", verb)
		if err != nil {
			t.Error(err)
		}
		clean(t, verb, printed, values(plantedSecrets)...)
	}
}

// TestErrorsHaveNoSecrets: whatever is wrong with a secret, the error does not tell it.
func TestErrorsHaveNoSecrets(t *testing.T) {
	secret := plantedSecrets["pulsar.token"]
	for name, content := range map[string]string{
		"a list":            "admin: {token: [" + secret + "]}",
		"a section":         "admin: {token: {value: " + secret + "}}",
		"an unknown key":    "pulsar: {tokn: " + secret + "}",
		"keys not base64":   "gossip: {encryption_keys: '" + secret + "!'}",
		"a key too short":   "gossip: {encryption_keys: " + base64.StdEncoding.EncodeToString([]byte(secret)) + "}",
		"twice":             "pulsar: {token: " + secret + ", token_file: /none}",
		"no YAML":           "pulsar: {token: " + secret + "\nadmin: [",
		"no YAML, in lines": "pulsar:\n  token: " + secret + "\n   url: x",
		"a missing file":    "node: {group: g}\npulsar: {topics: t, subscription: s, token: " + secret + "}\nadmin: {token_file: /none/such}",
	} {
		file := filepath.Join(t.TempDir(), "router.yaml")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			printed, err := execute(t, "run", "--config", file, "--app.listen="+loopback(9)+":0", "--peer.listen="+loopback(9)+":0",
				"--admin.listen="+loopback(9)+":0", "--debug.listen="+loopback(9)+":0", "--gossip.listen="+loopback(9)+":0")
			if exitCode(err) != exitUsage {
				t.Errorf("run ended with %v, want exit code %d", err, exitUsage)
			}
			clean(t, "run", printed, secret)
		})
	}
}

// TestRunShowsNoSecrets: members that are given every secret, in settings and in files, log
// everything through a start, a misbehaving broker, rejected callers and a stop. No secret is in
// their output or in their answers.
func TestRunShowsNoSecrets(t *testing.T) {
	type member struct {
		ip, flags string
		pair      tlstest.Pair
		ca        *tlstest.CA
		printed   string
		served    string
		err       error
	}
	dir := t.TempDir()
	file := func(name, content string) string { return write(t, filepath.Join(dir, name), content) }
	members := map[string]*member{
		"settings": {ip: loopback(11), flags: "--config=" + file("router.yaml", fmt.Sprintf("pulsar: {token: %q}\nadmin: {token: %q, drain_token: %q}\ngossip: {encryption_keys: %q}\n",
			plantedSecrets["pulsar.token"], plantedSecrets["admin.token"], plantedSecrets["admin.drain_token"], plantedSecrets["gossip.encryption_keys"]))},
		"files": {ip: loopback(12), flags: "--pulsar.token_file=" + file("pulsar", plantedSecrets["pulsar.token"]) + " --admin.token_file=" + file("admin", plantedSecrets["admin.token"]) +
			" --gossip.encryption_keys_file=" + file("keys", plantedSecrets["gossip.encryption_keys"])},
		"oauth2": {ip: loopback(13), flags: "--pulsar.oauth2.issuer_url=https://" + loopback(13) + ":1 --pulsar.oauth2.key_file=" +
			file("client.json", `{"type": "client_credentials", "client_id": "me", "client_secret": "`+plantedSecrets["oauth2"]+`"}`)},
	}
	for _, m := range members {
		m.ca = tlstest.NewCA(t)
		m.pair = m.ca.Issue(t, "orders")
	}
	secrets := values(plantedSecrets)
	for _, m := range members {
		secrets = append(secrets, strings.Split(read(t, m.pair.KeyFile), "\n")[1])
	}
	url := "pulsar://" + brokenBroker(t)
	logged := withStderr(t, func() {
		var running sync.WaitGroup
		for _, m := range members {
			ctx, stop := context.WithTimeout(t.Context(), eventually.Most)
			running.Go(func() {
				defer stop() // nobody answers any more
				m.printed, m.err = command(ctx, append([]string{
					"run", "--node.group=secrets", "--node.name=me", "--pulsar.topics=t", "--pulsar.subscription=s", "--pulsar.url=" + url,
					"--log.level=debug", "--log.format=json", "--gossip.listen=" + m.ip + ":16652",
					"--app.listen=" + m.ip + ":16650", "--peer.listen=" + m.ip + ":16651", "--admin.listen=" + m.ip + ":16653", "--debug.listen=" + m.ip + ":16654",
					"--peer.tls.cert_file=" + m.pair.CertFile, "--peer.tls.key_file=" + m.pair.KeyFile, "--peer.tls.ca_file=" + m.ca.File, "--peer.tls.name=orders",
				}, strings.Fields(m.flags)...)...)
			})
			running.Go(func() {
				defer stop()
				m.served = tryEverything(ctx, m.ip, m.pair)
			})
		}
		running.Wait()
	})
	clean(t, "the log", logged, secrets...)
	for name, m := range members {
		clean(t, name+" on its standard output", m.printed, secrets...)
		clean(t, name+" on its pages", m.served, secrets...)
		clean(t, name+" as it ends", fmt.Sprint(m.err), secrets...)
	}
	// The logs cover the whole test.
	for _, want := range []string{`"level":"DEBUG"`, `"msg":"draining"`, `"msg":"rejected"`, `"msg":"certificate files cannot be used"`} {
		if !strings.Contains(logged, want) {
			t.Errorf("no line of the log has %s", want)
		}
	}
	for _, want := range []string{"401 Unauthorized", "ringfence_build_info", "200 OK"} {
		if !strings.Contains(members["settings"].served, want) {
			t.Errorf("no answer has %q: %s", want, members["settings"].served)
		}
	}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// brokenBroker accepts connections, reads the request, sends an invalid answer, and hangs up.
func brokenBroker(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			frame := make([]byte, 1024)
			n, _ := conn.Read(frame)
			_, _ = conn.Write(frame[:n])
			conn.Close()
		}
	}()
	return listener.Addr().String()
}

// tryEverything asks a member's pages for all that they have, with and without tokens, and returns the answers.
func tryEverything(ctx context.Context, ip string, pair tlstest.Pair) string {
	var said strings.Builder
	ask := func(method, url, token string) error {
		r, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		fmt.Fprintf(&said, "%s %v %s\n", answer.Status, answer.Header, body)
		return err
	}
	admin := "http://" + ip + ":16653"
	for ask("GET", admin+"/startupz", "") != nil && ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
	}
	var errs []error
	for _, path := range []string{"/", "/metrics", "/readyz?verbose", "/v1/status", "/v1/members", "/v1/page", "/v1/keys?key=a", "/v1/config", "/nothing"} {
		for _, token := range []string{"", "wrong", plantedSecrets["admin.token"]} {
			errs = append(errs, ask("GET", admin+path, token))
		}
	}
	errs = append(errs, ask("POST", admin+"/undrain", plantedSecrets["admin.drain_token"]), ask("GET", "http://"+ip+":16654/debug/pprof/cmdline", ""))
	conn, err := net.Dial("tcp", ip+":16651")
	if err == nil {
		_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")) // in the clear, at a listener with TLS
		_, _ = io.ReadAll(conn)
		conn.Close()
	}
	// So the time of the certificates' files comes, too.
	_ = os.WriteFile(pair.CertFile, []byte("nothing"), 0o600)
	time.Sleep(1100 * time.Millisecond)
	errs = append(errs, err, ask("GET", admin+"/metrics", ""))
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(&said, err)
	}
	return said.String()
}
