package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/claim"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/report"
)

// finding is one result of the doctor.
type finding struct {
	Check  string `json:"check"`
	Result result `json:"result"`
	Says   string `json:"says"`
	Advice string `json:"advice,omitempty"` // remedy, unless Result is ok
}

// result is the severity of a finding.
type result string

const (
	resultOK   result = "ok"
	resultWarn result = "warn" // a router runs, but the operator should know
	resultFail result = "fail" // a router does not run, or breaks its promises
)

// errUnwell says that a router would not run here, or not well.
var errUnwell = errors.New("some checks failed: see above")

// doctor collects findings.
type doctor struct {
	cfg      config.Config
	findings []finding
	claims   []claim.Place // topics that are there

	brokerVersion string // as the admin API says
}

func (d *doctor) ok(check, says string, args ...any) {
	d.findings = append(d.findings, finding{Check: check, Result: resultOK, Says: fmt.Sprintf(says, args...)})
}

func (d *doctor) warn(check, advice, says string, args ...any) {
	d.findings = append(d.findings, finding{check, resultWarn, fmt.Sprintf(says, args...), advice})
}

func (d *doctor) fail(check, advice, says string, args ...any) {
	d.findings = append(d.findings, finding{check, resultFail, fmt.Sprintf(says, args...), advice})
}

func doctorCommand() *cobra.Command {
	var file string
	var o outputForm
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the environment of a router: settings, clock, ports, DNS, broker, topics, control topic",
		Long: `Check the requirements of a router: settings, clock, ports, DNS of the gossip's seeds, broker,
topics and subscription, the broker's limits, and the policies of the control topic.
It changes nothing, and may run beside a running router. With pulsar.admin_url it also
queries the broker's admin API; only then are the last two checked.

The exit code is 1 if a router would not run, or would break its promises, and 2 if the
settings are wrong.`,
		Args: noArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := load(cmd, file)
		if err != nil {
			return err
		}
		d := &doctor{cfg: loaded.Config}
		d.examine(cmd.Context())
		if err := o.show(cmd.OutOrStdout(), d.findings, d.page); err != nil {
			return err
		}
		for _, f := range d.findings {
			if f.Result == resultFail {
				return errUnwell
			}
		}
		return nil
	}
	cmd.Flags().StringVar(&file, "config", "", "file with settings, in YAML")
	config.AddFlags(cmd.Flags())
	o.addTo(cmd)
	return cmd
}

func (d *doctor) page(p *page) {
	for _, f := range d.findings {
		say, format, args := p.line, "%-4s  %-18s %s", []any{f.Result, f.Check, f.Says}
		if f.Result == resultFail {
			say = p.alarm
		}
		if f.Advice != "" {
			format += "\n" + strings.Repeat(" ", 25) + "→ %s"
			args = append(args, f.Advice)
		}
		say(format, args...)
	}
}

func (d *doctor) examine(ctx context.Context) {
	d.ok("settings", "group %s, member %s", d.cfg.Node.Group, d.cfg.Node.Name)
	for _, v := range config.MisspelledVariables(os.Environ()) {
		d.warn("settings", "set "+v.Want, "%s is ignored: settings have two underscores", v.Variable)
	}
	if modeOf(d.cfg) == node.Gossip {
		d.warn("mode", "set ownership.mode to strict, unless this is meant", "%s", node.NotExclusive)
	}
	d.largeEvents()
	begun := clock.Careful()
	d.listeners()
	d.certificates()
	auth := d.files()
	d.ports(ctx)
	d.seeds(ctx)
	d.broker(ctx, auth)
	d.clock(begun, laterReading(ctx, begun), clock.Slewable())
}

// largeEvents reports bounds of the reader that are less than the largest event: such an event arrives compressed, and its retry in chunks.
func (d *doctor) largeEvents() {
	largest, bound := d.cfg.Peer.FrameMax, min(d.cfg.Pulsar.ChunkedBytesMax, d.cfg.Pulsar.PayloadBytesMax)
	if bound < largest {
		d.warn("settings", "raise pulsar.chunked_bytes_max and pulsar.payload_bytes_max to peer.frame_max",
			"events of up to %d bytes are handled (peer.frame_max), and a retry of more than %d becomes a dead letter (pulsar.chunked_bytes_max, pulsar.payload_bytes_max)", largest, bound)
	}
}

