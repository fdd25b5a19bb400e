package source

import (
	"encoding/base64"
	"encoding/json"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// reasonEncrypted is the reason in the dead letter of an encrypted event.
const reasonEncrypted = "the event is encrypted, and the router has no key to read it: its payload is here as it came"

// encryption holds the parameters for decrypting a payload, as PropertyEncryption of the
// dead letter carries them. Bytes are in base64.
type encryption struct {
	Algorithm        string                   `json:"algorithm"`
	Param            string                   `json:"param"` // the initialization vector
	Keys             map[string]encryptionKey `json:"keys"`
	Compression      int                      `json:"compression"` // number of Pulsar's wire format
	UncompressedSize int                      `json:"uncompressed_size"`
	BatchSize        int                      `json:"batch_size"`      // events in the payload, 1 also for one that was sent without a batch
	Chunk            *encryptedChunk          `json:"chunk,omitempty"` // nil: the payload is not a part of a message
}

// encryptedChunk names a part of a message. The message is compressed as a whole, and its parts are encrypted.
type encryptedChunk struct {
	UUID   string `json:"uuid"`
	Number int32  `json:"number"` // from 0
	Count  int32  `json:"count"`
	Size   int32  `json:"size"` // bytes of all parts together
}

type encryptionKey struct {
	Value    string            `json:"value"` // the data key, encrypted
	Metadata map[string]string `json:"metadata,omitempty"`
}

// entryEncryption returns the property of an encrypted entry.
func entryEncryption(entry *wire.Entry) event.Property {
	m := &entry.Metadata
	e := encryption{
		Algorithm: string(m.Encryption.Algo), Param: base64.StdEncoding.EncodeToString(m.Encryption.Param),
		Keys: make(map[string]encryptionKey, m.Encryption.Keys.Len()), Compression: int(m.Compression),
		UncompressedSize: int(m.UncompressedSize), BatchSize: entry.Events,
	}
	for k := range m.Encryption.Keys.All() {
		key := encryptionKey{Value: base64.StdEncoding.EncodeToString(k.Value)}
		for name, value := range k.Properties.All() {
			if key.Metadata == nil {
				key.Metadata = make(map[string]string)
			}
			key.Metadata[string(name)] = string(value)
		}
		e.Keys[string(k.Name)] = key
	}
	if m.Chunks > 1 {
		e.Chunk = &encryptedChunk{UUID: string(m.UUID), Number: m.Chunk, Count: m.Chunks, Size: m.ChunkedSize}
	}
	text, _ := json.Marshal(e) // of these types it never fails
	return event.Property{Name: PropertyEncryption, Value: string(text)}
}
