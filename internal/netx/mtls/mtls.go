// Package mtls makes TLS configurations for every listener of a router, from files that may be
// replaced while they are in use.
//
// # Authentication
//
// With [Store.Server] and [Store.Client] both sides show a certificate, and each verifies that
// the other's is signed by the CA file, is meant for its side of a connection, and carries a
// name. A CA alone is not enough: a cluster's CA signs certificates for every service.
//
// # Concurrency
//
// Everything is safe for concurrent use. Handshakes reload the files (package reload): a new
// certificate or a removed CA takes effect at the next connection. TLS sessions are never resumed, so
// none outlives a change. Existing connections stay open.
package mtls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/netx/reload"
	"github.com/ringfence/router/internal/netx/untrusted"
)

// Config names the files of mutual TLS, and the name that a peer's certificate must have. Set
// all fields, or none.
type Config struct {
	CertFile string // own certificate in PEM, followed by the intermediate certificates
	KeyFile  string // private key of the certificate, in PEM
	CAFile   string // CAs that may sign the certificate of the other side, in PEM

	// Name is the name that must be in the certificate of the other side: a DNS name, or a URI
	// such as spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT. Wildcards match nothing.
	Name string
}

// Enabled reports whether anything is set.
func (c Config) Enabled() bool { return c != Config{} }

// Files are the files of a [Store]. CertFile and KeyFile may be missing together, and
// without CAFile the system's CAs are trusted.
type Files struct {
	CertFile, KeyFile, CAFile string
}

// Files returns the files of c.
func (c Config) Files() Files { return Files{c.CertFile, c.KeyFile, c.CAFile} }

// Store holds the current certificates of one listener, from its files.
type Store struct {
	value *reload.Value[material]
}

// material is the parsed content of the files. It is immutable.
type material struct {
	certificate *tls.Certificate // nil: none
	roots       *x509.CertPool   // nil: the system's
}

// Open reads the files. listener is their label in metrics and in the log.
func Open(listener string, files Files, metrics *Metrics, log *slog.Logger) (*Store, error) {
	return open(listener, files, func(material) error { return nil }, metrics, log)
}

// OpenAlike is [Open] for a listener at which both sides verify the same name, so name must be in the own
// certificate, too. It logs a warning about an own certificate that the other side will refuse, judged by the own CA
// file and clock. Without the warning, only the other side would know.
func OpenAlike(listener string, files Files, name string, metrics *Metrics, log *slog.Logger) (*Store, error) {
	return open(listener, files, func(m material) error { return m.refused(name) }, metrics, log)
}

func open(listener string, files Files, refused func(material) error, metrics *Metrics, log *slog.Logger) (*Store, error) {
	if (files.CertFile == "") != (files.KeyFile == "") {
		return nil, fmt.Errorf("mtls: %s: a certificate and its key go together: only one of the two files is set", listener)
	}
	log = log.With("component", "mtls", "listener", listener)
	var paths []string
	if files.CertFile != "" {
		paths = append(paths, files.CertFile, files.KeyFile)
	}
	if files.CAFile != "" {
		paths = append(paths, files.CAFile)
	}
	var refusal error // of the newest own certificate; calls of the two functions never overlap
	warn := func() {
		if refusal != nil {
			log.Warn("the other members will refuse this router's certificate", "error", refusal)
		}
	}
	value, err := reload.Open(paths, func(contents [][]byte) (material, error) {
		m, err := files.parse(contents)
		if err == nil {
			refusal = refused(m)
		}
		return m, err
	}, func(err error) {
		metrics.Reloaded(listener, err)
		if err != nil {
			log.Warn("certificate files cannot be used", "error", err)
			return
		}
		log.Info("certificate files reloaded")
		warn()
	})
	if err != nil {
		return nil, fmt.Errorf("mtls: %s: %w", listener, err)
	}
	warn()
	s := &Store{value: value}
	metrics.Seen(listener)
	if files.CertFile != "" {
		metrics.watch(listener, s.NotAfter)
	}
	return s, nil
}

// parse never shows the content of the key's file.
func (f Files) parse(contents [][]byte) (material, error) {
	var m material
	if f.CertFile != "" {
		pair, err := tls.X509KeyPair(contents[0], contents[1])
		if err != nil {
			return m, fmt.Errorf("%s and %s: %w", f.CertFile, f.KeyFile, err)
		}
		if len(pair.Certificate) != bytes.Count(contents[0], []byte(begin+"CERTIFICATE-----")) {
			return m, fmt.Errorf("%s: %w", f.CertFile, errPartly)
		}
		m.certificate = &pair
		contents = contents[2:]
	}
	if f.CAFile != "" {
		var err error
		if m.roots, err = parseRoots(contents[0]); err != nil {
			return m, fmt.Errorf("%s: %w", f.CAFile, err)
		}
	}
	return m, nil
}

// refused says why a side with the same CAs and clock refuses the own certificate as one for name; nil: it does not.
func (m material) refused(name string) error {
	if m.certificate == nil {
		return nil
	}
	chain := []*x509.Certificate{m.certificate.Leaf}
	for _, raw := range m.certificate.Certificate[1:] {
		between, err := x509.ParseCertificate(raw)
		if err != nil {
			return err
		}
		chain = append(chain, between)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := m.verify(chain, name, usage); err != nil {
			return fmt.Errorf("it%w", err)
		}
	}
	return nil
}

