package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// fortress is a broker that requires TLS and a token.
type fortress struct {
	dir       string
	ca        *tlstest.CA
	tokenKey  []byte
	url       string
	admin     pulsaradmin.Client // with the role admin, which may do everything
	namespace string             // in which the role router may produce and consume
}

// newFortress starts the broker. It ends with the test, however that ends.
func newFortress(t *testing.T) *fortress {
	t.Helper()
	pulsartest.URL(t) // where there is no broker at all, there is not this one
	f := &fortress{dir: t.TempDir(), ca: tlstest.NewCA(t), tokenKey: make([]byte, 32), namespace: "public/default"}
	_, _ = rand.Read(f.tokenKey) // it never fails
	// Pulsar 5 has clients of its own that check the name localhost.
	pair := f.ca.Issue(t, "127.0.0.1", "broker.test", "localhost")
	for name, content := range map[string][]byte{
		"ca.pem": read(t, f.ca.File), "cert.pem": read(t, pair.CertFile), "key.pem": read(t, pair.KeyFile),
		"token-key": f.tokenKey, "token": []byte(f.token("admin")),
	} {
		f.write(t, name, content)
	}
	cmd := exec.Command("../tools/pulsar.sh", "run", "--secure", f.dir, "--", "sh", "-c", `echo "$PULSAR_URL $PULSAR_ADMIN_URL"; cat >/dev/null`)
	cmd.Env = append(os.Environ(), "PULSAR_MEM=-Xms256m -Xmx512m -XX:MaxDirectMemorySize=512m")
	var said bytes.Buffer
	cmd.Stderr = &said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the broker ended with %v\n%s", err, said.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the broker does not start: %v\n%s", err, said.String())
	}
	var adminURL string
	if _, err := fmt.Sscan(line, &f.url, &adminURL); err != nil {
		t.Fatal(err)
	}
	f.admin = pulsaradmin.Client{URL: adminURL, Token: f.token("admin"), HTTP: &http.Client{
		Transport: &http.Transport{TLSClientConfig: f.ca.ClientConfig(t, ""), DisableKeepAlives: true},
	}}
	if err := f.admin.Call(t.Context(), http.MethodPost, "namespaces/"+f.namespace+"/permissions/router", []string{"produce", "consume"}, nil); err != nil {
		t.Fatal(err)
	}
	return f
}

// token returns a token for a role, as `pulsar tokens create` makes it.
func (f *fortress) token(role string) string {
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(`{"sub":"`+role+`"}`))
	mac := hmac.New(sha256.New, f.tokenKey)
	mac.Write([]byte(signed))
	return signed + "." + encode(mac.Sum(nil))
}

