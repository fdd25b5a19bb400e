package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ringfence/router/internal/base/backoff"
)

// storm is an attack that is repeated at a rate.
type storm struct {
	number int
	name   string
	rate   string
	run    func(ctx context.Context, g *group) int64 // until ctx ends; returns the number of repetitions
}

// storms returns the rows of the table as storms upon the first router of a group. The peer listeners
// have mTLS and workers have a token, so that 3 comes from a member and 13 from an operator.
func storms() []storm {
	return []storm{
		{1, "results before Hello", "12 connections a second, 4 MiB each", func(ctx context.Context, g *group) int64 {
			frame := emptyResults(resultsFrame)
			return every(ctx, 12, 64, func() { _ = sendEarly(ctx, g.target().app(), frame) })
		}},
		{2, "bodies that are not sent", "64 connections, opened again when closed", func(ctx context.Context, g *group) int64 {
			return beside(heldConnections, func() int64 { return holdOpen(ctx, g.target().admin()) })
		}},
		{3, "Hello of 7 MiB", "2 a second, with a member's certificate", func(ctx context.Context, g *group) int64 {
			hello := strangerHello(strings.Repeat("x", groupNameBytes))
			return every(ctx, 2, 8, func() { _ = sayHello(ctx, g.target().peer(), credentials.NewTLS(g.peers.member), hello) })
		}},
		{4, "gossip garbage", "2,000 packets and 100 connections a second", func(ctx context.Context, g *group) int64 {
			var dialing sync.WaitGroup
			dialing.Go(func() { every(ctx, 100, 500, func() { holdSilent(ctx, g.target().gossip()) }) })
			defer dialing.Wait()
			return packets(ctx, g, 2000, func(i int) []byte { return garbage(g.target().group, i) })
		}},
		{5, "forged members", "500 packets a second, 5,000 names", func(ctx context.Context, g *group) int64 {
			return packets(ctx, g, 500, func(i int) []byte { return forged(i%forgedCount, "127.0.0.1:1").packet(g.target().group) })
		}},
		{6, "gossip bombs", "10 packets a second, 39 MB each", func(ctx context.Context, g *group) int64 {
			packet, err := bomb(g.target().group, bombExpanded)
			if err != nil {
				return 0
			}
			return packets(ctx, g, 10, func(int) []byte { return packet })
		}},
		{7, "/v1/partitions", "60 clients, each as soon as it is answered", func(ctx context.Context, g *group) int64 {
			return g.target().askInLoops(ctx, partitionClients, "/v1/partitions")
		}},
		{8, "profiles", "4 clients in loops: a stranger, a bent name, an operator", func(ctx context.Context, g *group) int64 {
			return beside(4, func() (asked int64) {
				for ; ctx.Err() == nil; asked += 3 {
					_, _, _ = askAt(ctx, g.target().debug(), http.MethodGet, "/debug/pprof/goroutine?debug=2", "")
					_, _, _ = askAt(ctx, g.target().debug(), http.MethodGet, "/debug/pprof/heap?gc=1", "", "Host", "evil.example")
					_, _, _ = askAt(ctx, g.target().debug(), http.MethodGet, "/debug/pprof/goroutine?debug=2", "", "Authorization", "Bearer "+adminToken)
					_ = backoff.Sleep(ctx, time.Millisecond) // ctx ends the loop
				}
				return asked
			})
		}},
		{9, "an operator's browser", "50 requests a second", func(ctx context.Context, g *group) int64 {
			return 2 * every(ctx, 25, 32, func() {
				_, _, _ = askAt(ctx, g.target().admin(), http.MethodGet, "/undrain", "", "Sec-Fetch-Site", "none")
				_, _, _ = askAt(ctx, g.target().admin(), http.MethodPost, "/drain", "", "Origin", "http://evil.example")
			})
		}},
		{10, "escape codes in names", "50 packets and 5 questions for members a second", func(ctx context.Context, g *group) int64 {
			var asking sync.WaitGroup
			asking.Go(func() {
				every(ctx, 5, 16, func() { _, _, _ = g.target().ask(ctx, "/v1/members") })
			})
			defer asking.Wait()
			return packets(ctx, g, 50, func(i int) []byte {
				m := forged(i%forgedCount, "127.0.0.1:1\x1b[8m")
				m.name = fmt.Sprintf("evil-%d\x1b]0;owned\x07\x1b[2J", i%forgedCount)
				return m.packet(g.target().group)
			})
		}},
		{11, "a wildcard certificate", "20 connections a second", func(ctx context.Context, g *group) int64 {
			return every(ctx, 20, 64, func() {
				_ = sayHello(ctx, g.target().peer(), credentials.NewTLS(g.peers.stranger), strangerHello("another"))
			})
		}},
		{12, "hostile settings", "one check after the other, on the same machine", func(ctx context.Context, g *group) int64 {
			path, err := g.lab.writeDeep()
			if err != nil {
				return 0
			}
			checks := int64(0)
			for ; backoff.Sleep(ctx, 100*time.Millisecond) == nil; checks++ {
				_ = g.lab.command(ctx, nil, "config", "lint", "--config", path).Run() // it is refused
			}
			return checks
		}},
		{13, "log level debug", "set once a second, with the token", func(ctx context.Context, g *group) int64 {
			set := every(ctx, 1, 4, func() { _, _, _ = g.target().operator(ctx, http.MethodPut, "/log/level", "debug") })
			back, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			_, _, _ = g.target().operator(back, http.MethodPut, "/log/level", "info")
			return set
		}},
		{14, "strangers as workers", "20 connections a second, without the token", func(ctx context.Context, g *group) int64 {
			return every(ctx, 20, 64, func() { _, _ = steal(ctx, g.target().app(), 5*time.Second) })
		}},
		{15, "calls by HTTP", "200 slow connections, and 100 calls a second without the token", func(ctx context.Context, g *group) int64 {
			c := &callees{router: g.target()}
			var slow sync.WaitGroup
			slow.Go(func() {
				beside(200, func() int64 { return c.drip(ctx, c.head(chargePath, "X-Slow: "), time.Second) })
			})
			defer slow.Wait()
			return every(ctx, 100, 64, func() { _, _ = c.statusOf(ctx, c.head(chargePath, "Connection: close", "Content-Length: 1", "", "5")) })
		}},
	}
}

