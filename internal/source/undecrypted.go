package source

import (
	"errors"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// Undecrypted makes the client hand over encrypted messages as they are. Without it they never arrive, and each takes a place among those
// that are fetched ahead.
func Undecrypted() *pulsar.MessageDecryptionInfo {
	return &pulsar.MessageDecryptionInfo{KeyReader: noKeys{}, ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume}
}

// isEncrypted reports whether a message has a payload that Undecrypted has left as it is.
func isEncrypted(m pulsar.Message) bool {
	encryption := m.GetEncryptionContext()
	return encryption != nil && len(encryption.Keys) > 0
}

type noKeys struct{}

var errNoKeys = errors.New("source: there are no keys to decrypt events")

// PublicKey implements crypto.KeyReader.
func (noKeys) PublicKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errNoKeys
}

// PrivateKey implements crypto.KeyReader.
func (noKeys) PrivateKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errNoKeys
}
