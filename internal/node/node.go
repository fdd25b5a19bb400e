// Package node implements one member of a router group: it runs the pipeline and the driver of
// the ownership machine, from the start to the end of the drain.
//
// # Concurrency
//
// [Node.Run] owns every goroutine. Only the driver's goroutine steps the ownership machine and
// changes gates; all other goroutines send it inputs. The methods of Node are safe for
// concurrent use.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/audit/judge"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/base/stages"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/controllog/claim"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/telemetry/loglimit"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
	"github.com/ringfence/router/ring"
)

// Config is the constant configuration of a node.
type Config struct {
	Group string
	Name  string // stable over restarts, unique in the group
	Build string // for people

	PeerAddr string // host:port at which the other members reach PeerListener

	App        app.Config
	Forward    forward.Config
	Lane       lane.Config
	Mailbox    mailbox.Config
	Retry      outcome.Config
	History    history.Config
	Ring       ring.Config
	Audit      audit.Config
	Mode       Mode
	Timing     ownership.Timing
	ControlLog controllog.Config // with Mode Strict
	Membership membership.Config // Group and Name are set here

	DrainTimeout time.Duration // of a whole drain
	CopiesSigned bool          // the source hands on as copies only those that a key of the group has signed

	Identity   identity.Identity // the settings on which the group must agree; nil: none is compared
	Topics     []string          // to consume, in full and ascending: each once all members list it
	LogVersion uint32            // the highest version of the control log that this member writes; 0: the newest
	Generation uint32            // of fencing tokens, as an operator has set it; 0: the group's

	Listeners []report.Listener // for reports

	OwnershipJournal string // folder to which each incarnation writes the steps of its ownership machine; empty: none
}

// Mode is the way in which ownership is decided. All members of a group have the same.
type Mode uint8

// The modes.
const (
	Strict Mode = iota // by the control log: exclusive
	Gossip             // by the members that each member believes alive: not exclusive
)

// NotExclusive explains Mode Gossip, for logs, reports and pages.
const NotExclusive = "ownership.mode is gossip: two members may run handlers of one key at once when members come, go or are paused, and fencing tokens are 0"

// Parts are a node's collaborators. All are needed.
type Parts struct {
	Key key.Extractor

	AppListener  net.Listener // closed by Run
	PeerListener net.Listener // closed by Run
	AppCreds     credentials.TransportCredentials
	ServerCreds  credentials.TransportCredentials
	ClientCreds  credentials.TransportCredentials
	// AppOptions and PeerOptions add to the options of the two gRPC servers, the bounds of their
	// callers for one; of two of a kind the last one counts. nil: none.
	AppOptions, PeerOptions []grpc.ServerOption

	// Source returns a new source, for each time that the node begins to consume: of these topics, which are
	// some or all of Config.Topics.
	Source func(topics []string) *source.Source
	// ControlLog returns a new transport, for each incarnation. Not with Mode Gossip.
	ControlLog func() (controllog.Transport, error)
	// BrokerFault returns why the broker does not serve this node, as far as that is known; nil:
	// no one looks.
	BrokerFault func() error
	// Claims holds the subscription for this group; nil: no claims. Run runs it.
	Claims *claim.Keeper
	// Acts makes acts of operators on single keys take effect; nil: there are none. Run runs it.
	Acts *act.Keeper
	// Parking is the parking topic, from which letters of unparked keys come back; nil: none do.
	Parking *source.Parking

	GossipLimiter membership.Limiter // bounds the connections of gossip; nil: nothing does

	Registry prometheus.Registerer
	Log      *slog.Logger
	Tracing  pipeline.Tracing // how single events are shown, in Log and in traces; its zero value is fine
}

// ErrDrainTimeout reports that a drain was interrupted, and its open parts: unreleased
// partitions, or unsettled events, which the broker will redeliver.
var ErrDrainTimeout = errors.New("node: drain timeout")

// ErrExit means that this member must stop, and must not come back by itself.
var ErrExit = errors.New("node: cannot be a member")

// ErrIdentity says that this member's settings are not those of its group, and which; it comes with [ErrExit].
var ErrIdentity = errors.New("node: settings are not those of the group")

