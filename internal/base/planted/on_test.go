//go:build planted

package planted_test

const built = true
