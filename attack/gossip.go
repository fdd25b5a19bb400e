package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
)

// sender sends packets to a router's gossip, at a rate.
type sender struct {
	conn net.Conn
	rate int // packets in a second
}

func newSender(ctx context.Context, address string, rate int) (*sender, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", address)
	return &sender{conn, rate}, err
}

const burst = 10 * time.Millisecond // packets are sent in bursts so far apart

// send sends n packets; packet makes the ith.
func (s *sender) send(ctx context.Context, n int, packet func(i int) []byte) error {
	each := max(1, s.rate*int(burst/time.Millisecond)/1000)
	pause := time.Duration(each) * time.Second / time.Duration(s.rate)
	for i := range n {
		if _, err := s.conn.Write(packet(i)); err != nil && ctx.Err() != nil {
			return err
		}
		if i%each == each-1 {
			if err := backoff.Sleep(ctx, pause); err != nil {
				return err
			}
		}
	}
	return nil
}

// gossipKey is the key of routers whose gossip is encrypted.
const gossipKey = "MDEyMzQ1Njc4OWFiY2RlZg=="

const (
	garbagePackets   = 8000
	garbageMost      = 10 * garbagePackets // the kernel of a busy machine drops most of them
	garbageRate      = 4000
	gossipSockets    = 1500
	gossipSocketsMax = 600 // most sockets that one router may hold for strangers
	gossipLinesMax   = 100
	countedLeast     = garbagePackets / 10
)

// garbage is a packet that no member can read: every second one with the label of the group.
func garbage(group string, i int) []byte {
	noise := make([]byte, 100)
	_, _ = rand.Read(noise) // never fails
	if i%2 == 0 {
		return noise
	}
	return labelled(group, 1, noise)
}

// gossipGarbage: unreadable traffic is counted and not logged one by one, and connections are
// bounded.
var gossipGarbage = with(settings{"gossip.encryption_keys": gossipKey}, "garbage", func(ctx context.Context, r *router) (finding, error) {
	before, err := r.metrics(ctx)
	if err != nil {
		return finding{}, err
	}
	lines, bytes := r.logLines(), r.logBytes()
	s, err := newSender(ctx, r.gossip(), garbageRate)
	if err != nil {
		return finding{}, err
	}
	defer s.conn.Close()
	var series string
	var counted float64
	sent := 0
	for ; sent < garbageMost && counted < countedLeast; sent += garbagePackets {
		if err := s.send(ctx, garbagePackets, func(i int) []byte { return garbage(r.group, i) }); err != nil {
			return finding{}, err
		}
		r.settledLog(ctx)
		after, err := r.metrics(ctx)
		if err != nil {
			return finding{}, err
		}
		series, counted = mostCounted(before, after)
	}
	lines, bytes = r.logLines()-lines, r.logBytes()-bytes
	sockets, err := r.socketsHeld(ctx)
	if err != nil {
		return finding{}, err
	}
	seen := fmt.Sprintf("%d packets: %d lines (%d bytes); counted by %s (%.0f); %d of %d connections held at once",
		sent, lines, bytes, series, counted, sockets, gossipSockets)
	return finding{lines > gossipLinesMax || counted < countedLeast || sockets > gossipSocketsMax, seen}, nil
})

// mostCounted returns the counter of refused or suppressed things that has grown most.
func mostCounted(before, after map[string]float64) (series string, by float64) {
	series = "no metric"
	for name, value := range after {
		family, _, _ := strings.Cut(name, "{")
		ours := strings.HasPrefix(family, "ringfence_") && strings.HasSuffix(family, "_total")
		if grown := value - before[name]; ours && grown > by && !strings.Contains(family, "controllog") {
			series, by = name, grown
		}
	}
	return series, by
}

// socketsHeld opens connections to the gossip at once and returns how many of them the router holds.
func (r *router) socketsHeld(ctx context.Context) (most int, err error) {
	before, err := filesOf(r.pid())
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	var dialing sync.WaitGroup
	var dialed atomic.Int64
	for range 30 {
		dialing.Go(func() {
			dialer := net.Dialer{Timeout: 2 * time.Second}
			for range gossipSockets / 30 {
				c, err := dialer.DialContext(ctx, "tcp", r.gossip())
				if err != nil {
					continue
				}
				dialed.Add(1)
				mu.Lock()
				conns = append(conns, c)
				mu.Unlock()
			}
		})
	}
	done := make(chan struct{})
	var closer sync.WaitGroup
	closer.Go(func() { dialing.Wait(); close(done) })
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-time.After(20 * time.Millisecond):
		}
		now, err := filesOf(r.pid())
		if err != nil {
			return 0, err
		}
		most = max(most, now-before)
	}
	closer.Wait()
	if dialed.Load() == 0 {
		return 0, errors.New("no connection to the gossip was made")
	}
	return most, nil
}

const (
	forgedCount  = 5000
	forgedRate   = 2000
	membersMost  = 256 // of a group
	canariesWait = 5 * time.Second
)

// listed returns how many members the router lists.
func (r *router) listed(ctx context.Context) (members int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, text, err = r.ask(ctx, "/v1/members", "Authorization", "Bearer "+adminToken)
	if err != nil {
		return 0, "", err
	}
	var m struct {
		Members []json.RawMessage `json:"members"`
	}
	err = json.Unmarshal([]byte(text), &m)
	return len(m.Members), text, err
}

// canary is a listener that no process has a reason to dial.
type canary struct {
	listener net.Listener
	dialed   atomic.Int64
	serving  sync.WaitGroup
}

func newCanary(ctx context.Context, network, address string) (*canary, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &canary{listener: listener}
	c.serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			c.dialed.Add(1)
			_ = conn.Close()
		}
	})
	return c, nil
}

