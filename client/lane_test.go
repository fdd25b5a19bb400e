package client_test

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/client"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// TestInvokeWithoutARouter: a call that got no connection has not run, in the words of this version of gRPC.
func TestInvokeWithoutARouter(t *testing.T) {
	lane, err := client.Dial("127.0.0.1:1", client.WithDialer(func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("nobody is there") }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lane.Close() }()
	var failure *client.CallError
	if _, err := lane.Invoke(t.Context(), "k", "charge", nil); !errors.As(err, &failure) || !errors.Is(err, client.ErrNotRun) || failure.Code != client.CodeUnreachable {
		t.Errorf("the error is %v", err)
	}
}

// reader is a router that answers all that it reads, of at most 2 MiB as every router.
type reader struct {
	lanev1.UnimplementedLaneServiceServer

	read atomic.Int64
}

func (r *reader) Invoke(context.Context, *lanev1.InvokeRequest) (*lanev1.InvokeResponse, error) {
	r.read.Add(1)
	return &lanev1.InvokeResponse{Outcome: lanev1.Outcome_OUTCOME_REPLIED}, nil
}

func (r *reader) Send(context.Context, *lanev1.SendRequest) (*lanev1.SendResponse, error) {
	r.read.Add(1)
	return &lanev1.SendResponse{MessageId: "1:2:-1:-1"}, nil
}

// laneTo connects a lane with a router in memory.
func laneTo(t *testing.T, router lanev1.LaneServiceServer, options ...grpc.ServerOption) *client.Lane {
	t.Helper()
	listener, server := bufconn.Listen(1<<16), grpc.NewServer(options...)
	lanev1.RegisterLaneServiceServer(server, router)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	lane, err := client.Dial("router:1", client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lane.Close() })
	return lane
}

// TestCallsOnADeadConnection: nothing ends the connection. The first call over it ends by its deadline, the next one uses another.
func TestCallsOnADeadConnection(t *testing.T) { synctest.Test(t, testCallsOnADeadConnection) }

func testCallsOnADeadConnection(t *testing.T) {
	listener, server := bufconn.Listen(1<<16), grpc.NewServer()
	lanev1.RegisterLaneServiceServer(server, new(reader))
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conns := make(chan *mutable, 10)
	lane, err := client.Dial("router:1", client.WithLeaseClock(&lender{begun: time.Now()}), client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := listener.DialContext(ctx)
		m := &mutable{Conn: conn}
		conns <- m
		return m, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lane.Close() }()
	invoke := func() error {
		_, err := lane.Invoke(t.Context(), "k", "do", nil, client.WithCallTimeout(300*time.Millisecond))
		return err
	}
	send := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := lane.Send(ctx, "k", nil)
		return err
	}
	short := func() error { // shorter than a router may take for its answer to a probe
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := lane.Send(ctx, "k", nil)
		if err != nil {
			time.Sleep(100 * time.Millisecond)
		}
		return err
	}
	for name, call := range map[string]func() error{"Invoke": invoke, "Send": send, "a short Send": short} {
		if err := call(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		(<-conns).gone.Store(true)
		if err := call(); err == nil {
			t.Errorf("%s over a dead connection has an answer", name)
		}
		if err := call(); err != nil {
			t.Errorf("%s after it: %v", name, err)
		}
	}
	if n := len(conns); n != 1 {
		t.Errorf("%d connections are left, want 1", n)
	}
}

// slow is a router whose handlers and broker take longer than any caller waits, after the first. It answers a call when its time is up, as routers do.
type slow struct {
	lanev1.UnimplementedLaneServiceServer

	begun atomic.Bool
}

func (s *slow) Invoke(ctx context.Context, r *lanev1.InvokeRequest) (*lanev1.InvokeResponse, error) {
	if !s.begun.Swap(true) {
		return &lanev1.InvokeResponse{Outcome: lanev1.Outcome_OUTCOME_REPLIED}, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Duration(r.GetTimeoutMs()+1) * time.Millisecond):
		return &lanev1.InvokeResponse{Outcome: lanev1.Outcome_OUTCOME_UNKNOWN}, nil
	}
}

