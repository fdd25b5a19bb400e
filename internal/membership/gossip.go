package membership

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// healthInterval is how often this node's own health is looked at.
const healthInterval = time.Second

// Gossip is this node's part in the gossip of its group. Make one with [New]; its
// methods are safe for concurrent use.
type Gossip struct {
	cfg     Config
	self    Member // GossipAddr is set by Run
	meta    []byte
	report  func(Evidence)
	log     *slog.Logger
	metrics *Metrics
	roster  *roster
	limiter Limiter

	evidence, ignored, refused *loglimit.Limit // of the lines about each
	refusals                   atomic.Uint64   // nodes that memberlist did not get to know

	ready chan struct{}          // closed when list may be used and GossipAddr is known
	list  *memberlist.Memberlist // written before ready is closed

	keys *Keys               // nil: they are not in a file
	ring *memberlist.Keyring // nil: gossip in the clear

	known   atomic.Pointer[[]Known]
	members atomic.Pointer[[]Member]

	settings *settings
}

// New returns one incarnation's gossip; a new incarnation needs a new one. It does no I/O. Of
// self, Inc and GRPCAddr are needed. ours are the settings on which the group must agree, to be
// compared with those of others; nil: none.
//
// One goroutine of Run calls report for each change; report must not block. It gets changes of
// other members only. Changes that cancel each other at once may be omitted. limiter may be
// nil: then connections are not bounded, and rejections are not counted.
func New(cfg Config, self Member, ours identity.Identity, report func(Evidence), limiter Limiter, log *slog.Logger, metrics *Metrics) (*Gossip, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	self.Name = cfg.Name
	meta, err := encodeMeta(self)
	if err != nil {
		return nil, err
	}
	if limiter == nil {
		limiter = noLimiter{}
	}
	log = log.With("component", "membership")
	g := &Gossip{
		cfg:     cfg,
		self:    self,
		meta:    meta,
		report:  report,
		log:     log,
		metrics: metrics,
		limiter: limiter,
		ready:   make(chan struct{}),

		evidence: loglimit.NewBurst(log, "gossip_evidence", evidenceEvery, evidenceBurst, metrics.lines),
		ignored:  loglimit.New(log, "gossip_ignored", refusedEvery, metrics.lines),
		refused:  loglimit.New(log, "gossip_refused", refusedEvery, metrics.lines),
	}
	g.roster = newRoster(gossipName(self), cfg.StrangersMax, g.refuse)
	if g.settings, err = newSettings(self, ours, metrics, g.log); err != nil {
		return nil, err
	}
	g.known.Store(&[]Known{})
	g.members.Store(&[]Member{})
	return g, nil
}

// Run takes part until ctx ends, then leaves: all other members know at once that it was on
// purpose. It returns an error if it cannot listen. It may be called once.
func (g *Gossip) Run(ctx context.Context) error {
	if err := g.listen(); err != nil {
		return err
	}
	g.work(ctx)
	return g.leave()
}

// work makes contacts and reports changes until ctx ends.
func (g *Gossip) work(ctx context.Context) {
	var contacts sync.WaitGroup
	contacts.Go(func() { g.seek(ctx) })
	contacts.Go(func() { g.rejoin(ctx) })
	g.watch(ctx)
	contacts.Wait()
}

// notListening returns the error of an attempt to listen, with a remedy if the port is in use: memberlist keeps only the text of the cause.
func (g *Gossip) notListening(err error) error {
	hint := ""
	if strings.Contains(err.Error(), "address already in use") {
		hint = "; does another router run here? Two on one machine need addresses of their own"
	}
	return fmt.Errorf("membership: gossip.listen = %s: %w%s", g.cfg.Listen, err, hint)
}

func (g *Gossip) listen() error {
	cfg, err := g.cfg.memberlist()
	if err != nil {
		return err
	}
	if g.cfg.EncryptionKeysFile != "" {
		if g.keys == nil {
			if g.keys, err = g.keyFile(); err != nil {
				return err
			}
		}
		keys := g.keys.Get()
		if cfg.Keyring, err = memberlist.NewKeyring(keys, keys[0]); err != nil {
			return fmt.Errorf("membership: keys: %w", err)
		}
	}
	g.ring = cfg.Keyring
	cfg.Name = gossipName(g.self)
	cfg.Delegate, cfg.Events, cfg.Ping = delegate{meta: g.meta, settings: g.settings.encoded, merge: g.settings.merge}, g.roster, g.roster
	cfg.Alive = g.roster
	cfg.Logger = newLogger(g.log, func(name string) { g.roster.setSuspect(name, true) }, g.metrics)
	transport, err := newTransport(cfg, g.limiter, g.refused)
	if err != nil {
		return g.notListening(err)
	}
	cfg.Transport = transport
	list, err := memberlist.Create(cfg)
	if err != nil {
		_ = transport.Shutdown() // it may have been done
		return g.notListening(err)
	}
	g.list = list
	g.self.GossipAddr = addrOf(list.LocalNode())
	close(g.ready)
	g.log.Info("gossip started", "member", gossipName(g.self), "address", g.self.GossipAddr)
	return nil
}

// Ready is closed when this node listens.
func (g *Gossip) Ready() <-chan struct{} { return g.ready }

