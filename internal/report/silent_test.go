package report

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// However many members are silent, as after a partition of the network, those that answer are heard.
func TestSilentMembersHideNoOthers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	alive, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	NewServer(aLocal{}, nil).Register(server)
	go func() { _ = server.Serve(alive) }()
	t.Cleanup(server.Stop)
	for name, test := range map[string]struct {
		members int
		reach   string // of these; the one that answers seems alive
	}{"not yet noticed": {100, "alive"}, "noticed": {200, "unknown"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var local aLocal
			for i := range test.members {
				local.others = append(local.others, Member{Name: fmt.Sprintf("a%03d", i), Incarnation: strconv.Itoa(i), Address: silent.Addr().String(), Reach: test.reach, Listed: true})
			}
			local.others = append(local.others, Member{Name: "z", Incarnation: "ff", Address: alive.Addr().String(), Reach: "alive", Listed: true})
			page := Handlers(NewGroup(local, nil, insecure.NewCredentials()), func(*http.Request) bool { return false })["GET /v1/history"]
			w := httptest.NewRecorder()
			page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/history?key=a", nil))
			var h History
			if err := json.Unmarshal(w.Body.Bytes(), &h); err != nil {
				t.Fatal(err)
			}
			if len(h.Silent) != test.members || strings.HasPrefix(h.Silent[len(h.Silent)-1], "z:") || len(h.Reach) != 2 {
				t.Errorf("of %d members %d are silent, the last one is %s", test.members, len(h.Silent), h.Silent[len(h.Silent)-1])
			}
		})
	}
}
