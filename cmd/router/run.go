package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/adminhttp"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/idlecpu"
	"github.com/ringfence/router/internal/broker/pulsarlog"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/devtools/prove"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/telemetry"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// runVerb is the name of the command that runs a member.
const runVerb = "run"

func runCommand() *cobra.Command {
	var file string
	grace := appGraceDefault
	cmd := &cobra.Command{
		Use:   runVerb + " [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Run one member of a group, beside one application",
		Long: `Run one member of a group, beside one application.

With a COMMAND the application is started beside the router, once the router listens,
and finds it by RINGFENCE_APP_ENDPOINT (and RINGFENCE_APP_TOKEN_FILE with
app.token_file); settings in variables RINGFENCE__* are not passed on. Both end as one.
At SIGTERM or SIGINT the router drains while the application still answers; then the
application gets SIGTERM, and SIGKILL after --app-grace. When the application ends by
itself the router drains and ends, with exit code 1 unless the application's was 0.
SIGHUP, SIGUSR1, SIGUSR2 and SIGWINCH go to the application.`,
		Args: besideArgs,
		RunE: func(cmd *cobra.Command, command []string) error {
			loaded, err := load(cmd, file)
			if err != nil {
				return err
			}
			broker := throughPulsar(loaded.Config)
			if len(command) == 0 {
				return runAlone(cmd.Context(), loaded.Config, broker)
			}
			return runBeside(cmd.Context(), loaded.Config, broker, &application{command: command, grace: grace, stdout: os.Stdout, stderr: os.Stderr})
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "file with settings, in YAML")
	cmd.Flags().DurationVar(&grace, "app-grace", grace, "how long COMMAND may take to end after SIGTERM")
	config.AddFlags(cmd.Flags())
	return cmd
}

// besideArgs takes a command only after --, so that a misplaced word is not started as one.
func besideArgs(cmd *cobra.Command, arguments []string) error {
	if before := cmd.ArgsLenAtDash(); before > 0 || before < 0 && len(arguments) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q; the application's command comes after --, a file with settings after --config", arguments[0])}
	}
	return nil
}

func load(cmd *cobra.Command, file string) (*config.Loaded, error) {
	loaded, err := config.Load(config.Sources{File: file, Environ: os.Environ(), Flags: cmd.Flags()})
	if err != nil {
		if file == "" && cmd.Flags().Lookup("config") != nil && strings.Contains(err.Error(), "is not set") {
			err = fmt.Errorf("%w\nno file with settings was named: use --config FILE", err)
		}
		return nil, usageError{err}
	}
	return loaded, nil
}

// broker is the source of events, the control log and the claims.
type broker struct {
	// open checks, once and before the broker is used otherwise, that it accepts the router; nil:
	// no check.
	open       func(context.Context, *mtls.Metrics, *slog.Logger) error
	source     func(source.Config, *source.Metrics, *slog.Logger) *source.Source
	controlLog func(*slog.Logger) (controllog.Transport, error)
	claims     func(topic string, log *slog.Logger) (controllog.Transport, error) // nil: no claims
	acts       func(topic string, log *slog.Logger) (controllog.Transport, error) // nil: no acts
	parking    func(source.Config, *source.Metrics, *slog.Logger) *source.Parking // nil: nothing comes back from the parking topic

	// publisher and clean are for proofs: see prove.Environment.
	publisher func(topic string) (prove.Publisher, error)
	clean     func(context.Context, prove.Topics) (remain []string)
	memory    string // address of the broker in memory; "": there is none
	letters   bool   // its dead letters can be read

	// listening is called once the application can connect, which then waits for the node; nil: no
	// call.
	listening func(app net.Addr, log *slog.Logger) error

	watch pipeline.Watch // nil: none

	fault  func(context.Context) error // why the broker does not serve the router; nil: no one looks
	absent func() []string             // topics that were not there at open, as far as known; nil: no one looked
}

