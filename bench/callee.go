package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc"

	"github.com/ringfence/router/client"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// callMethod is the method of all calls.
const callMethod = "bench"

// tally is what a process knows of the calls that count: callers and handlers must have the same.
type tally struct {
	Calls uint64 `json:"calls"`
	Sum   uint64 `json:"sum"` // of their checksums, modulo 2^64
}

func (t *tally) add(o tally) { t.Calls, t.Sum = t.Calls+o.Calls, t.Sum+o.Sum }

// checksum is that of a call. Its payload differs from that of any other call of its caller.
func checksum(key string, payload []byte) uint64 {
	return xxhash.Sum64String(key) + bits.RotateLeft64(xxhash.Sum64(payload), 1)
}

// callee is the handlers' side of calls. Its methods are safe for concurrent use.
type callee struct {
	node       int
	calls, sum atomic.Uint64
}

// handled counts a call if it counts, and returns its reply: its checksum, and where the handler ran.
func (c *callee) handled(key string, payload []byte) ([]byte, error) {
	_, at, err := readStamp(payload)
	if err != nil {
		return nil, err
	}
	sum := checksum(key, payload)
	if at != warmUpStamp {
		c.calls.Add(1)
		c.sum.Add(sum)
	}
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(nil, sum), uint16(c.node)), nil
}

// readReply is the reverse.
func readReply(reply []byte) (sum uint64, node int, err error) {
	if len(reply) != 10 {
		return 0, 0, fmt.Errorf("a reply of %d bytes, want 10", len(reply))
	}
	return binary.BigEndian.Uint64(reply), int(binary.BigEndian.Uint16(reply[8:])), nil
}

func (c *callee) tally() tally { return tally{c.calls.Load(), c.sum.Load()} }

func (c *callee) write(path string) error { return writeJSON(path, c.tally()) }

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// call is the handler of calls.
func (w *worker) call(key string, payload []byte) ([]byte, error) {
	if err := w.work(key, payload); err != nil {
		return nil, err
	}
	w.handled.Add(1)
	return w.callee.handled(key, payload)
}

// errEvent is the error of the handler of events in a run without events.
var errEvent = errors.New("an event, though none was published")

// serveCalls answers calls: through the router, or as a gRPC server without one.
func (w *worker) serveCalls(ctx context.Context) error {
	var report sync.WaitGroup
	defer report.Wait()
	if w.mode.name == modeUnary {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", w.endpoint)
		if err != nil {
			return err
		}
		report.Go(func() { w.reportProgress(ctx) })
		server := grpc.NewServer()
		lanev1.RegisterLaneServiceServer(server, &unaryServer{worker: w})
		context.AfterFunc(ctx, server.Stop)
		return server.Serve(listener)
	}
	report.Go(func() { w.reportProgress(ctx) })
	return client.Run(ctx, w.endpoint, func(context.Context, *client.Event) error { return errEvent },
		client.WithMaxInFlight(receiverQueue),
		client.WithCall(callMethod, func(_ context.Context, c *client.Call) ([]byte, error) { return w.call(c.Key, c.Payload) }))
}

// unaryServer answers calls in the messages of a router's LaneService, but runs the handler itself: it is the cost of a call from one
// process to another.
type unaryServer struct {
	lanev1.UnimplementedLaneServiceServer

	worker *worker
}

// Invoke implements lanev1.LaneServiceServer.
func (s *unaryServer) Invoke(_ context.Context, r *lanev1.InvokeRequest) (*lanev1.InvokeResponse, error) {
	reply, err := s.worker.call(string(r.GetKey()), r.GetPayload())
	if err != nil {
		return &lanev1.InvokeResponse{Outcome: lanev1.Outcome_OUTCOME_FAILED, Text: err.Error()}, nil //nolint:nilerr // it is an outcome
	}
	return &lanev1.InvokeResponse{Outcome: lanev1.Outcome_OUTCOME_REPLIED, Reply: reply}, nil
}
