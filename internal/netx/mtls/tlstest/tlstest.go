// Package tlstest makes real certificates for tests, signed by a test CA, in files in the form
// that a router reads.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// CA signs certificates.
type CA struct {
	File string // its own certificate

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Pair is the files of a certificate and its key.
type Pair struct{ CertFile, KeyFile string }

// NewCA returns a new CA.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{File: filepath.Join(t.TempDir(), "ca.pem"), key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "CA of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca.certificate = sign(t, template, template, ca.key, ca.key)
	write(t, ca.File, "CERTIFICATE", ca.certificate.Raw)
	return ca
}

// Issue writes a certificate for names, which are DNS names, IP addresses or URIs, and
// for both sides of a connection.
func (ca *CA) Issue(t testing.TB, names ...string) Pair {
	t.Helper()
	return ca.IssueFor(t, time.Hour, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, names...)
}

// IssueFor is Issue for certain usages, and with an end; one that has ended if that is negative.
func (ca *CA) IssueFor(t testing.TB, lifetime time.Duration, usages []x509.ExtKeyUsage, names ...string) Pair {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "certificate of a test"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usages,
	}
	for _, name := range names {
		ip := net.ParseIP(name)
		switch {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case strings.Contains(name, "://"):
			uri, err := url.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			template.URIs = append(template.URIs, uri)
		default:
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	key, dir := newKey(t), t.TempDir()
	pair := Pair{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}
	write(t, pair.CertFile, "CERTIFICATE", sign(t, template, ca.certificate, key, ca.key).Raw)
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, pair.KeyFile, "PRIVATE KEY", encoded)
	return pair
}

// Replace puts other into the place of p, as a tool that rotates certificates does.
func (p Pair) Replace(t testing.TB, other Pair) {
	t.Helper()
	for from, to := range map[string]string{other.CertFile: p.CertFile, other.KeyFile: p.KeyFile} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sign(t testing.TB, template, parent *x509.Certificate, subject, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &subject.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func write(t testing.TB, path, kind string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ClientConfig returns the configuration of a client that takes a server of this CA
// with a name for its own, and shows a certificate, or none.
func (ca *CA) ClientConfig(t testing.TB, server string, pairs ...Pair) *tls.Config {
	t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: server, RootCAs: x509.NewCertPool()}
	config.RootCAs.AddCert(ca.certificate)
	for _, p := range pairs {
		certificate, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = append(config.Certificates, certificate)
	}
	return config
}
