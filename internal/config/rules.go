package config

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/setting"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
)

// rule is a constraint that tags of fields cannot express: the form of a text, or a relation between settings.
type rule struct {
	setting string   // the setting to change if the rule is broken
	others  []string // settings that it depends on
	want    string   // the valid values, with the names of others, and the reason after a colon
	holds   func(c *reader) bool
}

// with lists other settings.
func with(others ...string) []string { return others }

// rules lists all rules, in the order of their settings.
var rules = slices.Concat([]rule{
	{"node.group", nil, fmt.Sprintf("at most %d bytes", membership.GroupBytesMax), groupIsLabel},
	{"node.group", nil, "a name without /, which is part of the names of topics", groupIsNoPath},
	{"node.name", nil, "1 to 253 letters, digits, dots, hyphens and underscores", nameIsPlain},
	{"node.advertise_ip", nil, "an IP address that other members can dial", advertiseIPIsAddress},

	{"pulsar.url", nil, "pulsar://HOST:PORT or pulsar+ssl://HOST:PORT", pulsarURLIsOfPulsar},
	{"pulsar.admin_url", nil, "http://HOST:PORT or https://HOST:PORT", adminURLIsOfWeb},
	noUser("pulsar.url"),
	noUser("pulsar.admin_url"),
	noUser("pulsar.oauth2.issuer_url"),
	{"pulsar.oauth2.issuer_url", with("pulsar.oauth2.key_file", "pulsar.oauth2.audience", "pulsar.oauth2.scope"), "https://HOST if other settings of pulsar.oauth2 are set: the router sends it the secret of the client", issuerURLIsHTTPS},
	setIf("pulsar.oauth2.key_file", "pulsar.oauth2.issuer_url", "pulsar.oauth2.audience", "pulsar.oauth2.scope"),
	emptyIf("pulsar.oauth2.issuer_url", "pulsar.token", "pulsar.token_file"),
	emptyIf("pulsar.token_file", "pulsar.token"),
	setIf("pulsar.tls.cert_file", "pulsar.tls.key_file"),
	setIf("pulsar.tls.key_file", "pulsar.tls.cert_file"),
	{"pulsar.url", with("pulsar.tls.ca_file", "pulsar.tls.cert_file", "pulsar.tls.key_file", "pulsar.tls.name"), "pulsar+ssl://HOST:PORT if pulsar.tls is set", pulsarTLSIsUsed},
	{"pulsar.topics", nil, "names of topics, each once", topicsAreDistinct},
	topicNames("pulsar.topics"), topicNames("pulsar.retry_topic"), topicNames("pulsar.dead_letter_topic"),
	{"pulsar.topics", nil, fmt.Sprintf("full names of at most %d bytes, together %d: each record of the control log about a router lists them", controllog.TopicBytesMax, controllog.TopicsBytesMax), topicsFitControlLog},
	{"pulsar.topics", with("pulsar.retry_topic", "pulsar.dead_letter_topic"), "topics other than those of timers and of parked events, which are named after pulsar.retry_topic and pulsar.dead_letter_topic", ownTopicsAreNotRead},
	{"pulsar.retry_topic", with("pulsar.topics", "pulsar.dead_letter_topic"), "a topic that is neither in pulsar.topics nor that of parked events, which is named after pulsar.dead_letter_topic", retryTopicIsNotRead},
	{"pulsar.dead_letter_topic", with("pulsar.topics", "pulsar.retry_topic"), "a topic that is neither in pulsar.topics nor pulsar.retry_topic, nor that of timers, which is named after pulsar.retry_topic", deadLetterTopicIsNotRead},
	atLeast("pulsar.spill.stuck_after", 1, "pulsar.spill.after"),
	atLeast("pulsar.spill.delay_max", 1, "pulsar.spill.delay_min"),
	atLeast("pulsar.copy_backoff_max", 1, "pulsar.copy_backoff_min"),

	{"key.from", nil, `message_key, property:NAME or json:PATH with at most 32 plain names in PATH: special characters, and a $ alone at the beginning, need a backslash`, keyFromIsPlace},

	{"app.listen", nil, "HOST:PORT or unix:PATH", appListenIsAddress},
	{"app.listen", nil, "a path of at most 107 bytes, 103 on some systems: no socket has a longer one", appSocketIsShort},
	{"app.listen", with("app.tls.name"), "a loopback address or unix:PATH, or app.tls set: other machines can reach it (docs/security.md)", appIsProtected},
	{"app.socket_mode", nil, "permissions in octal such as 0660", socketModeIsOctal},
	{"app.socket_owner", nil, "UID:GID, UID or :GID in numbers", socketOwnerIsNumeric},
	atLeast("app.silence_max", 2, "app.ping_interval"),
	lessThan("app.ping_interval", 0.5, "ownership.lease"),
	lessThan("app.deadline_margin", 0.5, "ownership.lease"),
	{"handler.timeout", nil, "0s for none, or at least 100ms", handlerTimeoutIsOffOrLong},

	address("peer.listen"),
	{"peer.listen", with("peer.tls.name", "peer.insecure"), "a loopback address, or peer.tls set (docs/security.md), or peer.insecure true if the network alone keeps other machines away: they could send and read events", peerIsProtected},
	atMost("peer.frame_bytes_max", 1, "peer.frame_max"),
	moreThan("peer.dead_after", 1, "peer.ping_after"),
	atLeast("peer.reconnect_max", 1, "peer.reconnect_min"),
	atLeast("peer.delay_max", 1, "peer.delay_min"),

	{"gossip.listen", nil, "IP:PORT", gossipListenIsAddress},
	{"gossip.listen", with("gossip.encryption_keys", "gossip.encryption_keys_file", "gossip.verify_incoming", "gossip.insecure"), "a loopback address, or gossip.encryption_keys_file set (docs/security.md) with gossip.verify_incoming true, or gossip.insecure true if the network alone keeps other machines away: they could pose as members", gossipIsProtected},
	{"gossip.advertise", nil, "the IP:PORT that other members dial", gossipAdvertiseIsDialable},
	{"gossip.advertise", with("gossip.listen"), "an IP:PORT, since gossip.listen has no address to dial", gossipHasAddress},
	{"gossip.seeds", nil, "addresses HOST:PORT or dns+HOST:PORT, with PORT in numbers", seedsAreAddresses},
	{"gossip.encryption_keys", nil, "keys in base64 with commas, each of 16, 24 or 32 bytes", gossipKeysAreKeys},
	emptyIf("gossip.encryption_keys_file", "gossip.encryption_keys"),
	{"gossip.verify_incoming", with("gossip.verify_outgoing"), "false while gossip.verify_outgoing is false: members would drop each other's gossip", gossipIsTaken},
	lessThan("gossip.probe_timeout", 1, "gossip.probe_interval"),
	atLeast("gossip.join_backoff_max", 1, "gossip.join_backoff_min"),

	address("admin.listen"),
	longToken("admin.token"),
	emptyIf("admin.token_file", "admin.token"),
	longToken("admin.drain_token"),
	{"admin.drain_open", with("admin.drain_token"), "false if admin.drain_token is set", drainTokenOrOpen},
	setIf("admin.tls.cert_file", "admin.tls.key_file"),
	setIf("admin.tls.key_file", "admin.tls.cert_file"),
	{"debug.listen", nil, "HOST:PORT on a loopback address, or off: it shows all memory", debugIsLocal},

	{"lane.listen", nil, "HOST:PORT, or off", laneListenIsAddress},
	{"lane.listen", with("lane.token_file", "lane.tls.cert_file"), "a loopback address, or lane.token_file and lane.tls set: other machines can reach it (docs/security.md)", laneIsProtected},
	setIf("lane.tls.cert_file", "lane.tls.key_file"),
	setIf("lane.tls.key_file", "lane.tls.cert_file"),

	{"ownership.lease", nil, "whole milliseconds", leaseIsWholeMilliseconds},
	atMost("ownership.beat_every", 1.0/3, "ownership.lease"),
	lessThan("ownership.beat_spacing", 1, "ownership.beat_every"),
	lessThan("ownership.guard", 0.5, "ownership.lease"),
	lessThan("ownership.drain_timeout", 1, "drain.timeout"),
	moreThan("ownership.lost_after", 1, "ownership.reopen_after"),
	atLeast("ownership.anchor_behind", 2, "ownership.lost_after"),
	{"ownership.anchor_behind", nil, fmt.Sprintf("at least %v: a reservation may be promised until %v after its record, which a group that begins anew reads from the anchor on", ownership.AnchorBehindMin(), ownership.PromiseMax), anchorKeepsPromises},
	{"control_log.namespace", nil, "TENANT/NAMESPACE", namespaceHasTenant},
	moreThan("control_log.appends_max", 1, "control_log.beats_max"),
	lessThan("control_log.first_timeout", 1, "ownership.reopen_after"),

	{"mailbox.bytes_max", with("mailbox.shards"), fmt.Sprintf("at least %d for each of mailbox.shards", mailbox.ShardBytesMin), shardHoldsEvent},
	{"mailbox.window_bytes_max", with("mailbox.shards"), fmt.Sprintf("at least %d for each of mailbox.shards", mailbox.ShardWindowBytesMin), shardHoldsWindow},
	{"mailbox.calls_max", with("mailbox.shards"), "at least 1 for each of mailbox.shards", shardHoldsCall},
	atMost("acts.hold_for", 1, "acts.hold_for_max"),
	{"prove.enabled", with("node.group"), fmt.Sprintf("false, or node.group of at most %d bytes: the group of a proof has a longer name", membership.GroupBytesMax-ProofSuffixBytes), proveFitsGroup},
	atLeast("retry.backoff_max", 1, "retry.backoff_min"),
}, mutualTLS("app.tls"), mutualTLS("peer.tls"), ownPorts("app.listen", "peer.listen", "gossip.listen", "admin.listen", "debug.listen", "lane.listen"))

