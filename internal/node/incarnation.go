package node

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/ownership/driver"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/ring"
)

// incarnation holds the parts of a node that end with an incarnation: the machine, the gossip and
// the readers of the control log. The data path outlives it.
type incarnation struct {
	node       *Node
	inc        ownership.Incarnation
	key        ed25519.PrivateKey // of this incarnation alone, and never kept
	gossip     *membership.Gossip
	driver     *driverLoop
	controlLog *controllog.Log           // nil with Mode Gossip
	shown      *shown                    // the ownership.Machine; nil with Mode Gossip
	others     gossipView                // the members as gossip sees them, with Mode Gossip
	named      atomic.Pointer[directory] // nil before the control log has named a member, and with Mode Gossip
	appReady   bool                      // as the machine was told; for the driver's goroutine alone

	journal *os.File      // of the steps of the machine; nil: none
	running ownership.Set // partitions on which deliveries of earlier incarnations ran when this one began
}

// live runs one incarnation after the other until one ends finally. After LOST, and after a
// drain that was undone, a new one begins: its gates wait for handlers that the old one left running.
func (n *Node) live(ctx context.Context) error {
	if n.cfg.Mode == Gossip {
		n.log.Warn("ownership is not exclusive", "reason", NotExclusive)
	}
	if !n.awaitClaims(ctx) || !n.awaitActs(ctx) {
		return nil
	}
	for {
		end, err := n.liveOnce(ctx)
		if err != nil || ctx.Err() != nil {
			return err
		}
		switch end := end.(type) {
		case ownership.Lost:
			n.metrics.lost.Inc()
			n.log.Error("ownership is lost; starting again as a new incarnation", "error", end.Reason)
		case ownership.Exit:
			if end.Settings {
				return fmt.Errorf("%w: %w: %s", ErrExit, ErrIdentity, end.Reason)
			}
			return fmt.Errorf("%w: %s", ErrExit, end.Reason)
		default: // ownership.Left
			n.log.Info("left the group")
			s := n.drainCycle()
			close(s.left)
			if !s.next(ctx) {
				return nil
			}
		}
	}
}

// liveOnce is one incarnation, from gossip to its end.
func (n *Node) liveOnce(ctx context.Context) (ownership.Effect, error) {
	l := &incarnation{node: n, inc: newIncarnation()}
	var err error
	if _, l.key, err = ed25519.GenerateKey(rand.Reader); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	self := membership.Member{Inc: l.inc, GRPCAddr: n.cfg.PeerAddr}
	if l.gossip, err = membership.New(n.cfg.Membership, self, n.cfg.Identity, l.hear, n.parts.GossipLimiter, n.parts.Log, n.gossipMetrics); err != nil {
		return nil, err
	}
	l.gossip.Continue(n.gossipKeys)
	n.reach.begin()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.gossip.Run(ctx) })
	select {
	case <-l.gossip.Ready():
	case <-ctx.Done():
		return nil, group.Wait()
	}
	n.gossipKeys = l.gossip.Keys()
	serveLog, err := n.startOwnership(l)
	if err != nil {
		stop()
		return nil, errors.Join(err, group.Wait())
	}
	n.rollout.begin()
	n.self.Store(n.self.Load().next(l.inc, l.key))
	n.pipeline.SetSelf(l.inc)
	n.incarnation.Store(l)

	var end ownership.Effect
	group.Go(func() error { return serveLog(ctx) })
	group.Go(func() error {
		defer stop()
		defer func() { _ = l.journal.Close() }() // each line has been written, or reported; nil is fine
		end = l.driver.run(ctx)
		if l.shown != nil {
			n.memory.Store(new(l.shown.Memory()))
		}
		return nil
	})
	s := n.drainCycle()
	group.Go(func() error {
		l.forwardDrain(ctx, s)
		return nil
	})
	n.replayInputs(l)
	return end, group.Wait()
}