// throughPulsar reads events, the control log and the claims from Pulsar, each with a client of
// its own: the backpressure of events must not delay Beats.
func throughPulsar(cfg config.Config) broker {
	var auth *pulsarAuth
	var absent []string
	begun := new(source.Begun)
	return broker{
		letters: true,
		fault:   func(ctx context.Context) error { return auth.brokerFault(ctx, cfg) },
		absent:  func() []string { return absent },
		open: func(ctx context.Context, metrics *mtls.Metrics, log *slog.Logger) (err error) {
			if auth, err = newPulsarAuth(cfg.Pulsar, metrics, log); err != nil {
				return err
			}
			absent = auth.absentTopics(ctx, cfg.Topics()) // before anything uses them
			if transient, err := auth.preflight(ctx, cfg.Pulsar.Topics[0]); !transient {
				return err
			}
			return nil // a broker that does not answer may come
		},
		source: func(from source.Config, metrics *source.Metrics, log *slog.Logger) *source.Source {
			access := source.Access{Client: auth.options(), Entries: auth.access(), Admin: auth.adminClient(), Begun: begun}
			access.Client.Logger = pulsarlog.New(log)
			return source.NewPulsar(from, access, metrics, log)
		},
		parking: func(from source.Config, metrics *source.Metrics, log *slog.Logger) *source.Parking {
			access := func() source.Access {
				a := source.Access{Client: auth.options(), Entries: auth.access()}
				a.Client.Logger = pulsarlog.New(log)
				return a
			}
			return source.NewParking(from, access, metrics, log)
		},
		controlLog: func(log *slog.Logger) (controllog.Transport, error) {
			c := controllog.DefaultPulsarConfig()
			c.Topic = cfg.ControlTopic()
			c.SendTimeout = cfg.Ownership.Lease
			return controllog.NewPulsar(c, auth.options(), auth.access(), log)
		},
		claims: func(topic string, log *slog.Logger) (controllog.Transport, error) {
			return claimsAt(auth, topic, log)
		},
		acts: func(topic string, log *slog.Logger) (controllog.Transport, error) { return actsAt(auth, topic, log) },
		publisher: func(topic string) (prove.Publisher, error) {
			return newPulsarPublisher(auth, topic)
		},
		clean: func(ctx context.Context, topics prove.Topics) []string {
			return cleanPulsar(ctx, auth, topics)
		},
	}
}

// runAlone is run in a process that does nothing else.
func runAlone(ctx context.Context, cfg config.Config, b broker) error {
	defer idlecpu.Start()()
	return run(ctx, cfg, b)
}

// slewableClock names the risk where every clock can be slewed by NTP.
const slewableClock = "leases run on a clock that NTP may slew, as this system has no other: keep its corrections below 1 % of the rate (chrony: maxslewrate 5000)"

// warnOfVariables warns of variables that look like settings, but are none.
func warnOfVariables(log *slog.Logger) {
	for _, v := range config.MisspelledVariables(os.Environ()) {
		log.Warn("an environment variable is ignored: the name of a setting has two underscores", "variable", v.Variable, "want", v.Want)
	}
}

// servicesShownMax bounds the logged names of variables that look like settings but are not.
const servicesShownMax = 10

// stderrPatience is how long a process that ends waits for a reader of its standard error.
const stderrPatience = time.Second

// outliveLogReader keeps SIGPIPE from killing the process, without a drain, when the reader of its log has gone:
// writing fails instead. The signal is caught, not ignored, because child processes would inherit the latter.
func outliveLogReader() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// keyFaults returns the faults of the files with keys, each with its setting.
func keyFaults(cfg config.Config) (all []error) {
	for _, file := range []struct {
		setting string
		err     error
	}{
		{"pulsar.copy_keys_file", cfg.Pulsar.CheckCopyKeys()},
		{"gossip.encryption_keys_file", cfg.Gossip.CheckKeys()},
	} {
		if file.err != nil {
			all = append(all, fmt.Errorf("%s: %w", file.setting, file.err))
		}
	}
	return all
}

