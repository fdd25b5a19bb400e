package source

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
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
	// next returns a message that is not restored, and what ack needs. If no router can have written it, the message is nil, and why says
	// more about one that cannot be read at all.
	next(ctx context.Context) (m *event.Message, ref any, why string, err error)
	ack(ref any) error
	close()
}

// NewParking returns the parking topic of a Pulsar cluster. It does no I/O. access is called for each reading: its clients are its own.
func NewParking(cfg Config, access func() Access, metrics *Metrics, log *slog.Logger) *Parking {
	p := &Parking{cfg: cfg.Resolved(), metrics: metrics, log: log.With("component", "parking")}
	p.open = func(ctx context.Context) (parkingConn, error) { return p.openPulsar(ctx, access()) }
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
	refused, unreadable, example := 0, 0, ""
	for ends > 0 {
		waiting, cancel := context.WithTimeout(ctx, parkingAnswer)
		m, ref, unread, err := conn.next(waiting)
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
		if unread != "" {
			if unreadable++; unreadable == 1 {
				example = unread
			}
			p.metrics.lettersRefused.WithLabelValues(notReadable).Inc()
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
	if unreadable > 0 {
		p.log.Warn("messages in the parking topic cannot be read, or are too large; they are left there, unhandled", "messages", unreadable, "topic", p.cfg.ParkingTopic(), "first", example)
	}
	return nil
}

// Reasons why a message of the parking topic is no letter.
const (
	notWritten  = "not_written" // no router can have written it
	notReadable = "unreadable"  // it is broken, or larger than pulsar.payload_bytes_max
)

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
func (c *memParking) next(ctx context.Context) (*event.Message, any, string, error) {
	for len(c.received) == 0 {
		received, err := c.consumer.Receive(ctx)
		if err != nil {
			return nil, nil, "", err
		}
		c.received = received
		c.consumer.Permit(len(received))
	}
	entry := c.received[0]
	c.received = c.received[1:]
	if len(entry.Messages) != 1 {
		return nil, entry.ID, "", nil
	}
	m := &entry.Messages[0]
	return &event.Message{
		Event: &event.Event{
			ID:    event.MessageID{Ledger: entry.ID.Ledger, Entry: entry.ID.Entry, Batch: -1, TopicPartition: -1},
			Topic: c.topic, Payload: m.Payload, Properties: properties(m.Properties), PublishTime: m.PublishTime, EventTime: m.EventTime,
		},
		Key: m.Key, OrderingKey: m.OrderingKey,
	}, entry.ID, "", nil
}

// ack implements parkingConn.
func (c *memParking) ack(ref any) error {
	c.consumer.Ack(membroker.Ack{ID: ref.(membroker.EntryID), Index: -1})
	return nil
}

// close implements parkingConn.
func (c *memParking) close() { c.consumer.Close() }
