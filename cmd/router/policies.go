package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/source"
)

// policies queries the admin API for the policies of the topics.
func (d *doctor) policies(ctx context.Context, admin pulsaradmin.Client) {
	var version string
	if text, err := admin.Do(ctx, http.MethodGet, "brokers/version", nil); err != nil {
		d.fail("pulsar.admin_url", "set pulsar.admin_url to the web service of a broker, and give the router's role lookup and consume", "%v", err)
		return
	} else if version = strings.TrimSpace(string(text)); version == "" {
		version = "of an unknown version"
	}
	d.brokerVersion = version
	d.ok("pulsar.admin_url", "broker %s answers", version)
	settings := map[string]string{}
	if err := admin.Call(ctx, http.MethodGet, "brokers/configuration/runtime", nil, &settings); err != nil {
		settings = nil // only administrators may ask this
	}
	d.counting(settings)
	for _, topic := range d.cfg.Pulsar.Topics {
		d.topic(ctx, admin, source.FullTopicName(topic))
	}
	d.copies(ctx, admin)
	d.usable(ctx, admin, settings)
	d.ackHoles(ctx, admin, settings)
	d.timers(ctx, admin, settings)
	d.controlTopic(ctx, admin)
	d.inactive(ctx, admin, settings)
	d.claimsTopics(ctx, admin)
	d.actsTopic(ctx, admin, settings)
}

// counting compares the broker's way of counting acks with the router's settings.
func (d *doctor) counting(settings map[string]string) {
	const name = "acknowledgmentAtBatchIndexLevelEnabled"
	const check = "batch-index acks"
	switch on := settings[name]; {
	case on == "":
		d.warn(check, "ask an administrator whether "+name+" is on, and set pulsar.batch_index_acks to that", "the broker does not show its configuration")
	case on == "true" && !d.cfg.Pulsar.BatchIndexAcks:
		d.warn(check, "set pulsar.batch_index_acks: true, and a stuck event no longer holds back the batch that it came in", "on at the broker, and not used")
	case on == "true":
		d.ok(check, "on, and used")
	case d.cfg.Pulsar.BatchIndexAcks:
		d.fail(check, "turn "+name+" on at all brokers, or pulsar.batch_index_acks off", "pulsar.batch_index_acks is set, and the broker acks whole entries only: nothing would be acked")
	default:
		d.ok(check, "off: an open event keeps its whole batch unacked, and is copied out of it (spilled) when that is too much; with %s on at the brokers it would not", name)
	}
}

// topicStats are the fields of a topic's statistics that the doctor reads.
type topicStats struct {
	Subscriptions map[string]struct {
		Type      string
		Consumers []struct{ ConsumerName string }
		Backlog   int64 `json:"msgBacklog"`

		Properties map[string]string `json:"subscriptionProperties"`
	}
}

func (d *doctor) topic(ctx context.Context, admin pulsaradmin.Client, topic string) {
	path := pulsaradmin.TopicPath(topic)
	partitions, err := admin.Partitions(ctx, topic)
	if pulsaradmin.IsNotFound(err) { // a mistyped name claims the group, which the corrected one then does not get
		d.warn("topic", "check its name in pulsar.topics before the first router starts, and create it; a broker that creates topics by itself does so at the first use",
			"%s does not exist: %v", topic, err)
		return
	}
	if err != nil {
		d.warn("topic", "create it, or grant the router's role access; a broker that creates topics by itself does so at the first use", "%s: %v", topic, err)
		return
	}
	var stats topicStats
	if err := admin.Call(ctx, http.MethodGet, pulsaradmin.StatsPath(topic, partitions > 0, false), nil, &stats); err != nil {
		d.warn("topic", "create it; a broker that creates topics by itself does so at the first use", "%s: %v", topic, err)
		return
	}
	expire := ""
	if seconds, _ := d.ttl(ctx, admin, path); seconds > 0 { // the user's wish
		expire = fmt.Sprintf("; its events expire after %d s: those that no router has received by then are lost, and no metric of the routers counts them", seconds)
	}
	d.ok("topic", "%s, %s%s", topic, partitioned(partitions), expire)
	for _, kind := range d.evictions(ctx, admin, path) {
		d.warn("topic", "let producers wait instead: "+holdProducers(topic, kind),
			"the broker deletes the oldest events of %s when many wait (%s of type %s): they are lost, and no metric of the routers counts them", topic, evicting, kind)
	}
	d.subscription(topic, stats)
	d.limit(ctx, admin, path, "maxUnackedMessagesOnConsumer", "pulsar.unacked_consumer_max", d.cfg.Pulsar.UnackedConsumerMax)
	d.limit(ctx, admin, path, "maxUnackedMessagesOnSubscription", "pulsar.unacked_subscription_max", d.cfg.Pulsar.UnackedSubscriptionMax)
}

