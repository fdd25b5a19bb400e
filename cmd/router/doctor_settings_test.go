package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/netx/mtls/tlstest"
)

// The doctor names a certificate that has ended, or that the other members refuse: the running router says so only once, in its log.
func TestDoctorKnowsTheCertificates(t *testing.T) {
	t.Parallel()
	ca, both := tlstest.NewCA(t), []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, test := range []struct {
		why    string
		pair   tlstest.Pair
		result result
		says   string
		advice string
	}{
		{"valid", ca.Issue(t, "orders-router"), resultOK, "it ends on ", ""},
		{"expired", ca.IssueFor(t, -time.Hour, both, "orders-router"), resultFail, "new connections fail", "renew"},
		{"for another name", ca.Issue(t, "payments-router"), resultFail, "the other members refuse", "renew"},
		{"not there", tlstest.Pair{CertFile: "no-such-file", KeyFile: "no-such-file"}, resultFail, "no-such-file", "look at the files that peer.tls names"},
	} {
		var d doctor
		d.cfg.Peer.TLS.CertFile, d.cfg.Peer.TLS.KeyFile, d.cfg.Peer.TLS.CAFile, d.cfg.Peer.TLS.Name = test.pair.CertFile, test.pair.KeyFile, ca.File, "orders-router"
		d.certificates()
		if len(d.findings) != 1 || d.findings[0].Check != "peer certificate" || d.findings[0].Result != test.result || !strings.Contains(d.findings[0].Says, test.says) || !strings.HasPrefix(d.findings[0].Advice, test.advice) {
			t.Errorf("%s: %+v, want %s: %s", test.why, d.findings, test.result, test.says)
		}
	}
	var alone doctor
	if alone.seeds(t.Context()); len(alone.findings) != 1 || alone.findings[0].Result != resultWarn || !strings.Contains(alone.findings[0].Says, "from the control log alone") {
		t.Errorf("without seeds, which the control log makes up for: %+v", alone.findings)
	}
	var none doctor
	if none.certificates(); len(none.findings) != 0 {
		t.Errorf("without TLS: %+v", none.findings)
	}
}

// filesNotThere has settings that name a file each, and the setting that an error about it begins with.
var filesNotThere = map[string]string{
	"admin: {token_file: /nowhere}":                                                                           "admin.token_file",
	"app: {token_file: /nowhere}":                                                                             "app.token_file",
	"lane: {listen: '127.0.0.1:0', token_file: /nowhere}":                                                     "lane.token_file",
	"gossip: {encryption_keys_file: /nowhere}":                                                                "gossip.encryption_keys_file",
	"pulsar: {copy_keys_file: /nowhere}":                                                                      "pulsar.copy_keys_file",
	"pulsar: {token_file: /nowhere}":                                                                          "pulsar.token_file",
	"pulsar: {oauth2: {key_file: /nowhere, issuer_url: 'https://127.0.0.1:1', audience: a}}":                  "pulsar.oauth2.key_file",
	"pulsar: {url: 'pulsar+ssl://127.0.0.1:1', tls: {ca_file: /nowhere}}":                                     "pulsar.tls",
	"peer: {tls: {cert_file: /nowhere, key_file: /nowhere, ca_file: /nowhere, name: orders-router.shop.svc}}": "peer.tls",
}

// A router does not start without a file that its settings name: it says which setting, and the doctor finds it, too.
func TestFilesThatAreNotThere(t *testing.T) {
	t.Parallel()
	for text, setting := range filesNotThere {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			file := settingsFile(t, text+"\n")
			settings := []string{
				"--config", file, "--node.group", "g", "--node.name", "n", "--pulsar.topics", "t", "--pulsar.subscription", "s",
				"--app.listen", "127.0.0.1:0", "--peer.listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0", "--gossip.insecure=true",
			}
			out, says, _ := cli(t, append([]string{"doctor", "-o", "json"}, settings...)...)
			var findings []finding
			if err := json.Unmarshal([]byte(out), &findings); err != nil {
				t.Fatalf("%v: %s\n%s", err, says, out)
			}
			found := slices.ContainsFunc(findings, func(f finding) bool {
				return f.Result == resultFail && strings.Contains(f.Says, "/nowhere") && strings.Contains(f.Check+f.Advice, setting)
			})
			if !found {
				t.Errorf("the doctor does not tell of %s: %+v", setting, findings)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // to end a router that starts
			defer cancel()
			root := rootCommand()
			root.SetArgs(append([]string{"run"}, settings...))
			err := root.ExecuteContext(ctx)
			if exitCode(err) != exitUsage || !strings.Contains(fmt.Sprint(err), setting) || !strings.Contains(fmt.Sprint(err), "/nowhere") {
				t.Errorf("router run ends with exit code %d: %v; want %d and %s", exitCode(err), err, exitUsage, setting)
			}
		})
	}
}

func TestDoctorComparesTheBoundsOfLargeEvents(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		frame, chunked, payload int
		warns                   bool
	}{
		{8 << 20, 32 << 20, 64 << 20, false},
		{32 << 20, 32 << 20, 64 << 20, false},
		{64 << 20, 32 << 20, 64 << 20, true},
		{8 << 20, 32 << 20, 5 << 20, true},
	} {
		var d doctor
		d.cfg.Peer.FrameMax, d.cfg.Pulsar.ChunkedBytesMax, d.cfg.Pulsar.PayloadBytesMax = test.frame, test.chunked, test.payload
		d.largeEvents()
		if warned := len(d.findings) == 1 && d.findings[0].Result == resultWarn && strings.Contains(d.findings[0].Says, "becomes a dead letter"); warned != test.warns {
			t.Errorf("%+v: %+v", test, d.findings)
		}
	}
}
