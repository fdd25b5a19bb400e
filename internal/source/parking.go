package source

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
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

	ack Ack
}

// Parking is the parking topic of a group. Its methods are safe for concurrent use.
type Parking struct {
	cfg     Config
	metrics *Metrics
	log     *slog.Logger
	open    func(context.Context) (parkingConn, error)
}

// parkingConn is an exclusive consumer of the parking topic, which gets all messages that are not acked, in the order of each topic
// partition. One goroutine at a time uses it.
type parkingConn interface {
	// end writes a message to each topic partition, with a property and this value of it, and returns how many there are.
	end(ctx context.Context, value string) (int, error)
	// receive blocks until there is an entry, and appends its receipt. If it cannot be read, Unreadable has the place of the entry, too, unless it
	// is encrypted.
	receive(ctx context.Context, batch []Receipt) ([]Receipt, error)
	// ack returns when the broker has confirmed the ack.
	ack(a Ack) error
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

// ParkingReading is one look at the letters. No other member reads until it is closed. It is not safe for concurrent use.
type ParkingReading struct{ conn parkingConn }

// Ack removes a letter.
func (r *ParkingReading) Ack(l *ParkedLetter) error { return r.conn.ack(l.ack) }

// Close lets others read. Letters that are not acked stay.
func (r *ParkingReading) Close() { r.conn.close() }

// Read calls each with all letters that are in the topic when it begins, and not acked: in the order of each topic partition, which is
// not that of their marks. The caller closes the reading. Messages that no router has written, or that were changed, stay, and are counted.
func (p *Parking) Read(ctx context.Context, each func(*ParkedLetter)) (*ParkingReading, error) {
	keys, err := p.cfg.openCopyKeys(func(error) {})
	if err != nil {
		return nil, err
	}
	conn, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.read(ctx, conn, keys(), each); err != nil {
		conn.close()
		return nil, err
	}
	return &ParkingReading{conn}, nil
}

func (p *Parking) read(ctx context.Context, conn parkingConn, keys [][]byte, each func(*ParkedLetter)) error {
	value := rand.Text()
	ends, err := conn.end(ctx, value)
	if err != nil {
		return err
	}
	refused, unreadable, example := 0, 0, ""
	for ends > 0 {
		waiting, cancel := context.WithTimeout(ctx, parkingAnswer)
		got, err := conn.receive(waiting, nil)
		cancel()
		if err != nil {
			return fmt.Errorf("source: %s is not read to its end: %w", p.cfg.ParkingTopic(), err)
		}
		r := &got[0]
		ack := Ack{Entry: r.ID, Total: r.Entry.Len(), Ref: r.Ref}
		if end := endValue(r); end != "" {
			if end == value {
				ends--
			}
			if err := conn.ack(ack); err != nil {
				return err
			}
			continue
		}
		l, why := p.letter(r, keys)
		switch why {
		case "":
			l.ack = ack
			each(l)
			continue
		case notReadable:
			if unreadable++; unreadable == 1 {
				example = r.Unreadable
			}
		default:
			refused++
		}
		p.metrics.lettersRefused.WithLabelValues(why).Inc()
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

// endValue returns the value of a message that parkingConn.end has written, "" for any other: a letter may have any property, of its producer.
func endValue(r *Receipt) string {
	if r.Unreadable != "" || r.Entry.Len() != 1 {
		return ""
	}
	e := r.Entry.Event(0)
	if property(e, PropertyParked) != "" {
		return ""
	}
	return property(e, propertyParkedEnd)
}

// letter restores a letter. why is the reason if the message is no letter. Only the payload aliases the entry: all else is kept for letters
// whose payload is not.
func (p *Parking) letter(r *Receipt, keys [][]byte) (l *ParkedLetter, why string) {
	switch {
	case r.Unreadable == reasonEncrypted || r.Entry.Len() != 1:
		return nil, notWritten
	case r.Unreadable != "":
		return nil, notReadable
	}
	m := r.Entry.Message(0)
	if why := refusalReason(&m, keys, p.cfg.CopyUnsigned); why != "" {
		return nil, why
	}
	mark, err := event.ParseMark(property(m.Event, PropertyParked))
	if err != nil {
		return nil, notWritten
	}
	m.Key, m.OrderingKey = strings.Clone(m.Key), strings.Clone(m.OrderingKey)
	own := make([]event.Property, 0, len(m.Event.Properties))
	for _, p := range m.Event.Properties {
		own = append(own, event.Property{Name: strings.Clone(p.Name), Value: strings.Clone(p.Value)})
	}
	slices.SortFunc(own, byName)
	m.Event.Properties, m.Event.Key = own, ""
	l = &ParkedLetter{Message: m, Mark: mark, ID: m.Event.ID}
	restore(l.Event)
	return l, ""
}

// memParking is a parkingConn of a broker in memory.
type memParking struct{ *memConnection }

func (p *Parking) openMem(ctx context.Context, broker MemBroker) (parkingConn, error) {
	cfg := p.cfg
	cfg.BatchMax, cfg.ReceiverQueueMax = 1, parkingPrefetch
	c, err := subscribeMem(ctx, cfg, broker, membroker.SubscribeOptions{
		Subscription: cfg.DeadLetterSubscription, Type: membroker.Exclusive, Topics: []string{cfg.ParkingTopic()},
	})
	if errors.Is(err, ErrSubscriptionType) {
		return nil, ErrParkingBusy
	}
	return memParking{c}, err
}

// end implements parkingConn.
func (c memParking) end(ctx context.Context, value string) (int, error) {
	_, err := c.broker.Publish(ctx, c.cfg.ParkingTopic(), []membroker.Message{{Properties: map[string]string{propertyParkedEnd: value}}})
	return 1, err
}
