package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/audit/collect"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
	"github.com/ringfence/router/ring"
)

// collectAddresses are those that a collector listens on.
type collectAddresses struct{ reports, admin string }

// collecting starts a collector for the application orders, and returns its output, and a function that ends it.
func collecting(t *testing.T, args ...string) (addresses collectAddresses, out *written.Text, end func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out = new(written.Text)
	var log written.Text
	cmd := rootCommand()
	cmd.SetOut(out)
	cmd.SetErr(&log)
	cmd.SetArgs(append([]string{"audit", "collect", "--application", "orders"}, args...))
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	line := regexp.MustCompile(`reports=(\S+) admin=(\S+)`)
	eventually.NoError(t, eventually.Most, "it listens", func() error {
		found := line.FindStringSubmatch(log.String())
		if found == nil {
			return errors.New("it does not")
		}
		addresses = collectAddresses{found[1], found[2]}
		return nil
	})
	return addresses, out, func() error {
		stop()
		return <-ended
	}
}

// TestCollectShowsOtherMachinesTheReport: beyond loopback the report has the certificate of the reports, and needs its token.
func TestCollectShowsOtherMachinesTheReport(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	ca := tlstest.NewCA(t)
	pair := ca.Issue(t, "collector")
	tokenFile := write(t, filepath.Join(t.TempDir(), "token"), secret)
	found, _, end := collecting(t, "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0", "--admin-token-file", tokenFile, "--tls-cert-file", pair.CertFile, "--tls-key-file", pair.KeyFile)
	_, port, err := net.SplitHostPort(found.admin)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	https := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "collector"}, DisableKeepAlives: true}}
	for token, want := range map[string]int{secret: http.StatusOK, "fedcba9876543210": http.StatusUnauthorized, "": http.StatusUnauthorized} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://127.0.0.1:"+port+"/report.json", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := https.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("with the token %q: %s, want %d", token, response.Status, want)
		}
	}
	own, err := client.NewAudit(client.AuditOptions{Collector: found.reports, Application: "orders", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	own.Begin("alice").End()
	if err := own.Close(); err != nil {
		t.Errorf("reports on loopback, which the certificate is not for: %v", err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestCollect: two processes report overlapping handlings with the token; the page, the metrics and the end of the command tell of them.
func TestCollect(t *testing.T) {
	t.Parallel()
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, out, end := collecting(t, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--token-file", tokenFile)
	report := func(name, application, tokenFile string) error {
		a, err := client.NewAudit(client.AuditOptions{Collector: found.reports, Name: name, Application: application, TokenFile: tokenFile})
		if err != nil {
			return err
		}
		first, second := a.Begin("alice"), a.Begin("alice")
		time.Sleep(time.Millisecond)
		first.End()
		second.End()
		return a.Close()
	}
	if err := report("p", "orders", tokenFile); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{"without the token": report("p", "orders", ""), "another application": report("p", "payments", tokenFile)} {
		if err == nil {
			t.Errorf("%s: the reports were taken", name)
		}
	}
	get := func(path string) string {
		response, err := http.Get("http://" + found.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v %v", path, response.Status, err)
		}
		return string(text)
	}
	var r collect.Report
	if err := json.Unmarshal([]byte(get("/report.json")), &r); err != nil || r.Overlaps != 1 || r.Handlings != 2 || r.Application != "orders" {
		t.Errorf("report %+v, %v", r, err)
	}
	if text := get("/metrics"); !strings.Contains(text, "ringfence_audit_overlaps_total 1") {
		t.Error("the metrics have no overlap")
	}
	if text := get("/"); !strings.Contains(text, "1 overlaps in 2 handlings of 1 processes") {
		t.Errorf("page %q", text)
	}
	if err := end(); err != nil || !strings.HasPrefix(out.String(), "orders: ") {
		t.Errorf("it ended with %v and %q", err, out.String())
	}
}

// TestCollectRefusesWhatIsNoAddress: a wrong address is named as such, and not as one that other machines reach.
func TestCollectRefusesWhatIsNoAddress(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--listen", "--admin"} {
		_, says, code := cli(t, "audit", "collect", flag, "1")
		if want := flag + ` = "1", want HOST:PORT`; code != exitUsage || says != want {
			t.Errorf("exit code %d, %q; want %q", code, says, want)
		}
	}
}

func TestCollectIsProtected(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--listen", "0.0.0.0:0"},
		{"--listen", "0.0.0.0:0", "--token-file", "x"},
		{"--application", ""},
		{"--tls-cert-file", "x"},
		{"--bytes-max", "1"},
		{"--admin", "0.0.0.0:0", "--admin-token-file", "x"},
	} {
		cmd := rootCommand()
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"audit", "collect"}, args...))
		if err := cmd.ExecuteContext(t.Context()); exitCode(err) != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestAuditLog: an empty log, an honest one and a forged one.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	genesis := func(generation uint32) ownership.Record {
		inc := ownership.Incarnation{byte(generation) + 1}
		return ownership.Record{LogVersion: ownership.LogVersionMax, Group: "g", Inc: inc, Body: &ownership.Genesis{
			Gen: generation, HashID: ring.HashID, Partitions: ring.Partitions, Table: make([]uint16, ring.Partitions),
			Members: []ownership.Node{{Name: "a", Inc: inc, Lease: time.Second}},
		}}
	}
	later := genesis(2)
	later.LogVersion++
	for name, test := range map[string]struct {
		records []ownership.Record
		want    error
		says    string
	}{
		"empty":  {nil, errUnjudged, "records"},
		"honest": {[]ownership.Record{genesis(1), genesis(2)}, nil, "geneses, epochs"},
		"later":  {[]ownership.Record{genesis(1), later}, errLater, "log version 4 from record 1:1 on, this router reads up to 3"},
		"forged": {[]ownership.Record{genesis(2), genesis(1)}, errViolated, "is not greater than"},
	} {
		log := controllog.NewMem()
		for _, r := range test.records {
			data, err := controllog.Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			log.Put(data)
		}
		a, err := auditLog(t.Context(), log, "g")
		if err != nil || !errors.Is(a.err(), test.want) {
			t.Errorf("%s: %v, %v, want %v: %+v", name, err, a.err(), test.want, a)
		}
		var text strings.Builder
		a.show(&page{out: &text})
		if !strings.Contains(text.String(), test.says) {
			t.Errorf("%s: it says %q", name, text.String())
		}
	}
}
