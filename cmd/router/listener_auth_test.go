package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// loopback returns an address for the tests of this process: another run of them on the
// same machine at the same time has others, and opens none of these listeners.
func loopback(host int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 100+pid/250%100, 1+pid%250, host)
}

// castle is one member with all listeners locked, in this process. Its ports are not the usual
// ones, which the documents' routers have on all addresses.
type castle struct {
	ip        string
	ca        *tlstest.CA
	gossipKey []byte
	stop      func() error
}

// pageAge is longer than the time for which /metrics repeats a page: later requests show the
// current counts.
const pageAge = time.Second

const adminSecret = "the-token-of-operators"

func newCastle(t *testing.T) *castle {
	t.Helper()
	c := &castle{ip: loopback(1), ca: tlstest.NewCA(t), gossipKey: []byte("0123456789abcdef")}
	peer, app := c.ca.Issue(t, "orders-router"), c.ca.Issue(t, "orders-router")
	dir := t.TempDir()
	keys, token := filepath.Join(dir, "keys"), filepath.Join(dir, "token")
	for path, content := range map[string]string{keys: base64.StdEncoding.EncodeToString(c.gossipKey) + "\n", token: adminSecret + "\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := filepath.Join(dir, "router.yaml")
	content := fmt.Sprintf(`
node: {group: listeners, name: castle}
pulsar: {topics: orders, subscription: orders}
app: {listen: "%[1]s:18650", tls: {cert_file: %[2]q, key_file: %[3]q, ca_file: %[4]q, name: orders-app}}
peer: {listen: "%[1]s:18651", tls: {cert_file: %[5]q, key_file: %[6]q, ca_file: %[4]q, name: orders-router}}
gossip: {listen: "%[1]s:18652", encryption_keys_file: %[7]q}
admin: {listen: "%[1]s:18653", token_file: %[8]q, drain_token: good-for-drains-only}
debug: {listen: "%[1]s:18654"}
ownership: {profile: fast}
log: {level: error}
`, c.ip, app.CertFile, app.KeyFile, c.ca.File, peer.CertFile, peer.KeyFile, keys, token)
	if err := os.WriteFile(settings, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := config.Load(config.Sources{File: settings})
	if err != nil {
		t.Fatal(err)
	}
	events, log := membroker.New(membroker.DefaultConfig()), controllog.NewMem()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, loaded.Config, broker{
			source: func(_ source.Config, metrics *source.Metrics, log *slog.Logger) *source.Source {
				return source.NewMem(loaded.Pulsar.Config, events, metrics, log)
			},
			controlLog: func(*slog.Logger) (controllog.Transport, error) { return log, nil },
		})
	}()
	c.stop = func() error { cancel(); return <-ended }
	eventually.True(t, "the admin page answers", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the member ended: %v", err)
		default:
		}
		code, _ := c.ask("GET", "/startupz", "")
		return code == http.StatusOK
	})
	return c
}