func (f *fortress) write(t *testing.T, name string, content []byte) (path string) {
	t.Helper()
	path = filepath.Join(f.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// router returns a router as a process, with section as its settings of the section pulsar.
func (f *fortress) router(t *testing.T, ctx context.Context, ip, topic, section string) (cmd *exec.Cmd, log *bytes.Buffer) { //nolint:revive // the test comes first
	t.Helper()
	config := f.write(t, ip+".yaml", fmt.Appendf(nil, `
node: {group: %q, name: %q}
pulsar: {url: %q, admin_url: %q, topics: %q, subscription: secure, from_earliest: true, %s}
app: {listen: "%[2]s:16650"}
peer: {listen: "%[2]s:16651"}
gossip: {listen: "%[2]s:16652"}
admin: {listen: "%[2]s:16653"}
debug: {listen: "%[2]s:16654"}
`, pulsartest.Name(t), ip, f.url, f.admin.URL, topic, section))
	cmd = exec.CommandContext(ctx, routerBinary, "run", "--config", config)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 40 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if strings.Contains(section, "oauth2:") { // the issuer's certificate is judged by the system's authorities
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+f.ca.File)
	}
	log = new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, log
}

// answerMax bounds each wait for the broker, which is slow on a machine that does much else.
const answerMax = 2 * time.Minute

// TestSecureBroker: with TLS and a token, events are received and settled, and the admin API answers; without them, a router ends
// at once with an error that names the cause.
func TestSecureBroker(t *testing.T) {
	f := newFortress(t)
	tokenFile := f.write(t, "router-token", []byte(f.token("router")+"\n"))
	trust := fmt.Sprintf("tls: {ca_file: %q}", f.ca.File)
	inside := "persistent://" + f.namespace + "/" + pulsartest.Name(t)

	t.Run("with credentials", func(t *testing.T) {
		t.Parallel()
		// Only the administrator of a tenant may read the limits; a router does without.
		f.consume(t, ipOf(secureNetwork, 1), inside, fmt.Sprintf("token_file: %q, %s", tokenFile, trust), "403 ")
	})
	t.Run("with credentials, by the name of the brokers", func(t *testing.T) {
		t.Parallel()
		f.consume(t, ipOf(secureNetwork, 2), inside+"-2", fmt.Sprintf("token: %q, tls: {ca_file: %q, name: broker.test}", f.token("admin"), f.ca.File), "the broker's limits")
	})
	if err := errors.Join(
		f.admin.Call(t.Context(), http.MethodPut, pulsaradmin.TopicPath(inside+"-4"), nil, nil),
		f.admin.Call(t.Context(), http.MethodPost, pulsaradmin.TopicPath(inside+"-4")+"/permissions/narrow", []string{"produce", "consume"}, nil),
	); err != nil {
		t.Fatal(err)
	}
	issuer := f.issuer(t)
	t.Run("with credentials, with a token of an OAuth 2.0 server", func(t *testing.T) {
		t.Parallel()
		f.consume(t, ipOf(secureNetwork, 3), inside+"-3", f.oauth2(t, issuer, clientSecret)+trust, "403 ")
	})
	for i, c := range []struct{ name, topic, section, says string }{
		{"with a secret that the OAuth 2.0 server does not know", inside, f.oauth2(t, issuer, "of-another") + trust, "look at pulsar.token, pulsar.oauth2"},
		{"without a token", inside, trust, "the broker does not authenticate the router"},
		{"with a token that somebody else has signed", inside, fmt.Sprintf("token: %q, %s", (&fortress{tokenKey: []byte("another")}).token("router"), trust), "the broker does not authenticate the router"},
		{"with an empty token file", inside, fmt.Sprintf("token_file: %q, %s", f.write(t, "empty", nil), trust), "pulsar.token_file: "},
		{"with another CA", inside, fmt.Sprintf("token_file: %q, tls: {ca_file: %q}", tokenFile, tlstest.NewCA(t).File), "certificate signed by unknown authority"},
		{"with the name of other brokers", inside, fmt.Sprintf("token_file: %q, tls: {ca_file: %q, name: other.test}", tokenFile, f.ca.File), "is for broker.test, localhost, 127.0.0.1, not for other.test"},
		{"to the topic, and not to the claims beside it", inside + "-4", fmt.Sprintf("token: %q, %s", f.token("narrow"), trust), "from the topic persistent://" + f.namespace + "/__ringfence-claims"},
		{"to a topic of others", "persistent://public/functions/x", fmt.Sprintf("token_file: %q, %s", tokenFile, trust), "denies access to the topic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), answerMax)
			defer cancel()
			cmd, log := f.router(t, ctx, ipOf(refusedNetwork, i+1), c.topic, c.section)
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Errorf("the router ended with %v, want exit code 2", err)
			}
			if at := strings.Index(log.String(), "panic:"); at >= 0 {
				t.Errorf("the router's log ends with %s", log.String()[at:])
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(last, c.says) || !strings.Contains(last, "pulsar") {
				t.Errorf("the last line of the router's log is %q, want %q in it", last, c.says)
			}
			if strings.Contains(log.String(), f.token("router")) || strings.Contains(log.String(), "of-another") {
				t.Error("the log contains the token")
			}
		})
	}
}

// The issuer's data about its client.
const (
	clientID     = "orders-router"
	clientSecret = "of-the-orders-router"
	audience     = "urn:pulsar:test"
	scope        = "produce consume"
)