// compared returns a rule that compares a setting with a multiple of another one.
func compared(key, words string, factor float64, other string, holds func(value, limit float64) bool) rule {
	of := map[float64]string{0.5: "half of ", 1.0 / 3: "a third of ", 2: "twice "}[factor]
	return rule{key, with(other), words + of + other, func(c *reader) bool {
		return holds(c.known[key].Float(), factor*c.known[other].Float())
	}}
}

func atLeast(key string, factor float64, other string) rule {
	return compared(key, "at least ", factor, other, func(value, limit float64) bool { return value >= limit })
}

func moreThan(key string, factor float64, other string) rule {
	return compared(key, "more than ", factor, other, func(value, limit float64) bool { return value > limit })
}

func atMost(key string, factor float64, other string) rule {
	return compared(key, "at most ", factor, other, func(value, limit float64) bool { return value <= limit })
}

func lessThan(key string, factor float64, other string) rule {
	return compared(key, "less than ", factor, other, func(value, limit float64) bool { return value < limit })
}

// emptyIf returns the rule that a text must be empty if one of others is set.
func emptyIf(key string, others ...string) rule {
	return rule{key, others, "empty if " + strings.Join(others, " or ") + " is set", func(c *reader) bool {
		return c.known[key].Empty() || !slices.ContainsFunc(others, func(other string) bool { return !c.known[other].Empty() })
	}}
}

