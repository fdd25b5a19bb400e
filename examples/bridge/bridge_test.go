// Package bridge tests the applications behind `router bridge`, as examples/orders tests the one on
// the Go SDK.
package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/client/clienttest"
	"github.com/ringfence/router/internal/bridge"
	"github.com/ringfence/router/internal/devtools/dev"
	"github.com/ringfence/router/internal/devtools/procgroup"
)

// wantAll makes a missing interpreter a failure: `make examples` sets it.
const wantAll = "RINGFENCE_TEST_EXAMPLES"

func TestOrders(t *testing.T) {
	for name, command := range map[string]func(port string) []string{
		"python3": func(port string) []string { return []string{"orders.py", port} },
		"php":     func(port string) []string { return []string{"-S", "127.0.0.1:" + port, "orders.php"} },
	} {
		t.Run(name, func(t *testing.T) {
			interpreter, err := exec.LookPath(name)
			if err != nil && name != "python3" && os.Getenv(wantAll) == "" {
				t.Skipf("%v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			checkOrders(t, interpreter, command)
		})
	}
}

func checkOrders(t *testing.T, interpreter string, arguments func(port string) []string) {
	t.Helper()
	ports, err := procgroup.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	port := ports[0]
	t.Setenv("ORDERS", filepath.Join(t.TempDir(), "orders.sqlite"))
	t.Setenv("PHP_CLI_SERVER_WORKERS", "4")
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { // ends PHP's workers as well
		if err := dev.RunCommand(ctx, append([]string{interpreter}, arguments(strconv.Itoa(port))...), "", os.Stdout, os.Stderr); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})

	r := clienttest.NewRouter(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.Serve(listener)
	cfg := bridge.DefaultConfig()
	cfg.To = fmt.Sprintf("http://127.0.0.1:%d/orders", port)
	b, err := bridge.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	running.Go(func() {
		if err := b.Run(ctx, listener.Addr().String(), r.WithClock(), client.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
			t.Error(err)
		}
	})

	var sent int64
	deliver := func(customer, payload string) *clienttest.Delivery {
		sent++
		return r.Deliver(&client.Event{ID: client.MessageID{Entry: sent}, Key: customer, Payload: []byte(payload)})
	}
	first := deliver("alice é", `{"cents": 500}`)
	deliver("alice é", `{"cents": 250}`).Outcome()
	deliver("bob", `{"cents": 1}`).Outcome()
	if got := first.Outcome(); got.Kind != clienttest.Done {
		t.Errorf("an order: %+v, want it done", got)
	}
	if got := first.Redeliver().Outcome(); got.Kind != clienttest.Done {
		t.Errorf("the same order again: %+v, want it done", got)
	}
	for name, payload := range map[string]string{"no JSON": "gibberish", "nothing ordered": `{"cents": 0}`, "no order": "[]", "no number": `{"cents": NaN}`, "no whole number": `{"cents": 0.5}`, "a truth": `{"cents": true}`} {
		if got := deliver("carol", payload).Outcome(); got.Kind != clienttest.Reject {
			t.Errorf("%s: %+v, want a reject", name, got)
		}
	}
	stale := r.Deliver(&client.Event{ID: client.MessageID{Entry: 1000}, Key: "bob", Payload: []byte(`{"cents": 1}`), Fence: client.Fence{Token: 1, Turn: 1}, FencingToken: 1})
	if got := stale.Outcome(); got.Kind != clienttest.Retry {
		t.Errorf("a write with an older fence: %+v, want a retry", got)
	}
	if got, want := sums(t, port), (totals{Customers: 2, Orders: 3, Cents: 751}); got != want {
		t.Errorf("sums = %+v, want %+v", got, want)
	}
}

type totals struct{ Customers, Orders, Cents int }

func sums(t *testing.T, port int) (got totals) {
	t.Helper()
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	return got
}