func (s *slow) Send(ctx context.Context, _ *lanev1.SendRequest) (*lanev1.SendResponse, error) {
	if !s.begun.Swap(true) {
		return &lanev1.SendResponse{MessageId: "1:2:-1:-1"}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestShortCallsOfSlowHandlersKeepTheirConnection: a call that ends by the deadline of its context says nothing about the connection.
func TestShortCallsOfSlowHandlersKeepTheirConnection(t *testing.T) {
	for name, call := range map[string]func(context.Context, *client.Lane) error{
		"Invoke": func(ctx context.Context, lane *client.Lane) error {
			_, err := lane.Invoke(ctx, "k", "do", nil)
			return err
		},
		"Send": func(ctx context.Context, lane *client.Lane) error {
			_, err := lane.Send(ctx, "k", nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener, server := bufconn.Listen(1<<16), grpc.NewServer()
				lanev1.RegisterLaneServiceServer(server, new(slow))
				go func() { _ = server.Serve(listener) }()
				defer server.Stop()
				var dials atomic.Int32
				lane, err := client.Dial("router:1", client.WithLeaseClock(&lender{begun: time.Now()}), client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
					dials.Add(1)
					return listener.DialContext(ctx)
				}))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = lane.Close() }()
				if err := call(t.Context(), lane); err != nil {
					t.Fatal(err)
				}
				for range 20 {
					for _, timeout := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond, 3 * time.Second} {
						ctx, cancel := context.WithTimeout(t.Context(), timeout)
						if err := call(ctx, lane); !errors.Is(err, client.ErrUnknown) && !errors.Is(err, client.ErrMaybeSent) {
							t.Errorf("a call whose handler is slow: %v", err)
						}
						cancel()
					}
				}
				if n := dials.Load(); n != 1 {
					t.Errorf("%d connections, want 1", n)
				}
			})
		})
	}
}

// TestCallsAfterAConnectionThatIsNeverMade: a call whose time is up leaves the attempt to connect to none after it.
func TestCallsAfterAConnectionThatIsNeverMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, server := bufconn.Listen(1<<16), grpc.NewServer()
		lanev1.RegisterLaneServiceServer(server, new(reader))
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		var dials atomic.Int32
		lane, err := client.Dial("router:1", client.WithLeaseClock(&lender{begun: time.Now()}), client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
			if dials.Add(1) == 1 { // it hangs
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return listener.DialContext(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lane.Close() }()
		call := func() error {
			_, err := lane.Invoke(t.Context(), "k", "do", nil, client.WithCallTimeout(time.Second))
			return err
		}
		if err := call(); !errors.Is(err, client.ErrNotRun) {
			t.Errorf("a call without a connection: %v", err)
		}
		if err := call(); err != nil {
			t.Errorf("the next one: %v", err)
		}
	})
}

// TestCallsWhoseTimeoutIsShorterThanConnecting: each replaces the attempt to connect of those before it, but not before that has had its time.
func TestCallsWhoseTimeoutIsShorterThanConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, server := bufconn.Listen(1<<16), grpc.NewServer()
		lanev1.RegisterLaneServiceServer(server, new(reader))
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		begun := time.Now()
		lane, err := client.Dial("router:1", client.WithLeaseClock(&lender{begun: begun}), client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case <-time.After(6 * time.Second): // it is far, or busy
				return listener.DialContext(ctx)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lane.Close() }()
		for {
			_, err := lane.Invoke(t.Context(), "k", "do", nil, client.WithCallTimeout(300*time.Millisecond))
			if err == nil {
				return
			}
			if after := time.Since(begun); after > time.Minute {
				t.Fatalf("after %v: %v", after, err)
			}
		}
	})
}

