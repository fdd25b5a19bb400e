//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The addresses of the bridge: the broker's own, and the one by which the members'
// proxies reach it.
const (
	brokerIP  = "10.77.0.1"
	backendIP = "10.77.0.2"
)

func memberIP(n int) string { return fmt.Sprint("10.77.0.", 11+n) }

// network is a bridge with a network namespace for each member on it. It is in the
// network namespace of this process, and goes with it.
type network struct {
	members int

	mu   sync.Mutex // held during calls to the bridge, so that they keep their order
	cuts cuts
}

// newNetwork makes the bridge and the namespaces. A cut is a set of pairs of addresses: the
// bridge drops packets from the first to the second.
func newNetwork(ctx context.Context, members int) (*network, error) {
	steps := []string{
		"link set lo up",
		"link add bridge0 type bridge",
		"addr add " + brokerIP + "/24 dev bridge0",
		"addr add " + backendIP + "/24 dev bridge0",
		"link set bridge0 up",
	}
	for n := range members {
		name := memberName(n)
		steps = append(steps,
			"netns add "+name,
			fmt.Sprintf("link add veth%d type veth peer name eth0 netns %s", n, name),
			fmt.Sprintf("link set veth%d master bridge0 up", n),
		)
	}
	if err := command(ctx, strings.Join(steps, "\n"), "ip", "-batch", "-"); err != nil {
		return nil, err
	}
	for n := range members {
		inside := []string{"link set lo up", "addr add " + memberIP(n) + "/24 dev eth0", "link set eth0 up"}
		if err := command(ctx, strings.Join(inside, "\n"), "ip", "-n", memberName(n), "-batch", "-"); err != nil {
			return nil, err
		}
	}
	return &network{members: members, cuts: cuts{}}, command(ctx, `
table bridge chaos {
	set cuts { type ipv4_addr . ipv4_addr; }
	chain passed { type filter hook prerouting priority 0; ip saddr . ip daddr @cuts drop; }
	chain sent { type filter hook output priority 0; ip saddr . ip daddr @cuts drop; }
}`, "nft", "-f", "-")
}

// pairs lists the pairs that a cut of the member from some others separates, in one direction
// (in, out) or both when the direction is empty.
func (n *network) pairs(member int, from, direction string) (pairs []string) {
	var others []string
	if from != fromPeers {
		others = append(others, brokerIP, backendIP)
	}
	if from != fromPulsar {
		for other := range n.members {
			if other != member {
				others = append(others, memberIP(other))
			}
		}
	}
	for _, other := range others {
		if direction != "in" {
			pairs = append(pairs, memberIP(member)+" . "+other)
		}
		if direction != "out" {
			pairs = append(pairs, other+" . "+memberIP(member))
		}
	}
	return pairs
}

// cut makes packets vanish, until heal is called with the same pairs.
func (n *network) cut(ctx context.Context, pairs []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return tellBridge(ctx, "add", n.cuts.add(pairs))
}

func (n *network) heal(ctx context.Context, pairs []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return tellBridge(ctx, "delete", n.cuts.remove(pairs))
}

func tellBridge(ctx context.Context, verb string, pairs []string) error {
	if len(pairs) == 0 {
		return nil
	}
	return command(ctx, "", "nft", verb+" element bridge chaos cuts { "+strings.Join(pairs, ", ")+" }")
}

// command runs a program of the system and returns its output if it fails.
func command(ctx context.Context, stdin, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// within runs f on a thread in the network namespace of a member. Processes that f starts and
// sockets that it makes stay in that namespace.
func within(name string, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = home.Close() }() // a name of a namespace
	there, err := os.Open("/run/netns/" + name)
	if err != nil {
		return err
	}
	defer func() { _ = there.Close() }() // another one
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", name, err)
	}
	err = f()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(fmt.Sprintf("a thread is lost in %s: %v", name, back)) //nolint:forbidigo // it would continue in the wrong namespace
	}
	return err
}

// dialWithin dials from inside the namespace of a member, despite any cut outside.
func dialWithin(name string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = within(name, func() error {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
}
