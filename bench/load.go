package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// How events are spread over keys.
const (
	distributionUniform = "uniform"
	distributionZipf    = "zipf" // with the exponent 0.99, as the YCSB benchmark has it
	distributionHot     = "hot"  // every second event is of one key
)

const zipfExponent = 0.99

// keyPicker returns a function that draws numbers of keys, the same ones in each run.
func keyPicker(distribution string, keys int) func() int { return keyPickerOf(distribution, keys, 1) }

// keyPickerOf is a keyPicker for one of several sources of load, which draw different keys.
func keyPickerOf(distribution string, keys, source int) func() int {
	random := rand.New(rand.NewPCG(1, uint64(source)))
	switch distribution {
	case distributionZipf:
		upTo := zipf(keys)
		return func() int { return sort.SearchFloat64s(upTo, random.Float64()*upTo[keys-1]) }
	case distributionHot:
		return func() int {
			if random.IntN(2) == 0 {
				return 0
			}
			return random.IntN(keys)
		}
	}
	return func() int { return random.IntN(keys) }
}

// zipf returns the cumulative weights of n keys, of which the i-th has i^-0.99.
func zipf(n int) []float64 {
	upTo := make([]float64, n)
	sum := 0.0
	for i := range upTo {
		sum += math.Pow(float64(i+1), -zipfExponent)
		upTo[i] = sum
	}
	return upTo
}

func keyName(number int) string { return "user-" + strconv.Itoa(number) }

// keyNumber is the reverse of keyName, -1 for a foreign key.
func keyNumber(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "user-"))
	if err != nil {
		return -1
	}
	return n
}

// visit is a typical shop event, the input of the json handler: about 3 µs of work at 256
// bytes.
type visit struct {
	User     string  `json:"user"`
	N        int     `json:"n"`
	Type     string  `json:"type"`
	Store    string  `json:"store"`
	Session  string  `json:"session"`
	Campaign string  `json:"campaign"`
	Channel  string  `json:"channel"`
	Currency string  `json:"currency"`
	Total    float64 `json:"total"`
	Items    int     `json:"items"`
	Consent  bool    `json:"consent"`
}

// visitRest are the fields of a visit that are the same in all.
const visitRest = `,"type":"cart_updated","store":"s-48213","session":"b7c9a1f20c554e0a","campaign":"thanksgiving"` +
	`,"channel":"sms","currency":"USD","total":129.9,"items":3,"consent":true`

// payload is an event of a backlog.
func payload(key string, n, size int) []byte {
	return fill(fmt.Appendf(nil, `{"user":%q,"n":%d`, key, n), size)
}

// stampedPayload is an event that tells when it was to be published, at places that
// can be read without decoding it.
func stampedPayload(key string, n, size int, at clock.Instant) []byte {
	return fill(fmt.Appendf(nil, `{"at":%19d,"n":%10d,"user":%q`, int64(at), n, key), size)
}

// fill ends the event that has begun, with the rest of a visit if there is room for that,
// and so that it has size bytes, if it does not have more yet.
func fill(event []byte, size int) []byte {
	const pad, end = `,"pad":"`, `"}`
	if len(event)+len(visitRest)+len(pad)+len(end) <= size {
		event = append(event, visitRest...)
	}
	missing := size - len(event) - len(pad) - len(end)
	if missing < 0 {
		return append(event, '}')
	}
	return append(event, pad+strings.Repeat("x", missing)+end...)
}

// readStamp is the reverse of stampedPayload.
func readStamp(payload []byte) (n int, at clock.Instant, err error) {
	const atFrom, atTo, nFrom, nTo = 6, 25, 30, 40
	if len(payload) < nTo {
		return 0, 0, errors.New("a payload without a stamp")
	}
	instant, err1 := strconv.ParseInt(strings.TrimLeft(string(payload[atFrom:atTo]), " "), 10, 64)
	n, err2 := strconv.Atoi(strings.TrimLeft(string(payload[nFrom:nTo]), " "))
	return n, clock.Instant(instant), errors.Join(err1, err2)
}

