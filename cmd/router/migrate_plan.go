package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/report"
)

// The values of --from.
const (
	fromRedlock   = "redlock"
	fromKeyShared = "key_shared"
	fromFailover  = "failover"
)

var migrateFrom = []string{fromRedlock, fromKeyShared, fromFailover}

// migration is a plan. Its names in JSON are stable; fields are only added.
type migration struct {
	From         string             `json:"from"`
	Subscription string             `json:"subscription"`
	Found        []liveSubscription `json:"found"`
	Blockers     []concern          `json:"blockers"` // to be removed before the first step
	Steps        []migrationStep    `json:"steps"`    // in their order
	Risks        []concern          `json:"risks"`
	Back         string             `json:"back"` // how to undo the move
	Page         string             `json:"page"` // of the documentation
}

type migrationStep struct {
	Do    string `json:"do"`
	Why   string `json:"why"`
	Check string `json:"check,omitempty"` // before the next step
}

// concern is an obstacle or a risk of the move.
type concern struct {
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

// typesBefore are the types of a subscription that each of migrateFrom has.
var typesBefore = map[string][]string{
	fromRedlock:   {"Shared"},
	fromKeyShared: {"Key_Shared"},
	fromFailover:  {"Failover", "Exclusive"},
}

// planOf makes a plan from what the broker says. It asks nobody.
func planOf(from string, cfg config.Config, found []liveSubscription) migration {
	m := migration{
		From: from, Subscription: cfg.Pulsar.Subscription, Found: found,
		Blockers: []concern{}, Risks: []concern{}, Page: "docs/migration-from-" + strings.ReplaceAll(from, "_", "-") + ".md",
	}
	for _, s := range found {
		m.judge(s)
	}
	if from == fromRedlock {
		m.alongside(cfg)
	} else {
		m.inTurn(cfg)
	}
	return m
}

func (m *migration) block(remedy, what string, args ...any) {
	m.Blockers = append(m.Blockers, concern{fmt.Sprintf(what, args...), remedy})
}

func (m *migration) risk(remedy, what string, args ...any) {
	m.Risks = append(m.Risks, concern{fmt.Sprintf(what, args...), remedy})
}

func (m *migration) step(do, why, check string) {
	m.Steps = append(m.Steps, migrationStep{do, why, check})
}

// judge says what a topic's present subscription means for the move.
func (m *migration) judge(s liveSubscription) {
	if len(s.TypesAllowed) > 0 && !slices.ContainsFunc(s.TypesAllowed, func(t string) bool { return strings.EqualFold(t, "Shared") }) {
		m.block("allow it: pulsar-admin topics set-subscription-types-enabled "+s.Topic+" --types Shared,"+strings.Join(s.TypesAllowed, ","),
			"%s allows only subscriptions of the types %s, and routers need Shared", s.Topic, strings.Join(s.TypesAllowed, ", "))
	}
	if !s.There {
		m.block("correct pulsar.subscription: it has to be that of the present consumers, or their backlog stays where it is",
			"%s has no subscription %s", s.Topic, m.Subscription)
		return
	}
	if s.Retry {
		if s.Backlog > 0 {
			m.risk("nothing to do if these are retries of the old consumers: routers read that topic too; else set pulsar.retry_topic",
				"%s, the topic for retries, holds %s", s.Topic, report.Plural(int(s.Backlog), "event"))
		}
		return
	}
	if s.Type != "" && s.Type != "None" && !slices.Contains(typesBefore[m.From], s.Type) {
		m.block("choose --from by what the consumers do, or correct pulsar.subscription",
			"%s of %s is %s, and --from %s expects %s", m.Subscription, s.Topic, s.Type, m.From, strings.Join(typesBefore[m.From], " or "))
	}
	if s.Unacked > 0 {
		m.risk("make the handler idempotent first, or let the consumers finish and ack before they stop",
			"%s of %s sent to its consumers and not acked: as these stop, they are delivered again, and may be handled twice", s.Topic, report.Plural(int(s.Unacked), "event"))
	}
	if s.Delayed > 0 {
		m.risk("nothing to do: they come when they are due; check that pulsar.unsettled_max covers those that become due together",
			"%s of %s delayed by their producers", s.Topic, report.Plural(int(s.Delayed), "event"))
	}
	if s.Replicated {
		m.risk("move one cluster at a time: Ringfence keeps keys apart within a cluster's group, not between clusters",
			"%s of %s is a replicated subscription", m.Subscription, s.Topic)
	}
	if m.From == fromRedlock && s.RateRedeliv > 0 {
		m.risk("expect this to fall to the handlers' own failures once the lock is gone: a waiting event then stays at its key's owner",
			"%s redelivers %.1f events/s: consumers send events back, as they do for a contended lock", s.Topic, s.RateRedeliv)
	}
	if s.Backlog > 0 && s.RateOut > 0 {
		seconds := float64(s.Backlog) / s.RateOut
		m.risk("begin when it is small, or accept that new events wait behind it for as long",
			"%s has a backlog of %d, which is %.0f s of work at the present %.1f events/s", s.Topic, s.Backlog, seconds, s.RateOut)
	}
}

func (m *migration) prepare(cfg config.Config) {
	m.step("Try the handler with `router dev`, port it to an SDK (or `router bridge`), and make it idempotent.",
		"delivery is at least once, before and after the move.", "`router conformance` for an SDK that is not ours")
	m.step(fmt.Sprintf("Set key.from to the place of the key that must not run twice at once (now %s).", cfg.Key.From),
		m.keyReason(), "`router config lint`; events without a key are "+map[string]string{"reject": "sent to the dead letter topic", "spread": "spread over all members"}[cfg.Key.Missing])
	m.step("Run `router doctor` where the routers will run.",
		"it finds missing rights, limits and policies before a router needs them.", "no line says fail")
}

func (m *migration) keyReason() string {
	switch m.From {
	case fromRedlock:
		return "the lock's name is that key today, often taken from the payload (json:PATH)."
	case fromKeyShared:
		return "KEY_SHARED goes by the ordering key, else by the message key; message_key means the message key, else the ordering key. " +
			"Where producers set both and they differ, take the key from a property or the payload."
	}
	return "FAILOVER knows no key: it keeps whole topic partitions apart, by the producers' routing."
}

// alongside is the plan for a SHARED subscription with a lock: routers and old consumers work side
// by side under the lock.
func (m *migration) alongside(cfg config.Config) {
	m.prepare(cfg)
	m.step(fmt.Sprintf("Deploy pods with a router and the handler that still takes the lock, one by one, on the same subscription (%s).", cfg.Pulsar.Subscription),
		"routers keep keys apart among themselves, and the lock keeps them apart from the old consumers.",
		"`router members` lists every new pod as ready")
	m.step("Remove the last old consumer: "+namesOf(m.Found)+".",
		"as long as one is left, only the lock protects its keys.",
		"`router migrate plan` names no consumer here; the lock was never contended for a day; `router exclusivity` says KEPT")
	m.step("Add the fence of each delivery to the writes (docs/sinks.md).",
		"it refuses the write of a handler that was paused for too long, which the lock did not.", "the sink refuses an old fence in a test")
	m.step("Remove the lock from the handler, in a deploy of its own.",
		"pods with and without the lock may run together: the routers keep the keys apart.", "`router exclusivity` says KEPT")
	m.step("Shut Redis down.", "nothing takes the lock.", "")
	m.risk("give the routers the subscription of the old consumers: "+cfg.Pulsar.Subscription,
		"A subscription of their own: every event would be handled twice")
	m.risk("remove the lock only in the deploy after the last old consumer has gone", "The lock is removed too early: an old consumer and a router handle one key at once")
	m.risk("keep the lock's time to live longer than the longest handler until step 7", "The lock expires while a handler of an old consumer runs: today's risk, until that consumer is gone")
	m.Back = "add the lock again and deploy; then replace the routers by the old consumers, one by one."
}

// inTurn is the plan for a subscription that routers cannot share with its old consumers.
func (m *migration) inTurn(cfg config.Config) {
	what := map[string]string{fromKeyShared: "KEY_SHARED", fromFailover: "FAILOVER"}[m.From]
	m.step("Decide whether the handler needs the events of a key in order. If it does, stay with "+what+".",
		"a SHARED subscription may reverse events of one key, and so may retries; Ringfence promises exclusive handling, not order.",
		"a handler that only applies newer states (a version in the event, compared in the sink) does not need it")
	m.prepare(cfg)
	m.step("Stop all old consumers: "+namesOf(m.Found)+".",
		"the broker refuses a SHARED consumer while consumers of another type are connected.",
		"`router migrate plan` lists 0 consumers")
	m.step("Start all routers with their applications, together.",
		"the first one changes the type of the subscription "+cfg.Pulsar.Subscription+", which keeps its position: nothing is lost and nothing is skipped. A new group waits about 7 s.",
		"`/readyz` of each says ok; the backlog falls ("+backlogOf(m.Found)+" now)")
	m.step("Add the fence of each delivery to the writes (docs/sinks.md).",
		"it refuses the write of a handler that was paused for too long.", "the sink refuses an old fence in a test")
	if m.From == fromKeyShared {
		m.step("Let producers batch as they like again (no key-based batching, no batching switched off).",
			"routers take batches apart; with KEY_SHARED a batch of several keys went to one consumer.", "the producers' throughput")
		m.orderRisk("KEY_SHARED")
		m.risk("nothing to do: slow keys no longer hold back others", "Consumers that stop or join move hash ranges today, and with them the order of keys in flight")
	} else {
		m.step("Scale the pods by load, beyond the number of topic partitions if need be.",
			"FAILOVER has one active consumer per topic partition; Ringfence spreads keys over all members.", "`router ring show`")
		m.orderRisk("FAILOVER")
		m.risk("ack every event singly in the new handlers, as the SDKs do", "Cumulative acks: a SHARED subscription refuses them")
	}
	m.risk("start the routers at once after the stop, and move at a quiet hour", "Nothing is handled between the stop of the old consumers and the first router: some seconds plus the time of the deploy")
	m.risk("stop them all before: a deployment that rolls pod by pod cannot do this move (strategy Recreate)",
		"An old consumer is left: routers are refused (\"Subscription is of different type\"), exit, and say so")
	m.risk("stop all routers before one old consumer starts", "An old consumer comes back, by a rollback or an autoscaler: it is refused while a router is connected")
	m.Back = "stop all routers, and then start the old consumers: the subscription keeps its position and takes their type again. Events in flight are delivered again."
}

func (m *migration) orderRisk(what string) {
	for _, s := range m.Found {
		if s.OutOfOrder {
			m.risk("nothing to do", "%s has allowOutOfOrderDelivery: %s does not promise order there today, either", s.Topic, what)
			return
		}
	}
	m.risk("compare a version or a time of the event in the sink, so that an older event changes nothing", "The order of a key's events, which %s keeps and Ringfence does not", what)
}

// namesShownMax bounds the consumers that a step names.
const namesShownMax = 10

// namesOf names the old consumers: those that are not routers.
func namesOf(found []liveSubscription) string {
	var names []string
	for _, s := range found {
		for _, c := range s.Consumers {
			if c.isRouter() {
				continue
			}
			names = append(names, strings.TrimSpace(c.Name+" "+c.Address))
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return "none is connected now"
	}
	if more := len(names) - namesShownMax; more > 0 {
		names = append(names[:namesShownMax], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

func backlogOf(found []liveSubscription) string {
	var sum int64
	for _, s := range found {
		sum += s.Backlog
	}
	return report.Plural(int(sum), "event")
}
