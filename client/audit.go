package client

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// AuditOptions tell an [Audit] where to report.
type AuditOptions struct {
	Collector   string       // host:port of `router audit collect`; needed
	Application string       // as at the collector; "" is "default"
	Name        string       // of this process, in reports; "" is the host name and the process id
	TokenFile   string       // file with the collector's token, read again at each connection; "": none
	TLS         *tls.Config  // nil: plain text
	Logger      *slog.Logger // nil: slog.Default()
}

// Audit measures handlers that Ringfence does not run: how often two of one key run at the same time, in all processes that
// report to one collector. It changes nothing about when they run, and an absent collector only costs the measurement. Its methods are safe
// for concurrent use.
type Audit struct {
	options     AuditOptions
	incarnation exchange.Incarnation
	ticks       clock.Fast
	stop        context.CancelFunc
	reporting   sync.WaitGroup

	mu      sync.Mutex
	pending []audit.Handling
	turn    uint64
	waits   exchange.Waits
	closed  bool
}

// Bounds of what waits for a collector, and times.
const (
	auditPendingMax = 100_000 // handlings; further ones are dropped, and counted
	auditEvery      = 200 * time.Millisecond
	auditTimeout    = 2 * time.Second // of one report, and of the last ones at Close
	auditRetry      = time.Second
)

// NewAudit begins to report to a collector, in the background, until Close. It returns an error that wraps [ErrArgument] if an option is
// wrong; it does not wait for the collector.
func NewAudit(o AuditOptions) (*Audit, error) {
	if o.Collector == "" {
		return nil, fmt.Errorf("%w: AuditOptions.Collector is empty", ErrArgument)
	}
	if o.Name == "" {
		host, _ := os.Hostname()
		o.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if o.Application == "" {
		o.Application = "default"
	}
	if len(o.Name) > exchange.NameMax || len(o.Application) > exchange.NameMax {
		return nil, fmt.Errorf("%w: a name of more than %d bytes", ErrArgument, exchange.NameMax)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	ctx, stop := context.WithCancel(context.Background())
	a := &Audit{options: o, stop: stop}
	_, _ = rand.Read(a.incarnation[:]) // never fails
	a.reporting.Go(func() { a.run(ctx) })
	return a, nil
}

// Close reports what waits, for up to 2 s, and ends the Audit. It returns an error if handlings could not be reported.
func (a *Audit) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.stop()
	a.reporting.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if lost := len(a.pending) + int(a.waits.Dropped); lost > 0 {
		return fmt.Errorf("client: %d handlings were not reported to the collector %s", lost, a.options.Collector)
	}
	return nil
}

// Handle runs handler and reports when it began and ended. Call it where the key is believed to be exclusive: while its lock is
// held, or in the callback of a KEY_SHARED or FAILOVER consumer.
func (a *Audit) Handle(ctx context.Context, key string, handler func(context.Context) error) error {
	h := a.Begin(key)
	defer h.End()
	return handler(ctx)
}

// Handling is one run of a handler, from [Audit.Begin] on. It is for one goroutine.
type Handling struct {
	audit   *Audit
	key     partition.KeyHash
	began   time.Duration
	waited  time.Duration
	waits   bool
	expired bool
	ended   bool
}

// Begin notes that a handler of a key begins now. Its End must be called.
func (a *Audit) Begin(key string) *Handling {
	h := &Handling{audit: a, key: partition.HashOf(key)}
	_, h.began = a.ticks.Both()
	return h
}

// Waited notes how long the handler waited for its lock, before it began. It counts from End on.
func (h *Handling) Waited(d time.Duration) { h.waited, h.waits = max(0, d), true }

// Expired notes that the lock had expired while the handler ran, as the release or a renewal of the lock has shown.
// It may be called after End, too. Only the first call counts.
func (h *Handling) Expired() {
	if h.expired {
		return
	}
	h.expired = true
	h.audit.mu.Lock()
	defer h.audit.mu.Unlock()
	h.audit.waits.Expired++
}

// End notes that the handler ends now: call it before the lock is released. Only the first call counts.
func (h *Handling) End() {
	if h.ended {
		return
	}
	h.ended = true
	a := h.audit
	_, ended := a.ticks.Both()
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.waits {
		a.waits.Acquired++
		a.waits.Waited += h.waited
		a.waits.Longest = max(a.waits.Longest, h.waited)
	}
	if len(a.pending) == auditPendingMax || a.closed {
		a.waits.Dropped++
		return
	}
	a.turn++ // tells handlings apart that a report brings twice
	a.pending = append(a.pending, audit.Handling{
		Key: h.key, Partition: partition.ID(uint64(h.key) % partition.Count), Fence: event.Fence{Turn: a.turn}, Start: h.began, End: max(h.began, ended),
	})
}

// run reports until ctx ends, and then the rest.
func (a *Audit) run(ctx context.Context) {
	told := false
	for {
		err := a.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		if !told {
			told = true
			a.options.Logger.Warn("the audit collector does not accept reports; trying again", "collector", a.options.Collector, "error", err)
		}
		select {
		case <-time.After(auditRetry):
		case <-ctx.Done():
		}
	}
}

// connect reports on one connection, until an error or the end of ctx.
func (a *Audit) connect(ctx context.Context) error {
	creds := insecure.NewCredentials()
	if a.options.TLS != nil {
		creds = credentials.NewTLS(a.options.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+a.options.Collector, grpc.WithTransportCredentials(creds), grpc.WithDisableRetry())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer conn.Close()
	var token string
	if a.options.TokenFile != "" {
		text, err := os.ReadFile(a.options.TokenFile)
		if err != nil {
			return fmt.Errorf("client: token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	link, wander := exchange.NewLink(conn), new(audit.Wander)
	tick := time.NewTicker(auditEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		if n%5 == 0 {
			exchange.Note(wander) // once a second
		}
		ending := ctx.Err() != nil // before the report, so that it brings all of what came before Close
		if err := a.report(ctx, link, wander, token, n%5 == 0 || ending); err != nil || ending {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done(): // one more round tells the rest
		}
	}
}

// report sends all that waits, and only a measurement of the clocks if nothing does and it is due.
func (a *Audit) report(ctx context.Context, link *exchange.Link, wander *audit.Wander, token string, due bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTimeout)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	for {
		a.mu.Lock()
		batch := a.pending[:min(len(a.pending), exchange.HandlingsMax)]
		waits := a.waits
		a.mu.Unlock()
		if len(batch) == 0 && !due {
			return nil
		}
		r := exchange.Report{Group: a.options.Application, Member: a.options.Name, Incarnation: a.incarnation, Waits: waits}
		r.Clock = exchange.Here(wander)
		if err := link.Measure(ctx, r); err != nil {
			return err
		}
		if len(batch) == 0 {
			return nil
		}
		r.Handlings, r.Clock = batch, exchange.Here(wander)
		if err := link.Send(ctx, r); err != nil {
			return err
		}
		a.mu.Lock()
		a.pending = append(a.pending[:0:0], a.pending[len(batch):]...)
		a.mu.Unlock()
	}
}
