package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/node"
)

const (
	// brokerLookEvery is the interval at which a router looks why its broker does not serve it.
	brokerLookEvery = 5 * time.Second
	// brokerLookFirst is the time that a broker has before the first look.
	brokerLookFirst = time.Second
	// topicsLookedAtMax bounds the topics that a look asks for, in the order of the settings; each
	// costs a connection.
	topicsLookedAtMax = 10
	// absentLookMax bounds the time for which a start waits for the admin API to tell which topics
	// are there.
	absentLookMax = 3 * time.Second
)

// brokerWatch finds out why the broker does not serve this router, for as long as it does not. The
// clients retry forever without reporting why.
type brokerWatch struct {
	find func(context.Context) error // why the broker does not serve; nil: nothing is known against it
	why  atomic.Pointer[error]
}

// fault returns the newest reason, nil if there is none.
func (w *brokerWatch) fault() error {
	if why := w.why.Load(); why != nil {
		return *why
	}
	return nil
}

// run looks until ctx ends, while the broker does not serve the router.
func (w *brokerWatch) run(ctx context.Context, serves func() bool, log *slog.Logger) {
	for pause := brokerLookFirst; backoff.Sleep(ctx, pause) == nil; pause = brokerLookEvery {
		var err error
		if !serves() {
			err = w.find(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		before := w.fault()
		w.why.Store(&err)
		if err != nil && (before == nil || before.Error() != err.Error()) {
			log.Warn("the broker does not serve this router", "error", err)
		}
	}
}

// servedBy reports whether the broker serves every request of a node.
func servedBy(n *node.Node) bool {
	return n.CheckClaim() == nil && n.CheckLease() == nil && n.CheckSource() == nil
}

// brokerFault returns why the broker of the settings does not serve a router, nil if nothing is
// known against it.
func (d *pulsarAuth) brokerFault(ctx context.Context, cfg config.Config) error {
	if err := d.reachable(ctx); err != nil {
		return fmt.Errorf("pulsar.url: %w", err)
	}
	topics := cfg.Topics()
	for _, topic := range append(slices.Clone(topics[:min(len(topics), topicsLookedAtMax)]), cfg.ControlTopic()) {
		err := d.placeOf(ctx, topic)
		if err == nil {
			_, err = d.preflight(ctx, topic)
		}
		if err != nil && ctx.Err() == nil {
			return d.missing(topic, err)
		}
	}
	return nil
}

// missing explains an error about a topic.
func (d *pulsarAuth) missing(topic string, err error) error {
	switch said := err.Error(); {
	case errors.Is(err, errNoConnection): // a broker that is starting, or another program
		return fmt.Errorf("pulsar.url: %s accepts connections, and no broker answers: unless it is starting, look whether this is its binary port (6650, or 6651 with pulsar+ssl://): %w",
			strings.Join(brokerHosts(d.settings.URL), ","), err)
	case !strings.Contains(said, "TopicNotFound") && !strings.Contains(said, "not found"):
		return fmt.Errorf("%s: %w", topic, err)
	}
	return fmt.Errorf("%s: the topic, its namespace or its tenant does not exist, and the broker does not create it; set pulsar.admin_url to learn which", topic)
}

// reachable returns why no host of pulsar.url accepts connections, nil if one does.
func (d *pulsarAuth) reachable(ctx context.Context) error {
	var faults []error
	for _, host := range brokerHosts(d.settings.URL) {
		err := dialFault(ctx, host, withPort(host, d.settings.URL))
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// brokerHosts returns the hosts in a URL of brokers, as they stand there.
func brokerHosts(url string) []string {
	_, rest, _ := strings.Cut(url, "://")
	hosts, _, _ := strings.Cut(rest, "/")
	return strings.Split(hosts, ",")
}

// dialFault returns why a host does not accept a connection, in words that tell a wrong name, a
// closed port and a network apart; nil if it does.
func dialFault(ctx context.Context, host, address string) error {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return explainDial(host, err)
	}
	return conn.Close()
}

func explainDial(host string, err error) error {
	var unknown *net.DNSError
	switch {
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return fmt.Errorf("%s is unknown: no name server has such a host (%w)", host, err)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s cannot be looked up: the name server does not answer (%w)", host, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s refuses connections: the host is there, and no broker listens on that port (%w)", host, err)
	}
	return fmt.Errorf("%s is unreachable: no answer within %v; look at routes and firewalls (%w)", host, dialTimeout, err)
}

// placeOf asks the admin API, if there is one, whether the tenant and the namespace of a topic are
// there. An answer that tells nothing about them is no error.
func (d *pulsarAuth) placeOf(ctx context.Context, topic string) error {
	if d.settings.AdminURL == "" {
		return nil
	}
	parts := strings.Split(pulsaradmin.TopicPath(topic), "/") // persistent, tenant, namespace, topic
	if len(parts) < 4 {
		return nil
	}
	tenant, namespace := parts[1], parts[1]+"/"+parts[2]
	var namespaces []string
	err := d.admin().Call(ctx, http.MethodGet, "namespaces/"+tenant, nil, &namespaces)
	switch {
	case pulsaradmin.IsNotFound(err):
		return fmt.Errorf("the tenant %s does not exist: create it (pulsar-admin tenants create %s), or correct the name", tenant, tenant)
	case err == nil && !slices.Contains(namespaces, namespace):
		return fmt.Errorf("the namespace %s does not exist: create it (pulsar-admin namespaces create %s), or correct the name", namespace, namespace)
	}
	return nil
}

// absentTopics returns those topics that are not there, in namespaces that are, as far as the admin
// API tells; nil without one. Most brokers create them as soon as the router uses them.
func (d *pulsarAuth) absentTopics(ctx context.Context, topics []string) (absent []string) {
	if d.settings.AdminURL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, absentLookMax)
	defer cancel()
	admin := d.admin()
	for _, topic := range topics {
		if n, err := admin.Partitions(ctx, topic); err == nil && n > 0 {
			continue
		}
		err := admin.Call(ctx, http.MethodGet, pulsaradmin.StatsPath(topic, false, false), nil, nil)
		if pulsaradmin.IsNotFound(err) && d.placeOf(ctx, topic) == nil {
			absent = append(absent, topic)
		}
	}
	return absent
}

// absentNotice is the line of health reports about topics that were not there.
func absentNotice(absent []string) string {
	return "not there when this router started (a broker may create a topic by its first use): " + strings.Join(absent, ", ") + "; are the names in pulsar.topics right?"
}

// joinNotices joins lines that are not empty.
func joinNotices(lines ...string) string {
	return strings.Join(slices.DeleteFunc(lines, func(s string) bool { return s == "" }), "\n")
}
