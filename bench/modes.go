package main

import (
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// The modes.
const (
	modeShared             = "shared"
	modeFailover           = "failover"
	modeKeyShared          = "key_shared"
	modeKeySharedUnbatched = "key_shared_unbatched"
	modeRedlock            = "redlock"
	modeRingfence          = "ringfence"
	modeBare               = "bare" // not an alternative but their lower bound, see relay

	// Those of the workload calls.
	modeInvoke = "invoke"
	modeUnary  = "unary"
	modeSetNX  = "setnx"

	// Those of the workload reservations.
	modeReserve = "reserve"
	modeCovered = "covered"
	modeRedis   = "redis"
	modeRedsync = "redsync"
	modeEtcd    = "etcd"
)

// How a producer makes entries.
const (
	batchingDefault = "default" // the client's default: any keys in one batch
	batchingKey     = "key"     // a batch holds one key
	batchingOff     = "off"
)

// A mode is one way of consuming a topic. Each is configured as a team would configure it for
// production: with every setting that makes it fast, as far as it stays exclusive.
type mode struct {
	name         string
	subscription pulsar.SubscriptionType
	batching     string // required or default batching of its producers

	// partitioned modes get a topic with a partition for each node: with one partition, one
	// consumer works and all other consumers are idle.
	partitioned bool

	// striped modes get the events of one key in one process and in order, so that it
	// is left to the application to handle them one at a time.
	striped bool

	// share is the part of --events that the backlog of this mode holds at most. That
	// of a mode with less than 1 is also cut to seconds of a steady state, where a whole
	// one would take minutes.
	share float64

	// floor marks a mode that is not an alternative for a team. It runs only when it is named.
	floor bool

	// workload is the only one of a mode without events. Empty: it has events, and any workload with them.
	workload string
}

var modes = []mode{
	{name: modeShared, subscription: pulsar.Shared, batching: batchingDefault, share: 1},
	{name: modeFailover, subscription: pulsar.Failover, batching: batchingDefault, partitioned: true, striped: true, share: 1},
	{name: modeKeyShared, subscription: pulsar.KeyShared, batching: batchingKey, striped: true, share: 0.15},
	{name: modeKeySharedUnbatched, subscription: pulsar.KeyShared, batching: batchingOff, striped: true, share: 0.1},
	{name: modeRedlock, subscription: pulsar.Shared, batching: batchingDefault, share: 0.1},
	{name: modeRingfence, subscription: pulsar.Shared, batching: batchingDefault, share: 1},
	{name: modeBare, subscription: pulsar.Shared, batching: batchingDefault, share: 1, floor: true},
	{name: modeInvoke, workload: workloadCalls},
	{name: modeUnary, workload: workloadCalls},
	{name: modeSetNX, workload: workloadCalls},
	{name: modeReserve, workload: workloadReservations},
	{name: modeCovered, workload: workloadReservations},
	{name: modeRedis, workload: workloadReservations},
	{name: modeRedsync, workload: workloadReservations},
	{name: modeEtcd, workload: workloadReservations},
}

// alternatives are the modes of events that a team could choose.
func alternatives() []mode {
	return slices.DeleteFunc(slices.Clone(modes), func(m mode) bool { return m.floor || m.workload != "" })
}

// modesOnly are the modes that have a workload of their own.
func modesOnly(workload string) []mode {
	return slices.DeleteFunc(slices.Clone(modes), func(m mode) bool { return m.workload != workload })
}

// hasRouters reports whether the mode has a router on each node.
func (m mode) hasRouters() bool {
	return slices.Contains([]string{modeRingfence, modeInvoke, modeReserve, modeCovered}, m.name)
}

// hasRedis reports whether the mode locks with a Redis.
func (m mode) hasRedis() bool {
	return slices.Contains([]string{modeRedlock, modeSetNX, modeRedis, modeRedsync}, m.name)
}

// hasEtcd reports whether the mode locks with an etcd.
func (m mode) hasEtcd() bool { return m.name == modeEtcd }

func modeNamed(name string) (mode, bool) {
	for _, m := range modes {
		if m.name == name {
			return m, true
		}
	}
	return mode{}, false
}

func modeNames() string {
	names := make([]string, len(modes))
	for i, m := range modes {
		names[i] = m.name
	}
	return strings.Join(names, ", ")
}

// events returns the size of the mode's backlog in the first round.
func (m mode) events(o Options) int { return max(eventsMin, int(m.share*float64(o.Events))) }

// eventsAt returns the size of the mode's backlog in later rounds, if it handles perSecond events
// a second.
func (m mode) eventsAt(o Options, perSecond float64) int {
	all := m.events(o)
	if m.share == 1 {
		return all
	}
	return max(eventsMin, min(all, int(perSecond*steadyWanted.Seconds()/(drainedAt-o.Warm))))
}

// steadyWanted is the wanted length of the steady window of a slow mode.
const steadyWanted = 5 * time.Second

// eventsMin is the smallest backlog.
const eventsMin = 1000

// batchingFor is the batching of this mode's producers for o. KEY_SHARED cannot have batches of
// many keys: all of a batch goes to one consumer.
func (m mode) batchingFor(o Options) string {
	if o.Batching == "" || m.subscription == pulsar.KeyShared {
		return m.batching
	}
	return o.Batching
}