// setIf returns the rule that a text must not be empty if one of others is set.
func setIf(key string, others ...string) rule {
	return rule{key, others, "a value if " + strings.Join(others, " or ") + " is set", func(c *reader) bool {
		return !c.known[key].Empty() || !slices.ContainsFunc(others, func(other string) bool { return !c.known[other].Empty() })
	}}
}

// noUser returns the rule that a URL contains no user, and so no password.
func noUser(key string) rule {
	return rule{key, nil, "a URL without a user, since it is shown and logged: pulsar.token_file, pulsar.oauth2.key_file and pulsar.tls hold secrets", func(c *reader) bool {
		return !hasUser(c.known[key].String())
	}}
}

// topicNames returns the rule that a setting holds names that Pulsar takes for persistent topics. Brokers store nothing
// of a non-persistent one, so what is not handled would be lost; and no subscription reads a scalable one (topic://).
func topicNames(key string) rule {
	return rule{key, nil, "NAME, TENANT/NAMESPACE/NAME or persistent://TENANT/NAMESPACE/NAME", func(c *reader) bool {
		topics, isList := reflect.TypeAssert[[]string](c.known[key].Value)
		if !isList {
			topics = []string{c.known[key].String()}
		}
		return !slices.ContainsFunc(topics, func(topic string) bool {
			domain, path, _ := strings.Cut(source.FullTopicName(topic), "://")
			parts := strings.Split(path, "/")
			return topic != "" && (domain != "persistent" || len(parts) != 3 || slices.Contains(parts, "")) // another rule is about empty names
		})
	}}
}

