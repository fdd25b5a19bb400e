package membership

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/memberlist"

	"github.com/ringfence/router/internal/netx/reload"
)

// ParseKeys reads keys in base64, with commas or line ends between them. Its errors
// show none of them.
func ParseKeys(text string) ([][]byte, error) {
	var keys [][]byte
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' })
	for _, field := range fields {
		field = strings.TrimSpace(field)
		if field == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(field)
		if err != nil {
			return nil, fmt.Errorf("key %d is not base64", len(keys)+1)
		}
		if memberlist.ValidateKey(key) != nil {
			return nil, fmt.Errorf("key %d has %d bytes, want 16, 24 or 32", len(keys)+1, len(key))
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key")
	}
	return keys, nil
}

// Keys are the keys of a file, reread when it changes. Gossip that was once encrypted
// stays so, whatever the file holds later.
type Keys = reload.Value[[][]byte]

// Keys returns the keys of a [Gossip] that is ready; nil: they are not in a file.
func (g *Gossip) Keys() *Keys { return g.keys }

// Continue makes g begin with the keys of an earlier incarnation's gossip, because the file may be unreadable by now.
// It must be called before Run.
func (g *Gossip) Continue(keys *Keys) { g.keys = keys }

// CheckKeys reports the fault of the file that EncryptionKeysFile names.
func (c Config) CheckKeys() error {
	if c.EncryptionKeysFile == "" {
		return nil
	}
	_, err := c.openKeys(func(error) {})
	return err
}

func (c Config) openKeys(changed func(error)) (*Keys, error) {
	return reload.Open([]string{c.EncryptionKeysFile}, func(contents [][]byte) ([][]byte, error) {
		keys, err := ParseKeys(string(contents[0]))
		if err != nil {
			return nil, fmt.Errorf("membership: %s: %w", c.EncryptionKeysFile, err)
		}
		return keys, nil
	}, changed)
}

func (g *Gossip) keyFile() (*Keys, error) {
	log, reloads := g.log, g.metrics.keyReloads
	return g.cfg.openKeys(func(err error) {
		if err != nil {
			reloads.WithLabelValues("failed").Inc()
			log.Warn("gossip keys cannot be used", "error", err)
			return
		}
		reloads.WithLabelValues("ok").Inc()
		log.Info("gossip keys reloaded")
	})
}

// setKeys makes ring hold exactly these keys, the first one as its primary.
//
// Readers of the ring walk its slice without a lock. AddKey and UseKey make a new one;
// RemoveKey (v0.7.0) shifts the old one under them, unless the key is the last. So remaining
// keys are moved to the front first, and obsolete ones are removed from the end.
func setKeys(ring *memberlist.Keyring, keys [][]byte) error {
	for _, key := range keys {
		if err := ring.AddKey(key); err != nil {
			return fmt.Errorf("membership: keys: %w", err)
		}
	}
	for _, key := range slices.Backward(keys) {
		if err := ring.UseKey(key); err != nil {
			return fmt.Errorf("membership: keys: %w", err)
		}
	}
	for {
		all := ring.GetKeys()
		last := all[len(all)-1]
		if slices.ContainsFunc(keys, func(key []byte) bool { return bytes.Equal(key, last) }) {
			return nil
		}
		if err := ring.RemoveKey(last); err != nil {
			return fmt.Errorf("membership: keys: %w", err)
		}
	}
}