// startOwnership builds l's machine and driver, and returns the control log loop to run with them.
func (n *Node) startOwnership(l *incarnation) (serveLog func(context.Context) error, err error) {
	cfg := n.ownershipConfig(l)
	if n.cfg.Mode == Gossip {
		l.drive(newGossipMachine(cfg, l.others.members), nil)
		n.started.Store(true)
		return func(context.Context) error { return nil }, nil
	}
	transport, err := n.parts.ControlLog()
	if err != nil {
		return nil, err
	}
	l.controlLog, err = controllog.New(n.cfg.ControlLog, transport, l.read, n.parts.Log, n.logMetrics)
	if err != nil {
		return nil, err
	}
	l.drive(ownership.New(cfg), l.controlLog)
	return l.controlLog.Run, nil
}

// drive makes the driver of the machine that decides for this incarnation. An ownership.Machine is stepped through layers that
// only watch: shown, and a journal if one is configured.
func (l *incarnation) drive(machine driver.Machine, log driver.ControlLog) {
	if m, ok := machine.(*ownership.Machine); ok {
		l.shown = newShown(m, l.setNamed)
		machine = l.journalled(l.shown)
	}
	l.driver = newDriverLoop(machine, host{log, l.node.pipeline, l}, l.node.pipeline.HandOver, l.news)
}

// journalled returns a machine that writes its steps down, if that is asked for.
func (l *incarnation) journalled(m driver.Machine) driver.Machine {
	cfg := &l.node.cfg
	if cfg.OwnershipJournal == "" {
		return m
	}
	failed := func(err error) { l.node.log.Error("ownership journal cannot be written", "error", err) }
	var err error
	l.journal, err = os.Create(filepath.Join(cfg.OwnershipJournal, fmt.Sprintf("%s-%v.ndjson", cfg.Name, l.inc)))
	if err != nil {
		failed(err)
		return m
	}
	return &driver.Journal{Machine: m, Inc: l.inc, To: l.journal, Failed: failed}
}

// read takes the control log's inputs. A record of our own proves that the log can be written
// and read.
func (l *incarnation) read(in ownership.Input) {
	if r, ok := in.(ownership.RecordRead); ok && r.Record.Inc == l.inc {
		l.node.started.Store(true)
	}
	if first, ok := in.(ownership.FirstRead); ok {
		first.HadGen, first.HadGroup = l.node.claimedGeneration()
		in = first
	}
	l.driver.deliver(in)
}

// forwardDrain sends Leave to the machine when a drain is requested.
func (l *incarnation) forwardDrain(ctx context.Context, s *drainCycle) {
	select {
	case <-s.draining:
		l.driver.deliver(ownership.Leave{})
	case <-ctx.Done():
	}
}

// hear takes gossip's evidence about another member.
func (l *incarnation) hear(e membership.Evidence) {
	if !l.trusts(e.Member) {
		return
	}
	l.others.heard(e)
	l.node.reach.gossip(e) // wakes the driver
}

// news returns what has changed around the machine: which peers can be reached, and whether there is an application.
// The driver fetches it, so that the last news the machine gets is the newest, even if it came up while the machine
// was being built.
func (l *incarnation) news() []ownership.Input {
	if l.node.cfg.Mode == Gossip { // no control log says who is gone
		l.node.reach.keep(l.others.directory())
	}
	news := l.node.reach.changes()
	if ready := l.node.Workers() > 0; ready != l.appReady {
		l.appReady = ready
		news = append(news, ownership.AppReady{Ready: ready})
	}
	return news
}

// replayInputs repeats inputs that may have gone to the previous machine while the new one was
// being built.
func (n *Node) replayInputs(l *incarnation) {
	n.reach.retell() // wakes the driver
	// Deliveries that ended after Config.Running was taken were reported to the previous
	// machine.
	l.driver.drained(slices.Collect(l.running.All()))
}

