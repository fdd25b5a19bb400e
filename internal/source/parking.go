package source

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// propertyParkedEnd is on messages that a reading writes into the parking topic to know where it ends.
const propertyParkedEnd = "ringfence-parked-end"

// Bounds of a reading of the parking topic.
const (
	parkingBusyMax  = 10 * time.Second // to wait for the subscription: another member reads, or a router looks whether it is there
	parkingAnswer   = 30 * time.Second // for the next message, or the answer to an ack
	parkingPrefetch = 100
)

// ErrParkingBusy says that another consumer has the subscription of the parking topic: mostly a member that brings letters back.
var ErrParkingBusy = errors.New("another consumer has the subscription of the parking topic")

// ParkedLetter is a letter of the parking topic: an event with its history, and its place among the letters of its key.
type ParkedLetter struct {
	event.Message

	Mark event.Mark
	ID   event.MessageID // of the letter

	ref any
}

// Parking is the parking topic of a group. Its methods are safe for concurrent use.
type Parking struct {
	cfg     Config
	metrics *Metrics
	log     *slog.Logger
	open    func(context.Context) (parkingConn, error)
}

// parkingConn is an exclusive consumer of the parking topic, which gets all messages that are not acked, in the order of each topic
// partition.
type parkingConn interface {
	// end writes a message to each topic partition, with a property and this value of it, and returns how many there are.
	end(ctx context.Context, value string) (int, error)
	// next returns a message that is not restored, and what ack needs. The message is nil if no router can have written it.
	next(ctx context.Context) (m *event.Message, ref any, err error)
	ack(ref any) error
	close()
}

// NewParking returns the parking topic of a Pulsar cluster. It does no I/O.
func NewParking(cfg Config, options pulsar.ClientOptions, metrics *Metrics, log *slog.Logger) *Parking {
	p := &Parking{cfg: cfg.Resolved(), metrics: metrics, log: log.With("component", "parking")}
	p.open = func(ctx context.Context) (parkingConn, error) { return p.openPulsar(ctx, options) }
	return p
}

// NewMemParking returns the parking topic of a broker in memory.
func NewMemParking(cfg Config, broker MemBroker, metrics *Metrics, log *slog.Logger) *Parking {
	p := &Parking{cfg: cfg.Resolved(), metrics: metrics, log: log.With("component", "parking")}
	p.open = func(ctx context.Context) (parkingConn, error) { return p.openMem(ctx, broker) }
	return p
}

// ParkingReading is one look at the letters. No other member reads until it is closed.
type ParkingReading struct{ conn parkingConn }

// Ack removes a letter.
func (r *ParkingReading) Ack(l *ParkedLetter) error { return r.conn.ack(l.ref) }

// Close lets others read. Letters that are not acked stay.
func (r *ParkingReading) Close() { r.conn.close() }

// Read calls each with all letters that are in the topic when it begins, and not acked: in the order of each topic partition, which is
// not that of their marks. The caller closes the reading. Messages that no router has written, or that were changed, stay, and are counted.
func (p *Parking) Read(ctx context.Context, each func(*ParkedLetter)) (*ParkingReading, error) {
	keys, err := p.cfg.openCopyKeys(func(error) {})
	if err != nil {
		return nil, err
	}
	var sealed [][]byte
	if keys != nil {
		sealed = keys.Get()
	}
	conn, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.read(ctx, conn, sealed, each); err != nil {
		conn.close()
		return nil, err
	}
	return &ParkingReading{conn}, nil
}

func (p *Parking) read(ctx context.Context, conn parkingConn, keys [][]byte, each func(*ParkedLetter)) error {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	value := hex.EncodeToString(id[:])
	ends, err := conn.end(ctx, value)
	if err != nil {
		return err
	}
	refused := 0
	for ends > 0 {
		waiting, cancel := context.WithTimeout(ctx, parkingAnswer)
		m, ref, err := conn.next(waiting)
		cancel()
		if err != nil {
			return fmt.Errorf("source: %s is not read to its end: %w", p.cfg.ParkingTopic(), err)
		}
		if m != nil && property(m.Event, propertyParkedEnd) != "" && property(m.Event, PropertyParked) == "" { // a letter may have any property, of its producer
			if property(m.Event, propertyParkedEnd) == value {
				ends--
			}
			if err := conn.ack(ref); err != nil {
				return err
			}
			continue
		}
		l, why := p.letter(m, keys)
		if why != "" {
			refused++
			p.metrics.lettersRefused.WithLabelValues(why).Inc()
			continue
		}
		l.ref = ref
		each(l)
	}
	if refused > 0 {
		p.log.Warn("messages in the parking topic are not letters of this group; they are left there, unhandled", "messages", refused, "topic", p.cfg.ParkingTopic())
	}
	return nil
}

