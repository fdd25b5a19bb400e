package source

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsarlog"
	"github.com/ringfence/router/internal/broker/topicname"
)

// Access has what a source needs beside its settings to reach Pulsar.
type Access struct {
	// Client describes the connection of pulsar-client-go, which sends copies, and its credentials. The source has its own
	// client, which Run opens and closes. Its URL and timeouts serve the reader, too.
	Client pulsar.ClientOptions
	// Entries has the credentials of the reader.
	Entries entries.Access
	// Admin makes the calls to the admin API, if the settings name one; nil is http.DefaultClient.
	Admin *http.Client
	// Begun is shared by the sources of a process that read one after the other; nil: this one is alone.
	Begun *Begun
}

// NewPulsar returns a source that reads from a Pulsar cluster.
//
// A null value (a tombstone) has a nil payload, and its copies are null values again.
//
// An encrypted entry arrives as one event, whose payload is the unchanged entry; it goes to the
// dead letter topic, see PropertyEncryption. An entry that cannot be read goes there as bytes, see PropertyBroken.
func NewPulsar(cfg Config, access Access, metrics *Metrics, logger *slog.Logger) *Source {
	return newSource(cfg, metrics, logger, func(ctx context.Context, cfg Config, unackedMax int, logger *slog.Logger) (connection, error) {
		if access.Client.Logger == nil {
			access.Client.Logger = pulsarlog.New(logger)
		}
		reader, err := newEntryReader(cfg, entriesConfig(cfg, &access.Client), access.Entries, metrics.reader, logger)
		if err != nil {
			return nil, err
		}
		reader.bound(unackedMax)
		p := newPulsarConnection(cfg, reader, new(sdk), access.Admin, metrics, logger)
		p.discovery.begun = cmp.Or(access.Begun, p.discovery.begun)
		if err := p.open(ctx, access.Client); err != nil {
			p.close()
			return nil, err
		}
		return p, nil
	})
}

// pulsarConnection joins the parts that reading from Pulsar, and copying to it, need. The reader acks and keeps the bound, discovery knows
// about timers, and the outlets send.
type pulsarConnection struct {
	reader
	*discovery
	*outlets
}

func newPulsarConnection(
	cfg Config, reader reader, client *sdk, admin *http.Client, metrics *Metrics, logger *slog.Logger,
) *pulsarConnection {
	d := &discovery{
		cfg: cfg, reader: reader, admin: admin, metrics: metrics, log: logger, lost: make(chan struct{}, 1),
		reading: make(map[string]struct{}), unread: make(map[string]*error), begun: new(Begun),
	}
	return &pulsarConnection{reader, d, newOutlets(cfg, client)}
}

// open connects and subscribes. p must be closed, also after an error.
func (p *pulsarConnection) open(ctx context.Context, options pulsar.ClientOptions) error {
	if err := p.outlets.sdk.open(ctx, options); err != nil {
		return err
	}
	return p.discovery.start(ctx)
}

// receive implements connection. It continues without a topic partition that a broker refuses, until discovery can read it again.
func (p *pulsarConnection) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	for {
		got, err := p.reader.receive(ctx, batch)
		var lost *entries.LostError
		if !errors.As(err, &lost) || !entries.Unavailable(err) {
			return got, err
		}
		p.discovery.lose(lost.Topic, lost.Cause)
		if ctx.Err() != nil {
			return got, ctx.Err()
		}
	}
}

// limits implements connection.
func (p *pulsarConnection) limits(ctx context.Context) (limits, bool, error) {
	url := p.discovery.cfg.AdminURL
	if url == "" {
		return limits{}, false, nil
	}
	l, err := probe(ctx, pulsaradmin.Client{URL: url, HTTP: p.discovery.admin}, p.discovery.topics(), p.unreadTopics())
	return l, true, err
}

// ends implements connection. All topic partitions of the topics are named, also those that are not read yet, or not any more.
func (p *pulsarConnection) ends(ctx context.Context) ([]End, bool, error) {
	// Asked for before and after the ends: a partition that is read again in between would be in neither of the later two.
	names := p.discovery.unreadPartitions()
	ends, err := p.reader.ends(ctx)
	if err != nil {
		return nil, true, err
	}
	names = append(names, p.discovery.unreadPartitions()...)
	// After the ends: the ledgers of a topic partition that is added later are newer than all of these.
	there, err := p.discovery.existing(ctx)
	if err != nil {
		return nil, true, err
	}
	names = append(names, there...)
	slices.Sort(names)
	told := make(map[End]bool, len(ends))
	for _, e := range ends {
		told[End{Topic: e.Topic, Partition: event.MessageID{TopicPartition: e.Partition}.PartitionNumber()}] = true
	}
	for _, name := range slices.Compact(names) {
		topic, partition := topicname.Split(name)
		if !told[End{Topic: topic, Partition: partition}] {
			ends = append(ends, unknownEnd(topic, partition))
		}
	}
	return ends, true, nil
}

// close does not wait for calls made by aside.
func (p *pulsarConnection) close() {
	p.discovery.stop()
	p.outlets.sdk.close(p.reader.close)
}