// address returns the rule that a text is HOST:PORT.
func address(key string) rule {
	return rule{key, nil, "HOST:PORT", func(c *reader) bool { return isAddress(c.known[key].String()) }}
}

// longToken returns the rule that a secret is empty or too long to guess.
func longToken(key string) rule {
	want := fmt.Sprintf("%d bytes or more, without control characters: head -c 24 /dev/urandom | base64 makes one", listen.TokenBytesMin)
	return rule{key, nil, want, func(c *reader) bool {
		f := c.known[key]
		return f.Empty() || listen.CheckToken(f.Value.String()) == nil
	}}
}

// mutualTLS returns the rules of a section with mutual TLS: all files and a name to expect, or nothing.
func mutualTLS(section string) []rule {
	cert, key, ca, name := section+".cert_file", section+".key_file", section+".ca_file", section+".name"
	return []rule{
		setIf(cert, key, ca, name), setIf(key, cert, ca, name), setIf(ca, cert, key, name), setIf(name, cert, key, ca),
		{name, nil, "one name, not a wildcard: it would match many services", func(c *reader) bool { return !strings.Contains(c.known[name].String(), "*") }},
	}
}

// ownPorts returns the rules that no two listeners have the same port.
func ownPorts(listeners ...string) (all []rule) {
	for i, key := range listeners[1:] {
		others := listeners[:i+1]
		all = append(all, rule{key, others, "a port other than that of " + strings.Join(others, " or "), func(c *reader) bool {
			return !slices.ContainsFunc(others, func(other string) bool { return samePort(c.known[key].String(), c.known[other].String()) })
		}})
	}
	return all
}

// samePort reports whether two addresses cannot both be listened on.
func samePort(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" || strings.HasPrefix(a, "unix:") || strings.HasPrefix(b, "unix:") {
		return false
	}
	everywhere := func(host string) bool {
		ip := net.ParseIP(host)
		return host == "" || ip != nil && ip.IsUnspecified()
	}
	return hostA == hostB || everywhere(hostA) || everywhere(hostB)
}

// check reports values out of range and broken rules.
func (r *reader) check() {
	for _, f := range table(&r.Config) {
		if r.doubtful[f.Key] || f.InRange() {
			continue
		}
		r.doubtful[f.Key] = true
		if f.Empty() {
			r.wrong(r.origins[f.Key], "%s is not set, want %s", f.Key, f.Want())
		} else {
			r.wrong(r.origins[f.Key], "%s = %s, want %s", f.Key, r.quoted(f), f.Want())
		}
	}
	for _, rule := range rules {
		all := append([]string{rule.setting}, rule.others...)
		if slices.ContainsFunc(all, func(key string) bool { return r.doubtful[key] }) || rule.holds(r) {
			continue
		}
		var at origin
		want := rule.want
		for _, key := range all {
			at = cmp.Or(at, r.origins[key]) // blames a value that is set, not a default
			if f := r.known[key]; key != rule.setting && f.Kind().IsNumber() {
				want = strings.Replace(want, key, key+" ("+r.quoted(f)+")", 1)
			}
		}
		r.wrong(at, "%s = %s, want %s", rule.setting, r.quoted(r.known[rule.setting]), want)
	}
}

// quoted returns a value for messages: without secrets, and with numbers as they are written.
func (r *reader) quoted(f setting.Field) string {
	if text := r.origins[f.Key].number; text != "" {
		return text
	}
	return withoutUser(f.Quoted())
}