// clock reports the clock of the leases, and whether NTP slews the system's.
func (d *doctor) clock(from, to clock.Reading, slewable bool) {
	if clock.Covers != "" {
		d.warn("clock", "run routers on Linux", "%s", clock.Covers)
	}
	ratio, measured := clock.Steering(from, to)
	slewed := math.Abs(ratio) > node.SteeringMax
	how := fmt.Sprintf("NTP slews the system clock by %+.2f %%", 100*ratio)
	switch {
	case slewable:
		d.warn("clock", "run routers on Linux, or keep NTP's corrections small (chrony: maxslewrate 5000)", "%s", slewableClock)
	case !measured:
		d.ok("clock", "leases run on CLOCK_MONOTONIC_RAW and the time asleep, which NTP cannot slew")
	case slewed:
		d.warn("clock", "check whether it corrects a large offset, which is temporary and harmless; if it lasts for days, the hardware counter is wrong: move the router to another machine",
			"%s; leases run on CLOCK_MONOTONIC_RAW and the time asleep, and do not follow it", how)
	default:
		d.ok("clock", "leases run on CLOCK_MONOTONIC_RAW and the time asleep, which NTP cannot slew; now %s", how)
	}
}

// laterReading reads the clocks long enough after from to tell their rates.
func laterReading(ctx context.Context, from clock.Reading) clock.Reading {
	const enough = time.Second // an interruption of 0.1 ms between two readings is 0.01 % of it
	to := clock.Careful()
	select {
	case <-ctx.Done():
		return to
	case <-time.After(enough - (to.Boot - from.Boot)):
		return clock.Careful()
	}
}

// listeners reports the protection of each listener.
func (d *doctor) listeners() {
	for _, l := range d.cfg.Listeners() {
		check := l.Name + " protection"
		if l.Exposed {
			d.warn(check, "see docs/security.md, unless a network policy keeps strangers away", "%s: %s", l.Address, l.ProtectedBy)
			continue
		}
		d.ok(check, "%s: %s", l.Address, l.ProtectedBy)
	}
}

// certificates reports whether the own certificates of listeners can be used, and until when.
func (d *doctor) certificates() {
	metrics, log := mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)
	c := &d.cfg
	for _, l := range []struct {
		name  string
		files mtls.Files
	}{
		{"app", c.App.TLS.Files()},
		{"peer", c.Peer.TLS.Files()},
		{"admin", mtls.Files{CertFile: c.Admin.TLS.CertFile, KeyFile: c.Admin.TLS.KeyFile}},
		{"lane", mtls.Files{CertFile: c.Lane.TLS.CertFile, KeyFile: c.Lane.TLS.KeyFile}},
	} {
		if l.files.CertFile == "" {
			continue
		}
		check, advice := l.name+" certificate", "renew the files of "+l.name+".tls; a running router takes them over by itself"
		store, err := mtls.Open(l.name, l.files, metrics, log)
		if err != nil {
			d.fail(check, "look at the files that "+l.name+".tls names: they have to be there, and to match", "%v", err)
			continue
		}
		if l.name == "peer" { // its two sides are alike, so the other members' view is known
			err = store.Refused(c.Peer.TLS.Name)
		}
		switch end := store.NotAfter(); {
		case !end.After(time.Now()):
			d.fail(check, advice, "%s ended on %s: new connections fail", l.files.CertFile, end.UTC().Format(time.DateTime))
		case err != nil:
			d.fail(check, advice, "the other members refuse %s: %v", l.files.CertFile, err)
		default:
			d.ok(check, "it ends on %s UTC", end.UTC().Format(time.DateTime))
		}
	}
}