func (g *group) target() *router { return g.routers[0] }

// beside runs do so many times concurrently, and returns the sum of the results.
func beside(n int, do func() int64) int64 {
	var all sync.WaitGroup
	var sum atomic.Int64
	for range n {
		all.Go(func() { sum.Add(do()) })
	}
	all.Wait()
	return sum.Load()
}

// every begins do so many times a second until ctx ends, waits, and returns how often it did;
// not more than atOnceMax run at once.
func every(ctx context.Context, rate, atOnceMax int, do func()) (done int64) {
	var all sync.WaitGroup
	var running atomic.Int64
	begin, due := time.Now(), 0
	for backoff.Sleep(ctx, 5*time.Millisecond) == nil {
		for now := int(time.Since(begin).Seconds() * float64(rate)); due < now; due++ {
			if running.Load() >= int64(atOnceMax) {
				continue
			}
			running.Add(1)
			done++
			all.Go(func() { do(); running.Add(-1) })
		}
	}
	all.Wait()
	return done
}

// packets sends packets to the gossip of the first router until ctx ends, and returns how many.
func packets(ctx context.Context, g *group, rate int, packet func(i int) []byte) (sent int64) {
	s, err := newSender(ctx, g.target().gossip(), rate)
	if err != nil {
		return 0
	}
	defer s.conn.Close()
	for ctx.Err() == nil {
		_ = s.send(ctx, rate, func(int) []byte { sent++; return packet(int(sent)) }) // ctx ends the loop
	}
	return sent
}

// holdSilent opens a connection and sends nothing, until it is closed or five seconds are over.
func holdSilent(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
}