// ask makes a request to the admin page, and returns the status and the body.
func (c *castle) ask(method, path, token string) (code int, text string) {
	r, err := http.NewRequest(method, "http://"+c.ip+":18653"+path, http.NoBody)
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

// stranger is a caller of a listener, with its credentials.
type stranger struct {
	who   string
	creds credentials.TransportCredentials
	tls   *tls.Config // nil: in the clear
}

// strangers tries a listener that accepts certificates for name.
func (c *castle) strangers(t *testing.T, name string) []stranger {
	t.Helper()
	other := tlstest.NewCA(t)
	ended := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	list := []stranger{{who: "in the clear", creds: insecure.NewCredentials()}}
	for who, pairs := range map[string][]tlstest.Pair{
		"without a certificate":         nil,
		"with that of another service":  {c.ca.Issue(t, "payments")},
		"with the name, of another CA":  {other.Issue(t, name)},
		"with one that has ended":       {c.ca.IssueFor(t, -time.Minute, ended, name)},
		"with one for servers and name": {c.ca.IssueFor(t, time.Hour, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, name)},
	} {
		config := c.ca.ClientConfig(t, "orders-router", pairs...)
		list = append(list, stranger{who, credentials.NewTLS(config), config})
	}
	return list
}

// friend has the credentials that a listener requires.
func (c *castle) friend(t *testing.T, name string) *tls.Config {
	t.Helper()
	return c.ca.ClientConfig(t, "orders-router", c.ca.Issue(t, name))
}

// TestListenerAuth: callers without credentials are rejected at every listener, and callers
// with them are accepted.
func TestListenerAuth(t *testing.T) {
	t.Parallel()
	c := newCastle(t)
	t.Run("peers", c.testPeers)
	t.Run("gossip", c.testGossip)
	t.Run("application", c.testApplication)
	t.Run("debug", c.testDebug)
	t.Run("browsers", c.testBrowsers)
	t.Run("probes", c.testProbes)
	t.Run("admin", c.testAdmin)
	t.Run("afterwards", func(t *testing.T) {
		metrics := string(c.page())
		for _, series := range []string{
			`ringfence_listener_rejected_total{listener="peer",reason="handshake"}`,
			`ringfence_listener_rejected_total{listener="app",reason="handshake"}`,
			`ringfence_listener_rejected_total{listener="admin",reason="token"}`,
			`ringfence_listener_rejected_total{listener="admin",reason="origin"}`,
			`ringfence_listener_rejected_total{listener="admin",reason="method"}`,
			`ringfence_listener_rejected_total{listener="admin",reason="host"}`,
			`ringfence_listener_rejected_total{listener="debug",reason="token"}`,
			`ringfence_listener_rejected_total{listener="debug",reason="host"}`,
			`ringfence_tls_certificate_expiry_timestamp_seconds{listener="peer"}`,
		} {
			if !strings.Contains(metrics, "\n"+series) {
				t.Errorf("no metric tells of %s", series)
			}
		}
	})
	if err := c.stop(); err != nil {
		t.Errorf("the member ended with %v", err)
	}
}

// testPeers opens a stream with the Hello of another group: an authenticated caller gets the
// refusal, and no other caller gets that far.
func (c *castle) testPeers(t *testing.T) {
	hello := func(creds credentials.TransportCredentials) error {
		conn, err := grpc.NewClient(c.ip+":18651", grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		stream, err := peerv1.NewPeerServiceClient(conn).Forward(ctx)
		if err != nil {
			return err
		}
		err = stream.Send(&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: &peerv1.Hello{
			Group: "another", HashId: ring.HashID, Member: "m", Incarnation: make([]byte, 16), VersionMin: 1, VersionMax: 1,
		}}})
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	if err := hello(credentials.NewTLS(c.friend(t, "orders-router"))); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a peer with the certificate does not get as far as the Hello: %v", err)
	}
	for _, s := range c.strangers(t, "orders-router") {
		if err := hello(s.creds); status.Code(err) != codes.Unavailable {
			t.Errorf("a peer %s gets %v", s.who, err)
		}
	}
}

func (c *castle) testGossip(t *testing.T) {
	other := []byte("fedcba9876543210")
	knock := func(t *testing.T, ip, group string, keys ...[]byte) (members func() int, failures func() float64) {
		cfg := membership.DefaultConfig()
		cfg.Group, cfg.Name, cfg.Listen, cfg.Seeds, cfg.SecretKeys = group, "stranger", ip+":18652", []string{c.ip + ":18652"}, keys
		registry := prometheus.NewRegistry()
		g, err := membership.New(cfg, membership.Member{Inc: ownership.Incarnation{1}, GRPCAddr: ip + ":18651"},
			nil, func(membership.Evidence) {}, nil, slog.New(slog.DiscardHandler), membership.NewMetrics(registry))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- g.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		return func() int { return len(g.Members()) }, func() float64 { return counted(t, registry, "ringfence_membership_contacts_total", "failed") }
	}
	for name, s := range map[string]struct {
		ip, group string
		keys      [][]byte
	}{
		"in the clear":       {loopback(2), "listeners", nil},
		"with another key":   {loopback(3), "listeners", [][]byte{other}},
		"with another label": {loopback(4), "payments", [][]byte{c.gossipKey}},
		"with neither":       {loopback(5), "payments", [][]byte{other}},
		"with key and label": {loopback(6), "listeners", [][]byte{c.gossipKey}},
	} {
		t.Run(name, func(t *testing.T) { // not in parallel: it would wait for all parallel tests of this package
			members, failures := knock(t, s.ip, s.group, s.keys...)
			if name == "with key and label" {
				eventually.True(t, "a member gets in", func() bool { return members() == 1 })
				return
			}
			eventually.True(t, "two attempts fail", func() bool { return failures() >= 2 })
			if members() > 0 {
				t.Error("it got in")
			}
		})
	}
}

