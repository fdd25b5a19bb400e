package pulsaradmin

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// TestSubscriptions: each topic partition is asked. What is not there has none, and those of readers do not count.
func TestSubscriptions(t *testing.T) {
	const path = "/admin/v2/persistent/a/b/"
	answers := map[string]string{
		path + "plain/partitions":        `{"partitions":0}`,
		path + "plain/stats":             `{"subscriptions":{"t":{"durable":true},"s":{},"reader-1":{"durable":false},"reader-2":{"isDurable":false}}}`,
		path + "parts/partitions":        `{"partitions":3}`,
		path + "parts-partition-0/stats": `{"subscriptions":{"s":{"isDurable":true}}}`,
		path + "parts-partition-1/stats": `{"subscriptions":{}}`,
		path + "broken/partitions":       `{"partitions":40}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch said, has := answers[r.URL.Path]; {
		case has:
			fmt.Fprint(w, said)
		case strings.HasPrefix(r.URL.Path, path+"broken"):
			http.Error(w, "no right", http.StatusForbidden)
		default:
			http.Error(w, "not found", http.StatusNotFound)
		}
	}))
	defer server.Close()
	c := Client{URL: server.URL}
	for topic, want := range map[string]map[string][]string{
		"persistent://a/b/plain": {"persistent://a/b/plain": {"s", "t"}},
		"persistent://a/b/none":  {"persistent://a/b/none": nil},
		"persistent://a/b/parts": {"persistent://a/b/parts-partition-0": {"s"}, "persistent://a/b/parts-partition-1": nil, "persistent://a/b/parts-partition-2": nil},
	} {
		if got, err := c.Subscriptions(t.Context(), topic); err != nil || !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: %v, %v, want %v", topic, got, err, want)
		}
	}
	if got, err := c.Subscriptions(t.Context(), "persistent://a/b/broken"); err == nil || !strings.Contains(err.Error(), "no right") {
		t.Errorf("an answer without right: %v, %v", got, err)
	}
}