func (n *Node) ownershipConfig(l *incarnation) ownership.Config {
	var running []ring.Partition
	for p := range ring.Partition(ring.Partitions) {
		if n.boxes.Running(p) > 0 {
			running = append(running, p)
		}
	}
	l.running = ownership.SetOf(running...)
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	hadGen, hadGroup := n.claimedGeneration()
	var memory ownership.Memory
	if known := n.memory.Load(); known != nil {
		memory = *known
	}
	return ownership.Config{
		Group: n.cfg.Group, Name: n.cfg.Name, Inc: l.inc, Version: n.cfg.Build,
		HashID: ring.HashID, Partitions: ring.Partitions,
		GRPCAddr: n.cfg.PeerAddr, GossipAddr: l.gossip.Addr(),
		Timing:  n.cfg.Timing,
		Seed:    binary.LittleEndian.Uint64(seed[:]),
		Running: l.running,
		Place:   n.cfg.Ring.Place,

		PublicKey: string(l.key.Public().(ed25519.PublicKey)),
		Identity:  n.cfg.Identity, Topics: n.cfg.Topics, LogVersion: n.cfg.LogVersion, Gen: n.cfg.Generation,
		Memory: memory, HadGroup: hadGroup, HadGen: hadGen,
	}
}

// ownIncarnation is an incarnation of this node, and the key by which it proves itself to peers. The zero value is that of a node
// that has not had one yet.
type ownIncarnation struct {
	inc     ownership.Incarnation
	key     ed25519.PrivateKey
	earlier []ownership.Incarnation // the newest of this process, the last one last
}

// earlierMax is how many earlier incarnations are known: tables name one of them at the most, as a rule the last.
const earlierMax = 16

// next follows o in the same process.
func (o *ownIncarnation) next(inc ownership.Incarnation, key ed25519.PrivateKey) *ownIncarnation {
	earlier := o.earlier[max(0, len(o.earlier)-earlierMax+1):]
	if o.inc.IsZero() {
		return &ownIncarnation{inc: inc, key: key}
	}
	return &ownIncarnation{inc: inc, key: key, earlier: append(slices.Clone(earlier), o.inc)}
}

func newIncarnation() (inc ownership.Incarnation) {
	_, _ = rand.Read(inc[:]) // never fails
	return inc
}

// host performs the effects of the driver of an incarnation: at the control log, the pipeline, and the other users of a gate or a table.
type host struct {
	driver.ControlLog // nil with Mode Gossip, whose machine asks nothing of it
	*pipeline.Pipeline

	of *incarnation
}

// Note implements driver.Host.
func (h host) Note(note ownership.Note) { h.of.node.noted(note) }

// SetGates implements driver.Host.
func (h host) SetGates(changes []ownership.GateChange) {
	n := h.of.node
	n.rollout.closing(changes)
	n.schedules.opens(changes) // first: events that are skipped leave when a gate opens, firings among them
	h.Pipeline.SetGates(changes)
	n.rollout.gates(clock.Now(), changes)
	n.schedules.closes(changes)
}

// Force implements driver.Host.
func (h host) Force(f ownership.ForceDrain) {
	h.of.node.metrics.forced.Add(float64(f.Partitions.Len()))
	h.of.node.log.Warn("drain forced", "partitions", f.Partitions.Len(), "reason", f.Reason)
	h.Pipeline.Force(f)
}

// SetTable implements driver.Host. Gates are set already, so events routed by the new table find
// them.
func (h host) SetTable(t *ownership.Table) {
	l, n := h.of, h.of.node
	peers := make([]forward.PeerAddress, 0, len(t.Members))
	known := make([]membership.Known, 0, len(t.Members))
	for _, m := range t.Members {
		if m.Inc == l.inc {
			continue
		}
		peers = append(peers, forward.PeerAddress{Peer: forward.Peer(m.Inc), Address: m.GRPCAddr})
		known = append(known, membership.Known{Inc: m.Inc, GossipAddr: m.GossipAddr})
	}
	n.reach.list(peers)
	n.pool.SetPeers(peers)
	n.notePeers(len(peers))
	l.gossip.SetKnown(slices.Concat(known, l.others.lost()))
	h.Pipeline.SetTable(t)
	if n.audit != nil {
		signal.Set(n.audit.changed)
	}
	n.noteTopics()
	n.noteBegan(t.Gen)
	n.shareAllowance()
	n.wakeConsumer()
}

// isMember reports whether the newest table names this incarnation.
func (l *incarnation) isMember() bool {
	return l.node.Table().IsMember(l.inc)
}
