//go:build planted

package planted

import (
	"fmt"
	"os"
	"slices"
)

var present = fromEnvironment()

// On reports whether a bug is planted.
func On(b Bug) bool { return present == b }

// Present returns the planted bug, None if there is none.
func Present() Bug { return present }

// Plant makes b the one planted bug; None ends it. No machine may run meanwhile.
func Plant(b Bug) { present = b }

// fromEnvironment plants the bug that RINGFENCE_PLANTED names, before anything runs. A
// name that is none ends the process: an experiment without its bug would prove
// nothing.
func fromEnvironment() Bug {
	name := os.Getenv("RINGFENCE_PLANTED")
	if name == "" {
		return None
	}
	if i := slices.Index(names[:], name); i >= 0 {
		return Bug(i)
	}
	fmt.Fprintf(os.Stderr, "RINGFENCE_PLANTED = %q, want one of %q\n", name, names[:])
	os.Exit(2)
	return None
}