func partitioned(n int) string {
	if n == 0 {
		return "not partitioned"
	}
	return fmt.Sprintf("%d topic partitions", n)
}

func (d *doctor) subscription(topic string, stats topicStats) {
	name := d.cfg.Pulsar.Subscription
	s, there := stats.Subscriptions[name]
	var consumers []string
	for _, c := range s.Consumers {
		consumers = append(consumers, c.ConsumerName)
	}
	switch {
	case !there:
		d.ok("subscription", "%s does not exist yet; the first router creates it", name)
	case s.Type != "" && s.Type != "Shared" && len(s.Consumers) > 0:
		d.fail("subscription", "end the consumers that use "+name+" in another way, or set pulsar.subscription to one of your own",
			"%s of %s is in use as %s, and has to be Shared", name, topic, s.Type)
	default:
		slices.Sort(consumers)
		consumers = slices.Compact(consumers)
		who := ""
		if len(consumers) > 0 {
			who = "; all of its consumers have to be routers of this group: " + strings.Join(consumers, ", ")
		}
		d.ok("subscription", "%s is Shared, backlog %d%s", name, s.Backlog, who)
		d.peers(topic, consumers)
	}
	for property, ours := range d.cfg.Pulsar.Properties {
		if theirs := s.Properties[property]; theirs != "" && theirs != ours {
			d.warn("subscription", "look at the findings about the claim, which decides; a property has no effect, and the first router has set it for good",
				"%s of %s was made with the property %s=%s, and this router has %s", name, topic, property, theirs, ours)
		}
	}
}

// peers compares the routers that consume a topic with those that the memory bound counts.
func (d *doctor) peers(topic string, consumers []string) {
	others, typical := 0, d.cfg.Peer.PeersTypical
	for _, name := range consumers {
		if name != d.cfg.Pulsar.ConsumerName {
			others++
		}
	}
	if others > typical {
		d.warn("memory", fmt.Sprintf("set peer.peers_typical to %d, and size memory by the bound that router config print then shows", others),
			"%d other routers consume %s, and the memory bound counts %d", others, topic, typical)
	}
}

// copies checks that events are not deleted in the topics in which their copies wait, and that retries are delayed.
func (d *doctor) copies(ctx context.Context, admin pulsaradmin.Client) {
	const check = "copies"
	cfg, found := d.cfg.Pulsar.Resolved(), len(d.findings)
	for _, c := range []struct {
		topic       string
		least, most time.Duration // below least a TTL loses events in any case; below most it may
		wait        string
	}{
		{cfg.RetryTopic, 2 * d.cfg.Retry.BackoffMax, d.cfg.Retry.AfterMax, fmt.Sprintf("an event waits there for its next attempt, up to retry.backoff_max (%v) or what its handler asks for (retry.after_max, %v)", d.cfg.Retry.BackoffMax, d.cfg.Retry.AfterMax)},
		{d.cfg.Pulsar.ParkingTopic(), 0, math.MaxInt64, fmt.Sprintf("a parked key's events wait there until the unpark, acts.park_for (%v) or longer", d.cfg.Acts.ParkFor)},
		{cfg.DeadLetterTopic, 0, math.MaxInt64, "dead letters wait there until somebody reads them, and are the memory of what was replayed"},
	} {
		_, err := admin.Partitions(ctx, c.topic)
		path := policiesOf(c.topic, !pulsaradmin.IsNotFound(err))
		const format, advice = "messages of %s expire after %d s, unhandled: %s", "exempt it: pulsar-admin topics set-message-ttl %s -t 0"
		seconds, known := d.ttl(ctx, admin, path)
		switch ttl := time.Duration(seconds) * time.Second; {
		case !known || ttl == 0:
		case ttl < c.least:
			d.fail(check, fmt.Sprintf(advice, c.topic), format, c.topic, seconds, c.wait)
		case ttl < c.most:
			d.warn(check, fmt.Sprintf(advice, c.topic), format, c.topic, seconds, c.wait)
		}
		d.evicts(ctx, admin, check, path, c.topic, "their events would be lost")
		if c.topic == cfg.RetryTopic {
			d.retriesWait(ctx, admin, check, path, c.topic)
		}
	}
	if len(d.findings) == found {
		d.ok(check, "no message TTL or backlog quota ends their wait")
	}
}

