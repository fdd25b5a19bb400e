package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/testing/eventually"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// rawCodec sends its input unchanged.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(data)
	return nil
}

func (rawCodec) Name() string { return "proto" }

// emptyResults is a WorkRequest of so many bytes at most that holds results of two bytes each.
func emptyResults(size int) []byte {
	results := bytes.Repeat([]byte{0x12, 0x00}, (size-16)/2)
	frame := binary.AppendUvarint([]byte{0x1a}, uint64(len(results)))
	return append(frame, results...)
}

// resultsFrame is the largest that the application's listener takes, and earlyConnections how many send one.
const (
	resultsFrame     = 4 << 20
	earlyConnections = 30
)

// sendEarly opens a connection and sends a frame in the place of a Hello.
func sendEarly(ctx context.Context, address string, frame []byte) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, appv1.AppService_Work_FullMethodName,
		grpc.ForceCodec(rawCodec{}), grpc.MaxCallSendMsgSize(64<<20))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&frame); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var answer []byte
	return stream.RecvMsg(&answer)
}

// resultsBeforeHello: a router's memory for input before a Hello stays within the printed
// bound.
var resultsBeforeHello = with(nil, "results", func(ctx context.Context, r *router) (finding, error) {
	bound, err := r.metric(ctx, "ringfence_memory_bound_bytes")
	if err != nil {
		return finding{}, err
	}
	before, err := peakOf(r.pid())
	if err != nil {
		return finding{}, err
	}
	frame := emptyResults(resultsFrame)
	var answered atomic.Int64
	var all sync.WaitGroup
	for range earlyConnections {
		all.Go(func() {
			if status.Code(sendEarly(ctx, r.app(), frame)) != codes.OK {
				answered.Add(1)
			}
		})
	}
	all.Wait()
	peak, err := peakOf(r.pid())
	if err != nil {
		return finding{}, err
	}
	seen := fmt.Sprintf("%s of memory at most, %s before, the printed bound is %s; %d streams refused",
		mebibytes(peak), mebibytes(before), mebibytes(int64(bound)), answered.Load())
	return finding{peak > int64(bound), seen}, nil
})

const (
	groupNameBytes = 7 << 20
	helloLogMax    = 64 << 10 // of the log for five Hellos
)

// sayHello opens a peer stream, says Hello and returns how the stream ended.
func sayHello(ctx context.Context, address string, creds credentials.TransportCredentials, hello *peerv1.Hello) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	stream, err := peerv1.NewPeerServiceClient(conn).Forward(ctx, grpc.MaxCallSendMsgSize(64<<20))
	if err != nil {
		return err
	}
	err = stream.Send(&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: hello}})
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = stream.Recv()
	return err
}

// strangerHello is that of a member of a group that is not there.
func strangerHello(group string) *peerv1.Hello {
	return &peerv1.Hello{Group: group, Member: "stranger", HashId: "none", Incarnation: []byte("0123456789abcdef"), VersionMin: 1, VersionMax: 1}
}

// longGroupName: a line of the log holds a few bytes of a stranger's words.
var longGroupName = with(nil, "hello", func(ctx context.Context, r *router) (finding, error) {
	before := r.settledLog(ctx)
	hello := strangerHello(strings.Repeat("\x01", groupNameBytes))
	refused := 0
	for range 5 {
		if err := sayHello(ctx, r.peer(), insecure.NewCredentials(), hello); err != nil {
			refused++
		}
	}
	grown := r.settledLog(ctx) - before
	return finding{grown > helloLogMax, fmt.Sprintf("the log grew by %d bytes for 5 Hellos; %d refused", grown, refused)}, nil
})

// The names in the certificates of a group of routers, and of their neighbours.
const (
	routerName   = "orders-router.shop.svc"
	wildcardName = "*.shop.svc"
)

// callers are two clients of a peer listener, which has to tell them apart.
type callers struct{ member, stranger *tls.Config }

