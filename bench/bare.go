package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os/signal"
	"sync"
	"syscall"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ringfence/router/internal/base/event"
)

// relayCommand makes this binary one relay of the mode bare.
const relayCommand = "relay"

// relay is a router without any of its guarantees: it consumes, sends each event to the relay
// that its key falls to, which delivers it to its application, and acks when the answer has
// arrived. It has no mailboxes, leases, ledger, window of finished events, retries or metrics,
// and no relay may join, leave or fail. Its cost is the cost of the path: the Pulsar client, a
// hop over gRPC, an application over gRPC. The additional cost of a router is the price of its
// guarantees.
type relay struct {
	self, nodes   int
	pulsar, topic string

	consumer pulsar.Consumer
	app      *bareStream
	out      []*bareStream // to each other relay: events, and their answers back
	in       []*bareStream // from each other relay

	mu    sync.Mutex
	open  []pulsar.MessageID // by slot, which is an event's handle
	free  []uint64           // slots
	freed chan struct{}      // of capacity one
}

// bareOpen bounds the open events of a relay, as a router's default does.
const bareOpen = 20_000

// bareOrigin is the position in a handle of the relay that has received the event.
const bareOrigin = 48

func bareAddress(i int) string { return nodeIP(i) + ":16650" }

func runRelay(args []string) error {
	r := &relay{freed: make(chan struct{}, 1)}
	f := flag.NewFlagSet(relayCommand, flag.ContinueOnError)
	f.IntVar(&r.self, "index", 0, "which relay this is")
	f.IntVar(&r.nodes, "nodes", 1, "how many there are")
	f.StringVar(&r.pulsar, "pulsar", "", "the broker")
	f.StringVar(&r.topic, "topic", "", "the topic")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	r.app, r.out, r.in = newBareStream(), make([]*bareStream, r.nodes), make([]*bareStream, r.nodes)
	for i := range r.nodes {
		r.out[i], r.in[i] = newBareStream(), newBareStream()
	}
	r.open, r.free = make([]pulsar.MessageID, bareOpen), make([]uint64, bareOpen)
	for i := range r.free {
		r.free[i] = uint64(i)
	}
	return r.run(ctx)
}

func (r *relay) run(ctx context.Context) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", bareAddress(r.self))
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	server := bareServer()
	server.RegisterService(bareDesc(func(method string, st grpc.ServerStream) error { return r.serve(method, st) }), r) //nolint:contextcheck // a stream has a context of its own
	group.Go(func() error { return server.Serve(lis) })
	context.AfterFunc(ctx, server.Stop)
	for i := range r.nodes {
		if i == r.self {
			continue
		}
		conn, st, err := dialBare(metadata.AppendToOutgoingContext(ctx, "from", fmt.Sprint(r.self)), bareAddress(i), bareForward)
		if err != nil {
			return err
		}
		defer conn.Close()
		r.out[i].st = st
		group.Go(func() error { return r.out[i].send(ctx) })
		group.Go(func() error { return r.out[i].receive(r.answered) })
	}
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: r.pulsar, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return err
	}
	defer c.Close()
	messages := make(chan pulsar.ConsumerMessage, bareBatch)
	r.consumer, err = c.Subscribe(pulsar.ConsumerOptions{
		Topic: r.topic, SubscriptionName: subscription, Type: pulsar.Shared,
		ReceiverQueueSize: receiverQueue, MessageChannel: messages,
	})
	if err != nil {
		return err
	}
	defer r.consumer.Close()
	group.Go(func() error { r.read(ctx, messages); return nil })
	return group.Wait()
}

// serve is one inbound stream.
func (r *relay) serve(method string, st grpc.ServerStream) error {
	ctx := st.Context()
	s, take := r.app, r.worked
	if method == bareForward {
		from := 0
		md, _ := metadata.FromIncomingContext(ctx)
		if values := md.Get("from"); len(values) == 1 {
			_, _ = fmt.Sscan(values[0], &from) // by another process of this run
		}
		s, take = r.in[from], r.forwarded()
	}
	s.st = st
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.send(ctx) })
	group.Go(func() error { return s.receive(take) })
	wakeUp(s.wake) // for events that have gathered before
	return group.Wait()
}

// bareBatch bounds the events that a relay takes from the client at once, as in a router.
const bareBatch = 256

