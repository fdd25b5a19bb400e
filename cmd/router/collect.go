package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ringfence/router/internal/audit/collect"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/telemetry"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// collectOptions are the flags of `router audit collect`.
type collectOptions struct {
	collect.Config
	listen, admin, tokenFile, adminTokenFile string
	certFile, keyFile                        string
	insecure                                 bool
	connections                              int
}

func collectCommand() *cobra.Command {
	o := collectOptions{Config: collect.DefaultConfig()}
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Measure overlaps of handlers that Ringfence does not run: a router that only audits",
		Long: `Take reports of when handlers ran from processes that wrap theirs in client.Audit, and count
how often two handlers of one key ran at the same time: today's Redis locks, KEY_SHARED or
FAILOVER, before Ringfence is adopted (docs/audit.md).

It needs no Pulsar and no settings. The report is at http://ADMIN/ as text, at /report.json
as JSON, at /metrics for Prometheus, and on standard output when the command ends.

Keys are not reported, only their hashes. A collector audits one application; processes
that name another one are refused.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.Application, "application", o.Application, "name of the audited application, as its processes give it")
	f.StringVar(&o.listen, "listen", "127.0.0.1:16655", "HOST:PORT for reports")
	f.StringVar(&o.admin, "admin", "127.0.0.1:16656", "HOST:PORT for the report and metrics, by HTTP")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the token that processes must show; needed unless --listen is loopback")
	f.StringVar(&o.adminTokenFile, "admin-token-file", "", "file with the token for the report; without it only loopback gets the report")
	f.StringVar(&o.certFile, "tls-cert-file", "", "certificate of the listeners that are not loopback, --listen and --admin; needed for these, or --insecure")
	f.StringVar(&o.keyFile, "tls-key-file", "", "its key")
	f.BoolVar(&o.insecure, "insecure", false, "take reports from other machines, and show them the report, in the clear")
	f.IntVar(&o.BytesMax, "bytes-max", o.BytesMax, "memory for recent handlings, in bytes")
	f.IntVar(&o.ProcessesMax, "processes-max", o.ProcessesMax, "most processes that report")
	f.IntVar(&o.connections, "connections-max", 1024, "most open connections")
	return cmd
}

// validate checks flags that depend on one another.
func (o *collectOptions) validate() error {
	local := listen.IsLocal(o.listen)
	switch {
	case o.Application == "" || len(o.Application) > exchange.NameMax:
		return usageError{fmt.Errorf("--application has %d bytes, want 1 to %d", len(o.Application), exchange.NameMax)}
	case o.BytesMax < 64<<10 || o.ProcessesMax < 1 || o.connections < 1:
		return usageError{errors.New("--bytes-max must be 65536 or more, --processes-max and --connections-max 1 or more")}
	case (o.certFile == "") != (o.keyFile == ""):
		return usageError{errors.New("--tls-cert-file and --tls-key-file need each other")}
	case !isAddress(o.listen):
		return usageError{fmt.Errorf("--listen = %q, want HOST:PORT", o.listen)}
	case !isAddress(o.admin):
		return usageError{fmt.Errorf("--admin = %q, want HOST:PORT", o.admin)}
	case !local && o.tokenFile == "":
		return usageError{errors.New("--listen is not loopback: --token-file is needed, since other machines could report overlaps that did not happen")}
	case !local && o.certFile == "" && !o.insecure:
		return usageError{errors.New("--listen is not loopback: --tls-cert-file is needed, or --insecure if the network alone keeps other machines away")}
	case o.adminTokenFile != "" && !listen.IsLocal(o.admin) && o.certFile == "" && !o.insecure:
		return usageError{errors.New("--admin is not loopback: other machines would send the token of --admin-token-file in the clear; --tls-cert-file is needed, or --insecure")}
	}
	return nil
}

// isAddress reports whether Listen takes an address: HOST:PORT or unix:PATH.
func isAddress(address string) bool {
	_, unix := listen.UnixPath(address)
	_, _, err := net.SplitHostPort(address)
	return unix || err == nil
}

// run serves until the command is told to stop, and then prints the report.
func (o *collectOptions) run(cmd *cobra.Command) error {
	if err := o.validate(); err != nil {
		return err
	}
	ctx, log := cmd.Context(), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	registry := telemetry.NewRegistry(version())
	metrics, reloads := listen.NewMetrics(registry), mtls.NewMetrics(registry)
	creds := insecure.NewCredentials()
	var pageTLS *tls.Config
	if o.certFile != "" {
		store, err := mtls.Open("collect", mtls.Files{CertFile: o.certFile, KeyFile: o.keyFile}, reloads, log)
		if err != nil {
			return usageError{fmt.Errorf("--tls-cert-file: %w", err)}
		}
		if !listen.IsLocal(o.listen) {
			creds = listen.ServerCredentials("collect", store.Public(), metrics, log)
		}
		if !listen.IsLocal(o.admin) {
			pageTLS = store.Public()
		}
	}
	token, err := tokenIn("collect", "--token-file", o.tokenFile, reloads, log)
	if err != nil {
		return usageError{err}
	}
	adminToken, err := tokenIn("collect_admin", "--admin-token-file", o.adminTokenFile, reloads, log)
	if err != nil {
		return usageError{err}
	}
	reports, err := listen.Listen(ctx, o.listen, listen.Socket{})
	if err != nil {
		return fmt.Errorf("--listen: %w%s", err, addressHint(err))
	}
	pages, err := listen.Listen(ctx, o.admin, listen.Socket{})
	if err != nil {
		_ = reports.Close()
		return fmt.Errorf("--admin: %w%s", err, addressHint(err))
	}
	collector := collect.New(o.Config, registry, log, clock.Now)
	callers := listen.NewCallers("collect", creds, listen.PeerStrangers(), token, metrics, log)
	guard := listen.Guard{
		Name: "collect_admin", Setting: "--admin-token-file", Token: adminToken, Probes: []string{"/metrics"},
		TLS: pageTLS != nil, Insecure: o.insecure, Opening: "use --tls-cert-file and --admin-token-file, or ask on loopback", Metrics: metrics,
	}
	page := listen.HTTP{
		Name: "collect_admin", Listener: pages, TLS: pageTLS, ConnectionsMax: 64, Probes: []string{"/metrics"}, Metrics: metrics, LogMetrics: loglimit.NewMetrics(registry), Log: log,
	}
	log.Info("collecting", "application", o.Application, "reports", reports.Addr().String(), "admin", pages.Addr().String())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return serveReports(ctx, listen.Limit(reports, "collect", o.connections, metrics), callers, collector)
	})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /report.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = collector.Report().JSON(w) // the caller is gone
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_ = collector.Report().Text(w) // the caller is gone
	})
	group.Go(func() error { return page.Serve(ctx, guard.Protect(mux)) })
	group.Go(func() error {
		noteClocks(ctx, collector)
		return nil
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return collector.Report().Text(cmd.OutOrStdout())
}

// noteClocks notes the clocks once a second.
func noteClocks(ctx context.Context, c *collect.Collector) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-second.C:
			c.Note()
		}
	}
}

// serveReports serves the listener for reports until ctx ends.
func serveReports(ctx context.Context, listener net.Listener, callers *listen.Callers, c *collect.Collector) error {
	server := grpc.NewServer(append(callers.Options(), grpc.MaxRecvMsgSize(exchange.BytesMax+4<<10))...)
	(&exchange.Receiver{Take: c.Take}).Register(server)
	healthv1.RegisterHealthServer(server, health.NewServer())
	stop := context.AfterFunc(ctx, func() {
		force := time.AfterFunc(time.Second, server.Stop)
		defer force.Stop()
		server.GracefulStop()
	})
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("collect: %w", err)
	}
	return nil
}
