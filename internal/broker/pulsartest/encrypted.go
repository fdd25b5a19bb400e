package pulsartest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// Encryption returns the option of a producer whose messages nobody can read.
func Encryption(t testing.TB) *pulsar.ProducerEncryptionInfo {
	t.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	key := publicKey(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	return &pulsar.ProducerEncryptionInfo{KeyReader: key, Keys: []string{"their-key"}}
}

// publicKey lets a producer encrypt for a receiver without its private key.
type publicKey []byte

// PublicKey implements crypto.KeyReader.
func (k publicKey) PublicKey(name string, meta map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, k, meta), nil
}

// PrivateKey implements crypto.KeyReader. A producer does not call it.
func (publicKey) PrivateKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errors.New("pulsartest: a producer needs no private key")
}
