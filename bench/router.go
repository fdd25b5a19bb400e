package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// routerConfig writes the settings of the i-th router of a repetition, and returns
// the file and the endpoint for its application. All routers of one repetition are a
// group of their own, each on a loopback address of its own, where nobody else
// takes a port.
func routerConfig(o Options, topic, dir string, i int) (config, endpoint string, err error) {
	ip := fmt.Sprintf("127.77.0.%d", i+1)
	listen := ip + ":16650"
	endpoint = listen
	if o.App == "unix" {
		listen = "unix:" + filepath.Join(dir, fmt.Sprintf("app-%d.sock", i))
		endpoint = "unix://" + strings.TrimPrefix(listen, "unix:")
	}
	settings := fmt.Sprintf(`
node: {group: %q, name: node-%d}
pulsar: {url: %q, topics: [%q], subscription: bench}
app: {listen: %q}
peer: {listen: "%[6]s:16651"}
gossip: {listen: "%[6]s:16652", seeds: ["127.77.0.1:16652"]}
admin: {listen: "%[6]s:16653"}
debug: {listen: "%[6]s:16654"}
`, topic[strings.LastIndex(topic, "/")+1:], i, o.PulsarURL, topic, listen, ip)
	config = filepath.Join(dir, fmt.Sprintf("router-%d.yaml", i))
	return config, endpoint, os.WriteFile(config, []byte(settings), 0o600)
}
