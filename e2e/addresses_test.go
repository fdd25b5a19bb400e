package e2e

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
)

// The second octets of the loopback addresses that a run may have.
const (
	runFirst = 88
	runLast  = 127
)

// ownOctet is the second octet of all loopback addresses of this run.
var ownOctet int

// claimRun takes the addresses of a run: two runs at once would take each other's. The claim ends with the process, however that dies.
func claimRun() (octet int, release func(), err error) {
	for octet = runFirst; octet <= runLast; octet++ {
		claim, err := net.Listen("tcp", fmt.Sprintf("127.%d.255.254:16650", octet))
		if err == nil {
			return octet, func() { _ = claim.Close() }, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return 0, nil, fmt.Errorf("claim loopback addresses: %w", err)
		}
	}
	return 0, nil, fmt.Errorf("claim loopback addresses: %d other runs have them all", runLast-runFirst+1)
}

// ipOf returns an address of this run.
func ipOf(network, host int) string { return fmt.Sprintf("127.%d.%d.%d", ownOctet, network, host) }

// The networks of this run beside those of its clusters.
const (
	secureNetwork  = 253
	refusedNetwork = 254
)

// TestRunsAtOnceHaveDifferentAddresses: another run that begins now gets no address of this one.
func TestRunsAtOnceHaveDifferentAddresses(t *testing.T) {
	t.Parallel()
	other, release, err := claimRun()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if other == ownOctet || ownOctet < runFirst {
		t.Errorf("this run has 127.%d, and another one 127.%d", ownOctet, other)
	}
}