func (c *canary) close() {
	_ = c.listener.Close()
	c.serving.Wait()
}

// forgedMembers: gossip alone fills no list and triggers no dialing.
func forgedMembers(ctx context.Context, l *lab) (finding, error) {
	return with(nil, "forged", func(ctx context.Context, r *router) (finding, error) {
		port, err := newCanary(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return finding{}, err
		}
		defer port.close()
		path := filepath.Join(l.dir, "canary.sock")
		socket, err := newCanary(ctx, "unix", path)
		if err != nil {
			return finding{}, err
		}
		defer socket.close()
		s, err := newSender(ctx, r.gossip(), forgedRate)
		if err != nil {
			return finding{}, err
		}
		defer s.conn.Close()
		baits := []forgedMember{forged(forgedCount, port.listener.Addr().String()), forged(forgedCount+1, "unix:"+path)}
		shown := false
		for begin := time.Now(); time.Since(begin) < canariesWait; {
			if err := s.send(ctx, len(baits), func(i int) []byte { return baits[i].packet(r.group) }); err != nil {
				return finding{}, err
			}
			_, text, err := r.listed(ctx)
			shown = shown || err == nil && strings.Contains(text, baits[1].peer)
			if port.dialed.Load() > 0 && socket.dialed.Load() > 0 || backoff.Sleep(ctx, 200*time.Millisecond) != nil {
				break
			}
		}
		if err := s.send(ctx, forgedCount, func(i int) []byte { return forged(i, "127.0.0.1:1").packet(r.group) }); err != nil {
			return finding{}, err
		}
		if err := backoff.Sleep(ctx, 3*time.Second); err != nil {
			return finding{}, err
		}
		gauge, err := r.metric(ctx, "ringfence_membership_members")
		if err != nil {
			return finding{}, err
		}
		members := int(gauge)
		if n, _, err := r.listed(ctx); err == nil { // too many take too long to be asked
			members = max(members, n)
		}
		seen := fmt.Sprintf("%d of %d listed; a TCP address dialed %d times, a Unix socket %d times; the address shown on /v1/members: %t",
			members, forgedCount+2, port.dialed.Load(), socket.dialed.Load(), shown)
		return finding{members > membersMost || port.dialed.Load() > 0 || socket.dialed.Load() > 0 || shown, seen}, nil
	})(ctx, l)
}

const (
	bombs        = 100
	bombExpanded = 39 << 20
	bombRate     = 50
	bombsBytes   = 1 << 30 // that may be allocated for all of them
)

// gossipBombs: a packet is not expanded without bounds.
var gossipBombs = with(nil, "bombs", func(ctx context.Context, r *router) (finding, error) {
	packet, err := bomb(r.group, bombExpanded)
	if err != nil {
		return finding{}, err
	}
	s, err := newSender(ctx, r.gossip(), bombRate)
	if err != nil {
		return finding{}, err
	}
	defer s.conn.Close()
	used := func() (cpu time.Duration, allocated float64, err error) {
		if allocated, err = r.metric(ctx, "go_memstats_alloc_bytes_total"); err != nil {
			return 0, 0, err
		}
		cpu, err = cpuOf(r.pid())
		return cpu, allocated, err
	}
	cpu, allocated, err := used()
	if err != nil {
		return finding{}, err
	}
	if err := s.send(ctx, bombs, func(int) []byte { return packet }); err != nil {
		return finding{}, err
	}
	for quiet := cpu; ; { // until it has processed all input
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return finding{}, err
		}
		now, err := cpuOf(r.pid())
		if err != nil {
			return finding{}, err
		}
		if now-quiet < 300*time.Millisecond {
			break
		}
		quiet = now
	}
	cpuAfter, allocatedAfter, err := used()
	if err != nil {
		return finding{}, err
	}
	grown := int64(allocatedAfter - allocated)
	return finding{grown > bombsBytes, fmt.Sprintf("%d packets of %d bytes: %s allocated, %.1f s of CPU", bombs, len(packet), mebibytes(grown), (cpuAfter - cpu).Seconds())}, nil
})

// escapeCodes: a terminal shows the names of strangers as text.
func escapeCodes(ctx context.Context, l *lab) (finding, error) {
	return with(nil, "escapes", func(ctx context.Context, r *router) (finding, error) {
		s, err := newSender(ctx, r.gossip(), 100)
		if err != nil {
			return finding{}, err
		}
		defer s.conn.Close()
		evil := forged(1, "127.0.0.1:1\x1b[8m")
		evil.name = "evil\x1b]0;owned\x07\x1b[2J"
		listed := false
		for begin := time.Now(); !listed && time.Since(begin) < canariesWait; {
			if err := s.send(ctx, 1, func(int) []byte { return evil.packet(r.group) }); err != nil {
				return finding{}, err
			}
			_, text, err := r.listed(ctx)
			listed = err == nil && strings.Contains(text, "evil")
			if backoff.Sleep(ctx, 200*time.Millisecond) != nil {
				break
			}
		}
		set := settings{"admin.token": adminToken}
		out, err := l.command(ctx, set, "members", "--admin", r.admin()).CombinedOutput()
		if err != nil {
			return finding{}, fmt.Errorf("router members: %w: %.200q", err, out)
		}
		raw := 0
		for _, b := range out {
			if b < ' ' && b != '\n' && b != '\t' || b == 0x7f {
				raw++
			}
		}
		seen := fmt.Sprintf("the forged member listed: %t; `router members` printed %d control characters", listed, raw)
		return finding{raw > 0, seen}, nil
	})(ctx, l)
}
