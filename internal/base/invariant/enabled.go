//go:build race || invariants

package invariant

// Enabled reports whether a broken invariant panics. It is a constant, so that
// checks that cost something can stand behind it and vanish from production.
const Enabled = true