// notWritten is the reason why a message is no letter that no router can have written.
const notWritten = "not_written"

// letter restores a letter. why is the reason if the message is no letter.
func (p *Parking) letter(m *event.Message, keys [][]byte) (l *ParkedLetter, why string) {
	if m == nil {
		return nil, notWritten
	}
	if why := refusalReason(m, keys, p.cfg.CopyUnsigned); why != "" {
		return nil, why
	}
	mark, err := event.ParseMark(property(m.Event, PropertyParked))
	if err != nil {
		return nil, notWritten
	}
	l = &ParkedLetter{Message: *m, Mark: mark, ID: m.Event.ID}
	restore(l.Event)
	return l, ""
}

// pulsarParking is a parkingConn of its own client, whose calls may hang.
type pulsarParking struct {
	sdk      *sdk
	consumer pulsar.Consumer
	topic    string
	patience time.Duration // of close
}

func (p *Parking) openPulsar(ctx context.Context, options pulsar.ClientOptions) (parkingConn, error) {
	client := new(sdk)
	if err := client.open(ctx, options); err != nil {
		client.close(func() {})
		return nil, err
	}
	return p.subscribe(ctx, client)
}

// subscribe makes a consumer of an open client, which it closes if that fails.
func (p *Parking) subscribe(ctx context.Context, client *sdk) (parkingConn, error) {
	subscription := pulsar.ConsumerOptions{
		Topic: p.cfg.ParkingTopic(), SubscriptionName: p.cfg.DeadLetterSubscription, Type: pulsar.Exclusive,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		ReceiverQueueSize:           parkingPrefetch, AckWithResponse: true,
	}
	patience, cancel := context.WithTimeout(ctx, parkingBusyMax)
	defer cancel()
	delays := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for {
		consumer, err := await(ctx, client, func() (pulsar.Consumer, error) { return pulsarread.Subscribe(client.client, subscription) }, pulsar.Consumer.Close)
		if err == nil {
			return &pulsarParking{client, consumer, p.cfg.ParkingTopic(), p.cfg.CloseTimeout}, nil
		}
		busy := strings.Contains(err.Error(), "ConsumerBusy") || errors.Is(subscribeError("", "", err), ErrSubscriptionType)
		if busy {
			err = ErrParkingBusy
		}
		if !busy || backoff.Sleep(patience, delays.Next()) != nil {
			client.close(func() {})
			return nil, fmt.Errorf("source: subscription %q on %s: %w%s", p.cfg.DeadLetterSubscription, p.cfg.ParkingTopic(), err, hint(err))
		}
	}
}

// end implements parkingConn.
func (c *pulsarParking) end(ctx context.Context, value string) (int, error) {
	partitions, err := await(ctx, c.sdk, func() ([]string, error) { return c.sdk.client.TopicPartitions(c.topic) }, func([]string) {})
	if err != nil {
		return 0, fmt.Errorf("source: %s: %w", c.topic, err)
	}
	for _, one := range partitions {
		options := pulsar.ProducerOptions{Topic: one, SendTimeout: pulsarsend.NoTimeout, DisableBatching: true}
		producer, err := await(ctx, c.sdk, func() (pulsar.Producer, error) { return c.sdk.client.CreateProducer(options) }, pulsar.Producer.Close)
		if err != nil {
			return 0, fmt.Errorf("source: producer for %s: %w", one, err)
		}
		mark := &pulsar.ProducerMessage{Payload: []byte{}, Properties: map[string]string{propertyParkedEnd: value}, DisableReplication: true}
		err = c.call(ctx, func() error {
			defer producer.Close()
			return pulsarsend.Send(ctx, producer, mark, parkingAnswer)
		})
		if err != nil {
			return 0, fmt.Errorf("source: %s: %w", one, err)
		}
	}
	return len(partitions), nil
}