func groupIsLabel(c *reader) bool  { return len(c.Node.Group) <= membership.GroupBytesMax }
func groupIsNoPath(c *reader) bool { return !strings.Contains(c.Node.Group, "/") }
func nameIsPlain(c *reader) bool   { return untrusted.Name(c.Node.Name) == nil }
func advertiseIPIsAddress(c *reader) bool {
	ip := net.ParseIP(c.Node.AdvertiseIP)
	return c.Node.AdvertiseIP == "" || ip != nil && !ip.IsUnspecified() && !ip.IsMulticast()
}

func pulsarURLIsOfPulsar(c *reader) bool {
	hosts, plain := strings.CutPrefix(c.Pulsar.URL, "pulsar://")
	hosts, encrypted := strings.CutPrefix(hosts, tlsScheme)
	hosts, _, _ = strings.Cut(hosts, "/")
	return plain != encrypted && !slices.ContainsFunc(strings.Split(hosts, ","), func(host string) bool {
		if host == "" || strings.HasPrefix(host, ":") { // a dialer would take that for this machine
			return true
		}
		broker, err := url.Parse("pulsar://" + host[strings.LastIndex(host, "@")+1:]) // another rule is about users
		return err != nil || !portIsDialable(broker)
	})
}

// portIsDialable reports whether a URL has no port, or one that a host can have.
func portIsDialable(u *url.URL) bool { return u.Port() == "" || isPort(u.Port()) }

// isPort reports whether a text is the number of a port that can be dialed.
func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

func adminURLIsOfWeb(c *reader) bool {
	admin, err := url.Parse(c.Pulsar.AdminURL)
	return c.Pulsar.AdminURL == "" || err == nil && (admin.Scheme == "http" || admin.Scheme == "https") && admin.Hostname() != "" && portIsDialable(admin)
}

func issuerURLIsHTTPS(c *reader) bool {
	issuer, err := url.Parse(c.Pulsar.Oauth2.IssuerURL)
	return !c.Pulsar.Oauth2.enabled() || err == nil && issuer.Scheme == "https" && issuer.Hostname() != "" && portIsDialable(issuer)
}

func pulsarTLSIsUsed(c *reader) bool {
	return c.Pulsar.TLS == PulsarTLS{} || strings.HasPrefix(c.Pulsar.URL, tlsScheme)
}

func topicsAreDistinct(c *reader) bool {
	return !slices.Contains(c.Pulsar.Topics, "") && len(c.Topics()) == len(c.Pulsar.Topics)
}

func topicsFitControlLog(c *reader) bool {
	sum, longest := 0, 0
	for _, topic := range c.Topics() {
		sum += len(topic)
		longest = max(longest, len(topic))
	}
	return longest <= controllog.TopicBytesMax && sum <= controllog.TopicsBytesMax
}

func retryTopicIsNotRead(c *reader) bool {
	retry := c.Pulsar.Resolved().RetryTopic
	return !slices.Contains(c.Topics(), retry) && retry != c.Pulsar.ParkingTopic()
}

func deadLetterTopicIsNotRead(c *reader) bool {
	resolved := c.Pulsar.Resolved()
	return !slices.Contains(c.Topics(), resolved.DeadLetterTopic) && resolved.DeadLetterTopic != resolved.RetryTopic && resolved.DeadLetterTopic != resolved.TimerTopic()
}

func ownTopicsAreNotRead(c *reader) bool {
	topics := c.Topics()
	return !slices.Contains(topics, c.Pulsar.TimerTopic()) && !slices.Contains(topics, c.Pulsar.ParkingTopic())
}

func keyFromIsPlace(c *reader) bool {
	_, err := key.Parse(c.Key.From, key.Reject)
	return err == nil
}

func appListenIsAddress(c *reader) bool {
	_, ok := listen.UnixPath(c.App.Listen)
	return ok || isAddress(c.App.Listen)
}

func appSocketIsShort(c *reader) bool {
	path, _ := listen.UnixPath(c.App.Listen)
	return len(path) <= listen.UnixPathBytesMax
}

