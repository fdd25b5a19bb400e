package procgroup

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strconv"
)

// socketPathMax is the longest path of a socket that every system takes.
const socketPathMax = 100

// AppAddress is a socket, which no other process can take while the router is away, or a port
// where a socket is impossible.
func AppAddress(socket string, port int) (listen, endpoint string) {
	if runtime.GOOS == "windows" || len(socket) > socketPathMax {
		return Loopback(port), Loopback(port)
	}
	return "unix:" + socket, "unix://" + socket
}

// Loopback is the address of a port on this machine.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// The ports to choose from lie below those that systems give to outgoing
// connections, of which this machine is about to make many.
const (
	portMin  = 20_000
	portsMax = 10_000
)

// FreePorts returns ports that were free a moment ago, for TCP and for UDP.
func FreePorts(n int) (ports []int, err error) {
	var random [2]byte
	_, _ = rand.Read(random[:]) // never fails
	first := int(binary.BigEndian.Uint16(random[:]))
	for i := 0; i < portsMax && len(ports) < n; i++ {
		port := portMin + (first+i)%portsMax
		if err = tryPort(Loopback(port)); err == nil {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("no free ports: %w", err)
	}
	return ports, nil
}

func tryPort(address string) error {
	stream, err := net.Listen("tcp", address) //nolint:noctx // it does not wait for anybody
	if err != nil {
		return err
	}
	defer stream.Close()
	packets, err := net.ListenPacket("udp", address) //nolint:noctx // nor does this
	if err != nil {
		return err
	}
	return packets.Close()
}