// Node is one member.
type Node struct {
	cfg      Config
	parts    Parts
	log      *slog.Logger
	metrics  *metrics
	steering *steering

	pipeline  *pipeline.Pipeline
	boxes     *mailbox.Mailboxes
	app       *app.Server
	lane      *lane.Lane
	pool      *forward.Pool
	peers     *forward.Server
	reach     *reach
	audit     *auditing    // nil: off
	meter     *judge.Meter // nil: off
	rollout   *rollout
	unparks   *unparks
	schedules *schedules
	group     *report.Group // as Reports has returned it; nil: this node cannot ask its group

	badRecords    *loglimit.Limit // lines about records of the control log that were ignored
	logMetrics    *controllog.Metrics
	gossipMetrics *membership.Metrics
	gossipKeys    *membership.Keys // of the last incarnation; its loop alone uses them

	self        atomic.Pointer[ownIncarnation] // the newest; never nil
	incarnation atomic.Pointer[incarnation]    // the newest, nil before the first and after a drain
	source      atomic.Pointer[source.Source]  // the newest, nil before the first
	workers     atomic.Int64                   // application streams that take deliveries
	consumeErr  atomic.Pointer[error]          // why no subscription is open, nil while one is

	noWorkerSince atomic.Int64 // clock.Instant at which the last worker left, if there is none

	changed chan struct{} // cap 1: wakes the consumer's waitUntil

	otherSettings atomic.Pointer[otherSettings] // of the newest router that wanted to join with such
	topicsNoted   string                        // which topics are not consumed, as the log says it; for the driver's goroutine alone
	topicsWaiting atomic.Pointer[topicsWaiting]

	memory atomic.Pointer[ownership.Memory] // of the earlier incarnation; nil: there was none

	drainCycles drainCycles
	manyPeers   atomic.Bool // more than Forward.PeersTypical
	started     atomic.Bool // a record of this node has come back from the control log
}

// New builds a node. It does no I/O.
func New(cfg Config, parts Parts) (*Node, error) {
	cfg.LogVersion = cmp.Or(cfg.LogVersion, ownership.LogVersionMax)
	cfg.Membership.Group, cfg.Membership.Name = cfg.Group, cfg.Name
	if cfg.Mode == Gossip {
		cfg.Membership.Group += "/gossip" // members of the other mode go by other tables: they must not find each other
	}
	cfg.ControlLog.Group = cfg.Group
	log := parts.Log.With("component", "node")
	n := &Node{
		cfg: cfg, parts: parts, log: log,
		metrics:       newMetrics(parts.Registry),
		steering:      newSteering(parts.Registry, clock.Careful()),
		badRecords:    newBadRecords(log, parts.Registry),
		logMetrics:    controllog.NewMetrics(parts.Registry),
		gossipMetrics: membership.NewMetrics(parts.Registry),
		changed:       make(chan struct{}, 1),
		drainCycles:   newDrainCycles(),
	}
	n.rollout = newRollout(n)
	n.unparks = newUnparks(n)
	n.schedules = newSchedules(n)
	n.self.Store(&ownIncarnation{})
	n.noWorkerSince.Store(int64(clock.Now()))
	n.noteNotConsuming(nil)
	tracing := parts.Tracing
	tracing.Log = parts.Log
	var began func(clock.Instant, []event.Delivery)
	if cfg.Audit.Enabled {
		n.meter = judge.NewMeter(parts.Registry)
		began = n.meter.Began
	}
	var err error
	n.pipeline, err = pipeline.New(pipeline.Parts{
		Began: began, Skipped: n.skipped, Known: n.schedules.known, Letters: n.unparks.settled,
		Answered: func(verdicts []event.Verdict) { n.lane.Answered(verdicts) },
		Renewed:  func(answers []event.Renewal) { n.lane.Renewed(answers) },
		Ended:    n.deliveriesEnded, Judged: newRefusals(n).judged, Now: clock.Now, Tracing: tracing, History: cfg.History,
	}, n.buildStages)
	if err != nil {
		return nil, err
	}
	n.metrics.watch(parts.Registry, n)
	return n, nil
}

