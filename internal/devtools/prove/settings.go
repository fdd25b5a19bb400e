package prove

import (
	"cmp"
	"net"
	"strconv"
	"strings"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/source"
)

// subscription is that of every proof, on a topic of its own.
const subscription = "prove"

// ports are those of a proof's router.
type ports struct{ app, admin, peer, gossip int }

// freePorts chooses ports, but for those that the settings name.
func freePorts(c config.Prove) (p ports, err error) {
	free, err := procgroup.FreePorts(4)
	if err != nil {
		return p, err
	}
	return ports{app: free[0], admin: free[1], peer: cmp.Or(c.PeerPort, free[2]), gossip: cmp.Or(c.GossipPort, free[3])}, nil
}

// settingsOf returns the settings of a proof's router: those of the router beside it, but for its names, topics and ports, and for what
// belongs to the user's application: the place of keys, the handler's timeout and the retries.
func settingsOf(c config.Config, run string, p ports) (config.Config, Topics) {
	first := source.FullTopicName(c.Pulsar.Topics[0])
	topic := first[:strings.LastIndex(first, "/")+1] + "__prove-" + c.Node.Group + "-" + run
	c.Node.Group += "-prove-" + run
	c.Node.Name = c.Node.Name[:min(len(c.Node.Name), nameBytesMax-len("-prove"))] + "-prove"
	c.Pulsar.Topics, c.Pulsar.Subscription = []string{topic}, subscription
	c.Pulsar.Timers = false // the built-in handler sets none, and the topic of timers would be left behind
	c.Pulsar.RetryTopic, c.Pulsar.DeadLetterTopic, c.Pulsar.ConsumerName = "", "", ""
	c.Key = config.Default().Key
	c.Handler.Timeout = 0
	c.Retry = outcome.DefaultConfig()

	c.App.Listen, c.App.TLS = procgroup.Loopback(p.app), config.Default().App.TLS
	c.Admin.Listen, c.Admin.TLS, c.Admin.Insecure = procgroup.Loopback(p.admin), config.AdminTLS{}, false
	c.Peer.Listen = withPort(c.Peer.Listen, p.peer)
	c.Gossip.Listen, c.Gossip.Advertise = withPort(c.Gossip.Listen, p.gossip), withPort(c.Gossip.Advertise, p.gossip)
	c.Gossip.Seeds = nil // the control log names the members
	c.Debug.Listen, c.Lane.Listen = "off", "off"
	c.Acts.Enabled, c.Prove.Enabled, c.Audit.Enabled = false, false, true

	resolved := c.Pulsar.Resolved()
	return c, Topics{Events: topic, Retry: resolved.RetryTopic, DeadLetters: resolved.DeadLetterTopic, Control: c.ControlTopic(), Subscription: subscription}
}

// nameBytesMax is the longest name of a router.
const nameBytesMax = 253

// withPort returns an address with another port, "" for "".
func withPort(address string, port int) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "" // there is none
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
