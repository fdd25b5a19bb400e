package exchange

import (
	"crypto/rand"
	"crypto/sha256"
	"os"

	"github.com/ringfence/router/internal/audit"
)

// readClockID names CLOCK_BOOTTIME by the boot of the machine and by the time namespace, which may shift it. If
// either cannot be read, the clock counts as one of this process alone.
func readClockID() (id audit.ClockID) {
	boot, errBoot := os.ReadFile("/proc/sys/kernel/random/boot_id")
	namespace, errNamespace := os.Readlink("/proc/self/ns/time")
	if os.IsNotExist(errNamespace) {
		namespace, errNamespace = "", nil // Linux before 5.6 has none
	}
	if errBoot != nil || errNamespace != nil {
		_, _ = rand.Read(id[:]) // never fails
		return id
	}
	sum := sha256.Sum256(append(boot, namespace...))
	return audit.ClockID(sum[:len(id)])
}