// evicts checks that no backlog quota deletes messages of a topic. Against a quota they are not even protected by a
// subscription that has not acked them, such as the anchor of a log.
func (d *doctor) evicts(ctx context.Context, admin pulsaradmin.Client, check, path, topic, lost string) {
	for _, kind := range d.evictions(ctx, admin, path) {
		d.fail(check, "exempt it: "+holdProducers(topic, kind),
			"the broker deletes the oldest messages of %s when it has many (%s of type %s): %s", topic, evicting, kind, lost)
	}
}

// holdProducers is the command by which a broker lets producers wait when a backlog quota of that type is reached.
func holdProducers(topic, kind string) string {
	return "pulsar-admin topics set-backlog-quota " + topic + " --policy producer_request_hold --type " + kind + ", with a limit of your own"
}

// evictions returns the types of the backlog quotas by which the broker deletes what nobody has acked.
func (d *doctor) evictions(ctx context.Context, admin pulsaradmin.Client, path string) (kinds []string) {
	var all map[string]struct { // by the type of the quota
		Policy               string
		LimitSize, LimitTime int64
	}
	d.policy(ctx, admin, path, "backlogQuotaMap", &all)
	for kind, q := range all {
		limit := q.LimitSize
		if kind == "message_age" {
			limit = q.LimitTime
		}
		if q.Policy == evicting && limit > 0 {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// retriesWait checks that the broker delays retries. If delays are forbidden, retries come back at once and use up
// their attempts; if they are limited, the broker refuses retries with a longer delay.
func (d *doctor) retriesWait(ctx context.Context, admin pulsaradmin.Client, check, path, topic string) {
	delays := d.delays(ctx, admin, path)
	if delays == nil {
		return
	}
	advice := "pulsar-admin topics set-delayed-delivery " + topic + " --enable"
	most := time.Duration(delays.Max) * time.Millisecond
	switch usual := max(d.cfg.Retry.BackoffMax, d.cfg.Pulsar.Spill.DelayMax); {
	case !delays.Active:
		d.fail(check, advice, "the policy of %s forbids delays: retries come back at once, and use up retry.attempts_max", topic)
	case most > 0 && most < usual:
		d.fail(check, advice, "the policy of %s refuses delays of more than %v, and copies are delayed by up to %v (retry.backoff_max, pulsar.spill.delay_max): they would never be accepted", topic, most, usual)
	case most > 0 && most < d.cfg.Retry.AfterMax:
		d.warn(check, advice, "the policy of %s refuses delays of more than %v, and a handler may ask for %v (retry.after_max): such a copy would never be accepted", topic, most, d.cfg.Retry.AfterMax)
	}
}

// policiesOf returns the path in the admin API of the policies that a topic has, or will have when it is made: those of its namespace.
func policiesOf(topic string, there bool) string {
	if there {
		return pulsaradmin.TopicPath(topic)
	}
	return namespaceOf(topic)
}

// namespaceOf returns the path of a topic's namespace in the admin API.
func namespaceOf(topic string) string {
	return "namespaces/" + strings.TrimPrefix(topic[:strings.LastIndex(topic, "/")], "persistent://")
}

// ackHoles compares the number of holes in the acks with the number that the broker keeps
// through a restart.
func (d *doctor) ackHoles(ctx context.Context, admin pulsaradmin.Client, settings map[string]string) {
	const name, check = "managedLedgerMaxUnackedRangesToPersist", "ack holes"
	limit, known := holesLimit(settings), "by default"
	if settings[name] != "" {
		known = "as it is set"
	}
	cfg := d.cfg.Pulsar.Resolved()
	worst, where := 0, ""
	for _, topic := range append([]string{cfg.RetryTopic, cfg.TimerTopic()}, cfg.Topics...) {
		partitions, err := admin.Partitions(ctx, topic)
		if err != nil {
			continue // it is not there yet, or was complained of above
		}
		holes, _, err := source.Backlog(ctx, admin, topic, partitions > 0, cfg.Subscription)
		if err == nil && holes >= worst {
			worst, where = holes, topic
		}
	}
	switch {
	case where == "":
		d.ok(check, "no topic is there yet")
	case worst > limit*8/10:
		d.warn(check, "raise "+name+" at the brokers, or find the events that stay unacked for long; delayed events of other producers count, too",
			"%d ranges of acked entries on a topic partition of %s; the broker keeps %d through a restart (%s, %s), and redelivers the events beyond", worst, where, limit, name, known)
	default:
		d.ok(check, "at most %d on a topic partition; the broker keeps %d through a restart (%s, %s)", worst, limit, name, known)
	}
}

// timers checks that the broker delays timers, and keeps them until they are due.
func (d *doctor) timers(ctx context.Context, admin pulsaradmin.Client, settings map[string]string) {
	const check = "timers"
	topic, limit := d.cfg.Pulsar.TimerTopic(), holesLimit(settings)
	path := pulsaradmin.TopicPath(topic)
	if !d.cfg.Pulsar.Timers {
		d.ok(check, "this router takes none: pulsar.timers is false")
		return
	}
	partitions, err := admin.Partitions(ctx, topic)
	switch {
	case pulsaradmin.IsNotFound(err) && !makesTopics(ctx, admin, topic, settings):
		d.warn(check, "pulsar-admin topics create "+topic, "%s does not exist, and the broker creates no topics: timers, schedules and Send will not work", topic)
		return
	case pulsaradmin.IsNotFound(err):
		d.ok(check, "%s does not exist yet; the first router creates it", topic)
		d.timersExpire(ctx, admin, namespaceOf(topic), topic)
		return
	case err != nil:
		d.warn(check, "grant the router's role produce and consume on it", "%s: %v", topic, err)
		return
	}
	d.timersExpire(ctx, admin, path, topic)
	d.evicts(ctx, admin, check, path, topic, "their events would be lost")
	if delays := d.delays(ctx, admin, path); delays != nil && (!delays.Active || delays.Max > 0 && delays.Max < source.HopMax.Milliseconds()) {
		d.fail(check, "permit delays of an hour: pulsar-admin topics set-delayed-delivery "+topic+" --enable",
			"the policy of %s forbids delays of %v (active: %t, at most %d ms)", topic, source.HopMax, delays.Active, delays.Max)
	}
	_, waiting, err := source.Backlog(ctx, admin, topic, partitions > 0, d.cfg.Pulsar.Subscription)
	switch {
	case err != nil:
		d.warn(check, "grant the router's role access to the statistics", "%s: %v", topic, err)
	case waiting > limit/2:
		d.warn(check, "give "+topic+" more partitions, or set fewer timers; or raise managedLedgerMaxUnackedRangesToPersist at the brokers",
			"%d timers wait on a topic partition; beyond %d a broker that restarts delivers timers again that were handled", waiting, limit)
	default:
		d.ok(check, "%s, %s, at most %d wait on one of %d that a broker remembers through a restart", topic, partitioned(partitions), waiting, limit)
	}
}

// timersExpire checks by the policies of the timer topic, or of its namespace, that timers do not expire.
func (d *doctor) timersExpire(ctx context.Context, admin pulsaradmin.Client, path, topic string) {
	if seconds, _ := d.ttl(ctx, admin, path); seconds > 0 && time.Duration(seconds)*time.Second < 2*source.HopMax {
		d.fail("timers", "exempt it: pulsar-admin topics set-message-ttl "+topic+" -t 0",
			"messages of %s expire after %d s, and a timer waits there for up to %v: timers would be lost", topic, seconds, source.HopMax)
	}
}

// holesLimit returns the number of holes in the acks that a broker keeps through a restart.
func holesLimit(settings map[string]string) int {
	if n, err := strconv.Atoi(settings["managedLedgerMaxUnackedRangesToPersist"]); err == nil && n > 0 {
		return n
	}
	return source.AckHolesMax
}

// limit compares the broker's limit with the router's setting.
func (d *doctor) limit(ctx context.Context, admin pulsaradmin.Client, path, name, setting string, believed int) {
	var allowed *int
	if err := admin.Call(ctx, http.MethodGet, path+"/"+name+"?applied=true", nil, &allowed); err != nil {
		d.warn(name, "grant the router's role access to the topic's policies, or set "+setting, "%v", err)
		return
	}
	switch {
	case allowed == nil || *allowed == 0:
		d.ok(name, "no limit; %s is %d", setting, believed)
	case *allowed < believed:
		d.ok(name, "%d according to pulsar.admin_url, which the router uses (%s is %d)", *allowed, setting, believed)
	default:
		d.ok(name, "%d; %s is %d", *allowed, setting, believed)
	}
}

// policy asks for one policy of a topic, with those of its namespace and broker
// applied, or of a namespace. It reports false if the broker does not tell.
func (d *doctor) policy(ctx context.Context, admin pulsaradmin.Client, path, name string, answer any) bool {
	if err := admin.Call(ctx, http.MethodGet, path+"/"+name+"?applied=true", nil, answer); err != nil {
		d.warn("policy "+name, "grant the router's role access to policies, or ask an administrator", "%v", err)
		return false
	}
	return true
}

// evicting is the policy of a backlog quota by which the broker deletes what nobody has acked.
const evicting = "consumer_backlog_eviction"

type delayPolicy struct {
	Active bool
	Tick   int64 `json:"tickTime"`                 // ms
	Max    int64 `json:"maxDeliveryDelayInMillis"` // 0: any
}

// safeTick is the tick of delayed delivery, in ms, below which brokers of Pulsar 5.0 hold messages back.
const safeTick = 1000

// delays asks for the policy of delayed delivery of a topic, or of a namespace. It returns nil if there is none, or the broker does not tell.
func (d *doctor) delays(ctx context.Context, admin pulsaradmin.Client, path string) (p *delayPolicy) {
	if !d.policy(ctx, admin, path, "delayedDelivery", &p) || p == nil {
		return nil
	}
	if p.Active && p.Tick < safeTick && strings.HasPrefix(d.brokerVersion, "5.0.") {
		d.warn("policy delayedDelivery", p.longerTick(path),
			"the tick time is %d ms: Pulsar 5.0.1 then delivers retries and timers only when something else is published in their topic", p.Tick)
	}
	return p
}

// longerTick is the command by which a topic, or a namespace, gets the safe tick. Without the longest delay it would lose that.
func (p *delayPolicy) longerTick(path string) string {
	command := "pulsar-admin topics set-delayed-delivery " + strings.Replace(path, "/", "://", 1)
	if namespace, is := strings.CutPrefix(path, "namespaces/"); is {
		command = "pulsar-admin namespaces set-delayed-delivery " + namespace
	}
	command += fmt.Sprintf(" --enable --time %ds", safeTick/1000)
	if p.Max > 0 {
		command += fmt.Sprintf(" --maxDelay %ds", (p.Max+999)/1000)
	}
	return "set its tick time to that of brokers: " + command
}

// ttl asks for the seconds after which the messages of a topic, or of a namespace, expire, 0 for never. known is false if the broker does not tell.
func (d *doctor) ttl(ctx context.Context, admin pulsaradmin.Client, path string) (seconds int, known bool) {
	var ttl *int
	known = d.policy(ctx, admin, path, "messageTTL", &ttl)
	if ttl != nil {
		seconds = max(0, *ttl)
	}
	return seconds, known
}