func (c *castle) testApplication(t *testing.T) {
	const workers, rejected = "ringfence_app_workers", `ringfence_listener_rejected_total{listener="app",reason="handshake"}`
	connected, refused := 0.0, 0.0 // as the newest page shows them
	read := func() {
		page := c.page()
		connected, refused = page.value(workers), page.value(rejected)
	}
	attach := func(t *testing.T, config *tls.Config, what string, seen func() bool) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- client.Run(ctx, c.ip+":18650", func(context.Context, *client.Event) error { return nil },
				client.WithTLS(config), client.WithLogger(slog.New(slog.DiscardHandler)))
		}()
		eventually.True(t, what, func() bool { read(); return seen() })
		stop()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the application ended with %v", err)
		}
	}
	attach(t, c.friend(t, "orders-app"), "the worker is connected", func() bool { return connected > 0 })
	eventually.True(t, "the worker is gone", func() bool { read(); return connected == 0 })
	for _, s := range c.strangers(t, "orders-app") {
		t.Run(s.who, func(t *testing.T) {
			before := refused // in a page that is newer than the last attempt of the one before
			attach(t, s.tls, "it is rejected", func() bool {
				if connected > 0 {
					t.Error("it got in")
				}
				return refused > before
			})
			eventually.True(t, "no worker is connected", func() bool { read(); return connected == 0 })
		})
	}
}

// metricsPage is the text of /metrics.
type metricsPage string

// page returns the page of the member, with counts that are not older than this call.
func (c *castle) page() metricsPage {
	time.Sleep(pageAge)
	_, text := c.ask("GET", "/metrics", "")
	return metricsPage(text)
}

// value returns the value of a series, 0 if the page does not show it.
func (p metricsPage) value(series string) (value float64) {
	_, rest, _ := strings.Cut(string(p), "\n"+series+" ")
	_, _ = fmt.Sscan(rest, &value) // nothing to read: 0
	return value
}

func (c *castle) testAdmin(t *testing.T) {
	for _, r := range []struct {
		method, path string
	}{
		{"POST", "/drain"},
		{"GET", "/drain"},
		{"HEAD", "/drain"},
		{"POST", "/undrain"},
		{"GET", "/undrain"},
		{"POST", "/forget-done"},
		{"POST", "/v1/acts/hold?key=user-1&by=me&reason=none"},
		{"POST", "/v1/acts/release?key=user-1&by=me&reason=none"},
		{"GET", "/v1/acts"},
		{"GET", "/v1/keys?key=user-1"},
		{"PUT", "/log/level"},
		{"POST", "/log/level"},
		{"DELETE", "/v1/members"},
		{"GET", "/nothing"},
	} {
		tokens := []string{"", "wrong", adminSecret[:len(adminSecret)-1], adminSecret + "x"}
		if !strings.HasSuffix(r.path, "/drain") {
			tokens = append(tokens, "good-for-drains-only")
		}
		for _, token := range tokens {
			if code, text := c.ask(r.method, r.path, token); code != http.StatusUnauthorized {
				t.Errorf("%s %s with the token %q: %d %s", r.method, r.path, token, code, text)
			}
		}
	}
	for _, path := range []string{"/livez", "/startupz", "/metrics", "/v1/members"} {
		if code, text := c.ask("GET", path, ""); code != http.StatusOK {
			t.Errorf("%s is not open: %d %s", path, code, text)
		}
	}
	if code, text := c.ask("GET", "/v1/keys?key=user-1", adminSecret); code != http.StatusOK {
		t.Errorf("/v1/keys with the token: %d %s", code, text)
	}
	if n := c.page().value("ringfence_node_drains_total"); n != 0 {
		t.Errorf("the member was drained %v times", n)
	}
	if code, text := c.ask("GET", "/drain?wait=3m", "good-for-drains-only"); code != http.StatusOK {
		t.Errorf("/drain with its token: %d %s", code, text)
	}
}

