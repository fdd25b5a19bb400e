package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// nodeIP is the loopback address of the i-th router or relay.
func nodeIP(i int) string { return fmt.Sprintf("127.77.0.%d", i+1) }

// debugAddress serves the i-th router's profiles.
func debugAddress(i int) string { return nodeIP(i) + ":16654" }

// routerConfig writes the settings of the i-th router of a repetition, and returns the file,
// the endpoint for its application, and the address of its admin server. All routers of one
// repetition are a group of their own, each on its own loopback address, so that ports do not
// collide.
func routerConfig(o Options, topic, dir string, i int) (config, endpoint, admin string, err error) {
	ip := nodeIP(i)
	listen := ip + ":16650"
	endpoint = listen
	admin = ip + ":16653"
	if o.App == "unix" {
		listen = "unix:" + filepath.Join(dir, fmt.Sprintf("app-%d.sock", i))
		endpoint = "unix://" + strings.TrimPrefix(listen, "unix:")
	}
	settings := fmt.Sprintf(`
node: {group: %q, name: node-%d}
pulsar: {url: %q, topics: [%q], subscription: %q, batch_index_acks: %[9]v}
app: {listen: %[6]q}
peer: {listen: "%[7]s:16651"}
gossip: {listen: "%[7]s:16652", seeds: ["127.77.0.1:16652"]}
admin: {listen: %[8]q}
debug: {listen: %[10]q}
`, localName(topic), i, o.PulsarURL, topic, subscription, listen, ip, admin, o.SingleAcks, debugAddress(i))
	config = filepath.Join(dir, fmt.Sprintf("router-%d.yaml", i))
	return config, endpoint, admin, os.WriteFile(config, []byte(settings), 0o600)
}

// get asks a router. It returns the body of an answer with the status 200, which the caller closes.
func get(ctx context.Context, url string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	return answer.Body, nil
}
