//go:build unix

package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// logTo starts the sidecar with a pipe for its log, and returns the end at which the log can be read.
func (p *pod) logTo(t *testing.T) (read *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	p.stderr = write
	p.startSidecar()
	p.stderr = nil
	_ = write.Close() // the child has it
	return read
}

// logs makes the sidecar write a line.
func (p *pod) logs(patience time.Duration) error {
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodPut, "http://"+p.admin+"/log/level", strings.NewReader("info"))
	if err != nil {
		return err
	}
	response, err := (&http.Client{Timeout: patience}).Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// TestARouterOutlivesTheReaderOfItsLog: such a reader is a restarted log agent at the other end of a pipe.
func TestARouterOutlivesTheReaderOfItsLog(t *testing.T) {
	t.Parallel()
	p := newPod(t, "")
	log := p.logTo(t)
	p.startApp()
	p.answers("/readyz")
	_ = log.Close()
	if err := p.logs(time.Minute); err != nil {
		t.Fatal(err)
	}
	p.publish("after", 10)
	p.settled()
	p.signal(p.sidecar, syscall.SIGTERM)
	if code := p.code(p.sidecar); code != exitOK {
		t.Errorf("exit code %d (%v), want %d", code, p.sidecar.ProcessState, exitOK)
	}
}

// TestALogThatNobodyReads keeps nothing waiting: neither events nor the drain.
func TestALogThatNobodyReads(t *testing.T) {
	t.Parallel()
	p := newPod(t, "")
	log := p.logTo(t)
	p.startApp()
	p.answers("/readyz")
	for range 1000 { // more lines than a pipe takes
		if err := p.logs(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	p.publish("after", 10)
	p.settled()
	p.signal(p.sidecar, syscall.SIGTERM)
	select {
	case <-p.sidecar.ended:
	case <-time.After(time.Minute):
		t.Fatal("the router does not end")
	}
	if code := p.code(p.sidecar); code != exitOK {
		t.Errorf("exit code %d (%v), want %d", code, p.sidecar.ProcessState, exitOK)
	}
	text, err := io.ReadAll(log)
	if err != nil || !bytes.Contains(text, []byte("starting")) {
		t.Errorf("the log: %.100q, %v", text, err)
	}
}