// files reports files with tokens and keys, and those of pulsar.tls, that cannot be used: a router does not start with them. It returns the credentials for
// Pulsar, nil if their files cannot be used.
func (d *doctor) files() *pulsarAuth {
	metrics, log := mtls.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)
	faults := keyFaults(d.cfg)
	auth, err := newPulsarAuth(d.cfg.Pulsar, metrics, log)
	faults = append(faults, err)
	tokens := [][2]string{{"app.token_file", d.cfg.App.TokenFile}, {"admin.token_file", d.cfg.Admin.TokenFile}}
	if !d.cfg.Lane.Off() {
		tokens = append(tokens, [2]string{"lane.token_file", d.cfg.Lane.TokenFile})
	}
	for _, token := range tokens {
		_, err := tokenIn("", token[0], token[1], metrics, log)
		faults = append(faults, err)
	}
	for _, err := range faults {
		if err != nil {
			setting, fault, _ := strings.Cut(err.Error(), ": ")
			d.fail(setting, "look at the file that "+setting+" names: the router has to be able to read it, and it has to be valid", "%s", fault)
		}
	}
	return auth
}

// ports looks whether the ports are free, or this member's own.
func (d *doctor) ports(ctx context.Context) {
	ours := d.runsHere(ctx)
	for _, p := range []struct{ key, address string }{
		{"app.listen", d.cfg.App.Listen},
		{"peer.listen", d.cfg.Peer.Listen},
		{"gossip.listen", d.cfg.Gossip.Listen},
		{"admin.listen", d.cfg.Admin.Listen},
		{"debug.listen", d.cfg.Debug.Listen},
		{"lane.listen", d.cfg.Lane.Listen},
	} {
		if p.key == "debug.listen" && d.cfg.Debug.Off() || p.key == "lane.listen" && d.cfg.Lane.Off() {
			continue
		}
		err := free(ctx, p.address)
		if err == nil && p.key == "gossip.listen" {
			err = freeUDP(ctx, p.address)
		}
		switch {
		case err == nil:
			d.ok(p.key, "%s is free", p.address)
		case errors.Is(err, syscall.EADDRNOTAVAIL): // also while this member runs: with an earlier address
			d.fail(p.key, "set "+p.key+" to an address that this machine has; 0.0.0.0 stands for all of them", "%v", err)
		case ours:
			d.ok(p.key, "%s is in use, by this member", p.address)
		default:
			d.fail(p.key, "stop the process that listens there, or set "+p.key+" to another address", "%v", err)
		}
	}
}

// runsHere reports whether the admin endpoint of the settings is that of this member.
func (d *doctor) runsHere(ctx context.Context) bool {
	var s report.Status
	a := asker{settings: &d.cfg}
	return a.get(ctx, "/v1/status", &s) == nil && s.Member == d.cfg.Node.Name && s.Group == d.cfg.Node.Group
}

