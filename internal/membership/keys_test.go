package membership

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/testing/eventually"
)

func newKey(size int) []byte {
	key := make([]byte, size)
	_, _ = rand.Read(key) // never fails
	return key
}

func writeKeys(t *testing.T, path string, keys ...[]byte) {
	t.Helper()
	var text strings.Builder
	for _, key := range keys {
		text.WriteString(base64.StdEncoding.EncodeToString(key) + "\n")
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The three steps of a rotation, each taken by one member after the other: at no time do
// they lose sight of each other, and in the end the old key opens nothing.
func TestKeysRotateWithoutARestart(t *testing.T) {
	t.Parallel()
	before, after := newKey(16), newKey(32)
	dir := t.TempDir()
	start := func(name string, seeds []string, keys ...[]byte) (*testNode, string) {
		cfg := testConfig(name)
		cfg.EncryptionKeysFile = filepath.Join(dir, name)
		cfg.Seeds = seeds
		writeKeys(t, cfg.EncryptionKeysFile, keys...)
		return startNode(t, cfg), cfg.EncryptionKeysFile
	}
	first, firstFile := start("first", nil, before)
	second, secondFile := start("second", []string{first.gossip.Addr()}, before)
	nodes := []*testNode{first, second}
	eventually.True(t, "them to meet", func() bool { return allSeeAll(nodes) })

	for n, step := range [][][]byte{{before, after}, {after, before}, {after}} {
		if n == 2 { // from here on a late packet may have the old key
			for _, one := range nodes {
				if unread := testutil.ToFloat64(one.gossip.metrics.library.WithLabelValues("decrypt")); unread > 0 {
					t.Errorf("%s could not read %v packets meanwhile", one.name, unread)
				}
			}
		}
		for i, file := range []string{firstFile, secondFile} {
			writeKeys(t, file, step...)
			ring := nodes[i].gossip.ring
			eventually.True(t, "the keys to be taken over", func() bool { return slices.EqualFunc(ring.GetKeys(), step, bytes.Equal) })
		}
	}
	stale, _ := start("stale", []string{first.gossip.Addr()}, before)
	fresh, _ := start("fresh", []string{first.gossip.Addr()}, after)
	eventually.True(t, "the third to meet them", func() bool { return allSeeAll([]*testNode{first, second, fresh}) })
	eventually.True(t, "the old key to be refused", func() bool {
		return testutil.ToFloat64(stale.gossip.metrics.joins.WithLabelValues("seed", "failed")) >= 2
	})
	if len(stale.gossip.Members()) > 0 {
		t.Error("the old key still opens a connection")
	}
}

// A group without encryption can change over without a stop: first its members accept both, then they
// send encrypted gossip, then they drop unencrypted gossip.
func TestAGroupInTheClearCanChangeOver(t *testing.T) {
	t.Parallel()
	key := newKey(16)
	plain := startNode(t, testConfig("plain"))
	cfg := testConfig("changing")
	cfg.SecretKeys, cfg.VerifyIncoming, cfg.VerifyOutgoing = [][]byte{key}, false, false
	cfg.Seeds = []string{plain.gossip.Addr()}
	changing := startNode(t, cfg)
	eventually.True(t, "the first step", func() bool { return allSeeAll([]*testNode{plain, changing}) })

	plain.stop()
	cfg = testConfig("sending")
	cfg.SecretKeys, cfg.VerifyIncoming = [][]byte{key}, false
	cfg.Seeds = []string{changing.gossip.Addr()}
	sending := startNode(t, cfg)
	eventually.True(t, "the second step", func() bool { return allSeeAll([]*testNode{changing, sending}) })
}

// From any previous state the ring gets the wanted keys; concurrent readers never see changing
// memory (the race detector checks).
func TestSetKeys(t *testing.T) {
	all := make([][]byte, 6)
	for i := range all {
		all[i] = newKey([]int{16, 24, 32}[i%3])
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) [][]byte {
			return rapid.Permutation(all).Draw(t, name)[:rapid.IntRange(1, len(all)).Draw(t, name+" count")]
		}
		old, next := draw("old"), draw("next")
		ring, err := memberlist.NewKeyring(old, old[0])
		if err != nil {
			t.Fatal(err)
		}
		held := ring.GetKeys()
		seen := slices.Clone(held)
		if err := setKeys(ring, next); err != nil {
			t.Fatal(err)
		}
		if got := ring.GetKeys(); !slices.EqualFunc(got, next, bytes.Equal) {
			t.Fatalf("the ring has %d keys, or in another order, want %d", len(got), len(next))
		}
		if !slices.EqualFunc(held, seen, bytes.Equal) {
			t.Fatal("keys moved under a reader")
		}
	})
}

func TestParseKeys(t *testing.T) {
	a, b := newKey(16), newKey(32)
	encode := base64.StdEncoding.EncodeToString
	for _, text := range []string{encode(a) + "," + encode(b), encode(a) + "\r" + encode(b), encode(a) + "\n" + encode(b) + "\n", " " + encode(a) + " \r\n\r\n" + encode(b)} {
		keys, err := ParseKeys(text)
		if err != nil || !slices.EqualFunc(keys, [][]byte{a, b}, bytes.Equal) {
			t.Errorf("%d keys, %v", len(keys), err)
		}
	}
	for text, want := range map[string]string{
		"":                               "no key",
		encode(a) + "\nhush hush":        "key 2 is not base64",
		encode(a) + "," + encode(a[:15]): "key 2 has 15 bytes",
	} {
		_, err := ParseKeys(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		} else if strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), encode(a)) {
			t.Errorf("the error shows a key: %v", err)
		}
	}
}