// issuer is an OAuth 2.0 server whose tokens the broker takes: it signs with the broker's key.
func (f *fortress) issuer(t *testing.T) (issuerURL string) {
	t.Helper()
	mux := http.NewServeMux()
	server := httptest.NewUnstartedServer(mux)
	server.TLS = f.ca.ClientConfig(t, "", f.ca.Issue(t, "127.0.0.1"))
	server.StartTLS()
	t.Cleanup(server.Close)
	answer := func(w http.ResponseWriter, code int, body map[string]any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // a client that has gone does not need it
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"issuer": server.URL, "token_endpoint": server.URL + "/token"})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		for field, want := range map[string]string{
			"grant_type": "client_credentials", "client_id": clientID, "client_secret": clientSecret, "audience": audience, "scope": scope,
		} {
			if r.FormValue(field) != want {
				answer(w, http.StatusUnauthorized, map[string]any{"error": "invalid_client", "error_description": "wrong " + field})
				return
			}
		}
		answer(w, http.StatusOK, map[string]any{"access_token": f.token("router"), "token_type": "Bearer", "expires_in": 3600})
	})
	return server.URL
}

// oauth2 returns the section pulsar for an issuer, with a file of credentials.
func (f *fortress) oauth2(t *testing.T, issuerURL, secret string) string {
	t.Helper()
	file := f.write(t, "client-"+secret, fmt.Appendf(nil, `{"type": "client_credentials", "client_id": %q, "client_secret": %q}`, clientID, secret))
	return fmt.Sprintf("oauth2: {issuer_url: %q, audience: %q, scope: %q, key_file: %q}, ", issuerURL, audience, scope, file)
}

// consume checks the way of events through a router, from the producer to the ack. The router's log
// must contain adminSays, which depends on the answer of the admin API.
func (f *fortress) consume(t *testing.T, ip, topic, section, adminSays string) {
	const events = 100
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd, log := f.router(t, ctx, ip, topic, section)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var handled atomic.Int64
	worked := make(chan error, 1)
	go func() {
		worked <- client.Run(ctx, ip+":16650", func(context.Context, *client.Event) error {
			handled.Add(1)
			return nil
		})
	}()
	f.produce(t, topic, events)
	eventually.NoError(t, time.Minute, "all events are handled", func() error {
		if n := handled.Load(); n < events {
			return fmt.Errorf("%d of %d", n, events)
		}
		return nil
	})
	eventually.NoError(t, time.Minute, "all events are settled", func() error {
		var stats struct {
			Subscriptions map[string]pulsartest.Subscription `json:"subscriptions"`
		}
		if err := f.admin.Call(t.Context(), http.MethodGet, pulsaradmin.TopicPath(topic)+"/stats", nil, &stats); err != nil {
			return err
		}
		if s := stats.Subscriptions["secure"]; s.Type != "Shared" || s.Backlog > 0 || s.Unacked > 0 {
			return fmt.Errorf("the subscription is %+v", s)
		}
		return nil
	})
	stop()
	if err := cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("the router ended with %v", err)
	}
	if err := <-worked; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("the application ended with %v", err)
	}
	if !strings.Contains(log.String(), adminSays) {
		t.Errorf("the log has no %q: the admin API has not answered like that", adminSays)
	}
	if strings.Contains(log.String(), f.token("router")) || strings.Contains(log.String(), f.token("admin")) || strings.Contains(log.String(), clientSecret) {
		t.Error("the log contains a secret")
	}
	if t.Failed() {
		t.Logf("the router's log\n%s", log.String())
	}
}

func (f *fortress) produce(t *testing.T, topic string, events int) {
	t.Helper()
	options := pulsartest.Options(t)
	options.URL, options.Authentication = f.url, pulsar.NewAuthenticationToken(f.token("router"))
	options.TLSTrustCertsFilePath = f.ca.File
	options.ConnectionTimeout, options.OperationTimeout = answerMax, answerMax
	c, err := pulsar.NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	producer, err := c.CreateProducer(pulsar.ProducerOptions{Topic: topic, SendTimeout: answerMax})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	for i := range events {
		if _, err := producer.Send(t.Context(), &pulsar.ProducerMessage{Key: fmt.Sprint("user-", i%10), Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
}
