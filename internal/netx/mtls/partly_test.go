package mtls_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
)

// A file of CAs of which one cannot be read is refused, wherever that one stands: a library of PEM skips what it cannot read.
func TestCAsThatArePartlyReadable(t *testing.T) {
	read := func() []byte {
		t.Helper()
		content, err := os.ReadFile(tlstest.NewCA(t).File)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	first, second, third := read(), read(), read()
	damaged := bytes.Replace(second, []byte("\nMII"), []byte("\n*II"), 1)
	for name, test := range map[string]struct {
		content [][]byte
		whole   bool
	}{
		"whole":              {[][]byte{first, []byte("# of 2027\n"), second, third}, true},
		"without newlines":   {[][]byte{bytes.TrimSpace(first), []byte("\n"), bytes.TrimSpace(second)}, true},
		"with CRLF":          {[][]byte{bytes.ReplaceAll(first, []byte("\n"), []byte("\r\n")), second}, true},
		"cut":                {[][]byte{first, second[:len(second)/2]}, false},
		"cut in the middle":  {[][]byte{first, second[:len(second)/2], []byte("\n"), third}, false},
		"damaged":            {[][]byte{first, damaged}, false},
		"glued by cat":       {[][]byte{first, bytes.TrimSpace(second), third}, false},
		"glued at the begin": {[][]byte{bytes.TrimSpace(first), second, third}, false},
	} {
		path := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(path, bytes.Join(test.content, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := mtls.Open("peer", mtls.Files{CAFile: path}, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		switch {
		case test.whole && err != nil:
			t.Errorf("%s: %v", name, err)
		case !test.whole && (err == nil || !strings.Contains(err.Error(), path)):
			t.Errorf("%s: Open = %v, want an error that names the file", name, err)
		}
	}

	pair := tlstest.NewCA(t).Issue(t, "orders")
	own, err := os.ReadFile(pair.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		chain []byte
		whole bool
	}{"whole": {first, true}, "cut": {first[:len(first)/2], false}} {
		if err := os.WriteFile(pair.CertFile, slices.Concat(own, test.chain), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := mtls.Open("peer", mtls.Files{CertFile: pair.CertFile, KeyFile: pair.KeyFile}, mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		if (err == nil) != test.whole {
			t.Errorf("an intermediate certificate that is %s: Open = %v", name, err)
		}
	}
}
