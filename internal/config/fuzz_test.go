package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ringfence/router/internal/config"
)

// FuzzFile: any file is read, or refused with an error that names its place.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		config.Example(), "", "---\n", "a: [", "node: {name: a", "- a", "? [a]\n: b", "x: &x {y: *x}", "<<: {a: b}", "log: !!binary aGk=",
		"mailbox: {depth_max: 99999999999999999999, bytes_max: 1e400, shards: 0x10}", "ring: {load: .inf}", "retry: {after_max: -9999999h}",
		"pulsar.topics: [[a]]", "pulsar: {topics: ['', a, a], url: 'a://b@c@d'}", "%YAML 1.1\n---\nnode: {}", "\xff\xfe", "a: 1\na: 2", "...\n---\n", "\"a\": \"\\0\"",
		"gossip: {seeds: ['dns+:'], listen: '[::]:1'}", "app: {listen: 'unix:', socket_mode: '777', tls: {name: '*'}}", "key: {from: 'json:a.b'}",
	} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "router.yaml")
	f.Fuzz(func(t *testing.T, content []byte) {
		if strings.Contains(string(content), "_file") {
			return // it would read other files
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := config.Load(config.Sources{File: path, Environ: enough})
		if (loaded == nil) == (err == nil) {
			t.Fatalf("settings %v with the error %v", loaded, err)
		}
		if err != nil && utf8.Valid(content) && !utf8.ValidString(err.Error()) {
			t.Errorf("the error cuts a character: %q", err)
		}
		for line := range strings.Lines(message(err)) {
			if !strings.HasPrefix(line, path) && !strings.Contains(line, "problems in the settings") && !strings.HasPrefix(line, "and ") && !strings.HasPrefix(line, "variable ") {
				t.Errorf("no place in %q", line)
			}
		}
	})
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