// run is the life of one member, from its listeners to the end of its drain.
func run(ctx context.Context, cfg config.Config, b broker) error {
	outliveLogReader()
	output := telemetry.NewOutput(os.Stderr)
	defer output.Close(stderrPatience)
	log, level, err := telemetry.NewLogger(output, cfg.Log)
	if err != nil {
		return usageError{err}
	}
	if err := errors.Join(keyFaults(cfg)...); err != nil {
		return usageError{err}
	}
	log = log.With("node", cfg.Node.Name)
	if services := config.Services(os.Environ()); len(services) > 0 {
		log.Info("environment variables are ignored: Kubernetes sets them for a Service", "variables", services[:min(len(services), servicesShownMax)], "count", len(services))
	}
	warnOfVariables(log)
	if clock.Covers != "" {
		log.Warn("the lease clock of this system has limits", "error", clock.Covers)
	}
	if clock.Slewable() {
		log.Warn("the lease clock of this system has limits", "error", slewableClock)
	}
	registry := telemetry.NewRegistry(version())
	output.Register(registry)
	l, err := openListeners(ctx, cfg)
	if err != nil {
		return err
	}
	defer l.close()
	if l.listenerAuth, err = newListenerAuth(cfg, registry, log); err != nil {
		return err
	}
	l.limit(cfg)
	if b.open != nil {
		if err := b.open(ctx, l.tls, log); err != nil {
			return usageError{err}
		}
	}
	tracing, stopTraces, err := sightOf(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer stopTraces()
	tracing.Watch = b.watch
	watch := &brokerWatch{find: b.fault}
	n, err := newNode(cfg, b, l, watch.fault, registry, log, tracing)
	if err != nil {
		return err
	}
	notice := n.Notice()
	if b.absent != nil && len(b.absent()) > 0 {
		notice = joinNotices(notice, absentNotice(b.absent()))
		log.Warn("topics did not exist at the start", "topics", b.absent())
	}
	if b.fault != nil {
		watching, stop := context.WithCancel(ctx)
		var looks sync.WaitGroup
		defer looks.Wait()
		defer stop()
		looks.Go(func() { watch.run(watching, func() bool { return servedBy(n) }, log) })
	}
	log.Info("starting", "group", cfg.Node.Group, "version", version(),
		"app", l.app.Addr().String(), "peer", l.peerAddr, "admin", l.admin.Addr().String())
	if l.lane != nil {
		log.Info("calls are accepted over HTTP", "address", l.lane.Addr().String())
	}
	if b.listening != nil {
		if err := b.listening(l.app.Addr(), log); err != nil {
			return err
		}
	}
	prover, err := newProver(cfg, b, l.adminToken, registry, log)
	if err != nil {
		return err
	}
	defer prover.Close()
	defer context.AfterFunc(ctx, prover.Close)() // a proof does not outlast the order to end
	admin := adminOf(n, prover, notice, registry, cfg.Log.Keys == telemetry.KeysRevealed)
	admin.Exemplars = tracing.Tracer != nil
	maps.Copy(admin.Pages, adminhttp.LevelPages(level, log))
	letters, err := letterPages(cfg, b, registry, log)
	if err != nil {
		return err
	}
	maps.Copy(admin.Pages, letters)
	return serve(ctx, cfg, n, l, admin, loglimit.NewMetrics(registry), log)
}

// callRequestsPerSecond bounds the calls by HTTP, with those that are refused: far more than one router can make.
const callRequestsPerSecond = 20_000

// serve runs the node, and its admin and debug pages and its listener for calls until it has ended.
func serve(ctx context.Context, cfg config.Config, n *node.Node, l *listeners, shown adminhttp.Options, logMetrics *loglimit.Metrics, log *slog.Logger) error {
	pages, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, pages := errgroup.WithContext(pages)
	admin := listen.HTTP{
		Name: "admin", Listener: l.admin, TLS: l.adminTLS, ConnectionsMax: cfg.Admin.ConnectionsMax,
		Probes: probePaths, Bodies: []string{"PUT /log/level"}, Metrics: l.metrics, LogMetrics: logMetrics, Log: log,
	}
	group.Go(func() error { return admin.Serve(pages, l.guard.Protect(adminhttp.NewHandler(shown))) })
	if l.debug != nil {
		debug := listen.HTTP{
			Name: "debug", Listener: l.debug, ConnectionsMax: cfg.Admin.ConnectionsMax, Metrics: l.metrics, LogMetrics: logMetrics, Log: log,
		}
		group.Go(func() error { return debug.Serve(pages, l.debugGuard.Protect(adminhttp.NewDebugHandler())) })
	}
	if l.lane != nil {
		calls := listen.HTTP{
			Name: "lane", Listener: l.lane, TLS: l.laneTLS, ConnectionsMax: cfg.Lane.ConnectionsMax, Bodies: []string{"POST " + lane.BodyPath}, Header: lane.Refused(),
			Bounds: listen.Bounds{
				BodyBytesMax: event.CallPayloadMax, AnswerMax: lane.AnswerMax, RequestsPerSecond: callRequestsPerSecond, KeptMax: cfg.Lane.ConnectionsMax,
			},
			Metrics: l.metrics, LogMetrics: logMetrics, Log: log,
		}
		group.Go(func() error { return calls.Serve(pages, l.laneGuard.Protect(&lane.Handler{Lane: n.Lane()})) })
	}
	err := n.Run(ctx)
	stop()
	return errors.Join(err, group.Wait())
}

func newNode(cfg config.Config, b broker, l *listeners, brokerFault func() error, registry *prometheus.Registry, log *slog.Logger, tracing pipeline.Tracing) (*node.Node, error) {
	missing, err := key.ParseMissing(cfg.Key.Missing)
	if err != nil {
		return nil, usageError{err}
	}
	extractor, err := key.Parse(cfg.Key.From, missing)
	if err != nil {
		return nil, usageError{err}
	}
	sourceMetrics := source.NewMetrics(registry)
	nodeConfig := nodeConfigOf(cfg)
	nodeConfig.PeerAddr = l.peerAddr
	noteMemoryBound(nodeConfig, cfg.Pulsar.Config, registry, log)
	parts := node.Parts{
		Key:         extractor,
		AppListener: l.app, PeerListener: l.peer,
		AppCreds: l.appCreds, ServerCreds: l.peerServer, ClientCreds: l.peerClient,
		AppOptions: l.appCallers.Options(), PeerOptions: l.peerCallers.Options(),
		Source: func(topics []string) *source.Source {
			from := cfg.Pulsar.Resolved() // the names of the topics for copies come from all topics
			from.Topics = topics
			return b.source(from, sourceMetrics, log)
		},
		ControlLog:    func() (controllog.Transport, error) { return b.controlLog(log) },
		BrokerFault:   brokerFault,
		GossipLimiter: listen.NewLimiter("gossip", cfg.Gossip.ConnectionsMax, l.metrics),
		Registry:      registry, Log: log, Tracing: tracing,
	}
	claims, err := newClaims(cfg, b, registry, log)
	if err != nil {
		return nil, usageError{err}
	}
	if b.claims != nil {
		parts.Claims = claims
	}
	parts.Acts = newActs(cfg, b, registry, log)
	if b.parking != nil {
		parts.Parking = b.parking(cfg.Pulsar.Resolved(), sourceMetrics, log)
	}
	return node.New(nodeConfig, parts)
}

// ownershipJournal names, in the environment, the folder to which the router writes the steps of its ownership machine.
const ownershipJournal = "RINGFENCE_OWNERSHIP_JOURNAL"

// nodeConfigOf returns the configuration of a node, except its address.
func nodeConfigOf(cfg config.Config) node.Config {
	return node.Config{
		Group: cfg.Node.Group, Name: cfg.Node.Name, Build: version(),
		App: cfg.App.Config, Forward: cfg.Peer.Config, Lane: cfg.Lane.Config, Mailbox: cfg.Mailbox, Retry: cfg.Retry, History: cfg.History, Ring: cfg.Ring, Audit: cfg.Audit,
		Mode: modeOf(cfg), Timing: cfg.Ownership.Timing, ControlLog: cfg.ControlLog.Config, Membership: cfg.Gossip.Config,
		DrainTimeout: cfg.Drain.Timeout, CopiesSigned: cfg.Pulsar.CopiesSigned(),
		Identity: cfg.Identity(), Topics: cfg.Topics(), LogVersion: uint32(cfg.ControlLog.Version), Generation: uint32(cfg.Ownership.Generation),
		OwnershipJournal: os.Getenv(ownershipJournal),
		Listeners:        listenersOf(cfg),
	}
}

// listenersOf returns the protection of each listener, for reports.
func listenersOf(cfg config.Config) (all []report.Listener) {
	for _, l := range cfg.Listeners() {
		all = append(all, report.Listener(l))
	}
	return all
}

func modeOf(cfg config.Config) node.Mode {
	if cfg.Ownership.Mode == config.ModeGossip {
		return node.Gossip
	}
	return node.Strict
}

func adminOf(n *node.Node, prover report.Prover, notice string, registry *prometheus.Registry, keysRevealed bool) adminhttp.Options {
	probes, pages := n.Probes(), pagesOf(n, prover, keysRevealed)
	return adminhttp.Options{
		Startup: checksOf(probes.Startup), Ready: checksOf(probes.Ready), Live: checksOf(probes.Live),
		Notice:  notice,
		Metrics: registry,
		Drain:   n.Drain, Undrain: n.Undrain, DrainWaits: n.DrainWaits,
		Pages: pages,
	}
}

// listeners are the ports of one member. The node closes those that it serves.
type listeners struct {
	app, peer, admin, debug, lane net.Listener // debug and lane may be nil
	peerAddr                      string       // at which others reach peer

	*listenerAuth
}

func openListeners(ctx context.Context, cfg config.Config) (*listeners, error) {
	l := &listeners{}
	var err error
	open := func(setting, address string) net.Listener {
		if err != nil {
			return nil
		}
		var listener net.Listener
		if listener, err = listen.Listen(ctx, address, cfg.App.Socket); err != nil {
			err = fmt.Errorf("%s: %w%s", setting, err, addressHint(err))
		}
		return listener
	}
	l.app = open("app.listen", cfg.App.Listen)
	l.peer = open("peer.listen", cfg.Peer.Listen)
	l.admin = open("admin.listen", cfg.Admin.Listen)
	if !cfg.Debug.Off() {
		l.debug = open("debug.listen", cfg.Debug.Listen)
	}
	if !cfg.Lane.Off() {
		l.lane = open("lane.listen", cfg.Lane.Listen)
	}
	if err == nil {
		l.peerAddr, err = advertised(l.peer.Addr().(*net.TCPAddr), cfg.Node.AdvertiseIP)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// addressHint is the remedy for an address that cannot be bound.
func addressHint(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "; does another router run here? Two on one machine need addresses of their own"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "; this machine does not have that address: 0.0.0.0 stands for all that it has"
	}
	return ""
}

// advertised is the address at which other members reach a listener.
func advertised(addr *net.TCPAddr, ip string) (string, error) {
	port := strconv.Itoa(addr.Port)
	if ip != "" {
		return net.JoinHostPort(ip, port), nil
	}
	if !addr.IP.IsUnspecified() {
		return net.JoinHostPort(addr.IP.String(), port), nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return net.JoinHostPort(n.IP.String(), port), nil
		}
	}
	return "", usageError{errors.New("no address of this machine is reachable from outside: set node.advertise_ip")}
}

func (l *listeners) close() {
	for _, listener := range []net.Listener{l.app, l.peer, l.admin, l.debug, l.lane} {
		if listener != nil {
			_ = listener.Close() // it may be closed already, which is fine
		}
	}
}
