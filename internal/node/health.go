package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// Check is one condition of health. Ask returns nil when it holds, and otherwise the error. It
// is safe for concurrent use and does not block.
type Check struct {
	Name string
	Ask  func() error
}

// Probes are the conditions behind the three probes of a node. A broker outage or a
// slow application is not part of Live: a restart fixes neither.
type Probes struct {
	// Startup never waits for the application, which starts only after it. Once it
	// has held it holds for good.
	Startup []Check
	// Ready holds while this node takes part.
	Ready []Check
	// Live fails when only a restart helps.
	Live []Check
}

// Probes returns the checks of this node's health.
func (n *Node) Probes() Probes {
	return Probes{
		Startup: []Check{{"claim", n.CheckClaim}, {"gossip", n.checkGossip}, {"control_log", n.checkControlLog}},
		Ready: []Check{
			{"drain", n.CheckDrain},
			{"broker", n.checkBroker},
			{"claim", n.CheckClaim},
			{"member", n.CheckMember},
			{"application", n.CheckApp},
			{"lease", n.CheckLease},
			{"source", n.CheckSource},
		},
		Live: []Check{{"driver", n.checkDriver}},
	}
}

func (n *Node) checkGossip() error {
	if !n.started.Load() && n.incarnation.Load() == nil {
		return errors.New("the gossip port is not open yet")
	}
	return nil
}

func (n *Node) checkControlLog() error {
	if !n.started.Load() {
		return withFault(errors.New("this router has not read back a record of its own yet: the control topic cannot be written or read"), n.logFault())
	}
	return nil
}

// logFault returns why the control log cannot be written or read now, nil if that is not known.
func (n *Node) logFault() error {
	if l := n.incarnation.Load(); l != nil && l.controlLog != nil {
		return l.controlLog.Fault()
	}
	return nil
}

func withFault(err, fault error) error {
	if fault == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, fault)
}

// CheckDrain returns an error from the begin of a drain until this node takes part again.
func (n *Node) CheckDrain() error {
	switch s := n.drainCycle(); {
	case s.isDrained():
		return errors.New("drained: /undrain brings this router back")
	case s.isDraining():
		return fmt.Errorf("draining: %s", n.drainWaits(s))
	}
	return nil
}

// checkBroker returns why the broker does not serve this node, nil as long as nothing is known
// against it.
func (n *Node) checkBroker() error {
	if n.parts.BrokerFault == nil {
		return nil
	}
	return n.parts.BrokerFault()
}

// CheckMember returns why this node is not a member that takes part, nil when it is.
func (n *Node) CheckMember() error {
	switch s := n.Status(); {
	case s.Phase == ownership.Joining:
		return errors.New("waiting for the state of the group")
	case n.drainCycle().isDrained():
		return errors.New("left the group: this router is drained")
	case s.Phase == ownership.Leaving || s.Phase == ownership.Ended:
		return errors.New("leaving the group")
	case s.Rival != ownership.Incarnation{}:
		return fmt.Errorf("another router, %v, is a member with the name %s: each router needs its own node.name; this router exits if that lasts for %v",
			s.Rival, n.cfg.Name, n.cfg.Timing.NameInUseAfter)
	case s.Full:
		return fmt.Errorf("the group is full: it has %d members, and this router joins when one of them leaves", ring.MembersMax)
	case !s.Member:
		return errors.New("this router is not a member in the newest epoch")
	case s.Open == 0 && s.Waiting > 0:
		return errors.New("waiting for the end of every earlier owner's tenure")
	}
	return nil
}

// Notice returns a warning for every health report of this node, "" if there is none.
func (n *Node) Notice() string {
	if n.cfg.Mode == Gossip {
		return NotExclusive
	}
	return ""
}

// CheckApp returns an error while no application is connected.
func (n *Node) CheckApp() error {
	if n.Workers() == 0 {
		return errors.New("no application is connected")
	}
	return nil
}

