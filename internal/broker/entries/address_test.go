package entries

import (
	"slices"
	"testing"
)

func TestParseService(t *testing.T) {
	for url, want := range map[string]service{
		"pulsar://a":                    {hosts: []string{"a:6650"}},
		"pulsar://a/":                   {hosts: []string{"a:6650"}},
		"PULSAR://a:1,b:2;c":            {hosts: []string{"a:1", "b:2", "c:6650"}},
		"pulsar+ssl://a,[::1],[::2]:99": {hosts: []string{"a:6651", "[::1]:6651", "[::2]:99"}, tls: true},
		"pulsar://":                     {},
		"pulsar://,":                    {},
		"pulsar://:6650":                {},
		"pulsar://a:":                   {},
		"pulsar://::1":                  {},
		"pulsar://a/path":               {},
		"pulsar://user@a":               {},
		"pulsar://a?b":                  {},
		"http://a":                      {},
		"a:6650":                        {},
		"":                              {},
	} {
		got, err := parseService(url)
		if !slices.Equal(got.hosts, want.hosts) || got.tls != want.tls || (err == nil) != (want.hosts != nil) {
			t.Errorf("%q = %v, %v, want %v", url, got, err, want)
		}
	}
}

func TestParseBroker(t *testing.T) {
	for name, c := range map[string]struct {
		plain, secure string
		tls           bool
		want          string
	}{
		"plain":          {"pulsar://a:1", "pulsar+ssl://a:2", false, "a:1"},
		"tls":            {"pulsar://a:1", "pulsar+ssl://a:2", true, "a:2"},
		"no tls":         {"pulsar://a:1", "", true, ""},
		"only tls":       {"", "pulsar+ssl://a:2", false, ""},
		"wrong scheme":   {"pulsar://a:1", "pulsar://a:1", true, ""},
		"several":        {"pulsar://a:1,b:1", "", false, ""},
		"another scheme": {"http://a:1", "", false, ""},
	} {
		got, err := parseBroker(c.plain, c.secure, c.tls)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}
