//go:build !planted

package planted

// On reports whether a bug is planted: never, in this build.
func On(Bug) bool { return false }

// Present returns the planted bug: None, in this build.
func Present() Bug { return None }
