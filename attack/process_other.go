//go:build !linux

package main

import "os/exec"

// dieWithParent does nothing here: the suite runs on Linux alone.
func dieWithParent(*exec.Cmd) {}