// read is the reader's goroutine.
func (r *relay) read(ctx context.Context, messages <-chan pulsar.ConsumerMessage) {
	batch := make([]pulsar.ConsumerMessage, 0, bareBatch)
	owners, slots := make([]int, bareBatch), make([]uint64, bareBatch)
	mine := make([]int, 0, bareBatch)
	for {
		batch = batch[:0]
		select {
		case <-ctx.Done():
			return
		case m := <-messages:
			batch = append(batch, m)
		}
		for more := true; more && len(batch) < bareBatch; {
			select {
			case m := <-messages:
				batch = append(batch, m)
			default:
				more = false
			}
		}
		if !r.enter(ctx, batch, slots) {
			return
		}
		for i, m := range batch {
			owners[i] = int(xxhash.Sum64String(m.Key()) % uint64(r.nodes))
		}
		for owner := range r.nodes {
			mine = mine[:0]
			for i := range batch {
				if owners[i] == owner {
					mine = append(mine, i)
				}
			}
			to := r.out[owner]
			if owner == r.self {
				to = r.app
			}
			to.put(len(mine), func(i int, b []byte) []byte {
				m := batch[mine[i]]
				return appendBareEvent(b, uint64(r.self)<<bareOrigin|slots[mine[i]], m.Key(), m.Payload())
			})
		}
		clear(batch)
	}
}

// enter waits until there is room, and gives each message a slot.
func (r *relay) enter(ctx context.Context, batch []pulsar.ConsumerMessage, slots []uint64) bool {
	for {
		r.mu.Lock()
		if len(r.free) >= len(batch) {
			break
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-r.freed:
		}
	}
	defer r.mu.Unlock()
	for i, m := range batch {
		last := len(r.free) - 1
		slots[i], r.free = r.free[last], r.free[:last]
		r.open[slots[i]] = m.ID()
	}
	return true
}

// forwarded hands events of another relay to the application, under their handles.
func (r *relay) forwarded() func([]byte) error {
	var events []bareEvent
	return func(records []byte) (err error) {
		if events, err = readBareEvents(records, events[:0]); err != nil {
			return err
		}
		r.app.put(len(events), func(i int, b []byte) []byte {
			e := &events[i]
			return appendBareEvent(b, e.handle, e.key, e.payload)
		})
		return nil
	}
}

// worked takes the application's answers.
func (r *relay) worked(records []byte) error {
	handles, err := readBareHandles(records)
	if err != nil {
		return err
	}
	byOrigin := make([][]uint64, r.nodes)
	for _, h := range handles {
		origin, slot := h>>bareOrigin, h&(1<<bareOrigin-1)
		byOrigin[origin] = append(byOrigin[origin], slot)
	}
	for origin, slots := range byOrigin {
		switch {
		case len(slots) == 0:
		case origin == r.self:
			r.settle(slots)
		default:
			r.in[origin].put(len(slots), func(i int, b []byte) []byte { return appendBareHandle(b, slots[i]) })
		}
	}
	return nil
}

// answered takes another relay's answers.
func (r *relay) answered(records []byte) error {
	slots, err := readBareHandles(records)
	if err == nil {
		r.settle(slots)
	}
	return err
}

func (r *relay) settle(slots []uint64) {
	ids := make([]pulsar.MessageID, len(slots))
	r.mu.Lock()
	for i, slot := range slots {
		ids[i], r.open[slot] = r.open[slot], nil
	}
	r.free = append(r.free, slots...)
	r.mu.Unlock()
	wakeUp(r.freed)
	for _, id := range ids {
		_ = r.consumer.AckID(id) // without a receipt from the broker it never fails
	}
}

// consumeBare is the application of the mode bare. Like the handlers of the other modes
// without a router it works on the goroutine that receives.
func (w *worker) consumeBare(ctx context.Context) error {
	conn, st, err := dialBare(ctx, w.endpoint, bareWork)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the process ends
	s := newBareStream()
	s.st = st
	var report sync.WaitGroup
	defer report.Wait()
	report.Go(func() { w.reportProgress(ctx) })
	group, streaming := errgroup.WithContext(ctx)
	group.Go(func() error { return s.send(streaming) })
	var events []bareEvent
	group.Go(func() error {
		return s.receive(func(records []byte) (err error) {
			if events, err = readBareEvents(records, events[:0]); err != nil {
				return err
			}
			for i := range events {
				key, payload := string(events[i].key), events[i].payload
				if err := w.handle(key, payload, event.Fence{}); err != nil {
					return err
				}
				w.finished(key, payload)
			}
			s.put(len(events), func(i int, b []byte) []byte { return appendBareHandle(b, events[i].handle) })
			return nil
		})
	})
	err = group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}
