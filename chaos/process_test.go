//go:build linux

package main

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// A killed program has ended when SIGKILL had been sent, however long the kernel and this process need until the wait for it returns: in a run
// with a load of 33 that was a second later, the key of a killed holder ran at its next place, and this was taken for an overlap.
func TestKilledProcessEndedWhenItWasKilled(t *testing.T) {
	var told []clock.Instant
	p := &process{ended: func(at clock.Instant, killed bool) {
		if !killed {
			t.Error("the end counts as no kill")
		}
		told = append(told, at)
	}}
	p.cmd, p.done = exec.Command("sleep", "60"), make(chan struct{})
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.keeper.Go(p.keep)
	before := clock.Now()
	p.kill(0)
	p.keeper.Wait()
	if len(told) != 1 || told[0].Before(before) || told[0] != p.killSent {
		t.Fatalf("the end was told as %v, want once, at %v, when SIGKILL had been sent", told, p.killSent)
	}
	late := p.killSent.Add(time.Second)
	if at := p.endedAt(late, true); at != p.killSent {
		t.Errorf("waited for a second later it ended at %v, want %v", at, p.killSent)
	}
	if at := p.endedAt(late, false); at != late {
		t.Errorf("a program that ended by itself ended at %v, want when it was waited for, %v", at, late)
	}
}
