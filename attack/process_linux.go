package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent ends cmd when this process is killed.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
