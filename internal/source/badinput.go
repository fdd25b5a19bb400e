package source

import (
	"encoding/base64"
	"encoding/json"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/event"
)

// reasonEncrypted is the reason in the dead letter of an encrypted event.
const reasonEncrypted = "the event is encrypted, and the router has no key to read it: its payload is here as it came"

// encryption holds the parameters for decrypting a payload, as PropertyEncryption of the
// dead letter carries them. Bytes are in base64.
type encryption struct {
	Algorithm        string                   `json:"algorithm"`
	Param            string                   `json:"param"` // the initialization vector
	Keys             map[string]encryptionKey `json:"keys"`
	Compression      pulsar.CompressionType   `json:"compression"` // number of Pulsar's wire format
	UncompressedSize int                      `json:"uncompressed_size"`
	BatchSize        int                      `json:"batch_size"` // events in the payload, 1 also for one that was sent without a batch
}

type encryptionKey struct {
	Value    string            `json:"value"` // the data key, encrypted
	Metadata map[string]string `json:"metadata,omitempty"`
}

func encryptionProperty(c *pulsar.EncryptionContext) event.Property {
	e := encryption{
		Algorithm: c.Algorithm, Param: base64.StdEncoding.EncodeToString(c.Param), Keys: make(map[string]encryptionKey, len(c.Keys)),
		Compression: c.CompressionType, UncompressedSize: c.UncompressedSize, BatchSize: c.BatchSize,
	}
	for name, k := range c.Keys {
		e.Keys[name] = encryptionKey{base64.StdEncoding.EncodeToString(k.KeyValue), k.Metadata}
	}
	text, err := json.Marshal(e)
	if err != nil { // of these types it never fails
		text = []byte(err.Error())
	}
	return event.Property{Name: PropertyEncryption, Value: string(text)}
}
