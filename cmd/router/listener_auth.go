package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/netx/reload"
)

// listenerAuth holds the TLS credentials and the admin guard of each listener.
type listenerAuth struct {
	appCreds               credentials.TransportCredentials
	appCallers             *listen.Callers
	peerCallers            *listen.Callers
	peerServer, peerClient credentials.TransportCredentials
	guard                  listen.Guard // of the admin page
	debugGuard             listen.Guard
	adminToken             func() string
	adminTLS               *tls.Config  // nil: in the clear
	laneGuard              listen.Guard // of calls by HTTP
	laneTLS                *tls.Config  // nil: in the clear

	metrics *listen.Metrics
	tls     *mtls.Metrics
}

// newListenerAuth reads certificates and tokens, and returns an error for any that cannot be
// used.
func newListenerAuth(cfg config.Config, registry prometheus.Registerer, log *slog.Logger) (*listenerAuth, error) {
	e := &listenerAuth{
		appCreds: insecure.NewCredentials(), peerServer: insecure.NewCredentials(), peerClient: insecure.NewCredentials(),
		metrics: listen.NewMetrics(registry), tls: mtls.NewMetrics(registry),
	}
	if t := cfg.App.TLS; t.Enabled() {
		store, err := mtls.Open("app", t.Files(), e.tls, log)
		if err != nil {
			return nil, usageError{fmt.Errorf("app.tls: %w", err)}
		}
		e.appCreds = listen.ServerCredentials("app", store.Server(t.Name), e.metrics, log)
	}
	if t := cfg.Peer.TLS; t.Enabled() {
		store, err := mtls.OpenAlike("peer", t.Files(), t.Name, e.tls, log)
		if err != nil {
			return nil, usageError{fmt.Errorf("peer.tls: %w", err)}
		}
		e.peerServer = listen.ServerCredentials("peer", store.Server(t.Name), e.metrics, log)
		e.peerClient = credentials.NewTLS(store.Client(t.Name))
	}
	appToken, err := tokenIn("app", "app.token_file", cfg.App.TokenFile, e.tls, log)
	if err != nil {
		return nil, usageError{err}
	}
	e.appCallers = listen.NewCallers("app", e.appCreds, listen.AppStrangers(), appToken, e.metrics, log)
	e.peerCallers = listen.NewCallers("peer", e.peerServer, listen.PeerStrangers(), listen.NoToken, e.metrics, log)
	token, err := adminToken(cfg.Admin, e.tls, log)
	if err != nil {
		return nil, usageError{err}
	}
	e.adminToken = token
	if t := cfg.Admin.TLS; t.Enabled() {
		store, err := mtls.Open("admin", mtls.Files{CertFile: t.CertFile, KeyFile: t.KeyFile}, e.tls, log)
		if err != nil {
			return nil, usageError{fmt.Errorf("admin.tls: %w", err)}
		}
		e.adminTLS = store.Public()
	}
	e.guard = listen.Guard{
		Name: "admin", Token: token, Probes: append([]string{"/metrics"}, probePaths...),
		Open:   []string{"/", "/v1/page", "/v1/page/events", "/v1/status", "/v1/members", "/v1/partitions", "/v1/rollouts"}, // ownership only, and hashes of keys
		Shells: []string{"/"},
		TLS:    e.adminTLS != nil, Insecure: cfg.Admin.Insecure,
		DrainPath: "/drain", DrainOpen: cfg.Admin.DrainOpen, DrainToken: string(cfg.Admin.DrainToken),
		Metrics: e.metrics,
	}
	e.debugGuard = listen.Guard{Name: "debug", Token: token, LoopbackOnly: true, Metrics: e.metrics}
	if err := e.guardLane(cfg.Lane, log); err != nil {
		return nil, err
	}
	warnOfExposedListeners(cfg, log)
	return e, nil
}

// guardLane reads the certificate and the token of the listener for calls, if there is one.
func (e *listenerAuth) guardLane(cfg config.Lane, log *slog.Logger) error {
	if cfg.Off() {
		return nil
	}
	token, err := tokenIn("lane", "lane.token_file", cfg.TokenFile, e.tls, log)
	if err != nil {
		return usageError{err}
	}
	if t := cfg.TLS; t.Enabled() {
		store, err := mtls.Open("lane", mtls.Files{CertFile: t.CertFile, KeyFile: t.KeyFile}, e.tls, log)
		if err != nil {
			return usageError{fmt.Errorf("lane.tls: %w", err)}
		}
		e.laneTLS = store.Public()
	}
	e.laneGuard = listen.Guard{Name: "lane", Setting: "lane.token_file", Token: token, TLS: e.laneTLS != nil, Metrics: e.metrics}
	return nil
}

// probePaths are asked by the kubelet.
var probePaths = []string{"/startupz", "/readyz", "/livez"}

// adminToken returns a function that reads the current token of the admin page.
func adminToken(cfg config.Admin, metrics *mtls.Metrics, log *slog.Logger) (func() string, error) {
	if cfg.TokenFile == "" {
		return func() string { return string(cfg.Token) }, nil
	}
	return tokenIn("admin", "admin.token_file", cfg.TokenFile, metrics, log)
}

// tokenIn returns a function that reads the current token in a file; without a path there is no token.
func tokenIn(listener, setting, path string, metrics *mtls.Metrics, log *slog.Logger) (func() string, error) {
	if path == "" {
		return listen.NoToken, nil
	}
	value, err := reload.Open([]string{path}, func(contents [][]byte) (string, error) {
		token := strings.TrimSpace(string(contents[0]))
		if err := listen.CheckToken(token); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		return token, nil
	}, func(err error) {
		metrics.Reloaded(listener, err)
		if err != nil {
			log.Warn("token cannot be used", "setting", setting, "error", err)
			return
		}
		log.Info("token reloaded", "setting", setting)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	metrics.Seen(listener)
	return value.Get, nil
}

// warnOfExposedListeners warns of listeners that other machines can reach without
// authentication.
func warnOfExposedListeners(cfg config.Config, log *slog.Logger) {
	for _, l := range cfg.Listeners() {
		switch {
		case !l.Exposed:
		case l.Name == "peer":
			log.Warn("peers are not authenticated", "reason", "peer.tls is not set: any process that reaches peer.listen can send and read events", "address", l.Address)
		case l.Name == "gossip":
			log.Warn("gossip is not encrypted", "reason", "there are no keys, or gossip.verify_incoming is false: any process that reaches gossip.listen can pose as a member", "address", l.Address)
		}
	}
	if cfg.Admin.DrainOpen && !listen.IsLocal(cfg.Admin.Listen) {
		log.Info("drain and undrain require no token", "reason", "admin.drain_open is set: any process that reaches admin.listen can drain this member", "address", cfg.Admin.Listen)
	}
}

// limit bounds how many connections the listeners of gRPC have.
func (l *listeners) limit(cfg config.Config) {
	l.app = listen.Limit(l.app, "app", cfg.App.ConnectionsMax, l.metrics)
	l.peer = listen.Limit(l.peer, "peer", cfg.Peer.ConnectionsMax, l.metrics)
}
