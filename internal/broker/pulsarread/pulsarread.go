// Package pulsarread makes consumers of Pulsar's client that survive encrypted messages, since anybody who may
// produce to a topic may encrypt. They get such messages as they are.
//
// Without that option a consumer of the client (v0.21.0) keeps each one among its prefetched messages for good, so that as many as it prefetches stop it.
//
// [IsTaken] interprets the errors of subscriptions, also those of package entries.
package pulsarread

import (
	"errors"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// Subscribe is [pulsar.Client.Subscribe] with that option.
func Subscribe(client pulsar.Client, o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	o.Decryption = undecrypted()
	return client.Subscribe(o) //nolint:forbidigo,wrapcheck // here the option is set; the caller's call
}

// IsTaken reports whether an attempt to subscribe failed because the subscription has consumers beside which there can be no other. It goes by the
// broker's text: the client preserves no code.
func IsTaken(err error) bool {
	return strings.Contains(err.Error(), "different type") || strings.Contains(err.Error(), "ConsumerBusy")
}

func undecrypted() *pulsar.MessageDecryptionInfo {
	return &pulsar.MessageDecryptionInfo{KeyReader: noKeys{}, ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionConsume}
}

type noKeys struct{}

var errNoKeys = errors.New("pulsar: there are no keys to decrypt messages")

// PublicKey implements crypto.KeyReader.
func (noKeys) PublicKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errNoKeys
}

// PrivateKey implements crypto.KeyReader.
func (noKeys) PrivateKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errNoKeys
}