// TestTooLargeRequestsAreNotSent: gRPC answers what is larger than a router reads with the status that means "again", so it must not get there.
func TestTooLargeRequestsAreNotSent(t *testing.T) {
	t.Parallel()
	router := new(reader)
	lane := laneTo(t, router, grpc.MaxRecvMsgSize(2<<20))
	const most = 1 << 20
	for name, c := range map[string]struct {
		key     string
		payload int
		want    string // "": it is sent
	}{
		"the largest payload": {"k", most, ""},
		"a larger payload":    {"k", most + 1, "a payload of 1048577 bytes: want at most 1048576"},
		"a huge payload":      {"k", 3 * most, "a payload of 3145728 bytes: want at most 1048576"},
		"a huge key":          {strings.Repeat("k", 2*most), 0, "bytes: want at most 2097152"},
	} {
		before := router.read.Load()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // otherwise it would be sent again for ever
		_, sent := lane.Send(ctx, c.key, make([]byte, c.payload))
		_, called := lane.Invoke(ctx, c.key, "do", make([]byte, c.payload))
		cancel()
		if c.want == "" {
			if sent != nil || called != nil {
				t.Errorf("%s: %v, %v", name, sent, called)
			}
			continue
		}
		if !errors.Is(sent, client.ErrNotSent) || !strings.Contains(sent.Error(), c.want) {
			t.Errorf("%s: Send: %v", name, sent)
		}
		if failure := (*client.CallError)(nil); !errors.As(called, &failure) || !errors.Is(failure.Kind, client.ErrNotRun) || failure.Code != client.CodeTooLarge || !strings.Contains(failure.Text, c.want) {
			t.Errorf("%s: Invoke: %v", name, called)
		}
		if len(c.key) > most { // a reservation has no payload
			_, err := lane.Reserve(t.Context(), c.key)
			if failure := (*client.CallError)(nil); !errors.As(err, &failure) || !errors.Is(err, client.ErrNotReserved) || failure.Code != client.CodeTooLarge {
				t.Errorf("%s: Reserve: %v", name, err)
			}
		}
		if read := router.read.Load() - before; read != 0 {
			t.Errorf("%s: the router has read %d requests", name, read)
		}
	}
}

// TestRequestsThatAreNoTextAreNotSent: what gRPC cannot encode never reaches a router, and the caller need not wonder.
func TestRequestsThatAreNoTextAreNotSent(t *testing.T) {
	t.Parallel()
	router := new(reader)
	lane := laneTo(t, router)
	const text = "a\xff"
	for name, option := range map[string]client.SendOption{
		"a name": client.WithSendName(text), "an id": client.WithSendID(text), "a property": client.WithSendProperties(map[string]string{"a": text}),
	} {
		if _, err := lane.Send(t.Context(), "k", nil, option); !errors.Is(err, client.ErrNotSent) || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%s: Send: %v", name, err)
		}
	}
	for name, call := range map[string]func() ([]byte, error){
		"a method": func() ([]byte, error) { return lane.Invoke(t.Context(), "k", text, nil) },
		"an id":    func() ([]byte, error) { return lane.Invoke(t.Context(), "k", "do", nil, client.WithCallID(text)) },
	} {
		_, err := call()
		if failure := (*client.CallError)(nil); !errors.As(err, &failure) || !errors.Is(failure.Kind, client.ErrNotRun) || failure.Code != "" || !strings.Contains(failure.Text, "UTF-8") {
			t.Errorf("%s: Invoke: %v", name, err)
		}
	}
	if read := router.read.Load(); read != 0 {
		t.Errorf("the router has read %d requests", read)
	}
}

// TestInvokeWithAnEndlessTimeout: the router judges it.
func TestInvokeWithAnEndlessTimeout(t *testing.T) {
	router := new(reader)
	lane := laneTo(t, router)
	if _, err := lane.Invoke(t.Context(), "k", "do", nil, client.WithCallTimeout(math.MaxInt64)); err != nil || router.read.Load() != 1 {
		t.Errorf("%v, and the router has read %d requests", err, router.read.Load())
	}
}