// buildStages builds the stages around p.
func (n *Node) buildStages(p *pipeline.Pipeline) (pipeline.Stages, error) {
	cfg, parts := &n.cfg, &n.parts
	n.boxes = mailbox.NewMailboxes(cfg.Mailbox, cfg.Retry, cfg.Name, clock.Now)
	if cfg.CopiesSigned {
		n.boxes.TrustCopies()
	}
	n.boxes.JudgeSkips(n.schedules.maySkip)
	n.boxes.Remember(cfg.History)
	mailbox.NewMetrics(parts.Registry, n.boxes, p.TracedHandlers)
	pipeline.NewMetrics(parts.Registry, p)
	n.reach = newReach(n.wakeDriver)
	var handled func(event.WorkerID, []event.Handling)
	if cfg.Audit.Enabled {
		n.audit = newAuditing(n)
		handled = n.audit.handled
	}

	laneMetrics := lane.NewMetrics(parts.Registry)
	n.lane = lane.New(cfg.Lane, p, n, clock.Now, laneMetrics)
	n.lane.NotExclusive = cfg.Mode == Gossip
	n.lane.Covers = func() bool {
		t := p.Table()
		return t != nil && t.Covers()
	}
	laneMetrics.WatchWaiting(parts.Registry, n.lane)

	forwardMetrics := forward.NewMetrics(parts.Registry)
	n.pool = forward.NewPool(cfg.Forward, n.identity, parts.ClientCreds, p, n.reach.stream, clock.Now, forwardMetrics, parts.Log)
	n.peers = forward.NewServer(cfg.Forward, n.identity, parts.ServerCreds, p, clock.Now, forwardMetrics, parts.Log, parts.PeerOptions...)
	if n.audit != nil {
		n.peers.Also((&exchange.Receiver{Take: n.audit.take}).Register)
	}
	var err error
	n.app, err = app.New(cfg.App, app.Identity{Node: cfg.Name, Group: cfg.Group}, app.Parts{
		Boxes: p, Schedules: n.schedules,
		Lease:   p.Lease,
		Workers: n.workersChanged,
		Drain: func(reason string) {
			n.log.Info("the application requested a drain", "reason", reason)
			n.Drain()
		},
		Handled: handled,
		Cover:   n.cover,
		Now:     clock.Now, Log: parts.Log, Metrics: app.NewMetrics(parts.Registry),
	})
	return pipeline.Stages{Key: parts.Key, Holder: n.pool, Peers: n.peers, Boxes: n.boxes, App: n.app}, err
}

// cover passes a reservation that is to be covered, or is over, to the ownership machine. Between two incarnations it
// does nothing: all turns have ended.
func (n *Node) cover(in ownership.Input) {
	if l := n.incarnation.Load(); l != nil {
		l.driver.cover(in)
	}
}

// stopTimeout is how long the stages may take to stop once nothing is left to drain.
const stopTimeout = 10 * time.Second

// Run runs the node to its end. When ctx ends it drains, within Config.DrainTimeout, and stops.
// It returns nil after a complete drain, [ErrDrainTimeout], [ErrExit] with the reason, or the
// error that stopped the node.
func (n *Node) Run(ctx context.Context) error {
	// The stages have their own context, so that ctx does not interrupt a drain.
	stageCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var ended error
	var wait sync.WaitGroup
	wait.Go(func() {
		defer stop()
		ended = stages.All(stageCtx, stopTimeout,
			stages.Stage{Name: "source", Run: n.consume},
			stages.Stage{Name: "ownership", Run: n.live},
			stages.Stage{Name: "forward", Run: n.pool.Run},
			stages.Stage{Name: "peers", Run: func(ctx context.Context) error { return n.peers.Run(ctx, n.parts.PeerListener) }},
			stages.Stage{Name: "mailbox", Run: n.pipeline.Run},
			stages.Stage{Name: "ends", Run: n.learnEnds},
			stages.Stage{Name: "app", Run: n.app.Run},
			stages.Stage{Name: "audit", Run: n.audit.run},
			stages.Stage{Name: "app streams", Run: n.serveApp},
			stages.Stage{Name: "claims", Run: n.keepClaims},
			stages.Stage{Name: "acts", Run: n.keepActs},
			stages.Stage{Name: "unparks", Run: n.unparks.run},
			stages.Stage{Name: "schedules", Run: n.schedules.run},
		)
	})
	wait.Go(func() { n.keepDrainCycles(stageCtx) })
	wait.Go(func() { n.steering.watch(stageCtx, n.log) })

	var cut error
	select {
	case <-ctx.Done():
		cut = n.drainWithin(stageCtx)
	case <-stageCtx.Done():
	}
	stop()
	wait.Wait()
	return errors.Join(ended, cut)
}