// next implements parkingConn.
func (c *pulsarParking) next(ctx context.Context) (*event.Message, any, error) {
	m, err := c.consumer.Receive(ctx)
	if err != nil {
		return nil, nil, err
	}
	id := m.ID()
	if id.BatchSize() > 1 || isEncrypted(m) {
		return nil, id, nil
	}
	base, _ := SplitPartition(c.topic)
	e := &event.Event{
		ID:    event.MessageID{Ledger: id.LedgerID(), Entry: id.EntryID(), Batch: -1, TopicPartition: id.PartitionIdx()},
		Topic: base, Payload: m.Payload(), Properties: properties(m.Properties()), PublishTime: m.PublishTime().UnixMilli(),
		Redelivery: m.RedeliveryCount(),
	}
	if m.IsNullValue() {
		e.Payload = nil
	} else if e.Payload == nil {
		e.Payload = []byte{}
	}
	if at := m.EventTime().UnixMilli(); at > 0 {
		e.EventTime = at
	}
	slices.SortFunc(e.Properties, func(a, b event.Property) int { return cmp.Compare(a.Name, b.Name) })
	return &event.Message{Event: e, Key: m.Key(), OrderingKey: m.OrderingKey()}, id, nil
}

// ack implements parkingConn.
func (c *pulsarParking) ack(ref any) error {
	ctx, cancel := context.WithTimeout(context.Background(), parkingAnswer)
	defer cancel()
	return c.call(ctx, func() error { return c.consumer.AckID(ref.(pulsar.MessageID)) })
}

// close implements parkingConn.
func (c *pulsarParking) close() {
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	_ = c.call(ctx, func() error { c.consumer.Close(); return nil })
	c.sdk.close(func() {})
}

// call makes a call of the client that may hang, and waits for it until ctx ends.
func (c *pulsarParking) call(ctx context.Context, call func() error) error {
	_, err := await(ctx, c.sdk, func() (struct{}, error) { return struct{}{}, call() }, func(struct{}) {})
	return err
}

// memParking is a parkingConn of a broker in memory.
type memParking struct {
	broker   MemBroker
	consumer membroker.Consumer
	topic    string
	received []membroker.Entry
}

func (p *Parking) openMem(ctx context.Context, broker MemBroker) (parkingConn, error) {
	consumer, err := broker.Subscribe(ctx, membroker.SubscribeOptions{
		Subscription: p.cfg.DeadLetterSubscription, Type: membroker.Exclusive, Topics: []string{p.cfg.ParkingTopic()},
	})
	if errors.Is(err, membroker.ErrSubscriptionType) {
		return nil, ErrParkingBusy
	}
	if err != nil {
		return nil, fmt.Errorf("source: subscribe %q: %w", p.cfg.DeadLetterSubscription, err)
	}
	consumer.Permit(parkingPrefetch)
	return &memParking{broker: broker, consumer: consumer, topic: p.cfg.ParkingTopic()}, nil
}

// end implements parkingConn.
func (c *memParking) end(ctx context.Context, value string) (int, error) {
	_, err := c.broker.Publish(ctx, c.topic, []membroker.Message{{Properties: map[string]string{propertyParkedEnd: value}}})
	return 1, err
}

// next implements parkingConn.
func (c *memParking) next(ctx context.Context) (*event.Message, any, error) {
	for len(c.received) == 0 {
		received, err := c.consumer.Receive(ctx)
		if err != nil {
			return nil, nil, err
		}
		c.received = received
		c.consumer.Permit(len(received))
	}
	entry := c.received[0]
	c.received = c.received[1:]
	if len(entry.Messages) != 1 {
		return nil, entry.ID, nil
	}
	m := &entry.Messages[0]
	return &event.Message{
		Event: &event.Event{
			ID:    event.MessageID{Ledger: entry.ID.Ledger, Entry: entry.ID.Entry, Batch: -1, TopicPartition: -1},
			Topic: c.topic, Payload: m.Payload, Properties: properties(m.Properties), PublishTime: m.PublishTime, EventTime: m.EventTime,
		},
		Key: m.Key, OrderingKey: m.OrderingKey,
	}, entry.ID, nil
}

// ack implements parkingConn.
func (c *memParking) ack(ref any) error {
	c.consumer.Ack(membroker.Ack{ID: ref.(membroker.EntryID), Index: -1})
	return nil
}

// close implements parkingConn.
func (c *memParking) close() { c.consumer.Close() }

// isEncrypted reports whether a message has a payload that the client has passed on as it is.
func isEncrypted(m pulsar.Message) bool {
	encryption := m.GetEncryptionContext()
	return encryption != nil && len(encryption.Keys) > 0
}
