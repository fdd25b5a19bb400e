package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/conformance"
)

// testBridge makes the test binary a bridge and, behind it, an application that obeys the instructions
// of router conformance.
const testBridge = "test-bridge"

func runTestBridge() int {
	ctx, stop := signalContext()
	defer stop()
	app := httptest.NewServer(http.HandlerFunc(obey))
	root := rootCommand()
	root.SetArgs([]string{"bridge", "--to", app.URL, "--max-in-flight", "2500"})
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return exitCode(err)
}

func obey(w http.ResponseWriter, r *http.Request) {
	var in struct {
		ID uint64 `json:"id"`
		Do string `json:"do"`
		Ms int    `json:"ms"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key, err := url.PathUnescape(r.Header.Get("ce-partitionkey"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	report := func(what string) { fmt.Printf("%s %d %s %d\n", what, in.ID, key, clock.Read().Boot) }
	report("start")
	defer report("end")
	wait := time.Duration(in.Ms) * time.Millisecond
	switch in.Do {
	case "fail":
		http.Error(w, "told to fail"+strings.Repeat(" é", 500), http.StatusInternalServerError)
	case "reject":
		http.Error(w, "told to reject", http.StatusUnprocessableEntity)
	case "crash":
		panic(http.ErrAbortHandler)
	case "retry_after", "progress", "after", "after_fail": // Retry-After has whole seconds, and a request neither reports progress nor sets timers
		fmt.Printf("unsupported %d\n", in.ID)
	case "sleep":
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
		}
	case "ignore_cancel": // the bridge ends the request of a cancelled handler, and hears no answer
		fmt.Printf("unsupported %d\n", in.ID)
		time.Sleep(wait)
	case "fence":
		fmt.Printf("fence %d %s\n", in.ID, r.Header.Get("ce-fence"))
	}
}

// A bridge keeps all rules of the protocol, but for what HTTP cannot say.
func TestBridgePassesConformance(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("plays all scenes of the conformance kit")
	}
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := conformance.DefaultOptions()
	o.Command, o.Patience = []string{self, testBridge}, 2*time.Minute // for a busy machine: it ends long before
	verdicts, err := conformance.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(verdicts) == 0 {
		t.Error("no rule was checked")
	}
	for _, v := range verdicts {
		want := conformance.Pass
		switch {
		case v.Name == "retry-after", v.Name == "progress":
			want = conformance.Skipped
		case strings.HasPrefix(v.Name, "call-"), strings.HasPrefix(v.Name, "timer"), v.Name == "schedules", strings.HasPrefix(v.Name, "firing"), strings.HasPrefix(v.Name, "state"):
			// The bridge takes no calls, declares no schedules and keeps no state, and its application sets no timers.
			want = conformance.Absent
		}
		if v.Result != want {
			t.Errorf("%s: %s, want %s: %s", v.Name, v.Result, want, v.Reason)
		}
	}
}

func TestBridgeRefusesArguments(t *testing.T) {
	for _, arguments := range [][]string{{"bridge"}, {"bridge", "--to", "localhost:8080"}, {"bridge", "--to", "http://localhost", "--endpoint", "nowhere"}, {"bridge", "--to", "http://localhost", "x"}} {
		root := rootCommand()
		root.SetArgs(arguments)
		ctx, cancel := context.WithCancel(t.Context())
		err := root.ExecuteContext(ctx)
		cancel()
		if exitCode(err) != exitUsage {
			t.Errorf("%q: %v, exit code %d, want %d", arguments, err, exitCode(err), exitUsage)
		}
	}
}
