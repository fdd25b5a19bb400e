package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
)

// lossless is a stream between two bareStreams of one process. It counts frames with records.
type lossless struct {
	in, out chan []byte
	hot     int
}

func (l *lossless) SendMsg(m any) error {
	b := bytes.Clone((*m.(*mem.Buffer)).ReadOnlyData())
	if b[0]&bareHot != 0 {
		l.hot++
	}
	l.out <- b
	return nil
}

func (l *lossless) RecvMsg(m any) error {
	b, open := <-l.in
	if !open {
		return errors.New("over")
	}
	*m.(*mem.Buffer) = mem.SliceBuffer(b)
	return nil
}

// All records arrive, once and in their order, and gather while a frame has no receipt.
func TestBareStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there, back := make(chan []byte, 100), make(chan []byte, 100)
		from := &lossless{in: back, out: there}
		to := &lossless{in: there, out: back}
		sender, receiver := newBareStream(), newBareStream()
		sender.st, receiver.st = from, to
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, s := range []*bareStream{sender, receiver} {
			all.Go(func() { _ = s.send(ctx) })
		}
		hold := make(chan struct{})
		var got []bareEvent
		all.Go(func() {
			_ = receiver.receive(func(records []byte) error {
				<-hold
				events, err := readBareEvents(bytes.Clone(records), nil)
				got = append(got, events...)
				return err
			})
		})
		all.Go(func() { _ = sender.receive(nil) })
		put := func(i int) {
			sender.put(1, func(_ int, b []byte) []byte {
				return appendBareEvent(b, uint64(i), keyName(i), bytes.Repeat([]byte{byte(i)}, i))
			})
		}
		put(0)
		synctest.Wait()
		const events = 1000 // some 512 KB: several frames
		for i := 1; i < events; i++ {
			put(i)
		}
		synctest.Wait()
		if from.hot != 1 {
			t.Errorf("%d frames were sent before the first had a receipt", from.hot)
		}
		close(hold)
		synctest.Wait()
		for i, e := range got {
			if e.handle != uint64(i) || string(e.key) != keyName(i) || !bytes.Equal(e.payload, bytes.Repeat([]byte{byte(i)}, i)) {
				t.Fatalf("event %d came as %d, %q with %d bytes", i, e.handle, e.key, len(e.payload))
			}
		}
		if len(got) != events || from.hot < 3 || from.hot > 10 {
			t.Errorf("%d events came in %d frames, want %d in a few", len(got), from.hot, events)
		}
		cancel()
		close(there)
		close(back)
		all.Wait()
	})
}

func TestBareRecordsThatAreCutOff(t *testing.T) {
	whole := appendBareEvent(nil, 7, "key", []byte("payload"))
	for n := 1; n < len(whole); n++ {
		if _, err := readBareEvents(whole[:n], nil); !errors.Is(err, errBare) {
			t.Errorf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
	if _, err := readBareHandles(make([]byte, 12)); !errors.Is(err, errBare) {
		t.Errorf("one handle and a half: %v", err)
	}
}

// An application in the mode bare handles the events of its relay, and answers each.
func TestConsumeBare(t *testing.T) {
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan uint64, 10)
	server := bareServer()
	server.RegisterService(bareDesc(func(method string, st grpc.ServerStream) error {
		if method != bareWork {
			return fmt.Errorf("the application calls %s", method)
		}
		s := newBareStream()
		s.st = st
		go func() { _ = s.send(st.Context()) }()
		s.put(3, func(i int, b []byte) []byte {
			return appendBareEvent(b, uint64(i+1), keyName(i), payload(keyName(i), i, 256))
		})
		return s.receive(func(records []byte) error {
			handles, err := readBareHandles(records)
			for _, h := range handles {
				answers <- h
			}
			return err
		})
	}), nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	m, _ := modeNamed(modeBare)
	w := &worker{mode: m, endpoint: lis.Addr().String(), handler: handler{name: "json", decode: true}}
	ctx, cancel := context.WithCancel(t.Context())
	consumed := make(chan error, 1)
	go func() { consumed <- w.consume(ctx) }()
	for want := uint64(1); want <= 3; want++ {
		select {
		case h := <-answers:
			if h != want {
				t.Errorf("answer to %d, want %d", h, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no answer")
		}
	}
	cancel()
	if err := <-consumed; err != nil || w.handled.Load() != 3 {
		t.Errorf("%d events were handled: %v", w.handled.Load(), err)
	}
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestBareIsAskedForByName(t *testing.T) {
	o, err := parseWith("--modes", "all")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range o.Modes {
		if m.name == modeBare {
			t.Error("all modes include bare, which is none")
		}
	}
	if _, err := parseWith("--modes", "bare,shared", "--workloads", "drain,latency", "--handler", "json"); err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"--workloads", "kill"}, {"--handler", "1ms"}, {"--workloads", "latency", "--stalled-keys", "3"}} {
		if _, err := parseWith(append(args, "--modes", "shared,bare")...); err == nil || !strings.Contains(err.Error(), "bare") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// BenchmarkBareHop is the floor of forward's BenchmarkHop: events as records of bytes, a
// frame under way while the next fills, and a handle back for each. Nothing is held,
// checked or counted but the events that are open.
func BenchmarkBareHop(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprintf("payload=%d", size), func(b *testing.B) { benchmarkBareHop(b, size) })
	}
}

func benchmarkBareHop(b *testing.B, size int) {
	const batch, openMax = 256, 8192
	lis, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := bareServer()
	server.RegisterService(bareDesc(func(_ string, st grpc.ServerStream) error {
		s := newBareStream()
		s.st = st
		go func() { _ = s.send(st.Context()) }()
		var events []bareEvent
		return s.receive(func(records []byte) (err error) {
			events, err = readBareEvents(records, events[:0])
			s.put(len(events), func(i int, b []byte) []byte { return appendBareHandle(b, events[i].handle) })
			return err
		})
	}), nil)
	go func() { _ = server.Serve(lis) }()
	defer server.Stop()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	conn, st, err := dialBare(ctx, lis.Addr().String(), bareForward)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	s := newBareStream()
	s.st = st
	payload, keys := make([]byte, size), make([]string, 4096)
	for i := range keys {
		keys[i] = keyName(i)
	}
	open := make(chan struct{}, openMax/batch)
	answered := make(chan struct{}, 1)
	batches := (b.N + batch - 1) / batch
	go func() { _ = s.send(ctx) }()
	go func() {
		n := 0
		_ = s.receive(func(records []byte) error {
			before := n / batch
			n += len(records) / 8
			for range n/batch - before {
				<-open
			}
			if n == batches*batch {
				answered <- struct{}{}
			}
			return nil
		})
	}()
	b.ResetTimer()
	cpu, err := cpuSeconds(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	for i := range batches {
		open <- struct{}{}
		s.put(batch, func(j int, b []byte) []byte {
			n := i*batch + j
			return appendBareEvent(b, uint64(n), keys[n%len(keys)], payload)
		})
	}
	<-answered
	b.StopTimer()
	used, err := cpuSeconds(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(batches*batch), "ns/event")
	b.ReportMetric((used-cpu)*1e9/float64(batches*batch), "cpu-ns/event")
}
