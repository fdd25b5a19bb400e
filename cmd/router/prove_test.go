package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"

	"github.com/ringfence/router/internal/devtools/prove"
)

// The words of a proof come from members, and reach the terminal without control characters: while it runs, and in its judgement.
func TestMembersWriteNothingButTextDuringAProof(t *testing.T) {
	const evil = "\x1b]0;evil\x07"
	name, _ := json.Marshal("orders" + evil)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/members" {
			fmt.Fprintf(w, `{"members":[{"name":"a","reach":"self","status":{"group":%s}},{"name":"b","status":{}}]}`, name)
			return
		}
		if strings.Contains(r.URL.Query().Get("ask"), `"poll"`) {
			stop()
		}
		fmt.Fprint(w, `{"enabled":true,"limits":{"seconds":3600,"rate":1000000,"keys":1000000}}`)
	}))
	defer server.Close()
	var out bytes.Buffer
	root := rootCommand()
	root.SetArgs([]string{"prove", "--yes", "--admin=" + server.URL, "--out=" + t.TempDir()})
	root.SetOut(&out)
	root.SetErr(&out)
	if err := root.ExecuteContext(ctx); err == nil || !strings.Contains(out.String(), "orders") {
		t.Fatalf("it went wrong otherwise: %v; %q", err, out.String())
	}
	cmd := proveCommand()
	cmd.SetOut(&out)
	v := &prove.Verdict{Checks: []prove.Check{{Name: "the proof itself went well", Says: evil}}, Examples: []string{evil}, Notes: []string{evil}}
	if err := proved(cmd, v, t.TempDir()); err == nil || strings.Count(out.String(), "evil") != 4 {
		t.Fatalf("it says %q: %v", out.String(), err)
	}
	if i := strings.IndexFunc(out.String(), func(r rune) bool { return unicode.IsControl(r) && r != '\n' }); i >= 0 {
		t.Errorf("a control character at byte %d of %q", i, out.String())
	}
}
