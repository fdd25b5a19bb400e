//go:build planted

package planted

var present Bug

// On reports whether a bug is planted.
func On(b Bug) bool { return present == b }

// Plant makes b the one planted bug; None ends it. No machine may run meanwhile.
func Plant(b Bug) { present = b }