// drainWithin drains and waits for the end, but no longer than it may take.
func (n *Node) drainWithin(stageCtx context.Context) error {
	drained := n.endDrain()
	timeout := time.NewTimer(n.cfg.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-drained:
		return nil
	case <-stageCtx.Done(): // one has failed and says why
		return nil
	case <-timeout.C:
		lacks := n.unfinished(n.drainCycle())
		if lacks == "" { // only ids are missing: they cost at most duplicates, and handOver reports them
			return nil
		}
		return fmt.Errorf("%w after %v: %s", ErrDrainTimeout, n.cfg.DrainTimeout, lacks)
	}
}

// Publish implements lane.Publisher: the source of the moment publishes.
func (n *Node) Publish(e *event.Event, answer func(error)) error {
	s := n.source.Load()
	if s == nil {
		return errNoSource
	}
	return s.Send(e, answer)
}

// Lane makes calls of keys' handlers.
func (n *Node) Lane() *lane.Lane { return n.lane }

// Unsettled returns how many events this node has received and not settled.
func (n *Node) Unsettled() int {
	if s := n.source.Load(); s != nil {
		return s.Stats().Unsettled
	}
	return 0
}

// Status returns the newest picture of ownership.
func (n *Node) Status() ownership.Status {
	if l := n.incarnation.Load(); l != nil {
		return l.driver.Status()
	}
	return ownership.Status{Phase: ownership.Joining}
}

// Table returns the newest applied epoch, nil before the first.
func (n *Node) Table() *ownership.Table { return n.pipeline.Table() }

// Workers returns how many application streams take deliveries.
func (n *Node) Workers() int { return int(n.workers.Load()) }

func (n *Node) identity() forward.Identity {
	self := n.self.Load()
	return forward.Identity{
		Group: n.cfg.Group, HashID: ring.HashID, Member: n.cfg.Name,
		Incarnation: forward.Peer(self.inc), Build: n.cfg.Build, Settings: n.cfg.Identity, Key: self.key,
	}
}

// serveApp serves the application's streams.
func (n *Node) serveApp(ctx context.Context) error {
	server := grpc.NewServer(slices.Concat(app.ServerOptions(n.cfg.App), []grpc.ServerOption{grpc.Creds(n.parts.AppCreds)}, n.parts.AppOptions)...)
	appv1.RegisterAppServiceServer(server, n.app)
	lanev1.RegisterLaneServiceServer(server, &lane.Service{Lane: n.lane})
	state := health.NewServer()
	healthv1.RegisterHealthServer(server, state)
	var telling sync.WaitGroup
	defer telling.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	telling.Go(func() { n.keepHealth(ctx, state) })
	stop := context.AfterFunc(ctx, func() {
		force := time.AfterFunc(time.Second, server.Stop)
		defer force.Stop()
		server.GracefulStop()
	})
	defer stop()
	if err := server.Serve(n.parts.AppListener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("node: serve the application: %w", err)
	}
	return nil
}

// workersChanged takes the new number of application streams that take deliveries.
func (n *Node) workersChanged(workers int) {
	if workers == 0 {
		n.noWorkerSince.Store(int64(clock.Now()))
	}
	before := n.workers.Swap(int64(workers))
	n.wakeDriver()
	n.wakeConsumer()
	if before == 0 && workers > 0 && n.drainCycle().isDraining() {
		// The drained application has exited, and a new one connects: it was restarted alone,
		// after its preStop hook. To drain for good, stop the router.
		_, _ = n.Undrain() // an error means that it is about to end
	}
}

// wakeDriver makes the present incarnation's driver fetch the news, if there is one.
func (n *Node) wakeDriver() {
	if l := n.incarnation.Load(); l != nil {
		l.driver.wakeUp()
	}
}

func (n *Node) deliveriesEnded(partitions []ring.Partition) {
	if l := n.incarnation.Load(); l != nil {
		l.driver.drained(partitions)
	}
}

// wakeConsumer makes the consumer check again what it may do. It never blocks.
func (n *Node) wakeConsumer() {
	signal.Set(n.changed)
}
