//go:build linux

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
)

// TestBrokerThatLoops: the log of a broker that makes its bookie's registration for ever is told from that of one that has lost it at its start.
func TestBrokerThatLoops(t *testing.T) {
	const lost = "2026-11-27T18:21:18,105+0000 [metadata-store-1-1] INFO  org.apache.pulsar.metadata.coordination.impl.ResourceLockImpl - Lock on resource /ledgers/available/127.0.0.1:29497 was invalidated. state Valid\n"
	const other = "2026-11-27T18:23:39,164+0000 [metadata-store-1-1] INFO  org.apache.pulsar.metadata.coordination.impl.ResourceLockImpl - Lock on resource /loadbalance/brokers/127.0.0.1:21724 was invalidated. state Valid\n"
	b := &broker{handle: t.TempDir()}
	if err := os.Mkdir(filepath.Join(b.handle, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(b.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := f.WriteString(text); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	start := lost + lost + other + strings.Repeat("x", 2<<20) + "\n"
	if n, err := registrationsLost(strings.NewReader(start)); n != 2 || err != nil {
		t.Errorf("%d registrations lost, %v, want 2", n, err)
	}
	write(strings.Repeat(lost, 50) + start) // an earlier life of the broker
	if loops, err := b.loops(t.Context()); loops || err != nil {
		t.Errorf("loops = %v, %v", loops, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	writing.Go(func() {
		for backoff.Sleep(ctx, 10*time.Millisecond) == nil {
			write(lost + other)
		}
	})
	if loops, err := b.loops(t.Context()); !loops || err != nil {
		t.Errorf("loops = %v, %v", loops, err)
	}
	stop()
	writing.Wait()
	dir := t.TempDir()
	if err := b.keepLog(dir); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, "broker.log")); err != nil || !strings.HasPrefix(string(kept), strings.Repeat(lost, 50)+start) {
		t.Errorf("the log is not kept: %d bytes, %v", len(kept), err)
	}
}
