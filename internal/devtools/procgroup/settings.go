package procgroup

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Settings are those of one member of a group on this machine.
type Settings struct {
	Group, Name  string
	Pulsar       string // URL; "": a broker in memory
	Topics       []string
	Subscription string
	Namespace    string // of the control topic
	App          string // where it listens for its application
	Gossip       string // the same; the other members find it there
	Admin        string
	Seeds        []string // Gossip of others
	LogLevel     string   // "": the default
	LogKeys      string   // "": the default
}

// YAML returns the file that `router run --config` takes.
func (s Settings) YAML() []byte {
	return fmt.Appendf(nil, `# One member of a group on this machine.
node:       {group: %q, name: %q}
pulsar:     {url: %q, topics: [%s], subscription: %q}
control_log: {namespace: %q}
app:        {listen: %q}
peer:       {listen: "127.0.0.1:0"}
gossip:     {listen: %q, seeds: [%s]}
admin:      {listen: %q}
debug:      {listen: "127.0.0.1:0"}
ownership:  {profile: fast}
log:        {level: %q, keys: %q}
`, s.Group, s.Name,
		cmp.Or(s.Pulsar, "pulsar://127.0.0.1:6650"), quoted(s.Topics), s.Subscription,
		s.Namespace, s.App, s.Gossip, quoted(s.Seeds), s.Admin, cmp.Or(s.LogLevel, "info"), cmp.Or(s.LogKeys, "hide"))
}

func quoted(list []string) string {
	quotes := make([]string, len(list))
	for i, text := range list {
		quotes[i] = strconv.Quote(text)
	}
	return strings.Join(quotes, ", ")
}