// TestSendsEndWithoutADeadline: a router that is always crowded, or that never answers, keeps nobody for ever.
func TestSendsEndWithoutADeadline(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(context.Context) error
		want   error
	}{
		"it is always crowded": {func(context.Context) error { return status.Error(codes.ResourceExhausted, "as told") }, client.ErrNotSent},
		"it never answers":     {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, client.ErrMaybeSent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lane := laneTo(t, refusing{answer: test.answer})
				ctx, cancel := context.WithCancel(t.Context())
				defer time.AfterFunc(2*time.Minute, cancel).Stop() // it would go on for ever
				begun := time.Now()
				_, err := lane.Send(ctx, "k", nil)
				if took := time.Since(begun); !errors.Is(err, test.want) || took > time.Minute {
					t.Errorf("%v after %v, want %v", err, took, test.want)
				}
			})
		})
	}
}

// refusing is a router that publishes nothing.
type refusing struct {
	lanev1.UnimplementedLaneServiceServer

	answer func(context.Context) error
}

func (r refusing) Send(ctx context.Context, _ *lanev1.SendRequest) (*lanev1.SendResponse, error) {
	return nil, r.answer(ctx)
}

// occupied is a router that answers nobody until it may.
type occupied struct {
	lanev1.UnimplementedLaneServiceServer

	free     chan struct{}
	timeouts chan uint64 // of the calls that it has read
	sent     atomic.Int64
}

func (o *occupied) Invoke(_ context.Context, r *lanev1.InvokeRequest) (*lanev1.InvokeResponse, error) {
	o.timeouts <- r.GetTimeoutMs()
	<-o.free
	return &lanev1.InvokeResponse{Outcome: lanev1.Outcome_OUTCOME_REPLIED}, nil
}

func (o *occupied) Send(context.Context, *lanev1.SendRequest) (*lanev1.SendResponse, error) {
	o.sent.Add(1)
	return &lanev1.SendResponse{MessageId: "1:2:-1:-1"}, nil
}

// TestCallsWithoutRoomForAStream: what waits for room on the connection until its time is up was not sent, and says so.
// What gets room has the time that is left.
func TestCallsWithoutRoomForAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, grace = 10 * time.Second, time.Second
		router := &occupied{free: make(chan struct{}), timeouts: make(chan uint64, 3)}
		listener, server := bufconn.Listen(1<<16), grpc.NewServer(grpc.MaxConcurrentStreams(1))
		lanev1.RegisterLaneServiceServer(server, router)
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(listener) })
		defer running.Wait()
		defer server.Stop()
		lane, err := client.Dial("router:1", client.WithLeaseClock(&lender{begun: time.Now()}), client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lane.Close() }()
		running.Go(func() {
			if _, err := lane.Invoke(t.Context(), "k", "first", nil, client.WithCallTimeout(time.Minute)); err != nil {
				t.Errorf("the first call: %v", err)
			}
		})
		if ms := <-router.timeouts; ms != uint64(time.Minute/time.Millisecond) {
			t.Errorf("the first call has %d ms", ms)
		}

		begun := time.Now()
		_, err = lane.Invoke(t.Context(), "k", "second", nil, client.WithCallTimeout(timeout))
		var failure *client.CallError
		if !errors.As(err, &failure) || !errors.Is(err, client.ErrNotRun) || failure.Code != client.CodeOverloaded || !strings.Contains(failure.Text, "no free stream") {
			t.Errorf("a call without room: %v", err)
		}
		if took := time.Since(begun); took != timeout+grace {
			t.Errorf("it took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := lane.Send(ctx, "k", nil); !errors.Is(err, client.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no free stream") {
			t.Errorf("an event without room: %v", err)
		}

		time.AfterFunc(4*time.Second, func() { close(router.free) })
		if _, err := lane.Invoke(t.Context(), "k", "third", nil, client.WithCallTimeout(timeout)); err != nil {
			t.Errorf("a call that gets room: %v", err)
		}
		if ms := <-router.timeouts; ms != 6000 {
			t.Errorf("it has %d ms of 10,000 after 4 s", ms)
		}
		if n := router.sent.Load(); n != 0 {
			t.Errorf("the router has read %d events", n)
		}
	})
}