// CheckLease returns an error while this node has no valid lease.
func (n *Node) CheckLease() error {
	lease := n.Status().Lease
	switch left, s := lease.Sub(clock.Now()), n.drainCycle(); {
	case left <= 0 && s.isDrained():
		return errors.New("no lease: this router is drained")
	case left <= 0 && signal.IsClosed(s.left):
		return errors.New("no lease: this router has left the group")
	case lease == 0:
		return withFault(errors.New("no lease yet: it comes with the first Beat that is read back from the control log"), n.logFault())
	case left <= 0:
		return withFault(fmt.Errorf("no lease: the control log cannot be written or read, or this node was paused (%v over)", -left), n.logFault())
	}
	return nil
}

// errNotSubscribed says that the first attempt to subscribe has neither succeeded nor
// failed since this node may consume.
var errNotSubscribed = errors.New("not subscribed yet")

// errNoSource says why this node publishes nothing.
var errNoSource = errors.New("this router takes no part in its group now: its /readyz says why")

// CheckSource returns why this node does not consume though it should.
func (n *Node) CheckSource() error {
	if waiting := n.TopicsNotConsumed(); len(waiting) > 0 && len(waiting) == len(n.cfg.Topics) {
		return errors.New("no topic is consumed: none of pulsar.topics is listed by all members of the group")
	}
	why := n.consumeErr.Load()
	if why == nil {
		return allUnread(n.topicsToConsume(), n.topicsUnread())
	}
	if errors.Is(*why, errNotSubscribed) && !n.mayConsume(n.drainCycle()) { // other checks say why it does not
		return nil
	}
	return *why
}

// topicsUnread returns the topics that this node has lost, each with the reason; nil: none.
func (n *Node) topicsUnread() map[string]error {
	if src := n.source.Load(); src != nil {
		return src.Unread()
	}
	return nil
}

// allUnread returns an error if a node has lost all topics that it consumes. Without some of them, or some of their partitions, it takes part.
func allUnread(topics []string, unread map[string]error) error {
	if len(unread) == 0 {
		return nil
	}
	var reasons []error
	for _, topic := range topics {
		why := unread[source.FullTopicName(topic)]
		if why == nil || errors.Is(why, source.ErrPartlyRead) {
			return nil
		}
		reasons = append(reasons, why)
	}
	return fmt.Errorf("no topic can be read any more: %w", errors.Join(reasons...))
}

// stuckAfter is the delay of the ownership machine's driver after which only a restart may help.
// Its partitions have moved to other members long before.
const stuckAfter = 30 * time.Second

func (n *Node) checkDriver() error {
	if l := n.incarnation.Load(); l != nil {
		return l.driver.check(clock.Now())
	}
	return nil
}

// check returns an error if the machine should have been stepped stuckAfter before now.
func (d *driverLoop) check(now clock.Instant) error {
	due := clock.Instant(d.due.Load())
	if late := now.Sub(due); due != 0 && late > stuckAfter {
		return fmt.Errorf("the driver of ownership is stuck: its next step is %v late", late.Round(time.Second))
	}
	return nil
}

// The services that the gRPC health service knows on the application's port, besides
// "" (the same as live) and the name of the AppService (serving while not draining).
const (
	healthStartup = "startup"
	healthReady   = "readiness"
	healthLive    = "liveness"
)

// healthEvery is the interval at which the gRPC health service is updated.
const healthEvery = 500 * time.Millisecond

// keepHealth tells the gRPC health service how this node is, until ctx ends.
func (n *Node) keepHealth(ctx context.Context, server *health.Server) {
	probes := n.Probes()
	services := map[string][]Check{
		"":                                       probes.Live,
		healthStartup:                            probes.Startup,
		healthReady:                              probes.Ready,
		healthLive:                               probes.Live,
		appv1.AppService_ServiceDesc.ServiceName: {{"drain", n.CheckDrain}},
	}
	ticker := time.NewTicker(healthEvery)
	defer ticker.Stop()
	for {
		for service, checks := range services {
			server.SetServingStatus(service, servingStatus(checks))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			server.Shutdown()
			return
		}
	}
}

func servingStatus(checks []Check) healthv1.HealthCheckResponse_ServingStatus {
	for _, check := range checks {
		if check.Ask() != nil {
			return healthv1.HealthCheckResponse_NOT_SERVING
		}
	}
	return healthv1.HealthCheckResponse_SERVING
}