// begin is how a block of PEM begins.
const begin = "-----BEGIN "

// errPartly says that a file has more than what the library reads of it, which skips all that is damaged.
var errPartly = errors.New("a certificate is cut off, damaged or shares a line: its BEGIN and END must each be on a line of their own")

// parseRoots refuses a file that is only partly readable: otherwise holders of an omitted CA
// could not connect, for no visible reason.
func parseRoots(content []byte) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	found := 0
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a %s among the CAs, want certificates only", strings.ToLower(block.Type))
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		roots.AddCert(certificate)
		found++
	}
	switch begun := bytes.Count(content, []byte(begin)); {
	case begun == 0:
		return nil, errors.New("no certificate in PEM")
	case found != begun:
		return nil, errPartly
	}
	return roots, nil
}

// NotAfter returns when the own certificate ends; the zero time without one.
func (s *Store) NotAfter() time.Time {
	if c := s.value.Get().certificate; c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// Refused returns why the others will refuse the own certificate, as far as the own CA file and clock tell: see [OpenAlike].
func (s *Store) Refused(name string) error { return s.value.Get().refused(name) }

// Certificate returns the own certificate, nil without one.
func (s *Store) Certificate() *tls.Certificate { return s.value.Get().certificate }

// Server returns the configuration of a listener that accepts only callers whose
// certificate carries name.
func (s *Store) Server(name string) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		NextProtos:     []string{"h2"},
		GetCertificate: s.present,
		// The library accepts any certificate here, because it would verify by CAs that
		// never change. VerifyConnection uses the current ones.
		ClientAuth: tls.RequireAnyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			return s.verify(state, name, x509.ExtKeyUsageClientAuth)
		},
		SessionTicketsDisabled: true,
	}
}

// Public returns the configuration of a listener for HTTP/1 that lets in callers without a
// certificate.
func (s *Store) Public() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"http/1.1"},
		GetCertificate:         s.present,
		SessionTicketsDisabled: true,
	}
}

// present returns the own certificate of now, for each handshake of a listener.
func (s *Store) present(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.Certificate(), nil }

// Client returns the configuration of a client that accepts servers whose certificate carries
// name, at any address.
func (s *Store) Client(name string) *tls.Config {
	config := s.client()
	// The library would verify by CAs that never change, and by the address that was
	// dialed. VerifyConnection verifies everything instead, in every handshake.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return s.verify(state, name, x509.ExtKeyUsageServerAuth)
	}
	return config
}

// Twin returns the configuration of a client that accepts only a server with s's own
// certificate: a router's commands query that router so, at any address.
func (s *Store) Twin() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection takes one certificate alone
		VerifyConnection: func(state tls.ConnectionState) error {
			own := s.value.Get().certificate
			if len(state.PeerCertificates) == 0 || own == nil || !state.PeerCertificates[0].Equal(own.Leaf) {
				return errors.New("mtls: the other side presents a different certificate")
			}
			return nil
		},
	}
}

// ClientByHost returns the configuration of a client that accepts servers whose certificate
// matches the dialed host. Its CAs are the present ones, and do not change.
func (s *Store) ClientByHost() *tls.Config {
	config := s.client()
	config.RootCAs = s.value.Get().roots
	return config
}

func (s *Store) client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, // of brokers; our own listeners ask for 1.3
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c := s.value.Get().certificate; c != nil {
				return c, nil
			}
			return new(tls.Certificate), nil
		},
	}
}

// verify accepts a connection if the other side's certificate is valid and carries the name.
func (s *Store) verify(state tls.ConnectionState, name string, usage x509.ExtKeyUsage) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("mtls: the other side presents no certificate")
	}
	if err := s.value.Get().verify(state.PeerCertificates, name, usage); err != nil {
		return fmt.Errorf("mtls: the certificate of the other side%w", err)
	}
	return nil
}

// verify checks a certificate and its intermediates. Its errors go on from the words "the certificate".
func (m material) verify(chain []*x509.Certificate, name string, usage x509.ExtKeyUsage) error {
	leaf, between := chain[0], x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: m.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return fmt.Errorf(": %w", err)
	}
	if !isFor(leaf, name) {
		return fmt.Errorf(" is for %s, not for %s", names(leaf), name)
	}
	return nil
}

// isFor reports whether a certificate carries exactly this DNS name, IP address or URI. A
// wildcard matches only itself: it is issued for a whole domain, while name is that of
// one service.
func isFor(c *x509.Certificate, name string) bool {
	if strings.Contains(name, "://") {
		return slices.ContainsFunc(c.URIs, func(uri *url.URL) bool { return uri.String() == name })
	}
	if ip := net.ParseIP(name); ip != nil {
		return slices.ContainsFunc(c.IPAddresses, ip.Equal)
	}
	return slices.ContainsFunc(c.DNSNames, func(dns string) bool { return strings.EqualFold(dns, name) })
}

// names lists the names in a certificate.
func names(c *x509.Certificate) string {
	all := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	for _, uri := range c.URIs {
		all = append(all, uri.String())
	}
	if len(all) == 0 {
		return "nobody"
	}
	return untrusted.Text(strings.Join(all, ", "))
}