// tlsOf returns the settings of a router's peer listener, and its callers.
func tlsOf(dir string) (s settings, c callers, err error) {
	a, err := newAuthority(dir)
	if err != nil {
		return nil, c, err
	}
	cert, key, err := a.issue("member", routerName)
	if err != nil {
		return nil, c, err
	}
	if c.member, err = a.caller(cert, key, routerName); err != nil {
		return nil, c, err
	}
	wildCert, wildKey, err := a.issue("wildcard", wildcardName)
	if err != nil {
		return nil, c, err
	}
	c.stranger, err = a.caller(wildCert, wildKey, routerName)
	return settings{"peer.tls.cert_file": cert, "peer.tls.key_file": key, "peer.tls.ca_file": a.file, "peer.tls.name": routerName}, c, err
}

// letIn reports whether a listener has let a caller in as far as his Hello.
func letIn(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unauthenticated, codes.PermissionDenied:
		return false
	}
	return true
}

// wildcard: the certificate of a neighbour that covers the members' name as well is none of theirs.
func wildcard(ctx context.Context, l *lab) (finding, error) {
	more, peers, err := tlsOf(l.dir)
	if err != nil {
		return finding{}, err
	}
	return with(more, "wildcard", func(ctx context.Context, r *router) (finding, error) {
		asMember := sayHello(ctx, r.peer(), credentials.NewTLS(peers.member), strangerHello("another"))
		if !letIn(asMember) {
			return finding{}, fmt.Errorf("a certificate for %s is not let in: %w", routerName, asMember)
		}
		err := sayHello(ctx, r.peer(), credentials.NewTLS(peers.stranger), strangerHello("another"))
		if letIn(err) {
			return broken("a certificate for %s is let in; its Hello is answered with %q", wildcardName, err)
		}
		return held("a certificate for %s is refused: %.120q", wildcardName, err)
	})(ctx, l)
}

const strangersEvents = 62

// steal connects as a worker without a token and returns how many events it is given.
func steal(ctx context.Context, address string, wait time.Duration) (events int, err error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	stream, err := appv1.NewAppServiceClient(conn).Work(ctx)
	if err != nil {
		return 0, err
	}
	hello := &appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{Worker: "stranger", MaxInFlight: 1000, VersionMin: 1, VersionMax: 1}}}
	if err := stream.Send(hello); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	for events < strangersEvents {
		response, err := stream.Recv()
		if err != nil {
			return events, err
		}
		if d := response.GetDeliveries(); d != nil {
			events += len(d.GetDeliveries())
			if err := stream.Send(&appv1.WorkRequest{Receipt: d.GetNumber()}); err != nil {
				return events, nil // it was disconnected, with its events
			}
		}
	}
	return events, nil
}

// strangerWorker: a worker without a token gets no event, and a worker with one gets them all.
func strangerWorker(ctx context.Context, l *lab) (finding, error) {
	return with(settings{"app.token_file": l.appTokenFile}, "stranger", func(ctx context.Context, r *router) (finding, error) {
		if err := r.publish(ctx, strangersEvents, func(i int) *pulsar.ProducerMessage {
			return &pulsar.ProducerMessage{Key: fmt.Sprint("key-", i), Payload: []byte("secret")}
		}); err != nil {
			return finding{}, err
		}
		events, err := steal(ctx, r.app(), 15*time.Second)
		if events > 0 {
			return broken("a worker without a token was given %d events", events)
		}
		if err == nil || status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Unavailable {
			return finding{}, fmt.Errorf("a worker without a token was neither refused nor given events: %w", err)
		}
		var got atomic.Int64
		working, stop := context.WithCancel(ctx)
		defer stop()
		var worker errgroup.Group
		worker.Go(func() error {
			return r.work(working, func(context.Context, *client.Event) error { got.Add(1); return nil })
		})
		friend := eventually.Ask(ctx, 30*time.Second, "the worker with the token has all events", func() error {
			if n := got.Load(); n < strangersEvents {
				return fmt.Errorf("it has %d of %d", n, strangersEvents)
			}
			return nil
		})
		stop()
		if err := errors.Join(friend, worker.Wait()); err != nil {
			return finding{}, err
		}
		return held("a worker without a token is refused: %.100q; one with it got all %d events", err, strangersEvents)
	})(ctx, l)
}