// publisher sends the load of one round.
type publisher struct {
	client   pulsar.Client
	producer pulsar.Producer
	pick     func() int
	size     int

	failedOnce sync.Once
	failed     error // of the first send that failed; to be read after a flush
}

// newPublisher makes the subscription, so that nothing is missed, and a producer.
func newPublisher(o Options, m mode, topic string) (*publisher, error) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: o.PulsarURL, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return nil, err
	}
	p := &publisher{client: client, pick: keyPicker(o.Distribution, o.Keys), size: o.Size}
	sub, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: subscription, Type: m.subscription,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest, ReceiverQueueSize: 1,
	})
	if err != nil {
		client.Close()
		return nil, err
	}
	sub.Close()
	opts := pulsar.ProducerOptions{Topic: topic, MaxPendingMessages: receiverQueue, SendTimeout: pulsarsend.NoTimeout, BatchingMaxPublishDelay: o.BatchDelay}
	switch m.batchingFor(o) {
	case batchingKey:
		opts.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	case batchingOff:
		opts.DisableBatching = true
	}
	if p.producer, err = client.CreateProducer(opts); err != nil {
		client.Close()
		return nil, err
	}
	return p, nil
}

func (p *publisher) close() {
	p.producer.Close()
	p.client.Close()
}

func (p *publisher) send(ctx context.Context, key string, payload []byte) {
	p.producer.SendAsync(ctx, &pulsar.ProducerMessage{Key: key, Payload: payload},
		func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				p.failedOnce.Do(func() { p.failed = err })
			}
		})
}

func (p *publisher) flush(ctx context.Context) error {
	if err := p.producer.FlushWithCtx(ctx); err != nil {
		return err
	}
	return p.failed
}

// backlog publishes count events as fast as the broker takes them.
func (p *publisher) backlog(ctx context.Context, count int) error {
	for n := range count {
		key := keyName(p.pick())
		p.send(ctx, key, payload(key, n, p.size))
	}
	return p.flush(ctx)
}

// stampedBacklog is a backlog of stamped events.
func (p *publisher) stampedBacklog(ctx context.Context, count int) error {
	for n := range count {
		key := keyName(p.pick())
		p.send(ctx, key, stampedPayload(key, n, p.size, clock.Now()))
	}
	return p.flush(ctx)
}

// timetable is the time at which each event of a fixed rate is due. Latency counts from then, not
// from the moment at which a delayed publisher sends it.
type timetable struct {
	begin clock.Instant
	rate  int // events a second
}

func (t timetable) at(n int) clock.Instant {
	return t.begin.Add(time.Duration(float64(n) / float64(t.rate) * float64(time.Second)))
}

// due returns the number of events that are to be published by now.
func (t timetable) due(now clock.Instant) int {
	return int(now.Sub(t.begin).Seconds()*float64(t.rate)) + 1
}

// paceTick is the interval at which a paced publisher checks for due events.
const paceTick = 500 * time.Microsecond

// paced publishes count events by the timetable.
func (p *publisher) paced(ctx context.Context, t timetable, count int) error {
	tick := time.NewTicker(paceTick)
	defer tick.Stop()
	for n := 0; n < count; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		for due := min(count, t.due(clock.Now())); n < due; n++ {
			key := keyName(p.pick())
			p.send(ctx, key, stampedPayload(key, n, p.size, t.at(n)))
		}
	}
	return p.flush(ctx)
}

// eventName is the name of the n-th event in journals.
func eventName(n int) string { return strconv.Itoa(n) }

// decode is the json handler's work for an event.
func decode(payload []byte) error {
	var v visit
	return json.Unmarshal(payload, &v)
}

// eventNumber is the reverse of eventName.
func eventNumber(name string) (int, error) { return strconv.Atoi(name) }
