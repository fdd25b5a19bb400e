package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/devtools/testapp"
)

// The hidden commands of the children.
const (
	RoleBroker = "broker"
	RoleMember = "member"
	RoleApp    = "app"
	RolePlain  = "plain"
)

// ParentDrains is a flag of members: the parent drains them, and SIGTERM, which may reach the whole process group, does not.
const ParentDrains = "parent-drains"

const (
	folderPrefix = procgroup.FolderPrefix + "demo-"

	// ready is the line that a plain application prints once it is subscribed.
	ready = "ready"

	// progressEvery is the interval at which an application prints the number of handled events.
	progressEvery = 100 * time.Millisecond
)

// ServeBroker serves events and a control log on a free port of the loopback
// interface, and prints its address.
func ServeBroker(ctx context.Context, stdout io.Writer) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	server := grpc.NewServer()
	membroker.Register(server, membroker.New(membroker.DefaultConfig()))
	defer context.AfterFunc(ctx, server.Stop)()
	fmt.Fprintln(stdout, listener.Addr())
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

// AppOptions select the source of an application's events: Endpoint is a router's; Broker or
// Pulsar, with Topic and Subscription, make it a plain SHARED consumer.
type AppOptions struct {
	Journal      string // file to write
	Endpoint     string
	Broker       string
	Pulsar       string
	Topic        string
	Subscription string
}

// RunApp is an application beside a router.
func RunApp(ctx context.Context, o AppOptions, stdout io.Writer) error {
	return runApp(ctx, o, stdout, func(ctx context.Context, w *testapp.App) error {
		return client.Run(ctx, o.Endpoint, w.Handle, client.WithMaxInFlight(handlersMax))
	})
}

// RunPlain is an application that consumes SHARED, with as many handlers at once as
// the one beside a router may have.
func RunPlain(ctx context.Context, o AppOptions, stdout io.Writer) error {
	return runApp(ctx, o, stdout, func(ctx context.Context, w *testapp.App) error {
		if o.Pulsar != "" {
			return consumeCluster(ctx, o, w, stdout)
		}
		return consumeMemory(ctx, o, w, stdout)
	})
}

// runApp runs an application and prints its progress.
func runApp(ctx context.Context, o AppOptions, stdout io.Writer, run func(context.Context, *testapp.App) error) error {
	file, err := journal.Create(o.Journal)
	if err != nil {
		return err
	}
	w := testapp.New(usualWork, file)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
				if err := file.Err(); err != nil { // such as a full disk: nothing will be handled any more
					return err
				}
				fmt.Fprintln(stdout, w.Over())
			}
		}
	})
	group.Go(func() error { return run(ctx, w) })
	return errors.Join(group.Wait(), file.Close())
}

func consumeMemory(ctx context.Context, o AppOptions, w *testapp.App, stdout io.Writer) error {
	m, err := dialMemory(o.Broker)
	if err != nil {
		return err
	}
	defer m.close()
	consumer, err := m.client.Subscribe(ctx, membroker.SubscribeOptions{Subscription: o.Subscription, Topics: []string{o.Topic}})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer consumer.Close()
	consumer.Permit(handlersMax)
	fmt.Fprintln(stdout, ready)
	var handlers errgroup.Group
	handlers.SetLimit(handlersMax)
	defer func() { _ = handlers.Wait() }() // they return no errors
	for {
		entries, err := consumer.Receive(ctx)
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		for _, e := range entries {
			for i, m := range e.Messages {
				handlers.Go(func() error {
					err := w.Work(ctx, testapp.Event{Name: string(m.Payload), Key: event.Key(m.Key), Attempt: 1, Conduct: m.Properties[testapp.ConductProperty]})
					if err == nil {
						consumer.Ack(membroker.Ack{ID: e.ID, Index: int32(i)})
					}
					consumer.Permit(1)
					return nil
				})
			}
		}
	}
}

func consumeCluster(ctx context.Context, o AppOptions, w *testapp.App, stdout io.Writer) error {
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: o.Pulsar, Logger: plog.DefaultNopLogger()})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer c.Close()
	consumer, err := pulsarread.Subscribe(c, pulsar.ConsumerOptions{
		Topic: o.Topic, SubscriptionName: o.Subscription, Type: pulsar.Shared, ReceiverQueueSize: handlersMax,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer consumer.Close()
	fmt.Fprintln(stdout, ready)
	var handlers errgroup.Group
	handlers.SetLimit(handlersMax)
	defer func() { _ = handlers.Wait() }() // they return no errors
	for {
		m, err := consumer.Receive(ctx)
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		handlers.Go(func() error {
			err := w.Work(ctx, testapp.Event{Name: string(m.Payload()), Key: event.Key(m.Key()), Attempt: 1, Conduct: m.Properties()[testapp.ConductProperty]})
			if err == nil {
				_ = consumer.Ack(m) // if it fails, the event comes again
			}
			return nil
		})
	}
}
