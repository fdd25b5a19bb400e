package main

import (
	"crypto/x509"
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