// Addr returns the ip:port at which others reach this node's gossip, "" before Ready.
func (g *Gossip) Addr() string {
	if signal.IsClosed(g.ready) {
		return g.self.GossipAddr
	}
	return ""
}

// Members returns the other members that gossip believes alive or suspect, by name
// and incarnation. The slice must not be written to.
func (g *Gossip) Members() []Member { return *g.members.Load() }

// refuse counts and now and then logs a node that memberlist does not get to know.
func (g *Gossip) refuse(why refusal, name string) {
	g.refusals.Add(1)
	g.limiter.Refuse(string(why))
	if log, due := g.refused.Line(); due {
		log.Warn("gossip refused", "reason", string(why), "member", untrusted.Text(name))
	}
}

// SetNamed sets the incarnations that the control log names. They have a place in gossip however many strangers there are, and only
// under that name and at that address. The map must not be changed afterwards.
func (g *Gossip) SetNamed(named map[ownership.Incarnation]Named) { g.roster.setNamed(named) }

// SetKnown sets the members that the control log knows. Those that gossip does not know are
// contacted every RejoinInterval.
func (g *Gossip) SetKnown(known []Known) {
	known = slices.Clone(known)
	g.known.Store(&known)
}

// leave announces the departure and stops. A failed announcement is not an error: all other
// members detect the departure by themselves.
func (g *Gossip) leave() error {
	if err := g.list.Leave(g.cfg.LeaveTimeout); err != nil {
		g.log.Info("left the gossip group without telling all members", "error", err) // as when all members leave together
	}
	if err := g.list.Shutdown(); err != nil {
		return fmt.Errorf("membership: stop: %w", err)
	}
	return nil
}

// watch reports changes until ctx ends.
func (g *Gossip) watch(ctx context.Context) {
	w := watcher{gossip: g, reported: make(map[string]reported)}
	ticker := time.NewTicker(healthInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.metrics.health.Set(float64(g.list.GetHealthScore()))
			g.renewKeys()
		case <-g.roster.changed:
			w.look()
		}
	}
}

// renewKeys adopts the present content of the key file.
func (g *Gossip) renewKeys() {
	if g.keys == nil {
		return
	}
	if err := setKeys(g.ring, g.keys.Get()); err != nil {
		g.log.Warn("gossip keys cannot be used", "error", err)
	}
}

// watcher compares the roster with the last reports. One goroutine owns it.
type watcher struct {
	gossip   *Gossip
	reported map[string]reported // other nodes by gossip name
}

// reported is the last report about a node.
type reported struct {
	member  Member
	suspect bool
	ignored bool // it cannot be understood
}

// look reports the difference.
func (w *watcher) look() {
	nodes := w.gossip.roster.snapshot()
	w.gossip.metrics.members.Set(float64(len(nodes)))
	delete(nodes, gossipName(w.gossip.self))
	changed := false
	for name, n := range nodes {
		r, ok := w.reported[name]
		if !ok {
			r, changed = w.came(name, n), true
		}
		if !r.ignored && n.suspect != r.suspect {
			r.suspect = n.suspect
			w.say(suspicion(n.suspect), r.member)
		}
		w.reported[name] = r
	}
	for name, r := range w.reported {
		if _, ok := nodes[name]; ok {
			continue
		}
		delete(w.reported, name)
		changed = true
		if !r.ignored {
			w.say(Dead, r.member)
		}
	}
	if changed {
		w.publish()
	}
}

func suspicion(suspect bool) Kind {
	if suspect {
		return Suspect
	}
	return Alive
}

func (w *watcher) came(name string, n node) reported {
	m, err := decodeMember(name, n.addr, n.meta)
	if err != nil {
		w.gossip.metrics.bad.Inc()
		if log, due := w.gossip.ignored.Line(); due {
			log.Warn("gossip node ignored", "member", untrusted.Text(name), "error", err)
		}
		return reported{ignored: true}
	}
	w.say(Alive, m)
	return reported{member: m}
}

func (w *watcher) say(kind Kind, m Member) {
	w.gossip.metrics.evidence.WithLabelValues(kind.String()).Inc()
	if log, due := w.gossip.evidence.Line(); due {
		log.Info("evidence", "kind", kind.String(), "peer", m.Name, "incarnation", m.Inc, "address", m.GossipAddr)
	}
	w.gossip.report(Evidence{Kind: kind, Member: m})
}

func (w *watcher) publish() {
	var members []Member
	for _, r := range w.reported {
		if !r.ignored {
			members = append(members, r.member)
		}
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(gossipName(a), gossipName(b)) })
	w.gossip.members.Store(&members)
}

// missing returns the gossip addresses of known members that gossip does not know.
func (g *Gossip) missing() []string {
	incs := map[ownership.Incarnation]bool{g.self.Inc: true}
	addrs := map[string]bool{g.self.GossipAddr: true}
	for _, m := range g.Members() {
		incs[m.Inc], addrs[m.GossipAddr] = true, true
	}
	missing := make(map[string]bool)
	for _, k := range *g.known.Load() {
		if k.GossipAddr != "" && !incs[k.Inc] && !addrs[k.GossipAddr] {
			missing[k.GossipAddr] = true
		}
	}
	return slices.Sorted(maps.Keys(missing))
}
