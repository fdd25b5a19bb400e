package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestExampleSaysTheDefaults: with all of its comments taken off, the example is read, and
// changes nothing.
func TestExampleSaysTheDefaults(t *testing.T) {
	text := regexp.MustCompile(`(?m)^( *)#([a-z0-9_]+:)`).ReplaceAllString(Example(), "$1$2")
	path := filepath.Join(t.TempDir(), "example.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(Sources{File: path})
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Node.Group, want.Node.Name = "orders", "" // the name has no default that stands in a file
	want.Pulsar.Topics, want.Pulsar.Subscription = []string{"orders"}, "orders"
	told := map[string]string{}
	for _, l := range leaves(&want) {
		told[l.key] = l.String()
	}
	for _, s := range got.Settings() {
		if s.Value != told[s.Key] {
			t.Errorf("%s = %q, want %q", s.Key, s.Value, told[s.Key])
		}
		if s.Origin == OriginDefault {
			t.Errorf("%s is not in the example", s.Key)
		}
	}
}

// TestSchemaTakesTheDefaults: every setting is there, and its default fits.
func TestSchemaTakesTheDefaults(t *testing.T) {
	settings := 0
	var look func(at string, object map[string]any)
	look = func(at string, object map[string]any) {
		for name, one := range object["properties"].(map[string]any) {
			one := one.(map[string]any)
			if one["properties"] != nil {
				look(at+name+".", one)
				continue
			}
			settings++
			if one["description"] == "" {
				t.Errorf("%s%s has no description", at, name)
			}
			if pattern, ok := one["pattern"].(string); ok {
				if value := fmt.Sprint(one["default"]); one["default"] != nil && !regexp.MustCompile(pattern).MatchString(value) {
					t.Errorf("%s%s: the default %q does not match %s", at, name, value, pattern)
				}
			}
			if words, ok := one["enum"].([]string); ok && !strings.Contains(strings.Join(words, " "), fmt.Sprint(one["default"])) {
				t.Errorf("%s%s: the default %v is none of %v", at, name, one["default"], words)
			}
		}
	}
	look("", Schema())
	if want := len(Describe()); settings < want {
		t.Errorf("%d settings, want %d at least", settings, want)
	}
}

// TestRangesAreWhatValidateWants: what cannot be right is refused, for every number and time.
func TestRangesAreWhatValidateWants(t *testing.T) {
	for _, d := range Describe() {
		if d.Range == "" && (d.Kind == Whole || d.Kind == Size || d.Kind == Number || d.Kind == Duration) {
			t.Errorf("%s: a value that makes no sense is not refused with what it should be (\"NAME = VALUE, want …\")", d.Key)
		}
	}
}