func appIsProtected(c *reader) bool       { return !appListenIsAddress(c) || !c.appListener().Exposed }
func socketModeIsOctal(c *reader) bool    { return c.App.Socket.CheckMode() == nil }
func socketOwnerIsNumeric(c *reader) bool { return c.App.Socket.CheckOwner() == nil }
func handlerTimeoutIsOffOrLong(c *reader) bool {
	return c.Handler.Timeout == 0 || c.Handler.Timeout >= 100*time.Millisecond
}

func peerIsProtected(c *reader) bool {
	return !isAddress(c.Peer.Listen) || !c.peerListener().Exposed || c.Peer.Insecure
}

func gossipListenIsAddress(c *reader) bool {
	_, err := netip.ParseAddrPort(c.Gossip.Listen)
	return err == nil
}

func gossipIsProtected(c *reader) bool {
	return !gossipListenIsAddress(c) || !c.gossipListener().Exposed || c.Gossip.Insecure
}

func gossipAdvertiseIsDialable(c *reader) bool {
	address, err := netip.ParseAddrPort(c.Gossip.Advertise)
	return c.Gossip.Advertise == "" || err == nil && address.Port() != 0 && !address.Addr().IsUnspecified()
}

func gossipHasAddress(c *reader) bool {
	address, err := netip.ParseAddrPort(c.Gossip.Listen)
	return c.Gossip.Advertise != "" || err != nil || address.Addr() != netip.IPv6Unspecified()
}

func seedsAreAddresses(c *reader) bool {
	return !slices.ContainsFunc(c.Gossip.Seeds, func(seed string) bool {
		host, port, err := net.SplitHostPort(strings.TrimPrefix(seed, "dns+"))
		return err != nil || host == "" || !isPort(port) // gossip knows no names of ports
	})
}

func gossipKeysAreKeys(c *reader) bool {
	_, err := membership.ParseKeys(string(c.Gossip.EncryptionKeys))
	return c.Gossip.EncryptionKeys == "" || err == nil
}

func gossipIsTaken(c *reader) bool    { return c.Gossip.VerifyOutgoing || !c.Gossip.VerifyIncoming }
func drainTokenOrOpen(c *reader) bool { return c.Admin.DrainToken == "" || !c.Admin.DrainOpen }

func debugIsLocal(c *reader) bool {
	return c.Debug.Off() || isAddress(c.Debug.Listen) && listen.IsLocal(c.Debug.Listen)
}

func laneListenIsAddress(c *reader) bool { return c.Lane.Off() || isAddress(c.Lane.Listen) }
func laneIsProtected(c *reader) bool {
	return c.Lane.Off() || !isAddress(c.Lane.Listen) || !c.laneListener().Exposed
}
func leaseIsWholeMilliseconds(c *reader) bool { return c.Ownership.Lease%time.Millisecond == 0 }

func anchorKeepsPromises(c *reader) bool {
	return c.Ownership.AnchorBehind >= ownership.AnchorBehindMin()
}

func namespaceHasTenant(c *reader) bool {
	tenant, namespace, _ := strings.Cut(c.ControlLog.Namespace, "/")
	return tenant != "" && namespace != "" && !strings.Contains(namespace, "/")
}

func shardHoldsEvent(c *reader) bool {
	return c.Mailbox.BytesMax/max(1, c.Mailbox.Shards) >= mailbox.ShardBytesMin
}

func shardHoldsCall(c *reader) bool { return c.Mailbox.CallsMax >= c.Mailbox.Shards }

func shardHoldsWindow(c *reader) bool {
	return c.Mailbox.WindowBytesMax/max(1, c.Mailbox.Shards) >= mailbox.ShardWindowBytesMin
}

// tlsScheme is the scheme of the URL of a broker with TLS.
const tlsScheme = "pulsar+ssl://"

func isAddress(address string) bool {
	if _, ok := listen.UnixPath(address); ok { // unix:16651 is a socket, not the host unix
		return false
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port) // reads only a local file
	}
	return err == nil
}
