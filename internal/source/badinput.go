package source

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/ringfence/router/internal/event"
)

// reasonEncrypted is why an event that nobody here can read is not handed on.
const reasonEncrypted = "the event is encrypted, and the router has no key to read it: its payload is here as it came"

// encryption is what somebody with the key needs to read a payload, as the dead letter
// carries it in PropertyEncryption. Bytes are in base64.
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

// discardWords are what the client (v0.19.0) logs when it acks an entry that it cannot
// read. It has no other way to tell.
const discardWords = "Discarding corrupted message"

// watched is the client's log, with an ear for what the client does on its own.
type watched struct {
	log.Logger
	discarded func()
}

// SubLogger implements log.Logger.
func (w watched) SubLogger(fields log.Fields) log.Logger {
	return watched{w.Logger.SubLogger(fields), w.discarded}
}

// WithFields implements log.Logger.
func (w watched) WithFields(fields log.Fields) log.Entry {
	return watchedEntry{w.Logger.WithFields(fields), w.discarded}
}

// WithField implements log.Logger.
func (w watched) WithField(name string, value any) log.Entry {
	return watchedEntry{w.Logger.WithField(name, value), w.discarded}
}

// watchedEntry is a line of that log.
type watchedEntry struct {
	log.Entry
	discarded func()
}

// WithFields implements log.Entry.
func (w watchedEntry) WithFields(fields log.Fields) log.Entry {
	return watchedEntry{w.Entry.WithFields(fields), w.discarded}
}

// WithField implements log.Entry.
func (w watchedEntry) WithField(name string, value any) log.Entry {
	return watchedEntry{w.Entry.WithField(name, value), w.discarded}
}

// Error implements log.Entry.
func (w watchedEntry) Error(args ...any) {
	if fmt.Sprint(args...) == discardWords {
		w.discarded()
	}
	w.Entry.Error(args...)
}