// free reports whether an address can be listened on. A socket in the file system is not touched.
func free(ctx context.Context, address string) error {
	if path, ok := listen.UnixPath(address); ok {
		dialer := net.Dialer{Timeout: time.Second}
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err != nil {
			return nil //nolint:nilerr // no member answers: the port is free
		}
		_ = conn.Close()
		return fmt.Errorf("another process listens on %s", path)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

func freeUDP(ctx context.Context, address string) error {
	var config net.ListenConfig
	l, err := config.ListenPacket(ctx, "udp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// lookupTimeout is how long a name server may take.
const lookupTimeout = 5 * time.Second

func (d *doctor) seeds(ctx context.Context) {
	if len(d.cfg.Gossip.Seeds) == 0 {
		d.warn("gossip.seeds", "set gossip.seeds, for example to dns+SERVICE:16652 of a headless Service",
			"none: this member learns of the others from the control log alone")
		return
	}
	for _, seed := range d.cfg.Gossip.Seeds {
		host, _, err := net.SplitHostPort(strings.TrimPrefix(seed, "dns+"))
		if err != nil {
			d.fail("gossip.seeds", "write HOST:PORT or dns+HOST:PORT", "%s: %v", seed, err)
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		found, err := net.DefaultResolver.LookupHost(ctx, host)
		cancel()
		if err != nil {
			d.fail("gossip.seeds", "check the name; a headless Service needs publishNotReadyAddresses, or it is empty until a pod is ready", "%s: %v", seed, err)
			continue
		}
		d.ok("gossip.seeds", "%s stands for %s", seed, strings.Join(found, ", "))
	}
}

// dialTimeout is how long a broker may take to accept a connection.
const dialTimeout = 5 * time.Second

// broker examines the broker. It only connects if auth is nil.
func (d *doctor) broker(ctx context.Context, auth *pulsarAuth) {
	reached := false
	for _, host := range brokerHosts(d.cfg.Pulsar.URL) {
		if err := dialFault(ctx, host, withPort(host, d.cfg.Pulsar.URL)); err != nil {
			d.fail("pulsar.url", "start the broker, or set pulsar.url to where it is", "%v", err)
			continue
		}
		reached = true
		d.ok("pulsar.url", "%s accepts connections", host)
	}
	if !reached || auth == nil {
		return
	}
	for _, topic := range append([]string{d.cfg.ControlTopic()}, d.cfg.Pulsar.Topics...) {
		if transient, err := auth.preflight(ctx, topic); err != nil {
			if place := auth.placeOf(ctx, topic); place != nil { // the broker says only that the topic is not found
				what, remedy, _ := strings.Cut(place.Error(), ": ")
				d.fail("pulsar access", remedy, "%s: %s", topic, what)
				return
			}
			d.fail("pulsar access", accessAdvice(transient, err), "%s: %v", topic, err)
			return
		}
	}
	d.ok("pulsar access", "the broker accepts the router's credentials")
	if d.cfg.Pulsar.AdminURL == "" {
		d.warn("pulsar.admin_url", "set pulsar.admin_url, as in http://BROKER:8080, so that limits are known and policies can be checked; `router group show` reads the claims without it",
			"not set: topics, limits, claims and the policies of the control topic were not checked")
		return
	}
	d.policies(ctx, auth.admin())
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	d.claim(ctx, groupLogs{open: func(topic string) (controllog.Transport, error) {
		return claimsAt(auth, topic, slog.New(slog.DiscardHandler))
	}})
}

// claimTimeout is how long the doctor reads claims.
const claimTimeout = 20 * time.Second

// claim reports the holder of the subscription. It reads only existing topics, because a reader
// creates a missing one.
func (d *doctor) claim(ctx context.Context, logs groupLogs) {
	const check = "claim"
	for _, p := range d.claims {
		claims, err := logs.showPlaces(ctx, []claim.Place{p}, d.cfg.Identity())
		if err != nil {
			d.warn(check, "look whether the router's role may produce and consume there", "%s: %v", p.Topic, err)
			continue
		}
		for _, c := range claims {
			switch c.Held {
			case heldByAnother:
				d.fail(check, "give this router the settings of that group, or a group and a subscription of its own. If the claim is from this group, before its settings were changed or corrected: stop all its routers, and run `router group release` with the settings there (docs/install.md#changing-what-a-group-agrees-on)",
					"%s belongs to a group with other settings: %s", c.Resource, d.cfg.Identity().Against(c.holder))
			case heldByUs:
				d.ok(check, "%s belongs to this group", c.Resource)
			default:
				d.ok(check, "%s is unclaimed; the first router claims it", c.Resource)
			}
			if c.Began && c.holder == nil && uint32(d.cfg.Ownership.Generation) <= c.Generation {
				d.warn(check, "if the control topic is a new one, raise ownership.generation above that",
					"fencing tokens of generation %d were given out on %s by an earlier group", c.Generation, c.Resource)
			}
		}
	}
}

// accessAdvice is the remedy for a broker that does not answer correctly.
func accessAdvice(transient bool, err error) string {
	switch {
	case !transient:
		return "see docs/security.md"
	case strings.Contains(err.Error(), "TopicNotFound"):
		return "correct the name, or create the topic, and its tenant and namespace if they are not there; or let the broker create topics by itself (allowAutoTopicCreation)"
	}
	return "wait if the broker has just begun; else look into its log, and whether pulsar.url names its binary port (6650, or 6651 with TLS), and a broker that serves this namespace"
}

// withPort adds the port that Pulsar has when none is said.
func withPort(host, url string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	host = strings.Trim(host, "[]") // of an address of IPv6
	if strings.HasPrefix(url, "pulsar+ssl://") {
		return net.JoinHostPort(host, "6651")
	}
	return net.JoinHostPort(host, "6650")
}