// request makes a request with headers, and returns the status.
func (c *castle) request(t *testing.T, method, url, host string, header map[string]string) int {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+c.ip+url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	for name, value := range header {
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

// testDebug asks for profiles without the token, by a bent name, and in a loop.
func (c *castle) testDebug(t *testing.T) {
	const goroutines = ":18654/debug/pprof/goroutine"
	operator := map[string]string{"Authorization": "Bearer " + adminSecret}
	for name, one := range map[string]struct {
		host   string
		header map[string]string
		want   int
	}{
		"without the token":   {"", nil, 401},
		"with a wrong one":    {"", map[string]string{"Authorization": "Bearer x"}, 401},
		"by a name":           {"evil.com", operator, 403},
		"by a page elsewhere": {"", map[string]string{"Authorization": "Bearer " + adminSecret, "Sec-Fetch-Site": "cross-site"}, 403},
	} {
		if got := c.request(t, "GET", goroutines, one.host, one.header); got != one.want {
			t.Errorf("a profile %s: %d, want %d", name, got, one.want)
		}
	}
	if got := c.request(t, "GET", goroutines, "", operator); got != http.StatusOK {
		t.Errorf("a profile with the token: %d", got)
	}
	for range 10 {
		if got := c.request(t, "GET", goroutines+"?debug=2", "", operator); got != http.StatusTooManyRequests {
			t.Errorf("a profile right after another one: %d", got)
		}
	}
}

// testBrowsers asks as the pages of other sites make the browser of an operator ask.
func (c *castle) testBrowsers(t *testing.T) {
	token := "Bearer " + adminSecret
	for name, one := range map[string]struct {
		method, path, host string
		header             map[string]string
		want               int
	}{
		"a link to /undrain":               {"GET", "/undrain", "", map[string]string{"Authorization": token, "Sec-Fetch-Site": "none"}, 405},
		"a link to /drain":                 {"GET", "/drain", "", map[string]string{"Authorization": token, "Sec-Fetch-Site": "none"}, 403},
		"an image of /drain":               {"GET", "/drain", "", map[string]string{"Authorization": token, "User-Agent": "Mozilla/5.0"}, 403},
		"a form of another site":           {"POST", "/drain", "", map[string]string{"Authorization": token, "Origin": "http://evil.com"}, 403},
		"a form of a page in a sandbox":    {"POST", "/undrain", "", map[string]string{"Authorization": token, "Origin": "null"}, 403},
		"members by a name bent to us":     {"GET", "/v1/members", "evil.com", nil, 403},
		"the page by a name bent to us":    {"GET", "/", "evil.com", nil, 403},
		"its data by a name bent to us":    {"GET", "/v1/page/events", "evil.com", nil, 403},
		"its data for another site":        {"GET", "/v1/page", "", map[string]string{"Authorization": token, "Sec-Fetch-Site": "cross-site"}, 403},
		"a level by GET":                   {"GET", "/forget-done", "", map[string]string{"Authorization": token}, 405},
		"a link to a hold":                 {"GET", "/v1/acts/hold?key=k&by=b&reason=r", "", map[string]string{"Authorization": token, "Sec-Fetch-Site": "none"}, 405},
		"a form that holds a key":          {"POST", "/v1/acts/hold?key=k&by=b&reason=r", "", map[string]string{"Authorization": token, "Origin": "http://evil.com"}, 403},
		"our own page":                     {"POST", "/undrain", "", map[string]string{"Authorization": token, "Origin": "http://" + c.ip + ":18653"}, 200},
		"a program, which has no Origin":   {"POST", "/undrain", "", map[string]string{"Authorization": token}, 200},
		"a probe by whatever name":         {"GET", "/livez", "evil.com", nil, 200},
		"monitoring, by the Service's one": {"GET", "/metrics", "orders.shop.svc", nil, 200},
	} {
		if got := c.request(t, one.method, ":18653"+one.path, one.host, one.header); got != one.want {
			t.Errorf("%s: %d, want %d", name, got, one.want)
		}
	}
	if n := c.page().value("ringfence_node_drains_total"); n != 0 {
		t.Errorf("the member was drained %v times", n)
	}
}

// testProbes holds as many connections open as there may be, each with a request whose body does not come: probes
// are answered, and so is the drain, as far as its token.
func (c *castle) testProbes(t *testing.T) {
	for range 64 {
		conn, err := net.Dial("tcp", c.ip+":18653")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]int{"/livez": 200, "/drain": 401} {
		if code, text := c.ask("GET", path, ""); code != want {
			t.Errorf("%s under attack: %d %s", path, code, text)
		}
	}
}

// counted sums up the counters of a name that have a label of a value.
func counted(t *testing.T, registry *prometheus.Registry, name, label string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// TestCommandsAskByTLS: the commands of a router ask it by https, and tell it from another one.
func TestCommandsAskByTLS(t *testing.T) {
	t.Parallel()
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	pair, strange := ca.Issue(t, "orders-router"), other.Issue(t, "orders-router")
	certificate, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+adminSecret {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprintln(w, "drained")
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "https://")
	dir := t.TempDir()
	token := write(t, filepath.Join(dir, "token"), adminSecret)
	settings := func(name string, pair tlstest.Pair) string {
		return write(t, filepath.Join(dir, name), fmt.Sprintf("admin: {listen: %q, token_file: %q, tls: {cert_file: %q, key_file: %q}}\n", address, token, pair.CertFile, pair.KeyFile))
	}
	for name, one := range map[string]struct {
		args []string
		says string // "": it works
	}{
		"with its settings":             {[]string{"--config", settings("own.yaml", pair)}, ""},
		"with those of another one":     {[]string{"--config", settings("other.yaml", strange)}, "a different certificate"},
		"with its CA and name":          {[]string{"--admin", server.URL, "--token-file", token, "--ca-file", ca.File, "--tls-name", "orders-router"}, ""},
		"with its CA, by HOST:PORT":     {[]string{"--admin", address, "--token-file", token, "--ca-file", ca.File, "--tls-name", "orders-router"}, ""},
		"with its CA and another name":  {[]string{"--admin", server.URL, "--token-file", token, "--ca-file", ca.File, "--tls-name", "payments"}, "not payments"},
		"with its CA and no name":       {[]string{"--admin", server.URL, "--token-file", token, "--ca-file", ca.File}, "127.0.0.1"},
		"with another CA":               {[]string{"--admin", server.URL, "--token-file", token, "--ca-file", other.File, "--tls-name", "orders-router"}, "unknown authority"},
		"with none":                     {[]string{"--admin", server.URL, "--token-file", token}, "failed to verify"},
		"with a name and no CA":         {[]string{"--admin", server.URL, "--tls-name", "orders-router"}, "--tls-name is for --ca-file"},
		"with a CA that is not there":   {[]string{"--admin", server.URL, "--ca-file", filepath.Join(dir, "nothing")}, "--ca-file"},
		"with its settings, and by URL": {[]string{"--config", settings("own.yaml", pair), "--admin", server.URL}, ""},
	} {
		out, says, code := cli(t, append([]string{"drain"}, one.args...)...)
		if one.says == "" && (code != exitOK || out != "drained\n") || one.says != "" && (code == exitOK || !strings.Contains(says, one.says)) {
			t.Errorf("%s: %q, exit code %d: %s", name, out, code, says)
		}
	}
}

// TestUnusableTokensAreCounted: the metric of unusable certificates, by which an alert goes, counts unusable files of tokens too.
func TestUnusableTokensAreCounted(t *testing.T) {
	t.Parallel()
	file := write(t, filepath.Join(t.TempDir(), "token"), adminSecret)
	cfg := config.Default()
	cfg.Admin.TokenFile, cfg.Lane.TokenFile, cfg.Lane.Listen = file, file, "127.0.0.1:0"
	registry := prometheus.NewRegistry()
	e, err := newListenerAuth(cfg, registry, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	broker, err := newPulsarAuth(config.Pulsar{TokenFile: file}, e.tls, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	counted := func(result string, each float64) {
		t.Helper()
		want := map[string]float64{"admin": each, "lane": each, "pulsar": each}
		eventually.NoError(t, eventually.Most, "the changes are counted", func() error {
			token, err := broker.token.read()
			if shown := []string{e.adminToken(), e.laneGuard.Token(), token}; err != nil || slices.Contains(shown, "") {
				t.Fatal(err, shown)
			}
			all, err := registry.Gather()
			got := map[string]float64{}
			for _, family := range all {
				for _, m := range family.GetMetric() {
					if family.GetName() == "ringfence_tls_reloads_total" && m.GetLabel()[1].GetValue() == result {
						got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
			if err == nil && !maps.Equal(got, want) {
				err = fmt.Errorf("%s: %v, want %v", result, got, want)
			}
			return err
		})
	}
	counted("failed", 0)
	write(t, file, "")
	counted("failed", 1)
	write(t, file, adminSecret+"-of-today")
	counted("ok", 1)
	counted("failed", 1)
}
